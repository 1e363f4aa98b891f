r"""tables/*.tex: the report as booktabs tables in the layouts of the SPARK paper.

One file a table, made to be read with ``\input`` (packages booktabs and graphicx), and
``all.tex``, a document of its own that holds them all. A table is written only where
the report holds a figure of each of its parts; digits are those of every other format.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_audit.facts import write_text
from spark_audit.manifest import Manifest
from spark_audit.reports import METHODS, WRITERS, figure
from spark_audit.results import Report, Row

UP, DOWN, CHANCE = r"$\uparrow$", r"$\downarrow$", r"$\approx$0.5"
INLINE = 4
"""Columns of figures up to which an interval stands beside its value, not below."""


@dataclass(frozen=True)
class _Column:
    """A printed column: its header (as TeX) and the rows that it shows.

    ``of = "last"`` of an accuracy is a series' last stage; ``counted`` says what the
    rows' ``n`` counts.
    """

    header: str
    arrow: str
    audit: str
    metric: str
    of: str = ""
    group: str = "pooled"
    counted: str = "tokens"


_Line = tuple[str, str]
"""Checkpoint, and what its intervals are over."""


@dataclass(frozen=True)
class _Panel:
    """Lines that belong together, under a heading or beside a label (both TeX)."""

    lines: tuple[_Line, ...]
    heading: str = ""
    label: str = ""


@dataclass(frozen=True)
class _Table:
    """A table that may be written; ``needs`` are audits that must give a figure.

    ``split`` makes panels of the lines, ``labels`` heads a column for their labels.
    """

    name: str
    lead: str
    columns: tuple[_Column, ...]
    needs: tuple[str, ...]
    split: Callable[[Report, Sequence[_Line]], list[_Panel]] | None = None
    labels: str = ""
    remark: str = ""


@WRITERS.register()
def write(
    report: Report,
    folder: Path,
    *,
    manifest: Manifest | None = None,
    show_text: bool = False,
) -> list[Path]:
    """Write ``tables/*.tex``; no text of an example is ever in them."""
    found = render(report)
    found["all"] = _document(report, list(found))
    written = []
    for name, text in found.items():
        path = folder / "tables" / f"{name}.tex"
        write_text(path, text)
        written.append(path)
    return written


def render(report: Report) -> dict[str, str]:
    """Every table that the report holds figures for, as LaTeX, by its file's stem."""
    cells = _cells(report.results)
    found = {}
    for table in _tables(report):
        if (text := _render(table, report, cells)) is not None:
            found[table.name] = text
    return found


# --- which tables ---------------------------------------------------------------------


def _tables(report: Report) -> list[_Table]:
    annotated = report.settings.get("preset") == "paper"
    tail = "/annotation" if annotated else ""
    planted = "annotations" if annotated else "canaries"

    def canary(header: str, arrow: str, metric: str, part: str) -> _Column:
        return _Column(header, arrow, "canary", metric, part + tail, counted=planted)

    def rank(header: str, arrow: str, metric: str) -> _Column:
        return _Column(header, arrow, "rank", metric, "pii")

    def mia(header: str, arrow: str, metric: str, attack: str) -> _Column:
        return _Column(header, arrow, "mia", metric, attack, counted="rows")

    def utility(header: str, metric: str) -> _Column:
        return _Column(header, UP, "utility", metric, counted="answers")

    last, avg, bwt = (utility(name, name.lower()) for name in ("Last", "Avg", "BWT"))
    likelihoods = (
        _Column("PII NLL", UP, "nll", "nll", "pii"),
        _Column("Low-sens. NLL", DOWN, "nll", "nll", "low"),
        _Column("Canary NLL", UP, "nll", "nll", "canary", counted="canaries"),
    )
    unmatched = (
        "NLLs (nats a token) are unmatched: they compare checkpoints with each other, "
        "not identifiers with other text."
    )
    per = "each context" if annotated else "all contexts of a canary together"
    tables = [
        _Table(
            "matched",
            "Selectivity at matched difficulty: NLL (nats a token) of annotated "
            "identifiers, of non-PII spans of the same examples that are as difficult "
            r"for the reference model, their difference $\Delta_{\mathrm{sel}}$, and "
            "its change since the reference, pair by pair.",
            (
                _Column(r"NLL\textsubscript{PII}", UP, "matched", "nll_pii"),
                _Column(r"NLL\textsubscript{Matched}", "", "matched", "nll_control"),
                _Column(r"$\Delta_{\mathrm{sel}}$", UP, "matched", "delta_sel"),
                _Column(
                    r"$\Delta_{\mathrm{sel}}$ change",
                    UP,
                    "matched",
                    "delta_sel",
                    "change",
                ),
            ),
            ("matched",),
        ),
        _Table(
            "rank",
            "Ranks of the identifiers' tokens in the vocabulary, after their true "
            "prefix (1 = likeliest), and shares of tokens within the first ranks.",
            (
                rank("Rank mean", UP, "rank_mean"),
                rank("Rank median", UP, "rank_median"),
                rank("Top-1", DOWN, "top1_rate"),
                rank("Top-5", DOWN, "top5_rate"),
                rank("Top-10", DOWN, "top10_rate"),
            ),
            ("rank",),
        ),
        _Table(
            "canary_nll",
            f"NLL (nats a token) of the planted canaries, over {per}. It says nothing "
            "of their rank among other candidates.",
            (
                canary("Full NLL", UP, "nll", "full"),
                canary("Password NLL", UP, "nll", "password"),
                canary("SSN NLL", UP, "nll", "ssn"),
            ),
            ("canary",),
        ),
        _Table(
            "canary_rank",
            f"Rank of the true canary among its candidates, over {per}: mean rank, "
            "exposure (bits), and shares of first and of first ten ranks.",
            (
                canary("Full rank", UP, "rank_mean", "full"),
                canary("Exposure", DOWN, "exposure_mean", "full"),
                canary("Full Top-1", DOWN, "top1_rate", "full"),
                canary("Full Top-10", DOWN, "top10_rate", "full"),
            ),
            ("canary",),
        ),
        _Table(
            "mia",
            "Membership inference: AUC of three attacks (0.5 = chance) and the share "
            "of members found at 5\\% false positives (0.05 = chance).",
            (
                mia("Loss AUC", CHANCE, "auc", "loss"),
                mia("Response AUC", CHANCE, "auc", "response"),
                mia("Min-K10 AUC", CHANCE, "auc", "mink10"),
                mia(r"Response TPR@5\% FPR", DOWN, "tpr_at_fpr_5", "response"),
            ),
            ("mia",),
        ),
        _Table(
            "ablations",
            f"Utility and likelihoods of all checkpoints. {unmatched}",
            (last, avg, bwt, *likelihoods),
            ("nll",),
        ),
        _Table(
            "task_orders",
            "Utility, likelihoods and membership inference (by loss) by the order of "
            f"the tasks. {unmatched}",
            (last, avg, bwt, *likelihoods, mia("MIA AUC", CHANCE, "auc", "loss")),
            ("utility", "nll"),
            split=_by_order,
            labels="Order",
            remark=_orders_told(report),
        ),
        _Table(
            "backbones",
            f"Utility and likelihoods by base model. {unmatched}",
            (last, avg, bwt, *likelihoods),
            ("utility", "nll"),
            split=_by_base,
        ),
        _Table(
            "utility",
            "Accuracy on each task after the last stage, and over all tasks: Last "
            "(after the last stage), Avg (mean over stages of the mean over tasks seen "
            "so far) and BWT (mean change since each task was learned).",
            (
                *(
                    _Column(
                        escaped(task),
                        UP,
                        "utility",
                        "accuracy",
                        "last",
                        f"task:{task}",
                        "answers",
                    )
                    for task in _tasks(report)
                ),
                bwt,
                last,
                avg,
            ),
            ("utility",),
        ),
    ]
    return [t for t in tables if t.split is not _by_order or _orders(report)]


def _tasks(report: Report) -> list[str]:
    rows = (r for r in report.results if (r.audit, r.metric) == ("utility", "accuracy"))
    groups = (row.group.partition(":") for row in rows)
    return list(dict.fromkeys(name for kind, _, name in groups if kind == "task"))


# --- panels ---------------------------------------------------------------------------


def _orders(report: Report) -> dict[str, tuple[str, ...]]:
    """Order of the tasks by series, of those that have all their stages."""
    found: dict[str, tuple[str, ...]] = {}
    for record in report.tables.get("accuracy_matrix", ()):
        if record.get("after"):
            name = str(record["checkpoint"])
            found[name] = (*found.get(name, ()), str(record["after"]))
    return found


def _order_of(report: Report, checkpoint: str) -> tuple[str, ...]:
    """Order that a series was trained in; empty where the report has none."""
    for name, order in _orders(report).items():
        if name == checkpoint or name.startswith(f"{checkpoint}["):
            return order
    return ()


def _numbered(report: Report) -> dict[tuple[str, ...], int]:
    """All orders of the report's series, numbered as they come."""
    orders = dict.fromkeys(_orders(report).values())
    return {order: k for k, order in enumerate(orders, start=1)}


def _by_order(report: Report, lines: Sequence[_Line]) -> list[_Panel]:
    parts: dict[tuple[str, ...], list[_Line]] = {}
    for line in lines:
        parts.setdefault(_order_of(report, line[0]), []).append(line)
    numbers = _numbered(report)
    return [
        _Panel(tuple(part), label=f"Order {numbers[order]}" if order else "--")
        for order, part in parts.items()
    ]


def _orders_told(report: Report) -> str:
    return " ".join(
        f"Order {k}: {escaped(', '.join(order))}."
        for order, k in _numbered(report).items()
    )


def _by_base(report: Report, lines: Sequence[_Line]) -> list[_Panel]:
    parts: dict[str, list[_Line]] = {}
    for line in lines:
        parts.setdefault(_base_of(report, line[0]), []).append(line)
    short = {base: base.rstrip("/").rpartition("/")[2] or base for base in parts}
    if len(set(short.values())) < len(short):
        short = {base: base for base in parts}
    return [
        _Panel(tuple(part), heading=f"Base model: {escaped(short[base])}")
        for base, part in parts.items()
    ]


def _base_of(report: Report, checkpoint: str) -> str:
    """The base model as the report names it; of full weights, the checkpoint itself."""
    for one in report.checkpoints:
        if one.name == checkpoint or one.name.startswith(
            (f"{checkpoint}[", f"{checkpoint}@")
        ):
            return one.base or one.source
    return checkpoint


# --- one table ------------------------------------------------------------------------

_Place = tuple[str, str, str, str]
_Cells = dict[_Place, dict[_Line, Row]]


def _cells(rows: Sequence[Row]) -> _Cells:
    """Rows by audit, metric, variant and group, then by line."""
    stages: dict[_Line, int] = {}
    for row in rows:
        if (row.audit, row.metric) == ("utility", "accuracy") and row.of.isdigit():
            line = (row.checkpoint, row.over)
            stages[line] = max(stages.get(line, 0), int(row.of))
    found: _Cells = {}
    for row in rows:
        line = (row.checkpoint, row.over)
        of = row.of
        if (row.audit, row.metric) == ("utility", "accuracy"):
            if of != str(stages.get(line)):
                continue
            of = "last"
        found.setdefault((row.audit, row.metric, of, row.group), {})[line] = row
    return found


@dataclass
class _Notes:
    """Notes below a table, each once, by letter."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str, sign: str = "") -> str:
        """A superscript: the sign, and the letter of the note."""
        if text not in self.texts:
            self.texts.append(text)
        return rf"\textsuperscript{{{sign}{_letter(self.texts.index(text))}}}"

    def told(self) -> Iterator[str]:
        """The notes with their letters, as TeX."""
        for k, text in enumerate(self.texts):
            yield rf"\textsuperscript{{{_letter(k)}}} {escaped(text.rstrip('.'))}."


def _letter(k: int) -> str:
    return ("" if k < 26 else _letter(k // 26 - 1)) + chr(ord("a") + k % 26)


def _render(table: _Table, report: Report, cells: _Cells) -> str | None:
    """One table, or ``None`` where the report lacks its figures."""
    columns = [c for c in table.columns if _place(c) in cells]
    shown = {c: cells[_place(c)] for c in columns}
    with_value = {
        column.audit
        for column, rows in shown.items()
        if any(row.value is not None for row in rows.values())
    }
    if not with_value.issuperset(table.needs):
        return None
    known = {line for rows in shown.values() for line in rows}
    # As the report has them, whichever column comes first.
    lines = [
        line
        for line in dict.fromkeys((r.checkpoint, r.over) for r in report.results)
        if line in known
    ]
    panels = [_Panel(tuple(lines))]
    if table.split is not None:
        panels = table.split(report, lines)
    notes = _Notes()
    common = {column: _common(list(rows.values())) for column, rows in shown.items()}
    headers = [
        rf"\textbf{{{c.header}}}"
        + (rf"\,{c.arrow}" if c.arrow else "")
        + (notes.mark(common[c]) if common[c] else "")
        for c in columns
    ]
    first = [rf"\textbf{{{table.labels}}}"] if table.labels else []
    body = [_joined([*first, r"\textbf{Checkpoint}", *headers]) + r" \\"]
    for panel in panels:
        body += _lines(panel, shown, common, notes, labelled=bool(table.labels))
    told = [*_legend(shown), *notes.told()]
    if table.remark:
        told.append(table.remark)
    failed = dict.fromkeys(g.name for g in report.guards if g.passed is False)
    if failed:
        told.append(f"Guards of this report that failed: {escaped(', '.join(failed))}.")
    parts = [
        r"\begin{table*}[!tp]",
        rf"\caption{{{_caption(table, report, shown)}}}",
        rf"\label{{tab:spark-audit-{table.name.replace('_', '-')}}}",
        r"\centering",
        r"\footnotesize",
        r"\setlength{\tabcolsep}{4pt}",
        r"\par\smallskip",
        *SHRUNK,
        rf"\begin{{tabular}}{{@{{}}{'l' * (len(first) + 1)}{'c' * len(columns)}@{{}}}}",
        r"\toprule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}}",
    ]
    if told:
        parts += [
            r"\par\smallskip",
            r"\begin{minipage}{\textwidth}\scriptsize\raggedright",
            *told,
            r"\end{minipage}",
        ]
    return "\n".join([*parts, r"\end{table*}", ""])


def _lines(
    panel: _Panel,
    shown: Mapping[_Column, Mapping[_Line, Row]],
    common: Mapping[_Column, str],
    notes: _Notes,
    *,
    labelled: bool,
) -> list[str]:
    """A panel's lines; in wide tables intervals have a line of their own."""
    found = [r"\midrule"]
    if panel.heading:
        width = len(shown) + 1
        title = rf"\textit{{{panel.heading}}}"
        found.append(rf"\multicolumn{{{width}}}{{@{{}}l}}{{{title}}} \\")
    for k, line in enumerate(panel.lines):
        pairs = [
            _cell(own.get(line), notes, known=common[column])
            for column, own in shown.items()
        ]
        lead = [panel.label if k == 0 else ""] if labelled else []
        name = escaped(line[0] if line[1] == "sources" else ", ".join(line))
        if len(shown) <= INLINE:
            texts = [" ".join(filter(None, pair)) for pair in pairs]
            found.append(rf"{_joined([*lead, name, *texts])} \\")
            continue
        found.append(rf"{_joined([*lead, name, *(value for value, _ in pairs)])} \\")
        if any(interval for _, interval in pairs):
            below = [rf"{{\scriptsize {text}}}" if text else "" for _, text in pairs]
            found.append(rf"{_joined([*('' for _ in lead), '', *below])} \\")
        if k + 1 < len(panel.lines):
            found.append(r"\addlinespace")
    return found


SHRUNK = (
    r"\resizebox*{!}{\ifdim\totalheight>0.7\textheight "
    r"0.7\textheight\else\totalheight\fi}{%",
    r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
)
"""Makes a table smaller where it is higher or wider than a page, and only there."""


def _place(column: _Column) -> _Place:
    return (column.audit, column.metric, column.of, column.group)


def _joined(texts: Iterable[str]) -> str:
    return " & ".join(texts)


def _common(rows: Sequence[Row]) -> str:
    """What is noted of every valid figure of a column; it then stands at its head."""
    said = {row.note for row in rows if row.status == "ok"}
    return said.pop() if len(said) == 1 else ""


# --- one cell -------------------------------------------------------------------------

DAGGER = r"\textdagger{}"
VOID = {
    "invalid": ("invalid", "a guard of the audit voids it"),
    "insensitive": ("insensitive", "an effect would not have been seen"),
    "not_resolvable": ("not resolvable", "too few rows for a figure as fine as this"),
}
"""Word, and what is said where a row gives no reason, by status."""


def _cell(row: Row | None, notes: _Notes, *, known: str) -> tuple[str, str]:
    """Value and interval as TeX; ``known`` is noted at the column's head."""
    if row is None:
        return "--", ""
    if row.status == "not_estimable":
        return f"n.e.{notes.mark(f'not estimable: {row.note}')}", ""
    text = figure(row.model_copy(update={"status": "ok"}))
    value, _, interval = text.partition(" ")
    mark = ""
    if row.status != "ok":
        word, otherwise = VOID[row.status]
        # Some audits' notes begin with the word themselves.
        said = row.note if row.note.lower().startswith(word) else ""
        mark = notes.mark(said or f"{word}: {row.note or otherwise}", DAGGER)
    elif row.note and row.note != known:
        mark = notes.mark(row.note)
    return _maths(value) + mark, _maths(interval)


_EXPONENT = re.compile(r"(-?[\d.]+)e([+-])0*(\d+)")
_MINUS = re.compile(r"-(?=[\d])")


def _maths(text: str) -> str:
    """Digits as they are; minus signs and powers of ten in TeX."""

    def power(found: re.Match[str]) -> str:
        sign = found[2].replace("+", "")
        return rf"${found[1]}\times 10^{{{sign}{found[3]}}}$"

    parts = re.split(r"(\$[^$]*\$)", _EXPONENT.sub(power, text))
    return "".join(p if p.startswith("$") else _MINUS.sub("$-$", p) for p in parts)


def _legend(shown: Mapping[_Column, Mapping[_Line, Row]]) -> list[str]:
    """What the signs mean, of those that are there."""
    rows = [row for lines in shown.values() for row in lines.values()]
    lines = {line for own in shown.values() for line in own}
    found = []
    if any(row.status in VOID for row in rows):
        found.append(rf"{DAGGER}: nothing can be concluded from this figure.")
    if any(row.status == "not_estimable" for row in rows):
        found.append("n.e.: not estimable.")
    if any(len(own) < len(lines) for own in shown.values()):
        found.append("--: not in the report.")
    return found


# --- caption --------------------------------------------------------------------------


def _caption(
    table: _Table, report: Report, shown: Mapping[_Column, Mapping[_Line, Row]]
) -> str:
    """What it shows, at what level, over what, and how many clusters."""
    parts = [table.lead]
    if report.status == "partial":
        parts.insert(0, "PARTIAL: only some examples were scored, not for decisions.")
    rows = [row for own in shown.values() for row in own.values()]
    limits = [row for row in rows if row.low is not None or row.high is not None]
    if limits:
        levels = " or ".join(
            f"{100 * v:g}\\%" for v in sorted({r.level for r in limits})
        )
        used = sorted({METHODS.get(r.interval, r.interval) for r in limits})
        unit = "canaries" if table.needs == ("canary",) else "clusters of sources"
        parts.append(
            f"In brackets: {levels} intervals over {unit} of one manifest "
            f"({escaped(report.manifest.name)}), by {', '.join(used)}."
        )
    else:
        parts.append("No figure here has an interval.")
    if any(row.over != "sources" for row in rows):
        parts.append("Lines of `seeds' or `both' are over training seeds, or both.")
    parts.append(_sizes(shown))
    if any(column.arrow in (UP, DOWN) for column in shown):
        parts.append("Arrows point to the more private or more useful side.")
    return " ".join(filter(None, parts))


def _sizes(shown: Mapping[_Column, Mapping[_Line, Row]]) -> str:
    """How many were averaged and in how many clusters; by column where they differ."""
    told: dict[str, list[str]] = {}
    for column, own in shown.items():
        known = [row for row in own.values() if row.value is not None and row.clusters]
        # Over seeds, clusters are seeds.
        if rows := [row for row in known if row.over == "sources"] or known:
            counted = _span(row.n for row in rows)
            clusters = _span(row.clusters for row in rows)
            text = f"{counted} {column.counted} in {clusters} clusters"
            if column.counted == "canaries":
                text = f"{counted} canaries"
            elif column.audit == "canary":
                text = f"{counted} {column.counted} of {clusters} canaries"
            told.setdefault(text, []).append(column.header)
    if len(told) == 1:
        return f"Over {next(iter(told))}."
    texts = [f"{', '.join(names)} over {text}" for text, names in told.items()]
    return f"{'; '.join(texts)}." if texts else ""


def _span(values: Iterable[int]) -> str:
    known = sorted(set(values))
    return str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"


# --- the document ---------------------------------------------------------------------


def _document(report: Report, names: Sequence[str]) -> str:
    body = [line for name in names for line in (rf"\input{{{name}}}", r"\clearpage")]
    if not names:
        body = ["The report holds figures of none of the paper's tables."]
    return "\n".join(
        [
            r"\documentclass[10pt,a4paper,landscape]{article}",
            r"\usepackage{booktabs}",
            r"\usepackage{graphicx}",
            r"\usepackage[margin=2cm]{geometry}",
            r"\begin{document}",
            *body,
            r"\end{document}",
            "",
        ]
    )


# --- text -----------------------------------------------------------------------------

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\char34}",
    "`": r"{\char96}",
    # After the end of a line these two would be its options.
    "[": "{[}",
    "*": "{*}",
    "\u2013": "--",
    "\u2014": "---",
    "\u2018": "`{}",
    "\u2019": "'{}",
    "\u201c": "``{}",
    "\u201d": "''{}",
    "\u2026": r"\ldots{}",
    "\u2212": "$-$",
    "\u00d7": r"$\times$",
    "\u00b1": r"$\pm$",
    "\u2264": r"$\le$",
    "\u2265": r"$\ge$",
    "\u2248": r"$\approx$",
    "\u2192": r"$\to$",
    "\u2020": r"\textdagger{}",
    "\u00df": r"\ss{}",
    "\u00e6": r"\ae{}",
    "\u00c6": r"\AE{}",
    "\u0153": r"\oe{}",
    "\u0152": r"\OE{}",
    "\u00f8": r"\o{}",
    "\u00d8": r"\O{}",
    "\u0142": r"\l{}",
    "\u0141": r"\L{}",
    "\u0131": r"\i{}",
}
ACCENTS = {
    "\u0300": r"\`",
    "\u0301": r"\'",
    "\u0302": r"\^",
    "\u0303": r"\~",
    "\u0304": r"\=",
    "\u0306": r"\u",
    "\u0307": r"\.",
    "\u0308": r"\"",
    "\u030a": r"\r",
    "\u030b": r"\H",
    "\u030c": r"\v",
    "\u0327": r"\c",
}
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (\w+)")
SMALL = set(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa mu nu xi pi rho sigma "
    "tau upsilon phi chi psi omega".split()
)
CAPITAL = set("gamma delta theta xi pi sigma upsilon phi psi omega".split())


def escaped(text: str) -> str:
    """Text as LaTeX shows it in any encoding and with any engine, in ASCII.

    A character that plain LaTeX has no command for appears by its code, as U+4E2D.
    """
    plain = " ".join(unicodedata.normalize("NFC", str(text)).split())
    found: list[str] = []
    for before, char in zip(f" {plain}", plain, strict=False):
        # Two of them would join into another character.
        if char == before and char in "-,'":
            found.append("{}")
        found.append(_escaped(char))
    return "".join(found)


def _escaped(char: str) -> str:
    if char in SPECIAL:
        return SPECIAL[char]
    if char.isascii():
        return char if char.isprintable() else _code(char)
    base, *marks = list(unicodedata.normalize("NFD", char))
    if base.isascii() and base.isalpha() and len(marks) == 1 and marks[0] in ACCENTS:
        return f"{ACCENTS[marks[0]]}{{{base}}}"
    greek = _GREEK.fullmatch(unicodedata.name(char, ""))
    if greek is not None:
        small, name = greek[1] == "SMALL", greek[2].lower().replace("lamda", "lambda")
        if name == "lambda" or name in (SMALL if small else CAPITAL):
            return rf"$\{name if small else name.capitalize()}$"
    return _code(char)


def _code(char: str) -> str:
    return rf"\texttt{{U+{ord(char):04X}}}"
