"""Sentences of the first screen: the answer, the audit's checks, what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from typing import NamedTuple, TypedDict

from spark_audit import sentences
from spark_audit.audits import about
from spark_audit.audits.claims import ALPHA, TESTS
from spark_audit.audits.setup_guards import REMAINS
from spark_audit.names import BASE
from spark_audit.report.attacks import AttackSummary
from spark_audit.report.standings import (
    RESULTS,
    SHAPES,
    Outcome,
    Standing,
    State,
    key_of,
    relearned,
)
from spark_audit.results import Report, grouped
from spark_audit.sentences import render

UNITS_SHOWN = ("nats", "bits", "AUC")
"""Units that the first screen explains where it uses them."""


class StateCount(TypedDict):
    """Checkpoints in one state, by how many of the attacks they were tested."""

    key: str
    count: int
    names: list[str]
    attacks: int
    tested: list[int]


def answer(found: Sequence[Standing]) -> str:
    """The report in one line: how many checkpoints are in which state.

    Also by how many of the attacks: next to a title that does not say that most were
    not run, readers took a checkpoint for cleared.
    """
    states: list[StateCount] = []
    for state, own in grouped(found, lambda one: one.state).items():
        tested = [sum(len(one.tally.get(k, ())) for k in RESULTS[0]) for one in own]
        names = [one.name for one in own]
        counted = StateCount(
            key=key_of(state),
            count=len(own),
            names=names,
            attacks=len(own[0].tried),
            tested=sorted({*tested}),
        )
        states.append(counted)
    return sentences.render("states.answer", count=len(found), states=states)


def headline(report: Report, found: Sequence[Standing]) -> str:
    """Return the answer, and that the base model was not given, where it was not."""
    text = answer(found)
    if lacks_base(report):
        text += sentences.render("states.no_base")
    return text


def lacks_base(report: Report) -> bool:
    """Whether the manifest names a base model, and no audit could compare with it.

    Audits of a series alone compare its stages with each other.
    """
    audits = {row.audit for row in report.results}
    needs_base = any(not about(audit).of_series for audit in audits)
    has_base = any(one.name == BASE for one in report.checkpoints)
    return bool(report.settings.get("reference")) and needs_base and not has_base


def urgent_remarks(report: Report, found: Sequence[Standing]) -> list[str]:
    """Return what must be read before anything else of the first screen.

    These are the base model that was not given, and the checkpoints whose trained rows
    fit no better than held-out ones.
    """
    remarks = []
    if lacks_base(report):
        remarks.append(sentences.render("terminal.no_base"))
    names = [one.name for one in found if one.question is not None]
    if names:
        remarks.append(sentences.render("states.question", names=names))
    return remarks


def meanings() -> dict[State, str]:
    """What each state means."""
    return {state: sentences.render(f"state.{key_of(state)}") for state in SHAPES}


def advice(found: Sequence[Standing]) -> dict[State, str]:
    """What to do next, by the states that there are."""
    by_state = grouped(found, lambda one: one.state)
    known, lacking = (by_state.get(k, []) for k in ("DETECTABLE", "NOT TESTED"))
    gives: set[str] = set()
    faulty: dict[str, list[str]] = {}
    for one in lacking:
        if not one.faults:
            gives.add("give_alike" if one.unclear else "give")
        for guard in one.faults:
            faulty.setdefault(guard.name, []).append(one.name)
    stopped = not all(one.ships for one in known)
    named_faults = {k: _some(faulty[k], lacking) for k in REMAINS if k in faulty}
    open_tests = _open(by_state.get("NO LEAK FOUND", []))
    return {
        state: sentences.render(
            f"advice.{key_of(state)}",
            stopped=stopped,
            relearned=relearned(found),
            gives=sorted(gives),
            faults=named_faults,
            commands=open_tests.commands,
            unplanted=open_tests.unplanted,
            unanswered=open_tests.unanswered,
        )
        for state in by_state
    }


def _some(names: list[str], of: Sequence[Standing]) -> list[str]:
    """Names of some; nothing where it is all of them."""
    return names if len(names) < len(of) else []


class OpenTests(NamedTuple):
    """Tests of checkpoints without a claim that came to nothing, or were not run.

    Attributes
    ----------
    commands
        Audits that were not run.
    unplanted
        Whether no canaries were planted.
    unanswered
        Attack, in words -> checkpoints that it has no result of; empty: all.
    """

    commands: list[str]
    unplanted: bool
    unanswered: dict[str, list[str]]


def _open(clean: Sequence[Standing]) -> OpenTests:
    """Return the open tests of checkpoints without a claim."""
    commands: dict[str, None] = {}
    unanswered: dict[str, list[str]] = {}
    unplanted = False
    for one in clean:
        for each in one.tried:
            if not each.ran:
                commands[each.audit] = None
            elif each.outcome == "not tested" and about(each.audit).needs_canaries:
                unplanted = True
            elif each.outcome not in RESULTS[0]:
                unanswered.setdefault(each.attack, []).append(one.name)
    return OpenTests(
        commands=list(commands),
        unplanted=unplanted,
        unanswered={k: _some(names, clean) for k, names in unanswered.items()},
    )


def checks(report: Report, found: Sequence[Standing]) -> list[str]:
    """Whether the audit's own checks held: a line, then one for each that did not.

    Questions about the listed rows, which a check asks, stand last.

    These say what happened, and what that does to the states. Not that something
    FAILED: next to a checkpoint that passes, readers took that for the checkpoint.
    """
    states = [one.passed for one in report.guards]
    summary = sentences.render(
        "states.checks",
        count=len(states),
        failed=states.count(False),
        warnings=states.count(None),
    )
    lines = [summary]
    questions = _questions(found)

    faulty = (one for one in report.guards if one.passed is False)
    failed = grouped(faulty, lambda one: one.name)
    untested = {one.name for one in found if one.faults and one.state == "NOT TESTED"}
    told: set[str] = set()
    for name, guards in failed.items():
        names = list(dict.fromkeys(one.checkpoint for one in guards if one.checkpoint))
        void = bool(names) and untested.issuperset(names)
        lines.append(
            sentences.render("failed", name=name, guards=guards, names=names, void=void)
        )
        told.update(names if void else ())
    if not failed:
        return [*lines, *questions]
    # Attacks with and without a result, and whether it passes -> checkpoints.
    verdicts: dict[tuple[tuple[str, ...], tuple[str, ...], bool], list[str]] = {}
    for one in found:
        tested, open = (_attacks_with(one, outcomes) for outcomes in RESULTS)
        if open and one.name not in told:
            verdicts.setdefault((tested, open, one.ships), []).append(one.name)
    doubts = sentences.render("states.doubts", verdicts=verdicts)
    return [*lines, doubts, *questions]


def _attacks_with(standing: Standing, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Return the attacks that came to one of these outcomes, in words."""
    return tuple(
        tried.attack
        for outcome in outcomes
        for tried in standing.tally.get(outcome, ())
    )


