"""Setup guards: whether rows, base and checkpoint are what the audits assume.

A mistaken setup hides memory: held-out rows that were trained on, swapped lists, a base
that is the checkpoint or has read the rows, a checkpoint that is no language model any
more. Each guard is a test on the scores of the plain pass, for all audits; the tests
stand in :mod:`spark_audit.audits.setup_faults`. :data:`REMAINS` lists the claims that
survive a failure. Only failed guards are returned, and the question whether the trained
rows fit (:mod:`spark_audit.audits.trained_rows`), which voids nothing.

``setup_guards`` (once all checkpoints are scored), or ``failed_at_look`` (of a model in
training) -> ``consistent`` (the guards of a report) -> ``faults`` (of one checkpoint)
-> ``without_void`` (findings).

A further guard has a name and a line of :data:`REMAINS` here, and
:func:`_checks_of_units` runs its test.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from spark_audit.audits.base import Tables
from spark_audit.audits.identifiers import REPRODUCED
from spark_audit.audits.setup_faults import ALARM as ALARM
from spark_audit.audits.setup_faults import (
    Fault,
    base_is_checkpoint,
    base_read_fault,
    broken_fault,
    held_out_fault,
)
from spark_audit.audits.setup_units import (
    Identifier,
    identifiers_of_rows,
    scored_units,
)
from spark_audit.audits.supervision_guards import supervision_guards
from spark_audit.audits.trained_rows import fits_of_parts, trained_rows_guards
from spark_audit.manifest.file import restricted_to
from spark_audit.manifest.schema import Manifest
from spark_audit.names import (
    ANY_NAME,
    BASE,
    RELEARN,
    CheckpointName,
    entry_of,
    original_of,
    series_of,
)
from spark_audit.results import Claim, Finding, Guard, Row
from spark_audit.results.findings import DETECTED, SEVERITY
from spark_audit.results.guards import guard
from spark_audit.scoring.table import Pass
from spark_audit.stats.memory_contrast import Memory

HELD_OUT_BACK = "held_out_back"
BASE_READ = "base_read_rows"
BROKEN_MODEL = "broken_model"
"""Names of the setup guards; if one fails, the checkpoint's memory was not tested."""

REMAINS: Mapping[str, Mapping[Claim, Collection[str]]] = {
    # Held-out rows that were trained on hide memory, and swapped lists reverse it:
    # neither makes trained identifiers likelier than held-out ones.
    HELD_OUT_BACK: {"verbatim": ("extract",), "memory": (ANY_NAME,)},
    # Changes since such a base say nothing. Reproduced strings that the base does not
    # give, and ranks of canaries among never-inserted strings, remain evidence.
    BASE_READ: {"verbatim": ("extract",), "memory": ("canary",)},
    # A drift by many nats enlarges every earlier difference of the sides. Ranks of
    # canaries and verbatim extraction involve no such difference.
    BROKEN_MODEL: {"verbatim": ("extract",), "memory": ("canary",)},
}
"""Setup guard -> claims that its fault cannot cause -> their audits. If the guard
fails, all other claims on the checkpoint are void, and so is "nothing shown".
"""


class Check(NamedTuple):
    """A setup guard, the checkpoint that it checks, and its fault if it fails."""

    name: str
    checkpoint: str
    fault: Fault | None


