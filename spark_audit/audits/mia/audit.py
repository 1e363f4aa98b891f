"""The audit of membership inference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from spark_audit.audits.base import (
    Audit,
    Context,
    LatexColumn,
    Plan,
    Tables,
    with_base,
)
from spark_audit.audits.claims import carriers
from spark_audit.audits.mia import estimates, score_tables
from spark_audit.audits.mia.best_guess import best_guess
from spark_audit.audits.mia.guards import Findings, Record, covariate_table
from spark_audit.audits.mia.peer_rows import read_rows
from spark_audit.audits.mia.referee import given_files, outside_scores, read_scores
from spark_audit.audits.mia.texts import labelled, without_model
from spark_audit.audits.mia.verdicts import findings, verdicts
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE
from spark_audit.provenance import seed_for
from spark_audit.results import (
    AuditResult,
    Contrast,
    Finding,
    Row,
)
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.findings import Fact
from spark_audit.scoring.table import Pass
from spark_audit.sentences import p_value, render
from spark_audit.stats.bootstrap import holm
from spark_audit.stats.clustered_tpr import tpr_by_task
from spark_audit.stats.estimate import Estimate, side_of
from spark_audit.stats.power import NOT_DETECTED

CURVE = 20
"""Points of a ROC curve in the report."""

OF_BASE = ("loss", "mink10", "zlib")
"""What the untrained model gives a text: had of any manifest, as a guess at it."""

TABULATED_SCORES = (
    "loss",
    "response",
    "mink10",
    "minkpp10",
    "zlib",
    "reference",
    "wbc",
    "combined",
    "blind",
)
"""Scores that a table of LaTeX shows, in the paper's order."""

PAPER_TPR_SCORES = {"response", "reference"}
"""Scores whose TPR the paper's table shows, where no claim rests on another."""

