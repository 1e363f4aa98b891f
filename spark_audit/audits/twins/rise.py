"""Unplanted identifiers, ranked among fresh strings of their kind.

A natural identifier may be likelier than its twins to any model, so that its rank alone
is no evidence. What is tested is its rise since the base, and that of identifiers
that stand in no trained row. The idea is that of natural identifiers, ICLR 2026
(arXiv:2606.24408).

Frames hold one row a checkpoint and identifier with ``mid``, ``exposure`` and ``top1``
(ties count as on average over random orders), ``side`` and, where the base was scored,
``rise``: exposure minus that on the base, bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd

from spark_audit.audits.base import Audit, Context, Plan, Tables, guard, missing_rows
from spark_audit.audits.identifier_facts import identifier_facts
from spark_audit.audits.metric import Metric
from spark_audit.audits.ratio_rows import (
    beside_base,
    cells_of_frame,
    marked,
    ratio_figures,
)
from spark_audit.audits.twins.twin_findings import (
    TIED,
    beyond,
    by_dose,
    collapsed,
    compared,
    findings,
    held_out,
)
from spark_audit.manifest.prompts import twins_key
from spark_audit.manifest.schema import Manifest, ManifestTwins
from spark_audit.names import BASE, NEVER, TRAINED
from spark_audit.results import AuditResult, Contrast, Hits, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.chance_ranks import candidate_rank, exposure_bits, top_k_credit
from spark_audit.stats.duplicates import connected_components

CANDIDATES = Pass("candidates")
NO_BASE = (
    "the base model was not scored: give --base, because a rise is since the base model"
)
NO_TRAINED = "no identifier of trained rows has twins"

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
        keys = [key for one in manifest.twins for key in twin_keys(one)]
        return {CANDIDATES: sorted(keys)} if keys else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
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
                    key not in table for one in every for key in twin_keys(one)
                ):
                    continue
                ranks = [candidate_rank(_nll(table, x), x.true_index) for x in every]
                rank, ties = np.array(ranks, np.float64).reshape(-1, 2).T
                yield name, {"rank": rank, "ties": ties}

        lost = {"lost": manifest.counts.get("twins_lost", 0)}
        return Evidence.of(units, measured(), lost)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
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


def twin_keys(one: ManifestTwins) -> list[str]:
    """Key of the twins in each context."""
    return [twins_key(one.id, context.example) for context in one.contexts]


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


def _nll(table: TokenTable, one: ManifestTwins) -> np.ndarray:
    """Mean NLL of each string over contexts; in each all have as many tokens."""
    held = [table.columns["nll_mean"][table.rows(key)] for key in twin_keys(one)]
    return np.asarray(np.stack(held).astype(np.float64).mean(axis=0))


def _clusters(manifest: Manifest) -> list[str]:
    """A label for each set; contexts of one identifier may lie in several clusters."""
    rows = [
        [manifest.by_id[context.example].cluster for context in one.contexts]
        for one in manifest.twins
    ]
    names = sorted({name for held in rows for name in held})
    code = {name: i for i, name in enumerate(names)}
    edges = [(code[a], code[b]) for held in rows for a, b in combinations(held, 2)]
    joined = connected_components(len(names), edges)
    return [names[int(joined[code[held[0]]])] for held in rows]


def ranked(evidence: pd.DataFrame) -> pd.DataFrame:
    """The evidence with exposures, and rises where the base was scored."""
    evidence = evidence.astype({"rank": np.int64, "ties": np.int64})
    rank, ties = evidence["rank"].to_numpy(), evidence["ties"].to_numpy()
    frame = evidence.assign(
        side=np.where(evidence["dose"] > 0, TRAINED, NEVER),
        exposure=exposure_bits(rank, evidence["n_candidates"].to_numpy(), ties=ties),
        top1=top_k_credit(rank, k=1, ties=ties),
    )
    base = frame[frame["checkpoint"] == BASE].set_index("twins_id")["exposure"]
    if base.empty:
        return frame
    before = base.loc[frame["twins_id"]].to_numpy()
    return frame.assign(rise=frame["exposure"].to_numpy() - before)


def groups(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Group and rows: both sides pooled, and trained ones by type and dose."""
    yield "pooled", frame
    ours = frame[frame["side"] == TRAINED]
    for kind in sorted(set(ours["type"])):
        yield f"type:{kind}", ours[ours["type"] == kind]
    for name, part in by_dose(ours):
        yield f"dose:{name}", part


def figures(
    frame: pd.DataFrame, context: Context, kinds: Sequence[Metric]
) -> tuple[list[Row], list[Contrast]]:
    """All rows and contrasts, those of a collapsed model marked."""
    most = float(np.log2(frame["n_candidates"].max()))
    metrics = [
        replace(one, bounds=(0.0, most)) if one.name == "exposure_mean" else one
        for one in kinds
    ]
    columns = {"exposure_mean": "exposure", "top1_rate": "top1"}
    cells = frame.assign(of=frame["side"])
    cells = cells.sort_values("of", ascending=False, kind="stable")
    if "rise" in frame:
        columns["rise"] = "rise"
        cells["rise"] = cells["rise"].where(cells["checkpoint"] != BASE)
    rows, contrasts = ratio_figures(
        (cells_of_frame(*group, columns) for group in groups(cells)),
        context,
        audit="twins",
        metrics=metrics,
        # The rise against a baseline is the difference of exposures.
        alone=("rise",),
    )
    # The null of a rise is 0, that of ranks the base's figure.
    rows = [
        row if row.metric == "rise" else beside
        for row, beside in zip(rows, beside_base(rows), strict=True)
    ]
    names = list(dict.fromkeys(frame["checkpoint"]))
    if not (frame["side"] == TRAINED).any():
        rows += missing_rows("twins", names, kinds, NO_TRAINED)
    elif "rise" not in frame:
        lacking = [metric for metric in metrics if metric.name == "rise"]
        rows += missing_rows("twins", names, lacking, NO_BASE)
    for name in names:
        if name != BASE:
            rows += _beyond_rows(name, frame[frame["checkpoint"] == name])
    order = {metric.name: i for i, metric in enumerate(metrics)}
    rows.sort(key=lambda row: (names.index(row.checkpoint), order[row.metric]))
    lost = collapsed(frame)

    def tied(row: Row) -> str | None:
        sides = {row.checkpoint, getattr(row, "baseline", row.checkpoint)}
        of_base = {BASE} if row.metric in ("rise", "beyond") else set()
        return TIED if (sides | of_base) & lost else None

    rows, contrasts = (
        marked(side, "not_resolvable", tied) for side in (rows, contrasts)
    )
    return rows, contrasts


def _beyond_rows(name: str, frame: pd.DataFrame) -> Iterator[Row]:
    others = held_out(frame)
    ours = frame[frame["side"] == TRAINED]
    parts = [("pooled", ours), *((f"dose:{k}", part) for k, part in by_dose(ours))]
    for group, part in parts:
        if (found := beyond(part, others)) is None:
            continue
        # What can be worked out of the smaller side is withheld as that is.
        sides = (part["cluster"].nunique(), others["cluster"].nunique())
        estimate = replace(found[0].difference, clusters=min(sides))
        yield Row.of_estimate(
            estimate,
            audit="twins",
            checkpoint=name,
            group=group,
            metric="beyond",
            of=compared(part),
            unit="bits",
            null=0.0,
        )
