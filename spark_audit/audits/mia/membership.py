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
from spark_audit.audits.mia.texts import best_guess, without_model
from spark_audit.audits.mia.verdicts import (
    Findings,
    base_read,
    covariate_table,
    findings,
    verdicts,
)
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE, listed
from spark_audit.provenance import seed_for
from spark_audit.results import AuditResult, Contrast, Estimate, Finding, Row, side_of
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass
from spark_audit.sentences import p_value
from spark_audit.stats.power import NOT_DETECTED
from spark_audit.stats.roc import Design

CURVE = 20
"""Points of a ROC curve in the report."""
REFERENCE = "--reference"
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
    checkpoint, the reference scores of the manifest are used. ``rmia`` uses the mean
    over it and the checkpoints of ``reference``.
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
    reference: Annotated[
        str | None,
        "NAME,NAME,...: further checkpoints that were trained on none of the rows",
    ] = None
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
        if names:
            given = listed(self.reference, names, where=REFERENCE)
            if given and set(names) - {BASE} == set(given) and len(given) == 1:
                raise InputError(
                    f"{given[0]!r} is the only checkpoint and not its own reference",
                    where=REFERENCE,
                    fix="give also a checkpoint that was trained on none of the rows",
                )

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
        named = listed(self.reference, scored, where=REFERENCE)
        others = {name: tables[name][Pass()] for name in named if name != BASE}
        texts = [scored_text(manifest.by_id[key]) for key in ids]
        units, alone, blind = without_model(
            manifest,
            texts,
            ids,
            seed=context.seed,
            permutations=self.blind_permutations,
        )

        attacks = given_files(self.scores_file)
        rows = self.scores_rows
        outside = outside_scores(attacks, manifest, ids, scored, rows)

        def measured() -> Measured:
            beside = dict.fromkeys(BESIDE, np.full(len(units), np.nan))
            for name in scored:
                if name == BASE:
                    own = membership_scores(base, manifest, ids)
                    guess = best_guess(
                        texts,
                        units["label"].to_numpy(np.int64),
                        {name: own[name] for name in OF_BASE},
                        Design.of(units["member"], units["cluster"], units["task"]),
                        seed=seed_for(context.seed, "mia", "texts"),
                    )
                    told_apart = {"texts": guess, "blind": blind}
                    yield name, {**own, **told_apart, **outside[name]}
                    continue
                references = [one for key, one in others.items() if key != name]
                scores = membership_scores(
                    tables[name][Pass()],
                    manifest,
                    ids,
                    base=base,
                    references=references,
                )
                yield name, {**scores, **beside, **outside[name]}

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
        pooled, base = groups["pooled"], None
        used = evidence.units.iloc[pooled.rows]
        if BASE in names:
            base = {attack: pooled.auc(BASE, attack) for attack in DECLARED}
        judged = findings(used, evidence.facts["alone"], base, seed=context.seed)
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
        told, above = verdicts(names, rows, contrasts, pooled, judged)
        others = judged_scores(pooled, names, outside, judged)
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
                "mia_covariates": covariate_table(used),
                "mia_roc": curve_table(pooled, names),
                **({"mia_texts": above} if above else {}),
                **({"mia_outside": others} if others else {}),
            },
        )


def rows_of(group: Group, name: str, attack: str, judged: Findings) -> Iterator[Row]:
    """AUC and rates of one score, with what the guards say of it."""
    columns = {"audit": "mia", "checkpoint": name, "group": group.name, "of": attack}
    for metric in ("auc", *FPRS):
        null: dict[str, float | None] = {"null": 0.5 if metric == "auc" else None}
        if metric == "auc":
            estimate = group.auc(name, attack)
        else:
            estimate = group.tpr(name, attack, metric)
            if estimate.value is not None:
                null |= group.chance(name, attack, metric)
        if attack == "blind":
            estimate, null = _blind(group, estimate, null, metric, judged.alone)
        else:
            estimate = _voided(estimate, judged, attack)
            if metric == "auc":
                estimate = _noted(estimate, group)
        yield Row.of_estimate(estimate, metric=metric, **columns, **null)


def _noted(estimate: Estimate, group: Group) -> Estimate:
    """Over which tasks the mean is, and whether chance is excluded."""
    if estimate.value is None:
        return estimate
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
    if estimate.value is None:
        return estimate
    if status == "ok":
        status = estimate.status
    note = "; ".join(text for text in (reason, estimate.note) if text)
    return replace(estimate, status=status, note=note)


def _blind(
    group: Group,
    estimate: Estimate,
    null: dict[str, float | None],
    metric: str,
    alone: Mapping[str, float],
) -> tuple[Estimate, dict[str, float | None]]:
    """The blind classifier's figure, compared with permutations, without interval.

    Intervals of a cross-validated AUC that take its scores as given are too narrow.
    """
    if estimate.value is None:
        return estimate, null
    bare = Estimate(estimate.value, n=estimate.n, clusters=estimate.clusters)
    bare = replace(bare, status=estimate.status)
    bare = bare.noting("cross-validated, without a model")
    if metric != "auc" or group.name != "pooled":
        return bare, null
    band: dict[str, float | None] = {
        name: alone[f"blind_{name}"] for name in ("null", "null_low", "null_high")
    }
    p, drawn = p_value(alone["blind_p"]), alone["blind_permutations"]
    return bare.noting(f"permutation {p}, {drawn} permutations"), band


def contrasts_of(
    group: Group, name: str, other: str, attack: str, judged: Findings
) -> Iterator[Contrast]:
    """AUC and rates of one score minus those of another checkpoint."""
    columns = {"audit": "mia", "checkpoint": name, "group": group.name, "of": attack}
    for metric, estimate, p in group.differences((name, attack), (other, attack)):
        shown = _voided(estimate, judged, attack, change=True)
        figure: dict[str, Any] = {"metric": metric, "p": p, "null": 0.0}
        yield Contrast.of_estimate(shown, baseline=other, **columns, **figure)


def curve_table(pooled: Group, names: list[str]) -> list[dict[str, Any]]:
    """Points of the ROC curves, with the band of a score that knows nothing.

    Budgets of false positives run from what one non-member of the smallest task
    allows to 1; a rate is the mean over tasks, as in the rows.
    """
    found = []
    for name in names:
        for attack in DECLARED:
            if pooled.usable(name, attack):
                continue
            drawn, _ = pooled.drawn((name, attack))
            held = [len(others) for _, others in drawn.design.tasks]
            if not held or min(held) < 2:
                continue
            # A hair above, or the smallest task's first false positive is lost.
            for fpr in np.geomspace(1 / min(held) * (1 + 1e-9), 0.99, CURVE):
                band = pooled.band(drawn, float(fpr))
                rate = pooled.rate(name, attack, drawn, float(fpr))
                if band is None or rate is None:
                    continue
                point = {"checkpoint": name, "of": attack, "fpr": float(fpr)}
                ends = {"chance_low": band.low, "chance_high": band.high}
                found.append({**point, "tpr": rate, **ends})
    return found
