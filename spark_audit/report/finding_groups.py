"""The findings of an audit as pages show them: tests as sentences, the rest as a table.

A finding that detects something, and what a primary test came to, is a sentence with
its line of figures. What is exploratory is a row of a table. Equal results are said
once, for all checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_audit.report.cells import Cell, ReportTable, TableLine
from spark_audit.report.figures_line import figures_line, plain_figures
from spark_audit.results import Finding, grouped
from spark_audit.sentences import capitalised, render
from spark_audit.sentences.renderer import listed


@dataclass(frozen=True)
class GroupMember:
    """One finding of a group: whose it is, its figures, and what follows its sentence.

    Attributes
    ----------
    subject
        What it is about, mostly a checkpoint; empty: the report as a whole.
    checkpoint
        Whose it is; empty: of all of them.
    figures
        One line; empty where it rests on no figure.
    remarks
        Sentences that follow, each whole.
    """

    subject: str
    checkpoint: str
    figures: str
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class FindingGroup:
    """Findings of the same sentence."""

    text: str
    is_detected: bool
    members: tuple[GroupMember, ...]

    @property
    def subjects(self) -> str:
        """What it is about, in a list; empty: the report as a whole."""
        subjects = [member.subject for member in self.members if member.subject]
        return listed(list(dict.fromkeys(subjects)))


def groups_of_tests(findings: Sequence[Finding]) -> list[FindingGroup]:
    """Return what was detected, and what primary tests came to."""
    tests = [finding for finding in findings if _is_test(finding)]
    groups = []
    for sentence, findings_of_it in grouped(tests, _sentence_of).items():
        members = [_member(test, figures_line(test)) for test in findings_of_it]
        group = FindingGroup(sentence.text, sentence.is_detected, tuple(members))
        groups.append(group)
    return groups


def table_of_the_rest(findings: Sequence[Finding], audit: str) -> ReportTable | None:
    """Return what is exploratory, a line for each sentence; None where nothing is."""
    exploratory = [finding for finding in findings if not _is_test(finding)]
    lines = []
    for sentence, findings_of_it in grouped(exploratory, _sentence_of).items():
        members = [_member(result, plain_figures(result)) for result in findings_of_it]
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
    """Return whether it detects something, or is what a primary test came to."""
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
    has_several_members = len(group.members) > 1
    remarks: list[str] = []
    figures = []
    for member in group.members:
        remarks += member.remarks
        if member.figures and has_several_members:
            figures.append(f"{member.subject}: {member.figures}")
        elif member.figures:
            figures.append(member.figures)

    # Members may share a remark, which is said once.
    sentences = [group.text, *dict.fromkeys(remarks)]
    cells = (
        Cell(group.subjects),
        Cell(" ".join(sentences)),
        Cell("; ".join(figures)),
    )

    # Readers can hide the lines of a checkpoint: that of several stays.
    checkpoints = {member.checkpoint for member in group.members}
    checkpoint = checkpoints.pop() if len(checkpoints) == 1 else ""
    return TableLine(cells, checkpoint)
