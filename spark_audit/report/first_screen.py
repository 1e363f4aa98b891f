"""Sentences of the first screen: the answer, the audit's checks, how sure it is.

``checkpoint_states`` are those of ``checkpoint_states.py``, the worst first. A check is
a guard: it held (``passed`` is True), failed (False), or gave a warning (None). The
words are sentences of ``states.*``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from typing import NamedTuple

from spark_audit.audits import about
from spark_audit.audits.claims import ALPHA, TESTS_SETTING
from spark_audit.names import BASE
from spark_audit.report.advice import with_names
from spark_audit.report.attacks import WITHOUT_RESULT, AttackSummary
from spark_audit.report.checkpoint_states import (
    SHAPES,
    CheckpointState,
    State,
    key_of,
    state_name,
)
from spark_audit.report.copies import GivenAndCopies
from spark_audit.report.relearning import can_be_relearned, relearned
from spark_audit.report.tried import CONCLUSIVE, INCONCLUSIVE, Outcome
from spark_audit.results import Guard, Report, grouped
from spark_audit.sentences import knows, render

UNITS_SHOWN = ("nats", "bits", "AUC")
"""Units that the first screen explains if it uses them."""

MAX_NAMES_IN_ANSWER = 2
"""Most checkpoints of a state that the answer names."""

MAX_STATES_WITH_TESTED = 2
"""Most states that each state their number of tests; with more, one number serves all.
"""


def answer(checkpoint_states: Sequence[CheckpointState]) -> str:
    """Return the report in one line: the number of checkpoints in each state.

    It also states the number of tested attacks. Without it, readers took a checkpoint
    for cleared although most attacks were not run. Copies of checkpoints are counted
    apart.
    """
    split = GivenAndCopies.of(checkpoint_states)
    text = _answer_on_given(split.given)
    if not split.copies:
        return text

    by_state = grouped(split.copies, lambda copy: copy.state)
    counts = []
    for state, copies in by_state.items():
        counts.append(
            render("states.count_in_state", count=len(copies), state=state_name(state))
        )
    return render("states.answer_with_copies", answer=text, copies=", ".join(counts))


def _answer_on_given(checkpoint_states: Sequence[CheckpointState]) -> str:
    """Return the number of checkpoints, as they were given, in each state."""
    by_state = grouped(
        checkpoint_states, lambda checkpoint_state: checkpoint_state.state
    )
    is_only = len(checkpoint_states) == 1
    # Many states would repeat the number of tested attacks, so it follows all of them.
    is_tested_said_once = len(by_state) > MAX_STATES_WITH_TESTED
    states = []
    for state, members in by_state.items():
        states.append(
            _state_with_count(
                state, members, is_only=is_only, says_tested=not is_tested_said_once
            )
        )
    states_text = ", ".join(states)
    if is_only:
        return render(
            "states.answer_of_one", name=checkpoint_states[0].name, state=states_text
        )

    text = render("states.answer", count=len(checkpoint_states), states=states_text)
    tested = _tested_in_words(checkpoint_states)
    if is_tested_said_once and tested:
        return f"{text}; {tested}"
    return text


def _tested_in_words(checkpoint_states: Sequence[CheckpointState]) -> str:
    """Return how many of the attacks gave a result; empty: all did."""
    # All checkpoints have the same attacks.
    n_attacks = len(checkpoint_states[0].tried)
    counts = []
    for checkpoint_state in checkpoint_states:
        # The state NOT TESTED already says so.
        if checkpoint_state.state != "NOT TESTED":
            counts.append(_n_tested(checkpoint_state))
    if not counts or min(counts) == n_attacks:
        return ""

    fewest = min(counts)
    most = max(counts)
    tested = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return render("states.tested", tested=tested, attacks=n_attacks)


def _state_with_count(
    state: State,
    members: Sequence[CheckpointState],
    *,
    is_only: bool,
    says_tested: bool,
) -> str:
    """Return a state with its checkpoints and the number of attacks on them.

    Parameters
    ----------
    members
        The checkpoints in this state.
    is_only
        Whether the report has one checkpoint, which is named elsewhere.
    says_tested
        Whether to state the number of tested attacks.
    """
    text = state_name(state)
    remarks = []
    if not is_only:
        text = render("states.count_in_state", count=len(members), state=text)
        # The matrix names more checkpoints.
        if len(members) <= MAX_NAMES_IN_ANSWER:
            remarks.append(
                ", ".join(checkpoint_state.name for checkpoint_state in members)
            )

    tested = _tested_in_words(members)
    if says_tested and tested:
        remarks.append(tested)
    if not remarks:
        return text
    return render("states.with_remark", text=text, remark="; ".join(remarks))


def _n_tested(checkpoint_state: CheckpointState) -> int:
    """Return the number of attacks with a result on a checkpoint."""
    return len(_attacks_with(checkpoint_state, CONCLUSIVE))


def headline(report: Report, checkpoint_states: Sequence[CheckpointState]) -> str:
    """Return the answer, with a remark if the base model is missing."""
    # Without a base fewer leaks can be found, which belongs to the answer.
    text = answer(checkpoint_states)
    if lacks_base(report):
        text += render("states.no_base")
    return text


def page_lead(report: Report) -> str:
    """Return the line on a report's comparison: manifest, reference and baseline."""
    sentences = [render("page.lead", name=report.manifest.name)]

    reference = report.settings.get("reference")
    if reference:
        sentences.append(render("page.lead_reference", reference=reference))

    # Leave out a baseline that nothing was compared with.
    baseline = report.settings.get("baseline")
    if report.contrasts and baseline:
        sentences.append(render("page.lead_baseline", baseline=baseline))
    return " ".join(sentences)


