"""Where identifiers stand in the full vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits import identifiers, ratio_rows
from spark_audit.audits.base import (
    Audit,
    Context,
    LatexColumn,
    Metric,
    Plan,
    Tables,
    scored,
)
from spark_audit.audits.supervision import (
    COLUMN,
    NOT_READ,
    STRATA,
    Trained,
    by_supervision,
    trained_identifiers,
)
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.names import BASE
from spark_audit.results import AuditResult, Contrast, Finding, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass
from spark_audit.stats.bootstrap import median_replicates
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import median_estimate
from spark_audit.stats.memory_contrast import memory


def _tokens_by_state(
    example: ManifestExample, kind: str, trained_on: Trained
) -> dict[str, np.ndarray]:
    """Tokens of identifiers of a type, by what training did with them.

    A token of several belongs to the first of them; what training cut off is left out.
    """
    states = np.full(len(example.unll), "-", object)
    for span, (start, end) in reversed(example.identifiers):
        if span.type == kind and trained_on.dose_of(example, span) != NOT_READ:
            states[start:end] = trained_on.supervision_of(example, span)
    found = {state: np.flatnonzero(states == state) for state in ("", *STRATA)}
    return {state: tokens for state, tokens in found.items() if len(tokens)}


SPAN_FACTS = [
    "set",
    "split",
    "task",
    "type",
    "cluster",
    "dose",
    "form",
    "cue",
    "stratum",
]

SPAN_COLUMNS = {"rank": "rank_lo", "ties": "ties"}

RANK_SETS = ("pii", "control", "pii_all")

HEAVY = "heavy-tailed: a 95% interval covers about 75%; only for comparison with SPARK"

TIES_MATTER = 0.005
"""Difference of Top-1 by tie rule above which readers are told."""

PER_TOKEN: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "top1_rate": lambda rank: rank <= 1.0,
    "top5_rate": lambda rank: rank <= 5.0,
    "top10_rate": lambda rank: rank <= 10.0,
    "rank_mean": np.asarray,
    "log2_rank_mean": np.log2,
    "mrr": np.reciprocal,
}
"""What is averaged over tokens, by metric; ranks as float64."""

_ranked = partial(Metric, variants=RANK_SETS, missing=("pii",))


@dataclass(frozen=True, kw_only=True)
class Rank(Audit):
    """Ranks of identifiers and their controls among all next tokens.

    The evidence is one row per checkpoint, token and set: ``pii`` are tokens of matched
    identifiers, ``control`` tokens of their controls, ``pii_all`` tokens of all
    annotated identifiers, whose ``dose``, ``form``, ``cue`` and ``stratum`` are those
    of ``Facts`` in ``identifiers``.
    """

    name = "rank"
    metrics = (
        _ranked("top1_rate", rate=True, learned=1, headline=("pii",)),
        *(_ranked(f"top{k}_rate", rate=True, learned=1) for k in (5, 10)),
        _ranked("rank_mean", "ranks", bounds=(1.0, np.inf), learned=-1, note=HEAVY),
        _ranked("log2_rank_mean", "bits", bounds=(0.0, np.inf), learned=-1),
        _ranked("mrr", bounds=(0.0, 1.0), learned=1),
        Metric(
            "rank_median", "ranks", bounds=(1.0, np.inf), learned=-1, variants=RANK_SETS
        ),
        Metric(
            "top1_memory",
            bounds=(-2.0, 2.0),
            learned=1,
            null=0.0,
            variants=("pii_all",),
            missing=("pii_all",),
            glance=("pii_all",),
        ),
    )
    disclosure_step = 1
    latex = (
        LatexColumn("Rank mean ↑", "rank_mean", "pii"),
        LatexColumn("Rank median ↑", "rank_median", "pii"),
        LatexColumn("Top-1 ↓", "top1_rate", "pii"),
        LatexColumn("Top-5 ↓", "top5_rate", "pii"),
        LatexColumn("Top-10 ↓", "top10_rate", "pii"),
    )
    nothing = "the manifest has no identifier to audit"
    unscored = "no identifier of this set was scored"

    @classmethod
    def whole_of(cls, metric: str, of: str) -> tuple[str, str, str] | None:
        """``pii`` are identifiers with a control, ``pii_all`` all of them."""
        return (cls.name, metric, "pii_all") if of == "pii" else None

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """All examples with an annotated identifier that was scored, canaries apart."""
        rows = (row for row in manifest.examples if row.canary_id is None)
        ids = sorted(row.id for row in rows if row.identifiers)
        return {Pass(): ids} if ids else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        trained_on = trained_identifiers(manifest)
        known = identifiers.identifier_facts(manifest, trained_on)
        at_place = {
            (row.id, span.start, span.end): trained_on.supervision_of(row, span)
            for row in manifest.examples
            for span in row.spans
            if trained_on.is_known
        }
        records: list[tuple[Any, ...]] = []
        for pair in manifest.pairs:
            row = manifest.by_id[pair.example]
            pii = pair.pii
            state = at_place.get((row.id, pii.char_start, pii.char_end), "")
            place = (row.split, row.task, pii.type, row.cluster, 0, 0, 0, 0, state)
            for of, side in (("pii", pair.pii), ("control", pair.control)):
                records.append((row.id, side.token_start, side.token_end, of, *place))
        for row in manifest.examples:
            for span, held in row.identifiers if row.canary_id is None else ():
                facts = astuple(known[row.id, span.start, span.end])[:-1]
                state = at_place.get((row.id, span.start, span.end), "")
                place = (row.split, row.task, span.type, row.cluster, *facts, state)
                records.append((row.id, *held, "pii_all", *place))
        if not records:
            return Evidence()
        places = [record[:3] for record in records]
        units = pd.DataFrame(
            [record[3:] for record in records], columns=[*SPAN_FACTS, COLUMN]
        )
        if not trained_on.is_known:
            units = units.drop(columns=COLUMN)
        tokens = units.loc[
            units.index.repeat([end - start for _, start, end in places])
        ]

        def measured() -> Measured:
            for name, table in scored(tables):
                if "rank_lo" not in table.columns:
                    continue
                spans = (table.span(*at) for at in places)
                rows = np.concatenate([np.arange(s.start, s.stop) for s in spans])
                yield name, {k: table.columns[c][rows] for k, c in SPAN_COLUMNS.items()}

        return Evidence.of(tokens.reset_index(drop=True), measured())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        which = evidence.units["set"].to_numpy()
        groups = [*ratio_rows.groups_of(evidence.units)]
        cells = partial(ratio_rows.cells_of_units, groups, evidence, "rank", of=which)
        rows, contrasts = ratio_rows.ratio_figures(
            cells(metrics=PER_TOKEN), context, Rank
        )
        for group, parts in cells(metrics={"rank_median": np.asarray}):
            weights = group.weights(context)
            for (name, metric, of), values, _ in parts:
                held = ~np.isnan(values)
                if held.any():
                    own = values[held], group.codes[held]
                    drawn = median_replicates(weights, *own)
                    found = median_estimate(*own, replicates=drawn)
                    rows.append(Rank.row(found, name, metric, of, group=group.name))
        rows = ratio_rows.with_nulls(
            rows, lambda place: (*place[:3], "control") if place[3] == "pii" else None
        )
        rows += _memory_rows(evidence)
        findings = [*_rank_findings(rows, contrasts)]
        train = evidence.units.loc[evidence.units["split"] == "train", "set"]
        won = (evidence.values["rank"] == 1) & (evidence.values["ties"] > 0)
        shares = pd.DataFrame(won[:, train.index].T).groupby(train.to_numpy()).mean()
        most = dict(zip(evidence.checkpoints, shares.max(), strict=True))
        if names := [name for name, share in most.items() if share > TIES_MATTER]:
            ties = Finding.not_tested(
                "rank", "rank.ties", further=["rank.ties_advice"], names=names
            )
            findings.append(ties)
        return AuditResult(rows=rows, contrasts=contrasts, findings=findings)


def _memory_rows(evidence: Evidence) -> Iterator[Row]:
    """Change of Top-1 since the base, of trained identifiers beyond held-out ones.

    A tie for the first place counts on the base alone: it makes no finding.
    """
    units = evidence.units
    held_out = (units["split"] == "train") | (units["dose"] == 0)
    every, apart = identifiers.comparable(units[(units["set"] == "pii_all") & held_out])
    held = every[every["split"] != "train"]
    groups = [("pooled", every)]
    for group, part in by_supervision(every[every["split"] == "train"]):
        groups.append((group, pd.concat([part, held]).sort_index()))
    for group, spans in groups:
        sides = identifiers.sides_of(spans)
        base = evidence.row(BASE, "rank")[spans.index] == 1
        for i, name in enumerate(evidence.checkpoints):
            rank, ties = (evidence.values[k][i][spans.index] for k in ("rank", "ties"))
            if name == BASE or spans.empty:
                continue
            estimate = Estimate.missing(identifiers.TOLD_APART)
            if BASE not in evidence.checkpoints:
                estimate = Estimate.missing(
                    "the base model was not scored: give --base"
                )
            elif not apart:
                change = ((rank == 1) & (ties == 0)) - base.astype(np.float64)
                estimate = memory(change, sides).difference
            yield Rank.row(estimate, name, "top1_memory", "pii_all", group=group)


def _rank_findings(
    rows: Sequence[Row], contrasts: Sequence[Contrast]
) -> Iterator[Finding]:
    pooled = [row for row in rows if row.group == "pooled"]
    notes = {(row.checkpoint, row.metric, row.of): row.note for row in pooled}
    known = {(r.checkpoint, r.metric, r.of): r for r in pooled if r.value is not None}
    for name in dict.fromkeys(row.checkpoint for row in rows):
        # Where no identifier has a control, all annotated ones are spoken of.
        of = "pii" if (name, "top1_rate", "pii") in known else "pii_all"
        place = name, "top1_rate", of
        if place not in known:
            missing, reason = ("rank", "rank.missing"), notes.get(place, Rank.unscored)
            yield Finding.not_tested(*missing, checkpoint=name, reason=reason)
            continue
        base = None if name == BASE else known.get((BASE, *place[1:]))
        facts, says = {"top1": known[place], "base": base}, "rank.top1_all"
        compared = ["base"]
        if of == "pii":
            facts["median"] = known.get((name, "rank_median", of))
            facts["control"] = known.get((name, "top1_rate", "control"))
            facts["memory"] = known.get((name, "top1_memory", "pii_all"))
            says = "rank.top1"
            compared = ["median", "control", "base", "memory"]
        further = [f"rank.{fact}" for fact in compared if facts[fact] is not None]
        yield Finding.on(known[place], "moved", says, facts=facts, further=further)
    changes = {
        (row.checkpoint, row.baseline, row.of): row
        for row in contrasts
        if (row.group, row.metric) == ("pooled", "log2_rank_mean")
    }
    for (name, baseline, of), row in changes.items():
        if of == "pii":
            facts = {"change": row, "control": changes.get((name, baseline, "control"))}
            direction = row.direction(up="away", down="towards")
            control = facts["control"]
            further = []
            if direction in ("away", "towards") and control and control.value:
                side = "away" if control.value > 0 else "towards"
                further.append(f"rank.control_{side}")
            yield Finding.on(
                row, "moved", f"rank.change_{direction}", facts=facts, further=further
            )
