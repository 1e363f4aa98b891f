"""Tokens under noise: their probabilities, and the figures and findings they give."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context, Tables, guard
from spark_audit.audits.ratio_rows import beside_base
from spark_audit.audits.spans import Places
from spark_audit.errors import NotEstimableError
from spark_audit.manifest.schema import ManifestExample
from spark_audit.names import BASE
from spark_audit.results import AuditResult, Contrast, Estimate, Finding, Guard, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.bootstrap import cluster_sums, draw_weights, sign_flip
from spark_audit.stats.intervals import (
    Estimand,
    estimates_of,
    left_out,
    replicates_of,
)
from spark_audit.stats.power import with_mde

UNITS = {"dp_pii": "%", "dp_nonpii": "%", "gap": "points"}
WIPED_OUT = -99.0
"""Below this change of both groups, in percent, no gap can show."""

INSENSITIVE = "both groups lose nearly all probability, so no gap could be detected"
SAME_SIZE = 1.1
"""Ratio of relative noise above which checkpoints were not disturbed alike."""


def noise_evidence(
    tables: Tables,
    sets: Sequence[tuple[ManifestExample, str, np.ndarray]],
    passes: Sequence[Pass],
) -> Evidence:
    """One unit per example, kind, scale and draw.

    ``clean`` and ``noisy`` are the summed probabilities of the ``n`` tokens without
    and with noise, ``relative`` is sigma over the RMS of the embedding matrix.

    Parameters
    ----------
    sets
        Examples, kinds of tokens (``pii``, ``low``) and their positions.
    """
    if not sets:
        return Evidence()
    places = Places([one.id for one, *_ in sets], [tokens for *_, tokens in sets])
    facts = pd.DataFrame(
        {
            "kind": [kind for _, kind, _ in sets],
            "task": [example.task for example, *_ in sets],
            "cluster": [example.cluster for example, *_ in sets],
            "n": places.sizes,
        }
    )
    units = pd.concat(
        [facts.assign(sigma=one.sigma, draw=one.draw) for one in passes],
        ignore_index=True,
    )

    def measured() -> Measured:
        for name, scored in tables.items():
            if Pass() not in scored or not any(one in scored for one in passes):
                continue
            clean = _summed(places, scored[Pass()])
            values = np.full((3, len(passes), len(sets)), np.nan)
            for i, wanted in enumerate(passes):
                if (table := scored.get(wanted)) is not None:
                    relative = table.columns["relative"][places.first(table)]
                    values[:, i] = clean, _summed(places, table), relative
            columns = values.reshape(3, -1)
            yield name, dict(zip(("clean", "noisy", "relative"), columns, strict=True))

    return Evidence.of(units, measured())


def _summed(places: Places, table: TokenTable) -> np.ndarray:
    """Summed probability of each set."""
    nll = table.columns["nll"][places.of(table)].astype(np.float64)
    return places.summed(np.exp(-nll))


def _change(sums: np.ndarray) -> np.ndarray:
    """Relative change of the mean probability in percent."""
    return np.asarray(100 * (sums[..., 0] / sums[..., 1] - 1))


def _gap(sums: np.ndarray) -> np.ndarray:
    return np.asarray(_change(sums[..., 2:]) - _change(sums[..., :2]))


def _gap_difference(sums: np.ndarray) -> np.ndarray:
    """How much more one side falls than the other, from sums of both."""
    return np.asarray(_gap(sums[..., :4]) - _gap(sums[..., 4:]))


def _estimands(part: pd.DataFrame, size: int) -> dict[str, Estimand | Estimate]:
    """What each metric of a checkpoint and scale rests on, or why it has no value.

    Sums are over ``size`` clusters of noisy and clean probabilities, of identifiers and
    of low-sensitivity tokens; under noise they are means over draws.
    """
    draws = part["draw"].nunique()
    sums, counts, missing = [], [], dict[str, Estimate]()
    for kind, metric, name in (
        ("pii", "dp_pii", "identifier"),
        ("low", "dp_nonpii", "low-sensitivity"),
    ):
        kept = part[part["kind"] == kind]
        sums.append(cluster_sums(kept[["noisy", "clean"]] / draws, kept["code"], size))
        counts.append(round(kept["n"].sum() / draws))
        if not counts[-1]:
            lost = Estimate.missing(f"there is no {name} token in this group")
            missing = {"gap": lost, **missing, metric: lost}
    both, bounds = np.concatenate(sums, axis=1), (-100.0, np.inf)
    return {
        "dp_pii": Estimand(sums[0], _change, counts[0], bounds),
        "dp_nonpii": Estimand(sums[1], _change, counts[1], bounds),
        "gap": Estimand(both, _gap, sum(counts)),
        **missing,
    }


Key: TypeAlias = tuple[str, float, str]
"""Checkpoint, scale and metric."""


def conclude(evidence: Evidence, context: Context) -> AuditResult:
    """Rows, contrasts, guards and findings of all that was scored."""
    rows: list[Row] = []
    contrasts: list[Contrast] = []
    tasks = evidence.units["task"]
    groups = {"pooled": np.ones(len(tasks), bool)}
    groups |= {f"task:{one}": (tasks == one).to_numpy() for one in sorted(set(tasks))}
    for group, chosen in groups.items():
        more = _figures(evidence, chosen, group, context)
        rows += more[0]
        contrasts += more[1]
    rows = beside_base(rows)
    names, draws = evidence.checkpoints, _draws_table(evidence)
    return AuditResult(
        rows=rows,
        contrasts=contrasts,
        guards=_guards(draws),
        findings=[
            *(finding for name in names for finding in _findings(name, rows)),
            *_contrast_findings(contrasts),
            *([] if BASE in names else [Finding.not_tested("noise", "noise.no_null")]),
        ],
        tables={"noise_draws": draws},
    )


def _figures(
    evidence: Evidence, chosen: np.ndarray, group: str, context: Context
) -> tuple[list[Row], list[Contrast]]:
    """Rows and contrasts of some units."""
    noisy = evidence.values["noisy"][:, chosen]
    clusters = evidence.units["cluster"][chosen].where(~np.isnan(noisy).all(axis=0))
    codes, labels = pd.factorize(clusters, sort=True)
    known = {
        (name, sigma): _estimands(part, len(labels))
        for name in evidence.checkpoints
        for sigma, part in _by_scale(evidence.whole(name)[chosen].assign(code=codes))
    }
    sums = {
        (*place, metric): one
        for place, each in known.items()
        for metric, one in each.items()
    }
    apart = {
        (name, sigma, other): _apart(own["gap"], known[other, sigma]["gap"])
        for (name, sigma), own in known.items()
        # With the baseline, and with the untrained model.
        for other in dict.fromkeys((context.baselines.get(name, BASE), BASE))
        if name != BASE and (other, sigma) in known
    }
    weights = draw_weights(
        len(labels), replicates=context.replicates, seed=context.seed
    )
    estimates = {
        key: with_mde(one)
        for key, one in estimates_of(sums, replicates_of(sums, weights)).items()
    }
    blind = {place for place in known if _wiped_out(estimates, place)}
    for place in blind:
        gap = replace(estimates[*place, "gap"], status="insensitive")
        estimates[*place, "gap"] = gap.noting(INSENSITIVE)
    rows = [
        Row.of_estimate(
            estimate.decided(paper=context.paper),
            audit="noise",
            checkpoint=name,
            group=group,
            metric=metric,
            of=f"{sigma:g}",
            unit=UNITS[metric],
            # The untrained model's own gap is no effect of training.
            null=0.0 if name == BASE and estimate.value is not None else None,
        )
        for (name, sigma, metric), estimate in estimates.items()
    ]
    contrasts = []
    changes = estimates_of(apart, replicates_of(apart, weights))
    for (name, sigma, other), change in changes.items():
        one, p = apart[name, sigma, other], None
        if isinstance(one, Estimand) and change.low is not None:
            p = _pseudo_p(one.sums, context.seed)
        estimate = with_mde(change, null=0.0).decided(paper=context.paper)
        if estimate.value is not None and blind & {(name, sigma), (other, sigma)}:
            note = "; ".join(filter(None, (INSENSITIVE, estimate.note)))
            estimate = replace(estimate, status="insensitive", note=note)
        contrasts.append(
            Contrast.of_estimate(
                estimate,
                audit="noise",
                checkpoint=name,
                baseline=other,
                group=group,
                metric="gap",
                of=f"{sigma:g}",
                unit=UNITS["gap"],
                null=0.0,
                p=p,
            )
        )
    return rows, contrasts


def _wiped_out(estimates: Mapping[Key, Estimate], place: tuple[str, float]) -> bool:
    """Whether both groups lose nearly all probability."""
    *both, gap = (estimates[*place, metric].value for metric in UNITS)
    return gap is not None and all(v is not None and v <= WIPED_OUT for v in both)


def _apart(own: Estimand | Estimate, other: Estimand | Estimate) -> Estimand | Estimate:
    """The gap minus the baseline's gap, paired by cluster; or why there is none."""
    if isinstance(own, Estimate):
        return own
    if isinstance(other, Estimate):
        return other
    sums = np.concatenate([own.sums, other.sums], axis=1)
    return Estimand(sums, _gap_difference, own.n)


