"""The audit of series: membership by all stages, compared with the last one alone.

A series is a model that was trained on one task after another, with a checkpoint after
each stage. An attacker with all checkpoints knows the fall of a row's NLL at each
stage. An attacker with the last checkpoint knows less. Three attacks are compared
(:class:`~spark_audit.audits.series.staged_rows.StagedRows`), with each other and with
the best guess that needs no checkpoint. Canaries that rest on a coin bound epsilon
(:mod:`~spark_audit.audits.series.coins`).

A row is an example of the manifest, a member if it was trained on; figures of the
report are of the type ``Row``. The audit is named after what it attacks. ``name`` is a
series, and in the evidence the checkpoint of one of its stages. Stages count from 1.

A further budget of false positives is an item of :data:`STAGE_FPRS`; a further attack
is a score of :class:`~spark_audit.audits.series.staged_rows.StagedRows`. Both have
names in ``spark_audit/sentences/en/``, and a metric a row in ``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context, Metric, Plan, Tables
from spark_audit.audits.identifiers import plan_of_identifiers
from spark_audit.audits.mia.best_guess import best_guess
from spark_audit.audits.mia.estimates import MembershipGroup
from spark_audit.audits.mia.score_tables import NO_MEMBERS, reference_table, scored_text
from spark_audit.audits.mia.texts import labels_and_sides, without_model
from spark_audit.audits.of_series import OfSeries, tasks_in_order
from spark_audit.audits.series.coins import coin_units, coins_of, epsilon_table
from spark_audit.audits.series.findings import Figures, SeriesResult, series_finding
from spark_audit.audits.series.staged_rows import (
    LAST_STAGE,
    SERIES,
    SERIES_ATTACKS,
    StagedRows,
    staged_series,
)
from spark_audit.manifest.schema import Manifest, ManifestCanary
from spark_audit.names import BASE
from spark_audit.provenance import seed_for
from spark_audit.results import AuditResult, Finding, Row
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.clustered_roc import Design, auc_estimate
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.multiple_tests import holm_by_key

STAGE_FPRS = {"tpr_at_fpr_10": 0.1, "tpr_at_fpr_1": 0.01}
"""Metric of a true-positive rate -> its budget of false positives."""

CANDIDATES = Pass("candidates")
"""Pass that scores both strings of each coin."""


def _rate(
    name: str,
    *,
    no_effect: float | None = None,
    glance: tuple[str, ...] = (),
    known_as: str = "",
) -> Metric:
    """Return a metric from 0 to 1 of each attack; higher: rows look more familiar.

    ``glance`` are the attacks that the first screen shows, ``no_effect`` is the value
    of a random score, ``known_as`` the name in other tools (see
    :class:`~spark_audit.audits.metrics.Metric`).
    """
    return Metric(
        name,
        bounds=(0.0, 1.0),
        learned=1,
        variants=SERIES_ATTACKS,
        no_effect=no_effect,
        glance=glance,
        known_as=known_as,
    )


@dataclass(frozen=True, kw_only=True)
class SeriesAttack(OfSeries):
    """Membership by all stages of a series, next to its last checkpoint.

    The evidence is one line per stage and unit (a row, or a string of a coin): its mean
    NLL, and as ``trained_at`` the number of the stage that trained on its task, from 1;
    0: the order of tasks is not known. ``texts`` is the cross-validated score of the
    best guess without any audited checkpoint. Two units with a ``dose`` are a canary
    and what could have been planted in its place.

    For the class attributes see :class:`~spark_audit.audits.base.Audit`.
    """

    name = "series"
    metrics = (
        _rate("auc", no_effect=0.5, glance=(SERIES,), known_as="auroc"),
        *(_rate(name) for name in STAGE_FPRS),
        *(Metric(f"{name}_gain", bounds=(-1.0, 1.0)) for name in ("auc", *STAGE_FPRS)),
    )
    nothing = NO_MEMBERS
    unscored = ""
    why_not_alone = "no series of several stages was given"
    over = "trained rows compared with held-out rows"
    chance = True
    covers = ("auc", "n")
    sides = ("members", "others")
    strongest_claim = "membership"
    table_rules = {"series_epsilon": "digits"}
    unit = "of AUC"

    all_rows: Annotated[
        bool, "score every row at every stage, not only rows with an identifier"
    ] = False

    @classmethod
    def compared_with(cls, finding: Finding) -> str:
        """Return the bar that the AUC exceeds: ``chance`` or ``best_guess``."""
        return "chance" if finding.facts.get("is_bar_chance") else "best_guess"

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return the plan: rows of both sides, and canaries with a candidate each.

        The audit ``stages`` also scores the rows with an identifier. No other audit
        scores these canaries.
        """
        # Refuse an order with unknown tasks before anything is scored.
        tasks_in_order(manifest, self.order)

        sides = manifest.membership

        # Members and non-members, by default only those with an identifier.
        ids = {*sides.members, *sides.non_members}
        if not self.all_rows:
            ids &= {*plan_of_identifiers(manifest).get(Pass(), ())}
        if not ids:
            return {}

        plan = {Pass(): sorted(ids)}
        coins = sorted(coins_of(manifest))
        if coins:
            plan[CANDIDATES] = coins
        return plan

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return rows of both sides and coins, with their NLL by each stage.

        ``trained_at`` and ``texts`` are as the class describes them. The base stands
        for the untrained model: it has the NLL before any stage, and the guesses.
        """
        # Checkpoint -> task -> number of the stage that trained on it. It has only the
        # checkpoints of series (see audits/of_series.py).
        stage_by_task_of_checkpoint = self.training_stages(tables, manifest)
        ids = self.plan(manifest).get(Pass(), [])
        if not ids or not stage_by_task_of_checkpoint:
            return Evidence()

        # Units: rows of both sides, then two for each coin.
        texts = [scored_text(manifest.by_id[key]) for key in ids]
        row_units = without_model(
            manifest, texts, ids, seed=context.seed, permutations=0
        ).units
        units = row_units[["example", "task", "cluster", "member"]].assign(dose=0)
        coins = coins_of(manifest)
        if coins:
            units = pd.concat([units, coin_units(manifest, coins)], ignore_index=True)

        # Without scores of the base, use those of the manifest.
        base_tables = dict(tables.get(BASE, {}))
        if Pass() not in base_tables:
            base_tables[Pass()] = reference_table(manifest, ids)
        base_nll = _mean_nll(base_tables, ids, coins)  # (units,), nats per token

        # Only rows have guesses, since a coin chose the planted string.
        n_rows = len(ids)
        no_value = np.full(len(units), np.nan)
        guesses = no_value.copy()  # (units,), higher is a likelier member
        label, sides = labels_and_sides(row_units)
        guesses[:n_rows] = best_guess(
            texts,
            label,
            sides,
            {"loss": -base_nll[:n_rows]},
            seed=seed_for(context.seed, "series", "texts"),
        )

        def measured() -> Measured:
            """Yield mean NLL, stages and guesses of the base, then of each stage."""
            yield BASE, {"nll": base_nll, "trained_at": no_value, "texts": guesses}
            for name, stage_by_task in stage_by_task_of_checkpoint.items():
                # 0: it is not known which stage trained on the task.
                own_stage = units["task"].map(stage_by_task).fillna(0)  # (units,)
                nll = _mean_nll(tables[name], ids, coins)
                yield name, {"nll": nll, "trained_at": own_stage, "texts": no_value}

        return Evidence.of(units, measured())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return rows, findings, and the table of membership after each stage."""
        # Figures by series, of all rows and of each task.
        rows: list[Row] = []
        findings: list[Finding] = []
        records_by_stage: list[TableRecord] = []
        result_by_series: dict[str, SeriesResult] = {}
        coins_by_series: dict[str, StagedRows] = {}
        for series in staged_series(evidence):
            name = series.name
            coins_by_series[name] = series.coins
            if series.rows is None:
                # The report has one row and one finding that give the reason.
                missing = Finding.not_tested(
                    "series", "series.missing", checkpoint=name, reason=series.reason
                )
                findings.append(missing)
                rows.append(
                    self.row(Estimate.missing(series.reason), name, "auc", SERIES)
                )
                continue

            for group in _groups(name, series.rows, context):
                figures = _figures(group, name)
                rows += figures.rows.values()
                if group.name == "pooled":
                    result_by_series[name] = SeriesResult(
                        group=group,
                        figures=figures.rows,
                        raw_gain_p=figures.raw_gain_p,
                    )

            records_by_stage += _records_by_stage(name, series.rows)

        # Correct the p values of gains over all series (Holm), then conclude.
        raw_gain_ps = {
            name: result.raw_gain_p for name, result in result_by_series.items()
        }
        for name, gain_p in holm_by_key(raw_gain_ps).items():
            finding = series_finding(
                name,
                result_by_series[name],
                gain_p=gain_p,
                n_series=len(result_by_series),
            )
            findings.append(finding)

        tables = {"series_stages": records_by_stage}
        bounds = [*epsilon_table(coins_by_series)]
        if bounds:
            tables["series_epsilon"] = bounds
        return AuditResult(results=rows, findings=findings, tables=tables)


