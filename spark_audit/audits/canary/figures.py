"""Figures of the canary audit: means of ranks and exposures, next to chance.

Without memory a rank is uniform. All figures but the NLL therefore have a value by
chance, and a band around it. :func:`canary_figures` gives the rows and contrasts of the
report, :func:`dose_table` the table of canaries by dose.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spark_audit import sentences
from spark_audit.audits.base import Audit, Context
from spark_audit.audits.canary import ranks
from spark_audit.audits.canary.ranks import RankedCanaries
from spark_audit.audits.ratio_rows import bounded, cells_of_frame, ratio_figures
from spark_audit.audits.supervision import by_supervision
from spark_audit.results import Contrast, Row
from spark_audit.results.audit_result import TableRecord
from spark_audit.stats import canary_ranks
from spark_audit.stats.intervals import ratio_estimate

TOP_RANKS = {"top1_rate": 1, "top10_rate": 10}
"""Metric -> the last rank that counts as a hit."""

ONE_RANK = "the chance band assumes that all rows of a canary have the same rank"


class CanaryFigures(NamedTuple):
    """Figures of checkpoints, and of checkpoints compared with their baselines."""

    rows: list[Row]
    contrasts: list[Contrast]


def canary_figures(
    once: pd.DataFrame,
    in_contexts: pd.DataFrame,
    canaries: RankedCanaries,
    context: Context,
    audit: type[Audit],
) -> CanaryFigures:
    """Return rows with their values by chance, and contrasts.

    Parameters
    ----------
    once, in_contexts
        Trained canaries, from :func:`spark_audit.audits.canary.ranks.ranked`: one row
        per checkpoint, canary and part, and one per context of these.
    audit
        The class of this audit.
    """
    n_candidates = ranks.n_candidates_of(once)

    # The second variant of each part averages the ranks over contexts.
    by_context = in_contexts.assign(part=in_contexts["part"] + "/annotation")
    frame = pd.concat([once, by_context], ignore_index=True)
    frame = frame.rename(columns={"part": "of", "canary_id": "cluster"})
    for metric, k in TOP_RANKS.items():
        frame[metric] = canary_ranks.top_k_credit(
            frame["rank"], k=k, ties=frame["ties"]
        )

    column_by_metric = {
        "nll": "nll_mean",
        "exposure_mean": "exposure",
        "top1_rate": "top1_rate",
        "top10_rate": "top10_rate",
        "rank_mean": "mid",
    }

    # Means of ranks and exposures are bounded by the number of candidates.
    groups = [("pooled", frame), *by_supervision(frame)]
    rows, contrasts = ratio_figures(
        [cells_of_frame(group, members, column_by_metric) for group, members in groups],
        context,
        audit,
        rank_mean=(1.0, float(n_candidates)),
        exposure_mean=(0.0, np.log2(n_candidates)),
    )

    # The band of chance depends on the number of canaries of a row.
    once_by_group = {"pooled": once, **dict(by_supervision(once))}
    in_contexts_by_group = {"pooled": in_contexts, **dict(by_supervision(in_contexts))}
    rows = [
        _next_to_chance(row, once_by_group[row.group], in_contexts_by_group[row.group])
        for row in rows
    ]

    # Key: checkpoint, part and metric.
    names = list(dict.fromkeys(once["checkpoint"]))
    metrics = [metric.name for metric in audit.metrics]
    rows.sort(
        key=lambda row: (
            names.index(row.checkpoint),
            row.of,
            metrics.index(row.metric),
        )
    )

    contrasts = bounded(contrasts, TOP_RANKS)
    return CanaryFigures(
        rows=[_with_status_of_row(row, canaries) for row in rows],
        contrasts=[
            _with_status_of_contrast(contrast, canaries) for contrast in contrasts
        ],
    )


class ChanceFigures(NamedTuple):
    """The value of a figure by chance, its band, and the smallest detectable effect.

    The fields have the names of those of a row.
    """

    null: float
    null_low: float
    null_high: float
    mde: float | None


def _next_to_chance(row: Row, once: pd.DataFrame, in_contexts: pd.DataFrame) -> Row:
    """Return the row with its chance value, band, and smallest detectable effect.

    Parameters
    ----------
    once, in_contexts
        Trained canaries of its group, as for :func:`canary_figures`.
    """
    part, _, annotation = row.of.partition("/")
    once = once[(once["checkpoint"] == row.checkpoint) & (once["part"] == part)]
    n_candidates = ranks.n_candidates_of(once)

    # An NLL has no value by chance. Nor has the share among the first k ranks if k is
    # the number of candidates: it is always 1.
    k = TOP_RANKS.get(row.metric)
    has_no_chance_value = k is not None and k >= n_candidates
    if row.metric == "nll" or row.value is None or has_no_chance_value:
        return row

    notes = [row.note] if row.note else []
    update: dict[str, Any] = {}
    if k is None:
        chance = _chance_of_mean(row, once, n_candidates)
    else:
        hits = ranks.hits_of(once, k=k)
        chance = _chance_of_top_k(hits, once, n_candidates, k=k)
        if not annotation:
            # The exact interval replaces the interval of the ratio and its notes.
            update = {
                "low": hits.low,
                "high": hits.high,
                "interval": "clopper-pearson",
            }
            notes = []
    update |= chance._asdict()

    # The row is a mean over canaries, or over their contexts.
    counted = once
    if annotation:
        notes.append(ONE_RANK)
        is_counted = in_contexts["checkpoint"] == row.checkpoint
        counted = in_contexts[is_counted & (in_contexts["part"] == part)]
    if n_tied := ranks.n_tied(counted):
        key = "canary.ties_of_one" if n_tied == 1 else "canary.ties"
        notes.append(sentences.render(key, tied=n_tied, canaries=len(counted)))
    update["note"] = "; ".join(notes)
    return row.model_copy(update=update)


def _n_able(once: pd.DataFrame) -> int:
    """Return the number of resolved canaries, which can show an effect; at least 1."""
    return max(1, int(ranks.resolved(once).sum()))


def _chance_of_top_k(
    hits: canary_ranks.TopK, once: pd.DataFrame, n_candidates: int, *, k: int
) -> ChanceFigures:
    """Return the value by chance of the share of canaries among the first k."""
    n_canaries = len(once)
    # The smallest effect is the smallest detectable rate minus chance; ``None`` if no
    # rate is detectable.
    least_rate = canary_ranks.top_k_mde(_n_able(once), k=k, n_candidates=n_candidates)
    mde = least_rate
    if least_rate:
        mde = least_rate - hits.null
    return ChanceFigures(
        null=hits.null,
        null_low=hits.null_low / n_canaries,
        null_high=hits.null_high / n_canaries,
        mde=mde,
    )


def _chance_of_mean(row: Row, once: pd.DataFrame, n_candidates: int) -> ChanceFigures:
    """Return the value by chance of a mean rank or a mean exposure."""
    of: canary_ranks.Of = "rank" if row.metric == "rank_mean" else "exposure"
    null = canary_ranks.null_mean([n_candidates] * len(once), of=of)
    null_low, null_high = null.band(row.level)
    mean, _ = canary_ranks.null_moments(n_candidates, of=of)
    mde = canary_ranks.chance_mde(_n_able(once), n_candidates=n_candidates, of=of)
    return ChanceFigures(null=mean, null_low=null_low, null_high=null_high, mde=mde)


def _with_status_of_row(row: Row, canaries: RankedCanaries) -> Row:
    """Return the row with the status of its part.

    ==========================================  ======================
    last match wins                             status
    ==========================================  ======================
    the positive control was not found          ``insensitive``
    all canaries are tied, unless an NLL        ``not_resolvable``
    ==========================================  ======================
    """
    if row.value is None:
        return row
    part = row.of.partition("/")[0]
    update: dict[str, Any] = {}
    if part not in canaries.sensitive_parts:
        update["status"] = "insensitive"
    if row.metric != "nll" and (row.checkpoint, part) in canaries.unresolved:
        update = {"status": "not_resolvable", "note": ranks.TIED}
    return row.model_copy(update=update)


def _with_status_of_contrast(contrast: Contrast, canaries: RankedCanaries) -> Contrast:
    """Return the contrast with the status of its part on both sides.

    The rules are those of :func:`_with_status_of_row`, but a change of likelihood keeps
    its status, since it needs no positive control.
    """
    if contrast.value is None or contrast.metric == "nll":
        return contrast
    part = contrast.of.partition("/")[0]
    update: dict[str, Any] = {}
    if part not in canaries.sensitive_parts:
        update["status"] = "insensitive"
    for name in (contrast.checkpoint, contrast.baseline):
        if (name, part) in canaries.unresolved:
            update = {"status": "not_resolvable", "note": ranks.TIED}
    return contrast.model_copy(update=update)


def dose_table(frame: pd.DataFrame) -> Iterator[TableRecord]:
    """Yield each checkpoint, part and dose, compared with chance.

    Parameters
    ----------
    frame
        Canaries, from :func:`~spark_audit.audits.canary.ranks.ranked`; held-out ones
        have dose 0.
    """
    for checkpoint, part, of_part in ranks.by_part(frame):
        # Held-out canaries stand in no train row.
        is_held_out = of_part["held_out"].astype(bool)
        doses = of_part["dose"].where(~is_held_out, 0)
        for dose, canaries in of_part.groupby(doses):
            yield _dose_record(checkpoint, part, int(dose), canaries)


def _dose_record(
    checkpoint: str, part: str, dose: int, canaries: pd.DataFrame
) -> TableRecord:
    """Return the canaries of one dose, compared with chance."""
    # No exposure is above that of rank 1.
    n_canaries = len(canaries)
    most_bits = float(np.log2(ranks.n_candidates_of(canaries)))
    mean_exposure = ratio_estimate(
        canaries["exposure"], np.ones(n_canaries), bounds=(0.0, most_bits)
    )
    chance_low, chance_high = canary_ranks.null_mean(canaries["n_candidates"]).band(
        ranks.CONFIDENCE
    )

    # Unresolved parts have no test.
    p_remembered = None
    p_suppressed = None
    status = "not_resolvable"
    if ranks.resolved(canaries).any():
        p_remembered = ranks.p_by_chance(canaries, "exposure")
        p_suppressed = ranks.p_by_chance(canaries, "lower_tail")
        status = "ok"

    return {
        "checkpoint": checkpoint,
        "part": part,
        "dose": dose,
        "held_out": bool(canaries["held_out"].iloc[0]),
        "canaries": n_canaries,
        "tied": ranks.n_tied(canaries),
        "exposure_mean": float(canaries["exposure"].mean()),
        "exposure_low": mean_exposure.low,
        "exposure_high": mean_exposure.high,
        "exposure_most": most_bits,
        "chance_exposure_low": chance_low,
        "chance_exposure_high": chance_high,
        "p_remembered": p_remembered,
        "p_suppressed": p_suppressed,
        "status": status,
    }
