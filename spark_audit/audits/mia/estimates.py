"""Estimates of the ``mia`` audit by group of rows, each made once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.base import Context
from spark_audit.audits.mia.score_tables import (
    BASELINE_VARIANTS,
    MIN_MEMBERS_FOR_AUC,
    RELATIVE_SCORES,
)
from spark_audit.audits.mia.scores import NOTHING_FELL
from spark_audit.data.occurrences import dose_group
from spark_audit.errors import NotEstimableError
from spark_audit.names import BASE
from spark_audit.results import Claim, Finding, Row
from spark_audit.results.findings import EXCESS, Fact
from spark_audit.stats import clustered_roc, clustered_tpr
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.bootstrap import Weights
from spark_audit.stats.estimate import Bound, Estimate, Power
from spark_audit.stats.intervals import percentile_interval
from spark_audit.stats.power import with_mde

MOST_REPLICATES = 2000
"""Both presets: percentile limits of an AUC need no more, and rows are many."""
NO_SCORE_REASONS = {
    "response": "no response token was scored",
    **dict.fromkeys(
        ("minkpp10", "minkpp20", "minkpp30"),
        "the score table has no moments of the next-token distribution",
    ),
    **dict.fromkeys(RELATIVE_SCORES, "the untrained model was not scored"),
    "ez": "no text has two wrong first guesses that changed since the untrained model",
    "blind": "the blind text classifier was not run",
}
TEXTS_ALPHA = 0.01
"""p below which the texts alone tell the sides apart; of out-of-fold scores it is
somewhat too small."""
ITSELF = "the checkpoint is the reference itself"
NULL = ("null", "null_low", "null_high")
"""Columns of a row: what a score gives that knows nothing."""
TOO_FEW_MEMBERS = (
    f"fewer than {MIN_MEMBERS_FOR_AUC} members or {MIN_MEMBERS_FOR_AUC} non-members"
)


@dataclass(frozen=True)
class Drawn:
    """Rows that have a score, their design and the weights of its resamples."""

    rows: np.ndarray
    design: clustered_roc.Design
    weights: Weights


@dataclass(frozen=True)
class AboveTexts:
    """A score against the best guess from the texts alone, over the rows of both.

    A guess that is worse than chance is no bar, chance is: a score must exceed both.

    Attributes
    ----------
    difference
        ``score`` minus :attr:`bar` (:func:`beyond_both`), by DeLong over clusters,
        which takes the out-of-fold scores of the texts as given.
    score, texts
        The two AUCs, or rates.
    chance
        What a score gives that knows nothing: 0.5 of an AUC.
    least_p
        The larger of the p values against the texts and against chance.
    told
        Whether the sides are told apart without training.
    """

    difference: Estimate
    score: float
    texts: float
    least_p: float
    told: bool
    chance: float = 0.5

    @property
    def bar(self) -> float:
        """What a score must exceed: the texts alone, or chance where that is more."""
        return max(self.texts, self.chance)

    @property
    def is_bar_chance(self) -> bool:
        """Whether the texts alone do no better than chance."""
        return self.texts <= self.chance

    @property
    def margin(self) -> float:
        """What a score must have beyond the bar where the texts tell the sides."""
        return (1 - self.bar) / 2 if self.told else 0.0

    @property
    def p(self) -> float:
        """Two-sided p value where the score is above the bar, else 1.

        Where the sides are told apart without training, a classifier of so few rows
        has not found all that tells them: the score must then take more than half of
        what is left to 1.
        """
        apart, margin = self.difference, self.margin
        beyond = (apart.value or 0.0) - margin
        if beyond <= 0:
            return 1.0
        if not margin or not apart.se:
            return self.least_p
        return max(self.least_p, float(2 * scipy.special.ndtr(-beyond / apart.se)))

    @property
    def record(self) -> dict[str, Any]:
        """Its figures as columns of a table."""
        apart = self.difference
        return {
            "score": self.score,
            "texts": self.texts,
            "bar": self.bar,
            "difference": apart.value,
            "low": apart.low,
            "high": apart.high,
            "mde": apart.mde,
        }

    def power(self, *, over: float = 1.0) -> list[Power]:
        """Return what the smallest excess follows from that is detected.

        Empty where the excess has no standard error.

        Parameters
        ----------
        over
            Tests that its p is corrected over.
        """
        if not self.difference.se:
            return []
        test = Power(
            test="t",
            se=self.difference.se,
            df=self.difference.clusters - 1,
            most=1 - self.bar,
            beyond=self.margin,
            over=over,
        )
        return [test]

    def bounds(self, *, over: float = 1.0) -> list[Bound]:
        """Return what the largest excess follows from that could still be there.

        Empty where the excess has no interval.

        Parameters
        ----------
        over
            Tests that its p is corrected over.
        """
        excess = self.difference
        return t_bound(
            excess.value, excess.high, df=excess.df, most=1 - self.bar, over=over
        )

    def finding(
        self,
        row: Row,
        claim: Claim,
        says: str,
        *,
        facts: Mapping[str, Fact],
        p: float,
        power: Sequence[Power],
        bounds: Sequence[Bound],
        further: Sequence[str] = (),
    ) -> Finding:
        """Return a finding that claims by how much a score exceeds the bar.

        Parameters
        ----------
        row
            The figure of the score.
        further
            Keys of the sentences that follow.
        """
        excess = self.difference
        return Finding.on(
            row,
            claim,
            says,
            facts=facts,
            further=further,
            metric=f"auc{EXCESS}",
            value=excess.value,
            low=excess.low,
            high=excess.high,
            unit="AUC",
            null=0.0,
            p=p,
            power=list(power),
            bounds=list(bounds),
        )

    def facts(self, name: str, attack: str, *, audit: str = "mia") -> dict[str, Fact]:
        """Return its figures as rows: ``score``, ``texts``, what is ``beyond`` the bar.

        ``is_bar_chance`` is whether the bar is chance, and not the texts.
        """
        excess = self.difference
        score = Estimate(self.score, n=excess.n, clusters=excess.clusters)
        texts = Estimate(self.texts, n=excess.n, clusters=excess.clusters)
        return {
            "score": Row.of_estimate(
                score, audit=audit, checkpoint=name, metric="auc", of=attack
            ),
            "texts": Row.of_estimate(
                texts, audit=audit, checkpoint=name, metric="auc", of="texts"
            ),
            "beyond": Row.of_estimate(
                excess, audit=audit, checkpoint=name, metric="beyond_texts", of=attack
            ),
            "is_bar_chance": self.is_bar_chance,
        }


def beyond_both(over_texts: Estimate, over_chance: Estimate) -> Estimate:
    """What a score has beyond the higher of two bars: the texts alone, and chance.

    That is the smaller of both differences. Each limit is the smaller one, too, so that
    the lower limit is above 0 only where both differences are shown (an
    intersection-union test, whose p is the larger one; Berger 1982).
    """
    first, second = over_texts, over_chance
    smaller = first if (first.value or 0.0) <= (second.value or 0.0) else second
    lows = [end for end in (first.low, second.low) if end is not None]
    highs = [end for end in (first.high, second.high) if end is not None]
    return replace(
        smaller,
        low=min(lows, default=None),
        high=min(highs, default=None),
    )


def less_chance(estimate: Estimate, chance: float) -> Estimate:
    """An AUC or rate minus what a score gives that knows nothing."""

    def less(value: float | None) -> float | None:
        return None if value is None else value - chance

    return replace(
        estimate,
        value=less(estimate.value),
        low=less(estimate.low),
        high=less(estimate.high),
        parity_low=less(estimate.parity_low),
        parity_high=less(estimate.parity_high),
    )


@dataclass
class MembershipGroup:
    """The rows of one group; estimates and resamples are kept once made.

    Attributes
    ----------
    facts
        Of all examples, ``n`` of them.
    scores
        Checkpoint -> score -> shape ``(n,)``, NaN where there is none.
    fprs
        Budgets of false positives of the rates, by metric.
    chance_seed
        Of the rates that a score has which knows nothing.
    rows
        Places of the group's examples.
    seed
        Of the resamples.
    """

    facts: pd.DataFrame
    scores: Mapping[str, Mapping[str, np.ndarray]]
    context: Context
    fprs: Mapping[str, float]
    chance_seed: int
    name: str
    rows: np.ndarray
    seed: int
    _drawn: dict[bytes, Drawn] = field(default_factory=dict)
    _resampled: dict[tuple[str, str, bytes], dict[str, np.ndarray]] = field(
        default_factory=dict
    )

    def drawn(self, *scores: tuple[str, str]) -> tuple[Drawn, list[np.ndarray]]:
        """The rows that have all of these scores (checkpoint, score), and the scores.

        Shape ``(rows,)`` each.
        """
        values = [self.scores[name][of][self.rows] for name, of in scores]
        kept = np.isfinite(values).all(axis=0)
        key = kept.tobytes()
        if key not in self._drawn:
            rows = self.rows[kept]
            facts = self.facts.iloc[rows]
            design = clustered_roc.Design.of(
                facts["member"], facts["cluster"], facts["task"]
            )
            most = min(self.context.replicates, MOST_REPLICATES)
            weights = design.draw(replicates=most, seed=self.seed)
            self._drawn[key] = Drawn(rows, design, weights)
        return self._drawn[key], [each[kept] for each in values]

    def resampled(self, name: str, attack: str, drawn: Drawn) -> dict[str, np.ndarray]:
        """AUC and rates in every resample, shape ``(B,)`` each, by metric."""
        # The blind scores are the same for every checkpoint.
        key = (
            "" if attack in BASELINE_VARIANTS else name,
            attack,
            drawn.rows.tobytes(),
        )
        if key not in self._resampled:
            values = self.scores[name][attack][drawn.rows]  # (rows,)
            rates = clustered_tpr.tpr_replicates(
                drawn.design, values, [*self.fprs.values()], drawn.weights
            )  # (rates, replicates)
            area = clustered_roc.auc_replicates(drawn.design, values, drawn.weights)
            by_metric = {"auc": area}
            by_metric |= zip(self.fprs, rates, strict=True)
            self._resampled[key] = by_metric
        return self._resampled[key]

    def usable(self, name: str, attack: str) -> str:
        """Why a checkpoint has no such score here; empty if it has."""
        if not len(self.rows):
            return TOO_FEW_MEMBERS
        values = self.scores[name][attack][self.rows]
        if np.isfinite(values).any():
            return ""
        if name == BASE and attack in RELATIVE_SCORES:
            return ITSELF
        return NO_SCORE_REASONS.get(attack, "nothing was scored")

    def estimate(self, name: str, attack: str, metric: str = "auc") -> Estimate:
        """AUC, or TPR at a budget, with interval and minimum detectable effect."""
        if reason := self.usable(name, attack):
            return Estimate.missing(reason)
        drawn, (values,) = self.drawn((name, attack))
        replicates = self.resampled(name, attack, drawn)[metric]
        if metric != "auc":
            found = clustered_tpr.tpr_estimate(
                drawn.design, values, self.fprs[metric], replicates=replicates
            )
        else:
            found, _ = clustered_roc.auc_estimate(
                drawn.design, values, replicates=replicates
            )
            if lacking := len(self.rows) - len(values):
                found = found.noting(f"{lacking} rows have no such score")
            if attack == "ez" and (top := int((values >= NOTHING_FELL).sum())):
                note = f"{top} rows at its limit: no token became less likely"
                found = found.noting(note)
        return with_mde(found).decided(paper=self.context.paper)

    def chance(self, name: str, attack: str, fpr: float) -> dict[str, float]:
        """TPR at a budget of a score that knows nothing, as columns of a row."""
        drawn, _ = self.drawn((name, attack))
        try:
            band = clustered_tpr.chance(drawn.design, fpr, seed=self.chance_seed)
        except NotEstimableError:
            return {}
        return dict(zip(NULL, band, strict=True))

    def p(self, name: str, attack: str) -> float | None:
        """Two-sided p value of an AUC of 0.5; ``None`` where there is none."""
        drawn, (values,) = self.drawn((name, attack))
        return clustered_roc.auc_estimate(drawn.design, values)[1]

    def above_texts(
        self,
        name: str,
        attack: str,
        *,
        more: bool = True,
        texts: str = "texts",
        told: bool = False,
    ) -> AboveTexts | None:
        """AUC of a score minus its bar; ``None`` where there is none.

        The bar is the AUC of the texts alone, or 0.5 where that is higher.

        Parameters
        ----------
        more
            Whether members score higher; else the score is turned round first, as who
            attacks with it would.
        texts
            The best guess, or ``blind``: it alone does not read the base's scores.
        told
            Whether the sides are told apart without training by something else.
        """
        if self.usable(name, attack) or self.usable(name, texts):
            return None
        drawn, (ours, guess) = self.drawn((name, attack), (name, texts))
        ours = ours if more else -ours
        over_texts, texts_p = clustered_roc.auc_difference(drawn.design, ours, guess)
        score, chance_p = clustered_roc.auc_estimate(drawn.design, ours)
        alone, told_p = clustered_roc.auc_estimate(drawn.design, guess)
        if score.value is None or alone.value is None or texts_p is None:
            return None

        told |= alone.value > 0.5 and told_p is not None and told_p < TEXTS_ALPHA
        beyond = beyond_both(over_texts, less_chance(score, 0.5))
        return AboveTexts(
            with_mde(beyond, null=0.0),
            score=score.value,
            texts=alone.value,
            least_p=max(texts_p, 1.0 if chance_p is None else chance_p),
            told=told,
        )

    def correlation(
        self, name: str, tests: Mapping[str, tuple[str, str] | None]
    ) -> np.ndarray:
        """How the AUCs of scores vary together, less those that they are compared with.

        Parameters
        ----------
        tests
            Score -> what its AUC is less that of (checkpoint, score); None: less 0.5.

        Returns
        -------
        Shape ``(K, K)``; 0 between scores of different rows, which makes a family
        larger than it is.
        """
        parts: list[np.ndarray] = []
        rows: list[bytes] = []
        for attack, other in tests.items():
            drawn, found = self.drawn((name, attack), *([other] if other else []))
            each = [
                clustered_roc.auc_components(drawn.design, values) for values in found
            ]
            part = each[0] - sum(each[1:])
            parts.append(part / (np.linalg.norm(part) or 1.0))
            rows.append(drawn.rows.tobytes())
        full = np.eye(len(parts))
        for i, j in combinations(range(len(parts)), 2):
            if rows[i] == rows[j]:
                full[i, j] = full[j, i] = parts[i] @ parts[j]
        return full

    def differences(
        self, one: tuple[str, str], other: tuple[str, str]
    ) -> Iterator[tuple[str, Estimate, float | None]]:
        """Metric, difference of two scores over the same rows, p value.

        Scores are given as (checkpoint, score).
        """
        if reason := self.usable(*one) or self.usable(*other):
            yield "auc", Estimate.missing(reason), None
            return
        drawn, pair = self.drawn(one, other)
        ours, theirs = (self.resampled(*each, drawn) for each in (one, other))
        apart = {metric: ours[metric] - theirs[metric] for metric in ours}
        for metric, moved in apart.items():
            if metric == "auc":
                found = clustered_roc.auc_difference(
                    drawn.design, *pair, replicates=moved
                )
            else:
                rate = _rate_difference(drawn, pair, self.fprs[metric], moved)
                found = rate, None
            estimate, p = with_mde(found[0], null=0.0), found[1]
            yield metric, estimate.decided(paper=self.context.paper), p
            if estimate.value is None:
                return


def rows_by_group(facts: pd.DataFrame) -> dict[str, np.ndarray]:
    """Rows of each group: of the tasks with enough of both sides, by task and by dose.

    A dose is the number of trained rows that are near-duplicates of a text, itself
    included: members of each, with all non-members; one that is the only one has no
    group of its own.
    """
    member, known = facts["member"].to_numpy(bool), facts["dose"].to_numpy(np.float64)
    tasks: dict[str, np.ndarray] = {}
    for task in sorted(set(facts["task"])):
        rows = np.flatnonzero(facts["task"] == task)
        members = np.count_nonzero(member[rows])
        enough = min(members, len(rows) - members) >= MIN_MEMBERS_FOR_AUC
        tasks[f"task:{task}"] = rows if enough else rows[:0]
    pooled = np.sort(np.concatenate(list(tasks.values())))
    found = {"pooled": pooled, **tasks}
    if np.isnan(known).any():
        return found
    groups = np.array([dose_group(max(int(each), 1)) for each in known])
    doses: dict[str, np.ndarray] = {}
    for group in dict.fromkeys(groups[member][np.argsort(known[member])]):
        use = (groups == group) | ~member
        parts = [rows[use[rows]] for rows in tasks.values()]
        if kept := [
            rows for rows in parts if member[rows].sum() >= MIN_MEMBERS_FOR_AUC
        ]:
            doses[f"dose:{group}"] = np.sort(np.concatenate(kept))
    return found | doses if len(doses) > 1 else found


def _rate_difference(
    drawn: Drawn, pair: Sequence[np.ndarray], fpr: float, replicates: np.ndarray
) -> Estimate:
    """Difference of two rates with the percentile interval of its resamples."""
    first, second = (
        clustered_tpr.tpr_by_task(drawn.design, values, fpr) for values in pair
    )
    is_resolvable = all(tpr.resolvable for tpr in [*first, *second])
    first_rate = float(np.mean([tpr.value for tpr in first]))
    second_rate = float(np.mean([tpr.value for tpr in second]))
    estimate = Estimate(
        first_rate - second_rate,
        n=len(drawn.rows),
        clusters=drawn.design.n_clusters,
        status="ok" if is_resolvable else "not_resolvable",
    )

    low, high = percentile_interval(replicates)
    if not high > low:
        return estimate.noting("all resamples are equal: no interval")
    return replace(estimate, se=float(np.nanstd(replicates))).between(low, high)
