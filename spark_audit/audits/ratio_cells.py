"""Units of a report by group, and the cells of figures that are ratios of sums.

A cell holds the numerator and denominator of each unit of a group for one figure: one
metric of one checkpoint. The variant of a figure says which kind of units it is
over, such as identifiers or their controls. The module
:mod:`~spark_audit.audits.ratio_rows` sums cells by cluster, and makes figures of them.
Train rows and test rows are examples of the manifest.

A further group of units goes into ``_members_by_group``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits import supervision
from spark_audit.audits.base import Context
from spark_audit.results.evidence import Evidence
from spark_audit.stats.bootstrap import Weights, draw_weights


class RatioKey(NamedTuple):
    """Checkpoint, metric and variant of a figure, within one group."""

    checkpoint: str
    metric: str
    variant: str


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
        Number of each unit's cluster, shape ``(n,)``: from 0 without gaps.
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
    cluster_numbers = pd.factorize(units["cluster"], sort=True)[0]  # (units,)

    for group, is_member in _members_by_group(units).items():
        if not is_member.any():
            continue

        # Number them again without gaps, since only clusters of the group are
        # resampled.
        clusters, codes = np.unique(cluster_numbers[is_member], return_inverse=True)
        yield UnitGroup(
            name=group,
            positions=units.index[is_member].to_numpy(),
            codes=codes,  # (n,)
            n_clusters=len(clusters),
        )


def _members_by_group(units: pd.DataFrame) -> dict[str, np.ndarray]:
    """Map each group, in the order of reports, to a mask of its units, ``(units,)``.

    Parameters
    ----------
    units
        As for :func:`groups_of`.
    """
    is_train = (units["split"] == "train").to_numpy()  # (units,), bool
    is_member_of = {"pooled": is_train}

    for column in ("task", "type"):
        values = units[column].to_numpy()
        names = sorted(set(values[is_train]) - {""})
        for name in names:
            is_member_of[f"{column}:{name}"] = is_train & (values == name)

    # Groups by supervision, if it is known.
    if supervision.COLUMN in units:
        states = units[supervision.COLUMN].to_numpy()
        for stratum in supervision.STRATA:
            group = supervision.group_of(stratum)
            is_member_of[group] = is_train & (states == stratum)

    is_member_of["split:test"] = (units["split"] == "test").to_numpy()
    return is_member_of


class RatioCell(NamedTuple):
    """Numerators and denominators of a figure, which is the ratio of their sums.

    Attributes
    ----------
    key
        The key of the figure.
    numerators, denominators
        Values of the group's units, shape ``(n,)``. A unit that was not scored, or has
        another variant, has the numerator NaN; its denominator does not count either.
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
    variants: np.ndarray,
    denominators: np.ndarray | None = None,
) -> Iterator[GroupWithCells]:
    """Yield cells of scores group by group, since all cells may not fit into memory.

    Parameters
    ----------
    groups
        From :func:`groups_of`, of the units of the evidence.
    column
        Column of scores in the evidence.
    metrics
        Metric -> function from scores to numerators, both of shape ``(n,)``. Units
        that were not scored do not count, whatever it makes of their score NaN.
    variants
        Variant of each unit of the evidence, shape ``(units,)``.
    denominators
        Denominator of each unit, shape ``(units,)``; ``None``: each counts 1.
    """

    def cells(positions: np.ndarray) -> Iterator[RatioCell]:
        """Yield the cells of the group whose units have these ``positions``, ``(n,)``.

        This is a generator, so that memory holds one figure of one checkpoint at a
        time.
        """
        variants_of_group = variants[positions]  # (n,)
        denominators_of_group = np.ones(len(positions))
        if denominators is not None:
            denominators_of_group = denominators[positions]

        for metric, numerators_of in metrics.items():
            for checkpoint in evidence.checkpoints:
                scores = evidence.row(checkpoint, column)[positions]  # (n,)
                numerators = numerators_of(scores)  # (n,)
                is_scored = ~np.isnan(scores)  # (n,), bool

                # The units of other variants count in cells of their own.
                for variant in dict.fromkeys(variants_of_group):
                    counts_here = is_scored & (variants_of_group == variant)
                    numerators_of_variant = np.where(counts_here, numerators, np.nan)
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
    """Return the cells of a frame, whose lines are the units of one group.

    The denominator of each line is 1, so that figures are means over lines.

    Parameters
    ----------
    group
        Name of the group.
    frame
        Columns ``checkpoint``, ``variant``, ``cluster``, and those of
        ``metrics``.
    metrics
        Metric -> column that is averaged over the lines; NaN: the line does not count.
    """
    codes, clusters = pd.factorize(frame["cluster"], sort=True)  # codes: (lines,)

    # Pairs of checkpoint and variant, numbered in the order of the lines.
    pairs = frame[["checkpoint", "variant"]].drop_duplicates()
    by_pair = frame.groupby(["checkpoint", "variant"], sort=False)
    pair_of_line = by_pair.ngroup().to_numpy()  # (lines,)
    denominators = np.ones(len(frame))

    def cells() -> Iterator[RatioCell]:
        """Yield one cell for each metric, checkpoint and variant."""
        for metric, column in metrics.items():
            numbered_pairs = enumerate(pairs.itertuples(index=False, name=None))
            for pair, (checkpoint, variant) in numbered_pairs:
                yield RatioCell(
                    key=RatioKey(checkpoint, metric, variant),
                    numerators=np.where(pair_of_line == pair, frame[column], np.nan),
                    denominators=denominators,
                )

    unit_group = UnitGroup(
        name=group,
        positions=np.arange(len(frame)),
        codes=codes,
        n_clusters=len(clusters),
    )
    return unit_group, cells()
