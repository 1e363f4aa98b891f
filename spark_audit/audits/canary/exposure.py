"""Planted canaries, ranked among strings that were not planted.

SPARK's canary audit: the rank of the true string among 512 candidates by mean NLL, its
exposure in bits, Top-1 and Top-10. A canary that the model never saw has a uniform
rank, so every figure is shown with its chance value. If not even the canaries that
occur in most rows are detected in any checkpoint, nothing can be concluded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from spark_audit.audits.base import Audit, Context, Plan, Tables, guard, missing_rows
from spark_audit.audits.metric import Metric
from spark_audit.data.canaries import RANKED
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult, Finding
from spark_audit.results.evidence import Evidence

OFS = (*RANKED, *(f"{part}/annotation" for part in RANKED))

_ranked = partial(Metric, variants=OFS, missing=RANKED)
METRICS = (
    _ranked("nll", "nats", bounds=(0.0, math.inf), learned=-1),
    _ranked("rank_mean", "ranks", bounds=(1.0, math.inf), learned=-1),
    _ranked(
        "exposure_mean",
        "bits",
        bounds=(0.0, math.inf),
        learned=1,
        glance=("full",),
        headline=("full",),
    ),
    *(_ranked(f"top{k}_rate", rate=True, learned=1) for k in (1, 10)),
)
"""Ranks and exposures are bounded by the number of candidates, once it is known."""

NONE = "the manifest has no canary"
UNRANKED = "no canary of the manifest can be ranked among candidates"
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
        from spark_audit.audits.canary.canary_rows import CANDIDATES, candidate_keys

        every = (candidate_keys(one, paper=paper) for one in manifest.canaries)
        keys = sorted(key for keys in every for key in keys.values())
        return {CANDIDATES: keys} if keys else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        from spark_audit.audits.canary.canary_rows import rank_evidence

        return rank_evidence(tables, manifest, paper=context.paper)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        from spark_audit.audits.canary import canary_findings, rank_tests
        from spark_audit.audits.canary.canary_rows import canary_figures, canary_frame
        from spark_audit.audits.canary.canary_tables import tables_of

        names, every = list(evidence.checkpoints), canary_frame(evidence)
        guards = canary_findings.rankable(every)
        if (kept := evidence.facts["kept_contexts"]) is not None:
            guards.append(guard("canary contexts", "canary_contexts", {"kept": kept}))
        frame = rank_tests.ranked(every)
        ours = rank_tests.trained(frame)
        if ours.empty:
            kinds = set(every["kind"])
            reason = NONE if every.empty else UNRANKED
            if "canary" in kinds:
                reason = "no canary of a trained row can be ranked"
            elif "unscored" in kinds:
                reason = UNSCORED
            unknown = "canary", "canary.not_estimable"
            return AuditResult(
                rows=missing_rows("canary", names, METRICS, reason),
                guards=guards,
                findings=[Finding.not_tested(*unknown, reason=reason)],
            )
        judged = rank_tests.Judged.of(frame)
        in_contexts = rank_tests.trained(rank_tests.ranked(every, "context"))
        rows, contrasts = canary_figures(ours, in_contexts, judged, context, METRICS)
        tables = tables_of(frame, judged, context)
        known = set(zip(ours["checkpoint"], ours["part"], strict=True))
        unscored = [name for name in names if name not in {name for name, _ in known}]
        absent = [
            row
            for name in names
            for part in RANKED
            if (name, part) not in known
            for row in missing_rows(
                "canary",
                [name],
                METRICS,
                UNSCORED if name in unscored else UNRANKED,
                variants=[part],
            )
        ]
        lacking = {"says": "canary.unscored", "reason": UNSCORED}
        paired = tables["canary_paired"]
        return AuditResult(
            rows=[*rows, *absent],
            contrasts=contrasts,
            guards=[*canary_findings.guards(judged, every), *guards],
            findings=[
                *canary_findings.findings(judged, tables, rows),
                *(
                    Finding.not_tested("canary", checkpoint=name, **lacking)
                    for name in unscored
                ),
                *canary_findings.contrast_findings(contrasts, paired, judged),
            ],
            tables={name: table for name, table in tables.items() if table},
        )
