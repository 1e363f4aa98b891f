"""Figures of the audit of erasure: what remains, what it cost, and scores of the field.

All intervals are over clusters. A figure that cannot be estimated has its reason. A
further score of whole rows is a field of
:class:`~spark_audit.audits.erasure.field_scores.RowScores`, a line of
:data:`FIELD_METRICS` and a metric of the audit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from spark_audit.audits.audit_inputs import Context
from spark_audit.audits.erasure.comparison import ErasureComparison
from spark_audit.audits.erasure.field_scores import AUC_OF_STRANGER, privleak
from spark_audit.audits.erasure.units import FORGET, HELD_OUT, RETAINED, ROW
from spark_audit.names import NEVER
from spark_audit.provenance import seed_for
from spark_audit.stats.clustered_roc import Design, auc_estimate
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import ratio_estimate
from spark_audit.stats.roc_replicates import roc_replicates

FIELD_METRICS = {"exact_memorisation": "exact", "extraction_strength": "strength"}
"""Metric -> score of a row whose mean it is."""

VARIANT_OF_SIDE = {FORGET: FORGET, HELD_OUT: NEVER, RETAINED: RETAINED}
"""Side of rows -> variant of their figures."""

NOT_SCORED = "its texts were not scored"
NO_RANKS = "a served model gives no ranks"
NO_SCORE = "no row has a token with a label"

MIN_LABELS = 5
"""Fewest tokens of the median response for which scores of the field have no note: of a
single token the extraction strength is always 1."""

MAX_REPLICATES = 2000
"""Most resamples of the interval of privleak."""


def cost_estimates(
    comparison: ErasureComparison, name: str
) -> Iterator[tuple[str, Estimate]]:
    """Yield how the NLL of other rows changed since the model before erasure.

    Above 0 they became less likely: that is what erasure has cost. The variants are
    retained rows, and held-out rows, which show what it does to any text.
    """
    units = comparison.evidence.units
    change = comparison.nll(name) - comparison.nll(comparison.before)  # (units,), nats
    for side in (RETAINED, HELD_OUT):
        is_of_side = (units["part"] == ROW) & (units["side"] == side)
        of_side = units[is_of_side].assign(change=change[is_of_side])
        yield (
            VARIANT_OF_SIDE[side],
            _mean_by_cluster(of_side, "change", weights="n_tokens"),
        )


def field_estimates(
    comparison: ErasureComparison, name: str
) -> Iterator[tuple[str, str, Estimate]]:
    """Yield metric, variant and estimate of the mean scores of rows of each side.

    The estimate has a note where most responses are short.
    """
    units = comparison.evidence.units
    n_labels = comparison.evidence.row(name, "n_labels")  # (units,)
    for metric, score in FIELD_METRICS.items():
        values = comparison.evidence.row(name, score)  # (units,)
        for side, variant in VARIANT_OF_SIDE.items():
            is_of_side = (units["part"] == ROW) & (units["side"] == side)
            of_side = units[is_of_side].assign(score=values[is_of_side], one=1.0)
            estimate = _mean_by_cluster(of_side, "score", weights="one", bounds=(0, 1))
            if estimate.value is not None:
                note = _note_on_short_rows(n_labels[is_of_side])
                estimate = replace(estimate, note=note)
            yield metric, variant, estimate


def _note_on_short_rows(n_labels: np.ndarray) -> str:
    """Return a note if scores of rows rest on few tokens; empty: they do not.

    Parameters
    ----------
    n_labels
        Shape ``(rows,)``: tokens with a label; NaN: not scored.
    """
    n_of_scored = n_labels[~np.isnan(n_labels)]
    if not len(n_of_scored):
        return ""
    median = float(np.median(n_of_scored))
    if median >= MIN_LABELS:
        return ""
    return f"on responses of few tokens (median {median:g})"


def _mean_by_cluster(
    units: pd.DataFrame,
    column: str,
    *,
    weights: str,
    bounds: tuple[float, float] | None = None,
) -> Estimate:
    """Return a mean over units with its interval over clusters.

    Parameters
    ----------
    units
        Columns ``cluster``, ``column`` (sums where weights are tokens), ``weights``.
    """
    scored = units.dropna(subset=column)
    if scored.empty:
        return Estimate.missing(NO_SCORE if len(units) else "there is no such row")

    sums = scored.groupby("cluster")[[column, weights]].sum()
    return ratio_estimate(sums[column], sums[weights], bounds=bounds)


def privleak_estimate(
    comparison: ErasureComparison, name: str, context: Context
) -> tuple[Estimate, Estimate]:
    """Return the AUC of Min-K% of forget against held-out rows, and privleak.

    Without a retrained model privleak is a multiple of the AUC, and so is its interval.
    With one, both AUCs are resampled together, by clusters.
    """
    units = comparison.evidence.units
    scores = comparison.evidence.row(name, "mink")
    retrained = comparison.retrained
    of_retrained = np.full(len(units), AUC_OF_STRANGER)
    if retrained:
        of_retrained = comparison.evidence.row(retrained, "mink")

    is_row = (units["part"] == ROW) & units["side"].isin([FORGET, HELD_OUT])
    is_row &= ~np.isnan(scores) & ~np.isnan(of_retrained)
    rows = units[is_row]
    if rows["side"].nunique() < 2:
        missing = Estimate.missing(NO_SCORE)
        return missing, missing

    # All rows together, as the field has it, and not by task.
    design = Design.of(rows["side"] == FORGET, rows["cluster"])
    auc, _ = auc_estimate(design, scores[is_row])
    if auc.value is None:
        return auc, auc
    if not retrained:
        return auc, _privleak_of_auc(auc)

    reference, _ = auc_estimate(design, of_retrained[is_row])
    if reference.value is None:
        return auc, reference
    weights = design.draw(
        replicates=min(context.replicates, MAX_REPLICATES),
        seed=seed_for(context.seed, "erasure", "privleak"),
    )
    replicates = [
        privleak(first, second)
        for first, second in zip(
            roc_replicates(design, scores[is_row], weights).auc.tolist(),
            roc_replicates(design, of_retrained[is_row], weights).auc.tolist(),
            strict=True,
        )
    ]
    low, high = np.nanquantile(replicates, [0.025, 0.975]).tolist()
    estimate = Estimate(
        privleak(auc.value, reference.value),
        n=auc.n,
        clusters=auc.clusters,
    )
    return auc, estimate.decided_by_percentiles(low, high)


def _privleak_of_auc(auc: Estimate) -> Estimate:
    """Return privleak against an AUC of 0.5, with the interval of the AUC."""
    assert auc.value is not None
    low = high = None
    # A higher AUC is a lower privleak, so the ends change places.
    if auc.low is not None and auc.high is not None:
        low = privleak(auc.high)
        high = privleak(auc.low)
    return replace(
        auc, value=privleak(auc.value), low=low, high=high, se=None, df=None, mde=None
    )
