"""Rows of the memory contrast: identifiers of trained rows and held-out ones.

All are changes of the NLL since the reference in nats per token. Below 0, text became
likelier.

==============  =====================================================================
metric          meaning
==============  =====================================================================
``pii_change``  change of identifiers, of the variants ``trained``, ``never-trained``
``memory``      trained minus held-out; the variant ``trend`` is its slope by dose
``kind``        change of held-out identifiers minus that of their controls
``specific``    memory minus the same difference of the controls
``low_change``  change of low-sensitivity text: the drift
==============  =====================================================================

A new figure of a group goes into ``rows_of_group``, and its metric into
``Matched.metrics`` (``audit.py``). Groups: see
:func:`~spark_audit.audits.matched.units.groups_of_identifiers`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_audit.audits.matched.drift import low_drift
from spark_audit.audits.matched.report_rows import row_of
from spark_audit.audits.matched.units import REFERENCE, MemoryTest, UnitScores
from spark_audit.results import Row
from spark_audit.stats import memory_contrast
from spark_audit.stats.dose_trend import dose_trend


class MemoryFigures(NamedTuple):
    """Figures and tests of memory of one checkpoint.

    Attributes
    ----------
    rows
        Rows of ``pii_change``, ``memory``, ``kind``, ``specific`` and ``low_change``.
    tests
        Group of identifiers -> its test of no memory.
    """

    rows: list[Row]
    tests: dict[str, MemoryTest]


def memory_figures(scores: UnitScores, name: str) -> MemoryFigures:
    """Return the change of trained and of held-out identifiers, and memory, by group.

    If drift depends on difficulty, sides that were unequally hard on the reference
    drift unequally, by at most their first difference. ``no_effect_low`` and
    ``no_effect_high`` of the difference hold that range.
    """
    if name in scores.references:
        # The reference has no change since itself, and only missing figures of all
        # identifiers.
        missing = memory_contrast.Memory.missing(REFERENCE)
        tests = {"pooled": MemoryTest(missing, missing)}
        trend = missing.difference
        drift = missing.difference
    else:
        change = scores.changes[name]  # (units,), nats
        tests = _tests_by_group(scores, change)

        # Memory grows with the dose; drift does not.
        pooled = scores.pooled
        trend = dose_trend(
            change[pooled.spans.index], pooled.sides, pooled.spans["dose"]
        )
        drift = low_drift(scores.train, change)

    # Rows by group come first, then the two figures of all identifiers.
    rows: list[Row] = []
    for group, test in tests.items():
        rows += rows_of_group(name, group, test)

    rows.append(
        row_of(trend, checkpoint=name, metric="memory", variant="trend", no_effect=0.0)
    )
    rows.append(row_of(drift, checkpoint=name, metric="low_change"))
    return MemoryFigures(rows, tests)


def _tests_by_group(scores: UnitScores, change: np.ndarray) -> dict[str, MemoryTest]:
    """Return the test of no memory of each group of identifiers.

    Permutations are made only for the two groups that claims rest on: all identifiers,
    and those of the highest dose, which come last.

    Parameters
    ----------
    change
        Shape ``(units,)``: change of the NLL since the reference, nats.
    """
    # Permutations take long, so other groups get p by Student's t.
    claimed = {"pooled", scores.groups[-1].group}

    tests = {}
    for occurrences in scores.groups:
        seed = scores.context.seed if occurrences.group in claimed else None
        tests[occurrences.group] = occurrences.test_memory(change, seed=seed)
    return tests


def rows_of_group(name: str, group: str, test: MemoryTest) -> list[Row]:
    """Return the rows of one group: both sides, memory, and both beyond controls."""
    memory = test.memory
    beyond_controls = test.beyond_controls
    return [
        # The change of both sides, and their difference.
        row_of(
            memory.trained,
            checkpoint=name,
            metric="pii_change",
            variant="trained",
            group=group,
        ),
        row_of(
            memory.held_out,
            checkpoint=name,
            metric="pii_change",
            variant="never-trained",
            group=group,
        ),
        row_of(
            memory.difference,
            checkpoint=name,
            metric="memory",
            group=group,
            no_effect=0.0,
            no_effect_low=-test.gap_before,
            no_effect_high=test.gap_before,
        ),
        row_of(
            beyond_controls.held_out,
            checkpoint=name,
            metric="kind",
            group=group,
            no_effect=0.0,
        ),
        row_of(
            beyond_controls.difference,
            checkpoint=name,
            metric="specific",
            group=group,
            no_effect=0.0,
        ),
    ]
