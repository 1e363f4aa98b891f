"""The lists of a report as a notebook shows them on the last line of a cell.

Figures are rounded as those of the pages. A further list of a report is an entry of
:data:`COLUMNS_OF_FIELDS` and a line of :func:`field_html`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_audit.cells_html import cell_html
from spark_audit.report.checkpoint_states import SHAPES, checkpoint_states
from spark_audit.report.disclosure.shared import rounded_for_owner
from spark_audit.report.gate.judge import RuleOutcome
from spark_audit.report.void_rows import with_states
from spark_audit.results import CheckpointFacts, Finding, Guard, Report, Row

COLUMNS_OF_FIGURES_IN_CELL = (
    "checkpoint",
    "audit",
    "metric",
    "variant",
    "group",
    "value",
    "low",
    "high",
    "unit",
    "status",
)

COLUMNS_OF_FIELDS: Mapping[str, Sequence[str]] = {
    "findings": ("checkpoint", "audit", "claim", "text", "figures"),
    "guards": ("checkpoint", "check", "outcome", "detail"),
    "results": COLUMNS_OF_FIGURES_IN_CELL,
    "contrasts": COLUMNS_OF_FIGURES_IN_CELL,
    "checkpoints": ("name", "format", "base", "dtype", "parameters", "SHA-256"),
}
"""List of a report -> the columns that a notebook shows."""


def states_html(report: Report) -> str:
    """Return the states of all checkpoints as HTML for a notebook."""
    rows = []
    for checkpoint_state in checkpoint_states(rounded_for_owner(report)):
        state = f"{SHAPES[checkpoint_state.state]} {checkpoint_state.state}"
        rows.append((checkpoint_state.name, state, checkpoint_state.reason))
    return cell_html(f"States ({len(rows)})", ("checkpoint", "state", "reason"), rows)


def outcomes_html(outcomes: Sequence[RuleOutcome]) -> str:
    """Return the outcomes of the gate's rules as HTML for a notebook."""
    rows = [(one.rule, one.whom, one.state, one.detail) for one in outcomes]
    header = ("rule", "checkpoint", "outcome", "detail")
    return cell_html(f"Outcomes of rules ({len(rows)})", header, rows)


def field_html(report: Report, name: str) -> str:
    """Return a list that is a field of a report as HTML for a notebook."""
    # A report from elsewhere may lack the marks of what is void, as in frames.
    shown_report = rounded_for_owner(with_states(report))

    rows: list[Sequence[object]] = []
    for record in getattr(shown_report, name):
        if isinstance(record, Finding):
            rows.append(_finding_cells(record))
        elif isinstance(record, Guard):
            rows.append(_guard_cells(record))
        elif isinstance(record, CheckpointFacts):
            rows.append(_checkpoint_cells(record))
        else:
            rows.append(_figure_cells(record))

    note = f"All columns: report.to_frame({name!r})"
    return cell_html(
        f"{name.capitalize()} ({len(rows)})", COLUMNS_OF_FIELDS[name], rows, note
    )


def _finding_cells(finding: Finding) -> Sequence[object]:
    """Return the cells of a finding, in the order of the columns."""
    return (
        finding.checkpoint,
        finding.audit,
        finding.claim,
        finding.text,
        finding.figures,
    )


def _guard_cells(guard: Guard) -> Sequence[object]:
    """Return the cells of a guard, in the order of the columns."""
    return guard.checkpoint, guard.title, guard.outcome, guard.detail


def _figure_cells(row: Row) -> Sequence[object]:
    """Return the cells of a row or a contrast, in the order of the columns."""
    return (
        row.checkpoint,
        row.audit,
        row.metric,
        row.variant,
        row.group,
        row.value,
        row.low,
        row.high,
        row.unit,
        row.status,
    )


def _checkpoint_cells(facts: CheckpointFacts) -> Sequence[object]:
    """Return the cells of an audited checkpoint, in the order of the columns."""
    return (
        facts.name,
        facts.format,
        facts.base,
        facts.dtype,
        facts.parameters,
        facts.weights_sha256[:12],
    )
