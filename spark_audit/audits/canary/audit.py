"""Rank planted canaries among candidates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spark_audit import sentences
from spark_audit.audits.base import (
    Audit,
    Context,
    LatexColumn,
    Metric,
    Plan,
    Tables,
    guard,
)
from spark_audit.audits.canary import epsilon, ranks
from spark_audit.audits.canary.canary_finding import canary_finding
from spark_audit.audits.canary.findings import contrast_findings, findings
from spark_audit.audits.canary.guards import guards
from spark_audit.audits.canary.ranks import RankedCanaries
from spark_audit.audits.ratio_rows import bounded, cells_of_frame, ratio_figures
from spark_audit.audits.supervision import (
    COLUMN,
    by_supervision,
    canary_rows_cut,
    canary_supervision,
    is_known,
)
from spark_audit.data.canaries import RANKED
from spark_audit.manifest.encodings import key_of
from spark_audit.manifest.schema import Manifest, ManifestCanary
from spark_audit.results import AuditResult, Contrast, Finding, Guard, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats import canary_ranks

CANDIDATES = Pass("candidates")

TOP_RANKS = {"top1_rate": 1, "top10_rate": 10}

CANARY_COLUMNS = ("rank", "ties", "nll_mean")

CANARY_VARIANTS = (*RANKED, *(f"{part}/annotation" for part in RANKED))

CANARY_METRICS = (
    Metric(
        "nll",
        "nats",
        bounds=(0.0, math.inf),
        learned=-1,
        variants=CANARY_VARIANTS,
        missing=RANKED,
    ),
    # A percentile interval of a mean rank covers far too rarely.
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
    # So few canaries cannot show a change of the first rank.
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
"""Ranks and exposures are bounded by the number of candidates, once it is known."""

NO_CANARY = "the manifest has no canary"

UNRANKED = "no canary of the manifest can be ranked among candidates"

ONE_RANK = "the chance band assumes that all rows of a canary have the same rank"

CANDIDATES_NOT_SCORED = "the candidates of canaries were not scored"


@dataclass(frozen=True, kw_only=True)
class CanaryRank(Audit):
    """Planted canaries, ranked among strings that were not planted.

    The evidence is one row per checkpoint, canary, part and context, and one row over
    its contexts: ``full``, ``password`` and ``ssn`` average the NLL of each candidate
    over the contexts of the canary and rank once; ``full/annotation`` etc. rank in each
    context and average the ranks, as SPARK does. The unit is the canary in both cases.
    """

    name = "canary"
    metrics = CANARY_METRICS
    nothing = NO_CANARY
    unscored = CANDIDATES_NOT_SCORED
    chance = True
    independent_units = "canaries"
    covers = ("exposure_mean", "n")
    sides = ("canaries", "never_inserted")
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
        """Return whether figures are ranks of planted strings, not scores (nats)."""
        return unit != "nats"

    @classmethod
    def compared_with(cls, finding: Finding) -> str:
        """Return ``chance`` for an exposure, whose figure without memory is not 0."""
        return "chance" if finding.null else ""

    @classmethod
    def latex_columns(
        cls, rows: Sequence[Row], findings: Sequence[Finding], *, paper: bool
    ) -> Sequence[LatexColumn]:
        """Return its columns; the paper's are averaged over annotations."""
        if not paper:
            return cls.latex
        return [
            column._replace(of="full/annotation", counted="annotations")
            for column in cls.latex
        ]

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
        """Return one unit per canary, part and context, and one over its contexts.

        ``kind`` is ``context``; ``canary``, ranked once by each candidate's NLL
        averaged over contexts; or ``unrankable``. ``rank`` is strict; ``nll_mean``,
        nats per token, is the true string's.
        """
        keys_by_canary = [
            (canary, candidate_keys(canary, paper=context.paper))
            for canary in manifest.canaries
        ]
        units = _units_of(manifest, keys_by_canary)

        # In the order of the units; one checkpoint at a time is in memory.
        def measured() -> Measured:
            for name, passes in tables.items():
                table = passes.get(CANDIDATES)
                rows: list[list[float]] = []
                for canary, keys in keys_by_canary:
                    rows += _scores(canary, keys, table)
                # Without any unit the array has no second axis of its own.
                scores = np.array(rows, np.float64)
                scores = scores.reshape(-1, len(CANARY_COLUMNS))  # (units, columns)
                yield name, dict(zip(CANARY_COLUMNS, scores.T, strict=True))

        # Only the preset ``paper`` averages over contexts, and asks how many there are.
        n_contexts = manifest.settings.canary_contexts if context.paper else None
        return Evidence.of(units, measured(), {"kept_contexts": n_contexts})

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return figures, findings, guards and tables of all ranked canaries."""
        names = list(evidence.checkpoints)
        warnings = _warnings(evidence)

        # NaN, of what was not scored, is not in the frame.
        every_rank = evidence.frame().astype({"rank": np.int64, "ties": np.int64})
        ranked = ranks.ranked(every_rank)
        trained = ranks.trained_canaries(ranked)
        if trained.empty:
            reason = _why_nothing_is_ranked(evidence.units, ranked)
            untested = canary_finding(
                "", "not_tested", "not_estimable", {"reason": reason}
            )
            return AuditResult(
                rows=self.missing(names, reason), guards=warnings, findings=[untested]
            )

        # Figures first: findings take their intervals from them.
        canaries = RankedCanaries(ranked)
        in_contexts = ranks.trained_canaries(ranks.ranked(every_rank, "context"))
        rows, contrasts = canary_figures(trained, in_contexts, canaries, context)

        # Tables of all checkpoints.
        tables = {
            "canary_by_dose": list(ranks.dose_table(ranked)),
            "canary_epsilon": epsilon.epsilon_table(canaries),
            "canary_one_run": epsilon.one_run_table(canaries),
        }

        # Checkpoints without a rank have rows too, with the reason.
        concluded = list(findings(canaries, tables["canary_epsilon"], rows))
        scored_names = set(trained["checkpoint"])
        for name in names:
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
            rows=rows,
            contrasts=contrasts,
            guards=[*guards(canaries), *warnings],
            findings=concluded,
            tables={name: table for name, table in tables.items() if table},
        )


def candidate_keys(canary: ManifestCanary, *, paper: bool) -> dict[str, str]:
    """Return the key of the candidates in each context; none if it cannot be ranked.

    Parameters
    ----------
    paper
        All contexts of the manifest, instead of the first row by id.
    """
    # The manifest has no candidates for strings that have too few of their kind.
    if not canary.candidates or canary.true_index is None:
        return {}

    rows = sorted(context.example for context in canary.contexts)
    if not paper:
        rows = rows[:1]
    return {row: key_of("canary", canary.canary_id, canary.part, row) for row in rows}


def _units_of(
    manifest: Manifest, keys_by_canary: Sequence[tuple[ManifestCanary, dict[str, str]]]
) -> pd.DataFrame:
    """Return one row per unit, with what training did with its canary where known."""
    # One canary part after the other, as scores are yielded.
    records: list[dict[str, Any]] = []
    for canary, keys in keys_by_canary:
        records += _unit_records(canary, keys)
    units = pd.DataFrame.from_records(records)
    if not is_known(manifest) or not len(units):
        return units

    rows_cut = canary_rows_cut(manifest)
    states = canary_supervision(manifest)
    ids = units["canary_id"]
    # What training cut off is not trained on, and not held out either.
    units["dose"] = (units["dose"] - ids.map(rows_cut)).clip(lower=0)
    units[COLUMN] = [states.get(canary_id, "") for canary_id in ids]
    units.loc[units["held_out"].astype(bool), COLUMN] = ""
    return units


def _unit_records(
    canary: ManifestCanary, keys: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield the units of a canary part: one per context, then one over all of them."""
    # What all units of a part have in common.
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

    They are NaN where it was not scored.
    """
    if not keys or table is None or not all(key in table for key in keys.values()):
        n_units = len(keys) + 1
        yield from [[np.nan] * len(CANARY_COLUMNS)] * n_units
        return

    true_index = canary.true_index
    assert true_index is not None
    nll_by_context = [
        table.columns["nll_mean"][table.rows(key)] for key in keys.values()
    ]
    # Scores are stored as float32; means over contexts are taken in float64.
    nll = np.stack(nll_by_context).astype(np.float64)  # (contexts, candidates)

    # One rank per context, then one of the means over contexts.
    for candidates_nll in (*nll, nll.mean(axis=0)):
        rank, ties = canary_ranks.candidate_rank(candidates_nll, true_index)
        yield [rank, ties, candidates_nll[true_index]]


def _warnings(evidence: Evidence) -> list[Guard]:
    """Return what is said of canaries that cannot be ranked, and of few contexts."""
    warnings = []
    kinds = evidence.units["kind"]
    n_parts = int((kinds != "context").sum())
    n_unrankable = int((kinds == "unrankable").sum())
    if n_unrankable:
        facts = {"lost": n_unrankable, "parts": n_parts}
        warnings.append(guard("canaries rankable", "canaries_rankable", facts))

    # Asked for by the preset ``paper`` alone.
    n_contexts = evidence.facts["kept_contexts"]
    if n_contexts is not None:
        facts = {"kept": n_contexts}
        warnings.append(guard("canary contexts", "canary_contexts", facts))
    return warnings


def _why_nothing_is_ranked(units: pd.DataFrame, ranked: pd.DataFrame) -> str:
    """Return why no trained canary has a rank."""
    if len(ranked):
        return "no canary of a trained row can be ranked"
    if (units["kind"] == "canary").any():
        return CANDIDATES_NOT_SCORED
    return UNRANKED


def canary_figures(
    once: pd.DataFrame,
    in_contexts: pd.DataFrame,
    canaries: RankedCanaries,
    context: Context,
) -> tuple[list[Row], list[Contrast]]:
    """Return rows with their values by chance, and contrasts.

    Parameters
    ----------
    once, in_contexts
        Trained canaries, from :func:`spark_audit.audits.canary.ranks.ranked`: one row
        per checkpoint, canary and part, and one per context of these.
    """
    n_candidates = ranks.n_candidates_of(once)

    # Variants of the paper: ranks of each context, averaged over contexts.
    by_context = in_contexts.assign(part=in_contexts["part"] + "/annotation")
    frame = pd.concat([once, by_context], ignore_index=True)
    frame = frame.rename(columns={"part": "of", "canary_id": "cluster"})
    for metric, k in TOP_RANKS.items():
        frame[metric] = canary_ranks.top_k_credit(
            frame["rank"], k=k, ties=frame["ties"]
        )

    columns = {
        "nll": "nll_mean",
        "exposure_mean": "exposure",
        "top1_rate": "top1_rate",
        "top10_rate": "top10_rate",
        "rank_mean": "mid",
    }

    # Means of ranks and exposures are bounded by the number of candidates.
    groups = [("pooled", frame), *by_supervision(frame)]
    rows, contrasts = ratio_figures(
        [cells_of_frame(group, members, columns) for group, members in groups],
        context,
        CanaryRank,
        rank_mean=(1.0, float(n_candidates)),
        exposure_mean=(0.0, np.log2(n_candidates)),
    )

    # Chance depends on how many canaries a row is of.
    once_by_group = {"pooled": once, **dict(by_supervision(once))}
    in_contexts_by_group = {"pooled": in_contexts, **dict(by_supervision(in_contexts))}
    rows = [
        _next_to_chance(row, once_by_group[row.group], in_contexts_by_group[row.group])
        for row in rows
    ]

    names = list(dict.fromkeys(once["checkpoint"]))
    metrics = [metric.name for metric in CANARY_METRICS]
    rows.sort(
        key=lambda row: (
            names.index(row.checkpoint),
            row.of,
            metrics.index(row.metric),
        )
    )

    contrasts = bounded(contrasts, TOP_RANKS)
    return (
        [_with_status_of_row(row, canaries) for row in rows],
        [_with_status_of_contrast(contrast, canaries) for contrast in contrasts],
    )


class ChanceFigures(NamedTuple):
    """What chance gives for a figure, and the smallest effect beside it."""

    null: float
    null_low: float
    null_high: float
    mde: float | None


def _next_to_chance(row: Row, once: pd.DataFrame, in_contexts: pd.DataFrame) -> Row:
    """Return the row with its chance value, band, and smallest detectable effect.

    Parameters
    ----------
    once, in_contexts
        Trained canaries of its group, as for :func:`canary_figures`.
    """
    part, _, annotation = row.of.partition("/")
    once = once[(once["checkpoint"] == row.checkpoint) & (once["part"] == part)]
    n_candidates = ranks.n_candidates_of(once)

    # An NLL has no value by chance, nor has a share that cannot be below 1.
    k = TOP_RANKS.get(row.metric)
    has_no_chance_value = k is not None and k >= n_candidates
    if row.metric == "nll" or row.value is None or has_no_chance_value:
        return row

    notes = [row.note] if row.note else []
    update: dict[str, Any] = {}
    if k is None:
        chance = _chance_of_mean(row, once, n_candidates)
    else:
        hits = ranks.hits_of(once, k=k)
        chance = _chance_of_top_k(hits, once, n_candidates, k=k)
        if not annotation:
            # The exact interval stands in for that of the ratio, and for its notes.
            update = {
                "low": hits.low,
                "high": hits.high,
                "interval": "clopper-pearson",
            }
            notes = []
    update |= chance._asdict()

    # What the row is a mean of: canaries, or their contexts.
    counted = once
    if annotation:
        notes.append(ONE_RANK)
        is_counted = in_contexts["checkpoint"] == row.checkpoint
        counted = in_contexts[is_counted & (in_contexts["part"] == part)]
    if n_tied := ranks.n_tied(counted):
        key = "canary.ties_of_one" if n_tied == 1 else "canary.ties"
        notes.append(sentences.render(key, tied=n_tied, canaries=len(counted)))
    update["note"] = "; ".join(notes)
    return row.model_copy(update=update)


def _n_able(once: pd.DataFrame) -> int:
    """Return how many canaries could show an effect: those that are resolved."""
    return max(1, int(ranks.resolved(once).sum()))


def _chance_of_top_k(
    hits: canary_ranks.TopK, once: pd.DataFrame, n_candidates: int, *, k: int
) -> ChanceFigures:
    """Return what chance gives for the share of canaries among the first k."""
    n_canaries = len(once)
    # The smallest rate that would be found, as a distance from chance.
    least_rate = canary_ranks.top_k_mde(_n_able(once), k=k, n_candidates=n_candidates)
    mde = least_rate
    if least_rate:
        mde = least_rate - hits.null
    return ChanceFigures(
        null=hits.null,
        null_low=hits.null_low / n_canaries,
        null_high=hits.null_high / n_canaries,
        mde=mde,
    )


def _chance_of_mean(row: Row, once: pd.DataFrame, n_candidates: int) -> ChanceFigures:
    """Return what chance gives for a mean rank or a mean exposure."""
    of: canary_ranks.Of = "rank" if row.metric == "rank_mean" else "exposure"
    null = canary_ranks.null_mean([n_candidates] * len(once), of=of)
    null_low, null_high = null.band(row.level)
    mean, _ = canary_ranks.null_moments(n_candidates, of=of)
    mde = canary_ranks.chance_mde(_n_able(once), n_candidates=n_candidates, of=of)
    return ChanceFigures(null=mean, null_low=null_low, null_high=null_high, mde=mde)


def _with_status_of_row(row: Row, canaries: RankedCanaries) -> Row:
    """Return the row with the status of its part.

    ==========================================  ======================
    last match wins                             status
    ==========================================  ======================
    the positive control was not found          ``insensitive``
    all canaries are tied, unless an NLL        ``not_resolvable``
    ==========================================  ======================
    """
    if row.value is None:
        return row
    part = row.of.partition("/")[0]
    update: dict[str, Any] = {}
    if part not in canaries.sensitive_parts:
        update["status"] = "insensitive"
    if row.metric != "nll" and (row.checkpoint, part) in canaries.unresolved:
        update = {"status": "not_resolvable", "note": ranks.TIED}
    return row.model_copy(update=update)


def _with_status_of_contrast(contrast: Contrast, canaries: RankedCanaries) -> Contrast:
    """Return the contrast with the status of its part on both sides.

    As :func:`_with_status_of_row`, but a change of likelihood keeps its status: it
    needs no positive control.
    """
    if contrast.value is None or contrast.metric == "nll":
        return contrast
    part = contrast.of.partition("/")[0]
    update: dict[str, Any] = {}
    if part not in canaries.sensitive_parts:
        update["status"] = "insensitive"
    for name in (contrast.checkpoint, contrast.baseline):
        if (name, part) in canaries.unresolved:
            update = {"status": "not_resolvable", "note": ranks.TIED}
    return contrast.model_copy(update=update)
