"""What the first screen says of erasure: the rows, and what is left in each checkpoint.

The words are sentences ``erasure.answer.*``. A further part of a line is a sentence of
its own, chosen in :func:`_line_of`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_audit.audits.erasure.findings import BROKEN, REMEMBERED
from spark_audit.audits.erasure.units import FORGET, RETAINED
from spark_audit.audits.first_answers import FirstAnswer
from spark_audit.results import Finding, Report, Row
from spark_audit.sentences import render
from spark_audit.sentences.effects import signed_effect

AUDIT = "erasure"

KEYS_OF_OTHER_FIGURES = (
    "remembered_membership",
    "remembered_twins",
    "remembered_verbatim",
)
"""Keys of findings whose verdict rests on another figure than what remains."""


def first_screen_answers(report: Report) -> list[FirstAnswer]:
    """Return what was to be forgotten, and a line for each checkpoint after erasure.

    The lines are in the order in which the checkpoints were given.
    """
    findings = [finding for finding in report.findings if finding.audit == AUDIT]
    if not findings:
        return []

    margin = _row_of(report, "margin")
    answers = []
    counts = _counts_of_forget_rows(report, findings)
    if counts:
        text = _sentence_on_rows(counts, margin)
        answers.append(FirstAnswer(render("erasure.answer.label"), text))

    finding_by_name = {
        finding.checkpoint: finding for finding in findings if finding.verdict
    }
    for checkpoint in report.checkpoints:
        if checkpoint.name in finding_by_name:
            finding = finding_by_name[checkpoint.name]
            answers.append(_answer_of(report, finding, margin))
    return answers


def _counts_of_forget_rows(
    report: Report, findings: Sequence[Finding]
) -> Mapping[str, Any]:
    """Return the numbers of forget rows, groups and persons; empty: not known."""
    n_rows = 0
    n_groups = 0
    for record in report.tables.get("erasure_rows", []):
        if record.get("side") == FORGET:
            n_rows += record.get("rows") or 0
            n_groups += record.get("clusters") or 0
    if not n_rows:
        return {}

    n_persons = 0
    for finding in findings:
        fact = finding.facts.get("persons")
        if isinstance(fact, int):
            n_persons = fact
    return {"rows": n_rows, "groups": n_groups, "persons": n_persons}


def _sentence_on_rows(counts: Mapping[str, Any], margin: Row | None) -> str:
    """Return how many rows should be forgotten, and what counts as erased."""
    key = "rows_of_persons" if counts["persons"] else "rows"
    sentences = [render(f"erasure.answer.{key}", **counts)]
    if margin is not None:
        sentences.append(render("erasure.answer.margin", margin=margin))
    return " ".join(sentences)


def _row_of(
    report: Report, metric: str, variant: str = "", checkpoint: str = ""
) -> Row | None:
    """Return a figure of this audit; ``None``: it has no value."""
    for row in report.results:
        is_figure = (row.audit, row.metric, row.variant) == (AUDIT, metric, variant)
        if is_figure and checkpoint in ("", row.checkpoint) and row.value is not None:
            return row
    return None


def _answer_of(report: Report, finding: Finding, margin: Row | None) -> FirstAnswer:
    """Return the line of one checkpoint.

    Its interval is drawn where the verdict rests on it: a verdict by membership, by
    ranks or by written identifiers has a figure on another scale.
    """
    text = _line_of(report, finding)
    remaining = finding.facts.get("remaining")
    if not isinstance(remaining, Row) or _key_of_other_figure(finding):
        return FirstAnswer(finding.checkpoint, text, verdict=finding.verdict)

    return FirstAnswer(
        label=finding.checkpoint,
        text=text,
        low=remaining.low,
        value=remaining.value,
        high=remaining.high,
        band=0.0 if margin is None else margin.value or 0.0,
        verdict=finding.verdict,
    )


def _key_of_other_figure(finding: Finding) -> str:
    """Return the key of a verdict that rests on no remaining difference, or ""."""
    key = finding.says.removeprefix("erasure.")
    if finding.verdict == REMEMBERED and key in KEYS_OF_OTHER_FIGURES:
        return key
    return ""


def _line_of(report: Report, finding: Finding) -> str:
    """Return what is left in a checkpoint, what it cost, and what brings it back."""
    if finding.verdict == BROKEN:
        return render("erasure.broken")

    sentences = [_sentence_on_remaining(finding)]
    cost = _row_of(report, "cost", RETAINED, finding.checkpoint)
    if cost is not None and cost.low is not None:
        sentences.append(render("erasure.answer.cost", cost=cost))

    # Whether it comes back is no question where it was never gone.
    if finding.verdict == REMEMBERED:
        return " ".join(sentences)
    if "copy" in finding.facts:
        copy = finding.facts["copy"]
        returned = finding.facts["returned"]
        sentences.append(
            render("erasure.answer.returned", copy=copy, returned=returned)
        )
    elif _copies_of(report, finding.checkpoint):
        sentences.append(render("erasure.answer.not_returned"))
    else:
        sentences.append(render("erasure.answer.not_asked"))
    return " ".join(sentences)


def _sentence_on_remaining(finding: Finding) -> str:
    """Return the verdict with the figure that it rests on, in words."""
    key = _key_of_other_figure(finding)
    if key:
        return render(f"erasure.answer.{key}", verdict=finding.verdict, **finding.facts)

    remaining = finding.facts.get("remaining")
    if not isinstance(remaining, Row):
        return finding.text
    if remaining.value is None:
        reason = remaining.note
        key = "no_reason" if not reason else "no_figure"
        return render(f"erasure.answer.{key}", verdict=finding.verdict, reason=reason)
    if remaining.low is None or remaining.high is None:
        return render(
            "erasure.answer.remaining", verdict=finding.verdict, remaining=remaining
        )
    # Of an effect, above 0 is likelier, so the ends of an interval change places.
    return render(
        "erasure.answer.remaining_with_interval",
        verdict=finding.verdict,
        remaining=remaining,
        least=signed_effect(-remaining.high, remaining.unit),
        most=signed_effect(-remaining.low, remaining.unit),
    )


def _copies_of(report: Report, name: str) -> Sequence[str]:
    """Return the copies of a checkpoint that were made to bring rows back."""
    return [
        facts.name
        for facts in report.checkpoints
        if name in (facts.quantised_from, facts.relearned_from)
    ]
