"""What the first screen says of groups of rows: in which one an audit found most.

The words are sentences ``groups.answer.*``.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_audit.audits.first_answers import FirstAnswer
from spark_audit.results import Finding, Report
from spark_audit.results.findings import UNUSABLE
from spark_audit.sentences import render

MAX_CHECKPOINTS_NAMED = 3
"""Most checkpoints whose leaking group is named; the others are counted."""


def answers_by_group(report: Report, audit: str) -> Sequence[FirstAnswer]:
    """Return what an audit found by group of rows, in one answer.

    Empty: it compared no groups, or all that it compared is void.
    """
    findings = [
        finding
        for finding in report.findings
        if finding.audit == audit and _names_a_group(finding)
    ]
    if not findings:
        return []

    # Some leaking checkpoints are named, each with its group.
    leaking = [finding for finding in findings if finding.detected]
    sentences = []
    for finding in leaking[:MAX_CHECKPOINTS_NAMED]:
        sentences.append(_sentence_on_clearest_group(finding))

    # The others are counted: those with a leak, then those without.
    n_more = len(leaking[MAX_CHECKPOINTS_NAMED:])
    if n_more:
        sentences.append(render("groups.answer.more", n_checkpoints=n_more))
    n_without = len(findings) - len(leaking)
    if not leaking:
        sentences.append(render("groups.answer.none"))
    elif n_without == 1:
        sentences.append(render("groups.answer.other"))
    elif n_without > 1:
        sentences.append(render("groups.answer.others", n_checkpoints=n_without))

    # An audit groups its rows by one field, which is that of all its findings.
    field = findings[0].facts["field"]
    attack = render(f"audit.{audit}.attack")
    label = render("groups.answer.label", attack=attack, field=field)
    return [FirstAnswer(label=label, text=" ".join(sentences))]


def _names_a_group(finding: Finding) -> bool:
    """Return whether a finding that is not void is on one of several groups of rows.

    Its facts are those of :meth:`TestedGroups.finding
    <spark_audit.audits.groups.worst.TestedGroups.finding>`.
    """
    # Of a void one neither "found" nor "not found" would be true.
    is_usable = finding.status not in UNUSABLE
    return is_usable and {"worst", "field", "groups"} <= finding.facts.keys()


def _sentence_on_clearest_group(finding: Finding) -> str:
    """Return in which group a checkpoint gives most away, and if it stands out."""
    stands_out = "groups.stands_out" in finding.further
    key = "groups.answer.stands_out" if stands_out else "groups.answer.clearest"
    return render(key, checkpoint=finding.checkpoint, **finding.facts)
