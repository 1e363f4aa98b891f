"""The audit of doors: what each access to a checkpoint tells of who was trained on.

An attacker sees answers alone, lists of likely tokens, log-probabilities, whole
distributions, the weights and the base, or all stages of a run
(:mod:`~spark_audit.audits.doors.accesses`). Each *door* has one declared score, whose
AUC is a figure of the report. Scores come from columns that other audits store anyway,
so that no pass is added. All figures are exploratory: the claim of membership is that
of the audit ``mia``, and doors say how much must be seen for it.

==============  ========================================================================
file            what stands there
==============  ========================================================================
``accesses``    the doors, and what is seen at each
``scores``      the score of each door
``outcomes``    the two tests of a door, and its outcome
``findings``    one finding per checkpoint, and what the first screen says
==============  ========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import (
    Context,
    LatexColumn,
    Metric,
    Plan,
    Tables,
)
from spark_audit.audits.doors.accesses import (
    AGAINST_BASE_DOORS,
    ANSWERS,
    DISTRIBUTION,
    DOOR_BY_NAME,
    DOOR_NAMES,
    LOGPROBS,
    NAME_BY_LETTER,
    STAGES,
    TOP20,
    WEIGHTS_AND_BASE,
)
from spark_audit.audits.doors.findings import door_finding, first_screen_answers
from spark_audit.audits.doors.outcomes import DoorOutcome, DoorTests
from spark_audit.audits.doors.scores import door_scores, stage_scores
from spark_audit.audits.first_answers import FirstAnswer
from spark_audit.audits.mia.audit import SCORES_OF_BASE_GUESS
from spark_audit.audits.mia.best_guess import best_guess
from spark_audit.audits.mia.estimates import (
    ITSELF,
    MOST_REPLICATES,
    TOO_FEW_MEMBERS,
    MembershipGroup,
    indices_by_group,
)
from spark_audit.audits.mia.score_tables import (
    NO_MEMBERS,
    membership_scores,
    plan_of_rows,
    reference_table,
    scored_text,
)
from spark_audit.audits.mia.texts import labels_and_sides, without_model
from spark_audit.audits.of_series import UNORDERED, OfSeries, tasks_in_order
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE, CheckpointName, series_of
from spark_audit.provenance import seed_for
from spark_audit.results import AuditResult, Contrast, Finding, Report, Row
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.estimate import Estimate

OUTCOMES_TABLE = "doors_outcomes"
"""Table with the outcome of each door, which stands in words beside the figures."""

TEXTS_NOT_SCORED = "its texts were not scored"

NO_STAGES = "it is no series of several stages that were scored"

NO_STAGE_ROWS = "too few rows with a stage were scored by the base and by every stage"

WHY_MISSING: Mapping[str, str] = {
    ANSWERS: "the scores have no ranks of tokens",
    TOP20: "the scores have no ranks of tokens",
    LOGPROBS: "the scores have no log-probabilities",
    DISTRIBUTION: "the scores have no moments of the next-token distribution",
    WEIGHTS_AND_BASE: "the base has no score of these texts",
    STAGES: NO_STAGES,
}
"""What is seen at a door -> why it has no figure, where nothing else is known."""


@dataclass(frozen=True, kw_only=True)
class Doors(OfSeries):
    """Membership by what an attacker sees of a checkpoint.

    The evidence is one line per checkpoint and example, without text: the score of each
    door. ``texts`` is the best guess without any audited checkpoint, which stands with
    the base. A missing score is NaN. Facts of the evidence: ``why_no_stages``, by
    checkpoint, why the door ``all_stages`` has no score.

    The stages of a series are read where other audits had them scored.

    For the class attributes see :class:`~spark_audit.audits.base.Audit`.
    """

    name = "doors"
    of_series = False
    reads_stages = True
    metrics = (
        Metric(
            "auc",
            bounds=(0.0, 1.0),
            learned=1,
            variants=DOOR_NAMES,
            missing=DOOR_NAMES,
            no_effect=0.5,
        ),
    )
    nothing = NO_MEMBERS
    unscored = TEXTS_NOT_SCORED
    over = "trained rows compared with held-out rows, by what an attacker sees"
    claims = False
    unit = "of AUC"
    # Ten figures of the same rows together tell more than one does.
    disclosure_step = 6
    table_rules = {OUTCOMES_TABLE: "dropped"}
    outcome_table = OUTCOMES_TABLE
    bracket = "access"
    bracket_names = NAME_BY_LETTER
    short_rule = "membership"
    latex = (LatexColumn("AUC ≈0.5", "auc", counted="rows"),)
    latex_variants = "access"

    @classmethod
    def answers(cls, report: Report) -> Sequence[FirstAnswer]:
        """Return what is told by answers alone, and from which door on by more.

        See :meth:`spark_audit.audits.base.Audit.answers`.
        """
        return first_screen_answers(report)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return all members and non-members, for the plain pass."""
        # Refuse an order with unknown tasks before anything is scored.
        tasks_in_order(manifest, self.order)

        return plan_of_rows(manifest)

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return the score of every member and non-member at each door.

        Facts of the evidence are as the class describes them.
        """
        ids = self.plan(manifest).get(Pass(), [])
        table_by_name = _whole_checkpoints(tables)
        if not ids or not table_by_name:
            return Evidence()

        # Without scores of the base, use those of the manifest.
        base_table = table_by_name.pop(BASE, None)
        if base_table is None:
            base_table = reference_table(manifest, ids)

        # The examples, and the best guess from texts and scores of the base, as `mia`
        # has it.
        texts = [scored_text(manifest.by_id[key]) for key in ids]
        units = without_model(
            manifest, texts, ids, seed=context.seed, permutations=0
        ).units
        of_base = membership_scores(base_table, manifest, ids)
        label, sides = labels_and_sides(units)
        guess = best_guess(
            texts,
            label,
            sides,
            {attack: of_base[attack] for attack in SCORES_OF_BASE_GUESS},
            seed=seed_for(context.seed, "mia", "texts"),
        )  # (examples,)

        # The door of stages needs the mean log-probability by each of them.
        stages = _Stages(self, tables, manifest, ids, units, of_base["loss"])
        why_no_stages: dict[str, str] = {}
        stage_scores_by_name: dict[str, np.ndarray] = {}
        for name in table_by_name:
            stage_scores_by_name[name], why_no_stages[name] = stages.scores(name)

        no_score = np.full(len(ids), np.nan)

        def measured() -> Measured:
            """Yield the scores of each checkpoint, shape ``(examples,)`` each."""
            of_untrained = door_scores(base_table, manifest, ids)
            yield BASE, {**of_untrained, STAGES: no_score, "texts": guess}
            for name, table in table_by_name.items():
                scores = door_scores(table, manifest, ids, base=base_table)
                scores |= {STAGES: stage_scores_by_name[name], "texts": no_score}
                yield name, scores

        return Evidence.of(units, measured(), {"why_no_stages": why_no_stages})

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return rows, contrasts, outcomes, and a finding per checkpoint."""
        names = evidence.checkpoints
        group = _pooled(evidence, context)
        tests = DoorTests(group)

        # Long tables are cut, so that the base stands behind what is under test.
        base_last = sorted(names, key=lambda name: name == BASE)
        rows: list[Row] = []
        outcomes: list[DoorOutcome] = []
        for name in base_last:
            for door in DOOR_NAMES:
                row = self._row(name, door, group, evidence.facts)
                rows.append(row)
                if name != BASE:
                    outcomes.append(tests.outcome(row))

        contrasts: list[Contrast] = []
        for name, baseline in context.baselines.items():
            if name not in names or baseline not in names:
                continue
            for door in DOOR_NAMES:
                # Why a door has no figure is said in its row.
                scores = (name, door), (baseline, door)
                if not any(group.reason_missing(*score) for score in scores):
                    contrasts.append(self._contrast(name, baseline, door, group))

        findings: list[Finding] = []
        for name in names:
            if name != BASE:
                of_checkpoint = [one for one in outcomes if one.row.checkpoint == name]
                findings.append(door_finding(of_checkpoint))

        return AuditResult(
            results=rows,
            contrasts=contrasts,
            findings=findings,
            settings={"replicates": min(context.replicates, MOST_REPLICATES)},
            tables={OUTCOMES_TABLE: [_record(outcome) for outcome in outcomes]},
        )

    def _row(
        self, name: str, door: str, group: MembershipGroup, facts: Mapping[str, Any]
    ) -> Row:
        """Return the AUC of a door, or the reason why there is none."""
        if reason := _why_missing(name, door, group, facts):
            return self.row(Estimate.missing(reason), name, "auc", door)

        estimate = group.estimate(name, door)
        n_tasks = group.facts.iloc[group.example_indices]["task"].nunique()
        if estimate.value is not None and n_tasks > 1:
            estimate = estimate.noting(f"mean over {n_tasks} tasks")
        return self.row(estimate, name, "auc", door)

    def _contrast(
        self, name: str, baseline: str, door: str, group: MembershipGroup
    ) -> Contrast:
        """Return the AUC of a door minus that of another checkpoint."""
        difference = next(iter(group.differences((name, door), (baseline, door))))
        return Contrast.of_estimate(
            difference.estimate,
            audit=self.name,
            checkpoint=name,
            baseline=baseline,
            metric="auc",
            variant=door,
            no_effect=0.0,
            p=difference.p,
        )


