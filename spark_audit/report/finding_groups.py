"""The findings of an audit as pages show them: tests as sentences, the rest as a table.

Detections and results of primary tests are sentences with a line of figures.
Exploratory results are rows of a table. Equal results are stated once, for all
checkpoints. The caller gives the findings of one audit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_audit.report.cells import Cell, ReportTable, TableLine
from spark_audit.report.figures_line import figures_line, plain_figures
from spark_audit.results import OF_REPORT, Finding, Report, by_severity, grouped
from spark_audit.sentences import capitalised, render
from spark_audit.sentences.renderer import listed


@dataclass(frozen=True)
class GroupMember:
    """One finding of a group: its subject, its figures, and its remarks.

    Attributes
    ----------
    subject
        Its subject, mostly a checkpoint; empty: the report as a whole.
    checkpoint
        Its checkpoint; empty: all of them.
    figures
        Its line of figures; empty: it rests on no figure.
    remarks
        Sentences that follow, each whole.
    """

    subject: str
    checkpoint: str
    figures: str
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class FindingGroup:
    """Findings of the same sentence, with the figures of each.

    Attributes
    ----------
    text
        The sentence.
    is_detected
        Whether it says that something was detected.
    members
        The findings, a member each.
    """

    text: str
    is_detected: bool
    members: tuple[GroupMember, ...]

    @property
    def subjects(self) -> str:
        """The subjects as a list in words; empty: the report as a whole."""
        subjects = [member.subject for member in self.members if member.subject]
        return listed(list(dict.fromkeys(subjects)))


class AuditFindings(NamedTuple):
    """Findings of one audit, the severest first, as pages and texts show them.

    Attributes
    ----------
    tests
        Detections and results of primary tests.
    exploratory
        The table of all other findings; None: there are none.
    """

    findings: Sequence[Finding]
    tests: list[FindingGroup]
    exploratory: ReportTable | None


def findings_by_audit(report: Report) -> dict[str, AuditFindings]:
    """Return the findings of each audit of a report, the severest audit first.

    Findings on the report as a whole are left out.
    """
    of_audits = by_severity(
        finding for finding in report.findings if finding.audit != OF_REPORT
    )
    shown = {}
    for audit, findings in grouped(of_audits, lambda finding: finding.audit).items():
        shown[audit] = AuditFindings(
            findings=findings,
            tests=groups_of_tests(findings),
            exploratory=table_of_the_rest(findings, audit),
        )
    return shown


def groups_of_tests(findings: Sequence[Finding]) -> list[FindingGroup]:
    """Return the groups of detections and of results of primary tests."""
    tests = [finding for finding in findings if _is_test(finding)]
    groups = []
    for sentence, findings_of_sentence in grouped(tests, _sentence_of).items():
        members = [_member(test, figures_line(test)) for test in findings_of_sentence]
        group = FindingGroup(
            text=sentence.text,
            is_detected=sentence.is_detected,
            members=tuple(members),
        )
        groups.append(group)
    return groups


def table_of_the_rest(findings: Sequence[Finding], audit: str) -> ReportTable | None:
    """Return the table of exploratory results, a line per sentence; None: none."""
    exploratory = [finding for finding in findings if not _is_test(finding)]
    lines = []
    for sentence, findings_of_sentence in grouped(exploratory, _sentence_of).items():
        members = [
            _member(result, plain_figures(result)) for result in findings_of_sentence
        ]
        group = FindingGroup(sentence.text, is_detected=False, members=tuple(members))
        lines.append(_line(group))
    if not lines:
        return None

    columns = ("checkpoint", "result", "figures")
    return ReportTable(
        title=render("findings.rest"),
        header=tuple(render(f"findings.column_{name}") for name in columns),
        rows=tuple(lines),
        section=audit,
        key=f"findings-{audit}",
    )


def _is_test(finding: Finding) -> bool:
    """Return whether a finding is a detection or the result of a primary test."""
    return finding.detected or finding.family == "primary"


class _Sentence(NamedTuple):
    """The sentence of a finding, and whether it says that something was detected."""

    text: str
    is_detected: bool


def _sentence_of(finding: Finding) -> _Sentence:
    """Return the sentence by which findings are grouped."""
    return _Sentence(capitalised(finding.text), finding.detected)


def _member(finding: Finding, figures: str) -> GroupMember:
    """Return a finding as a member of its group."""
    return GroupMember(
        subject=finding.subject,
        checkpoint=finding.checkpoint,
        figures=figures,
        remarks=tuple(finding.remarks),
    )


def _line(group: FindingGroup) -> TableLine:
    """Return a group as a line of a table."""
    # A remark that all members share is stated once, behind the sentence.
    remarks_by_member = [member.remarks for member in group.members]
    shared_remarks = [
        remark
        for remark in dict.fromkeys(group.members[0].remarks)
        if all(remark in remarks for remarks in remarks_by_member)
    ]

    # Any other one stands with the figures of its member, so that it says whose it is.
    has_several_members = len(group.members) > 1
    figures = []
    for member in group.members:
        own_remarks = [one for one in member.remarks if one not in shared_remarks]
        parts = [member.figures] if member.figures else []
        if own_remarks:
            parts.append(" ".join(own_remarks).removesuffix("."))
        words = ". ".join(parts)
        if words and has_several_members:
            words = f"{member.subject}: {words}"
        if words:
            figures.append(words)

    cells = (
        Cell(group.subjects),
        Cell(" ".join([group.text, *shared_remarks])),
        Cell("; ".join(figures)),
    )

    # Readers can hide the lines of a checkpoint; a line of several stays.
    checkpoints = {member.checkpoint for member in group.members}
    checkpoint = checkpoints.pop() if len(checkpoints) == 1 else ""
    return TableLine(cells, checkpoint)