TEXTS_NOT_SCORED = "its texts were not scored"


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
    metrics = score_tables.MEMBERSHIP_METRICS
    nothing = score_tables.NO_MEMBERS
    unscored = TEXTS_NOT_SCORED
    over = "trained rows compared with held-out rows"
    chance = True
    covers = ("auc", "n")
    sides = ("members", "others")
    strongest_claim = "membership"
    names_rows_by = "reference"
    table_rules = {"mia_roc": "dropped"}
    unit = "of AUC"

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

    @classmethod
    def compared_with(cls, finding: Finding) -> str:
        """Return ``chance`` or ``best_guess``: what the AUC is claimed beyond."""
        if "beyond" not in finding.facts:
            return ""
        return "chance" if finding.facts.get("is_bar_chance") else "best_guess"

    @classmethod
    def latex_columns(
        cls, rows: Sequence[Row], findings: Sequence[Finding], *, paper: bool
    ) -> Sequence[LatexColumn]:
        """Return the AUC of each score, and the TPR of those that claims rest on."""
        scored = {row.of for row in rows if row.audit == cls.name}
        claimed = {*carriers(findings, cls.name).values()} or PAPER_TPR_SCORES
        shown = [("auc", "AUC ≈0.5", scored), ("tpr_at_fpr_5", "TPR@5% FPR ↓", claimed)]

        columns = []
        for metric, words, scores_shown in shown:
            for score in TABULATED_SCORES:
                if score in scores_shown:
                    header = f"{render(f'latex.score_{score}')} {words}"
                    columns.append(LatexColumn(header, metric, score, "rows"))
        return columns

    def __post_init__(self) -> None:
        if self.blind_permutations and self.blind_permutations < 20:
            what = f"{self.blind_permutations} permutations cannot give a p below 0.05"
            fix = "give at least 20, or 0 for no blind classifier"
            raise InputError(what, where="--blind-permutations", fix=fix)

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
        if borrowed := BASE not in scored:
            scored, base = [BASE, *scored], score_tables.reference_table(manifest, ids)
        else:
            base = tables[BASE][Pass()]
        texts = [score_tables.scored_text(manifest.by_id[key]) for key in ids]
        units, alone, blind = without_model(
            manifest,
            texts,
            ids,
            seed=context.seed,
            permutations=self.blind_permutations,
        )
        attacks = given_files(self.scores_file)
        outside = outside_scores(attacks, manifest, ids, scored, self.scores_rows)
        of_base = score_tables.membership_scores(base, manifest, ids)
        read = {of: of_base[of] for of in OF_BASE}
        seed = seed_for(context.seed, "mia", "texts")
        guess = best_guess(texts, *labelled(units), read, seed=seed)

        def measured() -> Measured:
            unknown = dict.fromkeys(
                score_tables.BASELINE_VARIANTS, np.full(len(units), np.nan)
            )
            for name in scored:
                if name == BASE:
                    own = {**of_base, "texts": guess, "blind": blind}
                else:
                    table = tables[name][Pass()]
                    own = score_tables.membership_scores(
                        table, manifest, ids, base=base
                    )
                    own |= unknown
                yield name, {**own, **outside[name]}

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
        names, outside = list(evidence.checkpoints), evidence.facts.get("outside", [])
        every = (*score_tables.ALL_SCORES, *outside)
        values = {
            name: {of: evidence.row(name, of) for of in every}
            | {of: evidence.row(BASE, of) for of in score_tables.BASELINE_VARIANTS}
            for name in names
        }
        seed = partial(seed_for, context.seed, "mia")
        known = (
            evidence.units,
            values,
            context,
            score_tables.MEMBERSHIP_FPRS,
            seed("chance"),
        )
        groups = {
            group: estimates.MembershipGroup(*known, group, rows, seed(group))
            for group, rows in estimates.rows_by_group(evidence.units).items()
        }
        pooled = groups["pooled"]
        judged = findings(pooled, evidence.facts, seed=context.seed)
        rows = [
            row
            for group in groups.values()
            for name in names
            for attack in (
                *(every if group is pooled else score_tables.DECLARED_SCORES),
                "blind",
            )
            for row in rows_of(group, name, attack, judged)
        ]
        contrasts = [
            row
            for group in groups.values()
            for name, other in with_base(names, context.baselines)
            for attack in score_tables.DECLARED_SCORES
            if other != BASE or attack not in score_tables.RELATIVE_SCORES
            for row in contrasts_of(group, name, other, attack, judged)
        ]
        told, above = verdicts(names, [*rows, *contrasts], judged)
        for name in evidence.facts["unscored"]:
            missing = Finding.not_tested(
                "mia", "mia.missing", checkpoint=name, reason=TEXTS_NOT_SCORED
            )
            told.append(missing)
        tables = {
            "mia_covariates": [*covariate_table(judged.facts)],
            "mia_roc": [*curve_table(pooled, names)],
            "mia_texts": above,
            "mia_outside": judged_scores(names, outside, judged),
        }
        return AuditResult(
            rows=rows,
            contrasts=contrasts,
            guards=judged.guards,
            findings=told,
            settings={"replicates": min(context.replicates, estimates.MOST_REPLICATES)},
            tables={name: table for name, table in tables.items() if table},
        )


def rows_of(
    group: estimates.MembershipGroup, name: str, attack: str, judged: Findings
) -> Iterator[Row]:
    """AUC and rates of one score, with what the guards say of it."""
    pooled = group.name == "pooled"
    for metric in ("auc", *score_tables.MEMBERSHIP_FPRS):
        estimate, null = group.estimate(name, attack, metric), dict[str, float]()
        if estimate.value is not None and metric != "auc":
            null = group.chance(name, attack, score_tables.MEMBERSHIP_FPRS[metric])
        if attack == "blind" and estimate.value is not None:
            # Intervals that take cross-validated scores as given are too narrow.
            without_interval = Estimate(
                estimate.value,
                status=estimate.status,
                n=estimate.n,
                clusters=estimate.clusters,
            )
            estimate = without_interval.noting("cross-validated, without a model")
            if pooled and metric == "auc":
                told = judged.alone
                p, drawn = p_value(told["blind_p"]), told["blind_permutations"]
                estimate = estimate.noting(f"permutation {p}, {drawn} permutations")
                null = {end: told[f"blind_{end}"] for end in estimates.NULL}
        elif estimate.value is not None:
            estimate = _voided(estimate, judged, attack)
            if metric == "auc" and pooled:
                count = judged.facts["task"].nunique()
                over = f"mean over {count} tasks" if count > 1 else "1 task"
                estimate = estimate.noting(over)
            within = estimate.status == "ok" and side_of(estimate, 0.5) == 0
            if metric == "auc" and within and estimate.mde:
                estimate = estimate.noting(NOT_DETECTED)
        yield Membership.row(
            estimate,
            name,
            metric,
            attack,
            group=group.name,
            null=null.get("null", Membership.metric(metric).null),
            null_low=null.get("null_low"),
            null_high=null.get("null_high"),
        )


