"""What a report comes to, at a glance: the answer, the matrix, and what to do next.

One object holds it. The terminal, the page, Markdown and a notebook show it in the same
order, with the same words and numbers; no one of them claims more than another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_audit.audits import about
from spark_audit.audits.claims import TESTS
from spark_audit.audits.supervision_guards import is_said_first, supervision_warnings
from spark_audit.names import BASE
from spark_audit.report import first_screen
from spark_audit.report.consequences import Consequence, main_consequences
from spark_audit.report.figures_line import SEPARATOR, sides_of
from spark_audit.report.matrix import Matrix, effect_text, matrix_of
from spark_audit.report.standings import (
    RESULTS,
    Standing,
    State,
    key_of,
    relearned,
    standings,
)
from spark_audit.results import Report, Row, grouped
from spark_audit.sentences import knows, render
from spark_audit.sentences.renderer import listed

MAX_NAMES = 5
"""Checkpoints that a line names; of more it says how many."""


@dataclass(frozen=True)
class ExposedKind:
    """A kind of identifiers that moved most in a checkpoint, as a bar.

    Attributes
    ----------
    low, value, high
        How long the bar is, and where its interval ends: 0 is no effect, 1 the end of
        the longest interval.
    """

    checkpoint: str
    kind: str
    effect: str
    low: float
    value: float
    high: float
    is_less_likely: bool = False


@dataclass(frozen=True)
class Glance:
    """The answer of a report.

    Attributes
    ----------
    first_lines
        What training did not see of what is listed as trained: it stands before any
        state.
    headline
        How many checkpoints are in which state.
    basis
        What it rests on: base, groups, tests.
    alarms
        What must be read first: checks that change a conclusion, and questions about
        what was trained on.
    matrix
        Checkpoints and attacks.
    consequences
        The worst first, then what could still be there where nothing was found.
    exposed
        Kinds of identifiers that are most exposed in the worst checkpoint.
    next_steps
        State -> what to do next.
    not_run
        Commands of attacks that the report does not have.
    gate
        What ``spark-audit gate`` stops and passes without rules.
    surety
        How often chance alone would give such results, and how often "at most" holds.
    not_tested
        Attacks without a result, and what is beyond this tool.
    checks
        Whether the audit's own checks held.
    """

    first_lines: tuple[str, ...]
    headline: str
    basis: str
    alarms: tuple[str, ...]
    matrix: Matrix
    consequences: tuple[Consequence, ...]
    exposed: tuple[ExposedKind, ...]
    next_steps: dict[State, str]
    not_run: str
    gate: str
    surety: str
    not_tested: str
    checks: str

    @property
    def exposed_label(self) -> str:
        """Return whether the exposed kinds became more or less likely, in words."""
        is_less_likely = any(kind.is_less_likely for kind in self.exposed)
        return render("glance.less_likely" if is_less_likely else "glance.most_exposed")

    @property
    def whose_kinds(self) -> str:
        """Return of which checkpoint the kinds are, and that they are exploratory."""
        return render("glance.whose_kinds", checkpoint=self.exposed[0].checkpoint)


def glance_of(report: Report) -> Glance | None:
    """Return a report at a glance; None where no audit of it attacks anything."""
    found = standings(report)
    if not found:
        return None

    return Glance(
        first_lines=tuple(supervision_warnings(report.guards)),
        headline=first_screen.headline(report, found),
        basis=_basis(report, found),
        alarms=tuple(_alarms(report, found)),
        matrix=matrix_of(found),
        consequences=tuple(main_consequences(found)),
        exposed=tuple(_exposed_kinds(found)),
        next_steps=dict(_next_steps(found)),
        not_run=_not_run(found),
        gate=_gate(found),
        surety=_surety(found),
        not_tested=_not_tested(found),
        checks=_checks(report),
    )


def few_names(names: Sequence[str]) -> str:
    """Return names in a list, and of many how many more there are."""
    if len(names) <= MAX_NAMES:
        return listed(names)

    shown = ", ".join(names[: MAX_NAMES - 1])
    n_more = len(names) - MAX_NAMES + 1
    return render("glance.more_names", names=shown, more=n_more)


def _basis(report: Report, found: Sequence[Standing]) -> str:
    """Return base, groups and tests in one line."""
    has_base = any(checkpoint.name == BASE for checkpoint in report.checkpoints)
    parts = [render("glance.base" if has_base else "glance.no_base")]

    trained, held_out = _groups(found)
    if trained is not None and held_out is not None:
        parts.append(render("glance.groups", trained=trained, held_out=held_out))

    n_tests = int(report.settings.get(TESTS, 0))
    if n_tests:
        key = "glance.test" if n_tests == 1 else "glance.tests"
        parts.append(render(key, tests=n_tests))

    return SEPARATOR.join(parts)


def _groups(found: Sequence[Standing]) -> tuple[int | None, int | None]:
    """Return how many trained and held-out groups the test of memory compares."""
    for standing in found:
        for tried in standing.tried:
            if tried.finding is not None and about(tried.audit).memory_metric:
                return sides_of(tried.finding)
    return None, None


def _alarms(report: Report, found: Sequence[Standing]) -> Iterator[str]:
    """Yield what changes a conclusion: questions on the rows, and failed checks."""
    yield from first_screen.urgent_remarks(report, found)

    failed = [
        guard
        for guard in report.guards
        if guard.passed is False and not is_said_first(guard)
    ]
    for failed_check in first_screen.failed_checks(failed, found):
        yield failed_check.sentence


def _exposed_kinds(found: Sequence[Standing]) -> list[ExposedKind]:
    """Return the kinds that the first checkpoint exposes most that exposes any."""
    for standing in found:
        rows = [row for row in standing.exposed if row.ends is not None]
        if rows:
            return _bars(standing.name, rows)
    return []


def _bars(checkpoint: str, rows: Sequence[Row]) -> list[ExposedKind]:
    """Return rows as bars that share one scale."""
    longest = max(abs(end) for row in rows for end in row.ends or ())

    kinds = []
    for row in rows:
        if row.value is None or row.ends is None:
            continue

        # Of kinds that became less likely, the end that is further from 0 is last, too.
        near, far = sorted(abs(end) for end in row.ends)
        kinds.append(
            ExposedKind(
                checkpoint=checkpoint,
                kind=row.grouping[1],
                effect=effect_text(row.audit, -row.value, row.unit),
                low=near / longest,
                value=abs(row.value) / longest,
                high=far / longest,
                is_less_likely=row.value > 0,
            )
        )
    return kinds


def _next_steps(found: Sequence[Standing]) -> Iterator[tuple[State, str]]:
    """Yield a step for each state that there is."""
    by_state = grouped(found, lambda standing: standing.state)
    for state, of_state in by_state.items():
        if state == "NOT TESTED":
            yield state, _step_of_untested(of_state, found)
            continue

        names = few_names([standing.name for standing in of_state])
        yield state, render(f"next.{key_of(state)}", names=names)


def _step_of_untested(untested: Sequence[Standing], found: Sequence[Standing]) -> str:
    """Return what lets memory be tested: the advice on the first check that failed."""
    names = few_names([standing.name for standing in untested])
    for standing in untested:
        for guard in standing.faults:
            is_done = guard.name == "broken_model" and relearned(found)
            key = f"next.{guard.name}_relearned" if is_done else f"next.{guard.name}"
            if knows(key):
                return render(key, names=names)

    is_unclear = any(standing.unclear for standing in untested)
    return render("next.confounded" if is_unclear else "next.not_tested", names=names)


def _not_run(found: Sequence[Standing]) -> str:
    """Return the commands of attacks that were not run; empty where all were."""
    not_run = [tried.audit for tried in found[0].tried if not tried.ran]
    if not not_run:
        return ""

    commands = ", ".join(f"spark-audit {audit}" for audit in not_run)
    return render("glance.not_run", commands=commands)


def _gate(found: Sequence[Standing]) -> str:
    """Return what the gate without rules stops, and what it passes."""
    stopped = few_names([standing.name for standing in found if not standing.ships])
    passed = few_names([standing.name for standing in found if standing.ships])
    if not stopped:
        return render("glance.gate_passes", passed=passed)
    if not passed:
        return render("glance.gate_stops", stopped=stopped)
    return render("glance.gate_both", stopped=stopped, passed=passed)


def _surety(found: Sequence[Standing]) -> str:
    """Return what chance alone would give, and in how many reports "at most" holds."""
    # Of 1,000 reports in which nothing leaks, how many would show as much.
    names_by_count: dict[int, list[str]] = {}
    for standing in found:
        if not standing.detections:
            continue
        p = standing.detections[0].p_adjusted
        if p is not None:
            count = max(1, math.ceil(1000 * p))
            names_by_count.setdefault(count, []).append(standing.name)

    sentences = []
    for count, names in sorted(names_by_count.items()):
        sentences.append(render("glance.surety", names=few_names(names), count=count))
    if _has_limits(found):
        sentences.append(render("glance.surety_at_most"))
    return " ".join(sentences)


def _has_limits(found: Sequence[Standing]) -> bool:
    """Return whether it is known of any attack how much could still be there."""
    for standing in found:
        for tried in standing.tried:
            if tried.bounded is not None:
                return True
    return False


def _not_tested(found: Sequence[Standing]) -> str:
    """Return the attacks without a result on some checkpoint, and what is beyond."""
    names_by_attack: dict[str, list[str]] = {}
    for standing in found:
        for tried in standing.tried:
            if tried.outcome not in RESULTS[0]:
                names_by_attack.setdefault(tried.attack, []).append(standing.name)

    beyond = render("glance.beyond")
    if not names_by_attack:
        return beyond

    attacks = []
    for attack, names in names_by_attack.items():
        is_of_all = len(names) == len(found)
        attacks.append(attack if is_of_all else f"{attack} ({few_names(names)})")
    return f"{render('glance.without_result', attacks=', '.join(attacks))} {beyond}"


def _checks(report: Report) -> str:
    """Return whether the audit's own checks held, with counts."""
    results = [guard.passed for guard in report.guards]
    n_failed = results.count(False)
    n_warnings = results.count(None)
    if not results:
        return render("page.guards_none")
    if n_failed:
        return render("glance.checks_failed", failed=n_failed, count=len(results))
    if n_warnings:
        return render("glance.checks_warn", warnings=n_warnings, count=len(results))
    return render("glance.checks_held", count=len(results))
