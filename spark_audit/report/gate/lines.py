"""What ``spark-audit gate`` prints: every rule, its checkpoints, and PASS or FAIL."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from operator import attrgetter

from spark_audit.errors import visible
from spark_audit.report.gate.judge import NO_CHECKPOINT, RuleOutcome, State, judged
from spark_audit.results import grouped
from spark_audit.sentences import render

GATE_LINE_WIDTH = 100
"""Columns of a line, in a terminal and in a log alike."""

MOST_NAME = 30
"""Columns of a checkpoint's name; the details of a longer one begin below it."""

WORDS: Mapping[State, str] = {"tripped": "FAIL", "ok": "pass", "missing": "no figure"}
"""What a rule came to, in words; whom a rule leaves out is told below it."""


def gate_lines(found: Sequence[RuleOutcome]) -> list[str]:
    """Return the lines that the command prints; the last one is the verdict."""
    by_rule = grouped(found, attrgetter("rule"))
    lines: list[str] = []
    for (rule, findings), summary in zip(by_rule.items(), judged(found), strict=True):
        lines.append(visible(render("gate.heading", rule=rule)))
        lines += _checkpoint_lines([one for one in findings if one.state in WORDS])
        lines += textwrap.wrap(visible(summary), GATE_LINE_WIDTH)
        lines.append("")
    return [*lines, verdict(found)]


def verdict(found: Sequence[RuleOutcome]) -> str:
    """Return PASS or FAIL, and the first rule that decided, in one line."""
    violations = [one for one in found if one.state == "tripped"]
    missing = [one for one in found if one.state == "missing"]
    is_judged = {one.checkpoint for one in found if one.state in ("ok", "missing")}
    first = violations[0] if violations else None
    text = render(
        "gate.verdict",
        first=first,
        whom="" if first is None or first.checkpoint == NO_CHECKPOINT else first.whom,
        more=len(violations) - 1,
        rules=list(dict.fromkeys(one.rule for one in found)),
        judged=len(is_judged - {NO_CHECKPOINT}),
        missing=len(missing),
    )
    return visible(text)


def _checkpoint_lines(findings: Sequence[RuleOutcome]) -> list[str]:
    """One paragraph a checkpoint: the result, its name, and why."""
    widths = [len(one.whom) for one in findings if len(one.whom) <= MOST_NAME]
    width = max(widths, default=0)
    lines: list[str] = []
    for one in findings:
        head = f"  {WORDS[one.state]:<9}  {one.whom:<{width}}  "
        indent = " " * (2 + 9 + 2 + width + 2)
        if len(one.whom) > width:
            lines.append(head.rstrip())
            head = indent
        detail = visible(one.detail)
        lines += textwrap.wrap(
            detail, GATE_LINE_WIDTH, initial_indent=head, subsequent_indent=indent
        ) or [head.rstrip()]
    return lines