def _pseudo_p(sums: np.ndarray, seed: int) -> float | None:
    """P of no difference: the sign-flip test of the clusters' pseudo-values.

    A gap is no sum over clusters: the jackknife's pseudo-values stand for them.
    """
    held = sums[sums.any(axis=1)]
    try:
        value, values = left_out(held, _gap_difference)
    except NotEstimableError:
        return None
    return float(sign_flip(len(held) * value - (len(held) - 1) * values, seed=seed))


def _by_scale(units: pd.DataFrame) -> Iterator[tuple[float, pd.DataFrame]]:
    """The scored units of one checkpoint by scale, in their order."""
    scored = units.dropna(subset="noisy")
    for sigma in scored["sigma"].unique().tolist():
        yield sigma, scored[scored["sigma"] == sigma]


def _draws_table(evidence: Evidence) -> list[dict[str, Any]]:
    """How much the figures vary over draws: the standard deviation of single draws."""
    records = []
    for name in evidence.checkpoints:
        for sigma, part in _by_scale(evidence.whole(name).assign(code=0)):
            single = [_estimands(one, 1) for _, one in part.groupby("draw")]
            record: dict[str, Any] = {
                "checkpoint": name,
                "sigma": sigma,
                "relative": float(part["relative"].iloc[0]),
                "draws": len(single),
            }
            for metric in UNITS:
                with np.errstate(divide="ignore", invalid="ignore"):
                    values = [
                        one.statistic(one.sums[0])
                        for one in (each[metric] for each in single)
                        if isinstance(one, Estimand)
                    ]
                spread = float(np.std(values, ddof=1)) if len(values) > 1 else np.nan
                record[f"{metric}_sd"] = spread if math.isfinite(spread) else None
            records.append(record)
    return records


