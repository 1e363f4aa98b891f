"""Findings on DiD: identifiers of a checkpoint compared with those of its baseline.

The difference in differences is the change of identifiers from the baseline to the
checkpoint, minus the change of equally hard text (their controls). Above 0, identifiers
became less likely relative to that text, as if a method suppresses them. That is no
proof by itself: other text may have drifted unequally, and ordinary training moves
identifiers as well. :func:`did_findings` draws the conclusions, from contrasts that
:mod:`~spark_audit.audits.matched.pairs` makes. All figures are in nats per token.

A new conclusion goes into the table and the code of ``_did_verdict``, and has its
sentence in ``sentences/en/matched.toml``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy

from spark_audit.audits.matched.verdict import (
    Verdict,
    direction_of,
    matched_finding,
    not_estimable,
)
from spark_audit.names import ROUNDINGS, CheckpointName, original_of
from spark_audit.results import Contrast, Finding, Row
from spark_audit.results.findings import Fact
from spark_audit.stats import selectivity

QUANTILE_OF_ORDINARY_RUNS = 0.975
"""Quantile of Student's t for a two-sided prediction interval of 95%."""

REACH_OF_SINGLE_RUN = 2.0
"""Multiple of the DiD of a single ordinary run up to which others are like it."""

PooledContrasts: TypeAlias = Mapping[tuple[str, str, str], Contrast]
"""Contrasts of all identifiers by checkpoint, baseline and metric."""


@dataclass(frozen=True)
class DidComparison:
    """Identifiers of a checkpoint compared with those of its baseline.

    All figures are nats per token: above 0, the text is less likely than under the
    baseline.

    Attributes
    ----------
    did
        Change of identifiers minus that of equally hard text.
    drift
        Change of low-sensitivity text; ``None``: not known.
    identifiers
        Change of the identifiers by themselves.
    beyond_alike
        Change of the identifiers minus that of text that looks like them.
    """

    did: Contrast
    drift: Contrast | None
    identifiers: Contrast
    beyond_alike: Contrast

    @classmethod
    def of_checkpoint(cls, did: Contrast, contrasts: PooledContrasts) -> DidComparison:
        """Return the comparison of a DiD with other contrasts of the same two."""
        name = did.checkpoint
        baseline = did.baseline
        drift = contrasts[name, baseline, "low_change"]
        return cls(
            did=did,
            drift=drift if drift.value is not None else None,
            identifiers=contrasts[name, baseline, "nll_pii"],
            beyond_alike=contrasts[name, baseline, "did_alike"],
        )


def did_findings(
    rows: Sequence[Row],
    contrasts: Sequence[Contrast],
    replicated: Collection[str],
    ordinary: Collection[str],
) -> Iterator[Finding]:
    """Yield findings on the change of identifiers relative to the baseline.

    There is one finding for each method and baseline, and one for each rounding of a
    baseline (a copy of it in another number format).

    Parameters
    ----------
    rows, contrasts
        Figures of all checkpoints, and of all compared with their baselines.
    replicated
        Methods that have replicates.
    ordinary
        Checkpoints of ordinary training, without any protection.
    """
    # The drift of each checkpoint, and the contrasts of all identifiers.
    drift_by_checkpoint = {
        row.checkpoint: row for row in rows if row.metric == "low_change"
    }
    pooled_contrasts: PooledContrasts = {
        (contrast.checkpoint, contrast.baseline, contrast.metric): contrast
        for contrast in contrasts
        if contrast.group == "pooled"
    }

    # A finding for each DiD that is a primary test (of a method), or of a rounding.
    for (name, baseline, metric), did in pooled_contrasts.items():
        is_rounded = CheckpointName.parse(name).derived in ROUNDINGS
        is_rounding_of_baseline = is_rounded and original_of(name) == baseline
        is_reported = did.family == "primary" or is_rounding_of_baseline
        if metric != "did" or not is_reported:
            continue

        is_replicated = name in replicated
        facts: dict[str, Fact] = {
            "did": did,
            "baseline": baseline,
            "seeds": is_replicated,
        }
        if did.value is None:
            yield not_estimable(did, "did_missing", facts)
            continue

        # Other contrasts with the same baseline show what the DiD can mean.
        comparison = DidComparison.of_checkpoint(did, pooled_contrasts)
        facts["p"] = did.best_p
        facts["adjusted"] = did.p_adjusted is not None
        facts["drift"] = comparison.drift
        facts["drift_own"] = drift_by_checkpoint.get(name)
        facts["drift_baseline"] = drift_by_checkpoint.get(baseline)
        facts["own"] = comparison.identifiers
        facts["alike"] = comparison.beyond_alike

        verdict = _did_verdict(
            comparison,
            _dids_of_ordinary_runs(name, baseline, pooled_contrasts, ordinary),
        )
        # The interval does not cover seeds, so only the claim is kept.
        if is_replicated:
            verdict = Verdict(verdict.claim, "did_of_seeds", ("seeds",))
        remarks = (*verdict.remarks, *_drift_remarks(verdict, comparison.drift))
        yield matched_finding(did, verdict._replace(remarks=remarks), facts)