def _whole_checkpoints(tables: Tables) -> dict[str, TokenTable]:
    """Return the plain table of each checkpoint that is no stage of another one.

    A series of which only stages were scored is its last stage.
    """
    whole: dict[str, TokenTable] = {}
    last_stages: dict[str, str] = {}  # series -> its last stage
    for name, passes in tables.items():
        if Pass() not in passes:
            continue
        series = series_of(name)
        if series == name:
            whole[name] = passes[Pass()]
            continue
        last = last_stages.setdefault(series, name)
        if _stage_of(name) > _stage_of(last):
            last_stages[series] = name

    for series, last in last_stages.items():
        if series not in whole:
            whole[series] = tables[last][Pass()]
    return whole


def _stage_of(name: str) -> int:
    """Return the number of a checkpoint's stage; 0: it is no stage."""
    return CheckpointName.parse(name).stage or 0


@dataclass(frozen=True)
class _Stages:
    """The stages of all series, as far as they were scored.

    Attributes
    ----------
    units
        The examples, a line each.
    base_logp
        Mean log-probability by the base, shape ``(examples,)``, nats per token.
    """

    audit: Doors
    tables: Tables
    manifest: Manifest
    ids: Sequence[str]
    units: pd.DataFrame
    base_logp: np.ndarray

    def scores(self, name: str) -> tuple[np.ndarray, str]:
        """Return the scores of a series by all its stages, and why there are none.

        Returns
        -------
        Scores have the shape ``(examples,)``; NaN: none. The reason is empty if there
        is any.
        """
        no_scores = np.full(len(self.ids), np.nan)
        stages = sorted(
            (
                stage
                for stage, passes in self.tables.items()
                if series_of(stage) == name and stage != name and Pass() in passes
            ),
            key=_stage_of,
        )
        if len(stages) < 2:
            return no_scores, NO_STAGES

        stage_by_task = self._stage_by_task[stages[0]]
        if not stage_by_task:
            return no_scores, UNORDERED

        logp_by_stage = []
        for stage in stages:
            table = self.tables[stage][Pass()]
            of_stage = membership_scores(table, self.manifest, self.ids)
            logp_by_stage.append(of_stage["loss"])
        scores = stage_scores(self.units, self.base_logp, logp_by_stage, stage_by_task)
        return scores, "" if np.isfinite(scores).any() else NO_STAGE_ROWS

    @property
    def _stage_by_task(self) -> Mapping[str, Mapping[str, int]]:
        """Return stage -> task -> number of the stage that trained on it."""
        return self.audit.training_stages(self.tables, self.manifest)