def _mean_nll(
    table_by_pass: Mapping[Pass, TokenTable],
    ids: Sequence[str],
    coins: Mapping[str, ManifestCanary],
) -> np.ndarray:
    """Return the mean NLL of all units by one checkpoint.

    Parameters
    ----------
    table_by_pass
        Scores of the checkpoint.
    ids
        Rows of both sides.
    coins
        Key of a pair -> its canary.

    Returns
    -------
    Shape ``(units,)``, nats per token; NaN: not scored. Rows come first, then two units
    for each coin, the planted string first.
    """
    of_rows = _mean_nll_of_rows(table_by_pass[Pass()], ids)
    of_coins = _mean_nll_of_coins(table_by_pass.get(CANDIDATES), coins)
    return np.concatenate([of_rows, of_coins])


def _mean_nll_of_rows(table: TokenTable, ids: Sequence[str]) -> np.ndarray:
    """Return the mean NLL of each row, shape ``(rows,)``; NaN: not scored."""
    nll = np.full(len(ids), np.nan)
    for i, key in enumerate(ids):
        if key not in table:
            continue
        by_token = table.columns["nll"][table.rows(key)]  # (tokens,), nats
        if len(by_token):
            nll[i] = by_token.mean(dtype=np.float64)
    return nll


def _mean_nll_of_coins(
    candidates: TokenTable | None, coins: Mapping[str, ManifestCanary]
) -> np.ndarray:
    """Return the mean NLL of both strings of each coin, shape ``(2 * coins,)``.

    Parameters
    ----------
    candidates
        Table of the pass :data:`CANDIDATES`; ``None``: it was not scored.
    """
    nll = np.full((len(coins), 2), np.nan)  # planted, other
    if candidates is None:
        return nll.ravel()

    for i, (key, canary) in enumerate(coins.items()):
        if key not in candidates or not canary.coin:
            continue
        nll_of_pair = candidates.columns["nll_mean"][candidates.rows(key)]  # (2,)
        # Candidates are in the order of the pair: put the planted string first.
        _, planted_index = canary.coin
        if planted_index == 1:
            nll_of_pair = nll_of_pair[::-1]
        nll[i] = nll_of_pair
    return nll.ravel()


