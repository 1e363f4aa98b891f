"""Output of ``spark-audit gate``: every rule, its checkpoints, and PASS or FAIL."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from spark_audit.errors import visible
from spark_audit.report.gate.judge import NO_CHECKPOINT, RuleOutcome, judged
from spark_audit.report.gate.verdicts import RuleState
from spark_audit.results import grouped
from spark_audit.sentences import render

GATE_LINE_WIDTH = 100
"""Columns of a line, in a terminal and in a log alike."""

MAX_NAME_WIDTH = 30
"""Columns of a checkpoint's name; the details of a longer one begin below it."""

STATES_IN_WORDS: Mapping[RuleState, str] = {
    "tripped": "FAIL",
    "ok": "pass",
    "missing": "no figure",
}
"""What a rule came to, in words. Checkpoints that it leaves out have no line of their
own: the summary of the rule names them."""

STATE_WIDTH = max(map(len, STATES_IN_WORDS.values()))
"""Columns of the longest of these words."""


def gate_lines(outcomes: Sequence[RuleOutcome]) -> list[str]:
    """Return the lines that the command prints; the last one is the verdict.

    Parameters
    ----------
    outcomes
        What :func:`spark_audit.report.gate.judge.check` returned.
    """
    outcomes_by_rule = grouped(outcomes, lambda outcome: outcome.rule)
    summaries = judged(outcomes)
    lines: list[str] = []
    for (rule, outcomes_of_rule), summary in zip(
        outcomes_by_rule.items(), summaries, strict=True
    ):
        lines.append(visible(render("gate.heading", rule=rule)))
        lines += _checkpoint_lines(
            [
                outcome
                for outcome in outcomes_of_rule
                if outcome.state in STATES_IN_WORDS
            ]
        )
        lines += textwrap.wrap(visible(summary), GATE_LINE_WIDTH)
        lines.append("")
    return [*lines, verdict(outcomes)]


def verdict(outcomes: Sequence[RuleOutcome]) -> str:
    """Return PASS or FAIL, and the first rule that decided, in one line."""
    violations = [outcome for outcome in outcomes if outcome.state == "tripped"]
    if violations:
        return visible(_fail(violations))

    # With --allow-missing, figures that were not measured pass, but not unseen.
    text = _pass(outcomes)
    n_missing = sum(outcome.state == "missing" for outcome in outcomes)
    if n_missing:
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


def _pass(outcomes: Sequence[RuleOutcome]) -> str:
    """Return the line of a pass: the number of checkpoints that keep the rules."""
    judged_names = {
        outcome.checkpoint for outcome in outcomes if outcome.state in ("ok", "missing")
    }
    n_judged = len(judged_names - {NO_CHECKPOINT})
    rules = list(dict.fromkeys(outcome.rule for outcome in outcomes))

    key = "gate.pass" if len(rules) == 1 else "gate.pass_all"
    if n_judged == 1:
        key = f"{key}_of_one"
    return render(key, judged=n_judged, rule=rules[0], rules=len(rules))


def _checkpoint_lines(outcomes: Sequence[RuleOutcome]) -> list[str]:
    """Return one paragraph per checkpoint: the result, its name, and why."""
    name_width = 0
    for outcome in outcomes:
        if len(outcome.whom) <= MAX_NAME_WIDTH:
            name_width = max(name_width, len(outcome.whom))

    # A line is "  STATE  NAME  DETAIL"; further lines of the detail stand below it.
    indent = " " * (2 + STATE_WIDTH + 2 + name_width + 2)
    lines: list[str] = []
    for outcome in outcomes:
        name = outcome.whom
        state = STATES_IN_WORDS[outcome.state]
        head = f"  {state:<{STATE_WIDTH}}  {name:<{name_width}}  "
        if len(name) > name_width:
            # The details begin on the next line, below those of other checkpoints.
            lines.append(head.rstrip())
            head = indent

        wrapped = textwrap.wrap(
            visible(outcome.detail),
            GATE_LINE_WIDTH,
            initial_indent=head,
            subsequent_indent=indent,
        )
        # Without a detail nothing is wrapped.
        lines += wrapped or [head.rstrip()]
    return lines
