"""Sentences of the first screen: the answer, the audit's checks, what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from typing import NamedTuple

from spark_audit.audits import about
from spark_audit.audits.claims import ALPHA, TESTS
from spark_audit.audits.setup_guards import REMAINS
from spark_audit.names import BASE
from spark_audit.report.attacks import AttackSummary
from spark_audit.report.standings import (
    SHAPES,
    Standing,
    State,
    key_of,
    relearned,
    state_name,
)
from spark_audit.report.tried import RESULTS, Outcome
from spark_audit.results import Guard, Report, grouped
from spark_audit.sentences import knows, render

UNITS_SHOWN = ("nats", "bits", "AUC")
"""Units that the first screen explains where it uses them."""

MAX_NAMES_IN_ANSWER = 2
"""Checkpoints in one state that the answer names."""

MAX_STATES_WITH_TESTED = 2
"""States that each say by how many attacks they were tested; of more once for all."""


def answer(standings: Sequence[Standing]) -> str:
    """Return the report in one line: how many checkpoints are in which state.

    It also says how many of the attacks were tested: next to a title that does not say
    that most were not run, readers took a checkpoint for cleared.
    """
    by_state = grouped(standings, lambda one: one.state)
    is_said_once = len(by_state) > MAX_STATES_WITH_TESTED
    states = [
        _state_with_count(
            state, members, is_only=len(standings) == 1, says_tested=not is_said_once
        )
        for state, members in by_state.items()
    ]
    text = ", ".join(states)
    if len(standings) == 1:
        return render("states.answer_of_one", name=standings[0].name, state=text)

    text = render("states.answer", count=len(standings), states=text)
    tested = _tested(standings) if is_said_once else ""
    return "; ".join(filter(None, [text, tested]))


def _tested(standings: Sequence[Standing]) -> str:
    """Return by how many attacks checkpoints were tested; empty where by all."""
    n_attacks = len(standings[0].tried)
    tested = [one for one in standings if one.state != "NOT TESTED"]
    counts = sorted({_n_tested(standing) for standing in tested})
    if not counts or counts[0] == n_attacks:
        return ""

    ends = dict.fromkeys([counts[0], counts[-1]])
    text = " to ".join(map(str, ends))
    return render("states.tested", tested=text, attacks=n_attacks)


def _state_with_count(
    state: State, members: Sequence[Standing], *, is_only: bool, says_tested: bool
) -> str:
    """Return a state with its checkpoints, and how many attacks they were tested by."""
    text = state_name(state)
    remarks = []
    if not is_only:
        text = render("states.count_in_state", count=len(members), state=text)
        if len(members) <= MAX_NAMES_IN_ANSWER:
            remarks.append(", ".join(standing.name for standing in members))

    tested = _tested(members) if says_tested else ""
    if tested:
        remarks.append(tested)
    if not remarks:
        return text
    return render("states.with_remark", text=text, remark="; ".join(remarks))


def _n_tested(standing: Standing) -> int:
    """Return how many attacks have a result on a checkpoint."""
    return len(_attacks_with(standing, RESULTS[0]))


def headline(report: Report, standings: Sequence[Standing]) -> str:
    """Return the answer, and that the base model was not given, where it was not."""
    text = answer(standings)
    if lacks_base(report):
        text += render("states.no_base")
    return text


def page_lead(report: Report) -> str:
    """Return what a report compares: its manifest, its reference, its baseline."""
    parts = [render("page.lead", name=report.manifest.name)]

    reference = report.settings.get("reference")
    if reference:
        parts.append(render("page.lead_reference", reference=reference))

    baseline = report.settings.get("baseline")
    if report.contrasts and baseline:
        parts.append(render("page.lead_baseline", baseline=baseline))
    return " ".join(parts)


def lacks_base(report: Report) -> bool:
    """Whether the manifest names a base model, and no audit could compare with it.

    Audits of a series alone compare its stages with each other.
    """
    audits = {row.audit for row in report.results}
    needs_base = any(not about(audit).of_series for audit in audits)
    has_base = any(one.name == BASE for one in report.checkpoints)
    return bool(report.settings.get("reference")) and needs_base and not has_base


def urgent_remarks(report: Report, standings: Sequence[Standing]) -> list[str]:
    """Return what must be read before anything else of the first screen.

    These are the base model that was not given, and the checkpoints whose trained rows
    fit no better than held-out ones.
    """
    remarks = []
    if lacks_base(report):
        remarks.append(render("terminal.no_base"))
    names = [one.name for one in standings if one.question is not None]
    if names:
        remarks.append(render("states.question", names=names))
    return remarks


def meanings() -> dict[State, str]:
    """Return what each state means."""
    return {state: render(f"state.{key_of(state)}") for state in SHAPES}


def advice(standings: Sequence[Standing]) -> dict[State, str]:
    """Return what to do next, by the states that there are."""
    by_state = grouped(standings, lambda one: one.state)
    is_relearned = relearned(standings)
    advice_by_state: dict[State, str] = {}
    for state, members in by_state.items():
        if state == "DETECTABLE":
            parts = _advice_on_detectable(members, is_relearned=is_relearned)
        elif state == "NO LEAK FOUND":
            parts = _advice_on_clean(members, is_relearned=is_relearned)
        elif state == "NOT TESTED":
            parts = _advice_on_untested(members, is_relearned=is_relearned)
        else:
            parts = [render(f"advice.{key_of(state)}")]
        advice_by_state[state] = " ".join(parts)
    return advice_by_state


def _advice_on_detectable(
    members: Sequence[Standing], *, is_relearned: bool
) -> list[str]:
    """Return what to do next with checkpoints whose training rows can be told."""
    parts = [render("advice.detectable")]
    if not all(standing.ships for standing in members):
        parts.append(render("advice.stopped"))
    if not is_relearned:
        parts.append(render("advice.relearn"))
    return parts


def _advice_on_clean(members: Sequence[Standing], *, is_relearned: bool) -> list[str]:
    """Return what to do next with checkpoints in which no leak was found."""
    parts = [render("advice.no_leak_found")]
    open_tests = _open(members)

    if open_tests.commands:
        commands = [render("advice.command", audit=k) for k in open_tests.commands]
        parts.append(render("advice.not_run", commands=", ".join(commands)))
    if open_tests.unplanted:
        parts.append(render("advice.unplanted"))
    if open_tests.unanswered:
        attacks = [
            _with_names(attack, names)
            for attack, names in open_tests.unanswered.items()
        ]
        parts.append(render("advice.unanswered", attacks=", ".join(attacks)))

    if not is_relearned:
        parts.append(render("advice.relearn"))
    return parts


def _with_names(text: str, names: Sequence[str]) -> str:
    """Return a text with the checkpoints that it is of, if it is of some only."""
    if not names:
        return text
    return render("states.with_remark", text=text, remark=", ".join(names))


def _advice_on_untested(
    members: Sequence[Standing], *, is_relearned: bool
) -> list[str]:
    """Return what to do next with checkpoints whose memory was not tested."""
    ways = set()
    names_by_fault: dict[str, list[str]] = {}
    for standing in members:
        if not standing.faults:
            ways.add("give_alike" if standing.unclear else "give")
        for guard in standing.faults:
            names_by_fault.setdefault(guard.name, []).append(standing.name)

    parts = [render("advice.comparison")] if ways else []
    parts += [render(f"advice.{way}") for way in sorted(ways)]
    for fault in REMAINS:
        if fault in names_by_fault:
            names = _names_of_some(names_by_fault[fault], members)
            parts.append(_advice_on_fault(fault, names, is_relearned=is_relearned))
    return parts


def _advice_on_fault(fault: str, names: Sequence[str], *, is_relearned: bool) -> str:
    """Return what to do where a setup guard failed, and for which checkpoints."""
    key = f"advice.{fault}"
    if is_relearned and knows(f"{key}_relearned"):
        key = f"{key}_relearned"
    if not names:
        return render(key)
    return render("advice.of_some", names=", ".join(names), advice=render(key))


def _names_of_some(names: list[str], members: Sequence[Standing]) -> list[str]:
    """Return names of some of the checkpoints; nothing where it is all of them."""
    return names if len(names) < len(members) else []


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
    names_by_attack: dict[str, list[str]] = {}
    is_unplanted = False
    for standing in clean:
        for tried in standing.tried:
            if not tried.ran:
                commands[tried.audit] = None
            elif tried.outcome == "not tested" and about(tried.audit).needs_canaries:
                is_unplanted = True
            elif tried.outcome not in RESULTS[0]:
                names_by_attack.setdefault(tried.attack, []).append(standing.name)

    unanswered = {
        attack: _names_of_some(names, clean)
        for attack, names in names_by_attack.items()
    }
    return OpenTests(list(commands), is_unplanted, unanswered)


def checks(report: Report, standings: Sequence[Standing]) -> list[str]:
    """Return whether the audit's own checks held, and a line for each that did not.

    Questions about the listed rows, which a check asks, stand last.

    The lines say what happened, and what that does to the states. Not that something
    FAILED: next to a checkpoint that passes, readers took that for the checkpoint.
    """
    failed = [guard for guard in report.guards if guard.passed is False]
    lines = [_checks_counted(report.guards)]
    for failed_check in failed_checks(failed, standings):
        lines.append(failed_check.sentence)

    if failed:
        lines.append(" ".join([render("states.doubts"), *_doubts(failed, standings)]))
    return [*lines, *_questions(standings)]


def _checks_counted(guards: Sequence[Guard]) -> str:
    """Return how many checks did not hold, or gave a warning."""
    count = len(guards)
    n_failed = sum(guard.passed is False for guard in guards)
    n_warnings = sum(guard.passed is None for guard in guards)
    if n_failed:
        return render("states.checks_failed", failed=n_failed, count=count)
    if not guards:
        return render("page.guards_none")
    if n_warnings:
        return render("states.checks_warned", warnings=n_warnings, count=count)
    return render("states.checks_held", count=count)


@dataclass(frozen=True)
class FailedCheck:
    """A check that did not hold.

    Attributes
    ----------
    names
        Checkpoints that it did not hold for; empty: it is of none alone.
    is_void
        Whether nothing can be concluded about any of them.
    sentence
        What happened, and what follows.
    """

    names: tuple[str, ...]
    is_void: bool
    sentence: str


def failed_checks(
    failed: Iterable[Guard], standings: Sequence[Standing]
) -> list[FailedCheck]:
    """Return the checks that did not hold, each once for all of its checkpoints."""
    untested = {
        standing.name
        for standing in standings
        if standing.faults and standing.state == "NOT TESTED"
    }
    failed_checks = []
    for name, guards in grouped(failed, lambda guard: guard.name).items():
        names = dict.fromkeys(guard.checkpoint for guard in guards)
        named = tuple(name for name in names if name)
        is_void = bool(named) and untested.issuperset(named)
        sentence = _failed_sentence(name, guards, named, is_void=is_void)
        failed_checks.append(FailedCheck(named, is_void, sentence))
    return failed_checks


def _failed_sentence(
    name: str, guards: Sequence[Guard], names: Sequence[str], *, is_void: bool
) -> str:
    """Return what happened where a check did not hold, and what follows.

    A check without a sentence of its own says what it found.
    """
    details = " ".join(dict.fromkeys(guard.detail for guard in guards)).rstrip(".")
    key = f"failed.{name}"
    if not knows(key):
        key = "failed_check.other_of_some" if names else "failed_check.other"
        return render(key, names=names, details=details)

    is_single = len(names) == 1
    if not is_single and knows(f"{key}_several"):
        key = f"{key}_several"
    sentence = render(key, names=names, guards=guards, details=details)
    if not is_void:
        return sentence
    key = "failed_check.follows" if is_single else "failed_check.follows_of_several"
    return f"{sentence} {render(key)}"


def _doubts(failed: Sequence[Guard], standings: Sequence[Standing]) -> list[str]:
    """Return what failed checks leave of the verdicts on other checkpoints.

    Checkpoints of which nothing can be concluded are said with their check.
    """
    void: set[str] = set()
    for failed_check in failed_checks(failed, standings):
        if failed_check.is_void:
            void.update(failed_check.names)

    # Checkpoints by attacks with and without a result, and by whether they pass.
    verdicts: dict[tuple[tuple[str, ...], tuple[str, ...], bool], list[str]] = {}
    for standing in standings:
        tested, untested = (_attacks_with(standing, outcomes) for outcomes in RESULTS)
        if untested and standing.name not in void:
            verdict = (tested, untested, standing.ships)
            verdicts.setdefault(verdict, []).append(standing.name)

    doubts = []
    for (tested, untested, ships), names in verdicts.items():
        key = "states.doubt_though_passed" if ships else "states.doubt"
        if not tested:
            key = "states.doubt_of_all"
        doubts.append(render(key, names=names, tested=tested, open=untested))
    return doubts


def _attacks_with(standing: Standing, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Return the attacks that came to one of these outcomes, in words."""
    return tuple(
        tried.attack
        for outcome in outcomes
        for tried in standing.tally.get(outcome, ())
    )


