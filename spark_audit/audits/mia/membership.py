"""Whether scores separate trained rows from held-out rows.

Members are train rows, non-members test rows; every score is larger for what looks
more like a member. An AUC is evidence of leakage only if nothing but training tells
the two sides apart: the untrained model should score 0.5, and so should a classifier
that sees the texts alone. Membership is claimed only of a score that changed since the
former and is above the best of the latter by more than chance; every figure stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from spark_audit.audits.base import Audit, Context, Plan, Tables, guard, with_base
from spark_audit.audits.mia.estimates import (
    MOST_REPLICATES,
    Group,
    Known,
    rows_by_group,
)
from spark_audit.audits.mia.referee import (
    given_files,
    judged_scores,
    outside_scores,
    read_rows,
    read_scores,
)
from spark_audit.audits.mia.scores import (
    ATTACKS,
    BESIDE,
    DECLARED,
    FPRS,
    METRICS,
    NO_ROWS,
    RELATIVE,
    membership_scores,
    reference_table,
    scored_text,
)
from spark_audit.audits.mia.texts import best_guess, labelled, without_model
from spark_audit.audits.mia.verdicts import (
    Findings,
    base_read,
    covariate_table,
    findings,
    verdicts,
)
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE
from spark_audit.provenance import seed_for
from spark_audit.results import AuditResult, Contrast, Estimate, Finding, Row, side_of
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass
from spark_audit.sentences import p_value
from spark_audit.stats.power import NOT_DETECTED
from spark_audit.stats.roc import tpr_by_task

CURVE = 20
"""Points of a ROC curve in the report."""
OF_BASE = ("loss", "mink10", "zlib")
"""What the untrained model gives a text: had of any manifest, as a guess at it."""
UNSCORED = "its texts were not scored"


@dataclass(frozen=True, kw_only=True)
class Membership(Audit):
    """Whether scores separate trained rows from held-out rows.

    The evidence is one row per checkpoint and example, without text: the scores of the
    checkpoint and of the text alone. ``label`` is a number within the task, ``texts``
    the cross-validated score of the best guess without any audited checkpoint,
    ``blind`` that of the classifier of the guard, NaN if there is none. A checkpoint
    named ``base`` is the untrained model: all scores are checked on it, ``reference``
    is relative to it, and every checkpoint is compared with it. Without such a
    checkpoint, the reference scores of the manifest are used.
    """

    name = "mia"
    metrics = METRICS
    nothing = NO_ROWS
    unscored = UNSCORED
    over = "trained rows compared with held-out rows"
    chance = True
    public = ("mia_covariates",)
    covers = ("auc", "n")
    unit = "of AUC"
    frameworks = "AITG-MOD-04, AISVS v1.0-11.2.5"

    blind_permutations: Annotated[
        int, "permutations of the classifier that sees only the texts; 0: none"
    ] = 199
    scores_file: Annotated[
        str | None,
        "NAME=FILE,...: scores of other tools' attacks, by id; NAME=-FILE: the lower, "
        "the likelier a member",
    ] = None
    scores_rows: Annotated[
        Path | None,
        "rows of `manifest rows`, in whose order scores are that have no id",
    ] = None

    def __post_init__(self) -> None:
        if self.blind_permutations and self.blind_permutations < 20:
            raise InputError(
                f"{self.blind_permutations} permutations cannot give a p below 0.05",
                where="--blind-permutations",
                fix="give at least 20, or 0 for no blind classifier",
            )

    @property
    def inputs(self) -> list[Path]:
        rows = [] if self.scores_rows is None else [self.scores_rows]
        return [*rows, *(one.path for one in given_files(self.scores_file))]

    def check_names(self, names: Sequence[str]) -> None:
        rows = None if self.scores_rows is None else read_rows(self.scores_rows)
        for one in given_files(self.scores_file):
            read_scores(one, names, rows)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """All members and non-members."""
        sides = manifest.membership
        if not sides.members or not sides.non_members:
            return {}
        return {Pass(): sorted([*sides.members, *sides.non_members])}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        ids = self.plan(manifest).get(Pass(), [])
        scored = [name for name, passes in tables.items() if Pass() in passes]
        if not ids or not scored:
            return Evidence()
        borrowed = BASE not in scored
        if borrowed:
            scored, base = [BASE, *scored], reference_table(manifest, ids)
        else:
            base = tables[BASE][Pass()]
        texts = [scored_text(manifest.by_id[key]) for key in ids]
        units, alone, blind = without_model(
            manifest,
            texts,
            ids,
            seed=context.seed,
            permutations=self.blind_permutations,
        )
        attacks = given_files(self.scores_file)
        outside = outside_scores(attacks, manifest, ids, scored, self.scores_rows)

        def measured() -> Measured:
            unknown = np.full(len(units), np.nan)
            for name in scored:
                if name == BASE:
                    scores = membership_scores(base, manifest, ids)
                    beside = {"texts": guess(scores), "blind": blind}
                else:
                    table = tables[name][Pass()]
                    scores = membership_scores(table, manifest, ids, base=base)
                    beside = dict.fromkeys(BESIDE, unknown)
                yield name, {**scores, **beside, **outside[name]}

        def guess(scores: Mapping[str, np.ndarray]) -> np.ndarray:
            seed = seed_for(context.seed, "mia", "texts")
            own = {name: scores[name] for name in OF_BASE}
            return best_guess(texts, *labelled(units), own, seed=seed)

        lacking = [name for name in tables if name not in scored]
        told = {"alone": alone, "borrowed": borrowed, "unscored": lacking}
        if attacks:
            told["outside"] = list(dict.fromkeys(one.name for one in attacks))
        return Evidence.of(units, measured(), told)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Rows, contrasts, guards and verdict.

        ``auc`` and the rates are taken by task and averaged over the tasks with
        at least 20 members and 20 non-members.
        """
        names = list(evidence.checkpoints)
        beside = {of: evidence.row(BASE, of) for of in BESIDE}
        outside = evidence.facts.get("outside", [])
        every = (*ATTACKS, *outside)
        scores = {
            name: {**{of: evidence.row(name, of) for of in every}, **beside}
            for name in names
        }
        seed = partial(seed_for, context.seed, "mia")
        known = Known(evidence.units, scores, context, FPRS, seed("chance"))
        groups = {
            group: Group(known, group, rows, seed(group))
            for group, rows in rows_by_group(evidence.units).items()
        }
        pooled = groups["pooled"]
        judged = findings(pooled, evidence.facts["alone"], seed=context.seed)
        rows = [
            row
            for group in groups.values()
            for name in names
            for attack in (*(every if group is pooled else DECLARED), "blind")
            for row in rows_of(group, name, attack, judged)
        ]
        contrasts = [
            row
            for group in groups.values()
            for name, other in with_base(names, context.baselines)
            for attack in DECLARED
            if other != BASE or attack not in RELATIVE
            for row in contrasts_of(group, name, other, attack, judged)
        ]
        told, above = verdicts(names, rows, contrasts, judged)
        others = judged_scores(names, outside, judged)
        lost: dict[str, Any] = {"says": "mia.missing", "reason": UNSCORED}
        absent = [
            Finding.not_tested("mia", checkpoint=name, **lost)
            for name in evidence.facts["unscored"]
        ]
        borrowed = []
        if evidence.facts["borrowed"]:
            says = "mia.untrained_borrowed"
            borrowed = [guard("untrained model", says, {}, checkpoint=BASE)]
        return AuditResult(
            rows=rows,
            contrasts=contrasts,
            guards=[*borrowed, *base_read(pooled), *judged.guards],
            findings=[*told, *absent],
            settings={"replicates": min(context.replicates, MOST_REPLICATES)},
            tables={
                "mia_covariates": [*covariate_table(evidence.units.iloc[pooled.rows])],
                "mia_roc": [*curve_table(pooled, names)],
                **({"mia_texts": above} if above else {}),
                **({"mia_outside": others} if others else {}),
            },
        )


