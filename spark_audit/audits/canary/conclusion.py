"""What the canary audit concludes of ranks: figures, guards, findings and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from spark_audit.audits.base import Audit, Context, missing_rows
from spark_audit.audits.canary.canary_findings import (
    contrast_findings,
    finding,
    findings,
)
from spark_audit.audits.canary.canary_rows import (
    TOP,
    canary_figures,
    without_control,
    without_ranks,
)
from spark_audit.audits.canary.canary_tables import (
    Record,
    dose_table,
    extrapolated_table,
    paired_table,
    streisand_table,
    trend_table,
    uniformity_table,
)
from spark_audit.audits.canary.candidates import canary_frame
from spark_audit.audits.canary.epsilon import epsilon_table, one_run_table
from spark_audit.audits.canary.rank_tests import Judged, ranked, trained
from spark_audit.audits.ratio_rows import bounded
from spark_audit.data.canaries import RANKED
from spark_audit.names import BASE
from spark_audit.results import AuditResult, Guard, Row
from spark_audit.results.evidence import Evidence


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


UNRANKED = "no canary of the manifest can be ranked among candidates"


def _marked(rows: Sequence[Any], judged: Judged) -> list[Any]:
    """The rows, with the status that what holds of all canaries gives them."""
    return without_ranks(without_control(rows, judged.sensitive), judged.tied)


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


def conclude(evidence: Evidence, context: Context, audit: Audit) -> AuditResult:
    """Rows, contrasts, guards, findings and tables of the canary audit."""
    names, every = list(evidence.checkpoints), canary_frame(evidence)
    kept = evidence.facts["kept_contexts"]
    few = []
    if kept is not None:
        few = [_warning("canary contexts", "canary_contexts", kept=kept)]
    frame = ranked(every)
    ours = trained(frame)
    if ours.empty:
        nothing = _nothing(every, names, audit)
        return replace(nothing, guards=[*nothing.guards, *few])
    in_contexts = trained(ranked(every, "context"))
    judged = Judged.of(frame)
    rows, contrasts = canary_figures(ours, in_contexts, context, audit.metrics)
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
            audit, [name], audit.unscored if name in unscored else UNRANKED, (part,)
        )
    ]
    lacking = {"reason": audit.unscored}
    return AuditResult(
        rows=[*rows, *absent],
        contrasts=contrasts,
        guards=[*guards(judged, every), *few],
        findings=[
            *findings(judged, tables, rows),
            *(finding(n, "not_tested", "unscored", facts=lacking) for n in unscored),
            *contrast_findings(contrasts, tables["canary_paired"], judged),
        ],
        tables={name: table for name, table in tables.items() if table},
    )


def _missing(
    audit: Audit, names: list[str], reason: str, parts: tuple[str, ...] = RANKED
) -> list[Row]:
    metrics = [replace(metric, missing=parts) for metric in audit.metrics]
    return missing_rows("canary", names, metrics, reason)


def _nothing(evidence: pd.DataFrame, names: list[str], audit: Audit) -> AuditResult:
    kinds = set(evidence["kind"])
    reason = audit.nothing if evidence.empty else UNRANKED
    if "canary" in kinds:
        reason = "no canary of a trained row can be ranked"
    elif "unscored" in kinds:
        reason = audit.unscored
    return AuditResult(
        rows=_missing(audit, names, reason),
        guards=rankable(evidence),
        findings=[finding("", "not_tested", "not_estimable", facts={"reason": reason})],
    )
