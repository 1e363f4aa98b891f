"""Unplanted identifiers, ranked among fresh strings of their kind.

A natural identifier may be likelier than its twins to any model, so that its rank alone
is no evidence. What is tested is its rise since the base, and that of identifiers
that stand in no trained row. The idea is that of natural identifiers, ICLR 2026
(arXiv:2606.24408).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from spark_audit.audits.base import Audit, Context, Plan, Tables, guard
from spark_audit.audits.metric import Metric
from spark_audit.manifest.schema import Manifest
from spark_audit.names import NEVER, TRAINED
from spark_audit.results import AuditResult, Hits
from spark_audit.results.evidence import Evidence

_of_sides = partial(Metric, learned=1, variants=(TRAINED, NEVER), missing=(TRAINED,))
METRICS = (
    _of_sides(
        "rise",
        "bits",
        null=0.0,
        panel="rises",
        counted=(TRAINED,),
        glance=(TRAINED,),
        headline=(TRAINED,),
    ),
    Metric(
        "beyond",
        "bits",
        partner="rise",
        learned=1,
        null=0.0,
        variants=("rise", "exposure"),
        panel="rises",
    ),
    _of_sides("exposure_mean", "bits", bounds=(0.0, math.inf)),
    _of_sides("top1_rate", rate=True),
)


@dataclass(frozen=True, kw_only=True)
class Twins(Audit):
    """Identifiers ranked among made-up strings of their kind (twins).

    The evidence is one row per checkpoint and identifier, with its ``rank`` by NLL,
    averaged over contexts. ``ties`` counts twins with exactly the same NLL, which
    ``rank`` places behind. An identifier of ``dose`` 0 occurs in no trained row.
    Identifiers that share a cluster of rows share their ``cluster``. ``injected`` ones
    were drawn in the same way as their twins. For ``stratum`` see
    :class:`~spark_audit.audits.identifier_facts.Facts`.
    """

    name = "twins"
    metrics = METRICS
    unscored = "the twins of identifiers were not scored"
    over = "exposure among twins"
    wide = True
    counts = "identifiers"
    covers = ("rise", "n")
    memory = True
    unit = "bits"
    frameworks = "AITG-DAT-01"

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Every identifier among its twins, in each of its contexts."""
        from spark_audit.audits.twins.twin_rows import CANDIDATES, twin_keys

        keys = [key for one in manifest.twins for key in twin_keys(one)]
        return {CANDIDATES: sorted(keys)} if keys else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        from spark_audit.audits.twins.twin_rows import rank_evidence

        return rank_evidence(tables, manifest)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        from spark_audit.audits.twins.twin_findings import findings
        from spark_audit.audits.twins.twin_rows import figures, ranked

        frame = ranked(evidence.frame())
        rows, contrasts = figures(frame, context, self.metrics)
        guards = []
        if lost := evidence.facts["lost"]:
            hits = Hits(count=lost, of=lost + len(evidence.units))
            guards = [guard("identifiers have twins", "have_twins", {"lost": hits})]
        return AuditResult(
            rows=rows,
            contrasts=contrasts,
            guards=guards,
            findings=findings(frame, rows, seed=context.seed),
        )

    def why_nothing(self, manifest: Manifest) -> str:
        if "twins" in manifest.counts:
            return "no identifier of the manifest has twins"
        return "the manifest was built without twins: build it again"