def lacks_base(report: Report) -> bool:
    """Return whether a base model is named, and no audit could compare with it.

    Audits of a series alone compare its stages with each other, and an endpoint that
    gives only text, or a file of text, is compared with nothing.
    """
    if all(checkpoint.is_text for checkpoint in report.checkpoints):
        return False
    if not report.settings.get("reference"):
        return False
    if any(checkpoint.name == BASE for checkpoint in report.checkpoints):
        return False

    audits = {row.audit for row in report.results}
    return any(not about(audit).of_series for audit in audits)


def urgent_remarks(
    report: Report, checkpoint_states: Sequence[CheckpointState]
) -> list[str]:
    """Return the remarks that come before everything else on the first screen.

    They are on a missing base model, and on checkpoints whose trained rows fit no
    better than held-out ones.
    """
    remarks = []
    if lacks_base(report):
        remarks.append(render("terminal.no_base"))

    names = []
    for checkpoint_state in checkpoint_states:
        if checkpoint_state.question is not None:
            names.append(checkpoint_state.name)
    if names:
        remarks.append(render("states.question", names=names))
    return remarks


def meanings() -> dict[State, str]:
    """Return the meaning of each state."""
    return {state: render(f"state.{key_of(state)}") for state in SHAPES}


def checks(report: Report, checkpoint_states: Sequence[CheckpointState]) -> list[str]:
    """Return whether the audit's own checks held, and a line for each that did not.

    Questions about the listed rows, which a check asks, stand last.

    The lines say what happened and how that changes the states. They avoid the word
    FAILED, which readers took for the result of the checkpoint.
    """
    failed = [guard for guard in report.guards if guard.passed is False]
    lines = [_checks_counted(report.guards)]
    for failed_check in failed_checks(failed, checkpoint_states):
        lines.append(failed_check.sentence)

    # The consequences of all failed checks for the verdicts are stated once.
    if failed:
        lines.append(
            " ".join([render("states.doubts"), *_doubts(failed, checkpoint_states)])
        )
    return [*lines, *_questions(checkpoint_states)]


