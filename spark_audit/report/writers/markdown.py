"""report.md and card.md: Markdown that pastes well into an issue or a model's card."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from spark_audit import sentences
from spark_audit.errors import visible
from spark_audit.names import BASE
from spark_audit.report.at_a_glance import Glance
from spark_audit.report.cells import Cell, ReportTable, TableLine
from spark_audit.report.finding_groups import (
    FindingGroup,
    groups_of_tests,
    table_of_the_rest,
)
from spark_audit.report.glance import main_rows
from spark_audit.report.standings import SHAPES, Standing, badge, state_name
from spark_audit.report.tables import further_tables, general, tables
from spark_audit.report.writers.pages import environment, facts
from spark_audit.report.writers.writer import File, WriterInput
from spark_audit.results import OF_REPORT, Report, by_severity, grouped

LONGEST = 65_000
"""Characters beyond which tables are left out: GitHub takes 65,536 in an issue."""


def write(report: Report, folder: Path, how: WriterInput) -> Iterator[File]:
    """``report.md``; no text of an example is ever in it."""
    yield File("report.md", render(report))


def render(report: Report) -> str:
    """The report as Markdown, with as much of its tables as :data:`LONGEST` allows."""
    shared = facts(report)
    audits = dict.fromkeys(row.audit for row in report.results)
    states = {
        True: sentences.render("page.guard_passed"),
        False: f"**{sentences.render('page.guard_failed')}**",
        None: sentences.render("page.guard_warning"),
    }
    shared |= {
        "matrix": _matrix(shared["answer"]),
        "results": list(_results(report)),
        "guards": [
            (one.title, one.checkpoint or "-", states[one.passed], one.detail)
            for one in sorted(report.guards, key=lambda one: one.passed is True)
        ],
        "definitions": [
            *general(report),
            *chain(*(sentences.terms(f"definition.{one}") for one in audits)),
        ],
    }
    text = ""
    for room, shown in (
        ("all", [*tables(report), *further_tables(report)]),
        ("pooled", tables(report, brief=True)),
        ("none", []),
    ):
        text = _rendered("report.md", shared | {"room": room, "shown": shown})
        if len(text) <= LONGEST:
            break
    return text


def _results(
    report: Report,
) -> Iterator[tuple[str, list[FindingGroup], ReportTable | None]]:
    """Yield each audit's title, what its tests came to, and what is exploratory."""
    findings = by_severity(one for one in report.findings if one.audit != OF_REPORT)
    for audit, of_audit in grouped(findings, lambda one: one.audit).items():
        title = sentences.optional(f"audit.{audit}.title") or audit
        yield title, groups_of_tests(of_audit), table_of_the_rest(of_audit, audit)


LIMITS = ("low", "high", "null", "null_low", "null_high", "level", "baseline")
"""What stands beside a figure as the arguments of its metric."""


def write_card(report: Report, folder: Path, how: WriterInput) -> Iterator[File]:
    """``card.md``: figures as the hub reads them, then a section; no text."""
    import huggingface_hub.utils
    from huggingface_hub.repocard_data import eval_results_to_model_index

    hub: Any = huggingface_hub.utils  # which does not export it for type checkers
    index, head = [], ""
    for name, own in evaluations(report).items():
        index += eval_results_to_model_index(visible(name), own)
    if index:
        head = f"---\n{hub.yaml_dump({'model-index': index}, sort_keys=False)}---\n\n"
    yield File("card.md", head + _rendered("card.md", facts(report)))


def evaluations(report: Report) -> dict[str, list[Any]]:
    """Each checkpoint's main figures as ``EvalResult`` of huggingface_hub.

    What is not estimable, void or withheld is none; the base has none of its own.
    """
    from huggingface_hub import EvalResult

    found: dict[str, list[Any]] = {}
    figures = ((title, row) for title, _, rows in main_rows(report) for row in rows)
    for title, row in figures:
        if row.checkpoint == BASE or row.status != "ok":
            continue
        told = {name: getattr(row, name, None) for name in LIMITS}
        told |= {"unit": row.unit or None}
        name = visible(report.manifest.name)
        result = EvalResult(
            task_type="text-generation",
            task_name="Privacy audit",
            dataset_type=name,
            dataset_name=name,
            dataset_revision=report.manifest.digest,
            metric_type=".".join(filter(None, (row.audit, row.metric, row.of))),
            metric_name=title,
            metric_value=row.value,
            metric_args={k: v for k, v in told.items() if v is not None},
        )
        found.setdefault(row.checkpoint, []).append(result)
    return found


def _rendered(name: str, facts: Mapping[str, Any]) -> str:
    made = environment(plain=_plain, cell=_cell, stands=_stands)
    made.globals |= {"code": _code, "grid": _grid, "table": table}
    made.globals |= {"group_lines": _group_lines}
    return re.sub(r"\n{3,}", "\n\n", made.get_template(name).render(facts)).lstrip("\n")


def _code(text: str) -> str:
    """A code span, which nothing in it ends."""
    return f"`{visible(text).replace('`', chr(39))}`"


def _grid(shown: ReportTable) -> str:
    return table(shown.header, [line.texts for line in shown.rows])


def _matrix(answer: Glance | None) -> ReportTable | None:
    """Return the matrix as a table, a line for each checkpoint."""
    if answer is None:
        return None
    heads = [f"{column.attack} ({column.head})" for column in answer.matrix.columns]
    header = (sentences.render("matrix.checkpoint"), *heads)
    lines = []
    for row in answer.matrix.rows:
        who = Cell(f"{badge(row.state)} {row.name}")
        cells = [Cell(cell.text) for cell in row.cells]
        lines.append(TableLine((who, *cells), row.name))
    return ReportTable(title="", header=header, rows=tuple(lines))


def _group_lines(group: FindingGroup) -> list[str]:
    """Return the figures and remarks of each finding; of several with its subject."""
    lines = []
    for member in group.members:
        text = " ".join([member.figures, *member.remarks]).strip()
        if text and len(group.members) > 1:
            text = f"{member.subject}: {text}"
        lines.append(text)
    return [line for line in lines if line]


def _stands(one: Standing) -> str:
    """A checkpoint's state, evidence, and what its attacks came to."""
    tally = f" *{one.outcomes}.*" if one.tried else ""
    state = f"{SHAPES[one.state]} **{state_name(one.state)}**"
    return f"{state} **{one.name}**: {one.lead}{tally}"


def _plain(text: str) -> str:
    """Inert text, which opens no code span that what follows would close."""
    text = _inert(text)
    return text.replace("`", "\\`") if text.count("`") % 2 else text


def _inert(text: str) -> str:
    """Text that begins no tag, link, image or heading: it may be somebody else's.

    Intervals keep their brackets: only what would make a link of them is escaped.
    """
    text = _ENTITY.sub("&amp;", visible(text))
    text = _TAG.sub("&lt;", text).replace("](", "]\\(").replace("][", "]\\[")
    text = _LEAD.sub(r"\1\\\2", text.strip()).replace("]:", "]\\:").replace("$", "\\$")
    text = text.replace("://", ":&#47;/")
    return _MENTION.sub(lambda found: f"&#{ord(found[0])};", text)


_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_LEAD = re.compile(r"^(\d*)([#>+*.)-](?=\s|#|$)|~(?=~~)|`(?=``))")
_MENTION = re.compile(r"(?<![\w&])[@#](?=\w)|(?<=\bwww)\.")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; what would end a cell or a line inside one is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(cell: str) -> str:
    text = " ".join(str(cell).replace("\\", "\\\\").split())
    return _inert(text).replace("|", "\\|").replace("`", "\\`")
