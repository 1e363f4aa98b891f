"""The audit of canaries: rank planted strings among candidates.

A canary is a secret that was planted in train rows, such as a login with password and
number; its candidates are strings that could have been planted in its place. A model
that remembers the canary gives it a lower NLL than nearly all of its candidates.

``plan`` says which strings are scored, ``evidence`` ranks them, and ``conclude`` makes
figures and findings of the ranks alone. A canary has up to three parts that are ranked
separately: ``full``, ``password`` and ``ssn``. A manifest lists one record
(``ManifestCanary``) per canary and part.

A new metric goes into :data:`CANARY_METRICS`, its figure into ``figures.py``, and its
words into ``sentences/en/metrics.toml`` and ``definitions.toml``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Audit, Context, LatexColumn, Metric, Plan, Tables
from spark_audit.audits.canary import epsilon, ranks
from spark_audit.audits.canary.canary_finding import canary_finding
from spark_audit.audits.canary.figures import canary_figures, dose_table
from spark_audit.audits.canary.findings import contrast_findings, findings
from spark_audit.audits.canary.guards import guards
from spark_audit.audits.canary.planned import planned_effects
from spark_audit.audits.canary.ranked_canaries import RankedCanaries
from spark_audit.audits.planned_effects import AuditSizes, PlannedEffect
from spark_audit.audits.supervision import (
    COLUMN,
    canary_rows_cut,
    canary_supervision,
    is_known,
)
from spark_audit.data.canaries import RANKED
from spark_audit.manifest.encodings import key_of
from spark_audit.manifest.schema import Manifest, ManifestCanary
from spark_audit.results import AuditResult, Finding, Guard, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.guards import guard
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats import canary_ranks

CANDIDATES = Pass("candidates")
"""The scoring pass that reads every candidate of a canary in its context."""

CANARY_COLUMNS = ("rank", "ties", "nll_mean")
"""Columns of scores in the evidence: see :meth:`CanaryRank.evidence`."""

CANARY_VARIANTS = (*RANKED, *(ranks.variant_by_context(part) for part in RANKED))
"""Each part twice: ranked once over all contexts, and averaged over contexts."""

CANARY_METRICS = (
    Metric(
        "nll",
        "nats",
        bounds=(0.0, math.inf),
        learned=-1,
        variants=CANARY_VARIANTS,
        missing=RANKED,
    ),
    # ``heavy``: percentile intervals of a mean rank cover far too rarely.
    Metric(
        "rank_mean",
        "ranks",
        bounds=(1.0, math.inf),
        learned=-1,
        heavy=True,
        variants=CANARY_VARIANTS,
        missing=RANKED,
    ),
    Metric(
        "exposure_mean",
        "bits",
        bounds=(0.0, math.inf),
        learned=1,
        glance=("full",),
        headline=("full",),
        variants=CANARY_VARIANTS,
        missing=RANKED,
    ),
    # ``alone``: so few canaries cannot show a change of the share at rank 1.
    Metric(
        "top1_rate",
        rate=True,
        learned=1,
        alone=True,
        variants=CANARY_VARIANTS,
        missing=RANKED,
    ),
    Metric(
        "top10_rate", rate=True, learned=1, variants=CANARY_VARIANTS, missing=RANKED
    ),
)
"""Metrics in the order of reports. :func:`canary_figures` bounds ranks and exposures by
the number of candidates, which only the evidence tells."""

NLL_COLUMNS = (
    LatexColumn("Full NLL ↑", "nll", "full", "canaries"),
    LatexColumn("Password NLL ↑", "nll", "password", "canaries"),
    LatexColumn("SSN NLL ↑", "nll", "ssn", "canaries"),
)
"""Columns of the LaTeX table of the NLL of canaries, which the paper has, too."""

NO_CANARY = "the manifest has no canary"

UNRANKED = "no canary of the manifest can be ranked among candidates"

CANDIDATES_NOT_SCORED = "the candidates of canaries were not scored"


def _by_annotation(column: LatexColumn) -> LatexColumn:
    """Return a column with its figure averaged over annotations, as in the paper."""
    variant = ranks.variant_by_context(column.variant)
    return column._replace(variant=variant, counted="annotations")


@dataclass(frozen=True, kw_only=True)
class CanaryRank(Audit):
    """Planted canaries, ranked among strings that were not planted.

    A canary may stand in several rows, its contexts. The figures ``full``, ``password``
    and ``ssn`` average the NLL of each candidate over the contexts and rank once;
    ``full/annotation`` etc. rank in each context and average the ranks, as SPARK does.
    The unit is the canary in both cases.
    """

    name = "canary"
    metrics = CANARY_METRICS
    nothing = NO_CANARY
    unscored = CANDIDATES_NOT_SCORED
    chance = True
    independent_units = "canaries"
    covers = ("exposure_mean", "n")
    sides = ("canaries", "never_inserted")
    asks_for = "canaries"
    needs_canaries = True
    strongest_claim = "memory"
    memory = True
    table_rules = {
        "canary_by_dose": "digits",
        "canary_epsilon": "digits",
        "canary_one_run": "digits",
    }
    latex_table = "canary_rank"
    latex = (
        LatexColumn("Full rank ↑", "rank_mean", "full", "canaries"),
        LatexColumn("Exposure ↓", "exposure_mean", "full", "canaries"),
        LatexColumn("Full Top-1 ↓", "top1_rate", "full", "canaries"),
        LatexColumn("Full Top-10 ↓", "top10_rate", "full", "canaries"),
    )
    unit = "bits"

    @classmethod
    def is_of_nobody(cls, unit: str) -> bool:
        """Return whether figures are ranks of planted strings, not scores (nats).

        See :meth:`spark_audit.audits.base.Audit.is_of_nobody`.
        """
        return unit != "nats"

    @classmethod
    def compared_with(cls, finding: Finding) -> str:
        """Return ``chance`` for an exposure, whose figure without memory is not 0."""
        return "chance" if finding.no_effect else ""

    @classmethod
    def planned_effects(
        cls, sizes: AuditSizes, *, significance: float
    ) -> Sequence[PlannedEffect]:
        """Return what its tests would detect, from ``planned.py``."""
        return planned_effects(sizes, significance=significance)

    @classmethod
    def _has_annotations_alone(cls, rows: Sequence[Row]) -> bool:
        """Return whether a report has no figure of a canary ranked once.

        That is so of what the paper prints.
        """
        variants = {row.variant for row in rows if row.audit == cls.name}
        return bool(variants) and not variants & set(RANKED)

    @classmethod
    def latex_columns(
        cls, rows: Sequence[Row], findings: Sequence[Finding], *, paper: bool
    ) -> Sequence[LatexColumn]:
        """Return its columns; the paper's are averaged over annotations."""
        if not (paper or cls._has_annotations_alone(rows)):
            return cls.latex
        return [_by_annotation(column) for column in cls.latex]

    @classmethod
    def latex_tables(
        cls, rows: Sequence[Row], findings: Sequence[Finding], *, paper: bool
    ) -> Mapping[str, Sequence[LatexColumn]]:
        """Return the table of ranks, and that of the NLL of each part of a canary."""
        nll_columns: Sequence[LatexColumn] = NLL_COLUMNS
        if paper or cls._has_annotations_alone(rows):
            nll_columns = [_by_annotation(column) for column in nll_columns]
        tables = super().latex_tables(rows, findings, paper=paper)
        return {**tables, "canary_nll": nll_columns}

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return the candidates of every canary that can be ranked.

        A canary is ranked in its first row by id, with ``paper`` in all that the
        manifest lists.
        """
        # All candidates of a canary and context are scored in one item.
        keys: list[str] = []
        for canary in manifest.canaries:
            keys += candidate_keys(canary, paper=paper).values()
        return {CANDIDATES: sorted(keys)} if keys else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return the ranks of each canary and part, in each context and over them.

        ==========  ===============================================================
        column      meaning
        ==========  ===============================================================
        kind        ``context``: ranked in one context; ``canary``: ranked once, by
                    the NLL of each candidate averaged over contexts; ``unrankable``:
                    the canary has no candidates
        rank        rank of the planted string, 1 is the likeliest; ties count behind
        ties        candidates with exactly its NLL
        nll_mean    its NLL, nats per token
        ==========  ===============================================================

        For other columns see ``_unit_records`` and
        :mod:`spark_audit.audits.canary.ranks`.
        """
        keys_by_canary = [
            (canary, candidate_keys(canary, paper=context.paper))
            for canary in manifest.canaries
        ]
        units = _units_of(manifest, keys_by_canary)

        def measured() -> Measured:
            """Yield ranks, ties and NLL of all units, one checkpoint at a time."""
            for name, passes in tables.items():
                table = passes.get(CANDIDATES)
                scores_by_unit: list[list[float]] = []
                for canary, keys in keys_by_canary:
                    scores_by_unit += _scores(canary, keys, table)

                # The reshape is for an array without units, which has one axis only.
                scores = np.array(scores_by_unit, np.float64)
                scores = scores.reshape(-1, len(CANARY_COLUMNS))  # (units, columns)
                yield name, dict(zip(CANARY_COLUMNS, scores.T, strict=True))

        # Only the preset ``paper`` averages over contexts and needs their number.
        n_contexts = manifest.settings.canary_contexts if context.paper else None
        return Evidence.of(units, measured(), {"kept_contexts": n_contexts})

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return figures, findings, guards and tables of all ranked canaries."""
        names = list(evidence.checkpoints)
        warnings = _warnings(evidence)

        # The frame leaves out what was not scored. Ranks are whole again: the evidence
        # stores all scores as float.
        every_rank = evidence.frame().astype({"rank": np.int64, "ties": np.int64})
        ranked = ranks.ranked(every_rank)
        trained = ranks.trained_canaries(ranked)
        if trained.empty:
            reason = _why_nothing_is_ranked(evidence.units, ranked)
            untested = canary_finding(
                "", "not_tested", "not_estimable", {"reason": reason}
            )
            return AuditResult(
                results=self.missing(names, reason),
                guards=warnings,
                findings=[untested],
            )

        # Findings take their intervals from these figures.
        canaries = RankedCanaries(ranked)
        in_contexts = ranks.trained_canaries(ranks.ranked(every_rank, "context"))
        rows, contrasts = canary_figures(
            trained, in_contexts, canaries, context, CanaryRank
        )

        # Tables of all checkpoints.
        tables = {
            "canary_by_dose": list(dose_table(ranked)),
            "canary_epsilon": epsilon.epsilon_table(canaries),
            "canary_one_run": epsilon.one_run_table(canaries),
        }

        # Findings on checkpoints, then on changes from their baselines.
        concluded = list(findings(canaries, tables["canary_epsilon"], rows))
        scored_names = set(trained["checkpoint"])
        for name in names:
            # A checkpoint that was not scored has a finding that says so. Any lacks
            # rows of the parts that it could not rank: they are added with the reason.
            reason = UNRANKED
            if name not in scored_names:
                reason = CANDIDATES_NOT_SCORED
                unscored = canary_finding(
                    name, "not_tested", "unscored", {"reason": reason}
                )
                concluded.append(unscored)
            rows += self.missing([name], reason, beside=rows)
        concluded += contrast_findings(contrasts, canaries)

        return AuditResult(
            results=rows,
            contrasts=contrasts,
            guards=[*guards(canaries), *warnings],
            findings=concluded,
            tables={name: table for name, table in tables.items() if table},
        )


def candidate_keys(canary: ManifestCanary, *, paper: bool) -> dict[str, str]:
    """Return the keys of a canary part's candidates by context; empty: it has no ranks.

    A context is named by the id of its row. A key names the item that scores all
    candidates in that context, in the pass :data:`CANDIDATES`.

    Parameters
    ----------
    paper
        All contexts of the manifest, instead of the first row by id.
    """
    # The manifest lists no candidates for a string whose kind has too few of them.
    if not canary.candidates or canary.true_index is None:
        return {}

    examples = sorted(context.example for context in canary.contexts)
    if not paper:
        examples = examples[:1]

    keys: dict[str, str] = {}
    for example in examples:
        keys[example] = key_of("canary", canary.canary_id, canary.part, example)
    return keys


def _units_of(
    manifest: Manifest, keys_by_canary: Sequence[tuple[ManifestCanary, dict[str, str]]]
) -> pd.DataFrame:
    """Return one line per unit, with the supervision of its canary if it is known.

    Parameters
    ----------
    keys_by_canary
        Canary parts, each with the keys of its candidates by context.
    """
    # The order must be that of the scores: one canary part after the other.
    records: list[dict[str, Any]] = []
    for canary, keys in keys_by_canary:
        records += _unit_records(canary, keys)
    units = pd.DataFrame.from_records(records)
    if not is_known(manifest) or not len(units):
        return units

    # Rows in which training cut a canary off do not count. With dose 0 and not held
    # out, it is on neither side.
    ids = units["canary_id"]
    n_rows_cut = ids.map(canary_rows_cut(manifest))
    units["dose"] = (units["dose"] - n_rows_cut).clip(lower=0)

    states = canary_supervision(manifest)
    units[COLUMN] = [states.get(canary_id, "") for canary_id in ids]
    units.loc[units["held_out"].astype(bool), COLUMN] = ""
    return units


def _unit_records(
    canary: ManifestCanary, keys: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield the units of a canary part: one per context, then one over all of them.

    ``example`` is the id of the context's row, empty for the unit over all contexts;
    ``contexts`` is the number of contexts that a unit is ranked in.

    Parameters
    ----------
    keys
        Keys of its candidates by context; without any, the part cannot be ranked.
    """
    # These columns are the same for all units of a part.
    shared = {
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
        yield shared | {"kind": "context", "example": example, "contexts": 1}
    yield shared | {"kind": "canary" if keys else "unrankable"}


def _scores(
    canary: ManifestCanary, keys: dict[str, str], table: TokenTable | None
) -> Iterator[list[float]]:
    """Yield :data:`CANARY_COLUMNS` of each unit of a canary part.

    The units are those of :func:`_unit_records`, in their order. The values are NaN if
    the part has no candidates, or if a context of it was not scored.

    Parameters
    ----------
    keys
        Keys of its candidates by context.
    table
        Scores of one checkpoint.
    """
    # Without any key, `all` is true: such a part has no candidates to score.
    is_scored = table is not None and all(key in table for key in keys.values())
    if not keys or table is None or not is_scored:
        n_units = len(keys) + 1
        yield from [[np.nan] * len(CANARY_COLUMNS)] * n_units
        return

    true_index = canary.true_index
    assert true_index is not None
    nll_by_context = [
        table.columns["nll_mean"][table.rows(key)] for key in keys.values()
    ]
    # Scores are stored as float32, too coarse for means over contexts.
    nll = np.stack(nll_by_context).astype(np.float64)  # (contexts, candidates)

    # One rank per context, then one of the means over contexts.
    for candidates_nll in (*nll, nll.mean(axis=0)):
        rank, ties = canary_ranks.candidate_rank(candidates_nll, true_index)
        yield [rank, ties, candidates_nll[true_index]]


def _warnings(evidence: Evidence) -> list[Guard]:
    """Return warnings on canaries without a rank, and on the number of contexts."""
    warnings = []
    kinds = evidence.units["kind"]
    n_parts = int((kinds != "context").sum())
    n_unrankable = int((kinds == "unrankable").sum())
    if n_unrankable:
        # `parts` counts canary parts, one unit of each being no context.
        facts = {"lost": n_unrankable, "parts": n_parts}
        warnings.append(guard("canaries rankable", "canaries_rankable", facts))

    # Only the preset ``paper`` uses several contexts.
    n_contexts = evidence.facts["kept_contexts"]
    if n_contexts is not None:
        facts = {"kept": n_contexts}
        warnings.append(guard("canary contexts", "canary_contexts", facts))
    return warnings


def _why_nothing_is_ranked(units: pd.DataFrame, ranked: pd.DataFrame) -> str:
    """Return why no trained canary has a rank.

    Parameters
    ----------
    units
        All units of the evidence, scored or not: ``kind``.
    ranked
        Those that were ranked, trained or not.
    """
    if len(ranked):
        return "no canary of a trained row can be ranked"
    if (units["kind"] == "canary").any():
        return CANDIDATES_NOT_SCORED
    return UNRANKED