def _voided(
    estimate: Estimate, judged: Findings, attack: str, *, change: bool = False
) -> Estimate:
    """The estimate with the status and notes that the guards give it."""
    status, reason = judged.of(attack, change=change)
    note = "; ".join(filter(None, (reason, estimate.note)))
    status = estimate.status if status == "ok" else status
    return replace(estimate, status=status, note=note)


def contrasts_of(
    group: estimates.MembershipGroup,
    name: str,
    other: str,
    attack: str,
    judged: Findings,
) -> Iterator[Contrast]:
    """AUC and rates of one score minus those of another checkpoint."""
    for metric, estimate, p in group.differences((name, attack), (other, attack)):
        if estimate.value is not None:
            estimate = _voided(estimate, judged, attack, change=True)
        yield Contrast.of_estimate(
            estimate,
            audit="mia",
            checkpoint=name,
            baseline=other,
            metric=metric,
            of=attack,
            group=group.name,
            null=0.0,
            p=p,
        )


def curve_table(
    pooled: estimates.MembershipGroup, names: list[str]
) -> Iterator[dict[str, Any]]:
    """Points of the ROC curves, with the band of a score that knows nothing.

    Budgets of false positives run from what one non-member of the smallest task
    allows to 1; a rate is the mean over tasks, as in the rows.
    """
    for name, attack in product(names, score_tables.DECLARED_SCORES):
        if pooled.usable(name, attack):
            continue
        drawn, (values,) = pooled.drawn((name, attack))
        fewest = min((len(others) for _, others in drawn.design.tasks), default=0)
        if fewest < 2:
            continue
        # A hair above, or the smallest task's first false positive is lost.
        for fpr in np.geomspace(1 / fewest * (1 + 1e-9), 0.99, CURVE).tolist():
            if band := pooled.chance(name, attack, fpr):
                rates = [tpr.value for tpr in tpr_by_task(drawn.design, values, fpr)]
                point = {"checkpoint": name, "of": attack, "fpr": fpr}
                point["tpr"] = float(np.mean(rates))
                yield point | {
                    f"chance_{k}": band[f"null_{k}"] for k in ("low", "high")
                }


def judged_scores(
    names: Sequence[str], attacks: Sequence[str], judged: Findings
) -> list[Record]:
    """What each attack shows of each checkpoint, by the guards of our own scores.

    It detects where it scores trained rows higher than the base did (or, without scores
    of the base, than chance), and exceeds the best guess from the texts alone; p values
    are corrected (Holm) over attacks and checkpoints. Of a score that is lower of
    trained rows a warning asks whether it is the wrong way round.
    """
    pooled, records = judged.pooled, list[Record]()
    for name, attack in product((one for one in names if one != BASE), attacks):
        estimate = pooled.estimate(name, attack)
        above = pooled.above_texts(name, attack, told=judged.texts)
        record = {"checkpoint": name, "of": attack, "rows": estimate.n}
        records.append(record)
        if estimate.value is None or above is None:
            says = estimate.note or "the best guess was not tested beside it"
            record |= {"score": estimate.value, "says": f"not estimable: {says}"}
            continue
        moved, p = estimate.value - 0.5, pooled.p(name, attack)
        is_lower = side_of(estimate, 0.5) == -1
        if not pooled.usable(BASE, attack):
            (_, change, p), *_ = pooled.differences((name, attack), (BASE, attack))
            moved = change.value or 0.0
            is_lower &= side_of(change) == -1
        if is_lower:
            auc = Membership.row(estimate, name, "auc", attack)
            facts: dict[str, Fact] = {"auc": auc, "attack": attack}
            judged.add(
                "scores of other tools",
                "outside",
                facts,
                further=["outside_reversed"],
                checkpoint=name,
            )
            record["note"] = render("mia.reversed", attack=attack)
        rising = 1.0 if p is None or moved <= 0 else p
        says = "confounded" if above.told and rising < 0.05 else "not shown"
        record |= {**above.record, "p": max(rising, above.p)}
        record |= {"status": judged.of(attack)[0], "says": says}
    tested = [one for one in records if "p" in one]
    ps = holm([one["p"] for one in tested]).tolist()
    for one, p in zip(tested, ps, strict=True):
        one["p_adjusted"] = p
        if p < 0.05:
            one["says"] = "detected" if one["status"] == "ok" else one["status"]
    return records
