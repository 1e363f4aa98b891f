"""A report at a glance: the answer, the matrix, and what to do next.

One object holds all of it. The terminal, the page, Markdown and a notebook show it in
the same order, with the same words and numbers, so that no format claims more than
another.

A further line is a field of :class:`Glance`, filled in :func:`glance_of` and shown by
each writer; a further text behind a label is yielded by :func:`_more` alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_audit.audits import about, in_order
from spark_audit.audits.claims import TESTS_SETTING
from spark_audit.audits.first_answers import FirstAnswer
from spark_audit.audits.supervision_guards import is_said_first, supervision_warnings
from spark_audit.names import BASE, original_of
from spark_audit.report import first_screen
from spark_audit.report.advice import only_audit_of
from spark_audit.report.checkpoint_states import SHAPES, CheckpointState, State, key_of
from spark_audit.report.consequences import Consequence, main_consequences
from spark_audit.report.figures_line import SEPARATOR, sides_of
from spark_audit.report.matrix import (
    Matrix,
    effect_text,
    few_names,
    matrix_of,
    names_or_count,
)
from spark_audit.report.relearning import can_be_relearned, relearned
from spark_audit.report.surety import (
    false_reports_of_absence,
    has_limits,
    names_by_false_reports,
    surety_line,
)
from spark_audit.report.tried import CONCLUSIVE
from spark_audit.results import Guard, Report, Row, grouped
from spark_audit.sentences import capitalised, knows, render

MAX_ANSWERS = 5
"""Most checkpoints that an audit answers in words at a glance."""

ANSWERS_OF_MORE = 4
"""Checkpoints that it answers in words if there are more; the others are counted."""

SCALE_FACTORS = (1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0)
"""Ends of the scale that intervals are drawn on: times as likely per token."""

MAX_NAMED_AS_PASSED = 2
"""Most passed checkpoints that the gate's line names next to stopped ones."""


@dataclass(frozen=True)
class ExposedKind:
    """A kind of identifiers that moved most in a checkpoint, as a bar.

    Attributes
    ----------
    checkpoint, kind
        The checkpoint, and the type of the identifiers.
    effect
        The change in words.
    low, value, high
        Length of the bar and ends of its interval, from 0, no effect, to 1, the end of
        the longest interval.
    is_less_likely
        Whether training made them less likely, not more.
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
        Warnings on listed rows that training did not see; they come before any state.
    headline
        Number of checkpoints in each state.
    basis
        The basis of the answer: groups, tests, and whether the base was given.
    alarms
        Remarks to read first: checks that change a conclusion, and questions about the
        rows that were trained on.
    matrix
        Checkpoints and attacks.
    answers
        Sentences of audits that answer their question in words.
    scale_factor
        End of the scale on which their intervals are drawn, times as likely; 0: none
        is drawn.
    consequences
        Sentences: the worst result first, then the limit of what was not found.
    exposed
        Kinds of identifiers that are most exposed in the worst checkpoint.
    next_steps
        State -> what to do next. The first stands at a glance.
    gate
        The result of ``spark-audit gate`` without rules.
    surety
        The chance of such a result without a leak, or the confidence of "at most".
    not_tested
        Attacks without a result, and attacks that this tool lacks.
    checks
        Whether the audit's own checks held, and those that did not.
    more
        Further text with labels: the figures of the worst result, more steps, commands
        of attacks that were not run, and the basis of the words.
    """

    first_lines: tuple[str, ...]
    headline: str
    basis: str
    alarms: tuple[str, ...]
    matrix: Matrix
    answers: tuple[FirstAnswer, ...]
    scale_factor: float
    consequences: tuple[Consequence, ...]
    exposed: tuple[ExposedKind, ...]
    next_steps: dict[State, str]
    gate: str
    surety: str
    not_tested: str
    checks: str
    more: tuple[tuple[str, str], ...]

    @property
    def scale_end(self) -> float:
        """Return the end of the scale of intervals, nats per token."""
        return math.log(self.scale_factor)

    @property
    def next_state(self) -> State:
        """Return the worst state, which the first step is for."""
        return next(iter(self.next_steps))

    @property
    def next_label(self) -> str:
        """Return the label of the first step, with the sign of its state."""
        return label_of_step(self.next_state)

    @property
    def next_step(self) -> str:
        """Return the step for the worst state."""
        return next(iter(self.next_steps.values()))

    @property
    def exposed_label(self) -> str:
        """Return whether the exposed kinds became more or less likely, in words."""
        if any(kind.is_less_likely for kind in self.exposed):
            return render("glance.less_likely")
        return render("glance.most_exposed")

    @property
    def whose_kinds(self) -> str:
        """Return the line that names the checkpoint of the kinds as exploratory."""
        return render("glance.whose_kinds", checkpoint=self.exposed[0].checkpoint)


