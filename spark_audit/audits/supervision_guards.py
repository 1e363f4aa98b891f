"""Warnings that training did not see what the user calls trained.

An identifier that ``max_length`` cut off was never trained on. A canary without loss
was read, and hardly learned. Neither voids a claim, since claims leave out cut-off
identifiers. But readers must know that these were not tested.

The setup guards run ``supervision_guards`` first. A further warning of this kind is a
function beside ``_canary_guard``, a name in ``is_said_first``, and a sentence
``guard.NAME``.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_audit.audits.supervision import (
    canary_supervision,
    is_known,
    trained_identifiers,
)
from spark_audit.data.occurrences import string_of
from spark_audit.manifest.schema import Manifest
from spark_audit.results import Guard, Hits
from spark_audit.results.findings import Fact
from spark_audit.results.guards import guard

CUT_OFF_GUARD = "cut_off"
"""Name of the guard on identifiers, and key of its sentence."""

CANARY_WITHOUT_LOSS = "canary_without_loss"
"""Name of the guard on canaries, and key of its sentence."""

MIN_CUT_OFF_SHARE = 0.05
"""Share of cut-off identifiers from which on the guard fails **[ours]**."""


def supervision_guards(manifest: Manifest) -> list[Guard]:
    """Return the guards that fail: identifiers cut off, and canaries without loss.

    There are none where no row says what training read of it. In a report they stand
    among the guards of all audits.
    """
    if not is_known(manifest):
        return []

    # Each is None where there is nothing to warn of.
    guards = [_cut_off_guard(manifest), _canary_guard(manifest)]
    return [failed for failed in guards if failed is not None]


def _cut_off_guard(manifest: Manifest) -> Guard | None:
    """Return a failed guard if training cut off many identifiers, else ``None``."""
    cut_off = _cut_off_hits(manifest)
    if cut_off.count == 0:
        return None
    if cut_off.count < MIN_CUT_OFF_SHARE * cut_off.of:
        return None

    return guard(
        name=CUT_OFF_GUARD,
        says=CUT_OFF_GUARD,
        facts={"cut_off": cut_off},
        passed=False,
    )


def _canary_guard(manifest: Manifest) -> Guard | None:
    """Return a failed guard if training had no loss on some canaries, else ``None``."""
    # A canary with an unknown state ("") draws no warning.
    states = [state for state in canary_supervision(manifest).values() if state]
    n_cut_off = states.count("cut off")

    # A canary that was cut off had no loss either, so it counts in both.
    n_without_loss = states.count("read only") + n_cut_off
    if n_without_loss == 0:
        return None

    facts: dict[str, Fact] = {
        "without_loss": Hits(count=n_without_loss, of=len(states)),
        "n_cut_off": n_cut_off,
    }
    reason = "canary_cut_off" if n_cut_off else "canary_masked"
    return guard(
        name=CANARY_WITHOUT_LOSS,
        says=CANARY_WITHOUT_LOSS,
        facts=facts,
        further=[reason],
        passed=False,
    )


def _cut_off_hits(manifest: Manifest) -> Hits:
    """Return how many strings were cut off in every trained row that holds them.

    Canaries do not count: they have a guard of their own.
    """
    trained_on = trained_identifiers(manifest, canaries=False)

    # Count strings, not occurrences, since many rows may contain one string.
    strings: set[str] = set()
    for example in manifest.examples:
        if example.split == "train" and example.canary_id is None:
            strings |= {string_of(example, span) for span in example.spans}
    strings.discard("")
    return Hits(count=len(strings & trained_on.cut_off), of=len(strings))


def supervision_warnings(guards: Iterable[Guard]) -> list[str]:
    """Return the sentences of the failed guards of this file, each once.

    They are the first lines that a user sees of a report.

    Parameters
    ----------
    guards
        All guards of a report.
    """
    sentences = [warning.detail for warning in guards if is_said_first(warning)]
    return list(dict.fromkeys(sentences))


def is_said_first(warning: Guard) -> bool:
    """Return whether a guard is one of this file, and failed."""
    is_of_this_file = warning.name in (CUT_OFF_GUARD, CANARY_WITHOUT_LOSS)
    return is_of_this_file and warning.passed is False