def rows_of(group: Group, name: str, attack: str, judged: Findings) -> Iterator[Row]:
    """AUC and rates of one score, with what the guards say of it."""
    columns = {"audit": "mia", "checkpoint": name, "group": group.name, "of": attack}
    for metric in ("auc", *FPRS):
        estimate = group.estimate(name, attack, metric)
        null: dict[str, float | None] = {}
        if metric == "auc" or estimate.value is not None:
            null = group.chance(name, attack, metric)
        if estimate.value is not None and attack == "blind":
            pooled = metric == "auc" and group.name == "pooled"
            estimate = _blind(estimate, judged.alone if pooled else {})
            if pooled:
                ends = ("null", "null_low", "null_high")
                null = {name: judged.alone[f"blind_{name}"] for name in ends}
        elif estimate.value is not None:
            estimate = _voided(estimate, judged, attack)
            if metric == "auc":
                estimate = _noted(estimate, group)
        yield Row.of_estimate(estimate, metric=metric, **columns, **null)


def _noted(estimate: Estimate, group: Group) -> Estimate:
    """Over which tasks the mean is, and whether chance is excluded."""
    if group.name == "pooled":
        count = group.known.facts["task"].iloc[group.rows].nunique()
        estimate = estimate.noting(
            f"mean over {count} tasks" if count > 1 else "1 task"
        )
    within = estimate.status == "ok" and side_of(estimate, 0.5) == 0
    return estimate.noting(NOT_DETECTED) if within and estimate.mde else estimate


