"""The two tests of a membership score, and what a finding takes from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_audit.audits.claims import ALPHA
from spark_audit.audits.mia.above_texts import AboveTexts
from spark_audit.results import Claim, Contrast, Finding, Row
from spark_audit.results.findings import Fact
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.estimate import Bound, Power
from spark_audit.stats.power import mde


class FamilySizes(NamedTuple):
    """How many independent tests each family of tests is worth.

    Scores vary together, so that a family is worth fewer than it has scores.

    Attributes
    ----------
    changes
        Tests that the AUC of a score changed.
    excesses
        Tests that a score exceeds what the texts alone tell.
    """

    changes: float
    excesses: float


@dataclass(frozen=True)
class ScoreTest:
    """The tests of one score: of its change or AUC, and of what exceeds the texts.

    Attributes
    ----------
    row
        Its change since the untrained model, or its AUC where that model has none.
    p
        Two-sided p that this row is at its null.
    above
        The score compared with the texts alone: a weak difference in topic passes the
        guard and still moves every score. None where the texts were not tested.
    sides_differ
        Whether the sides are told apart without training: only then can a change be
        confounded with that.
    excess_p
        p of what a claim needs in addition to the change. Without a test of the texts
        a score that a guard doubts claims nothing (1), and any other may.
    """

    row: Row
    p: float
    above: AboveTexts | None
    sides_differ: bool
    excess_p: float

    @property
    def is_more_familiar(self) -> bool:
        """Return whether members look more familiar than non-members; else less."""
        return effect_of(self.row) > 0

    @property
    def state(self) -> str:
        """Return what the score shows by itself; the first match wins.

        =============  ========================================================
        state          condition
        =============  ========================================================
        detected       it moved, and exceeds what the texts alone tell
        confounded     it moved, and the sides are told apart without training
        not shown      else
        =============  ========================================================
        """
        has_moved = self.p < ALPHA
        exceeds_texts = self.excess_p < ALPHA

        # In the order of the table.
        if has_moved and exceeds_texts:
            return "detected"
        if has_moved and self.sides_differ:
            return "confounded"
        return "not shown"

    def power(self, sizes: FamilySizes) -> list[Power]:
        """Return the tests that a claim needs: of the change, and of the excess.

        Both must reject, so that the larger of their smallest effects is detected.
        """
        row = self.row
        power = []
        if row.mde:
            # Rows keep no standard error: the smallest effect is a multiple of it.
            mde_per_se = mde(1.0, clusters=row.clusters, level=row.level)
            test_of_change = Power(
                test="t",
                se=row.mde / mde_per_se,
                df=row.clusters - 1,
                most=0.5,
                over=sizes.changes,
            )
            power.append(test_of_change)

        if self.above is not None:
            power += self.above.power(over=sizes.excesses)
        return power

    def bounds(self, sizes: FamilySizes) -> list[Bound]:
        """Return the inputs of what could still be there, of the figure of a finding.

        Parameters
        ----------
        sizes
            Tests that p is corrected over.
        """
        # The figure of a finding is the excess over the texts, where it was tested.
        if self.above is not None:
            return self.above.bounds(over=sizes.excesses)

        # Whoever attacks with a score that is lower for members turns it round.
        row = self.row
        direction = 1 if self.is_more_familiar else -1
        null = row.null or 0.0

        return t_bound(
            row.value,
            row.high if self.is_more_familiar else row.low,
            df=row.clusters - 1,
            direction=direction,
            null=null,
            most=null + direction * 0.5,
            over=sizes.changes,
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
        """
        says = f"mia.{claim}"
        power = self.power(sizes)
        bounds = self.bounds(sizes)

        # With a test of the texts the finding claims the excess over these.
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
        """The key of the sentence on its figure and on what it is compared with."""
        if self.above is None:
            return "mia.change" if isinstance(self.row, Contrast) else "mia.level"

        side = "above" if self.is_more_familiar else "below"
        bar = "chance" if self.above.is_bar_chance else "texts"
        return f"mia.{side}_{bar}"

    def remarks(self, n_rows: int) -> list[str]:
        """Return keys of what readers must know of its test.

        Parameters
        ----------
        n_rows
            Rows that are judged: some may lack a score.
        """
        if self.above is None:
            return ["mia.no_texts"]
        if self.above.difference.n < n_rows:
            return ["mia.rows_of_both"]
        return []

    @property
    def facts(self) -> dict[str, Fact]:
        """The score by name and figures, with those of the texts if they were tested.

        ``turned`` is whether members look less familiar.
        """
        facts: dict[str, Fact] = {
            "attack": self.row.of,
            "turned": not self.is_more_familiar,
        }
        if self.above is None:
            return facts | {"auc": self.row}

        return facts | self.above.facts(self.row.checkpoint, self.row.of)


def effect_of(row: Row) -> float:
    """Return how far a figure is from its null."""
    return (row.value or 0.0) - (row.null or 0.0)