def _questions(standings: Sequence[Standing]) -> list[str]:
    """Return the questions about the listed rows, each with its checkpoints."""
    names_by_question: dict[str, list[str]] = {}
    for standing in standings:
        if standing.question is not None:
            names = names_by_question.setdefault(standing.question.detail, [])
            names.append(standing.name)

    return [
        f"{', '.join(names)}: {question}"
        for question, names in names_by_question.items()
    ]


def reading(report: Report, standings: Sequence[Standing]) -> str:
    """Return how to read the sentences of these checkpoints, with every unit."""
    units_used = {
        standing.led_by.unit
        for standing in standings
        if standing.led_by is not None and standing.led_by.claim != "not_tested"
    }
    parts = [render("states.reading", level=level(report))]
    for unit in UNITS_SHOWN:
        if unit in units_used:
            parts.append(render(f"states.unit_{unit}"))
    parts.append(render("states.reading_of_counts"))
    return ". ".join(parts)


def level(report: Report) -> str:
    """Return the level that a claim of a report must pass, in words."""
    tests = int(report.settings.get(TESTS, 0))
    if tests == 0:
        return render("states.level_of_none")
    if tests == 1:
        return render("states.level_of_one")
    return render("states.level", tests=tests, limit=_first_limit(tests))


def _first_limit(tests: int) -> Decimal:
    """Return the level of the first step of Holm's correction.

    Three digits, rounded down: what is shown is no looser than what is applied.
    """
    down = Context(prec=3, rounding=ROUND_FLOOR)
    return down.create_decimal(repr(ALPHA / tests))


