"""A membership score compared with the best guess without the checkpoint.

:meth:`spark_audit.audits.mia.estimates.MembershipGroup.above_texts` makes the
comparison. The audits of membership and of series rest their claims on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import scipy

from spark_audit.results import Claim, Finding, Row
from spark_audit.results.findings import EXCESS, Fact
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.estimate import Bound, Estimate, Power

CHANCE_AUC = 0.5
"""AUC of a score that knows nothing."""

MAX_AUC_EFFECT = 0.5
"""No AUC is further from :data:`CHANCE_AUC` than this, on either of its two sides."""


@dataclass(frozen=True)
class AboveTexts:
    """A score against the best guess from the texts alone, over examples with both.

    The bar is the texts' AUC, or chance where that is higher: a score must exceed both.

    Attributes
    ----------
    excess
        ``score`` minus :attr:`bar` (:func:`beyond_both`), by DeLong over clusters. The
        out-of-fold scores of the texts count as fixed.
    score, texts
        AUC of the score and of the best guess; or their true-positive rates at one
        budget of false positives.
    chance
        The value of a random score: 0.5 for an AUC.
    larger_p
        The larger p of the tests against the texts and against chance, since the score
        must exceed both.
    sides_differ
        Whether something else than training distinguishes members from non-members.
    """

    excess: Estimate
    score: float
    texts: float
    larger_p: float
    sides_differ: bool
    chance: float = CHANCE_AUC

    @property
    def bar(self) -> float:
        """Return what a score must exceed: the texts' figure, or chance if larger."""
        return max(self.texts, self.chance)

    @property
    def is_bar_chance(self) -> bool:
        """Return whether the texts alone do no better than chance."""
        return self.texts <= self.chance

    @property
    def margin(self) -> float:
        """Return by how much a score must exceed the bar: 0 unless the sides differ.

        A classifier of few rows misses some differences of the sides. If they differ, a
        score must therefore exceed the bar by more than half of the distance to 1.
        """
        if not self.sides_differ:
            return 0.0

        return (1 - self.bar) / 2

    @property
    def p(self) -> float:
        """Return the two-sided p if the score exceeds the bar by its margin, else 1."""
        # A score below the bar is no leak, whatever its interval.
        beyond_margin = (self.excess.value or 0.0) - self.margin
        if beyond_margin <= 0:
            return 1.0

        se = self.excess.se
        if not self.margin or not se:
            return self.larger_p

        # The test is of the margin, not of 0: a t statistic shifted by it, with the
        # degrees of freedom of the standard error. Without them, of many clusters, it
        # is a normal one.
        df = self.excess.df or math.inf
        p_above_margin = float(2 * scipy.special.stdtr(df, -beyond_margin / se))
        return max(self.larger_p, p_above_margin)

    @property
    def record(self) -> dict[str, Any]:
        """Return its figures as columns of a table; ``difference`` is the excess.

        ``low`` and ``high`` are the limits of the excess, ``mde`` its smallest
        detectable size.
        """
        return {
            "score": self.score,
            "texts": self.texts,
            "bar": self.bar,
            "difference": self.excess.value,
            "low": self.excess.low,
            "high": self.excess.high,
            "mde": self.excess.mde,
        }

    def power(self, *, n_tests: float = 1.0) -> list[Power]:
        """Return the inputs for the smallest detectable excess.

        The list is empty if the excess has no standard error.

        Parameters
        ----------
        n_tests
            Tests of the audit that its p is corrected over.
        """
        if not self.excess.se:
            return []

        # The smallest effect is that of the design, as `mde` is: its degrees of freedom
        # follow from the clusters. Those of the excess, by Satterthwaite's formula, are
        # estimated from the data, and are used for what the data leave open.
        test = Power(
            test="t",
            se=self.excess.se,
            df=self.excess.clusters - 1,
            largest_effect=1 - self.bar,
            tolerance=self.margin,
            n_tests=n_tests,
        )
        return [test]

    def bounds(self, *, n_tests: float = 1.0) -> list[Bound]:
        """Return the inputs for the largest excess that could still be there.

        The list is empty if the excess has no interval.

        Parameters
        ----------
        n_tests
            Tests of the audit that its p is corrected over.
        """
        # An AUC exceeds the bar by at most the distance to 1.
        return t_bound(
            self.excess.value,
            self.excess.high,
            df=self.excess.df,
            worst_value=1 - self.bar,
            n_tests=n_tests,
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
        """Return a finding that claims the excess of a score over the bar.

        Parameters
        ----------
        row
            The figure of the score, an AUC or its change.
        says
            Key of the sentence, with the name of the audit.
        facts
            Values that the sentences name.
        p, power, bounds
            Corrected over the audit's tests, which :attr:`p`, and by default
            :meth:`power` and :meth:`bounds`, are not.
        further
            Keys of the sentences that follow.
        """
        # The finding claims the excess; its row holds the AUC itself.
        return Finding.on(
            row,
            claim,
            says,
            facts=facts,
            further=further,
            metric=f"auc{EXCESS}",
            value=self.excess.value,
            low=self.excess.low,
            high=self.excess.high,
            unit="AUC",
            no_effect=0.0,
            p=p,
            power=list(power),
            bounds=list(bounds),
        )

    def facts(self, name: str, attack: str, *, audit: str = "mia") -> dict[str, Fact]:
        """Return its figures as rows: ``score``, ``texts``, and ``beyond``, the excess.

        ``is_bar_chance`` says whether chance is the bar, and not the texts.
        """
        # All three are of the examples that have both scores, which `n` counts.
        score = self._estimate_of(self.score)
        texts = self._estimate_of(self.texts)

        return {
            "score": Row.of_estimate(
                score, audit=audit, checkpoint=name, metric="auc", variant=attack
            ),
            "texts": Row.of_estimate(
                texts, audit=audit, checkpoint=name, metric="auc", variant="texts"
            ),
            "beyond": Row.of_estimate(
                self.excess,
                audit=audit,
                checkpoint=name,
                metric="beyond_texts",
                variant=attack,
            ),
            "is_bar_chance": self.is_bar_chance,
        }

    def _estimate_of(self, value: float | None) -> Estimate:
        """Return an AUC of the examples that have both scores, without an interval."""
        return Estimate(
            value,
            n=self.excess.n,
            clusters=self.excess.clusters,
            side_clusters=self.excess.side_clusters,
        )


def beyond_both(over_texts: Estimate, over_chance: Estimate) -> Estimate:
    """Return the excess of a score over the higher of two bars: the texts, and chance.

    That is the smaller of two differences. Its limits mix both: the smaller lower limit
    and the smaller upper limit, so that the lower one is above 0 only where both
    differences are shown (an intersection-union test, whose p is the larger one; Berger
    1982). All else, as the standard error, its degrees of freedom and the percentile
    interval, is of the smaller difference alone.

    Parameters
    ----------
    over_texts, over_chance
        The score minus the texts, and minus chance; above 0 the score is better.
    """
    smaller = over_texts
    if (over_chance.value or 0.0) < (over_texts.value or 0.0):
        smaller = over_chance

    # A difference without an interval has no limits.
    lows = [low for low in (over_texts.low, over_chance.low) if low is not None]
    highs = [high for high in (over_texts.high, over_chance.high) if high is not None]
    return replace(
        smaller,
        low=min(lows, default=None),
        high=min(highs, default=None),
    )


def less_chance(estimate: Estimate, chance: float) -> Estimate:
    """Return an AUC or rate minus the value of a random score."""

    def less(value: float | None) -> float | None:
        """Return a value or limit minus chance; ``None`` stays."""
        if value is None:
            return None
        return value - chance

    return replace(
        estimate,
        value=less(estimate.value),
        low=less(estimate.low),
        high=less(estimate.high),
        parity_low=less(estimate.parity_low),
        parity_high=less(estimate.parity_high),
    )
