"""Warnings that training did not see what the user calls trained.

An identifier that ``max_length`` cut off was never trained on, and a canary that had no
loss was hardly. Neither voids a claim: what was cut off is left out of all of them, but
a reader who takes it for tested must know.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_audit.audits.base import guard
from spark_audit.audits.supervision import (
    canary_supervision,
    is_known,
    trained_identifiers,
)
from spark_audit.data.occurrences import string_of
from spark_audit.manifest.schema import Manifest
from spark_audit.results import Guard, Hits
from spark_audit.results.findings import Fact

CUT_OFF_GUARD = "cut_off"
CANARY_WITHOUT_LOSS = "canary_without_loss"
"""Names of the guards."""

WARNED_OF = 0.05
"""Share of the identifiers of trained rows from which readers are told that they were
cut off **[ours]**."""


def supervision_guards(manifest: Manifest) -> list[Guard]:
    """Return the guards that fail: identifiers cut off, and canaries without loss.

    Nothing is returned where training is known of no row.
    """
    if not is_known(manifest):
        return []

    failed: list[Guard] = []
    cut_off = _cut_off(manifest)
    if cut_off.count and cut_off.count >= WARNED_OF * cut_off.of:
        facts = {"cut_off": cut_off}
        failed.append(guard(CUT_OFF_GUARD, CUT_OFF_GUARD, facts, passed=False))

    # What is not known of a canary warns of nothing.
    states = [state for state in canary_supervision(manifest).values() if state]
    n_cut_off = states.count("cut off")
    n_without_loss = states.count("read only") + n_cut_off
    if n_without_loss:
        without_loss = Hits(count=n_without_loss, of=len(states))
        canary_facts: dict[str, Fact] = {
            "without_loss": without_loss,
            "n_cut_off": n_cut_off,
        }
        reason = "canary_cut_off" if n_cut_off else "canary_masked"
        without_loss_guard = guard(
            CANARY_WITHOUT_LOSS,
            CANARY_WITHOUT_LOSS,
            canary_facts,
            further=[reason],
            passed=False,
        )
        failed.append(without_loss_guard)
    return failed


def _cut_off(manifest: Manifest) -> Hits:
    """Return how many identifiers of trained rows no row of training held whole."""
    trained_on = trained_identifiers(manifest, canaries=False)
    strings: set[str] = set()
    for row in manifest.examples:
        if row.split == "train" and row.canary_id is None:
            strings |= {string_of(row, span) for span in row.spans}
    strings.discard("")
    return Hits(count=len(strings & trained_on.cut_off), of=len(strings))


def supervision_warnings(guards: Iterable[Guard]) -> list[str]:
    """Return the sentences of the guards that failed, for the first lines of a screen.

    Parameters
    ----------
    guards
        Of a report.
    """
    sentences = [warning.detail for warning in guards if is_said_first(warning)]
    return list(dict.fromkeys(sentences))


def is_said_first(warning: Guard) -> bool:
    """Return whether a guard is one of these and failed."""
    return (
        warning.name in (CUT_OFF_GUARD, CANARY_WITHOUT_LOSS) and warning.passed is False
    )
