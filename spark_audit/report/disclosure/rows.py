"""Rows as shared files hold them: withheld where clusters are few, else rounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from spark_audit.audits import about
from spark_audit.report.disclosure.rounding import (
    count_of,
    decade,
    rounded,
    rounded_p,
    rounded_up,
    step_of,
    with_digits,
)
from spark_audit.results import Row
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH, WITHHELD, WITHHELD_NOTE

RowT = TypeVar("RowT", bound=Row)

RowKey: TypeAlias = tuple[object, ...]
"""What tells a row of a report from all others."""

MEANT = ("value", "low", "high", "null", "mde", "at_most")

PS = ("p", "p_adjusted")

FIGURE_COLUMNS = (*MEANT, "parity_low", "parity_high", "null_low", "null_high", *PS)

CHANCE_AUC = 0.5
"""An AUC without an effect."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a figure stands; empty where no figure at hand differs by it."""

    audit: str
    checkpoint: str
    group: str
    metric: str
    of: str = ""
    baseline: str = ""
    over: str = ""

    @classmethod
    def shown_together(cls, row: Row) -> Place:
        """Return the place of figures that are shown with a row's or not at all.

        Of a metric with a partner, such as a rate and its complement, that is the place
        of the metric that leads both, of any variant.
        """
        partners = {metric.name: metric.partner for metric in about(row.audit).metrics}
        leading_metric = partners.get(row.metric) or row.metric
        has_partner = leading_metric in partners.values()
        return cls(
            audit=row.audit,
            checkpoint=row.checkpoint,
            group=row.group,
            metric=leading_metric if has_partner else row.metric,
            of="" if has_partner else row.of,
            baseline=getattr(row, "baseline", ""),
            over=row.over,
        )

    @property
    def partition(self) -> Place:
        """The place without the name of its group: groups of one kind share it."""
        kind, _, _ = self.group.partition(":")
        return replace(self, group=kind)


def _place_of_whole(row: Row) -> RowKey | None:
    """Return the place of the figure of all identifiers, if this is of a part."""
    whole = about(row.audit).whole_of(row.metric, row.of)
    if whole is None:
        return None
    return (*whole, row.checkpoint, row.over, row.group)


def withheld_rows(rows: Sequence[Row]) -> dict[int, str]:
    """Return why rows are withheld, by their identity; the others are shown.

    Figures of one place are withheld together. Where those of a group are withheld,
    those of one more group of its partition are, too: what is left of the pooled figure
    is then never that of a few.
    """
    sizes = _sizes(rows)
    rows_by_place: dict[Place, list[Row]] = {}
    for row in rows:
        if not about(row.audit).is_of_nobody(row.unit):
            rows_by_place.setdefault(Place.shown_together(row), []).append(row)

    withheld: dict[int, str] = {}
    shown_by_partition: dict[Place, list[list[Row]]] = {}
    partitions_with_few: set[Place] = set()
    for place, rows_here in rows_by_place.items():
        few = _rows_of_few(rows_here, sizes)
        rest = [
            row for row in rows_here if id(row) not in few and row.value is not None
        ]
        if few:
            partitions_with_few.add(place.partition)
            withheld |= few
            withheld |= dict.fromkeys(map(id, rest), WITHHELD_NOTE)
        elif rest:
            shown_by_partition.setdefault(place.partition, []).append(rest)

    for partition in partitions_with_few & shown_by_partition.keys():
        # Groups may share clusters: several small ones together can be as few.
        smallest = min(shown_by_partition[partition], key=_fewest_clusters)
        withheld |= dict.fromkeys(map(id, smallest), WITHHELD_NOTE)
    return withheld


@dataclass(frozen=True)
class _Sizes:
    """How much the figures of a report are of.

    Attributes
    ----------
    clusters
        Most clusters of an audit's figures, by audit, checkpoint and group.
    matched
        Identifiers that have a control, by the place of the figure of all of them.
    """

    clusters: dict[tuple[str, str, str], int]
    matched: dict[RowKey, int]


def _sizes(rows: Sequence[Row]) -> _Sizes:
    """Return how much the figures of a report are of."""
    clusters: dict[tuple[str, str, str], int] = {}
    matched: dict[RowKey, int] = {}
    for row in rows:
        group = (row.audit, row.checkpoint, row.group)
        clusters[group] = max(clusters.get(group, 0), row.clusters)

        whole = _place_of_whole(row)
        if row.value is not None and whole is not None:
            matched[whole] = row.n
    return _Sizes(clusters, matched)


def _rows_of_few(rows: Sequence[Row], sizes: _Sizes) -> dict[int, str]:
    """Return why rows of one place are withheld, by their identity."""
    few = {}
    for row in rows:
        n_clusters = row.clusters
        if row.value is None:
            # A figure that is not estimable does not say of how many clusters it is.
            group = (row.audit, row.checkpoint, row.group)
            n_clusters = sizes.clusters[group] or MIN_CLUSTERS_TO_PUBLISH

        whole = (row.audit, row.metric, row.of, row.checkpoint, row.over, row.group)
        n_without_control = row.n - sizes.matched.get(whole, row.n)
        # Without a control are fewer tokens than so many clusters have on average.
        if 0 < n_without_control * row.clusters < MIN_CLUSTERS_TO_PUBLISH * row.n:
            few[id(row)] = WITHHELD_NOTE
        elif n_clusters < MIN_CLUSTERS_TO_PUBLISH:
            few[id(row)] = WITHHELD
    return few


def _fewest_clusters(rows: Sequence[Row]) -> int:
    """Return the clusters of the smallest of some rows."""
    return min(row.clusters for row in rows)


def shown_row(row: RowT, why: str | None = None) -> RowT:
    """Return the row with rounded figures, or with none and why they are withheld."""
    if row.value is None:
        return row

    figures = {}
    for name in FIGURE_COLUMNS:
        figure = getattr(row, name, None)
        if figure is not None:
            figures[name] = figure
    if why is not None:
        empty = {"status": "not_estimable", "interval": "none", "note": why}
        return row.model_copy(update={**dict.fromkeys(figures), **empty})

    step = step_of(row)
    update: dict[str, Any] = {
        name: _shown_figure(name, figure, row, step) for name, figure in figures.items()
    }
    update["n"] = count_of(row.n, row.clusters)
    update["level"] = with_digits(row.level)
    return row.model_copy(update=update)


def _shown_figure(name: str, figure: float, row: Row, step: float | None) -> float:
    """Return a figure of a row, as finely as the row's clusters allow.

    Parameters
    ----------
    name
        Its column.
    step
        Of the row's figures; None: nothing asks for one.
    """
    if name in PS:
        return rounded_p(figure)
    if row.unit == "tries":
        return decade(figure)
    if step is None:
        return with_digits(figure)

    if name == "mde":
        near = rounded_up(figure, step)
    else:
        # Steps from an AUC's null, so that every limit stays on its side of it.
        is_auc = (row.metric, row.null) == ("auc", CHANCE_AUC)
        null = CHANCE_AUC if is_auc else 0.0
        near = round(null + rounded(figure - null, step), 12)
    is_share = row.unit == "" and abs(figure) <= 1
    most = 1.0 if is_share else math.inf
    return max(-most, min(most, near))


def row_key(row: Row) -> RowKey:
    """Return what tells a row of a report from all others."""
    baseline = getattr(row, "baseline", "")
    return (
        row.audit,
        row.checkpoint,
        baseline,
        row.over,
        row.metric,
        row.of,
        row.group,
        row.value,
    )