def _guards(draws: Sequence[Mapping[str, Any]]) -> list[Guard]:
    """Whether the same sigma is the same disturbance for all checkpoints."""
    relative = pd.DataFrame.from_records(list(draws)).groupby("sigma")["relative"]
    worst = float((relative.max() / relative.min()).max())
    if worst <= SAME_SIZE:
        return []
    return [guard("same noise", "same_noise", {"ratio": worst})]


def _findings(name: str, rows: Sequence[Row]) -> Iterator[Finding]:
    pooled = [r for r in rows if r.checkpoint == name and r.group == "pooled"]
    pii, other, gaps = (
        [row for row in pooled if row.metric == metric and row.value is not None]
        for metric in UNITS
    )
    if not (pii or other):
        lost = {"checkpoint": name, "reason": pooled[0].note}
        yield Finding.not_tested("noise", "noise.missing", **lost)
        return
    scales = list(dict.fromkeys(row.of for row in pooled))
    facts: dict[str, Any] = {"pii": pii, "other": other, "sigmas": scales}
    yield Finding.on(pooled[0], "moved", "noise.probabilities", facts=facts)
    if gaps:
        facts = {"gaps": gaps, "trained": name != BASE}
        yield Finding.on(gaps[0], "moved", "noise.gaps", facts=facts)


def _contrast_findings(contrasts: Sequence[Contrast]) -> Iterator[Finding]:
    changes: dict[tuple[str, str], list[Contrast]] = defaultdict(list)
    for row in contrasts:
        if row.group == "pooled":
            changes[row.checkpoint, row.baseline].append(row)
    for (name, baseline), rows in changes.items():
        facts: dict[str, Any] = {"baseline": baseline, "changes": rows}
        where: dict[str, Any] = {"audit": "noise", "checkpoint": name}
        yield Finding.on(None, "moved", "noise.changes", facts=facts, **where)
