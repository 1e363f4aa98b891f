"""How noise on input embeddings changes identifiers' probability.

SPARK's table of embedding perturbation: the relative change of the mean probability of
identifier tokens and of low-sensitivity tokens, and the gap between the two, here with
its sign (SPARK prints the absolute value).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Audit, Context, Plan, Tables, missing_rows
from spark_audit.audits.metric import by_name
from spark_audit.audits.noise.perturbed import (
    DRAWS,
    METRICS,
    SIGMAS,
    STATISTICS,
    Sums,
    by_scale,
    gap_difference,
    noise_evidence,
    noise_passes,
    scales,
    token_sets,
)
from spark_audit.audits.ratio_rows import beside_base
from spark_audit.errors import InputError, NotEstimableError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE
from spark_audit.results import (
    AuditResult,
    Contrast,
    Estimate,
    Finding,
    Guard,
    Row,
)
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.table import Pass
from spark_audit.stats.bootstrap import sign_flip
from spark_audit.stats.intervals import (
    Estimand,
    estimate_of,
    estimates_of,
    left_out,
    replicates_of,
)
from spark_audit.stats.power import with_mde
from spark_audit.stats.weights import Weights, draw_weights

NOTHING = "the manifest has no identifier and no low-sensitivity token in a train row"
NOT_SCORED = "the texts were not scored both with and without noise"
WIPED_OUT = -99.0
"""Below this change of both groups, in percent, no gap can show."""

INSENSITIVE = "both groups lose nearly all probability, so no gap could be detected"
SAME_SIZE = 1.1
"""Ratio of relative noise above which checkpoints were not disturbed alike."""

NO_NULL = Finding.not_tested("noise", "noise.no_null")


@dataclass(frozen=True, kw_only=True)
class Noise(Audit):
    """Identifiers' probability under noise on the input embeddings.

    The evidence is one row per checkpoint, example, kind of token, scale and draw.
    Probabilities under noise are averaged over draws, token by token. Tokens are those
    of train rows without a canary: annotated identifiers, and low-sensitivity tokens
    as the manifest lists them.
    """

    name = "noise"
    metrics = METRICS
    nothing = NOTHING
    unscored = NOT_SCORED
    slow = True

    sigmas: Annotated[str, "scales of the noise (sigma), separated by commas"] = SIGMAS
    draws: Annotated[int, "random draws of noise per scale"] = DRAWS

    def __post_init__(self) -> None:
        scales(self.sigmas)
        if self.draws < 1:
            raise InputError(
                f"{self.draws} draws are too few",
                where="--draws",
                fix="give at least 1",
            )

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Train rows without a canary that hold a token of either kind."""
        ids = sorted({example.id for example, *_ in token_sets(manifest)})
        if not ids:
            return {}
        return {
            wanted: ids for wanted in (Pass(), *noise_passes(self.sigmas, self.draws))
        }

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        return noise_evidence(tables, manifest, sigmas=self.sigmas, draws=self.draws)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        rows: list[Row] = []
        contrasts: list[Contrast] = []
        for group, chosen in _grouped(evidence.units):
            sums, weights = _sums(evidence, chosen, context)
            estimands = {
                (place, metric): one.of_metric(metric)
                for place, one in sums.items()
                for metric in STATISTICS
            }
            drawn = replicates_of(estimands, weights)
            estimates = estimates_of(estimands, drawn)
            for (name, sigma), one in sums.items():
                columns: dict[str, Any] = {"checkpoint": name, "of": f"{sigma:g}"}
                columns["group"] = group
                shown = {m: with_mde(estimates[(name, sigma), m]) for m in STATISTICS}
                rows += _rows(shown, columns, context)
                for other in _others(name, context.baselines):
                    if (theirs := sums.get((other, sigma))) is not None:
                        pair = ((name, sigma), "gap"), ((other, sigma), "gap")
                        lost = [estimates[x] for x in pair if x not in drawn]
                        apart = None if lost else drawn[pair[0]] - drawn[pair[1]]
                        estimate, p = _contrast((one, theirs), lost, apart, context)
                        columns |= {"metric": "gap", "unit": "points", "null": 0.0}
                        contrast = Contrast.of_estimate(
                            estimate, audit="noise", p=p, baseline=other, **columns
                        )
                        contrasts.append(contrast)
        rows = beside_base(rows)
        contrasts = _insensitive(contrasts, rows)
        names, draws = evidence.checkpoints, _draws_table(evidence)
        scored = {(row.checkpoint, row.of) for row in rows}
        scales = [f"{sigma:g}" for sigma in evidence.units["sigma"].unique()]
        missing = [
            row
            for name in names
            for row in _missing(
                [name], [of for of in scales if (name, of) not in scored], NOT_SCORED
            )
        ]
        return AuditResult(
            rows=[*rows, *missing],
            contrasts=contrasts,
            guards=_guards(draws),
            findings=[
                *(finding for name in names for finding in _findings(name, rows)),
                *_contrast_findings(contrasts),
                *([] if BASE in names else [NO_NULL]),
            ],
            tables={"noise_draws": draws},
        )

    def unmeasured(
        self, result: AuditResult, names: Sequence[str], reason: str
    ) -> AuditResult:
        """The result with a row per scale for checkpoints that have no figure."""
        every = [f"{sigma:g}" for sigma in scales(self.sigmas)]
        rows = [*result.rows, *_missing(names, every, reason)]
        return replace(result, rows=rows)


