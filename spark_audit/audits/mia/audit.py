"""The audit of membership inference: whether scores separate members from non-members.

An example is a row of the manifest, a *member* if it was trained on; ``Row`` and
``rows`` are figures of the report. ``name`` is a checkpoint, and ``attack`` the name of
one of its scores, which is the variant of a row. A score is higher for
likelier members.

What goes where:

- a score: see ``MEMBERSHIP_SCORES`` in :mod:`spark_audit.audits.mia.scores`; a claim
  rests on it only if ``DECLARED_SCORES`` in
  :mod:`spark_audit.audits.mia.score_tables` has it;
- a budget of false positives: ``MEMBERSHIP_FPRS`` there;
- a check of the examples: a function in :mod:`spark_audit.audits.mia.guards`;
- a table of the report: ``tables`` in :meth:`Membership.conclude`, and its rule of
  disclosure in ``table_rules``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from spark_audit.audits.groups.column import (
    check_groups,
    files_of_groups,
    group_column,
    groups_of_units,
    with_column,
)
from spark_audit.audits.groups.field import ByOption
from spark_audit.audits.mia import estimates, score_tables
from spark_audit.audits.mia.above_texts import CHANCE_AUC
from spark_audit.audits.mia.best_guess import best_guess
from spark_audit.audits.mia.by_group import GROUP_SCORE, RowsByGroup
from spark_audit.audits.mia.covariates import covariate_table
from spark_audit.audits.mia.curve import curve_table
from spark_audit.audits.mia.guards import ScoreGuards, score_guards
from spark_audit.audits.mia.judged_scores import judged_scores
from spark_audit.audits.mia.outside_scores import (
    given_files,
    outside_scores,
    read_scores,
)
from spark_audit.audits.mia.peer_rows import read_rows
from spark_audit.audits.mia.planned import planned_effects
from spark_audit.audits.mia.texts import labels_and_sides, without_model
from spark_audit.audits.mia.verdicts import verdicts
from spark_audit.audits.planned_effects import AuditSizes, PlannedEffect
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
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass
from spark_audit.sentences import p_value, render
from spark_audit.stats.estimate import Estimate, side_of
from spark_audit.stats.power import NOT_DETECTED

MIN_PERMUTATIONS = 20
"""With fewer permutations no p can be below 0.05."""

SCORES_OF_BASE_GUESS = ("loss", "mink10", "zlib")
"""Scores of the untrained model that the best guess reads. They need only its NLL,
which any manifest has.
"""

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

    The evidence is one line per checkpoint and example, without text: the scores of the
    checkpoint and of the text alone. ``label`` is a number within the task. ``texts``
    is the cross-validated score of the best guess without any audited checkpoint, which
    also uses the untrained model's scores. ``blind`` is the score of the guard's
    classifier, which reads only the texts. A missing score is NaN. A checkpoint named
    ``base`` is the untrained model: all scores are checked on it, ``reference`` is
    relative to it, and every checkpoint is compared with it. Without such a checkpoint,
    the reference scores of the manifest are used.

    For the class attributes see :class:`~spark_audit.audits.base.Audit`.
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
    naming_score = "reference"
    group_rule = ("membership", "auc", GROUP_SCORE)
    counts_in_groups = "rows"
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
    by: ByOption = None

    @classmethod
    def compared_with(cls, finding: Finding) -> str:
        """Return the bar that the AUC exceeds: ``chance`` or ``best_guess``."""
        if "beyond" not in finding.facts:
            return ""
        return "chance" if finding.facts.get("is_bar_chance") else "best_guess"

    @classmethod
    def latex_columns(
        cls, rows: Sequence[Row], findings: Sequence[Finding], *, paper: bool
    ) -> Sequence[LatexColumn]:
        """Return the AUC of each score, and the TPR of those that claims rest on."""
        attacks_with_rows = {row.variant for row in rows if row.audit == cls.name}
        attacks_of_claims = {*carriers(findings, cls.name).values()}
        figures = [
            ("auc", "AUC ≈0.5", attacks_with_rows),
            ("tpr_at_fpr_5", "TPR@5% FPR ↓", attacks_of_claims or PAPER_TPR_SCORES),
        ]

        columns = []
        for metric, metric_words, attacks_shown in figures:
            for attack in TABULATED_SCORES:
                if attack not in attacks_shown:
                    continue
                attack_words = render(f"latex.score_{attack}")
                column = LatexColumn(
                    header=f"{attack_words} {metric_words}",
                    metric=metric,
                    variant=attack,
                    counted="rows",
                )
                columns.append(column)
        return columns

    def __post_init__(self) -> None:
        super().__post_init__()
        files_of_groups(self.by)
        if self.blind_permutations and self.blind_permutations < MIN_PERMUTATIONS:
            raise InputError(
                f"{self.blind_permutations} permutations cannot give a p below 0.05",
                where="--blind-permutations",
                fix=f"give at least {MIN_PERMUTATIONS}, or 0 for no blind classifier",
            )

    @property
    def inputs(self) -> list[Path]:
        paths = [file.path for file in given_files(self.scores_file)]
        paths += files_of_groups(self.by)
        if self.scores_rows is not None:
            paths.insert(0, self.scores_rows)
        return paths

    @classmethod
    def planned_effects(
        cls, sizes: AuditSizes, *, significance: float
    ) -> Sequence[PlannedEffect]:
        """Return what its tests would detect, from ``planned.py``."""
        return planned_effects(sizes, significance=significance)

    def check_names(self, names: Sequence[str]) -> None:
        # Read the files only to refuse faulty ones before anything is scored.
        peer_rows = None
        if self.scores_rows is not None:
            peer_rows = read_rows(self.scores_rows)
        for file in given_files(self.scores_file):
            read_scores(file, names, peer_rows)

    def check_manifest(self, manifest: Manifest) -> None:
        """Refuse a field that cannot group the rows, before any scoring."""
        check_groups(self.by, manifest)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return all members and non-members, for the plain pass."""
        return score_tables.plan_of_rows(manifest)

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return the scores of every member and non-member by each checkpoint.

        Facts of the evidence: ``alone``, figures of the texts; ``borrowed``, whether
        the untrained model's scores are those of the manifest; ``unscored``, the
        checkpoints without scores; ``outside``, the names of other tools' attacks. The
        column ``by FIELD`` has the group of each example, where ``by`` names a field.
        """
        ids = self.plan(manifest).get(Pass(), [])
        names = [name for name, passes in tables.items() if Pass() in passes]
        if not ids or not names:
            return Evidence()

        # Without scores of the base, use those of the manifest.
        is_borrowed = BASE not in names
        if is_borrowed:
            names.insert(0, BASE)
            base_table = score_tables.reference_table(manifest, ids)
        else:
            base_table = tables[BASE][Pass()]

        # The examples, and what their texts alone reveal.
        texts = [score_tables.scored_text(manifest.by_id[key]) for key in ids]
        texts_alone = without_model(
            manifest,
            texts,
            ids,
            seed=context.seed,
            permutations=self.blind_permutations,
        )

        # Scores of other tools' attacks, matched to the same examples.
        files = given_files(self.scores_file)
        scores_by_tools = outside_scores(files, manifest, ids, names, self.scores_rows)

        # Scores of the base, and the best guess from texts and these.
        scores_of_base = score_tables.membership_scores(base_table, manifest, ids)
        label, sides = labels_and_sides(texts_alone.units)
        guess = best_guess(
            texts,
            label,
            sides,
            {attack: scores_of_base[attack] for attack in SCORES_OF_BASE_GUESS},
            seed=seed_for(context.seed, "mia", "texts"),
        )  # (examples,)

        def measured() -> Measured:
            """Yield the scores of each checkpoint, shape ``(examples,)`` each."""
            # The scores of the texts are stored once, with the base.
            scores_of_texts = {"texts": guess, "blind": texts_alone.scores}
            no_score = np.full(len(ids), np.nan)
            for name in names:
                if name == BASE:
                    scores = {**scores_of_base, **scores_of_texts}
                else:
                    scores = score_tables.membership_scores(
                        tables[name][Pass()], manifest, ids, base=base_table
                    )
                    scores |= dict.fromkeys(scores_of_texts, no_score)
                yield name, {**scores, **scores_by_tools[name]}

        facts: dict[str, Any] = {
            "alone": texts_alone.figures,
            "borrowed": is_borrowed,
            "unscored": [name for name in tables if name not in names],
        }
        if files:
            facts["outside"] = list(dict.fromkeys(file.name for file in files))
        groups = group_column(self.by, manifest, ids)
        if groups is not None:
            facts |= groups.facts
        units = with_column(texts_alone.units, groups)
        return Evidence.of(units, measured(), facts)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return rows, contrasts, guards and verdict.

        ``auc`` and the rates are taken by task and averaged over the tasks with
        at least ``MIN_MEMBERS_FOR_AUC`` members and as many non-members.
        """
        names = list(evidence.checkpoints)
        attacks_of_tools = evidence.facts.get("outside", [])
        all_attacks = [*score_tables.ALL_SCORES, *attacks_of_tools]
        groups = _groups(evidence, all_attacks, context)
        pooled = groups["pooled"]
        guards = score_guards(pooled, evidence.facts, seed=context.seed)

        rows: list[Row] = []
        contrasts: list[Contrast] = []
        for group in groups.values():
            # Tasks and doses have only declared scores, since all scores would make the
            # table three times as long.
            attacks = list(score_tables.DECLARED_SCORES)
            if group is pooled:
                attacks = all_attacks
            for name, attack in product(names, [*attacks, "blind"]):
                rows += rows_of(group, name, attack, guards)
            for name, baseline in with_base(names, context.baselines):
                contrasts += _contrasts_of_pair(group, name, baseline, guards)

        # Contrasts last: the verdict takes a change in place of an AUC.
        findings, table_of_texts = verdicts(names, [*rows, *contrasts], guards)
        unit_groups = groups_of_units(evidence)
        if unit_groups is not None:
            row_groups = RowsByGroup.of(
                pooled,
                guards,
                unit_groups,
                # The AUC comes before the rates.
                lambda group, name: next(rows_of(group, name, GROUP_SCORE, guards)),
            )
            for name in names:
                group_rows, group_findings = row_groups.figures(name)
                rows += group_rows
                findings += group_findings

        # Checkpoints without scores have no verdict, and the report says so.
        for name in evidence.facts["unscored"]:
            not_scored = Finding.not_tested(
                "mia", "mia.missing", checkpoint=name, reason=TEXTS_NOT_SCORED
            )
            findings.append(not_scored)

        tables: dict[str, list[TableRecord]] = {
            "mia_covariates": list(covariate_table(guards.judged_examples)),
            "mia_roc": list(curve_table(pooled, names)),
            "mia_texts": table_of_texts,
            "mia_outside": judged_scores(names, attacks_of_tools, guards),
        }
        return AuditResult(
            results=rows,
            contrasts=contrasts,
            guards=guards.guards,
            findings=findings,
            settings={"replicates": min(context.replicates, estimates.MOST_REPLICATES)},
            tables={title: table for title, table in tables.items() if table},
        )


