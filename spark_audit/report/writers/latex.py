r"""tables/*.tex: the report as booktabs tables in the layouts of the SPARK paper.

One file per table, made to be read with ``\input`` (packages booktabs and graphicx),
and ``all.tex``, a document that holds them all. A table is written only where its audit
gave a figure; digits are those of every other format.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from spark_audit import sentences
from spark_audit.audits.claims import carriers
from spark_audit.report.cells import VOID, File, Rendering, shown
from spark_audit.report.tables import methods_of
from spark_audit.report.writers.template import environment
from spark_audit.results import Report, Row

UP, DOWN, CHANCE = r"$\uparrow$", r"$\downarrow$", r"$\approx$0.5"
INLINE = 4
"""Columns of figures up to which an interval stands beside its value, not below."""
DAGGER = r"\textdagger{}"


@dataclass(frozen=True)
class Column:
    """A printed column: its header (as TeX) and the rows that it shows.

    ``of = "last"`` of an accuracy is a series' last stage; ``counted`` says what the
    rows' ``n`` counts.
    """

    audit: str
    metric: str
    of: str
    header: str
    arrow: str = UP
    counted: str = "tokens"
    group: str = "pooled"


Line = tuple[str, str]
"""Checkpoint, and what its intervals are over."""
Shown = Mapping[Column, Mapping[Line, Row]]
LAST, AVG, BWT = (
    Column("utility", name.lower(), "", name, counted="answers")
    for name in ("Last", "Avg", "BWT")
)
SELECTIVITY = r"$\Delta_{\mathrm{sel}}$"
LAYOUTS: dict[str, tuple[Column, ...]] = {
    "matched": (
        Column("matched", "nll_pii", "", r"NLL\textsubscript{PII}"),
        Column("matched", "nll_control", "", r"NLL\textsubscript{Matched}", ""),
        Column("matched", "delta_sel", "", SELECTIVITY),
        Column("matched", "delta_sel", "change", f"{SELECTIVITY} change"),
    ),
    "rank": (
        Column("rank", "rank_mean", "pii", "Rank mean"),
        Column("rank", "rank_median", "pii", "Rank median"),
        *(Column("rank", f"top{k}_rate", "pii", f"Top-{k}", DOWN) for k in (1, 5, 10)),
    ),
    "canary_rank": (
        Column("canary", "rank_mean", "full", "Full rank", UP, "canaries"),
        Column("canary", "exposure_mean", "full", "Exposure", DOWN, "canaries"),
        Column("canary", "top1_rate", "full", "Full Top-1", DOWN, "canaries"),
        Column("canary", "top10_rate", "full", "Full Top-10", DOWN, "canaries"),
    ),
    "mia": (),
    "ablations": (
        *(LAST, AVG, BWT),
        Column("nll", "nll", "pii", "PII NLL"),
        Column("nll", "nll", "low", "Low-sens. NLL", DOWN),
        Column("nll", "nll", "canary", "Canary NLL", counted="canaries"),
    ),
    "utility": (BWT, LAST, AVG),
}
"""The paper's tables, in its order; captions are the sentences ``latex.NAME``."""
OF = {"canary_rank": "canary", "ablations": "nll"}
"""Audits that must give a figure, where a table is not called like its audit."""
SCORES = (
    *("loss", "response", "mink10", "minkpp10", "zlib"),
    *("reference", "wbc", "combined", "blind"),
)
"""Membership scores, in the paper's order."""


def write(report: Report, folder: Path, how: Rendering) -> Iterator[File]:
    """``tables/*.tex``; no text of an example is ever in them."""
    tables = render(report)
    whole = environment().get_template("all.tex")
    empty = sentences.render("latex.empty")
    tables["all"] = whole.render(names=[*tables], empty=empty)
    yield from (File(f"tables/{name}.tex", text) for name, text in tables.items())


def render(report: Report) -> dict[str, str]:
    """Every table that the report holds figures for, as LaTeX, by its file's stem."""
    by_place = _rows(report)
    each = report.settings.get("preset") == "paper"
    tables = {}
    for name, columns in LAYOUTS.items():
        audit = OF.get(name, name)
        if name == "mia":
            columns = tuple(_membership(report))
        elif name == "utility":
            columns = (*_tasks(report), *columns)
        elif name == "canary_rank" and each:
            # Averaged over annotations, as the paper does.
            of = {"of": "full/annotation", "counted": "annotations"}
            columns = tuple(replace(column, **of) for column in columns)
        places = {one: (one.audit, one.metric, one.of, one.group) for one in columns}
        figures = {k: by_place[v] for k, v in places.items() if v in by_place}
        own = (rows for one, rows in figures.items() if one.audit == audit)
        if any(row.value is not None for rows in own for row in rows.values()):
            tables[name] = _table(name, report, figures, each=each)
    return tables


