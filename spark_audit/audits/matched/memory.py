"""What trained identifiers gained beyond held-out ones."""

from __future__ import annotations

from functools import partial

from spark_audit.audits.matched.drift import _low_drift
from spark_audit.audits.matched.units import REFERENCE, Moved, UnitScores, row_of
from spark_audit.results import Row
from spark_audit.stats import memory_contrast


def memory_rows(known: UnitScores, name: str) -> tuple[list[Row], dict[str, Moved]]:
    """The change of identifiers on either side, and their difference, by group.

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
    lost = memory_contrast.Memory.missing(REFERENCE)
    tests, trend = {"pooled": Moved(lost, lost)}, lost.difference
    drift, change, groups = trend, known.changes[name], known.sides
    if name not in known.references:
        # The two groups that claims rest on; doses come last, the highest at the end.
        claimed, seed = {"pooled", groups[-1].group}, known.context.seed
        tests = {
            each.group: each.moved(change, seed=seed if each.group in claimed else None)
            for each in groups
        }
        spans, sides = groups[0].spans, groups[0].sides
        trend = memory_contrast.dose_trend(change[spans.index], sides, spans["dose"])
        drift = _low_drift(known.train, change)
    rows = list[Row]()
    for group, found in tests.items():
        own, beyond = found.own, found.beyond
        row = partial(row_of, checkpoint=name, group=group)
        band = {"null_low": -found.reach, "null_high": found.reach}
        rows += [
            row(own.trained, metric="pii_change", of="trained"),
            row(own.held_out, metric="pii_change", of="never-trained"),
            row(own.difference, metric="memory", null=0.0, **band),
            row(beyond.held_out, metric="kind", null=0.0),
            row(beyond.difference, metric="specific", null=0.0),
        ]
    rows.append(row_of(trend, checkpoint=name, metric="memory", of="trend", null=0.0))
    rows.append(row_of(drift, checkpoint=name, metric="low_change"))
    return rows, tests
