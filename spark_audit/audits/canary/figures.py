"""Figures of the canary audit: means of ranks and exposures, next to chance.

Without memory a rank is uniform. All figures but the NLL therefore have a value by
chance, and a band around it. :func:`canary_figures` gives the rows and contrasts of the
report, :func:`dose_table` the table of canaries by dose.

A new figure that is the mean of a column: add the column in :func:`canary_figures`, its
name to :data:`COLUMN_BY_METRIC`, its value by chance in ``_next_to_chance``, and its
metric to ``CANARY_METRICS`` (``audit.py``).

A :class:`~spark_audit.results.Row` is a figure of the report; frames have one line per
ranked canary, or per canary and context. A ``part`` is ``full``, ``password`` or
``ssn`` of a canary. The variant of a figure is a part, ranked once, or
``PART/annotation``, ranked in each context and averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spark_audit import sentences
from spark_audit.audits.base import Audit, Context
from spark_audit.audits.canary import ranks
from spark_audit.audits.canary.chance_tests import p_by_chance
from spark_audit.audits.canary.ranked_canaries import RankedCanaries
from spark_audit.audits.rate_contrasts import bounded
from spark_audit.audits.ratio_rows import cells_of_frame, ratio_figures
from spark_audit.audits.supervision import by_supervision
from spark_audit.results import Contrast, Row
from spark_audit.results.audit_result import TableRecord
from spark_audit.stats import canary_ranks
from spark_audit.stats.intervals import ratio_estimate

TOP_RANKS = {"top1_rate": 1, "top10_rate": 10}
"""Metric -> the last rank k that counts as a hit. The figure is the share of hits."""

COLUMN_BY_METRIC = {
    "nll": "nll_mean",
    "exposure_mean": "exposure",
    **{metric: metric for metric in TOP_RANKS},
    "rank_mean": "mid_rank",
}
"""Metric -> the column whose mean it is. Each is a metric of the audit, too
(``CanaryRank.metrics``), whose order is that of the report. For columns see
:mod:`~spark_audit.audits.canary.ranks`; those of :data:`TOP_RANKS` are added here."""

NOT_RANKED = ("nll",)
"""Metrics that need no rank: chance and ties do not matter to them."""

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
        Trained canaries, from :func:`spark_audit.audits.canary.ranks.ranked`: one line
        per checkpoint, canary and part, and one per context of these.
    audit
        The class of this audit, whose metrics the figures have.
    """
    # Groups: all canaries, and those of each supervision, if that is known.
    frame = _frame_of_variants(once, in_contexts)
    groups = [("pooled", frame), *by_supervision(frame)]
    cells = [cells_of_frame(group, lines, COLUMN_BY_METRIC) for group, lines in groups]

    # Means of ranks and exposures are bounded by the number of candidates.
    n_candidates = ranks.n_candidates_of(once)
    rows, contrasts = ratio_figures(
        cells,
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

    # Checkpoints in the order of the evidence, their variants by name, and the metrics
    # of each variant in the order of the audit.
    names = list(dict.fromkeys(once["checkpoint"]))
    metrics = [metric.name for metric in audit.metrics]
    rows.sort(
        key=lambda row: (
            names.index(row.checkpoint),
            row.variant,
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


def _frame_of_variants(once: pd.DataFrame, in_contexts: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of both frames with the columns that figures need.

    Returns
    -------
    The column ``cluster`` is the canary; there is a column for each metric of
    :data:`TOP_RANKS`: 1 for a hit, 0 for none, the chance of one with ties.
    """
    # The second variant of each part averages the ranks over contexts.
    variants = in_contexts["part"].map(ranks.variant_by_context)
    frame = pd.concat([once, in_contexts.assign(part=variants)], ignore_index=True)

    # Contexts of a canary are no independent units: the canary is the cluster.
    frame = frame.rename(columns={"part": "variant", "canary_id": "cluster"})
    for metric, k in TOP_RANKS.items():
        frame[metric] = canary_ranks.top_k_credit(
            frame["rank"], k=k, ties=frame["ties"]
        )
    return frame


class ChanceFigures(NamedTuple):
    """The value of a figure by chance, its band, and the smallest detectable effect.

    The fields have the names of those of a row, and all but ``mde`` its unit and scale.

    Attributes
    ----------
    no_effect, no_effect_low, no_effect_high
        Mean by chance, and the ends of the central band.
    mde
        The smallest detectable effect, a distance from ``no_effect``; ``None``: none
        is.
    """

    no_effect: float
    no_effect_low: float
    no_effect_high: float
    mde: float | None


def _next_to_chance(row: Row, once: pd.DataFrame, in_contexts: pd.DataFrame) -> Row:
    """Return the row with its chance value, band, and smallest detectable effect.

    A row in contexts takes all three from ``once``: its ranks in contexts depend on
    each other, and :data:`ONE_RANK` says what that assumes.

    Parameters
    ----------
    once, in_contexts
        Trained canaries of its group, as for :func:`canary_figures`.
    """
    once = _canaries_of(row, once)
    n_candidates = ranks.n_candidates_of(once)
    if not _has_chance_value(row, n_candidates):
        return row

    k = TOP_RANKS.get(row.metric)
    if k is None:
        chance = _chance_of_mean(row, once, n_candidates)
    else:
        chance = _chance_of_top_k(once, n_candidates, k=k)
    update: dict[str, Any] = chance._asdict()

    if ranks.is_by_context(row.variant):
        notes = [row.note, ONE_RANK, _note_of_ties(_canaries_of(row, in_contexts))]
    elif k is None:
        notes = [row.note, _note_of_ties(once)]
    else:
        # The exact interval replaces the interval of the ratio and its notes.
        hits = ranks.hits_of(once, k=k)
        update |= {
            "low": hits.low,
            "high": hits.high,
            "interval_method": "clopper-pearson",
        }
        notes = [_note_of_ties(once)]
    update["note"] = "; ".join(note for note in notes if note)
    return row.model_copy(update=update)


def _canaries_of(row: Row, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of a frame that are of the checkpoint and part of a row."""
    is_of_checkpoint = frame["checkpoint"] == row.checkpoint
    return frame[is_of_checkpoint & (frame["part"] == ranks.part_of(row.variant))]


def _has_chance_value(row: Row, n_candidates: int) -> bool:
    """Return whether chance gives a value that the figure of a row can differ from.

    An NLL has none. Where all candidates are within the first k, the share of canaries
    among these is always 1.
    """
    if row.metric in NOT_RANKED or row.value is None:
        return False

    k = TOP_RANKS.get(row.metric)
    return k is None or k < n_candidates


def _note_of_ties(canaries: pd.DataFrame) -> str:
    """Return the remark on canaries (or contexts) with ties; empty: none is tied."""
    n_tied = ranks.n_tied(canaries)
    if not n_tied:
        return ""
    key = "canary.ties_of_one" if n_tied == 1 else "canary.ties"
    return sentences.render(key, tied=n_tied, canaries=len(canaries))


def _n_rankable(once: pd.DataFrame) -> int:
    """Return the number of resolved canaries, which can show an effect; at least 1."""
    return max(1, int(ranks.resolved(once).sum()))


def _chance_of_top_k(once: pd.DataFrame, n_candidates: int, *, k: int) -> ChanceFigures:
    """Return the value by chance of the share of canaries among the first k.

    Parameters
    ----------
    once
        The canaries of one row, ranked once over their contexts.
    """
    hits = ranks.hits_of(once, k=k)

    # The smallest effect is the distance of the smallest detectable rate from that by
    # chance.
    n_canaries = len(once)
    least_rate = canary_ranks.top_k_mde(
        _n_rankable(once), k=k, n_candidates=n_candidates
    )
    mde = None if least_rate is None else least_rate - hits.null

    # ``hits.null`` is a rate already, and the ends of its band are counts.
    return ChanceFigures(
        no_effect=hits.null,
        no_effect_low=hits.null_low / n_canaries,
        no_effect_high=hits.null_high / n_canaries,
        mde=mde,
    )


def _chance_of_mean(row: Row, once: pd.DataFrame, n_candidates: int) -> ChanceFigures:
    """Return the value by chance of a mean rank or a mean exposure.

    Parameters
    ----------
    once
        The canaries of the row, ranked once over their contexts.
    """
    statistic: canary_ranks.Of = "exposure"
    if row.metric == "rank_mean":
        statistic = "rank"

    law = canary_ranks.null_mean([n_candidates] * len(once), of=statistic)
    null_low, null_high = law.band(row.interval_level)
    mean, _ = canary_ranks.null_moments(n_candidates, of=statistic)
    mde = canary_ranks.chance_mde(
        _n_rankable(once), n_candidates=n_candidates, of=statistic
    )
    return ChanceFigures(
        no_effect=mean, no_effect_low=null_low, no_effect_high=null_high, mde=mde
    )


def _with_status_of_row(row: Row, canaries: RankedCanaries) -> Row:
    """Return the row with the status of its part; a missing figure keeps its own.

    An NLL becomes ``insensitive`` with the ranks of its part, but never
    ``not_resolvable``.
    """
    if row.value is None:
        return row

    ranked_names = [] if row.metric in NOT_RANKED else [row.checkpoint]
    update = _status_of_part(ranks.part_of(row.variant), ranked_names, canaries)
    return row.model_copy(update=update)


def _with_status_of_contrast(contrast: Contrast, canaries: RankedCanaries) -> Contrast:
    """Return the contrast with the status of its part by both checkpoints.

    A missing figure keeps its status, and so does a change of NLL: it needs no positive
    control.
    """
    if contrast.value is None or contrast.metric in NOT_RANKED:
        return contrast

    ranked_names = [contrast.checkpoint, contrast.baseline]
    update = _status_of_part(ranks.part_of(contrast.variant), ranked_names, canaries)
    return contrast.model_copy(update=update)


def _status_of_part(
    part: str, ranked_names: Iterable[str], canaries: RankedCanaries
) -> dict[str, str]:
    """Return the fields that change if a part cannot be concluded on; else none.

    ================================================  ======================
    condition, first match wins                       status
    ================================================  ======================
    all canaries are tied by one of the checkpoints   ``not_resolvable``
    the positive control of the part was not found    ``insensitive``
    ================================================  ======================

    Parameters
    ----------
    ranked_names
        Checkpoints whose ranks the figure is made of; none for an NLL.
    """
    if any((name, part) in canaries.unresolved for name in ranked_names):
        return {"status": "not_resolvable", "note": ranks.TIED}
    if part not in canaries.sensitive_parts:
        return {"status": "insensitive"}
    return {}


def dose_table(frame: pd.DataFrame) -> Iterator[TableRecord]:
    """Yield a record for each checkpoint, part and dose, compared with chance.

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
    """Return the canaries of one dose, compared with chance, as one record.

    Exposures are in bits. ``p_*`` are one-sided and not corrected; ``status`` is
    ``not_resolvable`` if all canaries are tied. ``report/figures/canary.py`` draws this
    table.
    """
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
        p_remembered = p_by_chance(canaries, "exposure")
        p_suppressed = p_by_chance(canaries, "lower_tail")
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
