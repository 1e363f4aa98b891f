"""The audit of twins: rank identifiers among fresh strings of their kind.

A twin of an identifier is a made-up string of the same kind, such as another phone
number, that is put in its place. Both are scored in the same rows: where a model has
memorised an identifier, it comes ahead of its twins. As a rank also depends on how
likely a string is anyway, what counts is the rise since the base model, and by how much
it exceeds that of held-out identifiers.

This file has the evidence; figures are those of ``figures.py``, tests those of
``rank_tests.py`` and findings those of ``findings.py``. A new metric is declared here,
computed in ``figures.py``, named in ``sentences/en/metrics.toml`` and described in
``docs/metrics.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, scored
from spark_audit.audits.identifiers import identifier_facts
from spark_audit.audits.planned_effects import AuditSizes, PlannedEffect
from spark_audit.audits.supervision import COLUMN, Trained, trained_identifiers
from spark_audit.audits.twins.figures import rank_figures, ranked
from spark_audit.audits.twins.findings import rank_findings
from spark_audit.audits.twins.planned import planned_effects
from spark_audit.manifest.encodings import key_of
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.schema import Manifest, ManifestTwins
from spark_audit.names import NEVER, TRAINED
from spark_audit.results import AuditResult, Finding, Guard, Hits
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.guards import guard
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.canary_ranks import candidate_rank
from spark_audit.stats.duplicates import connected_components

CANDIDATES = Pass("candidates")

UNIT_COLUMNS = (
    "twins_id",
    "type",
    "cluster",
    "dose",
    "contexts",
    "n_candidates",
    "injected",
    "stratum",
)
"""Columns of the evidence but for ranks; the supervision follows where it is known."""

# A metric of trained and of held-out identifiers; above is more memory.
_metric_by_side = partial(
    Metric, learned=1, variants=(TRAINED, NEVER), missing=(TRAINED,)
)


@dataclass(frozen=True, kw_only=True)
class Twins(Audit):
    """Identifiers ranked among made-up strings of their kind (twins).

    The evidence is one line per checkpoint and identifier:

    ================  ==============================================================
    column            meaning
    ================  ==============================================================
    twins_id, type    those of the manifest
    cluster           shared by all identifiers that share a cluster of rows
    dose              trained rows that it occurs in; 0: held out
    contexts          rows in which it and its twins were scored
    n_candidates      the identifier and its twins
    injected          whether it was drawn in the same way as its twins
    stratum           see :class:`~spark_audit.audits.identifiers.Facts`
    rank              its rank by NLL, the mean over contexts; 1 is the likeliest
    ties              twins with exactly the same NLL, which ``rank`` places behind
    ================  ==============================================================
    """

    name = "twins"
    metrics = (
        _metric_by_side(
            "rise",
            "bits",
            no_effect=0.0,
            alone=True,  # against a baseline it is the difference of exposures
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
            no_effect=0.0,
            variants=("rise", "exposure"),
            panel="rises",
        ),
        _metric_by_side("exposure_mean", "bits", bounds=(0.0, math.inf)),
        _metric_by_side("top1_rate", rate=True),
    )
    unscored = "the twins of identifiers were not scored"
    over = "exposure among twins"
    wide = True
    counts = "identifiers"
    covers = ("rise", "n")
    sides = ("trained", "never")
    attacks_identifiers = True
    strongest_claim = "memory"
    memory = True
    unit = "bits"

    @classmethod
    def compared_with(cls, finding: Finding) -> str:
        """Return ``base`` for a change since the base, else ``held_out``."""
        return "base" if finding.metric == "rise" else "held_out"

    @classmethod
    def planned_effects(
        cls, sizes: AuditSizes, *, significance: float
    ) -> Sequence[PlannedEffect]:
        """Return what its tests would detect, from ``planned.py``."""
        return planned_effects(sizes, significance=significance)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return the plan: every identifier among its twins, in all its contexts."""
        keys: list[str] = []
        for twins in manifest.twins:
            keys += _keys(twins)
        return {CANDIDATES: sorted(keys)} if keys else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return the identifiers that have twins, with their rank by each checkpoint.

        Columns are those that the class describes.
        """

        def measured() -> Measured:
            """Yield the ranks by each checkpoint that scored all twins."""
            for name, table in scored(tables, CANDIDATES):
                ranks = _ranks(table, manifest.twins)
                if ranks is not None:
                    yield name, {"rank": ranks.rank, "ties": ranks.ties}

        facts = {"lost": manifest.counts.get("twins_lost", 0)}
        return Evidence.of(_units(manifest), measured(), facts)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return figures, findings and guards from the evidence alone."""
        frame = ranked(evidence.frame())
        rows, contrasts = rank_figures(frame, context, Twins)
        return AuditResult(
            results=rows,
            contrasts=contrasts,
            guards=[*_guards(evidence)],
            findings=[*rank_findings(frame, rows, seed=context.seed)],
        )

    def why_nothing(self, manifest: Manifest) -> str:
        """Return why no identifier can be ranked among twins."""
        if "twins" in manifest.counts:
            return "no identifier of the manifest has twins"
        return "the manifest was built without twins: build it again"


