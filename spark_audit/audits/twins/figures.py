"""Figures of twins: exposures, rises since the base, and rises beyond held-out ones.

The frame of all functions has a line per checkpoint and identifier: the columns of the
evidence (:class:`~spark_audit.audits.twins.audit.Twins`) and those of :func:`ranked`.
A :class:`~spark_audit.results.Row` is a figure of the report. Above 0 bits, a rise is a
way towards the top of the list: the identifier became likelier than its twins.

A new figure by side is a column of :func:`ranked`, an entry of ``column_by_metric`` in
:func:`rank_figures`, and a metric of the audit (see ``audit.py``), in whose order rows
are sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.base import Audit, Context
from spark_audit.audits.canary.ranks import TIED, resolved
from spark_audit.audits.ratio_rows import (
    beside_base,
    cells_of_frame,
    marked,
    ratio_figures,
)
from spark_audit.audits.supervision import by_supervision
from spark_audit.data.occurrences import LOWEST_DOSES, dose_group
from spark_audit.names import BASE, NEVER, TRAINED
from spark_audit.results import Contrast, Row
from spark_audit.stats import memory_contrast
from spark_audit.stats.canary_ranks import exposure_bits, top_k_credit

NO_BASE = (
    "the base model was not scored: give --base, because a rise is since the base model"
)

NO_TRAINED = "no identifier of trained rows has twins"

MIN_CONTROLS = 5
"""Fewest clusters of held-out identifiers, or of those that stand in for them, that a
comparison needs."""


def ranked(evidence: pd.DataFrame) -> pd.DataFrame:
    """Return the evidence with exposures, and rises where the base was scored.

    Added are these columns:

    ``side``
        :data:`~spark_audit.names.TRAINED` or :data:`~spark_audit.names.NEVER`.
    ``exposure``
        log2 of the number of candidates minus log2 of the rank, bits.
    ``top1``
        Credit for the first rank, 0 to 1: less than 1 where others share it.
    ``rise``
        The exposure minus that by the base, bits; NaN for the base itself. There is no
        such column without a base.

    Parameters
    ----------
    evidence
        A line per checkpoint and identifier: ``twins_id``, ``rank``, ``ties``,
        ``dose``, ``n_candidates``.
    """
    evidence = evidence.astype({"rank": np.int64, "ties": np.int64})
    rank = evidence["rank"].to_numpy()  # (identifiers of all checkpoints,)
    ties = evidence["ties"].to_numpy()
    n_candidates = evidence["n_candidates"].to_numpy()
    frame = evidence.assign(
        side=np.where(evidence["dose"] > 0, TRAINED, NEVER),
        exposure=exposure_bits(rank, n_candidates, ties=ties),
        top1=top_k_credit(rank, k=1, ties=ties),
    )

    is_base = frame["checkpoint"] == BASE
    if not is_base.any():
        return frame

    # The base has no rise.
    exposure_at_base = frame[is_base].set_index("twins_id")["exposure"]
    rise = frame["exposure"] - exposure_at_base.loc[frame["twins_id"]].to_numpy()
    return frame.assign(rise=rise.where(~is_base))


class RankFigures(NamedTuple):
    """Figures of checkpoints, and of checkpoints compared with their baselines."""

    rows: list[Row]
    contrasts: list[Contrast]


def rank_figures(
    frame: pd.DataFrame, context: Context, audit: type[Audit]
) -> RankFigures:
    """Return all rows and contrasts; those of a collapsed model are marked.

    Parameters
    ----------
    frame
        From :func:`ranked`.
    audit
        The class of this audit.
    """
    column_by_metric = {"exposure_mean": "exposure", "top1_rate": "top1"}
    if "rise" in frame:
        column_by_metric["rise"] = "rise"

    # The variant of a figure is the side. Sorted downwards, trained
    # identifiers come first, and so do their rows.
    identifiers = frame.assign(variant=frame["side"])
    identifiers = identifiers.sort_values("variant", ascending=False, kind="stable")
    trained = identifiers[identifiers["side"] == TRAINED]

    # Held-out identifiers are in the pooled group only.
    groups = [("pooled", identifiers)]
    for pii_type, of_type in trained.groupby("type"):
        groups.append((f"type:{pii_type}", of_type))
    groups += [*by_dose(trained), *by_supervision(trained)]

    cells = [
        cells_of_frame(group, members, column_by_metric) for group, members in groups
    ]
    rows, contrasts = ratio_figures(
        cells,
        context,
        audit,
        exposure_mean=(0.0, max_exposure(frame)),
    )
    # An exposure has that of the base as its null value; a rise, which is since the
    # base, keeps 0.
    rows = beside_base(rows)

    # Figures that cannot be given say why.
    names = list(dict.fromkeys(frame["checkpoint"]))
    if trained.empty:
        rows += audit.missing(names, NO_TRAINED)
    elif "rise" not in frame:
        rows += audit.missing(names, NO_BASE, metrics=[audit.metric("rise")])

    for name in names:
        if name != BASE:
            of_checkpoint = frame[frame["checkpoint"] == name]
            rows += _rows_beyond(of_checkpoint, name, audit)

    order = {metric.name: i for i, metric in enumerate(audit.metrics)}
    rows.sort(key=lambda row: (names.index(row.checkpoint), order[row.metric]))

    # A rank among ties says nothing, and a rise also needs resolved ranks of the base.
    why_unresolved = _tie_note(collapsed(frame))
    return RankFigures(
        rows=marked(rows, "not_resolvable", why_unresolved),
        contrasts=marked(contrasts, "not_resolvable", why_unresolved),
    )


def _rows_beyond(frame: pd.DataFrame, name: str, audit: type[Audit]) -> Iterator[Row]:
    """Yield by how many bits trained identifiers exceed held-out ones, by group.

    There is no row if too few identifiers can be compared.

    Parameters
    ----------
    frame
        Identifiers of one checkpoint, from :func:`ranked`.
    name
        Name of the checkpoint.
    """
    trained = frame[frame["side"] == TRAINED]
    held_out = comparable_held_out(frame)
    groups = [("pooled", trained), *by_dose(trained), *by_supervision(trained)]
    for group, identifiers in groups:
        compared = compared_sides(identifiers, held_out)
        if compared is None:
            continue
        memory = memory_contrast.memory(compared.values, compared.sides)
        # A figure may be published only if both sides have enough clusters: it counts
        # those of the smaller side.
        n_clusters_of_smaller_side = min(
            identifiers["cluster"].nunique(), held_out["cluster"].nunique()
        )
        yield audit.row(
            replace(memory.difference, clusters=n_clusters_of_smaller_side),
            name,
            "beyond",
            compared_column(identifiers),
            group=group,
        )


def _tie_note(collapsed_names: set[str]) -> Callable[[Row], str | None]:
    """Return a function that gives the reason why a row cannot be resolved.

    It is that one of the checkpoints that a row depends on has collapsed.

    Parameters
    ----------
    collapsed_names
        From :func:`collapsed`.
    """

    def note(row: Row) -> str | None:
        """Return the reason; ``None``: the row can be resolved."""
        needed_names = {row.checkpoint}
        if isinstance(row, Contrast):
            needed_names.add(row.baseline)
        if row.metric in ("rise", "beyond"):
            needed_names.add(BASE)

        if needed_names & collapsed_names:
            return TIED
        return None

    return note


def by_dose(trained: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the groups of doses, the lowest first: name and trained identifiers.

    Names are ``dose:1``, ``dose:2-3`` and so on.

    Parameters
    ----------
    trained
        A line per identifier: ``dose``.
    """
    group_names = trained["dose"].map(dose_group)
    for lowest_dose in LOWEST_DOSES:
        name = dose_group(lowest_dose)
        is_in_group = group_names == name
        if is_in_group.any():
            yield f"dose:{name}", trained[is_in_group]


