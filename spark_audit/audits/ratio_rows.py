"""Figures that are ratios of sums over clusters: cells in, rows and contrasts out.

Most figures of an audit are a sum over tokens, spans or canaries divided by their
number. An audit lists the numerator and denominator of each unit. This module does the
rest for all audits: the interval, the chance value, the paired difference to a baseline
with its test, and the smallest effect it could have shown.

``cells_of_units`` or ``cells_of_frame`` -> ``ratio_figures`` (sums by cluster) ->
``figures`` (estimates) -> rows and contrasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits import supervision
from spark_audit.audits.base import Audit, Context
from spark_audit.names import BASE
from spark_audit.results import Contrast, Row
from spark_audit.results.evidence import Evidence
from spark_audit.stats.bootstrap import Weights, cluster_sums, draw_weights
from spark_audit.stats.estimate import Estimate, Status
from spark_audit.stats.intervals import Estimand, estimates_of, ratio, replicates_of
from spark_audit.stats.power import with_mde
from spark_audit.stats.sign_flips import sign_flips


class RatioKey(NamedTuple):
    """Checkpoint, metric and variant (``of``) of a figure, within one group."""

    checkpoint: str
    metric: str
    of: str


class PairedKey(NamedTuple):
    """A :class:`RatioKey` and a baseline, which is empty for a figure by itself.

    With a baseline, it is the key of the figure minus that of the baseline.
    """

    checkpoint: str
    baseline: str
    metric: str
    of: str


class RowPlace(NamedTuple):
    """Which figure of a report a row is; each row of an audit has its own place."""

    checkpoint: str
    group: str
    metric: str
    of: str


@dataclass(frozen=True)
class UnitGroup:
    """Units of one group of a report.

    Attributes
    ----------
    name
        Name of the group, such as ``pooled`` or ``type:NAME``.
    positions
        Positions of its units in the evidence, shape ``(n,)``.
    codes
        Clusters of its units, shape ``(n,)``: from 0, in the order of their labels.
    n_clusters
        Number of clusters, of which each has at least one unit.
    """

    name: str
    positions: np.ndarray
    codes: np.ndarray
    n_clusters: int

    def weights(self, context: Context) -> Weights:
        """Return the resamples of its clusters, the same ones for all figures."""
        return draw_weights(
            self.n_clusters, replicates=context.replicates, seed=context.seed
        )


def groups_of(units: pd.DataFrame) -> Iterator[UnitGroup]:
    """Yield the report's groups of units.

    Units of train rows are pooled, then by task, by type (an empty value is of none)
    and, where it is known, by what training did with them; those of test rows are one
    group. Units that training cut off (a ``dose`` below 0) are in none.

    Parameters
    ----------
    units
        One line per unit: columns ``split``, ``cluster``, ``task``, ``type``; where
        known ``dose`` and :data:`~spark_audit.audits.supervision.COLUMN`. Its index
        gives the positions in the evidence; a selection keeps them.
    """
    if "dose" in units:
        units = units[units["dose"] >= 0]
    # Number clusters over all units, so that groups agree on their order.
    labels = pd.factorize(units["cluster"], sort=True)[0]  # (units,)
    is_train = (units["split"] == "train").to_numpy()  # (units,), bool
    is_test = (units["split"] == "test").to_numpy()

    groups = [("pooled", is_train)]
    for column in ("task", "type"):
        values = units[column].to_numpy()
        names = sorted(set(values[is_train]) - {""})
        for name in names:
            groups.append((f"{column}:{name}", is_train & (values == name)))

    # Groups by supervision, if it is known.
    if supervision.COLUMN in units:
        states = units[supervision.COLUMN].to_numpy()
        for stratum in supervision.STRATA:
            group = supervision.group_of(stratum)
            groups.append((group, is_train & (states == stratum)))
    groups.append(("split:test", is_test))

    for group, is_member in groups:
        if not is_member.any():
            continue

        # Codes run from 0 without gaps, since only clusters of the group are resampled.
        clusters, codes = np.unique(labels[is_member], return_inverse=True)
        yield UnitGroup(
            name=group,
            positions=units.index[is_member].to_numpy(),
            codes=codes,  # (n,)
            n_clusters=len(clusters),
        )


class RatioCell(NamedTuple):
    """Numerators and denominators of a figure, which is the ratio of their sums.

    Attributes
    ----------
    key
        The key of the figure.
    numerators, denominators
        Values of the group's units, shape ``(n,)``. Numerators are NaN for units that
        were not scored or have another variant.
    """

    key: RatioKey
    numerators: np.ndarray
    denominators: np.ndarray


GroupWithCells: TypeAlias = tuple[UnitGroup, Iterable[RatioCell]]
"""A group with the cells of all its figures."""


def cells_of_units(
    groups: Iterable[UnitGroup],
    evidence: Evidence,
    column: str,
    *,
    metrics: Mapping[str, Callable[[np.ndarray], np.ndarray]],
    of: np.ndarray,
    denominators: np.ndarray | None = None,
) -> Iterator[GroupWithCells]:
    """Yield cells of scores group by group, since all cells may not fit into memory.

    Parameters
    ----------
    column
        Column of scores in the evidence.
    metrics
        Metric -> function from scores to numerators, both of shape ``(n,)``. It must
        keep NaN, the score of a unit that was not scored: else the unit counts as 0.
    of
        Variant of each unit of the evidence, shape ``(units,)``.
    denominators
        Denominator of each unit, shape ``(units,)``; ``None``: each counts 1.
    """

    def cells(positions: np.ndarray) -> Iterator[RatioCell]:
        """Yield the cells of a group; ``positions``, ``(n,)``, are of its units."""
        # This is a generator, so that memory holds one figure of one checkpoint at a
        # time.
        variants = of[positions]  # (n,)
        denominators_of_group = np.ones(len(positions))
        if denominators is not None:
            denominators_of_group = denominators[positions]

        for metric, numerators_of in metrics.items():
            for checkpoint in evidence.checkpoints:
                scores = evidence.row(checkpoint, column)[positions]  # (n,)
                numerators = numerators_of(scores)  # (n,), NaN: not scored

                # The units of other variants count in cells of their own.
                for variant in dict.fromkeys(variants):
                    numerators_of_variant = np.where(
                        variants == variant, numerators, np.nan
                    )
                    yield RatioCell(
                        key=RatioKey(checkpoint, metric, variant),
                        numerators=numerators_of_variant,
                        denominators=denominators_of_group,
                    )

    for group in groups:
        yield group, cells(group.positions)


def cells_of_frame(
    group: str, frame: pd.DataFrame, metrics: Mapping[str, str]
) -> GroupWithCells:
    """Return the cells of a frame, each line of which counts 1.

    Parameters
    ----------
    frame
        Columns ``checkpoint``, ``of``, ``cluster``, and those that ``metrics`` names.
    metrics
        Metric -> column that is averaged over the lines; NaN: the line does not count.
    """
    codes, clusters = pd.factorize(frame["cluster"], sort=True)  # codes: (lines,)

    # Checkpoints with their variants, numbered in the order of the lines.
    numbers = frame.groupby(["checkpoint", "of"], sort=False).ngroup().to_numpy()
    pairs = frame[["checkpoint", "of"]].drop_duplicates()
    checkpoints_and_variants = list(pairs.itertuples(index=False, name=None))
    denominators = np.ones(len(frame))

    def cells() -> Iterator[RatioCell]:
        """Yield one cell for each metric, checkpoint and variant."""
        for metric, column in metrics.items():
            for number, (checkpoint, variant) in enumerate(checkpoints_and_variants):
                yield RatioCell(
                    key=RatioKey(checkpoint, metric, variant),
                    numerators=np.where(numbers == number, frame[column], np.nan),
                    denominators=denominators,
                )

    unit_group = UnitGroup(
        name=group,
        positions=np.arange(len(frame)),
        codes=codes,
        n_clusters=len(clusters),
    )
    return unit_group, cells()


def ratio_figures(
    groups: Iterable[GroupWithCells],
    context: Context,
    audit: type[Audit],
    **bounds: tuple[float, float],
) -> tuple[list[Row], list[Contrast]]:
    """Return rows and contrasts of ratios of sums, group by group.

    They are those of :func:`figures`. ``n`` of a figure is the sum of its denominators:
    tokens, spans or canaries, whichever the audit counts.

    Parameters
    ----------
    bounds
        Metric -> smallest and largest value, where these depend on the data; other
        metrics have the bounds that they declare.
    """
    rows: list[Row] = []
    contrasts: list[Contrast] = []
    for group, cells in groups:
        sums: dict[RatioKey, Estimand] = {}
        for key, numerators, denominators in cells:
            is_scored = ~np.isnan(numerators)  # (n,), bool
            if not is_scored.any():
                continue

            metric = audit.metric(key.metric)
            terms = np.stack([numerators, denominators], axis=1)  # (n, 2)
            by_cluster = cluster_sums(
                terms[is_scored], group.codes[is_scored], group.n_clusters
            )  # (clusters, 2)
            sums[key] = Estimand(
                sums=by_cluster,
                statistic=ratio,
                n=round(float(by_cluster[:, 1].sum())),
                bounds=bounds.get(metric.name, metric.bounds),
                rate=metric.rate,
            )

        group_rows, group_contrasts = figures(group, sums, context, audit)
        rows += group_rows
        contrasts += group_contrasts
    return rows, contrasts


def added_by_clusters(difference: Estimand) -> np.ndarray:
    """Return what each cluster adds to a difference of ratios, shape ``(clusters,)``.

    Where checkpoint and baseline have the same denominators, the difference of their
    ratios is one of sums, and the sign-flip test can be made of what each cluster adds
    to it. Where the denominators differ all are 0, so that nothing is tested.

    Parameters
    ----------
    difference
        Sums of shape ``(clusters, 4)``: numerators and denominators of a checkpoint,
        then those of its baseline.
    """
    numerators, counts, baseline_numerators, baseline_counts = difference.sums.T
    if not np.array_equal(counts, baseline_counts):
        return np.zeros(len(numerators))
    return np.asarray(numerators - baseline_numerators)


def figures(
    group: UnitGroup,
    sums: Mapping[RatioKey, Estimand | Estimate],
    context: Context,
    audit: type[Audit],
    *,
    pairs: Iterable[tuple[str, str]] | None = None,
    flipped: Callable[[Estimand], np.ndarray] = added_by_clusters,
) -> tuple[list[Row], list[Contrast]]:
    """Return rows, and contrasts with baselines paired by cluster, of one group.

    Parameters
    ----------
    sums
        Figure -> its sums by cluster, or an estimate that is there already. If the
        figure is compared with a baseline, the estimate must be a missing one.
    audit
        The audit of the figures, which declares their metrics.
    pairs
        Each checkpoint and what it is compared with; ``None``: its baseline.
    flipped
        Gives what each cluster adds to a difference, ``(clusters,)``: the test flips
        their signs.

    Notes
    -----
    ``p`` is that of the sign-flip test over clusters. By default it needs checkpoint
    and baseline to have the same denominators, as they do on one manifest.
    """
    if pairs is None:
        pairs = context.baselines.items()

    # p comes first: the test needs the sums, which estimates do not keep.
    differences = _paired_differences(sums, list(pairs), audit)
    ps = _sign_flip_ps(differences, flipped, seed=context.seed)

    estimands: dict[PairedKey, Estimand | Estimate] = {}
    for ratio_key, estimand in sums.items():
        figure_key = PairedKey(
            checkpoint=ratio_key.checkpoint,
            baseline="",
            metric=ratio_key.metric,
            of=ratio_key.of,
        )
        estimands[figure_key] = estimand
    estimands |= differences

    # All figures and differences share the same resamples.
    replicates = replicates_of(estimands, group.weights(context))
    estimates = estimates_of(estimands, replicates)

    rows: list[Row] = []
    contrasts: list[Contrast] = []
    for key, estimate in estimates.items():
        metric = audit.metric(key.metric)
        is_figure = key.baseline == ""

        # Without an effect a difference is 0; a figure by itself has no such value.
        estimate = with_mde(estimate, null=None if is_figure else 0.0)
        estimate = estimate.decided(paper=context.paper and not metric.heavy)
        if is_figure:
            rows.append(_row(estimate, key, group.name, audit))
        else:
            p = None if estimate.value is None else ps.get(key)
            contrasts.append(_contrast(estimate, key, group.name, audit, p=p))
    return rows, contrasts


def _row(estimate: Estimate, key: PairedKey, group: str, audit: type[Audit]) -> Row:
    """Return the row of a figure, with the note that its metric has on all figures."""
    note = audit.metric(key.metric).note
    if note:
        estimate = estimate.noting(note)
    return audit.row(estimate, key.checkpoint, key.metric, key.of, group=group)


def _contrast(
    estimate: Estimate,
    key: PairedKey,
    group: str,
    audit: type[Audit],
    *,
    p: float | None,
) -> Contrast:
    """Return the contrast of a figure with that of its baseline."""
    return Contrast.of_estimate(
        estimate,
        audit=audit.name,
        checkpoint=key.checkpoint,
        baseline=key.baseline,
        metric=key.metric,
        of=key.of,
        group=group,
        unit=audit.metric(key.metric).unit,
        null=0.0,
        p=p,
    )


def _paired_differences(
    sums: Mapping[RatioKey, Estimand | Estimate],
    pairs: Sequence[tuple[str, str]],
    audit: type[Audit],
) -> dict[PairedKey, Estimand | Estimate]:
    """Return each figure minus that of its baseline.

    An estimate that is there already has no sums to subtract. It must be missing: then
    the difference is missing for the same reason.

    Parameters
    ----------
    pairs
        Each checkpoint and what it is compared with.
    """
    differences: dict[PairedKey, Estimand | Estimate] = {}
    for (checkpoint, metric, of), figure in sums.items():
        # Some metrics are never compared with a baseline.
        if audit.metric(metric).alone:
            continue
        for compared, baseline in pairs:
            baseline_figure = sums.get(RatioKey(baseline, metric, of))
            if compared != checkpoint or baseline_figure is None:
                continue

            key = PairedKey(checkpoint, baseline, metric, of)
            if isinstance(figure, Estimate):
                differences[key] = figure
            elif isinstance(baseline_figure, Estimate):
                differences[key] = baseline_figure
            else:
                differences[key] = figure.minus(baseline_figure)
    return differences


def _sign_flip_ps(
    differences: Mapping[PairedKey, Estimand | Estimate],
    flipped: Callable[[Estimand], np.ndarray],
    *,
    seed: int,
) -> dict[PairedKey, float]:
    """Return two-sided p of the differences that several clusters add to.

    One call flips the signs of all differences alike.

    Parameters
    ----------
    flipped
        As in :func:`figures`.
    """
    added_by_cluster: dict[PairedKey, np.ndarray] = {}
    for key, difference in differences.items():
        if isinstance(difference, Estimate):
            continue
        # Fewer than two clusters that add anything allow no sign-flip test.
        added = flipped(difference)  # (clusters,)
        if np.count_nonzero(added) > 1:
            added_by_cluster[key] = added
    if not added_by_cluster:
        return {}

    table = np.stack([*added_by_cluster.values()], axis=1)  # (clusters, differences)
    ps = sign_flips(table, seed=seed)  # (differences,)
    return dict(zip(added_by_cluster, ps.tolist(), strict=True))


def beside_base(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the untrained model's figure as their null value."""

    def place_at_base(place: RowPlace) -> RowPlace | None:
        """Return the place of the same figure of the base; the base has none."""
        if place.checkpoint == BASE:
            return None
        return place._replace(checkpoint=BASE)

    return with_nulls(rows, place_at_base)