def glance_of(
    report: Report, all_checkpoint_states: Sequence[CheckpointState]
) -> Glance | None:
    """Return a report at a glance; None where no audit of it attacks anything.

    Parameters
    ----------
    all_checkpoint_states
        The state of each of its checkpoints, the worst first.
    """
    if not all_checkpoint_states:
        return None

    # Make both first, since the further text depends on them.
    next_steps = dict(_next_steps(all_checkpoint_states))
    consequences = tuple(main_consequences(all_checkpoint_states))
    answers_by_audit = answers_of(report)
    answers: list[FirstAnswer] = []
    for answers_of_audit in answers_by_audit.values():
        answers += _first_answers(answers_of_audit)
    return Glance(
        first_lines=tuple(supervision_warnings(report.guards)),
        headline=first_screen.headline(report, all_checkpoint_states),
        basis=_basis(report, all_checkpoint_states),
        alarms=tuple(_alarms(report, all_checkpoint_states)),
        matrix=matrix_of(all_checkpoint_states),
        answers=tuple(answers),
        scale_factor=_scale_factor(answers),
        consequences=tuple(_not_answered(consequences, answers_by_audit)),
        exposed=tuple(_exposed_kinds(all_checkpoint_states)),
        next_steps=next_steps,
        gate=_gate(all_checkpoint_states),
        surety=surety_line(all_checkpoint_states),
        not_tested=_not_tested(all_checkpoint_states),
        checks=_checks(report),
        more=tuple(_more(all_checkpoint_states, consequences, next_steps)),
    )


def answers_of(report: Report) -> dict[str, Sequence[FirstAnswer]]:
    """Return what audits of the report answer in words, by audit, in their order."""
    answers = {}
    for audit in in_order({row.audit for row in report.results}):
        answers[audit] = about(audit).answers(report)
    return answers


def _first_answers(answers: Sequence[FirstAnswer]) -> list[FirstAnswer]:
    """Return the answers of an audit that a glance has room for.

    The last one names the verdicts on all other checkpoints, so that none is hidden.
    """
    with_verdict = [answer for answer in answers if answer.verdict]
    if len(with_verdict) <= MAX_ANSWERS:
        return [*answers]

    left_out = with_verdict[ANSWERS_OF_MORE:]
    verdicts = []
    for verdict, members in grouped(left_out, lambda answer: answer.verdict).items():
        names = names_or_count([answer.label for answer in members])
        verdicts.append(render("glance.more_of_verdict", verdict=verdict, names=names))
    label = render("glance.more_answers", count=len(left_out))
    text = render("glance.see_table", verdicts="; ".join(verdicts))
    shown = [answer for answer in answers if answer not in left_out]
    return [*shown, FirstAnswer(label, text)]


