"""Figures that are ratios of sums over clusters: cells in, rows and contrasts out.

Most figures of an audit are a sum over tokens, spans or canaries divided by their
number. An audit lists the numerator and denominator of each unit
(:mod:`~spark_audit.audits.ratio_cells`, whose names can be imported from here). This
module does the rest for all audits: the interval, the chance value, the paired
difference to a baseline with its test, and the smallest effect it could have shown.

``cells_of_units`` or ``cells_of_frame`` -> ``ratio_figures`` (sums by cluster) ->
``figures`` (estimates) -> rows and contrasts.

A row is a figure of the report (:class:`~spark_audit.results.rows.Row`), not a row of a
manifest.

A further metric is declared in its audit's ``metrics`` and is a line of the mapping
that the audit gives to ``cells_of_units`` or ``cells_of_frame``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from spark_audit.audits.base import Audit, Context
from spark_audit.audits.ratio_cells import GroupWithCells as GroupWithCells
from spark_audit.audits.ratio_cells import RatioCell as RatioCell
from spark_audit.audits.ratio_cells import RatioKey as RatioKey
from spark_audit.audits.ratio_cells import UnitGroup as UnitGroup
from spark_audit.audits.ratio_cells import cells_of_frame as cells_of_frame
from spark_audit.audits.ratio_cells import cells_of_units as cells_of_units
from spark_audit.audits.ratio_cells import groups_of as groups_of
from spark_audit.names import BASE
from spark_audit.results import Contrast, Row
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.estimate import Estimate, Status
from spark_audit.stats.intervals import Estimand, estimates_of, ratio, replicates_of
from spark_audit.stats.power import with_mde
from spark_audit.stats.sign_flips import sign_flips


class PairedKey(NamedTuple):
    """A :class:`RatioKey` and a baseline, which is empty for a figure by itself.

    With a baseline, it is the key of the figure minus that of the baseline.
    """

    checkpoint: str
    baseline: str
    metric: str
    variant: str


class RowPlace(NamedTuple):
    """Which figure of a report a row is; each row of an audit has its own place."""

    checkpoint: str
    group: str
    metric: str
    variant: str


def ratio_figures(
    groups: Iterable[GroupWithCells],
    context: Context,
    audit: type[Audit],
    **bounds: tuple[float, float],
) -> tuple[list[Row], list[Contrast]]:
    """Return rows and contrasts of ratios of sums, group by group.

    They are those of :func:`figures`. ``n`` of a figure is the sum of its denominators:
    tokens, spans or canaries, whichever the audit counts. A figure without a scored
    unit has no row.

    Parameters
    ----------
    groups
        From :func:`cells_of_units` or :func:`cells_of_frame`.
    bounds
        Metric -> smallest and largest value, where these depend on the data; other
        metrics have the bounds that they declare.
    """
    rows: list[Row] = []
    contrasts: list[Contrast] = []
    for group, cells in groups:
        sums: dict[RatioKey, Estimand] = {}
        for cell in cells:
            is_scored = ~np.isnan(cell.numerators)  # (n,), bool
            if is_scored.any():
                sums_of_cell = _sums_by_cluster(cell, group, is_scored)
                metric = audit.metric(cell.key.metric)
                sums[cell.key] = Estimand(
                    sums=sums_of_cell,  # (clusters, 2)
                    statistic=ratio,
                    n=round(float(sums_of_cell[:, 1].sum())),
                    bounds=bounds.get(metric.name, metric.bounds),
                    rate=metric.rate,
                )

        group_rows, group_contrasts = figures(group, sums, context, audit)
        rows += group_rows
        contrasts += group_contrasts
    return rows, contrasts


def _sums_by_cluster(
    cell: RatioCell, group: UnitGroup, is_scored: np.ndarray
) -> np.ndarray:
    """Return the sums of numerators and denominators, ``(clusters, 2)``.

    Parameters
    ----------
    is_scored
        Which units of the group count, ``(n,)`` bool.
    """
    terms = np.stack([cell.numerators, cell.denominators], axis=1)  # (n, 2)
    return cluster_sums(terms[is_scored], group.codes[is_scored], group.n_clusters)


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
        figure is compared with a baseline, the estimate must be one without a value.
    audit
        The audit of the figures, which declares their metrics.
    pairs
        Each checkpoint and what it is compared with; ``None``: its baseline.
    flipped
        Returns what each cluster adds to a difference, ``(clusters,)``: the test flips
        the signs of these numbers.

    Notes
    -----
    ``p`` is that of the sign-flip test over clusters, two-sided. By default it needs
    checkpoint and baseline to have the same denominators, as they do on one manifest.
    Intervals by percentiles decide only with the paper's preset, and never those of
    metrics that are ``heavy``.
    """
    if pairs is None:
        pairs = context.baselines.items()
    pairs = list(pairs)

    # p comes first: the test needs the sums, which estimates do not keep.
    differences = _paired_differences(sums, pairs, audit)
    ps = _sign_flip_ps(differences, flipped, seed=context.seed)

    # All figures and differences share the same resamples.
    replicates = replicates_of(sums, group.weights(context))
    estimates: dict[PairedKey, Estimate] = {}
    for ratio_key, estimate in estimates_of(sums, replicates).items():
        figure_key = PairedKey(
            checkpoint=ratio_key.checkpoint,
            baseline="",
            metric=ratio_key.metric,
            variant=ratio_key.variant,
        )
        estimates[figure_key] = estimate

    for key, difference in _paired_differences(sums, pairs, audit):
        if isinstance(difference, Estimate):
            estimates[key] = difference
        else:
            estimates[key] = difference.estimate(_difference_of(replicates, key))

    rows: list[Row] = []
    contrasts: list[Contrast] = []
    for key, estimate in estimates.items():
        metric = audit.metric(key.metric)
        is_figure = key.baseline == ""

        # Without an effect a difference is 0; a figure by itself has no such value.
        estimate = with_mde(estimate, null=None if is_figure else 0.0)
        estimate = estimate.with_deciding_interval(
            paper=context.paper and not metric.heavy
        )
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
    return audit.row(estimate, key.checkpoint, key.metric, key.variant, group=group)


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
        variant=key.variant,
        group=group,
        unit=audit.metric(key.metric).unit,
        no_effect=0.0,
        p=p,
    )