def _groups(
    name: str, staged: StagedRows, context: Context
) -> Iterator[MembershipGroup]:
    """Yield all rows of a series as ``pooled``, then those of each task."""
    # Attack -> scores, shape (rows,); the best guess is one more of them.
    scores = {**staged.scores, "texts": staged.rows["texts"].to_numpy()}

    # Name of the group -> indices of its rows, shape (rows of the group,).
    indices_by_group = {"pooled": np.arange(len(staged.rows))}
    for task, indices in staged.rows.groupby("task").indices.items():
        indices_by_group[f"task:{task}"] = np.asarray(indices)

    for title, indices in indices_by_group.items():
        yield MembershipGroup(
            facts=staged.rows,
            scores={name: scores},
            context=context,
            fprs=STAGE_FPRS,
            chance_seed=context.seed,
            name=title,
            example_indices=indices,
            seed=seed_for(context.seed, "series"),
        )


class _GroupFigures(NamedTuple):
    """Figures of one group, and the p of no gain in AUC over the last stage.

    ``rows`` are by metric and attack; those of gains have no attack. ``raw_gain_p`` is
    not corrected over series.
    """

    rows: Figures
    raw_gain_p: float


def _figures(group: MembershipGroup, name: str) -> _GroupFigures:
    """Return the AUC and TPR of all attacks on a group, and the gain of the series.

    A gain is the figure of the series minus that of its last checkpoint: above 0,
    someone who has all checkpoints guesses more members.

    Parameters
    ----------
    name
        Name of the series.
    """
    figures: Figures = {}
    for attack in SERIES_ATTACKS:
        for metric in ("auc", *STAGE_FPRS):
            figures[metric, attack] = _attack_row(group, name, attack, metric)

    # Gains of all stages over the last one; without a test, p is 1.
    raw_gain_p = 1.0
    for metric, gain, p in group.differences((name, SERIES), (name, LAST_STAGE)):
        gain_metric = f"{metric}_gain"
        figures[gain_metric, ""] = SeriesAttack.row(
            gain, name, gain_metric, group=group.name, no_effect=0.0
        )
        if metric == "auc" and p is not None:
            raw_gain_p = p
    return _GroupFigures(figures, raw_gain_p)


