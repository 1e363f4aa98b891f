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
    violations = [outcome for outcome in found if outcome.state == "tripped"]
    text = _fail(violations) if violations else _pass(found)

    n_missing = sum(outcome.state == "missing" for outcome in found)
    if n_missing and not violations:
        key = "gate.one_missing" if n_missing == 1 else "gate.missing"
        text = render(key, verdict=text, count=n_missing)
    return visible(text)


def _fail(violations: Sequence[RuleOutcome]) -> str:
    """Return the first violation, and how many more there are."""
    first = violations[0]
    if first.checkpoint == NO_CHECKPOINT:
        text = render("gate.fail_of_nobody", rule=first.rule)
    else:
        text = render("gate.fail", whom=first.whom, rule=first.rule)

    n_more = len(violations) - 1
    if n_more == 0:
        return text
    key = "gate.one_more" if n_more == 1 else "gate.more"
    return render(key, verdict=text, count=n_more)


def _pass(found: Sequence[RuleOutcome]) -> str:
    """Return how many checkpoints keep the rules."""
    judged_names = {
        outcome.checkpoint for outcome in found if outcome.state in ("ok", "missing")
    }
    n_judged = len(judged_names - {NO_CHECKPOINT})
    rules = list(dict.fromkeys(outcome.rule for outcome in found))

    key = "gate.pass" if len(rules) == 1 else "gate.pass_all"
    if n_judged == 1:
        key = f"{key}_of_one"
    return render(key, judged=n_judged, rule=rules[0], rules=len(rules))


def _checkpoint_lines(findings: Sequence[RuleOutcome]) -> list[str]:
    """Return one paragraph per checkpoint: the result, its name, and why."""
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
