"""Planted canaries, ranked among strings that were not planted.

SPARK's canary audit: the rank of the true string among 512 candidates by mean NLL, its
exposure in bits, Top-1 and Top-10. A canary that the model never saw has a uniform
rank, so every figure is shown with its chance value. If not even the canaries that
occur in most rows are detected in any checkpoint, nothing can be concluded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from spark_audit import sentences
from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, guard
from spark_audit.audits.canary import canary_findings
from spark_audit.audits.canary.rank_tests import (
    TIED,
    Judged,
    hits_of,
    ranked,
    resolved,
    tables_of,
    tied,
    trained,
)
from spark_audit.audits.ratio_rows import bounded, cells_of_frame, marked, ratio_figures
from spark_audit.data.canaries import RANKED
from spark_audit.manifest.schema import Manifest, ManifestCanary
from spark_audit.manifest.sequences import canary_key
from spark_audit.results import AuditResult, Contrast, Finding, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.chance_ranks import (
    candidate_rank,
    chance_mde,
    null_mean,
    null_moments,
    top_k_credit,
    top_k_mde,
)

CANDIDATES = Pass("candidates")
TOP = {"top1_rate": 1, "top10_rate": 10}
VALUES = ("rank", "ties", "nll_mean")
OFS = (*RANKED, *(f"{part}/annotation" for part in RANKED))

_ranked = partial(Metric, variants=OFS, missing=RANKED)
METRICS = (
    _ranked("nll", "nats", bounds=(0.0, math.inf), learned=-1),
    # A percentile interval of a mean rank covers far too rarely.
    _ranked("rank_mean", "ranks", bounds=(1.0, math.inf), learned=-1, heavy=True),
    _ranked(
        "exposure_mean",
        "bits",
        bounds=(0.0, math.inf),
        learned=1,
        glance=("full",),
        headline=("full",),
    ),
    _ranked("top1_rate", rate=True, learned=1, alone=True),
    _ranked("top10_rate", rate=True, learned=1),
)
"""Ranks and exposures are bounded by the number of candidates, once it is known."""

NONE = "the manifest has no canary"
UNRANKED = "no canary of the manifest can be ranked among candidates"
ONE_RANK = "the chance band assumes that all rows of a canary have the same rank"
UNSCORED = "the candidates of canaries were not scored"


@dataclass(frozen=True, kw_only=True)
class CanaryRank(Audit):
    """Planted canaries, ranked among strings that were not planted.

    The evidence is one row per checkpoint, canary, part and context, and one row over
    its contexts: ``full``, ``password`` and ``ssn`` average the NLL of each candidate
    over the contexts of the canary and rank once; ``full/annotation`` etc. rank in each
    context and average the ranks, as SPARK does. The unit is the canary in both cases.
    """

    name = "canary"
    metrics = METRICS
    nothing = NONE
    unscored = UNSCORED
    chance = True
    public = ("canary_by_dose", "canary_epsilon", "canary_one_run")
    covers = ("exposure_mean", "n")
    memory = True
    unit = "bits"
    frameworks = "AITG-DAT-01"

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Candidates of every canary that can be ranked.

        A canary is ranked in its first row by id, with ``paper`` in all that the
        manifest lists.
        """
        every = (candidate_keys(one, paper=paper) for one in manifest.canaries)
        keys = sorted(key for keys in every for key in keys.values())
        return {CANDIDATES: keys} if keys else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """One unit per canary, part and context, and one over its contexts.

        ``kind`` is ``context``; ``canary``, ranked once by each candidate's NLL
        averaged over contexts; or ``unrankable``. ``rank`` is strict; ``nll_mean``,
        nats per token, is the true string's.
        """
        keyed = [
            (one, candidate_keys(one, paper=context.paper)) for one in manifest.canaries
        ]
        units = pd.DataFrame.from_records(
            [unit for canary, keys in keyed for unit in _units(canary, keys)]
        )

        def measured() -> Measured:
            for name, passes in tables.items():
                table = passes.get(CANDIDATES)
                rows = [
                    x for canary, keys in keyed for x in _scores(canary, keys, table)
                ]
                scores = np.array(rows, np.float64).reshape(-1, len(VALUES))
                yield name, dict(zip(VALUES, scores.T, strict=True))

        kept = manifest.settings.canary_contexts if context.paper else None
        return Evidence.of(units, measured(), {"kept_contexts": kept})

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        names, units = list(evidence.checkpoints), evidence.units
        every = evidence.frame().astype({"rank": np.int64, "ties": np.int64})
        guards = canary_findings.rankable(units)
        if (kept := evidence.facts["kept_contexts"]) is not None:
            guards.append(guard("canary contexts", "canary_contexts", {"kept": kept}))
        frame = ranked(every)
        ours = trained(frame)
        if ours.empty:
            reason = UNSCORED if (units["kind"] == "canary").any() else UNRANKED
            if len(frame):
                reason = "no canary of a trained row can be ranked"
            unknown = "canary", "canary.not_estimable"
            return AuditResult(
                rows=self.missing(names, reason),
                guards=guards,
                findings=[Finding.not_tested(*unknown, reason=reason)],
            )
        judged = Judged.of(frame)
        in_contexts = trained(ranked(every, "context"))
        rows, contrasts = canary_figures(ours, in_contexts, judged, context)
        tables = tables_of(frame, judged)
        findings = [*canary_findings.findings(judged, tables["canary_epsilon"], rows)]
        for name in names:
            reason = UNRANKED
            if name not in {*ours["checkpoint"]}:
                lost, reason = ("canary", "canary.unscored"), UNSCORED
                lacking = Finding.not_tested(*lost, checkpoint=name, reason=reason)
                findings.append(lacking)
            rows += self.missing([name], reason, beside=rows)
        findings += canary_findings.contrast_findings(contrasts, judged)
        return AuditResult(
            rows=rows,
            contrasts=contrasts,
            guards=[*canary_findings.guards(judged, every), *guards],
            findings=findings,
            tables={name: table for name, table in tables.items() if table},
        )