def _groups(
    evidence: Evidence, attacks: Sequence[str], context: Context
) -> dict[str, estimates.MembershipGroup]:
    """Return the examples of each group with their scores, ``pooled`` first.

    The scores of the texts are the same for every checkpoint; the evidence holds them
    once, with the untrained model.

    Returns
    -------
    Name of the group (``pooled``, ``task:NAME`` or ``dose:RANGE``) -> its examples.
    """
    scores_of_texts = {
        attack: evidence.row(BASE, attack) for attack in score_tables.BASELINE_VARIANTS
    }
    scores: dict[str, dict[str, np.ndarray]] = {}
    for name in evidence.checkpoints:
        scores[name] = {attack: evidence.row(name, attack) for attack in attacks}
        scores[name] |= scores_of_texts

    groups: dict[str, estimates.MembershipGroup] = {}
    for title, example_indices in estimates.indices_by_group(evidence.units).items():
        groups[title] = estimates.MembershipGroup(
            facts=evidence.units,
            scores=scores,
            context=context,
            fprs=score_tables.MEMBERSHIP_FPRS,
            chance_seed=seed_for(context.seed, "mia", "chance"),
            name=title,
            example_indices=example_indices,
            seed=seed_for(context.seed, "mia", title),
        )
    return groups


def rows_of(
    group: estimates.MembershipGroup, name: str, attack: str, guards: ScoreGuards
) -> Iterator[Row]:
    """Yield AUC and rates of one score, with statuses and notes of the guards."""
    for metric in ("auc", *score_tables.MEMBERSHIP_FPRS):
        estimate = group.estimate(name, attack, metric)
        null_columns: dict[str, float] = {}
        if estimate.value is not None:
            null_columns = _null_of(group, name, attack, metric, guards)
            estimate = _with_status_and_notes(group, attack, metric, estimate, guards)

        # Only the AUC declares a null value, which is chance.
        declared_null = Membership.metric(metric).no_effect
        yield Membership.row(
            estimate,
            name,
            metric,
            attack,
            group=group.name,
            no_effect=null_columns.get("null", declared_null),
            no_effect_low=null_columns.get("null_low"),
            no_effect_high=null_columns.get("null_high"),
        )