def _scale_factor(answers: Sequence[FirstAnswer]) -> float:
    """Return the end of the scale that all drawn intervals and bands have room on."""
    reach = 0.0
    for answer in answers:
        if answer.is_drawn:
            ends = (answer.low or 0.0, answer.high or 0.0, 1.2 * answer.band)
            reach = max(reach, *(abs(end) for end in ends))
    if not reach:
        return 0.0

    for factor in SCALE_FACTORS:
        if math.log(factor) >= reach:
            return factor
    return float(10 ** math.ceil(reach / math.log(10)))


def _not_answered(
    consequences: Sequence[Consequence],
    answers_by_audit: Mapping[str, Sequence[FirstAnswer]],
) -> Iterator[Consequence]:
    """Yield the consequences that no answer of their audit has stated already.

    What a copy brings back is stated with its original.
    """
    all_answers = [
        answer for answers in answers_by_audit.values() for answer in answers
    ]
    for consequence in consequences:
        # One of no audit says of checkpoints that nothing is known.
        answers = answers_by_audit.get(consequence.audit, all_answers)
        answered = {answer.label for answer in answers if answer.verdict}
        if any(original_of(name) not in answered for name in consequence.names):
            yield consequence


def label_of_step(state: State) -> str:
    """Return the label of a step, with the sign of its state."""
    return f"{render('page.next')} {SHAPES[state]}"


def _basis(report: Report, all_checkpoint_states: Sequence[CheckpointState]) -> str:
    """Return the line on groups and tests, and on a missing base."""
    facts = []
    if all(checkpoint.is_text for checkpoint in report.checkpoints):
        facts.append(render("glance.text_alone"))
    elif all(checkpoint.name != BASE for checkpoint in report.checkpoints):
        facts.append(render("glance.no_base"))

    trained, held_out = _groups(all_checkpoint_states)
    if trained is not None and held_out is not None:
        facts.append(render("glance.groups", trained=trained, held_out=held_out))

    n_tests = int(report.settings.get(TESTS_SETTING, 0))
    if n_tests == 1:
        facts.append(render("glance.test", tests=n_tests))
    elif n_tests:
        facts.append(render("glance.tests", tests=n_tests))
    return SEPARATOR.join(facts)


def _groups(
    all_checkpoint_states: Sequence[CheckpointState],
) -> tuple[int | None, int | None]:
    """Return the numbers of trained and held-out groups in the test of memory."""
    # All checkpoints are compared on the same groups, so any of them will do.
    for checkpoint_state in all_checkpoint_states:
        for tried in checkpoint_state.tried:
            if tried.finding is not None and about(tried.audit).memory_metric:
                return sides_of(tried.finding)
    return None, None


def _alarms(
    report: Report, all_checkpoint_states: Sequence[CheckpointState]
) -> Iterator[str]:
    """Yield remarks that change a conclusion: questions on rows, and failed checks."""
    yield from first_screen.urgent_remarks(report, all_checkpoint_states)

    failed = []
    for guard in report.guards:
        # Skip remarks that ``Glance.first_lines`` already contains.
        if guard.passed is False and not is_said_first(guard):
            failed.append(guard)
    for failed_check in first_screen.failed_checks(failed, all_checkpoint_states):
        yield failed_check.sentence


def _exposed_kinds(
    all_checkpoint_states: Sequence[CheckpointState],
) -> list[ExposedKind]:
    """Return the most exposed kinds of the first checkpoint that exposes any."""
    for checkpoint_state in all_checkpoint_states:
        # A bar without an interval would suggest too much certainty.
        rows = [row for row in checkpoint_state.exposed if row.ends is not None]
        if rows:
            return _bars(checkpoint_state.name, rows)
    return []


def _bars(checkpoint: str, rows: Sequence[Row]) -> list[ExposedKind]:
    """Return rows as bars on a common scale."""
    longest = 0.0
    for row in rows:
        for end in row.ends or ():
            longest = max(longest, abs(end))

    kinds = []
    for row in rows:
        if row.value is None or row.ends is None:
            continue

        # Bars begin at 0, so order both ends by their distance from 0. The type is
        # exposed: its interval does not hold 0.
        near, far = sorted(abs(end) for end in row.ends)
        kinds.append(
            ExposedKind(
                checkpoint=checkpoint,
                kind=row.group_value,
                # A fall of NLL is an effect above 0: likelier.
                effect=effect_text(row.audit, -row.value, row.unit),
                low=near / longest,
                value=abs(row.value) / longest,
                high=far / longest,
                is_less_likely=row.value > 0,
            )
        )
    return kinds