def _dids_of_ordinary_runs(
    name: str,
    baseline: str,
    pooled_contrasts: PooledContrasts,
    ordinary: Collection[str],
) -> list[float]:
    """Return the DiD of ordinary runs from the same baseline, nats per token.

    The list is empty for an ordinary run, which is not compared with the others.

    Parameters
    ----------
    ordinary
        Checkpoints of ordinary training.
    """
    if name in ordinary:
        return []

    values: list[float] = []
    for run in ordinary:
        contrast = pooled_contrasts.get((run, baseline, "did"))
        if contrast is not None and contrast.value is not None:
            values.append(contrast.value)
    return values


def _drift_remarks(verdict: Verdict, drift: Contrast | None) -> tuple[str, ...]:
    """Return the key of the remark on the drift of other text.

    There is none if the sentence of the verdict already states the drift.
    """
    if drift is not None:
        return ("drift",)
    if verdict.says == "did_drift_unknown":
        return ()
    return ("drift_unknown",)


def _did_verdict(
    comparison: DidComparison, did_of_ordinary: Sequence[float]
) -> Verdict:
    """Return the verdict on a DiD; the first match wins.

    =========================  ===============  ======================================
    sentence                   claim            condition
    =========================  ===============  ======================================
    did_still                  nothing_shown    the corrected p shows no difference
    did_ordinary               nothing_shown    there are ordinary runs, and the DiD
                                                may be one of theirs
    did_drift_unknown          nothing_shown    there are none, and the drift of other
                                                text is not known
    did_drift_unequal          nothing_shown    there are none, and unequal drift can
                                                cause the DiD
    did_likelier               moved            the DiD is below 0
    did_less_likely_not_own    moved            above text that looks alike, but not
                                                less likely by themselves
    did_less_likely_only       moved            neither of the two
    did_less_likely_not_alike  moved            not above text that looks alike, or
                                                the interval of the DiD holds 0
    did_suppressed             suppressed_kind  less likely by themselves, and above
                                                both texts
    =========================  ===============  ======================================

    Parameters
    ----------
    did_of_ordinary
        DiD of ordinary runs from the same baseline, nats per token; empty: there are
        none.
    """
    # Nothing is claimed without a clear difference, or if drift can cause it. `level`
    # is a confidence: 1 - level is alpha.
    did = comparison.did
    drift = comparison.drift
    if did.best_p is None or did.best_p >= 1 - did.interval_level:
        return Verdict("nothing_shown", "did_still")
    if did_of_ordinary:
        if _is_like_ordinary(did, did_of_ordinary):
            return Verdict("nothing_shown", "did_ordinary")
    elif drift is None or drift.value is None:
        return Verdict("nothing_shown", "did_drift_unknown")
    elif selectivity.unlike_drift(did.value or 0.0, drift.value, drift.low, drift.high):
        if comparison.beyond_alike.value is None:
            return Verdict("nothing_shown", "did_drift_unequal")
        return Verdict("nothing_shown", "did_drift_unequal", ("alike",))

    # The difference is clear. If only its corrected p is significant and its interval
    # contains 0, the sign of the value counts.
    direction = direction_of(did)  # by the interval
    sign_of_value = int(np.sign(did.value or 0.0))
    is_less_likely_by_itself = direction_of(comparison.identifiers) > 0
    is_less_likely_than_alike = direction_of(comparison.beyond_alike) > 0

    if (direction or sign_of_value) < 0:
        return Verdict("moved", "did_likelier")
    if not is_less_likely_by_itself and is_less_likely_than_alike:
        return Verdict("moved", "did_less_likely_not_own")
    if not is_less_likely_by_itself:
        return Verdict("moved", "did_less_likely_only")
    if not is_less_likely_than_alike or direction == 0:
        return Verdict("moved", "did_less_likely_not_alike")
    remarks = ("own_than_baseline", "alike")
    return Verdict("suppressed_kind", "did_suppressed", remarks)


def _is_like_ordinary(did: Contrast, did_of_ordinary: Sequence[float]) -> bool:
    """Return whether a DiD may be that of one more ordinary run.

    To differ, its interval must lie outside of the range of ordinary runs. That range
    is set by the largest of their values and by the prediction interval of one more run
    (Student's t); for a single run, it is twice its value.

    Parameters
    ----------
    did_of_ordinary
        DiD of ordinary runs against the same baseline, nats per token.
    """
    values = np.asarray(did_of_ordinary, dtype=np.float64)  # (runs,), nats per token
    n_runs = len(values)
    largest = float(np.abs(values).max())
    if n_runs == 1:
        reach = REACH_OF_SINGLE_RUN * largest
    else:
        # Prediction interval of a further value: mean +- t * s * sqrt(1 + 1 / n).
        spread = float(values.std(ddof=1)) * math.sqrt(1 + 1 / n_runs)
        t = float(scipy.special.stdtrit(n_runs - 1, QUANTILE_OF_ORDINARY_RUNS))
        reach = max(largest, abs(float(values.mean())) + t * spread)

    # Without an interval the value alone must lie outside.
    limits = [limit for limit in (did.value, did.low, did.high) if limit is not None]
    is_outside = min(limits) > reach or max(limits) < -reach
    return not is_outside