def surety(standings: Sequence[Standing]) -> str:
    """Return how sure the first screen is, as chances of a false and a missed claim.

    A corrected p bounds how often a report in which nothing leaked would claim as much.
    """
    names_by_count: dict[int, list[str]] = {}
    for standing in standings:
        led_by = standing.led_by if standing.detections else None
        if led_by and led_by.family == "primary" and led_by.p_adjusted is not None:
            count = max(1, math.ceil(1000 * led_by.p_adjusted))
            names_by_count.setdefault(count, []).append(standing.name)

    parts = []
    if names_by_count:
        groups = [
            {"count": count, "names": names}
            for count, names in sorted(names_by_count.items())
        ]
        parts.append(render("states.surety", groups=groups))
    if _has_detectable_effect(standings):
        parts.append(render("states.surety_of_clean"))
    return "; ".join(parts)


def _has_detectable_effect(standings: Sequence[Standing]) -> bool:
    """Return whether an effect could have been detected where no leak was found."""
    for standing in standings:
        if standing.state != "NO LEAK FOUND":
            continue
        for tried in standing.tally.get("not shown", ()):
            if tried.finding is not None and tried.finding.mde is not None:
                return True
    return False


def gate(standings: Sequence[Standing]) -> str:
    """Return the verdict of the gate without rules."""
    parts = []
    stopped = [_stopped_name(standing) for standing in standings if not standing.ships]
    if stopped:
        parts.append(render("states.gate_stops", names=", ".join(stopped)))

    passed = [_passed_name(standing) for standing in standings if standing.ships]
    if passed:
        parts.append(render("states.gate_passes", names=", ".join(passed)))

    without_result = {"void", "confounded", "not tested"}
    if any(one.ships and without_result & {*one.tally} for one in standings):
        parts.append(render("states.gate_ignores"))
    return "; ".join(parts)