def _null_of(
    group: estimates.MembershipGroup,
    name: str,
    attack: str,
    metric: str,
    guards: ScoreGuards,
) -> dict[str, float]:
    """Return the value of a random score as columns of a row.

    ==================================  ============================================
    figure                              ``null``, ``null_low`` and ``null_high``
    ==================================  ============================================
    rate at a budget                    those of a random score on the same examples
    pooled AUC of the blind classifier  those of permuted sides
    AUC                                 none: the metric has 0.5 itself
    ==================================  ============================================
    """
    if metric != "auc":
        return group.chance(name, attack, score_tables.MEMBERSHIP_FPRS[metric])
    if attack == "blind" and group.name == "pooled":
        figures = guards.text_figures
        return {column: figures[f"blind_{column}"] for column in estimates.NULL_COLUMNS}
    return {}


def _with_status_and_notes(
    group: estimates.MembershipGroup,
    attack: str,
    metric: str,
    estimate: Estimate,
    guards: ScoreGuards,
) -> Estimate:
    """Return an AUC or rate with its notes, and the status that the guards give it.

    Guards do not void the blind classifier, which is a guard itself.
    """
    if attack == "blind":
        estimate = _without_interval(estimate)
        if group.name == "pooled" and metric == "auc":
            estimate = _noting_permutations(estimate, guards.text_figures)
        return estimate

    estimate = _with_guards(estimate, guards, attack)
    if metric == "auc":
        estimate = _noting_auc(estimate, group.name, guards)
    return estimate


