"""What the series audit concludes: membership by all stages, and what they add."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from spark_audit.audits.base import Context
from spark_audit.audits.mia.estimates import AboveTexts, Drawn, rate_difference
from spark_audit.audits.mia.verdicts import TOLD
from spark_audit.audits.series.series_scores import (
    FPRS,
    LAST,
    OFS,
    SERIES,
    StagedRows,
    all_series,
)
from spark_audit.provenance import seed_for
from spark_audit.results import AuditResult, Claim, Estimate, Finding, Row
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import Fact, Power
from spark_audit.stats.bootstrap import holm
from spark_audit.stats.power import with_mde
from spark_audit.stats.roc import (
    auc_difference,
    auc_estimate,
    auc_replicates,
    auc_test,
    chance,
    tpr_estimate,
    tpr_replicates,
)

MOST_REPLICATES = 2000
NO_TEXTS = "the texts alone could not be tested: too few groups of rows"


@dataclass(frozen=True)
class SeriesEstimates:
    """The estimates of one group of rows of a series."""

    stages: StagedRows
    context: Context

    @cached_property
    def drawn(self) -> Drawn:
        """The rows, their design, and the weights of its resamples."""
        design = self.stages.design
        count = min(self.context.replicates, MOST_REPLICATES)
        seed = seed_for(self.context.seed, "series")
        weights = design.draw(replicates=count, seed=seed)
        return Drawn(np.arange(len(design.member)), design, weights)

    @cached_property
    def resampled(self) -> dict[str, np.ndarray]:
        """By score: AUC and rates at :data:`FPRS` in every resample, ``(3, B)``."""
        design, weights = self.drawn.design, self.drawn.weights
        found = {}
        for of, score in self.stages.scores.items():
            rates = tpr_replicates(design, score, [*FPRS.values()], weights)
            found[of] = np.stack([auc_replicates(design, score, weights), *rates])
        return found

    def figures(self) -> Iterator[tuple[str, str, Estimate, dict[str, float]]]:
        """Metric, score, estimate, and what a score that knows nothing gives."""
        design, scores = self.drawn.design, self.stages.scores
        for of in OFS:
            area, *rates = self.resampled[of]
            auc = auc_estimate(design, scores[of], replicates=area)
            yield "auc", of, with_mde(auc), {"null": 0.5}
            for (metric, fpr), own in zip(FPRS.items(), rates, strict=True):
                rate = tpr_estimate(design, scores[of], fpr, replicates=own)
                band = chance(design, fpr, seed=self.context.seed)
                null = dict(zip(("null", "null_low", "null_high"), band, strict=True))
                yield metric, of, with_mde(rate), null
        pair = [scores[of] for of in (SERIES, LAST)]
        area, *rates = self.resampled[SERIES] - self.resampled[LAST]
        yield "auc_gain", "", self.gain[0], {"null": 0.0}
        for (metric, fpr), own in zip(FPRS.items(), rates, strict=True):
            more = rate_difference(self.drawn, pair, fpr, own)
            yield f"{metric}_gain", "", with_mde(more, null=0.0), {"null": 0.0}

    @cached_property
    def gain(self) -> tuple[Estimate, float | None]:
        """AUC of the series minus that of the last stage, and two-sided p of none."""
        pair = [self.stages.scores[of] for of in (SERIES, LAST)]
        apart = self.resampled[SERIES][0] - self.resampled[LAST][0]
        estimate, p = auc_difference(self.drawn.design, *pair, replicates=apart)
        return with_mde(estimate, null=0.0), p

    @cached_property
    def above(self) -> AboveTexts | None:
        """The score of the series against the texts alone; ``None``: no test."""
        known = np.isfinite(self.stages.texts)
        if not known.any():
            return None
        design = self.drawn.design.take(np.flatnonzero(known))
        ours, guess = (
            values[known] for values in (self.stages.scores[SERIES], self.stages.texts)
        )
        return AboveTexts.of(design, ours, guess)


def conclude(evidence: Evidence, context: Context) -> AuditResult:
    """Rows, findings, and membership by what there was after each stage."""
    rows: list[Row] = []
    table: list[dict[str, Any]] = []
    known: dict[str, SeriesEstimates] = {}
    findings: list[Finding] = []
    for name, stages in all_series(evidence):
        if isinstance(stages, str):
            missing = Finding.not_tested(
                "series", "series.missing", checkpoint=name, reason=stages
            )
            findings.append(missing)
            columns = {"audit": "series", "checkpoint": name, "metric": "auc"}
            nothing = Estimate.missing(stages)
            rows.append(Row.of_estimate(nothing, of=SERIES, null=0.5, **columns))
            continue
        attacks = _groups(stages, context)
        known[name] = attacks["pooled"]
        rows += [
            row for group, one in attacks.items() for row in _rows(name, group, one)
        ]
        table += _by_stage(name, stages)
    gains = [one.gain[1] for one in known.values()]
    adjusted = holm([1.0 if p is None else p for p in gains]).tolist()
    by_place = {(row.checkpoint, row.metric, row.of): row for row in rows[::-1]}
    for (name, attack), p in zip(known.items(), adjusted, strict=True):
        findings.append(_finding(name, attack, p, len(gains), by_place))
    return AuditResult(rows=rows, findings=findings, tables={"series_stages": table})


def _groups(stages: StagedRows, context: Context) -> dict[str, SeriesEstimates]:
    """All rows, and those of each task."""
    found = {"pooled": SeriesEstimates(stages, context)}
    for task in sorted(set(stages.rows["task"])):
        own = (stages.rows["task"] == task).to_numpy()
        part = StagedRows(
            stages.rows[own], stages.fall[:, own], stages.place[own], stages.texts[own]
        )
        found[f"task:{task}"] = SeriesEstimates(part, context)
    return found


def _rows(name: str, group: str, attack: SeriesEstimates) -> Iterator[Row]:
    for metric, of, estimate, null in attack.figures():
        yield Row.of_estimate(
            estimate.decided(paper=attack.context.paper),
            audit="series",
            checkpoint=name,
            metric=metric,
            of=of,
            group=group,
            **null,
        )


def _by_stage(name: str, stages: StagedRows) -> Iterator[dict[str, Any]]:
    """AUC of the last checkpoint and of the series, had the run ended at a stage."""
    for stage in range(1, len(stages.fall) + 1):
        then = stages.until(stage)
        if not len(then.rows):
            continue
        record = {"checkpoint": name, "stage": stage, "tasks": len({*then.place})}
        for of in (LAST, SERIES):
            auc = auc_estimate(then.design, then.scores[of])
            ends = ("value", "low", "high")
            record |= {f"{of}_{end}": getattr(auc, end) for end in ends}
        yield record


def _finding(
    name: str,
    attack: SeriesEstimates,
    gain_p: float,
    series: int,
    rows: dict[tuple[str, str, str], Row],
) -> Finding:
    """Whether the series gives rows away, and whether it adds to its last stage."""
    row, above = rows[name, "auc", SERIES], attack.above
    moved = auc_test(attack.drawn.design, attack.stages.scores[SERIES])
    if above is None or moved is None:
        reason = row.note if row.value is None else NO_TEXTS
        return Finding.not_tested(
            "series", "series.missing", checkpoint=name, reason=reason
        )
    told = above.told_p < TOLD
    needed = max(moved, above.excess_p(told=told))
    apart, margin = above.difference, above.margin(told=told)
    claim: Claim = "nothing_shown"
    if needed < 0.05:
        claim = "membership"
    elif moved < 0.05 and told:
        claim = "confounded"
    power = []
    if apart.se:
        most, df = 1 - above.texts, apart.clusters - 1
        power.append(Power(test="t", se=apart.se, df=df, most=most, beyond=margin))
    gain = rows[name, "auc_gain", ""]
    member = attack.stages.rows["member"]
    facts: dict[str, Fact] = {
        **above.rows(name, SERIES, audit="series"),
        "last": rows[name, "auc", LAST],
        "gain": gain,
        "gain_p": gain_p,
        "adds": gain_p < 0.05 and (gain.value or 0.0) > 0,
        "series": series,
        "members": int(member.sum()),
        "others": int((~member.astype(bool)).sum()),
    }
    own = {"value": apart.value, "low": apart.low, "high": apart.high, "null": 0.0}
    primary: dict[str, Any] = {"family": "primary", "p": needed, "power": power}
    return Finding.on(
        row, claim, f"series.{claim}", facts=facts, unit="AUC", **own, **primary
    )
