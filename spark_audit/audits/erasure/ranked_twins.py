"""Identifiers to be forgotten among their twins, where a report has scored these.

A twin is a made-up string of the kind of an identifier
(:mod:`spark_audit.audits.twins.audit`). An identifier that is remembered rises among
its twins by more than held-out ones do. Twins are scored by the audit ``twins`` alone:
``spark-audit all --also erasure`` has both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.audit_inputs import Context, Tables
from spark_audit.audits.twins.audit import Twins
from spark_audit.data.occurrences import folded
from spark_audit.manifest.schema import Manifest, ManifestTwins
from spark_audit.stats.canary_ranks import exposure_bits


class RankedTwins(NamedTuple):
    """Identifiers that have twins, on the sides of an erasure.

    Attributes
    ----------
    units
        One line per identifier, with columns ``example`` (of its first context),
        ``type``, ``cluster`` and ``is_forgotten``.
    exposure_by_checkpoint
        Checkpoint -> exposure, shape ``(units,)``, bits: the higher, the fewer twins
        are likelier.
    """

    units: pd.DataFrame
    exposure_by_checkpoint: Mapping[str, np.ndarray]


def ranked_twins(
    tables: Tables,
    manifest: Manifest,
    context: Context,
    *,
    forget: Collection[str],
    strings_of_retained: Collection[str],
) -> RankedTwins | None:
    """Return forgotten and held-out identifiers that have twins, with their ranks.

    ``None``: no checkpoint was scored on twins, or a side has none.

    Parameters
    ----------
    forget
        Ids of forget rows.
    strings_of_retained
        Identifiers that retained rows hold, which are left out.
    """
    evidence = Twins().evidence(tables, manifest, context)
    if not len(evidence):
        return None

    is_forgotten = []
    is_on_side = []
    for twins in manifest.twins:
        is_held_out = twins.dose == 0
        is_forgotten.append(not is_held_out)
        is_on_side.append(
            is_held_out or _is_to_forget(twins, forget, strings_of_retained)
        )

    mask = np.array(is_on_side, bool)  # (identifiers with twins,)
    units = evidence.units[["type", "cluster"]].assign(
        example=[twins.contexts[0].example for twins in manifest.twins],
        is_forgotten=is_forgotten,
    )[mask]
    if units["is_forgotten"].nunique() < 2:
        return None

    n_candidates = evidence.units["n_candidates"].to_numpy()[mask]
    exposures = {}
    for name in evidence.checkpoints:
        rank = evidence.row(name, "rank")[mask]
        ties = evidence.row(name, "ties")[mask]
        exposures[name] = exposure_bits(
            rank.astype(np.int64), n_candidates, ties=ties.astype(np.int64)
        )
    return RankedTwins(units.reset_index(drop=True), exposures)


def _is_to_forget(
    twins: ManifestTwins, forget: Collection[str], strings_of_retained: Collection[str]
) -> bool:
    """Return whether an identifier stands in forget rows, and in no retained one."""
    string = folded(twins.candidates[twins.true_index].strip())
    is_in_forget_row = any(context.example in forget for context in twins.contexts)
    return is_in_forget_row and string not in strings_of_retained
