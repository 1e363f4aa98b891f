"""What trained identifiers gained beyond held-out ones."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.matched.drift import _low_drift
from spark_audit.audits.matched.units import REFERENCE, Moved, UnitScores, row_of
from spark_audit.results import Row
from spark_audit.stats import memory_contrast
from spark_audit.stats.dose_trend import dose_trend


def memory_rows(known: UnitScores, name: str) -> tuple[list[Row], dict[str, Moved]]:
    """Return the change of identifiers on either side, and their difference, by group.

    Sides that were unequally hard on the reference drift unequally where drift depends
    on difficulty; at most, what they differed by is lost. That is the difference's
    ``null_low`` and ``null_high``.

    Returns
    -------
    rows
        Of metrics ``pii_change``, ``memory``, ``kind``, ``specific``, ``low_change``.
    tests
        Of no memory, by group.
    """
    if name in known.references:
        missing = memory_contrast.Memory.missing(REFERENCE)
        tests = {"pooled": Moved(missing, missing)}
        trend = missing.difference
        drift = missing.difference
    else:
        change = known.changes[name]  # (units,), nats
        tests = _tests_by_group(known, change)
        every = known.sides[0]
        trend = dose_trend(change[every.spans.index], every.sides, every.spans["dose"])
        drift = _low_drift(known.train, change)

    rows: list[Row] = []
    for group, test in tests.items():
        rows += _rows_of_group(name, group, test)
    rows.append(row_of(trend, checkpoint=name, metric="memory", of="trend", null=0.0))
    rows.append(row_of(drift, checkpoint=name, metric="low_change"))
    return rows, tests


def _tests_by_group(known: UnitScores, change: np.ndarray) -> dict[str, Moved]:
    """Return the test of no memory of each group of identifiers.

    Only the two groups that claims rest on are permuted: all identifiers, and those of
    the highest dose, which comes last.
    """
    claimed = {"pooled", known.sides[-1].group}
    tests = {}
    for occurrences in known.sides:
        seed = known.context.seed if occurrences.group in claimed else None
        tests[occurrences.group] = occurrences.moved(change, seed=seed)
    return tests


def _rows_of_group(name: str, group: str, test: Moved) -> list[Row]:
    """Return the rows of one group: both sides, memory, and both beyond controls."""
    changes = test.own
    beyond_controls = test.beyond
    return [
        row_of(
            changes.trained,
            checkpoint=name,
            metric="pii_change",
            of="trained",
            group=group,
        ),
        row_of(
            changes.held_out,
            checkpoint=name,
            metric="pii_change",
            of="never-trained",
            group=group,
        ),
        row_of(
            changes.difference,
            checkpoint=name,
            metric="memory",
            group=group,
            null=0.0,
            null_low=-test.reach,
            null_high=test.reach,
        ),
        row_of(
            beyond_controls.held_out,
            checkpoint=name,
            metric="kind",
            group=group,
            null=0.0,
        ),
        row_of(
            beyond_controls.difference,
            checkpoint=name,
            metric="specific",
            group=group,
            null=0.0,
        ),
    ]