def _checks_counted(guards: Sequence[Guard]) -> str:
    """Return the numbers of checks that did not hold or gave a warning, in words."""
    count = len(guards)
    n_failed = 0
    n_warnings = 0
    for guard in guards:
        n_failed += guard.passed is False
        n_warnings += guard.passed is None

    # Failures come before warnings, and these before checks that held.
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
        Checkpoints that it did not hold for; empty: it is on the whole report.
    is_void
        Whether nothing can be concluded about any of them.
    sentence
        What happened, and what follows.
    """

    names: tuple[str, ...]
    is_void: bool
    sentence: str


def failed_checks(
    failed: Iterable[Guard], checkpoint_states: Sequence[CheckpointState]
) -> list[FailedCheck]:
    """Return the checks that did not hold, each once for all of its checkpoints."""
    untested = set()
    for checkpoint_state in checkpoint_states:
        if checkpoint_state.faults and checkpoint_state.state == "NOT TESTED":
            untested.add(checkpoint_state.name)

    failed_checks = []
    for check, guards in grouped(failed, lambda guard: guard.name).items():
        # A check of the whole report names no checkpoint.
        checkpoints = dict.fromkeys(guard.checkpoint for guard in guards)
        names = tuple(checkpoint for checkpoint in checkpoints if checkpoint)
        is_void = bool(names) and untested.issuperset(names)
        sentence = _failed_sentence(check, guards, names, is_void=is_void)
        failed_checks.append(FailedCheck(names, is_void, sentence))
    return failed_checks


def _failed_sentence(
    name: str, guards: Sequence[Guard], names: Sequence[str], *, is_void: bool
) -> str:
    """Return the sentence on a failed check and its consequences.

    A check without such a sentence states its result.
    """
    # A check often says the same about several checkpoints; once is enough.
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

    # Nothing can be concluded about any of them.
    key = "failed_check.follows" if is_single else "failed_check.follows_of_several"
    return f"{sentence} {render(key)}"


def _doubts(
    failed: Sequence[Guard], checkpoint_states: Sequence[CheckpointState]
) -> list[str]:
    """Return the consequences of failed checks for verdicts on other checkpoints.

    Checkpoints without any conclusion are named with their check.
    """
    void_names: set[str] = set()
    for failed_check in failed_checks(failed, checkpoint_states):
        if failed_check.is_void:
            void_names.update(failed_check.names)

    # Checkpoints with an equal verdict share a sentence.
    names_by_verdict: dict[_DoubtfulVerdict, list[str]] = {}
    for checkpoint_state in checkpoint_states:
        verdict = _DoubtfulVerdict(
            with_result=_attacks_with(checkpoint_state, CONCLUSIVE),
            without_result=_attacks_with(checkpoint_state, INCONCLUSIVE),
            passes=checkpoint_state.ships,
        )
        if verdict.without_result and checkpoint_state.name not in void_names:
            names_by_verdict.setdefault(verdict, []).append(checkpoint_state.name)

    doubts = []
    for verdict, names in names_by_verdict.items():
        key = "states.doubt"
        if not verdict.with_result:
            key = "states.doubt_of_all"
        elif verdict.passes:
            key = "states.doubt_though_passed"
        doubts.append(
            render(
                key,
                names=names,
                tested=verdict.with_result,
                open=verdict.without_result,
            )
        )
    return doubts


class _DoubtfulVerdict(NamedTuple):
    """A verdict that rests on some of the attacks only.

    Attributes
    ----------
    with_result, without_result
        The attacks, in words, that gave a result and that gave none when they ran.
    passes
        Whether the gate without rules lets the checkpoint pass.
    """

    with_result: tuple[str, ...]
    without_result: tuple[str, ...]
    passes: bool


def _attacks_with(
    checkpoint_state: CheckpointState, outcomes: Sequence[Outcome]
) -> tuple[str, ...]:
    """Return the attacks with one of these outcomes, in words."""
    attacks = []
    for outcome in outcomes:
        for tried in checkpoint_state.tally.get(outcome, ()):
            attacks.append(tried.attack)
    return tuple(attacks)


def _questions(checkpoint_states: Sequence[CheckpointState]) -> list[str]:
    """Return the questions about the listed rows, each with its checkpoints."""
    # Ask a question once for all of its checkpoints.
    names_by_question: dict[str, list[str]] = {}
    for checkpoint_state in checkpoint_states:
        if checkpoint_state.question is not None:
            names = names_by_question.setdefault(checkpoint_state.question.detail, [])
            names.append(checkpoint_state.name)

    questions = []
    for question, names in names_by_question.items():
        questions.append(f"{', '.join(names)}: {question}")
    return questions


def reading(report: Report, checkpoint_states: Sequence[CheckpointState]) -> str:
    """Return how to read the sentences of these checkpoints, with every unit."""
    units_used = set()
    for checkpoint_state in checkpoint_states:
        led_by = checkpoint_state.led_by  # the finding that its state rests on
        if led_by is not None and led_by.claim != "not_tested":
            units_used.add(led_by.unit)

    # Units have a fixed order, whichever checkpoint used one first.
    sentences = [render("states.reading", level=level(report))]
    for unit in UNITS_SHOWN:
        if unit in units_used:
            sentences.append(render(f"states.unit_{unit}"))
    sentences.append(render("states.reading_of_counts"))
    return ". ".join(sentences)


def level(report: Report) -> str:
    """Return the level that a claim of a report must pass, in words."""
    tests = int(report.settings.get(TESTS_SETTING, 0))
    if tests == 0:
        return render("states.level_of_none")
    if tests == 1:
        return render("states.level_of_one")
    return render("states.level", tests=tests, limit=_first_limit(tests))


def _first_limit(tests: int) -> Decimal:
    """Return the level of the first step of Holm's correction.

    It has three digits, rounded down, so that it is never looser than the applied one.
    """
    down = Context(prec=3, rounding=ROUND_FLOOR)
    return down.create_decimal(repr(ALPHA / tests))


def surety(checkpoint_states: Sequence[CheckpointState]) -> str:
    """Return the chances of a false and of a missed claim of the first screen.

    A corrected p bounds the chance that a report without a leak claims as much. It is
    stated as a count: of 1,000 such reports, so many would.
    """
    names_by_count: dict[int, list[str]] = {}  # of 1,000 reports -> checkpoints
    for checkpoint_state in checkpoint_states:
        led_by = checkpoint_state.led_by
        if not checkpoint_state.detections or led_by is None:
            continue

        # Only primary tests are corrected over the report.
        if led_by.family == "primary" and led_by.p_adjusted is not None:
            # Rounded up, since p is a bound: never 0 of 1,000.
            count = max(1, math.ceil(1000 * led_by.p_adjusted))
            names_by_count.setdefault(count, []).append(checkpoint_state.name)

    clauses = []
    counts_with_names = []
    for count, names in sorted(names_by_count.items()):
        counts_with_names.append({"count": count, "names": names})
    if counts_with_names:
        clauses.append(render("states.surety", groups=counts_with_names))
    if _has_detectable_effect(checkpoint_states):
        clauses.append(render("states.surety_of_clean"))
    return "; ".join(clauses)


def _has_detectable_effect(checkpoint_states: Sequence[CheckpointState]) -> bool:
    """Return whether an effect could have been detected where no leak was found."""
    for checkpoint_state in checkpoint_states:
        if checkpoint_state.state != "NO LEAK FOUND":
            continue

        for tried in checkpoint_state.tally.get("not shown", ()):
            if tried.finding is not None and tried.finding.mde is not None:
                return True
    return False


def gate(checkpoint_states: Sequence[CheckpointState]) -> str:
    """Return the verdict of the gate without rules."""
    stopped = []
    passed = []
    ignores_any = False
    for checkpoint_state in checkpoint_states:
        if not checkpoint_state.is_judged:
            continue
        if checkpoint_state.ships:
            passed.append(_passed_name(checkpoint_state))
            ignores_any |= any(
                outcome in checkpoint_state.tally for outcome in WITHOUT_RESULT
            )
        else:
            stopped.append(_stopped_name(checkpoint_state))

    clauses = []
    if stopped:
        clauses.append(render("states.gate_stops", names=", ".join(stopped)))
    if passed:
        clauses.append(render("states.gate_passes", names=", ".join(passed)))
    # Readers of a pass must know what was not tested.
    if ignores_any:
        clauses.append(render("states.gate_ignores"))
    return "; ".join(clauses)


def _stopped_name(checkpoint_state: CheckpointState) -> str:
    """Return the name of a stopped checkpoint; with its state if it was not tested."""
    if checkpoint_state.state != "NOT TESTED":
        return checkpoint_state.name
    return with_names(checkpoint_state.name, [state_name("NOT TESTED")])


def _passed_name(checkpoint_state: CheckpointState) -> str:
    """Return the name of a passed checkpoint, with the reason if it has a detection."""
    if not checkpoint_state.detections:
        return checkpoint_state.name
    return with_names(checkpoint_state.name, [render("states.gate_less_likely")])


def uncovered(
    tried: Sequence[AttackSummary], checkpoint_states: Sequence[CheckpointState]
) -> str:
    """Return the sentences on what was not tested and what this tool cannot test."""
    sentences = []
    clauses = _uncovered_here(tried, checkpoint_states)
    if clauses:
        sentences.append(render("states.uncovered", parts="; ".join(clauses)))

    if relearned(checkpoint_states):
        sentences.append(render("states.beyond_relearned"))
    else:
        if can_be_relearned(checkpoint_states):
            sentences.append(render("states.uncovered_relearning"))
        sentences.append(render("states.beyond"))
    return " ".join(sentences)


def _uncovered_here(
    tried: Sequence[AttackSummary], checkpoint_states: Sequence[CheckpointState]
) -> list[str]:
    """Return clauses on attacks of this tool without a valid result here."""
    clauses = []
    untested_names = []
    for checkpoint_state in checkpoint_states:
        if checkpoint_state.state == "NOT TESTED":
            untested_names.append(checkpoint_state.name)
    if untested_names:
        clauses.append(render("states.uncovered_memory", names=untested_names))

    # If no attack was tested, naming each is of no use.
    if all(attack["state"] != "tested" for attack in tried):
        if any(checkpoint_state.faults for checkpoint_state in checkpoint_states):
            clauses.append(render("states.uncovered_all_by_check"))
        else:
            clauses.append(render("states.uncovered_all"))
        return clauses

    # An attack with a size of its test, ``on``, has a figure at least.
    attacks_without_figure = []
    for attack in tried:
        if not attack["on"]:
            attacks_without_figure.append(attack["name"])
    if attacks_without_figure:
        clauses.append(", ".join(attacks_without_figure))
    return clauses