def _rows(report: Report) -> dict[tuple[str, ...], dict[Line, Row]]:
    """Rows by audit, metric, variant and group, then by line."""
    found: dict[tuple[str, ...], dict[Line, Row]] = {}
    # Of the stages of an accuracy the last one stays.
    stage = {id(r): int(r.of) for r in report.results if r.of.isdigit()}
    for row in sorted(report.results, key=lambda row: stage.get(id(row), 0)):
        of = "last" if row.metric == "accuracy" and id(row) in stage else row.of
        place = (row.audit, row.metric, of, row.group)
        found.setdefault(place, {})[row.checkpoint, row.over] = row
    return found


def _tasks(report: Report) -> Iterator[Column]:
    rows = (r for r in report.results if (r.audit, r.metric) == ("utility", "accuracy"))
    for kind, name in dict.fromkeys(row.grouping for row in rows):
        if kind == "task":
            column = Column("utility", "accuracy", "last", escaped(name))
            yield replace(column, counted="answers", group=f"task:{name}")


def _membership(report: Report) -> Iterator[Column]:
    """The AUC of scores that claims may rest on, and of the paper's; some TPR."""
    scored = {row.of for row in report.results if row.audit == "mia"}
    resting = {*carriers(report.findings, "mia").values()}
    for metric, words, arrow, scores in (
        ("auc", "AUC", CHANCE, scored),
        ("tpr_at_fpr_5", r"TPR@5\% FPR", DOWN, resting or {"response", "reference"}),
    ):
        for score in SCORES:
            if score in scores:
                header = f"{sentences.render(f'latex.score_{score}')} {words}"
                yield Column("mia", metric, score, header, arrow, "rows")


def _table(name: str, report: Report, figures: Shown, *, each: bool) -> str:
    """A floating table, smaller where it is higher or wider than a page, and notes."""
    lines = [
        line
        # As the report has them, whichever column comes first.
        for line in dict.fromkeys((r.checkpoint, r.over) for r in report.results)
        if any(line in rows for rows in figures.values())
    ]
    notes: dict[str, str] = {}
    wide = len(figures) > INLINE
    columns = {}
    for column, rows in figures.items():
        header = rf"\textbf{{{column.header}}}\,{column.arrow}".removesuffix(r"\,")
        cells = (_cell(rows.get(line), notes, wide=wide) for line in lines)
        columns[header] = list(cells)
    names = [line[0] if line[1] == "sources" else ", ".join(line) for line in lines]
    frame = pd.DataFrame(columns, index=[*map(escaped, names)])
    frame.columns.name = r"\textbf{Checkpoint}"
    shape = f"@{{}}l{'c' * len(columns)}@{{}}"
    facts = _facts(name, report, figures, notes, each=each)
    return (
        environment()
        .get_template("table.tex")
        .render(
            name=name,
            caption=sentences.render("latex.caption", **facts),
            legend=sentences.render("latex.legend", **facts),
            tabular=frame.style.to_latex(hrules=True, column_format=shape).strip(),
        )
    )


def _facts(
    name: str, report: Report, figures: Shown, notes: Mapping[str, str], *, each: bool
) -> dict[str, Any]:
    """Of the sentences above and below a table."""
    rows = [row for lines in figures.values() for row in lines.values()]
    states = {row.status for row in rows}
    bounded = [row for row in rows if row.low is not None or row.high is not None]
    failed = dict.fromkeys(g.name for g in report.guards if g.passed is False)
    return {
        "name": name,
        "partial": report.status == "partial",
        "each": each,
        "levels": [rf"{100 * v:g}\%" for v in {row.level for row in bounded}],
        "unit": "canaries" if {row.audit for row in rows} == {"canary"} else "clusters",
        "manifest": escaped(report.manifest.name),
        "methods": sorted(methods_of(bounded)),
        "seeds": any(row.over != "sources" for row in rows),
        "sizes": _sizes(figures),
        "arrows": any(column.arrow in (UP, DOWN) for column in figures),
        "void": states & {*VOID},
        "missing": "not_estimable" in states,
        "gaps": len({frozenset(lines) for lines in figures.values()}) > 1,
        "notes": {escaped(text): letter for text, letter in notes.items()},
        "failed": [escaped(name) for name in failed],
    }