def _questions(found: Sequence[Standing]) -> list[str]:
    """Return the questions about the listed rows, each with its checkpoints."""
    names_by_question: dict[str, list[str]] = {}
    for standing in found:
        if standing.question is not None:
            names = names_by_question.setdefault(standing.question.detail, [])
            names.append(standing.name)

    return [
        f"{', '.join(names)}: {question}"
        for question, names in names_by_question.items()
    ]


def reading(report: Report, found: Sequence[Standing]) -> str:
    """How to read the sentences of these checkpoints: every unit is explained."""
    led_by = filter(None, (one.led_by for one in found))
    used = {one.unit for one in led_by if one.claim != "not_tested"}
    units = [unit for unit in UNITS_SHOWN if unit in used]
    tests = _tests(report)
    return sentences.render(
        "states.reading", tests=tests, limit=_first_limit(tests), units=units
    )


def level(report: Report) -> str:
    """The level that a claim of a report must pass, in words."""
    tests = _tests(report)
    return sentences.render("states.level", tests=tests, limit=_first_limit(tests))


def _tests(report: Report) -> int:
    """Return how many tests a report corrects for."""
    return int(report.settings.get(TESTS, 0))


def _first_limit(tests: int) -> Decimal:
    """Return the level of the first step of Holm's correction.

    Three digits, rounded down: what is shown is no looser than what is applied.
    """
    down = Context(prec=3, rounding=ROUND_FLOOR)
    return down.create_decimal(repr(ALPHA / (tests or 1)))


def surety(found: Sequence[Standing]) -> str:
    """How sure the first screen is, as chances: of a false claim, and of a missed leak.

    A corrected p bounds how often a report in which nothing leaked would claim as much.
    """
    of_1000: dict[int, list[str]] = {}
    for one in found:
        led = one.led_by if one.detections else None
        if led and led.family == "primary" and led.p_adjusted is not None:
            n = max(1, math.ceil(1000 * led.p_adjusted))
            of_1000.setdefault(n, []).append(one.name)
    clean = any(
        tried.finding and tried.finding.mde is not None
        for one in found
        if one.state == "NO LEAK FOUND"
        for tried in one.tally.get("not shown", ())
    )
    claims = sorted(of_1000.items())
    return sentences.render("states.surety", claims=claims, clean=clean)


def gate(found: Sequence[Standing]) -> str:
    """The verdict of the gate without rules."""
    skipped = {"void", "confounded", "not tested"}
    unjudged = any(one.ships and skipped & {*one.tally} for one in found)
    return sentences.render("states.gate", found=found, unjudged=unjudged)


def uncovered(tried: Sequence[AttackSummary], found: Sequence[Standing]) -> str:
    """What was not tested."""
    return render(
        "states.uncovered",
        attacks=tried,
        untested=[one.name for one in found if one.state == "NOT TESTED"],
        nothing=all(one["state"] != "tested" for one in tried),
        faults=any(one.faults for one in found),
        relearned=relearned(found),
    )