def _pooled(evidence: Evidence, context: Context) -> MembershipGroup:
    """Return all examples of tasks with enough members, with their scores.

    Estimates are those of ``mia`` where both have the same score.
    """
    guess = evidence.row(BASE, "texts")  # (examples,)
    scores: dict[str, dict[str, np.ndarray]] = {}
    # Without a line of the base, it has no scores.
    for name in dict.fromkeys([BASE, *evidence.checkpoints]):
        scores[name] = {door: evidence.row(name, door) for door in DOOR_NAMES}
        scores[name]["texts"] = guess

    return MembershipGroup(
        facts=evidence.units,
        scores=scores,
        context=context,
        fprs={},
        chance_seed=context.seed,
        name="pooled",
        example_indices=indices_by_group(evidence.units)["pooled"],
        seed=seed_for(context.seed, "mia", "pooled"),
    )


def _why_missing(
    name: str, door: str, group: MembershipGroup, facts: Mapping[str, Any]
) -> str:
    """Return why a checkpoint has no figure at a door; empty: it has one."""
    if not len(group.example_indices):
        return TOO_FEW_MEMBERS
    if np.isfinite(group.scores[name][door][group.example_indices]).any():
        return ""

    sees = DOOR_BY_NAME[door].sees
    if name == BASE and door in AGAINST_BASE_DOORS:
        return ITSELF
    if sees == STAGES:
        return str(facts.get("why_no_stages", {}).get(name) or NO_STAGES)
    return WHY_MISSING[sees]


def _record(outcome: DoorOutcome) -> TableRecord:
    """Return a line of the table of outcomes, which has words alone."""
    door = DOOR_BY_NAME[outcome.row.variant]
    return {
        "checkpoint": outcome.row.checkpoint,
        "access": door.letter,
        "variant": door.name,
        "score": door.score,
        "says": outcome.says,
    }