def _cell(row: Row | None, notes: dict[str, str], *, wide: bool) -> str:
    """Value and interval as TeX, the interval below its value in a wide table."""
    if row is None:
        return "--"
    if row.status == "not_estimable":
        return "n.e." + _mark(f"not estimable: {row.note}", notes)
    value = _maths(row.value)
    if row.status != "ok":
        word = VOID[row.status].lower()
        # Some audits' notes begin with the word themselves.
        begins = row.note.lower().startswith(word)
        why = row.note or sentences.render(f"latex.{row.status}")
        value += _mark(row.note if begins else f"{word}: {why}", notes, DAGGER)
    elif row.note:
        value += _mark(row.note, notes)
    if row.low is None and row.high is None:
        return value
    limits = f"[{_maths(row.low)}, {_maths(row.high)}]"
    if wide:
        return rf"\shortstack{{{value}\\{{\scriptsize {limits}}}}}"
    return f"{value} {limits}"


def _mark(text: str, notes: dict[str, str], sign: str = "") -> str:
    """A superscript: the sign, and the letter of the note below the table."""
    first, last = divmod(len(notes), 26)
    letters = (chr(96 + first) if first else "") + chr(97 + last)
    return rf"\textsuperscript{{{sign}{notes.setdefault(text.rstrip('.'), letters)}}}"


def _maths(value: float | None) -> str:
    """A number as everywhere; minus signs and powers of ten in TeX."""
    digits, power, exponent = shown(value).partition("e")
    if power:
        return rf"${digits}\times 10^{{{int(exponent)}}}$"
    return digits if value is None else digits.replace("-", "$-$")


def _sizes(figures: Shown) -> dict[str, list[str]]:
    """How many were averaged and in how many clusters -> headers of the columns."""
    headers: dict[str, list[str]] = {}
    for column, lines in figures.items():
        known = [r for r in lines.values() if r.value is not None and r.clusters]
        # Over seeds, clusters are seeds.
        if rows := [row for row in known if row.over == "sources"] or known:
            unit = "canaries" if column.audit == "canary" else "clusters"
            text = f"{_span(row.n for row in rows)} {column.counted}"
            if column.counted != "canaries":
                text += f" in {_span(row.clusters for row in rows)} {unit}"
            headers.setdefault(text, []).append(column.header)
    return headers


def _span(values: Iterable[int]) -> str:
    known = sorted(set(values))
    return str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"


NAMES = ("backslash", "asciicircum", "asciitilde", "less", "greater", "bar")
SPECIAL = {
    **{sign: f"\\{sign}" for sign in "{}$&#%_"},
    **{a: rf"\text{name}{{}}" for a, name in zip("\\^~<>|", NAMES, strict=True)},
    # After the end of a line [ and * would be its options.
    **{sign: f"{{{sign}}}" for sign in "[*"},
    **{sign: rf"{{\char{ord(sign)}}}" for sign in '"`'},
}
MARKS = "\u0300\u0301\u0302\u0303\u0308\u030a\u030c\u0327"
ACCENTS = dict(zip(MARKS, "`'^~\"rvc", strict=True))
"""Combining characters, and commands of TeX."""


def escaped(text: str) -> str:
    """Text as LaTeX shows it in any encoding and with any engine, in ASCII.

    A character without a command of plain LaTeX appears by its code, as U+4E2D.
    """
    plain = " ".join(unicodedata.normalize("NFC", str(text)).split())
    # Two of them would join into another character.
    return re.sub(r"([-,'])(?=\1)", r"\1{}", "".join(map(_escaped, plain)))


def _escaped(char: str) -> str:
    if char.isascii() and char.isprintable():
        return SPECIAL.get(char, char)
    base, *marks = list(unicodedata.normalize("NFD", char))
    if base.isascii() and base.isalpha() and len(marks) == 1 and marks[0] in ACCENTS:
        return rf"\{ACCENTS[marks[0]]}{{{base}}}"
    return rf"\texttt{{U+{ord(char):04X}}}"
