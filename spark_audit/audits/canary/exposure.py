"""Planted canaries, ranked among strings that were not planted.

SPARK's canary audit: the rank of the true string among 512 candidates by mean NLL, its
exposure in bits, Top-1 and Top-10. A canary that the model never saw has a uniform
rank, so every figure is shown with its chance value. If not even the canaries that
occur in most rows are detected in any checkpoint, nothing can be concluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from spark_audit.audits.base import Audit, Context, Plan, Tables
from spark_audit.audits.metric import Metric
from spark_audit.data.canaries import RANKED
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult
from spark_audit.results.evidence import Evidence

OFS = (*RANKED, *(f"{part}/annotation" for part in RANKED))

_ranked = partial(Metric, variants=OFS, missing=RANKED)
METRICS = (
    _ranked("nll", "nats", bounds=(0.0, np.inf), learned=-1),
    _ranked("rank_mean", "ranks", bounds=(1.0, np.inf), learned=-1),
    _ranked(
        "exposure_mean",
        "bits",
        bounds=(0.0, np.inf),
        learned=1,
        glance=("full",),
        headline=("full",),
    ),
    *(_ranked(f"top{k}_rate", rate=True, learned=1) for k in (1, 10)),
)
"""Ranks and exposures are bounded by the number of candidates, once it is known."""


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
    nothing = "the manifest has no canary"
    unscored = "the candidates of canaries were not scored"
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
        from spark_audit.audits.canary.candidates import plan

        return plan(manifest, paper=paper)

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        from spark_audit.audits.canary.candidates import rank_evidence

        return rank_evidence(tables, manifest, paper=context.paper)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        from spark_audit.audits.canary.conclusion import conclude

        return conclude(evidence, context, self)
