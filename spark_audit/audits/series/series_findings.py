"""What the series audit concludes: membership by all stages, and what they add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from spark_audit.audits.base import Context
from spark_audit.audits.mia.estimates import Group, Known
from spark_audit.audits.series.coins import epsilon_table
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
from spark_audit.results.findings import Fact
from spark_audit.stats.bootstrap import holm_by_key
from spark_audit.stats.roc import auc_estimate

NO_TEXTS = "the texts alone could not be tested: too few groups of rows"


def conclude(evidence: Evidence, context: Context) -> AuditResult:
    """Rows, findings, and membership by what there was after each stage."""
    rows: list[Row] = []
    table: list[dict[str, Any]] = []
    pooled: dict[str, Group] = {}
    gains: dict[str, float] = {}
    findings: list[Finding] = []
    coins: dict[str, StagedRows] = {}
    for name, stages, coins[name] in all_series(evidence):
        if isinstance(stages, str):
            missing = Finding.not_tested(
                "series", "series.missing", checkpoint=name, reason=stages
            )
            findings.append(missing)
            columns = {"audit": "series", "checkpoint": name, "metric": "auc"}
            nothing = Estimate.missing(stages)
            rows.append(Row.of_estimate(nothing, of=SERIES, null=0.5, **columns))
            continue
        for group in _groups(name, stages, context):
            gain = list(group.differences((name, SERIES), (name, LAST)))
            if group.name == "pooled":
                p = gain[0][2]
                pooled[name], gains[name] = group, 1.0 if p is None else p
            rows += _rows(name, group, gain)
        table += _by_stage(name, stages)
    adjusted = holm_by_key(gains)
    by_place = {(row.checkpoint, row.metric, row.of): row for row in rows[::-1]}
    for name, group in pooled.items():
        findings.append(_finding(name, group, adjusted[name], len(pooled), by_place))
    tables = {"series_stages": table}
    if bounds := epsilon_table(coins):
        tables["series_epsilon"] = bounds
    return AuditResult(rows=rows, findings=findings, tables=tables)


def _groups(name: str, stages: StagedRows, context: Context) -> Iterator[Group]:
    """All rows, and those of each task."""
    scores = {name: {**stages.scores, "texts": stages.texts}}
    known = Known(stages.rows, scores, context, FPRS, context.seed)
    seed, tasks = seed_for(context.seed, "series"), stages.rows["task"].to_numpy()
    yield Group(known, "pooled", np.arange(len(tasks)), seed)
    for task in sorted(set(tasks)):
        yield Group(known, f"task:{task}", np.flatnonzero(tasks == task), seed)


def _rows(
    name: str, group: Group, gain: Iterable[tuple[str, Estimate, float | None]]
) -> Iterator[Row]:
    columns = {"audit": "series", "checkpoint": name, "group": group.name}
    for of in OFS:
        auc = group.auc(name, of)
        yield Row.of_estimate(auc, metric="auc", of=of, null=0.5, **columns)
        for metric in FPRS:
            null = group.chance(name, of, metric)
            rate = group.tpr(name, of, metric)
            yield Row.of_estimate(rate, metric=metric, of=of, **null, **columns)
    for metric, more, _ in gain:
        yield Row.of_estimate(more, metric=f"{metric}_gain", null=0.0, **columns)


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
    group: Group,
    gain_p: float,
    series: int,
    rows: dict[tuple[str, str, str], Row],
) -> Finding:
    """Whether the series gives rows away, and whether it adds to its last stage."""
    row, above = rows[name, "auc", SERIES], group.above_texts(name, SERIES, more=True)
    moved = group.p(name, SERIES)
    if above is None or moved is None:
        reason = row.note if row.value is None else NO_TEXTS
        return Finding.not_tested(
            "series", "series.missing", checkpoint=name, reason=reason
        )
    needed = max(moved, above.excess_p(told=above.told))
    claim: Claim = "nothing_shown"
    if needed < 0.05:
        claim = "membership"
    elif moved < 0.05 and above.told:
        claim = "confounded"
    gain = rows[name, "auc_gain", ""]
    member = group.known.facts["member"]
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
    figures = above.figures(told=above.told)
    primary: dict[str, Any] = {"family": "primary", "p": needed, **figures}
    return Finding.on(row, claim, f"series.{claim}", facts=facts, **primary)