def candidate_keys(canary: ManifestCanary, *, paper: bool) -> dict[str, str]:
    """Key of the candidates in each context; none if it cannot be ranked."""
    if not canary.candidates or canary.true_index is None:
        return {}
    rows = sorted(context.example for context in canary.contexts)
    return {
        row: canary_key(canary.canary_id, canary.part, row)
        for row in (rows if paper else rows[:1])
    }


def _units(canary: ManifestCanary, keys: dict[str, str]) -> Iterator[dict[str, Any]]:
    head = {
        "canary_id": canary.canary_id,
        "part": canary.part,
        "example": "",
        "format": canary.format,
        "dose": canary.dose,
        "held_out": canary.held_out,
        "pair": canary.pair or "",
        "contexts": len(keys),
        "n_candidates": len(canary.candidates),
    }
    for example in keys:
        yield head | {"kind": "context", "example": example, "contexts": 1}
    yield head | {"kind": "canary" if keys else "unrankable"}


def _scores(
    canary: ManifestCanary, keys: dict[str, str], table: TokenTable | None
) -> Iterator[list[float]]:
    """:data:`VALUES` of the units of one canary part; NaN if it was not scored."""
    true = canary.true_index
    if not keys or table is None or not all(key in table for key in keys.values()):
        yield from [[np.nan] * len(VALUES)] * (len(keys) + 1)
        return
    assert true is not None
    held = [table.columns["nll_mean"][table.rows(key)] for key in keys.values()]
    means = np.stack(held).astype(np.float64)
    for mean in (*means, means.mean(axis=0)):
        yield [*candidate_rank(mean, true), mean[true]]


