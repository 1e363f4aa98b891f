"""What the doors of a checkpoint come to, in words: its finding, and the first screen.

The answer begins with the attacker who sees least. Sentences are ``doors.*``.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_audit.audits.doors.accesses import ANSWERS, DOOR_BY_NAME
from spark_audit.audits.doors.outcomes import CONFOUNDED, DoorOutcome
from spark_audit.audits.first_answers import FirstAnswer
from spark_audit.audits.known import about
from spark_audit.results import Claim, Finding, Report
from spark_audit.results.findings import UNUSABLE, Fact
from spark_audit.sentences import render

DOORS_AUDIT = "doors"

MAX_LINES = 3
"""Most checkpoints that have a line on the first screen; the table has all."""


def door_finding(outcomes: Sequence[DoorOutcome]) -> Finding:
    """Return the finding on a checkpoint: on answers alone, then from which door on.

    It is exploratory: each door was tested by itself.

    Parameters
    ----------
    outcomes
        One per door, from the least to the most that is seen.
    """
    by_name = {outcome.row.variant: outcome for outcome in outcomes}
    answers = by_name[ANSWERS]
    estimable = [one for one in outcomes if one.row.value is not None]
    if not estimable:
        return Finding.not_tested(
            DOORS_AUDIT,
            "doors.missing",
            checkpoint=answers.row.checkpoint,
            reason=answers.row.note,
        )

    facts: dict[str, Fact] = {}
    # An access stands before itself with rounded log-probabilities, which is named only
    # if it is shown alone.
    first_shown = next((one for one in outcomes if one.is_shown), None)
    if answers.row.value is None:
        says = "doors.answers_missing"
        facts["reason"] = answers.row.note
    elif answers.is_shown:
        says = "doors.answers_shown"
        facts["answers"] = answers.row
    else:
        says = "doors.answers_not_shown"
        facts["answers"] = answers.row

    further = []
    if first_shown is None:
        further.append("doors.no_door")
    elif first_shown is not answers:
        facts["first"] = first_shown.row
        facts["door"] = _words_of(first_shown.row.variant)
        further.append("doors.first_door")
    if any(one.says == CONFOUNDED for one in outcomes):
        further.append("doors.confounded")

    # The finding rests on the door that it says most of.
    shown_row = answers.row if first_shown is None else first_shown.row
    if shown_row.value is None:
        shown_row = estimable[0].row
    claim: Claim = "nothing_shown" if first_shown is None else "moved"
    return Finding.on(shown_row, claim, says, facts=facts, further=further)


def _words_of(name: str) -> str:
    """Return what is seen at a door, in words without its letter."""
    door = DOOR_BY_NAME[name]
    _, _, words = render(f"variant.{DOORS_AUDIT}.{door.sees}").partition(": ")
    if door.step:
        return render("doors.rounded", words=words, step=f"{door.step:g}")
    return words


def first_screen_answers(report: Report) -> list[FirstAnswer]:
    """Return a line for each of the checkpoints that give most away.

    Identifiers that answers hold word for word stand there, too, as the audit of
    extraction found them.
    """
    findings = [
        finding
        for finding in report.findings
        if finding.audit == DOORS_AUDIT and finding.status not in UNUSABLE
    ]
    tested = [finding for finding in findings if finding.claim != "not_tested"]
    tested.sort(key=lambda finding: -finding.severity)

    answers = []
    for finding in tested[:MAX_LINES]:
        sentences = []
        for key in (finding.says, *finding.further):
            short_key = key.replace("doors.", "doors.line.")
            sentences.append(render(short_key, **finding.facts))
        if extraction := _extraction(report, finding.checkpoint):
            sentences.append(render("doors.line.extraction", text=extraction))
        label = render("doors.line.label", name=finding.checkpoint)
        answers.append(FirstAnswer(label, " ".join(sentences)))
    return answers


def _extraction(report: Report, name: str) -> str:
    """Return what a checkpoint gives back word for word, in words; empty: nothing."""
    for finding in report.findings:
        audit = about(finding.audit)
        if audit.strongest_claim != "verbatim" or audit.covers is None:
            continue
        # The other findings of that audit are on planted strings.
        is_on_identifiers = finding.row_metric == audit.covers[0]
        is_written_out = finding.claim == audit.strongest_claim and is_on_identifiers
        if is_written_out and finding.checkpoint == name:
            return finding.text
    return ""