def _voided(
    estimate: Estimate, judged: Findings, attack: str, *, change: bool = False
) -> Estimate:
    """The estimate with the status and notes that the guards give it."""
    status, reason = judged.of(attack, change=change)
    if status == "ok":
        status = estimate.status
    note = "; ".join(text for text in (reason, estimate.note) if text)
    return replace(estimate, status=status, note=note)


def _blind(estimate: Estimate, alone: Mapping[str, float]) -> Estimate:
    """The blind classifier's figure, where its permutations are known beside them.

    Without interval: those of a cross-validated AUC that take its scores as given are
    too narrow.
    """
    bare = Estimate(estimate.value, n=estimate.n, clusters=estimate.clusters)
    bare = replace(bare, status=estimate.status)
    bare = bare.noting("cross-validated, without a model")
    if not alone:
        return bare
    p, drawn = p_value(alone["blind_p"]), alone["blind_permutations"]
    return bare.noting(f"permutation {p}, {drawn} permutations")


def contrasts_of(
    group: Group, name: str, other: str, attack: str, judged: Findings
) -> Iterator[Contrast]:
    """AUC and rates of one score minus those of another checkpoint."""
    columns = {"audit": "mia", "checkpoint": name, "group": group.name, "of": attack}
    columns |= {"baseline": other}
    for metric, estimate, p in group.differences((name, attack), (other, attack)):
        if estimate.value is not None:
            estimate = _voided(estimate, judged, attack, change=True)
        figure: dict[str, Any] = {"metric": metric, "p": p, "null": 0.0}
        yield Contrast.of_estimate(estimate, **columns, **figure)


def curve_table(pooled: Group, names: list[str]) -> Iterator[dict[str, Any]]:
    """Points of the ROC curves, with the band of a score that knows nothing.

    Budgets of false positives run from what one non-member of the smallest task
    allows to 1; a rate is the mean over tasks, as in the rows.
    """
    for name, attack in product(names, DECLARED):
        if pooled.usable(name, attack):
            continue
        drawn, (scores,) = pooled.drawn((name, attack))
        held = [len(others) for _, others in drawn.design.tasks]
        if not held or min(held) < 2:
            continue
        # A hair above, or the smallest task's first false positive is lost.
        for fpr in np.geomspace(1 / min(held) * (1 + 1e-9), 0.99, CURVE).tolist():
            if (band := pooled.band(drawn, fpr)) is not None:
                rates = [tpr.value for tpr in tpr_by_task(drawn.design, scores, fpr)]
                point = {"checkpoint": name, "of": attack, "fpr": fpr}
                ends = {"chance_low": band.low, "chance_high": band.high}
                yield {**point, "tpr": float(np.mean(rates)), **ends}