def _missing(names: Sequence[str], of: Sequence[str], reason: str) -> list[Row]:
    metrics = [replace(metric, missing=tuple(of)) for metric in METRICS]
    return missing_rows("noise", names, metrics, reason)


def _sums(
    evidence: Evidence, chosen: np.ndarray, context: Context
) -> tuple[dict[tuple[str, float], Sums], Weights]:
    """Sums by checkpoint and scale of some units, and the weights of resamples."""
    units, noisy = evidence.units[chosen], evidence.values["noisy"][:, chosen]
    clusters = units["cluster"].where(~np.isnan(noisy).all(axis=0))
    codes, names = pd.factorize(clusters, sort=True)
    sums = {
        (name, sigma): Sums.of(part, len(names))
        for name in evidence.checkpoints
        for sigma, part in by_scale(evidence.whole(name)[chosen].assign(code=codes))
    }
    weights = draw_weights(len(names), replicates=context.replicates, seed=context.seed)
    return sums, weights


def _rows(
    estimates: dict[str, Estimate], place: Mapping[str, Any], context: Context
) -> list[Row]:
    metrics = by_name(METRICS)
    both = [estimates[metric].value for metric in ("dp_pii", "dp_nonpii")]
    if estimates["gap"].value is not None and all(
        value is not None and value <= WIPED_OUT for value in both
    ):
        gap = replace(estimates["gap"], status="insensitive")
        estimates["gap"] = gap.noting(INSENSITIVE)
    is_base = place["checkpoint"] == BASE
    return [
        Row.of_estimate(
            estimate.decided(paper=context.paper),
            audit="noise",
            metric=metric,
            unit=metrics[metric].unit,
            # The untrained model's own gap is no effect of training.
            null=0.0 if is_base and estimate.value is not None else None,
            **place,
        )
        for metric, estimate in estimates.items()
    ]


def _others(name: str, baselines: Mapping[str, str]) -> list[str]:
    """Checkpoints to compare a gap with: the baseline and the untrained model."""
    if name == BASE:
        return []
    return list(dict.fromkeys([*filter(None, [baselines.get(name)]), BASE]))


def _insensitive(contrasts: Sequence[Contrast], rows: Sequence[Row]) -> list[Contrast]:
    """Contrasts in which one of the gaps could not show."""
    blind = {
        (row.checkpoint, row.of, row.group)
        for row in rows
        if row.metric == "gap" and row.status == "insensitive"
    }
    found = []
    for row in contrasts:
        sides = {(n, row.of, row.group) for n in (row.checkpoint, row.baseline)}
        if row.value is not None and sides & blind:
            note = "; ".join(text for text in (INSENSITIVE, row.note) if text)
            row = row.model_copy(update={"status": "insensitive", "note": note})
        found.append(row)
    return found