class ComparedSides(NamedTuple):
    """Values of trained identifiers, then of held-out ones, and their sides.

    ``values`` are rises, or exposures without a base: shape ``(identifiers,)``, bits.
    """

    values: np.ndarray
    sides: memory_contrast.Sides


def compared_sides(
    trained: pd.DataFrame, held_out: pd.DataFrame
) -> ComparedSides | None:
    """Return rises of trained and held-out identifiers, exposures without a base.

    Strata are type and form. ``None``: too few clusters were held out.

    Parameters
    ----------
    trained, held_out
        Identifiers of one checkpoint, from :func:`ranked`.
    """
    if held_out["cluster"].nunique() < MIN_CONTROLS or trained.empty:
        return None

    # Identifiers of different types or forms are not compared. The sign of a stratum
    # only marks those that text distinguishes: it is of no account among trained ones.
    frame = pd.concat([trained, held_out])
    strata = frame.groupby(["type", frame["stratum"].abs()]).ngroup()
    sides = memory_contrast.Sides.of(
        frame["side"] == TRAINED, frame["cluster"], [strata]
    )
    return ComparedSides(frame[compared_column(frame)].to_numpy(), sides)


def comparable_held_out(frame: pd.DataFrame) -> pd.DataFrame:
    """Return held-out identifiers that text does not distinguish from trained ones.

    Parameters
    ----------
    frame
        A line per identifier: ``side``, and ``stratum``, which is below 0 where text
        distinguishes the sides.
    """
    return frame[(frame["side"] == NEVER) & (frame["stratum"] >= 0)]


def compared_column(frame: pd.DataFrame) -> str:
    """Return the column by which the two sides are compared, in bits."""
    return "rise" if "rise" in frame else "exposure"


def max_exposure(frame: pd.DataFrame) -> float:
    """Return the exposure of the first rank, bits; columns: ``n_candidates``."""
    return float(np.log2(frame["n_candidates"].max()))


def collapsed(frame: pd.DataFrame) -> set[str]:
    """Return the checkpoints that tie each identifier with nearly all of its twins.

    Such a model gives all strings the same likelihood, so that no rank says anything.

    Parameters
    ----------
    frame
        A line per checkpoint and identifier: ``ties``, ``n_candidates``.
    """
    is_resolved = resolved(frame).groupby(frame["checkpoint"]).any()
    return set(is_resolved.index[~is_resolved])
