"""Advice on the next step for the checkpoints of a report, by their states.

The words are the sentences ``advice.*``. A failed setup guard gets its advice by a
sentence ``advice.GUARD``; another piece of advice on a state is a sentence in the
function of that state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_audit.audits import about
from spark_audit.audits.setup_guards import REMAINS
from spark_audit.report.checkpoint_states import CheckpointState, State, key_of
from spark_audit.report.relearning import relearned
from spark_audit.report.tried import CONCLUSIVE
from spark_audit.results import grouped
from spark_audit.sentences import knows, render


def advice(checkpoint_states: Sequence[CheckpointState]) -> dict[State, str]:
    """Return the advice for each state that the report has."""
    by_state = grouped(
        checkpoint_states, lambda checkpoint_state: checkpoint_state.state
    )
    is_relearned = relearned(checkpoint_states)
    advice_by_state: dict[State, str] = {}
    for state, members in by_state.items():
        if state == "DETECTABLE":
            sentences = _advice_on_detectable(members, is_relearned=is_relearned)
        elif state == "NO LEAK FOUND":
            sentences = _advice_on_clean(members, is_relearned=is_relearned)
        elif state == "NOT TESTED":
            sentences = _advice_on_untested(members, is_relearned=is_relearned)
        else:
            # Advice on a leak does not depend on what else was tested.
            sentences = [render(f"advice.{key_of(state)}")]

        # An audit alone may ask for another step than all audits together.
        key = f"advice.{key_of(state)}_{only_audit_of(members)}"
        if knows(key):
            sentences = [render(key)]
        advice_by_state[state] = " ".join(sentences)
    return advice_by_state


def only_audit_of(members: Sequence[CheckpointState]) -> str:
    """Return the audit that the state of checkpoints rests on; empty: several do.

    It is that of all detections, or where nothing was found, that of all results.
    """
    with_detection = set()
    with_result = set()
    for checkpoint_state in members:
        for tried in checkpoint_state.tried:
            if tried.outcome == "FOUND":
                with_detection.add(tried.audit)
            if tried.outcome in CONCLUSIVE:
                with_result.add(tried.audit)

    audits = with_detection or with_result
    return audits.pop() if len(audits) == 1 else ""


def _advice_on_detectable(
    members: Sequence[CheckpointState], *, is_relearned: bool
) -> list[str]:
    """Return the advice on checkpoints whose training rows can be detected."""
    sentences = [render("advice.detectable")]
    if not all(checkpoint_state.ships for checkpoint_state in members):
        sentences.append(render("advice.stopped"))

    # Do not advise relearning twice: it is also an attack of its own.
    if not is_relearned:
        sentences.append(render("advice.relearn"))
    return sentences


def _advice_on_clean(
    members: Sequence[CheckpointState], *, is_relearned: bool
) -> list[str]:
    """Return the advice on checkpoints in which no leak was found."""
    sentences = [render("advice.no_leak_found")]
    open_tests = _open_tests(members)

    # Only attacks with a result tested a clean checkpoint, so advise the others.
    if open_tests.commands:
        commands = [
            render("advice.command", audit=audit) for audit in open_tests.commands
        ]
        sentences.append(render("advice.not_run", commands=", ".join(commands)))
    if open_tests.unplanted:
        sentences.append(render("advice.unplanted"))

    attacks = []
    for attack, names in open_tests.unanswered.items():
        attacks.append(with_names(attack, names))
    if attacks:
        sentences.append(render("advice.unanswered", attacks=", ".join(attacks)))

    if not is_relearned:
        sentences.append(render("advice.relearn"))
    return sentences


def with_names(text: str, names: Sequence[str]) -> str:
    """Return a text with the names of its checkpoints, unless it holds for all."""
    if not names:
        return text
    return render("states.with_remark", text=text, remark=", ".join(names))


def _advice_on_untested(
    members: Sequence[CheckpointState], *, is_relearned: bool
) -> list[str]:
    """Return the advice on checkpoints whose memory was not tested."""
    keys_of_rows = set()  # which rows would have to be given
    keys_of_reasons = set()  # what follows from a reason that an audit gives
    names_by_fault: dict[str, list[str]] = {}
    for checkpoint_state in members:
        for guard in checkpoint_state.faults:
            names_by_fault.setdefault(guard.name, []).append(checkpoint_state.name)
        if checkpoint_state.faults:
            continue

        # An audit may know better what to do than what is true of most.
        led_by = checkpoint_state.led_by
        if led_by is not None and knows(f"advice.{led_by.says}"):
            keys_of_reasons.add(f"advice.{led_by.says}")
            continue

        # No guard failed: held-out rows were missing or not comparable.
        if checkpoint_state.unclear:
            keys_of_rows.add("advice.give_alike")
        else:
            keys_of_rows.add("advice.give")

    sentences = [render(key) for key in sorted(keys_of_reasons)]
    if keys_of_rows:
        sentences.append(render("advice.comparison"))
    for key in sorted(keys_of_rows):
        sentences.append(render(key))

    # The order is that of REMAINS, not that of the checkpoints.
    for fault in REMAINS:
        if fault in names_by_fault:
            names = _names_of_some(names_by_fault[fault], members)
            sentences.append(_advice_on_fault(fault, names, is_relearned=is_relearned))
    return sentences


def _advice_on_fault(fault: str, names: Sequence[str], *, is_relearned: bool) -> str:
    """Return the advice on a failed setup guard, with its checkpoints."""
    key = f"advice.{fault}"
    if is_relearned and knows(f"{key}_relearned"):
        key = f"{key}_relearned"

    if not names:
        return render(key)
    return render("advice.of_some", names=", ".join(names), advice=render(key))


def _names_of_some(names: list[str], members: Sequence[CheckpointState]) -> list[str]:
    """Return the names if they are some of the checkpoints; nothing if they are all."""
    if len(names) == len(members):
        return []
    return names


class OpenTests(NamedTuple):
    """Attacks that checkpoints without a claim lack: without a result, or not run.

    Attributes
    ----------
    commands
        Audits that were not run.
    unplanted
        Whether no canaries were planted.
    unanswered
        Attack, in words -> checkpoints without a result of it; empty: all.
    """

    commands: list[str]
    unplanted: bool
    unanswered: dict[str, list[str]]


def _open_tests(clean: Sequence[CheckpointState]) -> OpenTests:
    """Return the open tests of checkpoints without a claim."""
    commands: dict[str, None] = {}
    names_by_attack: dict[str, list[str]] = {}
    is_unplanted = False
    for checkpoint_state in clean:
        for tried in checkpoint_state.tried:
            # Missing canaries are advised by themselves, not as an attack without a
            # result.
            if not tried.ran:
                commands[tried.audit] = None
            elif tried.outcome == "not tested" and about(tried.audit).needs_canaries:
                is_unplanted = True
            elif tried.outcome not in CONCLUSIVE:
                names_by_attack.setdefault(tried.attack, []).append(
                    checkpoint_state.name
                )

    unanswered = {}
    for attack, names in names_by_attack.items():
        unanswered[attack] = _names_of_some(names, clean)
    return OpenTests(
        commands=list(commands), unplanted=is_unplanted, unanswered=unanswered
    )