def _next_steps(
    all_checkpoint_states: Sequence[CheckpointState],
) -> Iterator[tuple[State, str]]:
    """Yield a step for each state of the report.

    Relearning is a step as long as no checkpoint was relearned.
    """
    by_state = grouped(
        all_checkpoint_states, lambda checkpoint_state: checkpoint_state.state
    )
    for state, of_this_state in by_state.items():
        if state == "NOT TESTED":
            yield state, _step_of_untested(of_this_state, all_checkpoint_states)
            continue

        # One sentence for each other state; only its checkpoints differ.
        names = names_or_count(
            [checkpoint_state.name for checkpoint_state in of_this_state]
        )
        key = f"next.{key_of(state)}"
        # An audit alone may ask for another step than all audits together.
        key_of_audit = f"{key}_{only_audit_of(of_this_state)}"
        if knows(key_of_audit):
            key = key_of_audit
        step = render(key, names=names)

        may_be_hidden = state in ("DETECTABLE", "NO LEAK FOUND")
        if may_be_hidden and can_be_relearned(all_checkpoint_states):
            step = f"{step} {render('next.relearn')}"
        yield state, step


def _step_of_untested(
    untested: Sequence[CheckpointState],
    all_checkpoint_states: Sequence[CheckpointState],
) -> str:
    """Return the step that makes memory testable: advice on the first failed check."""
    names = names_or_count([checkpoint_state.name for checkpoint_state in untested])
    for checkpoint_state in untested:
        for guard in checkpoint_state.faults:
            key = f"next.{guard.name}"
            # If checkpoints were already relearned, another step helps.
            if guard.name == "broken_model" and relearned(all_checkpoint_states):
                key = f"next.{guard.name}_relearned"
            if knows(key):
                return render(key, names=names)

    # An audit may know better what helps than what is true of most.
    for checkpoint_state in untested:
        led_by = checkpoint_state.led_by
        if led_by is not None and knows(f"next.{led_by.says}"):
            return render(f"next.{led_by.says}", names=names)

    # No failed check and no audit has its own step.
    if any(checkpoint_state.unclear for checkpoint_state in untested):
        return render("next.confounded", names=names)
    return render("next.not_tested", names=names)


def _gate(all_checkpoint_states: Sequence[CheckpointState]) -> str:
    """Return the result of the gate without rules: stopped and passed checkpoints."""
    stopped: list[str] = []
    passed: list[str] = []
    for checkpoint_state in all_checkpoint_states:
        if not checkpoint_state.is_judged:
            continue
        if checkpoint_state.ships:
            passed.append(checkpoint_state.name)
        else:
            stopped.append(checkpoint_state.name)

    stopped_text = names_or_count(stopped)
    passed_text = names_or_count(passed)
    if not stopped:
        return render("glance.gate_passes", passed=passed_text)
    if not passed:
        return render("glance.gate_stops", stopped=stopped_text)

    # There is room for fewer names next to stopped checkpoints.
    if len(passed) > MAX_NAMED_AS_PASSED:
        passed_text = render("glance.others", count=len(passed))
    return render("glance.gate_both", stopped=stopped_text, passed=passed_text)