def setup_guards(
    tables: Tables,
    manifest: Manifest,
    *,
    names: Mapping[str, str],
    weights: Mapping[str, str],
    rows_to_forget: Collection[str] = (),
) -> list[Guard]:
    """Return the failed setup guards, and the guards on the fit of trained rows.

    Parameters
    ----------
    names
        Name of a checkpoint in the report -> its name among the tables.
    weights
        SHA-256 of weights by name among the tables, the base's too, where known.
    rows_to_forget
        Ids of trained rows that a checkpoint should have forgotten. They are no sign of
        a fault, however likely or unlikely they are: only the base is asked about them.
    """
    identifiers = identifiers_of_rows(manifest)
    rows_to_learn = manifest
    if rows_to_forget:
        ids = {row_id for row_id in manifest.by_id if row_id not in rows_to_forget}
        rows_to_learn = restricted_to(manifest, ids)
    vocabulary = manifest.reference.usable_vocab
    checks: list[Check] = []
    fits: dict[str, dict[str, Memory]] = {}

    base_table = tables.get(BASE, {}).get(Pass())
    base_units: pd.DataFrame | None = None
    if base_table is not None:
        base_units = scored_units(base_table, None, manifest, identifiers)
        checks.append(Check(BASE_READ, BASE, base_read_fault(base_units)))

    for name, table_name in names.items():
        if name == BASE:
            continue

        # If the base is the checkpoint itself, there is no model from before the
        # training, which all other checks need.
        has_weights_of_base = table_name in weights and weights[
            table_name
        ] == weights.get(BASE)
        if has_weights_of_base:
            checks.append(Check(BASE_READ, name, base_is_checkpoint("weights")))
            continue

        table = tables[table_name].get(Pass())
        if table is None:
            continue
        units = scored_units(table, base_table, rows_to_learn, identifiers)
        has_scores_of_base = units["max_difference"].max() <= REPRODUCED
        if has_scores_of_base:
            checks.append(Check(BASE_READ, name, base_is_checkpoint("scores")))
            continue

        checks += _checks_of_units(name, units, base_units, vocabulary)
        # Further training on other rows hides what the model learned before.
        if CheckpointName.parse(name).derived != RELEARN:
            fits[name] = fits_of_parts(table, base_table, rows_to_learn)

    # Report only failures of these checks, but always the fit of trained rows.
    failed = [_failed_guard(check) for check in checks if check.fault is not None]
    return [*supervision_guards(manifest), *failed, *trained_rows_guards(fits)]


def failed_at_look(
    tables: Tables,
    manifest: Manifest,
    *,
    name: str,
    identifiers: Mapping[str, Sequence[Identifier]],
) -> list[Guard]:
    """Return the setup guards that fail at a look at a model in training.

    At a look a model may still have the scores of the base, and its trained rows need
    not fit yet: neither is a fault.

    Parameters
    ----------
    tables
        Scores of the model under its name, and of the base if it was scored. Nothing is
        tested without a plain pass.
    manifest
        The rows that looks score.
    name
        The model in ``tables``. If it is the base, only the base is tested.
    identifiers
        From :func:`identifiers_of_rows`, of the whole manifest: a held-out identifier
        of a scored row may stand in a trained row that no look scores.
    """
    checks: list[Check] = []

    base_table = tables.get(BASE, {}).get(Pass())
    base_units: pd.DataFrame | None = None
    if base_table is not None:
        base_units = scored_units(base_table, None, manifest, identifiers)
        checks.append(Check(BASE_READ, BASE, base_read_fault(base_units)))

    table = tables.get(name, {}).get(Pass())
    if name != BASE and table is not None:
        units = scored_units(table, base_table, manifest, identifiers)
        has_moved = units["max_difference"].max() > REPRODUCED
        if has_moved:
            vocabulary = manifest.reference.usable_vocab
            checks += _checks_of_units(name, units, base_units, vocabulary)

    return [_failed_guard(check) for check in checks if check.fault is not None]


def _checks_of_units(
    name: str, units: pd.DataFrame, base_units: pd.DataFrame | None, vocabulary: int
) -> list[Check]:
    """Return the checks of a checkpoint that is not its own base.

    Parameters
    ----------
    units, base_units
        Units with the scores of checkpoint and base, and of the base alone if it was
        scored.
    vocabulary
        Number of tokens that the model chooses from.
    """
    return [
        Check(HELD_OUT_BACK, name, held_out_fault(units, base_units)),
        Check(BROKEN_MODEL, name, broken_fault(name, units, vocabulary)),
    ]


def _failed_guard(check: Check) -> Guard:
    """Return the guard of a failed check."""
    assert check.fault is not None
    return guard(
        check.name,
        check.fault.says,
        check.fault.facts,
        further=check.fault.further,
        passed=False,
        checkpoint=check.checkpoint,
    )


