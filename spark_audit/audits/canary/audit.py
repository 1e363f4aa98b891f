"""Rank planted canaries among candidates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, starmap
from typing import Any

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
from spark_audit.audits.canary.findings import (
    contrast_findings,
    finding,
    findings,
    guards,
)
from spark_audit.audits.canary.ranks import Judged
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
from spark_audit.results import AuditResult, Contrast, Finding, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats import canary_ranks

CANDIDATES = Pass("candidates")

TOP_RANKS = {"top1_rate": 1, "top10_rate": 10}

CANARY_COLUMNS = ("rank", "ties", "nll_mean")

CANARY_VARIANTS = (*RANKED, *(f"{part}/annotation" for part in RANKED))

_ranked = partial(Metric, variants=CANARY_VARIANTS, missing=RANKED)

CANARY_METRICS = (
    _ranked("nll", "nats", bounds=(0.0, math.inf), learned=-1),
    # A percentile interval of a mean rank covers far too rarely.
    _ranked("rank_mean", "ranks", bounds=(1.0, math.inf), learned=-1, heavy=True),
    _ranked(
        "exposure_mean",
        "bits",
        bounds=(0.0, math.inf),
        learned=1,
        glance=("full",),
        headline=("full",),
    ),
    _ranked("top1_rate", rate=True, learned=1, alone=True),
    _ranked("top10_rate", rate=True, learned=1),
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
        """Candidates of every canary that can be ranked.

        A canary is ranked in its first row by id, with ``paper`` in all that the
        manifest lists.
        """
        every = (candidate_keys(one, paper=paper) for one in manifest.canaries)
        keys = sorted(key for keys in every for key in keys.values())
        return {CANDIDATES: keys} if keys else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """One unit per canary, part and context, and one over its contexts.

        ``kind`` is ``context``; ``canary``, ranked once by each candidate's NLL
        averaged over contexts; or ``unrankable``. ``rank`` is strict; ``nll_mean``,
        nats per token, is the true string's.
        """
        paper = context.paper
        keyed = [(one, candidate_keys(one, paper=paper)) for one in manifest.canaries]
        units = pd.DataFrame.from_records(chain.from_iterable(starmap(_units, keyed)))
        if is_known(manifest) and len(units):
            rows_cut = canary_rows_cut(manifest)
            states = canary_supervision(manifest)
            ids = units["canary_id"]
            # What training cut off is not trained on, and not held out either.
            units["dose"] = (units["dose"] - ids.map(rows_cut)).clip(lower=0)
            units[COLUMN] = [states.get(one, "") for one in ids]
            units.loc[units["held_out"].astype(bool), COLUMN] = ""

        def measured() -> Measured:
            for name, passes in tables.items():
                table = passes.get(CANDIDATES)
                rows = [row for one in keyed for row in _scores(*one, table)]
                scores = np.array(rows, np.float64).reshape(-1, len(CANARY_COLUMNS))
                yield name, dict(zip(CANARY_COLUMNS, scores.T, strict=True))

        kept = manifest.settings.canary_contexts if context.paper else None
        return Evidence.of(units, measured(), {"kept_contexts": kept})

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        names, units = list(evidence.checkpoints), evidence.units
        every = evidence.frame().astype({"rank": np.int64, "ties": np.int64})
        warned = []
        parts = units.loc[units["kind"] != "context", "kind"]
        if lost := int((parts == "unrankable").sum()):
            told = {"lost": lost, "parts": len(parts)}
            warned.append(guard("canaries rankable", "canaries_rankable", told))
        if (kept := evidence.facts["kept_contexts"]) is not None:
            warned.append(guard("canary contexts", "canary_contexts", {"kept": kept}))
        frame = ranks.ranked(every)
        ours = ranks.trained(frame)
        if ours.empty:
            reason = (
                CANDIDATES_NOT_SCORED if (units["kind"] == "canary").any() else UNRANKED
            )
            if len(frame):
                reason = "no canary of a trained row can be ranked"
            unknown = finding("", "not_tested", "not_estimable", {"reason": reason})
            rows = self.missing(names, reason)
            return AuditResult(rows=rows, guards=warned, findings=[unknown])
        judged = Judged(frame)
        in_contexts = ranks.trained(ranks.ranked(every, "context"))
        rows, contrasts = canary_figures(ours, in_contexts, judged, context)
        tables = {
            "canary_by_dose": [*ranks.dose_table(frame)],
            "canary_epsilon": epsilon.epsilon_table(judged),
            "canary_one_run": epsilon.one_run_table(judged),
        }
        said = [*findings(judged, tables["canary_epsilon"], rows)]
        for name in names:
            reason = UNRANKED
            if name not in {*ours["checkpoint"]}:
                reason = CANDIDATES_NOT_SCORED
                said.append(finding(name, "not_tested", "unscored", {"reason": reason}))
            rows += self.missing([name], reason, beside=rows)
        said += contrast_findings(contrasts, judged)
        return AuditResult(
            rows=rows,
            contrasts=contrasts,
            guards=[*guards(judged), *warned],
            findings=said,
            tables={name: table for name, table in tables.items() if table},
        )


def candidate_keys(canary: ManifestCanary, *, paper: bool) -> dict[str, str]:
    """Key of the candidates in each context; none if it cannot be ranked."""
    if not canary.candidates or canary.true_index is None:
        return {}
    rows = sorted(context.example for context in canary.contexts)
    return {
        row: key_of("canary", canary.canary_id, canary.part, row)
        for row in (rows if paper else rows[:1])
    }


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


def _scores(
    canary: ManifestCanary, keys: dict[str, str], table: TokenTable | None
) -> Iterator[list[float]]:
    """Yield :data:`CANARY_COLUMNS` of each unit of a canary part.

    They are NaN where it was not scored.
    """
    true = canary.true_index
    if not keys or table is None or not all(key in table for key in keys.values()):
        yield from [[np.nan] * len(CANARY_COLUMNS)] * (len(keys) + 1)
        return
    assert true is not None
    held = [table.columns["nll_mean"][table.rows(key)] for key in keys.values()]
    means = np.stack(held).astype(np.float64)
    for mean in (*means, means.mean(axis=0)):
        yield [*canary_ranks.candidate_rank(mean, true), mean[true]]


def canary_figures(
    once: pd.DataFrame, often: pd.DataFrame, judged: Judged, context: Context
) -> tuple[list[Row], list[Contrast]]:
    """Rows with their values by chance, and contrasts.

    ``once`` holds a rank a canary, ``often`` one a context. Top-1 has no contrast: so
    few canaries cannot show its change.
    """
    size = ranks.size_of(once)
    in_contexts = often.assign(part=often["part"] + "/annotation")
    frame = pd.concat([once, in_contexts], ignore_index=True)
    frame = frame.rename(columns={"part": "of", "canary_id": "cluster"})
    for metric, k in TOP_RANKS.items():
        frame[metric] = canary_ranks.top_k_credit(
            frame["rank"], k=k, ties=frame["ties"]
        )
    columns = {"nll": "nll_mean", "exposure_mean": "exposure"}
    columns |= {metric: metric for metric in TOP_RANKS} | {"rank_mean": "mid"}
    groups = [("pooled", frame), *by_supervision(frame)]
    cells = [cells_of_frame(group, part, columns) for group, part in groups]
    rows, contrasts = ratio_figures(
        cells,
        context,
        CanaryRank,
        rank_mean=(1.0, float(size)),
        exposure_mean=(0.0, np.log2(size)),
    )
    once_by_group = {"pooled": once, **dict(by_supervision(once))}
    often_by_group = {"pooled": often, **dict(by_supervision(often))}
    rows = [
        _beside_chance(row, once_by_group[row.group], often_by_group[row.group])
        for row in rows
    ]
    names = list(dict.fromkeys(once["checkpoint"]))
    order = [metric.name for metric in CANARY_METRICS]
    rows.sort(key=lambda r: (names.index(r.checkpoint), r.of, order.index(r.metric)))
    return _marked(rows, judged), _marked(bounded(contrasts, TOP_RANKS), judged)


def _beside_chance(row: Row, once: pd.DataFrame, often: pd.DataFrame) -> Row:
    """The row with its chance value, band, and the smallest effect it could show.

    ``once`` holds a rank a canary, ``often`` one a context.
    """
    part, _, annotation = row.of.partition("/")
    once, often = (
        of[(of["checkpoint"] == row.checkpoint) & (of["part"] == part)]
        for of in (once, often)
    )
    k, n, size = TOP_RANKS.get(row.metric, 0), len(once), ranks.size_of(once)
    if row.metric == "nll" or row.value is None or k >= size:
        return row
    change, notes = dict[str, Any](), [row.note]
    # Others show nothing, however large the effect.
    able = max(1, int(ranks.resolved(once).sum()))
    if k:
        hits = ranks.hits_of(once, k=k)
        least = canary_ranks.top_k_mde(able, k=k, n_candidates=size)
        band = hits.null_low / n, hits.null_high / n
        change = {"null": hits.null, "mde": least and least - hits.null}
        if not annotation:
            change |= {"low": hits.low, "high": hits.high}
            change["interval"], notes = "clopper-pearson", []
    else:
        of: canary_ranks.Of = "rank" if row.metric == "rank_mean" else "exposure"
        band = canary_ranks.null_mean([size] * n, of=of).band(row.level)
        change = {"mde": canary_ranks.chance_mde(able, n_candidates=size, of=of)}
        change["null"], _ = canary_ranks.null_moments(size, of=of)
    change["null_low"], change["null_high"] = band
    if annotation:
        notes.append(ONE_RANK)
    counted = often if annotation else once
    if count := ranks.tied(counted):
        note = sentences.render("canary.ties", tied=count, canaries=len(counted))
        notes.append(note)
    return row.model_copy(update={**change, "note": "; ".join(filter(None, notes))})


def _marked(rows: Sequence[Any], judged: Judged) -> list[Any]:
    """The rows, with the status that what holds of all canaries gives them."""
    found = []
    for row in rows:
        part, change = row.of.partition("/")[0], dict[str, Any]()
        likelihood, paired = row.metric == "nll", isinstance(row, Contrast)
        # A change of likelihood itself needs no positive control.
        if part not in judged.sensitive and not (likelihood and paired):
            change = {"status": "insensitive"}
        sides = (row.checkpoint, *([row.baseline] if paired else []))
        if not likelihood and any((name, part) in judged.tied for name in sides):
            change = {"status": "not_resolvable", "note": ranks.TIED}
        found.append(row.model_copy(update=change if row.value is not None else None))
    return found
