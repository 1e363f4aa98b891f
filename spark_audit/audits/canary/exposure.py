"""Planted canaries, ranked among strings that were not planted.

SPARK's canary audit: the rank of the true string among 512 candidates by mean NLL, its
exposure in bits, Top-1 and Top-10. A canary that the model never saw has a uniform
rank, so every figure is shown with its chance value. If not even the canaries that
occur in most rows are detected in any checkpoint, nothing can be concluded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Audit, Context, Plan, Tables, missing_rows
from spark_audit.audits.canary.canary_findings import (
    contrast_findings,
    finding,
    findings,
)
from spark_audit.audits.canary.canary_rows import METRICS, TOP, canary_figures
from spark_audit.audits.canary.canary_tables import (
    Record,
    dose_table,
    epsilon_table,
    extrapolated_table,
    one_run_table,
    paired_table,
    streisand_table,
    trend_table,
    uniformity_table,
)
from spark_audit.audits.canary.rank_tests import Judged, marked, ranked, trained
from spark_audit.audits.ratio_rows import bounded
from spark_audit.data.canaries import RANKED
from spark_audit.manifest.prompts import canary_key
from spark_audit.manifest.schema import Manifest, ManifestCanary
from spark_audit.names import BASE
from spark_audit.results import AuditResult, Contrast, Guard, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.candidate_ranks import (
    candidate_ranks,
    extrapolated_exposure,
    posterior_bits,
)

CANDIDATES = Pass("candidates")
VALUES = (
    *("rank", "ties", "nll_sum", "nll_mean", "posterior_bits"),
    *("extrapolated", "extrapolated_ks", "extrapolated_clipped"),
)


def rank_evidence(tables: Tables, manifest: Manifest, *, paper: bool) -> Evidence:
    """One unit per canary, part and context, and one over its contexts.

    ``kind`` is ``context``; ``canary``, ranked once by each candidate's NLL averaged
    over contexts; or ``unrankable``. ``rank`` is strict; ``nll_mean`` (nats per token),
    ``nll_sum`` and ``posterior_bits`` are the true string's; ``extrapolated`` is given
    to canaries at rank 1.
    """
    ranked = [(one, _keys(one, paper=paper)) for one in manifest.canaries]
    units = pd.DataFrame.from_records(
        [unit for canary, keys in ranked for unit in _units(canary, keys)]
    )

    def measured() -> Measured:
        for name, passes in tables.items():
            table = passes.get(CANDIDATES)
            rows = [x for canary, keys in ranked for x in _scores(canary, keys, table)]
            scores = np.array(rows, np.float64).reshape(-1, len(VALUES))
            yield name, dict(zip(VALUES, scores.T, strict=True))

    kept = manifest.settings.canary_contexts if paper else None
    return Evidence.of(units, measured(), {"kept_contexts": kept})


def canary_frame(evidence: Evidence) -> pd.DataFrame:
    """One row per checkpoint and unit; canaries without ranks are ``unscored``."""
    parts = []
    for name in evidence.checkpoints:
        part = evidence.whole(name)
        lost = part["rank"].isna()
        unscored = lost & (part["kind"] == "canary")
        part.loc[unscored, "kind"] = "unscored"
        part = part[~(lost & (part["kind"] == "context"))]
        parts.append(part.fillna({"rank": 0, "ties": 0, "extrapolated_clipped": 0}))
    frame = pd.concat(parts, ignore_index=True)
    kinds = {"rank": np.int64, "ties": np.int64, "extrapolated_clipped": bool}
    return frame.astype(kinds)


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


def _keys(canary: ManifestCanary, *, paper: bool) -> dict[str, str]:
    """Key of the candidates in each context; none if it cannot be ranked."""
    if not canary.candidates or canary.true_index is None:
        return {}
    rows = sorted(context.example for context in canary.contexts)
    return {
        row: canary_key(canary.canary_id, canary.part, row)
        for row in (rows if paper else rows[:1])
    }


def _scores(
    canary: ManifestCanary, keys: dict[str, str], table: TokenTable | None
) -> Iterator[list[float]]:
    """:data:`VALUES` of the units of one canary part; NaN if it was not scored."""
    true = canary.true_index
    if (
        not keys
        or true is None
        or table is None
        or not all(k in table for k in keys.values())
    ):
        yield from [[np.nan] * len(VALUES)] * (len(keys) + 1)
        return
    sums, means = (
        np.stack([table.columns[column][table.rows(key)] for key in keys.values()])
        for column in ("nll_sum", "nll_mean")
    )
    sums, means = sums.astype(np.float64), means.astype(np.float64)
    for total, mean in zip(sums, means, strict=True):
        yield [*_figures(total, mean, true), np.nan, np.nan, 0.0]
    mean = means.mean(axis=0)
    whole = _figures(sums.mean(axis=0), mean, true)
    others = np.delete(mean, true)
    tail = [np.nan, np.nan, 0.0]
    if whole[:2] == [1, 0] and len(others) >= 20 and np.ptp(others) > 0:
        found = extrapolated_exposure(mean[true], others)
        tail = [found.exposure, found.ks, found.clipped]
    yield [*whole, *tail]


def _figures(total: np.ndarray, mean: np.ndarray, true: int) -> list[float]:
    ranks = candidate_ranks(mean, true)
    low, high = int(ranks.low[0]), int(ranks.high[0])
    bits = float(posterior_bits(total, true)[0])
    return [low, high - low, float(total[true]), float(mean[true]), bits]


def rankable(evidence: pd.DataFrame) -> list[Guard]:
    """A warning where parts of canaries have no candidates."""
    if evidence.empty:
        return []
    first = evidence[evidence["checkpoint"] == evidence["checkpoint"].iloc[0]]
    whole = first[first["kind"] != "context"]
    lost = int((whole["kind"] == "unrankable").sum())
    if not lost:
        return []
    return [
        _warning("canaries rankable", "canaries_rankable", lost=lost, parts=len(whole))
    ]


def _warning(name: str, says: str, **facts: Any) -> Guard:
    return Guard(name=name, passed=None, says=f"guard.{says}", facts=facts)


def guards(judged: Judged, evidence: pd.DataFrame) -> list[Guard]:
    """What can void the figures: no positive control, or a base that knows canaries."""
    return [_control_guard(judged), _base_guard(judged, evidence), *rankable(evidence)]


def _control_guard(judged: Judged) -> Guard:
    control = judged.control
    shown = list(dict.fromkeys(t.checkpoint for t in control if t.detected))
    says, facts = "control_missing", dict[str, Any]()
    if control:
        says, facts = "control_not_found", control[0].facts("exposure_mean")
    if shown:
        says = "control_found"
        facts |= {"checkpoints": shown, "insensitive": judged.lost}
    passed = None if shown and judged.lost else bool(shown)
    return Guard(
        name="positive control", passed=passed, says=f"guard.{says}", facts=facts
    )


def _base_guard(judged: Judged, evidence: pd.DataFrame) -> Guard:
    name = "base ranks canaries by chance"
    if judged.base:
        worst = judged.base[0]
        return Guard(
            name=name,
            checkpoint=BASE,
            passed=not worst.detected,
            says="guard.canary_base_ranks",
            facts={
                **worst.facts("rank_mean", unit="ranks"),
                "by_chance": not worst.detected,
            },
        )
    scored = set(evidence.loc[evidence["kind"] == "canary", "checkpoint"])
    says = "canary_base_tied" if BASE in scored else "canary_base_unscored"
    return _warning(name, says, supposed=judged.supposed)


NONE = "the manifest has no canary"
UNRANKED = "no canary of the manifest can be ranked among candidates"
UNSCORED = "the candidates of canaries were not scored"


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
        why = (judged.tied.get((name, part)) for name in sides)
        return None if row.metric == "nll" else next(filter(None, why), None)

    rows = marked(rows, "insensitive", uncontrolled)
    return marked(rows, "not_resolvable", unranked)


def _tables(
    frame: pd.DataFrame, judged: Judged, context: Context
) -> dict[str, list[Record]]:
    ground = {"sensitive": judged.sensitive, "lifted": judged.lifted}
    # Without a uniform draw bounds of epsilon have no ground.
    drawn = frame if judged.uniform else frame[:0]
    return {
        "canary_by_dose": dose_table(frame),
        "canary_uniformity": uniformity_table(frame),
        "canary_streisand": streisand_table(frame),
        "canary_dose_trend": trend_table(frame, seed=context.seed),
        "canary_paired": paired_table(frame, context.baselines, seed=context.seed),
        "canary_epsilon": epsilon_table(drawn, **ground),
        "canary_one_run": one_run_table(drawn, **ground),
        "canary_extrapolated": extrapolated_table(frame),
    }


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
    public = (
        "canary_uniformity",
        "canary_streisand",
        "canary_dose_trend",
        "canary_paired",
        "canary_epsilon",
        "canary_one_run",
        "canary_extrapolated",
    )
    covers = ("exposure_mean", "n")
    memory = True
    unit = "bits"
    frameworks = "AITG-DAT-01"

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Candidates of every canary that can be ranked.

        A canary is ranked in its first row by id, with ``paper`` in all that the
        manifest lists.
        """
        every = (_keys(canary, paper=paper) for canary in manifest.canaries)
        keys = sorted(key for keys in every for key in keys.values())
        return {CANDIDATES: keys} if keys else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        return rank_evidence(tables, manifest, paper=context.paper)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        names, every = list(evidence.checkpoints), canary_frame(evidence)
        kept = evidence.facts["kept_contexts"]
        few = []
        if kept is not None:
            few = [_warning("canary contexts", "canary_contexts", kept=kept)]
        frame = ranked(every)
        ours = trained(frame)
        if ours.empty:
            nothing = _nothing(every, names)
            return replace(nothing, guards=[*nothing.guards, *few])
        in_contexts = trained(ranked(every, "context"))
        judged = Judged.of(frame)
        rows, contrasts = canary_figures(ours, in_contexts, context)
        rows = _marked(rows, judged)
        contrasts = _marked(bounded(contrasts, TOP), judged)
        tables = _tables(frame, judged, context)
        known = set(zip(ours["checkpoint"], ours["part"], strict=True))
        unscored = [name for name in names if name not in {name for name, _ in known}]
        absent = [
            row
            for name in names
            for part in RANKED
            if (name, part) not in known
            for row in _missing(
                [name], UNSCORED if name in unscored else UNRANKED, (part,)
            )
        ]
        lacking = {"reason": UNSCORED}
        return AuditResult(
            rows=[*rows, *absent],
            contrasts=contrasts,
            guards=[*guards(judged, every), *few],
            findings=[
                *findings(judged, tables, rows),
                *(
                    finding(n, "not_tested", "unscored", facts=lacking)
                    for n in unscored
                ),
                *contrast_findings(contrasts, tables["canary_paired"], judged),
            ],
            tables={name: table for name, table in tables.items() if table},
        )


def _missing(
    names: list[str], reason: str, parts: tuple[str, ...] = RANKED
) -> list[Row]:
    metrics = [replace(metric, missing=parts) for metric in METRICS]
    return missing_rows("canary", names, metrics, reason)


def _nothing(evidence: pd.DataFrame, names: list[str]) -> AuditResult:
    kinds = set(evidence["kind"])
    reason = NONE if evidence.empty else UNRANKED
    if "canary" in kinds:
        reason = "no canary of a trained row can be ranked"
    elif "unscored" in kinds:
        reason = UNSCORED
    return AuditResult(
        rows=_missing(names, reason),
        guards=rankable(evidence),
        findings=[finding("", "not_tested", "not_estimable", facts={"reason": reason})],
    )
