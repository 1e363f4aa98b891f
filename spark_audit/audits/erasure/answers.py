"""What the first screen says of erasure: the rows, and what is left in each checkpoint.

The words are sentences ``erasure.answer.*``. A further part of a line is a sentence of
its own, chosen in :func:`_line_of`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_audit.audits.erasure.findings import REMEMBERED
from spark_audit.audits.erasure.units import FORGET, RETAINED
from spark_audit.audits.first_answers import FirstAnswer
from spark_audit.results import Finding, Report, Row
from spark_audit.results.findings import UNUSABLE
from spark_audit.sentences import render

AUDIT = "erasure"

MAX_LINES = 3
"""Most checkpoints that have a line; the matrix has the verdicts of all."""


def first_screen_answers(report: Report) -> list[FirstAnswer]:
    """Return what was to be forgotten, and a line for each of the worst checkpoints."""
    counts = _counts_of_forget_rows(report)
    findings = [
        finding
        for finding in report.findings
        if finding.audit == AUDIT and finding.verdict
    ]
    if not counts or not findings:
        return []

    margin = _row_of(report, "margin")
    key = "to_forget_without_margin" if margin is None else "to_forget"
    text = render(f"erasure.answer.{key}", **counts, margin=margin)
    answers = [FirstAnswer(render("erasure.answer.label"), text)]
    for finding in findings[:MAX_LINES]:
        remaining = finding.facts.get("remaining")
        if not isinstance(remaining, Row) or remaining.value is None:
            continue
        if finding.status in UNUSABLE:
            continue

        answers.append(
            FirstAnswer(
                label=finding.checkpoint,
                text=_line_of(report, finding, remaining),
                low=remaining.low,
                value=remaining.value,
                high=remaining.high,
                band=0.0 if margin is None else margin.value or 0.0,
            )
        )
    return answers


def _counts_of_forget_rows(report: Report) -> Mapping[str, Any]:
    """Return the numbers of forget rows and of their groups; empty: not known."""
    n_rows = 0
    n_groups = 0
    for record in report.tables.get("erasure_rows", []):
        if record.get("side") == FORGET:
            n_rows += record.get("rows") or 0
            n_groups += record.get("clusters") or 0
    return {"rows": n_rows, "groups": n_groups} if n_rows else {}


def _row_of(
    report: Report, metric: str, variant: str = "", checkpoint: str = ""
) -> Row | None:
    """Return a figure of this audit; ``None``: it has no value."""
    for row in report.results:
        is_figure = (row.audit, row.metric, row.variant) == (AUDIT, metric, variant)
        if is_figure and checkpoint in ("", row.checkpoint) and row.value is not None:
            return row
    return None


def _line_of(report: Report, finding: Finding, remaining: Row) -> str:
    """Return what is left in a checkpoint, what it cost, and what brings it back."""
    sentences = [
        render("erasure.answer.remaining", verdict=finding.verdict, remaining=remaining)
    ]
    cost = _row_of(report, "cost", RETAINED, finding.checkpoint)
    if cost is not None and cost.low is not None:
        sentences.append(render("erasure.answer.cost", cost=cost))

    # Whether it comes back is no question where it was never gone.
    if finding.verdict == REMEMBERED:
        return " ".join(sentences)
    if "copy" in finding.facts:
        copy = finding.facts["copy"]
        sentences.append(render("erasure.answer.returned", copy=copy))
    elif _copies_of(report, finding.checkpoint):
        sentences.append(render("erasure.answer.not_returned"))
    else:
        sentences.append(render("erasure.answer.not_asked"))
    return " ".join(sentences)


def _copies_of(report: Report, name: str) -> Sequence[str]:
    """Return the copies of a checkpoint that were made to bring rows back."""
    return [
        facts.name
        for facts in report.checkpoints
        if name in (facts.quantised_from, facts.relearned_from)
    ]
