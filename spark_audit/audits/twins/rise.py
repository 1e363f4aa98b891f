"""Unplanted identifiers, ranked among fresh strings of their kind.

A natural identifier may be likelier than its twins to any model, so that its rank alone
is no evidence. What is tested is its rise since the base, and that of identifiers
that stand in no trained row. The idea is that of natural identifiers, ICLR 2026
(arXiv:2606.24408).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd

from spark_audit.audits.base import Audit, Context, Plan, Tables
from spark_audit.audits.identifier_facts import identifier_facts
from spark_audit.audits.metric import Metric
from spark_audit.manifest.prompts import twins_key
from spark_audit.manifest.schema import Manifest, ManifestTwins
from spark_audit.results import AuditResult, Guard, Hits
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable

CANDIDATES = Pass("candidates")
SIDES = ("trained", "never-trained")
_of_sides = partial(Metric, learned=1, variants=SIDES, missing=SIDES[:1])
METRICS = (
    _of_sides(
        "rise",
        "bits",
        null=0.0,
        panel="rises",
        counted=("trained",),
        glance=("trained",),
        headline=("trained",),
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
    _of_sides("exposure_mean", "bits", bounds=(0.0, np.inf)),
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
        keys = [key for one in manifest.twins for key in _keys(one)]
        return {CANDIDATES: sorted(keys)} if keys else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        from spark_audit.stats.candidate_ranks import candidate_ranks

        every = manifest.twins
        units = pd.DataFrame(
            {
                "twins_id": [one.id for one in every],
                "type": [one.type for one in every],
                "cluster": _clusters(manifest),
                "dose": [one.dose for one in every],
                "contexts": [len(one.contexts) for one in every],
                "n_candidates": [len(one.candidates) for one in every],
                "injected": [_injected(manifest, one) for one in every],
                "stratum": _strata(manifest),
            }
        )

        def measured() -> Measured:
            for name, passes in tables.items():
                table = passes.get(CANDIDATES)
                if table is None or any(
                    key not in table for one in every for key in _keys(one)
                ):
                    continue
                ranks = [candidate_ranks(_nll(table, x), x.true_index) for x in every]
                low = np.array([one.low[0] for one in ranks])
                high = np.array([one.high[0] for one in ranks])
                yield name, {"rank": low, "ties": high - low}

        lost = {"lost": manifest.counts.get("twins_lost", 0)}
        return Evidence.of(units, measured(), lost)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        from spark_audit.audits.twins.twin_findings import findings
        from spark_audit.audits.twins.twin_rows import figures, ranked

        frame = ranked(evidence.frame().astype({"rank": np.int64, "ties": np.int64}))
        rows, contrasts = figures(frame, context, METRICS)
        guards = []
        if lost := evidence.facts["lost"]:
            hits = Hits(count=lost, of=lost + len(evidence.units))
            name, says = "identifiers have twins", "guard.have_twins"
            guards = [Guard(name=name, passed=None, says=says, facts={"lost": hits})]
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


def _injected(manifest: Manifest, one: ManifestTwins) -> bool:
    """Whether all of its type in its rows were drawn as twins are."""
    rows = (manifest.by_id[context.example] for context in one.contexts)
    spans = [s for row in rows for s in row.spans if s.type == one.type]
    return bool(spans) and all(span.origin == "injected" for span in spans)


def _strata(manifest: Manifest) -> list[int]:
    """The stratum of each identifier, in the first of its contexts."""
    facts = identifier_facts(manifest)
    firsts = (one.contexts[0] for one in manifest.twins)
    return [facts[at.example, at.char_start, at.char_end].stratum for at in firsts]


def _keys(one: ManifestTwins) -> list[str]:
    return [twins_key(one.id, context.example) for context in one.contexts]


def _nll(table: TokenTable, one: ManifestTwins) -> np.ndarray:
    """Mean NLL of each string over contexts; in each all have as many tokens."""
    held = [table.columns["nll_mean"][table.rows(key)] for key in _keys(one)]
    return np.asarray(np.stack(held).astype(np.float64).mean(axis=0))


def _clusters(manifest: Manifest) -> list[str]:
    """A label for each set; contexts of one identifier may lie in several clusters."""
    from spark_audit.stats.duplicates import connected_components

    rows = [
        [manifest.by_id[context.example].cluster for context in one.contexts]
        for one in manifest.twins
    ]
    names = sorted({name for held in rows for name in held})
    code = {name: i for i, name in enumerate(names)}
    edges = [(code[a], code[b]) for held in rows for a, b in combinations(held, 2)]
    joined = connected_components(len(names), edges)
    return [names[int(joined[code[held[0]]])] for held in rows]
