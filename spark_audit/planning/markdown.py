"""A plan as Markdown, for an issue or for the notes on a training."""

from __future__ import annotations

from spark_audit.manifest.overview import Description
from spark_audit.planning.plan import TrainingPlan
from spark_audit.planning.shown import shown_plan
from spark_audit.report.cells import ReportTable
from spark_audit.report.writers.markdown import inert, table


def plan_markdown(plan: TrainingPlan, description: Description) -> str:
    """Return a plan as Markdown: answer, what to change, and all of its tables."""
    shown = shown_plan(plan)
    parts = [f"# {inert(shown.headline)}"]
    if shown.changes:
        lines = [
            f"{number}. {inert(change)}"
            for number, change in enumerate(shown.changes, start=1)
        ]
        parts.append("\n".join(lines))

    remarks = (description.summary[0], *shown.remarks, *description.advice)
    parts += [inert(remark) for remark in remarks]
    for shown_table in (*shown.tables, *shown.details):
        parts.append(_table_markdown(shown_table))
    return "\n\n".join(parts) + "\n"


def _table_markdown(shown_table: ReportTable) -> str:
    """Return a table with its title and remarks."""
    parts = [
        f"## {inert(shown_table.title)}",
        table(shown_table.header, [line.texts for line in shown_table.rows]),
        *(inert(remark) for remark in shown_table.remarks),
    ]
    return "\n\n".join(parts)
