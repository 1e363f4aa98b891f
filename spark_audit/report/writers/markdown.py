"""report.md and card.md: Markdown that pastes well into an issue or a model's card."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment

from spark_audit import sentences
from spark_audit.errors import visible
from spark_audit.names import BASE
from spark_audit.report.at_a_glance import Glance
from spark_audit.report.cells import Cell, ReportTable, TableLine
from spark_audit.report.checkpoint_states import (
    SHAPES,
    CheckpointState,
    badge,
    state_name,
)
from spark_audit.report.finding_groups import (
    FindingGroup,
)
from spark_audit.report.glance import main_rows
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.tables import general
from spark_audit.report.writers.page_templates import environment, template_facts
from spark_audit.report.writers.writer import File, WriterInput
from spark_audit.results import Report, Row

LONGEST = 65_000
"""Characters beyond which parts are left out: GitHub takes 65,536 in an issue."""

EXTENTS = ("all", "pooled", "no_tables", "no_terms", "tests", "detections")
"""How much of a report is written, the most first.

Each leaves out what the one before leaves out, and more: tables of groups and records;
all tables; definitions; exploratory results; all results that detect nothing, with the
guards that passed. The sentence ``markdown.left_out.EXTENT`` says so. Detections are
never left out, so that a report of very many of them may still be too long.
"""

LIMITS = (
    "low",
    "high",
    "no_effect",
    "no_effect_low",
    "no_effect_high",
    "interval_level",
    "baseline",
)
"""Columns that stand beside a figure as the arguments of its metric."""

_TAG = re.compile(r"<(?=[A-Za-z/!?])")
"""The beginning of a tag of HTML."""

_ENTITY = re.compile(r"&(?=#?\w+;)")
"""The beginning of an entity of HTML."""

_LEAD = re.compile(r"^(\d*)([#>+*.)-](?=\s|#|$)|~(?=~~)|`(?=``))")
"""What at the beginning of a line makes it a heading, a list, a quotation or code."""

_MENTION = re.compile(r"(?<![\w&])[@#](?=\w)|(?<=\bwww)\.")
"""What GitHub makes a link of: a user, an issue, an address."""


def write(
    prepared: PreparedReport, folder: Path, writer_input: WriterInput
) -> Iterator[File]:
    """Yield ``report.md``; no text of an example is ever in it."""
    yield File("report.md", render(prepared))


def render(prepared: PreparedReport) -> str:
    """Return the report as Markdown, as much of it as :data:`LONGEST` allows."""
    shared = template_facts(prepared)
    shared["matrix"] = _matrix(shared["answer"])

    text = ""
    for extent in EXTENTS:
        parts = _parts_of_extent(prepared, extent)
        if _least_length(parts["shown"]) > LONGEST:
            # A smaller extent is written in any case, so spare the rendering.
            continue

        text = _rendered("report.md", shared | parts)
        if len(text) <= LONGEST:
            break
    return text


def _least_length(shown_tables: Iterable[ReportTable]) -> int:
    """Return a number of characters that tables have at least as Markdown.

    Escaping adds characters and takes none away, but for space between words.
    """
    least = 0
    for shown_table in shown_tables:
        for line in shown_table.rows:
            least += sum(len(" ".join(text.split())) for text in line.texts)
    return least


def _parts_of_extent(prepared: PreparedReport, extent: str) -> dict[str, Any]:
    """Return those facts of the template that the extent decides on.

    Parameters
    ----------
    extent
        One of :data:`EXTENTS`.
    """
    report = prepared.report
    shown_tables: Sequence[ReportTable] = []
    if extent == "all":
        shown_tables = prepared.tables
    elif extent == "pooled":
        shown_tables = prepared.pooled_tables

    definitions: list[tuple[str, str]] = []
    if extent in ("all", "pooled", "no_tables"):
        definitions = _definitions(report)

    sections = []
    for audit, found in prepared.findings_by_audit.items():
        title = sentences.optional(f"audit.{audit}.title") or audit
        section = AuditSection(
            title=title, groups=found.tests, exploratory=found.exploratory
        )
        sections.append(section)

    guards = sorted(report.guards, key=lambda guard: guard.passed is True)
    if extent in ("tests", "detections"):
        sections = [section._replace(exploratory=None) for section in sections]
    if extent == "detections":
        sections = [_detections_of(section) for section in sections]
        sections = [section for section in sections if section.groups]
        guards = [guard for guard in guards if guard.passed is not True]

    states = {
        True: sentences.render("page.guard_passed"),
        False: f"**{sentences.render('page.guard_failed')}**",
        None: sentences.render("page.guard_warning"),
    }
    guard_lines = []
    for guard in guards:
        checkpoint = guard.checkpoint or "-"
        line = (guard.title, checkpoint, states[guard.passed], guard.detail)
        guard_lines.append(line)
    return {
        "extent": extent,
        "shown": shown_tables,
        "definitions": definitions,
        "results": sections,
        "guards": guard_lines,
    }


class AuditSection(NamedTuple):
    """Findings of one audit: its title, tests as sentences, the rest as a table."""

    title: str
    groups: list[FindingGroup]
    exploratory: ReportTable | None


def _detections_of(section: AuditSection) -> AuditSection:
    """Return a section with its detections alone."""
    return section._replace(
        groups=[group for group in section.groups if group.is_detected]
    )


def _definitions(report: Report) -> list[tuple[str, str]]:
    """Return the terms of a report, each with its meaning."""
    definitions = general(report)
    for audit in dict.fromkeys(row.audit for row in report.results):
        definitions += sentences.terms(f"definition.{audit}")
    return definitions


def write_card(
    prepared: PreparedReport, folder: Path, writer_input: WriterInput
) -> Iterator[File]:
    """Yield ``card.md``: figures as the hub reads them, then a section; no text."""
    import huggingface_hub.utils
    from huggingface_hub.repocard_data import eval_results_to_model_index

    hub: Any = huggingface_hub.utils  # which does not export it for type checkers
    index = []
    for checkpoint, results in evaluations(prepared.report).items():
        index += eval_results_to_model_index(visible(checkpoint), results)

    # A card without figures has no metadata.
    metadata = ""
    if index:
        yaml = hub.yaml_dump({"model-index": index}, sort_keys=False)
        metadata = f"---\n{yaml}---\n\n"
    yield File("card.md", metadata + _rendered("card.md", template_facts(prepared)))


def evaluations(report: Report) -> dict[str, list[Any]]:
    """Return each checkpoint's main figures as ``EvalResult`` of huggingface_hub.

    Figures that are not estimable, void or withheld are left out; the base has no
    figures of its own.
    """
    results_by_checkpoint: dict[str, list[Any]] = {}
    for title, _, rows in main_rows(report):
        for row in rows:
            if row.checkpoint == BASE or row.status != "ok":
                continue
            results = results_by_checkpoint.setdefault(row.checkpoint, [])
            results.append(_evaluation(row, title, report))
    return results_by_checkpoint


def _evaluation(row: Row, title: str, report: Report) -> Any:
    """Return a figure as an ``EvalResult`` of huggingface_hub."""
    from huggingface_hub import EvalResult

    arguments = {}
    for column in LIMITS:
        value = getattr(row, column, None)
        if value is not None:
            arguments[column] = value
    if row.unit:
        arguments["unit"] = row.unit

    metric = ".".join(part for part in (row.audit, row.metric, row.variant) if part)
    data_set = visible(report.manifest.name)
    return EvalResult(
        task_type="text-generation",
        task_name="Privacy audit",
        dataset_type=data_set,
        dataset_name=data_set,
        dataset_revision=report.manifest.digest,
        metric_type=metric,
        metric_name=title,
        metric_value=row.value,
        metric_args=arguments,
    )


def _rendered(template_name: str, facts: Mapping[str, Any]) -> str:
    """Return a template with facts, at most one blank line between paragraphs."""
    text = _templates().get_template(template_name).render(facts)
    # Parts of a template that write nothing leave blank lines.
    return re.sub(r"\n{3,}", "\n\n", text).lstrip("\n")


@cache
def _templates() -> Environment:
    """Return the templates, with what those of Markdown may call."""
    templates = environment(plain=_plain, cell=_cell, stands=_stands)
    templates.globals["code"] = _code
    templates.globals["grid"] = _grid
    templates.globals["table"] = table
    templates.globals["group_lines"] = _group_lines
    return templates


def _code(text: str) -> str:
    """Return a code span, which nothing in it ends."""
    return f"`{visible(text).replace('`', chr(39))}`"


def _grid(shown_table: ReportTable) -> str:
    """Return a table of the report as one of Markdown."""
    return table(shown_table.header, [line.texts for line in shown_table.rows])


def _matrix(answer: Glance | None) -> ReportTable | None:
    """Return the matrix as a table, a line for each checkpoint."""
    if answer is None:
        return None

    header = [sentences.render("matrix.checkpoint")]
    for column in answer.matrix.columns:
        # An audit of another package need not say what its effects are measured in.
        unit = f" ({column.head})" if column.head else ""
        header.append(f"{column.attack}{unit}")

    lines = []
    for row in answer.matrix.rows:
        cells = [Cell(f"{badge(row.state)} {row.name}")]
        for matrix_cell in row.cells:
            cells.append(Cell(matrix_cell.text))
        lines.append(TableLine(tuple(cells), row.name))
    return ReportTable(title="", header=tuple(header), rows=tuple(lines))


def _group_lines(group: FindingGroup) -> list[str]:
    """Return the figures and remarks of each finding; of several with its subject."""
    has_several_members = len(group.members) > 1
    lines = []
    for member in group.members:
        # Figures are no sentence, so a full stop parts them from remarks.
        figures = member.figures
        if figures and member.remarks:
            figures = f"{figures.rstrip('.')}."
        text = " ".join([figures, *member.remarks]).strip()
        # The subject of a single finding stands before the sentence already.
        if text and has_several_members:
            text = f"{member.subject}: {text}"
        if text:
            lines.append(text)
    return lines


def _stands(checkpoint_state: CheckpointState) -> str:
    """Return a checkpoint's state, evidence, and what its attacks came to."""
    sign = SHAPES[checkpoint_state.state]
    text = (
        f"{sign} **{state_name(checkpoint_state.state)}** **{checkpoint_state.name}**"
    )
    text = f"{text}: {checkpoint_state.reason}"
    if checkpoint_state.tried:
        text = f"{text} *{checkpoint_state.outcomes}.*"
    return text