def _without_interval(estimate: Estimate) -> Estimate:
    """Return an estimate of cross-validated scores without its interval.

    The interval is too narrow: it treats cross-validated scores as fixed.
    """
    without_interval = Estimate(
        estimate.value,
        status=estimate.status,
        n=estimate.n,
        clusters=estimate.clusters,
        side_clusters=estimate.side_clusters,
    )
    return without_interval.noting("cross-validated, without a model")


def _noting_permutations(estimate: Estimate, figures: Mapping[str, float]) -> Estimate:
    """Return the AUC of the blind classifier with its permutation p as a note."""
    p = p_value(figures["blind_p"])
    permutations = figures["blind_permutations"]
    return estimate.noting(f"permutation {p}, {permutations} permutations")


def _noting_auc(estimate: Estimate, group_name: str, guards: ScoreGuards) -> Estimate:
    """Return an AUC with notes on its number of tasks and on undetectable effects.

    Parameters
    ----------
    group_name
        Name of the group of examples; the AUC of ``pooled`` is a mean over tasks.
    """
    if group_name == "pooled":
        n_tasks = guards.judged_examples["task"].nunique()
        note = f"mean over {n_tasks} tasks" if n_tasks > 1 else "1 task"
        estimate = estimate.noting(note)

    contains_chance = estimate.status == "ok" and side_of(estimate, CHANCE_AUC) == 0
    if contains_chance and estimate.mde:
        estimate = estimate.noting(NOT_DETECTED)
    return estimate


def _with_guards(
    estimate: Estimate, guards: ScoreGuards, attack: str, *, is_change: bool = False
) -> Estimate:
    """Return an estimate with the status and the notes that the guards give its score.

    Parameters
    ----------
    is_change
        Whether it is a change since another checkpoint.
    """
    status, note_of_guards = guards.status_of(attack, is_change=is_change)
    # The status of a guard replaces that of the estimate.
    if status == "ok":
        status = estimate.status
    notes = [note for note in (note_of_guards, estimate.note) if note]
    return replace(estimate, status=status, note="; ".join(notes))


def _contrasts_of_pair(
    group: estimates.MembershipGroup, name: str, baseline: str, guards: ScoreGuards
) -> Iterator[Contrast]:
    """Yield the contrasts of two checkpoints by each declared score that both have."""
    for attack in score_tables.DECLARED_SCORES:
        # Relative scores have no value before training, so no change since the base.
        if baseline == BASE and attack in score_tables.RELATIVE_SCORES:
            continue
        yield from contrasts_of(group, name, baseline, attack, guards)


def contrasts_of(
    group: estimates.MembershipGroup,
    name: str,
    baseline: str,
    attack: str,
    guards: ScoreGuards,
) -> Iterator[Contrast]:
    """Yield AUC and rates of one score minus those of another checkpoint.

    Above 0 the checkpoint distinguishes members better than its baseline.
    """
    for metric, estimate, p in group.differences((name, attack), (baseline, attack)):
        # A change of an unclean score can be generalisation, which its note says.
        if estimate.value is not None:
            estimate = _with_guards(estimate, guards, attack, is_change=True)
        yield Contrast.of_estimate(
            estimate,
            audit="mia",
            checkpoint=name,
            baseline=baseline,
            metric=metric,
            variant=attack,
            group=group.name,
            no_effect=0.0,
            p=p,
        )
