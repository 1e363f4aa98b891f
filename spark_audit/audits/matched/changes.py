"""Changes since the reference: identifiers on either side, and low-sensitivity text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pandas as pd

from spark_audit.audits.identifier_facts import Moved, comparable, sides_of
from spark_audit.audits.matched.contrasts import REFERENCE, contrast_of, row_of
from spark_audit.data.occurrences import dose_group
from spark_audit.results import Contrast, Estimate, Hits, Row, side_of
from spark_audit.results.findings import Fact, Power
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.memory_contrast import (
    Memory,
    Sides,
    dose_trend,
    least_p,
    memory,
    permutation_p,
)

PERMUTATIONS = 9999
NO_LOW = "the drift of low-sensitivity text is not known"


def occurrences(part: pd.DataFrame) -> pd.DataFrame:
    """Identifiers of trained rows, and those that stand in no trained row."""
    spans = part[part["role"].isin(["pii", "unmatched"])]
    spans = spans[(spans["split"] == "train") | (spans["dose"] == 0)]
    return comparable(spans)[0]


@dataclass(frozen=True, eq=False)
class Occurrences:
    """Identifiers of one group on either side, the same for all checkpoints.

    ``spans`` are units, by their places in the evidence; ``control`` has the place of
    each pair's control.
    """

    group: str
    spans: pd.DataFrame
    control: pd.Series

    @cached_property
    def sides(self) -> Sides:
        """Where they stand."""
        return sides_of(self.spans)

    @cached_property
    def matched(self) -> tuple[np.ndarray, np.ndarray, Sides]:
        """Places of those with a control, of their controls, and where they stand."""
        paired = (self.spans["role"] == "pii").to_numpy()
        pii = self.spans[paired]
        control = self.control[pii["pair"]].to_numpy()
        return pii.index.to_numpy(), control, self.sides[paired]

    @cached_property
    def before(self) -> Estimate:
        """Trained minus never trained on the reference, nats per token."""
        return memory(self.spans["ref_sum"].to_numpy(), self.sides).difference

    @cached_property
    def reach(self) -> float:
        """By how many nats the sides clearly differed on the reference."""
        return unequal(self.before)

    def left_out(self, units: pd.DataFrame) -> dict[str, Hits]:
        """How many trained identifiers have no control, as facts, if there are any."""
        spans = units["role"].isin(["pii", "unmatched"]) & (units["split"] == "train")
        total, trained = int(spans.sum()), self.sides.trained
        counts = {
            "without_counterpart": int((trained & (self.sides.cells < 0)).sum()),
            "untold": total - int(trained.sum()),
        }
        return {k: Hits(count=count, of=total) for k, count in counts.items() if count}

    def confounded(self, name: str) -> dict[str, Fact]:
        """Why no difference of the sides can be called memory; empty: unknown."""
        if not (self.spans["stratum"] < 0).any():
            return {}
        auc = self.spans["text_auc"].max()
        if np.isnan(auc):
            from spark_audit.audits.strata import ENOUGH

            return {"fewest": ENOUGH}
        clusters = self.spans["cluster"].nunique()
        shown = Estimate(auc, clusters=clusters)
        return {"text_auc": row_of(shown, checkpoint=name, metric="text_auc", unit="")}

    def moved(self, change: np.ndarray, *, seed: int | None) -> Moved:
        """What :class:`Moved` states of them.

        Parameters
        ----------
        change
            Change of the NLL of all units since the reference, nats.
        seed
            Of the permutations; ``None`` for none: no claim rests on them.
        """
        sides, own_change = self.sides, change[self.spans.index]
        own = memory(own_change, sides)
        p, least = own.t_p(null=self.reach), 0.0
        if seed is not None and p is not None and (self.spans["form"] > 0).all():
            # Chance dealt them to the sides: what it could have dealt is known.
            dealt = permutation_p(own_change, sides, seed=seed, replicates=PERMUTATIONS)
            if dealt is not None:
                p, least = max(p, dealt), least_p(sides, replicates=PERMUTATIONS)
        se = own.difference.se
        test = Power(test="t", se=se, df=own.freedom, beyond=self.reach, least_p=least)
        pii, control, matched = self.matched
        beyond = memory(change[pii] - change[control], matched)
        return Moved(own, beyond, self.reach, p, (test,) if se else ())


def unequal(before: Estimate) -> float:
    """Nats by which one side was clearly harder on the reference already; else 0."""
    return 0.0 if side_of(before) == 0 else abs(before.value or 0.0)


def groups_of(spans: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """All identifiers, those of each type, and those of each dose with all held out.

    A type or dose that is the only one has no group of its own.
    """
    yield "pooled", spans
    trained = spans["split"] == "train"
    doses = spans["dose"].clip(lower=1).map(dose_group).where(trained, "")
    by_dose = doses[spans[trained].sort_values("dose", kind="stable").index]
    for name, values, known, held in (
        ("type", spans["type"], sorted(set(spans["type"][trained])), False),
        ("dose", doses, list(by_dose.unique()), ~trained),
    ):
        for value in known if len(known) > 1 else ():
            yield f"{name}:{value}", spans[(values == value) | held]


def all_occurrences(units: pd.DataFrame) -> list[Occurrences]:
    """Those of each group, all of them first."""
    control = units[units["role"] == "control"]
    places = pd.Series(control.index, index=control["pair"])
    return [Occurrences(*group, places) for group in groups_of(occurrences(units))]


def memory_rows(
    name: str,
    change: np.ndarray,
    groups: Sequence[Occurrences],
    *,
    reference: bool,
    seed: int,
) -> tuple[list[Row], dict[str, Moved]]:
    """The change of identifiers on either side, and their difference, by group.

    Sides that were unequally hard on the reference drift unequally where drift depends
    on difficulty; at most, what they differed by is lost. That is the difference's
    ``null_low`` and ``null_high``.

    Parameters
    ----------
    change
        Change of the NLL of all units since the reference, nats.

    Returns
    -------
    rows
        Of metrics ``pii_change``, ``memory``, ``kind`` and ``specific``.
    tests
        Of no memory, by group.
    """
    if reference:
        lost = Moved(Memory.missing(REFERENCE), Memory.missing(REFERENCE))
        missing = Estimate.missing(REFERENCE)
        return [*_rows(name, "pooled", lost), _trend_row(name, missing)], {}
    # The two groups that claims rest on; doses come last, the highest at the end.
    claimed = {"pooled", groups[-1].group}
    tests = {
        each.group: each.moved(change, seed=seed if each.group in claimed else None)
        for each in groups
    }
    rows = [row for group, one in tests.items() for row in _rows(name, group, one)]
    whole = groups[0]
    spans = whole.spans
    trend = dose_trend(change[spans.index], whole.sides, spans["dose"])
    return [*rows, _trend_row(name, trend)], tests


def memory_contrasts(
    name: str, baseline: str, apart: np.ndarray, groups: Sequence[Occurrences]
) -> Iterator[Contrast]:
    """By how much memory differs from the baseline's, by group.

    Memory is linear in the change since the reference, which both share: what is left
    of the difference is how far the two are ``apart``, nats, of all units.
    """
    for each in groups:
        moved = memory(apart[each.spans.index], each.sides)
        yield contrast_of(
            moved.difference,
            metric="memory",
            checkpoint=name,
            baseline=baseline,
            group=each.group,
            null=0.0,
            p=moved.t_p(),
        )


def _rows(name: str, group: str, found: Moved) -> list[Row]:
    own, beyond, none = found.own, found.beyond, {"null": 0.0}
    band = {**none, "null_low": -found.reach, "null_high": found.reach}
    row = partial(row_of, checkpoint=name, group=group)
    return [
        row(own.trained, metric="pii_change", of="trained"),
        row(own.held_out, metric="pii_change", of="never-trained"),
        row(own.difference, metric="memory", **band),
        row(beyond.held_out, metric="kind", **none),
        row(beyond.difference, metric="specific", **none),
    ]


def _trend_row(name: str, trend: Estimate) -> Row:
    return row_of(trend, checkpoint=name, metric="memory", of="trend", null=0.0)


def pooled_change(spans: pd.DataFrame, change: np.ndarray) -> Estimate:
    """Change of the NLL of some spans, nats per token."""
    columns = np.stack([change[spans.index], spans["n_tokens"]], axis=1)
    codes = pd.factorize(spans["cluster"], sort=True)[0]
    return ratio_estimate(*cluster_sums(columns, codes).T)


def low_drift(low: pd.DataFrame, change: np.ndarray) -> Estimate:
    """Change of the NLL of low-sensitivity text, if there is any."""
    return Estimate.missing(NO_LOW) if low.empty else pooled_change(low, change)