def _more(
    all_checkpoint_states: Sequence[CheckpointState],
    consequences: Sequence[Consequence],
    next_steps: dict[State, str],
) -> Iterator[tuple[str, str]]:
    """Yield the further texts of a glance, each with its label."""
    for consequence in consequences:
        if consequence.figures:
            yield consequence.label, consequence.figures

    for count, names in names_by_false_reports(all_checkpoint_states).items():
        sentence = render("glance.surety_of", names=names_or_count(names), count=count)
        yield render("page.sure"), sentence
    n_absent = false_reports_of_absence(all_checkpoint_states)
    if n_absent:
        yield render("page.sure"), render("glance.surety_of_absence", count=n_absent)
    if has_limits(all_checkpoint_states):
        yield render("glance.what_limits"), render("glance.surety_at_most")

    # The glance itself shows the first step.
    for state, step in list(next_steps.items())[1:]:
        yield label_of_step(state), step

    # An attack that was not run lacks a result on all checkpoints. Text alone cannot be
    # asked for those that it lacks.
    not_run = []
    for tried in all_checkpoint_states[0].tried:
        if not tried.ran and not tried.is_of_text:
            not_run.append(tried.audit)
    if not_run:
        commands = ", ".join(f"`spark-audit {audit}`" for audit in not_run)
        yield render("glance.not_run"), commands

    # List the checkpoints without a result of an attack, as the matrix does.
    attacks_without_result = []
    for attack, names in _names_without_result(all_checkpoint_states).items():
        if len(names) == len(all_checkpoint_states):
            attacks_without_result.append(attack)
        else:
            attacks_without_result.append(f"{attack} ({names_or_count(names)})")
    if attacks_without_result:
        yield render("glance.without_result"), ", ".join(attacks_without_result)
    yield render("page.not_tested"), render("glance.beyond_tool")


def _not_tested(all_checkpoint_states: Sequence[CheckpointState]) -> str:
    """Return the attacks without a result on any checkpoint, and those not covered."""
    attacks_without_result = []
    for attack, names in _names_without_result(all_checkpoint_states).items():
        if len(names) == len(all_checkpoint_states):
            attacks_without_result.append(attack)

    beyond_tool = render("glance.beyond")
    if not attacks_without_result:
        return capitalised(beyond_tool)
    return f"{', '.join(attacks_without_result)}; {beyond_tool}"


def _names_without_result(
    all_checkpoint_states: Sequence[CheckpointState],
) -> dict[str, list[str]]:
    """Return attack, in words -> the checkpoints on which it has no result."""
    names_by_attack: dict[str, list[str]] = {}
    for checkpoint_state in all_checkpoint_states:
        for tried in checkpoint_state.tried:
            if tried.outcome not in CONCLUSIVE and not tried.is_under_extraction:
                names_by_attack.setdefault(tried.attack, []).append(
                    checkpoint_state.name
                )
    return names_by_attack


def _checks(report: Report) -> str:
    """Return whether the audit's own checks held, and those that did not."""
    count = len(report.guards)
    if not count:
        return render("glance.checks_none")

    n_failed = 0
    warnings = []
    for guard in report.guards:
        if guard.passed is False:
            n_failed += 1
        elif guard.passed is None:
            warnings.append(guard)

    # Failed checks are alarms, which come first.
    if n_failed:
        return render("glance.checks_failed", failed=n_failed, count=count)
    if warnings:
        names = _names_of_warnings(warnings)
        return render(
            "glance.checks_warn", warnings=len(warnings), count=count, names=names
        )
    return render("glance.checks_held", count=count)


def _names_of_warnings(guards: Sequence[Guard]) -> str:
    """Return the checks that gave a warning; long lists end with a number.

    A check is named once, by the sentence ``warned.NAME`` on what happened if there is
    one, else by its title, which is what it asks for.
    """
    names_of_checks = []
    for guards_of_check in grouped(guards, lambda guard: guard.name).values():
        first = guards_of_check[0]
        key = f"warned.{first.name}"
        if knows(key):
            checkpoints = [guard.checkpoint for guard in guards_of_check]
            names_of_checks.append(render(key, names=names_or_count(checkpoints)))
        else:
            names_of_checks.append(first.title)
    return few_names(list(dict.fromkeys(names_of_checks)))