def consistent(guards: Iterable[Guard]) -> list[Guard]:
    """Return the guards without those that another guard refutes.

    A base that read the rows finds their text likely, so that any other model looks
    broken next to it. Then only a model that is worse than guessing counts as broken.
    """
    guards = list(guards)
    failed = {
        (setup_guard.name, setup_guard.checkpoint)
        for setup_guard in guards
        if setup_guard.passed is False
    }
    if (BASE_READ, BASE) not in failed:
        return guards

    return [
        setup_guard
        for setup_guard in guards
        if setup_guard.name != BROKEN_MODEL or _is_below_chance(setup_guard)
    ]


def _is_below_chance(broken: Guard) -> bool:
    """Return whether a broken model is, or may be, worse than guessing.

    Parameters
    ----------
    broken
        The guard :data:`BROKEN_MODEL`, whose figures may be withheld in shared files.
    """
    plain_text = broken.facts.get("plain_text")
    chance = broken.facts.get("chance")
    if not isinstance(plain_text, Row) or not isinstance(chance, float):
        return True
    return plain_text.value is None or plain_text.value > chance


def faults(guards: Iterable[Guard], name: str) -> list[Guard]:
    """Return the setup guards that failed for a checkpoint, the first of each name.

    Failures of its seeds, its stages and the checkpoint that it was rounded or
    relearned from count for it, too. Failures of the base count for all. The base
    itself has none, since it is not under test.

    Parameters
    ----------
    guards
        Of all checkpoints; those that are no setup guards do not count.
    """
    if name == BASE:
        return []

    methods_that_count = {BASE, _method_of(name), _method_of(original_of(name))}
    is_relearned = CheckpointName.parse(name).derived == RELEARN

    # Guards of the base come last: one on the checkpoint says more precisely what is
    # wrong.
    base_last = sorted(guards, key=lambda any_guard: any_guard.checkpoint == BASE)
    first_by_name: dict[str, Guard] = {}
    for any_guard in base_last:
        if any_guard.name not in REMAINS or any_guard.passed is not False:
            continue

        # A short training may mend a broken model: only the guard on the relearned
        # checkpoint itself counts.
        method = _method_of(any_guard.checkpoint)
        is_mended = any_guard.name == BROKEN_MODEL and is_relearned and method != name
        if method in methods_that_count and not is_mended:
            first_by_name.setdefault(any_guard.name, any_guard)
    return list(first_by_name.values())


def without_void(findings: Iterable[Finding], guards: Iterable[Guard]) -> list[Finding]:
    """Return the findings; those that a setup guard voids have the status ``void``.

    Void findings keep their figures but are no detections.
    """
    guards = list(guards)
    changed = []
    for finding in findings:
        # A detection can be void, and so can a test that detected nothing. Other
        # findings claim nothing. `alone` is the claim before the correction over the
        # report.
        is_detection = SEVERITY[finding.alone] >= DETECTED
        is_test_without_detection = (
            finding.family == "primary" and finding.alone == "nothing_shown"
        )
        if is_detection or is_test_without_detection:
            finding = _voided(finding, faults(guards, finding.checkpoint))
        changed.append(finding)
    return changed


def _voided(finding: Finding, failed: Iterable[Guard]) -> Finding:
    """Return a finding, void by the first failed guard that can cause its claim.

    Parameters
    ----------
    failed
        Setup guards that failed for its checkpoint.
    """
    if finding.voided_by:
        return finding

    for setup_guard in failed:
        sound_audits = REMAINS[setup_guard.name].get(finding.alone, ())
        if finding.audit not in sound_audits and ANY_NAME not in sound_audits:
            return finding.model_copy(
                update={
                    "status": "void",
                    "at_most": None,
                    "voided_by": setup_guard.name,
                }
            )
    return finding


def _method_of(name: str) -> str:
    """Return the method that a seed or a stage belongs to."""
    return entry_of(series_of(name))