def _attack_row(group: MembershipGroup, name: str, attack: str, metric: str) -> Row:
    """Return the AUC or TPR of an attack; a rate has chance as its null value."""
    estimate = group.estimate(name, attack, metric)
    chance: Mapping[str, float] = {}
    if metric != "auc" and estimate.value is not None:
        chance = group.chance(name, attack, STAGE_FPRS[metric])
    return SeriesAttack.row(
        estimate,
        name,
        metric,
        attack,
        group=group.name,
        no_effect=chance.get("null"),
        no_effect_low=chance.get("null_low"),
        no_effect_high=chance.get("null_high"),
    )


def _records_by_stage(name: str, staged: StagedRows) -> Iterator[TableRecord]:
    """Yield the AUC of the last checkpoint and of the series after each stage.

    A record is on the rows whose tasks were trained on by that stage.

    Yields
    ------
    ``checkpoint`` (the series), ``stage``, ``tasks`` (their number), and for each of
    the attacks ``last`` and ``series`` its AUC as ``_value``, ``_low`` and ``_high``.
    """
    n_stages = len(staged.fall)
    for stage in range(1, n_stages + 1):
        has_had_own_stage = (
            staged.rows["trained_at"] <= stage
        ).to_numpy()  # (rows,), bool
        so_far = staged.take(has_had_own_stage, stage)
        rows = so_far.rows
        if rows.empty:
            continue

        record: TableRecord = {
            "checkpoint": name,
            "stage": stage,
            "tasks": rows["trained_at"].nunique(),
        }
        design = Design.of(rows["member"], rows["cluster"], rows["task"])
        for attack in (LAST_STAGE, SERIES):
            auc, _ = auc_estimate(design, so_far.scores[attack])
            record[f"{attack}_value"] = auc.value
            record[f"{attack}_low"] = auc.low
            record[f"{attack}_high"] = auc.high
        yield record
