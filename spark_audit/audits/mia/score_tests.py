"""The two tests of a membership score, and the finding that rests on them.

:mod:`~spark_audit.audits.mia.verdicts` makes a :class:`ScoreTest` of each declared
score of a checkpoint, and corrects their p values; those here are not corrected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_audit.audits.claims import ALPHA
from spark_audit.audits.mia.above_texts import MAX_AUC_EFFECT, AboveTexts
from spark_audit.results import Claim, Contrast, Finding, Row
from spark_audit.results.findings import Fact
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.estimate import Bound, Power
from spark_audit.stats.power import mde


class FamilySizes(NamedTuple):
    """The effective number of independent tests in each family.

    Scores are correlated, so the number is smaller than that of scores.

    Attributes
    ----------
    changes
        For the tests that the AUC of a score changed.
    excesses
        For the tests that a score exceeds the texts alone.
    """

    changes: float
    excesses: float


@dataclass(frozen=True)
class ScoreTest:
    """The tests of one score: of its change or AUC, and of its excess over the texts.

    Attributes
    ----------
    row
        Its change since the untrained model, or its AUC where that model has none.
        Above its null (0, or 0.5 for an AUC) members look more familiar.
    p
        Two-sided p that this row is at its null.
    above
        The score compared with the texts alone. It is needed since a weak difference in
        topic passes the guard and still moves every score. None: the texts were not
        tested.
    sides_differ
        Whether something else than training distinguishes the sides, which can then be
        confounded with a change.
    excess_p
        p of the excess that a claim needs in addition to the change. Without a test of
        the texts it is 1 for a score that a guard doubts, which then claims nothing.
    """

    row: Row
    p: float
    above: AboveTexts | None
    sides_differ: bool
    excess_p: float

    @property
    def is_more_familiar(self) -> bool:
        """Return whether members look more familiar than non-members.

        For a change: more so than before training.
        """
        return effect_of(self.row) > 0

    @property
    def state(self) -> str:
        """Return the state of the score by itself, uncorrected; the first match wins.

        =============  ========================================================
        state          condition
        =============  ========================================================
        detected       it moved, and exceeds the texts alone
        confounded     it moved, and the sides differ without training
        not shown      else
        =============  ========================================================
        """
        has_moved = self.p < ALPHA
        exceeds_texts = self.excess_p < ALPHA

        # The order is that of the table.
        if has_moved and exceeds_texts:
            return "detected"
        if has_moved and self.sides_differ:
            return "confounded"
        return "not shown"

    def power(self, sizes: FamilySizes) -> list[Power]:
        """Return the tests that a claim needs: of the change, and of the excess.

        Both must reject, so the larger of their smallest effects counts.
        """
        row = self.row
        power = []
        if row.mde:
            # Rows keep no standard error, but the smallest effect is a multiple of it.
            mde_per_se = mde(1.0, clusters=row.clusters, level=row.interval_level)
            test_of_change = Power(
                test="t",
                se=row.mde / mde_per_se,
                df=row.clusters - 1,
                largest_effect=MAX_AUC_EFFECT,
                n_tests=sizes.changes,
            )
            power.append(test_of_change)

        if self.above is not None:
            power += self.above.power(n_tests=sizes.excesses)
        return power

    def bounds(self, sizes: FamilySizes) -> list[Bound]:
        """Return the inputs for the largest effect that could still be there.

        The list is empty if there is no interval.

        Parameters
        ----------
        sizes
            Effective numbers of tests that p is corrected over.
        """
        # The figure of a finding is the excess over the texts, if that was tested.
        if self.above is not None:
            return self.above.bounds(n_tests=sizes.excesses)

        # An attacker reverses a score that is lower for members.
        row = self.row
        direction = 1 if self.is_more_familiar else -1
        null = row.no_effect or 0.0
        far_limit = row.high if self.is_more_familiar else row.low

        return t_bound(
            row.value,
            far_limit,
            df=row.clusters - 1,
            direction=direction,
            no_effect=null,
            worst_value=null + direction * MAX_AUC_EFFECT,
            n_tests=sizes.changes,
        )

    def finding(
        self,
        claim: Claim,
        *,
        further: Sequence[str],
        facts: Mapping[str, Fact],
        p: float,
        sizes: FamilySizes,
    ) -> Finding:
        """Return the finding on a checkpoint that rests on this score.

        Parameters
        ----------
        further
            Keys of the sentences that follow the claim.
        p
            p of the claim, corrected over the scores of the checkpoint.
        sizes
            Effective numbers of tests that p is corrected over.
        """
        says = f"mia.{claim}"
        power = self.power(sizes)
        bounds = self.bounds(sizes)

        # With a test of the texts the finding claims the excess over them.
        if self.above is not None:
            return self.above.finding(
                self.row,
                claim,
                says,
                facts=facts,
                p=p,
                power=power,
                bounds=bounds,
                further=further,
            )

        return Finding.on(
            self.row,
            claim,
            says,
            facts=facts,
            further=further,
            unit="AUC",
            p=p,
            power=power,
            bounds=bounds,
        )

    @property
    def says(self) -> str:
        """The key of the sentence on its figure and its comparison."""
        if self.above is None:
            return "mia.change" if isinstance(self.row, Contrast) else "mia.level"

        side = "above" if self.is_more_familiar else "below"
        bar = "chance" if self.above.is_bar_chance else "texts"
        return f"mia.{side}_{bar}"

    def remarks(self, n_examples: int) -> list[str]:
        """Return keys of remarks on its test.

        Parameters
        ----------
        n_examples
            Number of judged examples, some of which may lack a score.
        """
        if self.above is None:
            return ["mia.no_texts"]
        if self.above.excess.n < n_examples:
            return ["mia.rows_of_both"]
        return []

    @property
    def facts(self) -> dict[str, Fact]:
        """The name and figures of the score, and of the texts if they were tested.

        ``turned`` says whether members look less familiar.
        """
        facts: dict[str, Fact] = {
            "attack": self.row.variant,
            "turned": not self.is_more_familiar,
        }
        if self.above is None:
            return facts | {"auc": self.row}

        return facts | self.above.facts(self.row.checkpoint, self.row.variant)


def effect_of(row: Row) -> float:
    """Return how far a figure is from its null; above 0 members look more familiar."""
    return (row.value or 0.0) - (row.no_effect or 0.0)