def _paired_differences(
    sums: Mapping[RatioKey, Estimand | Estimate],
    pairs: Iterable[tuple[str, str]],
    audit: type[Audit],
) -> Iterator[tuple[PairedKey, Estimand | Estimate]]:
    """Yield each figure minus that of its baseline.

    Over many clusters a difference takes much memory, so all of them are never held at
    once.

    Parameters
    ----------
    pairs
        Each checkpoint and what it is compared with.
    """
    baselines_by_checkpoint: dict[str, list[str]] = {}
    for checkpoint, baseline in pairs:
        baselines_by_checkpoint.setdefault(checkpoint, []).append(baseline)

    for (checkpoint, metric, variant), figure in sums.items():
        # Some metrics are never compared with a baseline.
        if audit.metric(metric).alone:
            continue

        for baseline in baselines_by_checkpoint.get(checkpoint, ()):
            baseline_figure = sums.get(RatioKey(baseline, metric, variant))
            if baseline_figure is not None:
                key = PairedKey(checkpoint, baseline, metric, variant)
                yield key, _difference(figure, baseline_figure)


def _difference(
    figure: Estimand | Estimate, baseline_figure: Estimand | Estimate
) -> Estimand | Estimate:
    """Return a figure minus that of its baseline.

    An estimate that is there already has no sums to subtract. It has no value, and the
    difference has none for the same reason.
    """
    if isinstance(figure, Estimate):
        return figure
    if isinstance(baseline_figure, Estimate):
        return baseline_figure
    return figure.minus(baseline_figure)


def _difference_of(
    replicates: Mapping[RatioKey, np.ndarray], key: PairedKey
) -> np.ndarray:
    """Return a figure minus that of its baseline in every resample, shape ``(B,)``."""
    figure = replicates[RatioKey(key.checkpoint, key.metric, key.variant)]
    baseline_figure = replicates[RatioKey(key.baseline, key.metric, key.variant)]

    # Both may be infinite in a resample, where their difference is NaN.
    with np.errstate(invalid="ignore"):
        return np.asarray(figure - baseline_figure)


def _sign_flip_ps(
    differences: Iterable[tuple[PairedKey, Estimand | Estimate]],
    flipped: Callable[[Estimand], np.ndarray],
    *,
    seed: int,
) -> dict[PairedKey, float]:
    """Return two-sided p of the differences that several clusters add to.

    All differences are tested in one call, with the same random signs of clusters.

    Parameters
    ----------
    flipped
        As in :func:`figures`.
    """
    added_by_cluster: dict[PairedKey, np.ndarray] = {}
    for key, difference in differences:
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
    """Return the rows with the untrained model's figure as their null value.

    Rows of the untrained model itself keep theirs.
    """

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
        RowPlace(row.checkpoint, row.group, row.metric, row.variant): row
        for row in rows
    }

    with_null: list[Row] = []
    for place, row in row_by_place.items():
        null_row = None
        null_place = null_of(place)
        if null_place is not None:
            null_row = row_by_place.get(null_place)

        if null_row is not None:
            null_fields = {
                "no_effect": null_row.value,
                "no_effect_low": null_row.low,
                "no_effect_high": null_row.high,
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
