r"""tables/*.tex: the report as booktabs tables in the layouts of the SPARK paper.

One file a table, made to be read with ``\input`` (packages booktabs and graphicx), and
``all.tex``, a document of its own that holds them all. A table is written only where
the report holds a figure of each of its parts; digits are those of every other format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_audit.files import write_text
from spark_audit.report.cells import VOID, Rendering, shown
from spark_audit.report.tables import METHODS
from spark_audit.report.writers.latex.tables import (
    DOWN,
    INLINE,
    UP,
    Column,
    Layout,
    Line,
    tables_of,
)
from spark_audit.report.writers.latex.text import escaped
from spark_audit.results import Report, Row


def write(report: Report, folder: Path, how: Rendering) -> list[Path]:
    """Write ``tables/*.tex``; no text of an example is ever in them."""
    found = render(report)
    found["all"] = _document(list(found))
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
    for table in tables_of(report):
        if (text := _render(table, report, cells)) is not None:
            found[table.name] = text
    return found


# --- one table ------------------------------------------------------------------------

_Place = tuple[str, str, str, str]
_Cells = dict[_Place, dict[Line, Row]]


def _cells(rows: Sequence[Row]) -> _Cells:
    """Rows by audit, metric, variant and group, then by line."""
    stages: dict[Line, int] = {}
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


def _render(table: Layout, report: Report, cells: _Cells) -> str | None:
    """One table, or ``None`` where the report lacks its figures."""
    columns = [c for c in table.columns if _place(c) in cells]
    by_column = {c: cells[_place(c)] for c in columns}
    with_value = {
        column.audit
        for column, rows in by_column.items()
        if any(row.value is not None for row in rows.values())
    }
    if not with_value.issuperset(table.needs):
        return None
    known = {line for rows in by_column.values() for line in rows}
    # As the report has them, whichever column comes first.
    lines = [
        line
        for line in dict.fromkeys((r.checkpoint, r.over) for r in report.results)
        if line in known
    ]
    notes = _Notes()
    common = {
        column: _common(list(rows.values())) for column, rows in by_column.items()
    }
    headers = [
        rf"\textbf{{{c.header}}}"
        + (rf"\,{c.arrow}" if c.arrow else "")
        + (notes.mark(common[c]) if common[c] else "")
        for c in columns
    ]
    body = [_joined([r"\textbf{Checkpoint}", *headers]) + r" \\"]
    body += _lines(lines, by_column, common, notes)
    told = [*_legend(by_column), *notes.told()]
    failed = dict.fromkeys(g.name for g in report.guards if g.passed is False)
    if failed:
        told.append(f"Guards of this report that failed: {escaped(', '.join(failed))}.")
    caption = _caption(table, report, by_column)
    shape = "l" + "c" * len(columns)
    return _floating(table.name, caption, shape, body, told)


def _floating(
    name: str, caption: str, shape: str, body: Sequence[str], told: Sequence[str]
) -> str:
    """A floating table of its caption, column types, lines and notes."""
    parts = [
        r"\begin{table*}[!tp]",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:spark-audit-{name.replace('_', '-')}}}",
        r"\centering",
        r"\footnotesize",
        r"\setlength{\tabcolsep}{4pt}",
        r"\par\smallskip",
        *SHRUNK,
        rf"\begin{{tabular}}{{@{{}}{shape}@{{}}}}",
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
    lines: Sequence[Line],
    by_column: Mapping[Column, Mapping[Line, Row]],
    common: Mapping[Column, str],
    notes: _Notes,
) -> list[str]:
    """The lines; in wide tables intervals have a line of their own."""
    found = [r"\midrule"]
    for k, line in enumerate(lines):
        pairs = [
            _cell(own.get(line), notes, known=common[column])
            for column, own in by_column.items()
        ]
        name = escaped(line[0] if line[1] == "sources" else ", ".join(line))
        if len(by_column) <= INLINE:
            texts = [" ".join(filter(None, pair)) for pair in pairs]
            found.append(rf"{_joined([name, *texts])} \\")
            continue
        found.append(rf"{_joined([name, *(value for value, _ in pairs)])} \\")
        if any(interval for _, interval in pairs):
            below = [rf"{{\scriptsize {text}}}" if text else "" for _, text in pairs]
            found.append(rf"{_joined(['', *below])} \\")
        if k + 1 < len(lines):
            found.append(r"\addlinespace")
    return found


SHRUNK = (
    r"\resizebox*{!}{\ifdim\totalheight>0.7\textheight "
    r"0.7\textheight\else\totalheight\fi}{%",
    r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
)
"""Makes a table smaller where it is higher or wider than a page, and only there."""


def _place(column: Column) -> _Place:
    return (column.audit, column.metric, column.of, column.group)


def _joined(texts: Iterable[str]) -> str:
    return " & ".join(texts)


def _common(rows: Sequence[Row]) -> str:
    """What is noted of every valid figure of a column; it then stands at its head."""
    said = {row.note for row in rows if row.status == "ok"}
    return said.pop() if len(said) == 1 else ""


# --- one cell -------------------------------------------------------------------------

DAGGER = r"\textdagger{}"
REASONS = {
    "invalid": "a guard of the audit voids it",
    "insensitive": "an effect would not have been seen",
    "not_resolvable": "too few rows for a figure as fine as this",
}
"""What is said of a void figure where its row gives no reason, by status."""


def _cell(row: Row | None, notes: _Notes, *, known: str) -> tuple[str, str]:
    """Value and interval as TeX; ``known`` is noted at the column's head."""
    if row is None:
        return "--", ""
    if row.status == "not_estimable":
        return f"n.e.{notes.mark(f'not estimable: {row.note}')}", ""
    mark = ""
    if row.status != "ok":
        word, otherwise = VOID[row.status].lower(), REASONS[row.status]
        # Some audits' notes begin with the word themselves.
        said = row.note if row.note.lower().startswith(word) else ""
        mark = notes.mark(said or f"{word}: {row.note or otherwise}", DAGGER)
    elif row.note and row.note != known:
        mark = notes.mark(row.note)
    unbounded = row.low is None and row.high is None
    limits = "" if unbounded else f"[{_maths(row.low)}, {_maths(row.high)}]"
    return _maths(row.value) + mark, limits


def _maths(value: float | None) -> str:
    """A number as everywhere; minus signs and powers of ten in TeX."""
    digits, power, exponent = shown(value).partition("e")
    if power:
        return rf"${digits}\times 10^{{{int(exponent)}}}$"
    return digits if value is None else digits.replace("-", "$-$")


def _legend(by_column: Mapping[Column, Mapping[Line, Row]]) -> list[str]:
    """What the signs mean, of those that are there."""
    rows = [row for lines in by_column.values() for row in lines.values()]
    lines = {line for own in by_column.values() for line in own}
    found = []
    if any(row.status in VOID for row in rows):
        found.append(rf"{DAGGER}: nothing can be concluded from this figure.")
    if any(row.status == "not_estimable" for row in rows):
        found.append("n.e.: not estimable.")
    if any(len(own) < len(lines) for own in by_column.values()):
        found.append("--: not in the report.")
    return found


# --- caption --------------------------------------------------------------------------


def _caption(
    table: Layout, report: Report, by_column: Mapping[Column, Mapping[Line, Row]]
) -> str:
    """What it shows, at what level, over what, and how many clusters."""
    parts = [table.lead]
    if report.status == "partial":
        parts.insert(0, "PARTIAL: only some examples were scored, not for decisions.")
    rows = [row for own in by_column.values() for row in own.values()]
    limits = [row for row in rows if row.low is not None or row.high is not None]
    if limits:
        levels = " or ".join(
            f"{100 * v:g}\\%" for v in sorted({r.level for r in limits})
        )
        used = sorted({METHODS.get(r.interval, r.interval) for r in limits})
        unit = "canaries" if table.needs == ("canary",) else "clusters"
        parts.append(
            f"In brackets: {levels} intervals over {unit} of one manifest "
            f"({escaped(report.manifest.name)}), by {', '.join(used)}."
        )
    else:
        parts.append("No figure here has an interval.")
    if any(row.over != "sources" for row in rows):
        parts.append("Lines of `seeds' or `both' are over training seeds, or both.")
    parts.append(_sizes(by_column))
    if any(column.arrow in (UP, DOWN) for column in by_column):
        parts.append("Arrows point to the more private or more useful side.")
    return " ".join(filter(None, parts))


def _sizes(by_column: Mapping[Column, Mapping[Line, Row]]) -> str:
    """How many were averaged and in how many clusters; by column where they differ."""
    told: dict[str, list[str]] = {}
    for column, own in by_column.items():
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


def _document(names: Sequence[str]) -> str:
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
