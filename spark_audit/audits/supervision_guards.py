"""Warnings that training did not see what the user calls trained.

An identifier that ``max_length`` cut off was never trained on. A canary without loss
was read, and hardly learned. Neither voids a claim, because claims leave out what was
cut off. But a reader must know that it was not tested.
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
"""Names of the two guards; their sentences have the same keys."""

MIN_CUT_OFF_SHARE = 0.05
"""From this share of cut-off identifiers on, a guard fails **[ours]**: no source gives
one."""


def supervision_guards(manifest: Manifest) -> list[Guard]:
    """Return the guards that fail: identifiers cut off, and canaries without loss.

    There are none where no row says what training read of it.
    """
    if not is_known(manifest):
        return []

    failed: list[Guard] = []
    cut_off = _cut_off(manifest)
    if cut_off.count and cut_off.count >= MIN_CUT_OFF_SHARE * cut_off.of:
        facts = {"cut_off": cut_off}
        failed.append(guard(CUT_OFF_GUARD, CUT_OFF_GUARD, facts, passed=False))

    # Of a canary whose state is not known (""), nothing is said.
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
    """Return how many identifiers of trained rows were cut off in all of them."""
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
    """Return whether it is a guard of this file, and failed."""
    return (
        warning.name in (CUT_OFF_GUARD, CANARY_WITHOUT_LOSS) and warning.passed is False
    )