def _plain(text: str) -> str:
    """Return inert text, which opens no code span that what follows would close."""
    text = inert(text)
    has_open_code_span = text.count("`") % 2 == 1
    return text.replace("`", "\\`") if has_open_code_span else text


def inert(text: str) -> str:
    """Return text that begins no tag, link, image or heading.

    The text may be somebody else's. Intervals keep their brackets: only brackets that
    would make a link of them are escaped.
    """
    # Entities come first: later steps write some of their own.
    text = _ENTITY.sub("&amp;", visible(text))
    text = _TAG.sub("&lt;", text)
    text = text.replace("](", "]\\(").replace("][", "]\\[")
    text = _LEAD.sub(r"\1\\\2", text.strip())
    # A reference, a formula, an address.
    text = text.replace("]:", "]\\:").replace("$", "\\$")
    text = text.replace("://", ":&#47;/")
    return _MENTION.sub(lambda mention: f"&#{ord(mention[0])};", text)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown; what would end a cell or a line in it is escaped."""
    lines = []
    for cells in (header, ["---"] * len(header), *rows):
        lines.append(f"| {' | '.join(_cell(text) for text in cells)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Return inert text in one line, which does not end its cell."""
    # A line break would end the table.
    one_line = " ".join(str(text).replace("\\", "\\\\").split())
    return inert(one_line).replace("|", "\\|").replace("`", "\\`")