def _stopped_name(standing: Standing) -> str:
    """Return a checkpoint that the gate stops; with its state if it was not tested."""
    if standing.state != "NOT TESTED":
        return standing.name
    return _with_names(standing.name, [state_name("NOT TESTED")])


def _passed_name(standing: Standing) -> str:
    """Return a checkpoint that the gate passes, and why if something was detected."""
    if not standing.detections:
        return standing.name
    return _with_names(standing.name, [render("states.gate_less_likely")])


def uncovered(tried: Sequence[AttackSummary], standings: Sequence[Standing]) -> str:
    """Return what was not tested, and what this tool cannot test."""
    is_relearned = relearned(standings)
    sentences_of_it = []
    parts = _uncovered_here(tried, standings)
    if parts:
        sentences_of_it.append(render("states.uncovered", parts="; ".join(parts)))

    if is_relearned:
        sentences_of_it.append(render("states.beyond_relearned"))
    else:
        sentences_of_it.append(render("states.uncovered_relearning"))
        sentences_of_it.append(render("states.beyond"))
    return " ".join(sentences_of_it)


def _uncovered_here(
    tried: Sequence[AttackSummary], standings: Sequence[Standing]
) -> list[str]:
    """Return what this tool can test, but has no valid result of in this report."""
    parts = []
    untested = [one.name for one in standings if one.state == "NOT TESTED"]
    if untested:
        parts.append(render("states.uncovered_memory", names=untested))

    if all(attack["state"] != "tested" for attack in tried):
        has_faults = any(standing.faults for standing in standings)
        key = "uncovered_all_by_check" if has_faults else "uncovered_all"
        parts.append(render(f"states.{key}"))
        return parts

    untried = [attack["name"] for attack in tried if not attack["on"]]
    if untried:
        parts.append(", ".join(untried))
    return parts