def with_nulls(
    rows: Sequence[Row], null_of: Callable[[RowPlace], RowPlace | None]
) -> list[Row]:
    """Return the rows with other rows' figures as their null values.

    Parameters
    ----------
    rows
        Rows of one audit: one for each place.
    null_of
        Place of a row -> place of the row whose figure is its null; None: it has none.
    """
    row_by_place = {
        RowPlace(row.checkpoint, row.group, row.metric, row.of): row for row in rows
    }

    with_null: list[Row] = []
    for place, row in row_by_place.items():
        null_row = None
        null_place = null_of(place)
        if null_place is not None:
            null_row = row_by_place.get(null_place)

        if null_row is not None:
            null_fields = {
                "null": null_row.value,
                "null_low": null_row.low,
                "null_high": null_row.high,
            }
            row = row.model_copy(update=null_fields)
        with_null.append(row)
    return with_null


def marked(
    rows: Sequence[Any], status: Status, why: Callable[[Any], str | None]
) -> list[Any]:
    """Return the rows; those with a value and a reason get a status and a note.

    Parameters
    ----------
    rows
        Rows or contrasts.
    status
        The status of each row for which there is a reason.
    why
        Row -> reason, which becomes its note; None: the row stays unchanged.
    """
    marked_rows = []
    for row in rows:
        note = None
        if row.value is not None:
            note = why(row)
        if note is not None:
            row = row.model_copy(update={"status": status, "note": note})
        marked_rows.append(row)
    return marked_rows