def canary_figures(
    once: pd.DataFrame, often: pd.DataFrame, judged: Judged, context: Context
) -> tuple[list[Row], list[Contrast]]:
    """Rows with their values by chance, and contrasts.

    ``once`` holds a rank a canary, ``often`` one a context. Top-1 has no contrast: so
    few canaries cannot show its change.
    """
    size = int(once["n_candidates"].iloc[0])
    tops = {"rank_mean": (1.0, float(size)), "exposure_mean": (0.0, np.log2(size))}
    every = [once.assign(of=once["part"])]
    every.append(often.assign(of=often["part"] + "/annotation"))
    frame = pd.concat(every, ignore_index=True)
    frame["cluster"] = frame["canary_id"]
    for metric, k in TOP.items():
        frame[metric] = top_k_credit(frame["rank"], k=k, ties=frame["ties"])
    columns = {"nll": "nll_mean", "exposure_mean": "exposure"}
    columns |= {metric: metric for metric in TOP} | {"rank_mean": "mid"}
    cells = [cells_of_frame("pooled", frame, columns)]
    rows, contrasts = ratio_figures(cells, context, CanaryRank, **tops)
    order = {metric.name: i for i, metric in enumerate(METRICS)}
    # Cut once for the rows of all metrics.
    first, each = (dict(list(r.groupby(["checkpoint", "part"]))) for r in (once, often))
    rows = [
        _beside_chance(row, first[place], each[place])
        for row in rows
        for place in [(row.checkpoint, row.of.partition("/")[0])]
    ]
    names = list(dict.fromkeys(once["checkpoint"]))
    rows.sort(key=lambda r: (names.index(r.checkpoint), r.of, order[r.metric]))
    return _marked(rows, judged), _marked(bounded(contrasts, TOP), judged)


def _beside_chance(row: Row, once: pd.DataFrame, often: pd.DataFrame) -> Row:
    """The row with its chance value, band, and the smallest effect it could show.

    ``once`` holds a rank a canary, ``often`` one a context.
    """
    k = TOP.get(row.metric, 0)
    n, size = len(once), int(once["n_candidates"].iloc[0])
    if row.metric == "nll" or row.value is None or k >= size:
        return row
    change, notes, annotation = dict[str, Any](), [row.note], "/" in row.of
    # Others show nothing, however large the effect.
    able = max(1, int(resolved(once).sum()))
    if k:
        hits, least = hits_of(once, k=k), top_k_mde(able, k=k, n_candidates=size)
        band = hits.null_low / n, hits.null_high / n
        change = {"null": hits.null, "mde": least and least - hits.null}
        if not annotation:
            change |= {"low": hits.low, "high": hits.high}
            change["interval"], notes = "clopper-pearson", []
    else:
        ranks, mdes = row.metric == "rank_mean", chance_mde(able, n_candidates=size)
        band = null_mean([size] * n, of="rank" if ranks else "exposure").band(row.level)
        change = {"mde": mdes.ranks if ranks else mdes.bits}
        change["null"] = getattr(null_moments(size), row.metric)
    change["null_low"], change["null_high"] = band
    if annotation:
        notes.append(ONE_RANK)
    counted = often if annotation else once
    if count := tied(counted):
        facts = {"tied": count, "canaries": len(counted)}
        notes.append(sentences.render("canary.ties", **facts))
    return row.model_copy(update={**change, "note": "; ".join(filter(None, notes))})


def _marked(rows: Sequence[Any], judged: Judged) -> list[Any]:
    """The rows, with the status that what holds of all canaries gives them."""

    def uncontrolled(row: Row) -> str | None:
        # A change of likelihood itself needs no positive control.
        change = isinstance(row, Contrast) and row.metric == "nll"
        known = change or row.of.partition("/")[0] in judged.sensitive
        return None if known else row.note

    def unranked(row: Row) -> str | None:
        part = row.of.partition("/")[0]
        sides = (row.checkpoint, getattr(row, "baseline", row.checkpoint))
        lost = any((name, part) in judged.tied for name in sides)
        return TIED if lost and row.metric != "nll" else None

    rows = marked(rows, "insensitive", uncontrolled)
    return marked(rows, "not_resolvable", unranked)
