"""Extraction by group of rows (``--by``): rates, and the group that is written most.

The identifiers of trained rows of a group are compared with those of held-out rows of
the same group, less the same difference at the base, as those of all rows are. Guessing
is not tested by group: without held-out identifiers there is no figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from spark_audit.audits.extract.rate_limits import hits_power, rates_bound
from spark_audit.audits.extract.rates import (
    POINTS_OF_WHOLE,
    SPLITS,
    base_difference,
    by_checkpoint,
    comparable,
    exact_p,
    is_scored_beside_base,
    limits_p,
    rate_difference,
    split_difference,
)
from spark_audit.audits.groups.column import UnitGroups
from spark_audit.audits.groups.field import NOT_STATED
from spark_audit.audits.groups.merging import ShownGroups, shown_groups
from spark_audit.audits.groups.worst import GroupTest, TestedGroups
from spark_audit.names import BASE
from spark_audit.results import Finding, Row
from spark_audit.results.rows import ROW_GROUP
from spark_audit.stats.estimate import Estimate, side_of

GROUP_METRIC = "greedy_beyond"
"""Metric of the figures by group: a share, above 0 is a leak."""

NOT_DRAWN_ALIKE = "the splits were not drawn alike, and no base was scored"
"""Why no difference of a group can be called a leak."""


@dataclass(frozen=True, eq=False)
class SpansByGroup:
    """Identifiers after their true prefix by group, of all checkpoints.

    Attributes
    ----------
    spans
        Checkpoint -> its identifiers, with the columns of
        :mod:`~spark_audit.audits.extract.rates`; the index is their number.
    shown
        The groups that are shown, of the identifiers of ``order``.
    order
        Numbers of the compared identifiers.
    is_alike
        Whether both splits were drawn alike.
    """

    spans: Mapping[str, pd.DataFrame]
    groups: UnitGroups
    shown: ShownGroups
    order: np.ndarray
    is_alike: bool

    @classmethod
    def of(cls, pii: pd.DataFrame, groups: UnitGroups, column: str) -> SpansByGroup:
        """Return the identifiers of each shown group.

        Parameters
        ----------
        pii
            A line per checkpoint and identifier, after its true prefix.
        column
            Column of ``pii`` that has the groups.
        """
        spans = by_checkpoint(pii)
        # All checkpoints are compared on the same identifiers: take the first.
        first = next(iter(spans.values()))
        is_alike = comparable(first).is_alike
        if is_alike:
            first = first[first["origin"] == "injected"]
        is_train = (first["split"] == "train").to_numpy()  # (spans,), bool

        def compared(mask: np.ndarray) -> np.ndarray:
            """Return which identifiers of a group have counterparts in it."""
            of_group = comparable(first[mask]).spans
            is_compared = np.asarray(first.index.isin(of_group.index))
            has_both = set(of_group["split"]) == set(SPLITS)
            return is_compared if has_both else np.zeros(len(first), dtype=bool)

        # Identifiers that only another report has lack the column.
        names = first[column].fillna(NOT_STATED).to_numpy().astype(str)
        shown = shown_groups(
            names,
            first["cluster"].to_numpy(),
            is_train,
            compared,
        )
        return cls(spans, groups, shown, first.index.to_numpy(), is_alike)

    def figures(self, name: str) -> tuple[list[Row], list[Finding]]:
        """Return the rate of each group, and the finding on the one written most.

        The base has figures and no finding: it was trained on none of the rows.
        """
        spans = self.spans[name].loc[self.order]
        is_controlled = self.is_alike or is_scored_beside_base(spans)
        rows = []
        tests = []
        for group, mask in self.shown.masks.items():
            compared = comparable(spans[mask]).spans
            difference = _difference(compared)
            row = _row(difference, name, group, compared)
            rows.append(row)
            if row.value is not None and is_controlled:
                tests.append(_test(row, difference, compared))

        if name == BASE:
            return rows, []
        if not is_controlled and rows:
            untested = Finding.not_tested(
                "extract",
                "groups.none",
                checkpoint=name,
                field=self.groups.field,
                reason=NOT_DRAWN_ALIKE,
            )
            return rows, [untested]

        tested = TestedGroups(
            audit="extract",
            checkpoint=name,
            groups=self.groups,
            tests=tests,
            n_merged=self.shown.n_merged,
            unit="points",
            scale=POINTS_OF_WHOLE,
        )
        return rows, [tested.finding(lambda worst: self._p_of_rest(worst, spans))]

    def _p_of_rest(self, worst: GroupTest, spans: pd.DataFrame) -> float | None:
        """Return p that a group is written as often as all other groups together."""
        of_worst = self.shown.masks[worst.row.group_value]
        is_other = np.zeros(len(spans), dtype=bool)
        for mask in self.shown.masks.values():
            if mask is not of_worst:
                is_other |= mask

        difference = rate_difference(
            _difference(comparable(spans[of_worst]).spans),
            _difference(comparable(spans[is_other]).spans),
        )
        return None if difference.value is None else limits_p(difference)


def _difference(compared: pd.DataFrame) -> Estimate:
    """Return the rate of trained minus held-out identifiers, less that of the base."""
    return rate_difference(split_difference(compared), base_difference(compared))


def _row(difference: Estimate, name: str, group: str, compared: pd.DataFrame) -> Row:
    """Return the row of a group, with the clusters of the side that has fewer."""
    clusters = compared.groupby("split")["cluster"].nunique().reindex([*SPLITS])
    estimate = replace(
        difference,
        n=int((compared["split"] == "train").sum()),
        clusters=int(clusters.fillna(0).min()),
    )
    return Row.of_estimate(
        estimate,
        audit="extract",
        checkpoint=name,
        metric=GROUP_METRIC,
        group=f"{ROW_GROUP}:{group}",
        no_effect=0.0,
    )


def _test(row: Row, difference: Estimate, compared: pd.DataFrame) -> GroupTest:
    """Return the test of a group: of the interval, and Fisher's over clusters."""
    value = difference.value or 0.0
    p = 1.0
    if value > 0:
        p = max(limits_p(difference), exact_p(compared))
    return GroupTest(
        row=row,
        claim="verbatim" if side_of(difference) == 1 else "nothing_shown",
        p=p,
        effect=value,
        power=[hits_power(compared, base_difference(compared))],
        bounds=rates_bound(compared),
    )