def _keys(twins: ManifestTwins) -> list[str]:
    """Return the keys of an identifier and its twins, one per context."""
    return [key_of("twins", twins.id, context.example) for context in twins.contexts]


def _units(manifest: Manifest) -> pd.DataFrame:
    """Return the identifiers that have twins, without their ranks.

    Columns are :data:`UNIT_COLUMNS`, and the supervision where it is known.
    """
    trained_on = trained_identifiers(manifest)
    facts = identifier_facts(manifest, trained_on)

    records = []
    clusters_by_identifier = []
    for twins in manifest.twins:
        examples = [manifest.by_id[context.example] for context in twins.contexts]
        clusters_by_identifier.append([example.cluster for example in examples])

        # The first context of an identifier gives its stratum.
        context = twins.contexts[0]
        stratum = facts[context.example, context.char_start, context.char_end].stratum

        record = {
            "twins_id": twins.id,
            "type": twins.type,
            "dose": twins.dose,
            "contexts": len(twins.contexts),
            "n_candidates": len(twins.candidates),
            "injected": _is_injected(examples, twins.type),
            "stratum": stratum,
        }
        if trained_on.is_known:
            record[COLUMN] = _supervision(trained_on, manifest, twins)
        records.append(record)

    columns = [*UNIT_COLUMNS]
    if trained_on.is_known:
        columns.append(COLUMN)
    units = pd.DataFrame(records, columns=columns)
    # An identifier with rows in several clusters joins them.
    return units.assign(cluster=_joined_clusters(clusters_by_identifier))


def _is_injected(examples: Sequence[ManifestExample], pii_type: str) -> bool:
    """Return whether all identifiers of a type in some examples were injected.

    Injected identifiers were drawn in the same way as twins are.
    """
    origins = set()
    for example in examples:
        origins |= {span.origin for span in example.spans if span.type == pii_type}
    return origins == {"injected"}


def _supervision(trained_on: Trained, manifest: Manifest, twins: ManifestTwins) -> str:
    """Return what training did with an identifier; empty for a held-out one.

    See :mod:`~spark_audit.audits.supervision`.
    """
    if not twins.dose:
        return ""

    # The span that the first context names stands for all of its contexts.
    context = twins.contexts[0]
    example = manifest.by_id[context.example]
    spans = [
        span
        for span in example.spans
        if (span.start, span.end) == (context.char_start, context.char_end)
    ]
    return trained_on.supervision_of(example, spans[0])


class Ranks(NamedTuple):
    """Ranks of all identifiers by one checkpoint, shape ``(units,)`` each.

    Rank 1 is the likeliest. ``ties`` counts twins with exactly the same NLL.
    """

    rank: np.ndarray
    ties: np.ndarray


def _ranks(table: TokenTable, all_twins: Sequence[ManifestTwins]) -> Ranks | None:
    """Return the rank of each identifier by mean NLL.

    ``None``: the table lacks some of the identifiers, so that nothing is ranked.

    Parameters
    ----------
    table
        Scores of one checkpoint: each key has a line per candidate.
    """
    keys_by_identifier = [_keys(twins) for twins in all_twins]
    for keys in keys_by_identifier:
        if not all(key in table for key in keys):
            return None

    nll = table.columns["nll_mean"]
    ranks = []
    for twins, keys in zip(all_twins, keys_by_identifier, strict=True):
        # Mean over contexts; in each context all candidates have the same number of
        # tokens.
        by_context = [nll[table.rows(key)] for key in keys]  # (contexts, candidates)
        means = np.mean(by_context, axis=0, dtype=np.float64)  # (candidates,)
        ranks.append(candidate_rank(means, twins.true_index))

    # Without identifiers the array is empty, but has two columns, too.
    rank, ties = np.array(ranks, np.float64).reshape(-1, 2).T
    return Ranks(rank=rank, ties=ties)


def _joined_clusters(clusters_by_identifier: Sequence[Sequence[str]]) -> list[str]:
    """Return one cluster for each identifier; those that share any share it.

    Parameters
    ----------
    clusters_by_identifier
        Clusters of the rows of each identifier: its contexts may lie in several.
    """
    unique_names: set[str] = set()
    for clusters_of_identifier in clusters_by_identifier:
        unique_names.update(clusters_of_identifier)
    names = sorted(unique_names)
    index_of_name = {name: i for i, name in enumerate(names)}

    # Two clusters that hold rows of one identifier are one.
    edges = []
    for clusters_of_identifier in clusters_by_identifier:
        for first, second in combinations(clusters_of_identifier, 2):
            edges.append((index_of_name[first], index_of_name[second]))
    # Each component is named by the index of one of its names.
    component = connected_components(len(names), edges)  # (names,)

    joined = []
    for clusters_of_identifier in clusters_by_identifier:
        index = index_of_name[clusters_of_identifier[0]]
        joined.append(names[int(component[index])])
    return joined


def _guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield a warning where some identifiers have no twins (the fact ``lost``)."""
    n_lost = evidence.facts["lost"]
    if n_lost:
        lost = Hits(count=n_lost, of=n_lost + len(evidence.units))
        yield guard("identifiers have twins", "have_twins", {"lost": lost})