def _contrast(
    pair: tuple[Sums, Sums],
    lost: Sequence[Estimate],
    drawn: np.ndarray | None,
    context: Context,
) -> tuple[Estimate, float | None]:
    """The gap minus the baseline's gap, paired by cluster.

    ``p`` is the sign-flip test of the clusters' jackknife pseudo-values, as a gap is no
    sum over clusters.
    """
    if lost:
        return lost[0], None
    sums = np.concatenate([one.sums for one in pair], axis=1)
    n = sum(pair[0].tokens.values())
    estimate = estimate_of(sums, gap_difference, n=n, replicates=drawn)
    p = None if estimate.low is None else _pseudo_p(sums, context.seed)
    return with_mde(estimate, null=0.0).decided(paper=context.paper), p


def _pseudo_p(sums: np.ndarray, seed: int) -> float | None:
    held = sums[sums.any(axis=1)]
    try:
        value, values = left_out(held, gap_difference)
    except NotEstimableError:
        return None
    return float(sign_flip(len(held) * value - (len(held) - 1) * values, seed=seed))


def _grouped(units: pd.DataFrame) -> Iterator[tuple[str, np.ndarray]]:
    yield "pooled", np.ones(len(units), bool)
    for task in sorted(set(units["task"])):
        yield f"task:{task}", (units["task"] == task).to_numpy()


def _draws_table(evidence: Evidence) -> list[dict[str, Any]]:
    """How much the figures vary over draws: the standard deviation of single draws."""
    records = []
    for name in evidence.checkpoints:
        for sigma, part in by_scale(evidence.whole(name).assign(code=0)):
            single = [Sums.of(one, 1) for _, one in part.groupby("draw")]
            record: dict[str, Any] = {
                "checkpoint": name,
                "sigma": sigma,
                "relative": float(part["relative"].iloc[0]),
                "draws": len(single),
            }
            for metric in STATISTICS:
                each = [one.of_metric(metric) for one in single]
                with np.errstate(divide="ignore", invalid="ignore"):
                    values = [
                        one.statistic(one.sums[0])
                        for one in each
                        if isinstance(one, Estimand)
                    ]
                spread = float(np.std(values, ddof=1)) if len(values) > 1 else np.nan
                record[f"{metric}_sd"] = spread if math.isfinite(spread) else None
            records.append(record)
    return records


def _guards(draws: Sequence[Mapping[str, Any]]) -> list[Guard]:
    """Whether the same sigma is the same disturbance for all checkpoints."""
    ratio = (
        pd.DataFrame.from_records(list(draws))
        .groupby("sigma")["relative"]
        .agg(lambda r: r.max() / r.min())
    )
    worst = float(ratio.max())
    if worst <= SAME_SIZE:
        return []
    return [
        Guard(
            name="same noise",
            passed=None,
            says="guard.same_noise",
            facts={"ratio": worst},
        )
    ]


# --- findings -------------------------------------------------------------------------


def _findings(name: str, rows: Sequence[Row]) -> list[Finding]:
    pooled = [r for r in rows if r.checkpoint == name and r.group == "pooled"]
    by = {
        metric: [
            row for row in pooled if row.metric == metric and row.value is not None
        ]
        for metric in STATISTICS
    }
    facts: dict[str, Any] = {"pii": by["dp_pii"], "other": by["dp_nonpii"]}
    if not (by["dp_pii"] or by["dp_nonpii"]):
        reason = pooled[0].note
        return [
            Finding.not_tested("noise", "noise.missing", checkpoint=name, reason=reason)
        ]
    facts["sigmas"] = list(dict.fromkeys(row.of for row in pooled))
    findings = [Finding.on(pooled[0], "moved", "noise.probabilities", facts=facts)]
    if gaps := by["gap"]:
        facts = {"gaps": gaps, "trained": name != BASE}
        findings.append(Finding.on(gaps[0], "moved", "noise.gaps", facts=facts))
    return findings


def _contrast_findings(contrasts: Sequence[Contrast]) -> list[Finding]:
    pooled = [row for row in contrasts if row.group == "pooled"]
    findings = []
    for name, baseline in dict.fromkeys((r.checkpoint, r.baseline) for r in pooled):
        changes = [r for r in pooled if (r.checkpoint, r.baseline) == (name, baseline)]
        findings.append(
            Finding(
                audit="noise",
                checkpoint=name,
                claim="moved",
                says="noise.changes",
                facts={"baseline": baseline, "changes": changes},
            )
        )
    return findings
