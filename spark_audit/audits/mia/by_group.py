"""Membership by group of rows (``--by``): AUCs, and the group that is told best.

Trained rows of a group are compared with held-out ones of the same group, within tasks,
by the score that was declared for it beforehand. A group's claim needs what one on all
rows needs: its AUC exceeds 0.5, and the best guess from the texts of the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from spark_audit.audits.claims import ALPHA
from spark_audit.audits.groups.column import UnitGroups
from spark_audit.audits.groups.merging import shown_groups
from spark_audit.audits.groups.worst import (
    GroupTest,
    TestedGroups,
    p_of_difference,
)
from spark_audit.audits.mia.above_texts import CHANCE_AUC, MAX_AUC_EFFECT
from spark_audit.audits.mia.estimates import MembershipGroup
from spark_audit.audits.mia.guards import ScoreGuards
from spark_audit.audits.mia.score_tables import MIN_MEMBERS_FOR_AUC
from spark_audit.names import BASE
from spark_audit.provenance import seed_for
from spark_audit.results import Finding, Row
from spark_audit.results.rows import ROW_GROUP
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.estimate import Power

GROUP_SCORE = "combined"
"""The score that figures by group are of, declared beforehand: the one that is shown
where several detect."""

USABLE = ("ok", "insensitive")
"""Statuses of an AUC that is tested."""

RowOf: TypeAlias = Callable[[MembershipGroup, str], Row]
"""Function from a group and a checkpoint to the row of its AUC."""


@dataclass(frozen=True, eq=False)
class RowsByGroup:
    """Rows of a manifest by group, the same for all checkpoints.

    Attributes
    ----------
    groups
        The field, and how many of its values are numbered.
    by_name
        Name of a group -> its rows with their scores; empty: too few groups have
        enough.
    n_merged
        Groups that are shown together as one.
    row_of
        Returns the row of a group's AUC.
    """

    pooled: MembershipGroup
    guards: ScoreGuards
    groups: UnitGroups
    by_name: dict[str, MembershipGroup]
    n_merged: int
    row_of: RowOf

    @classmethod
    def of(
        cls,
        pooled: MembershipGroup,
        guards: ScoreGuards,
        groups: UnitGroups,
        row_of: RowOf,
    ) -> RowsByGroup:
        """Return the rows of each shown group.

        Parameters
        ----------
        pooled
            The rows of all judged tasks.
        groups
            Of all rows of the evidence.
        """
        judged = pooled.example_indices
        facts = pooled.facts.iloc[judged]
        is_member = facts["member"].to_numpy(bool)  # (judged,)
        tasks = facts["task"].to_numpy()  # (judged,)

        def compared(mask: np.ndarray) -> np.ndarray:
            """Return which rows of a group are in a task with enough of its rows."""
            is_compared = np.zeros(len(facts), dtype=bool)
            for task in np.unique(tasks[mask].astype(str)):
                of_task = mask & (tasks == task)
                n_members = np.count_nonzero(is_member[of_task])
                n_others = np.count_nonzero(of_task) - n_members
                if min(n_members, n_others) >= MIN_MEMBERS_FOR_AUC:
                    is_compared |= of_task
            return is_compared

        shown = shown_groups(
            groups.names[judged], facts["cluster"].to_numpy(), is_member, compared
        )
        by_name = {
            name: _group_of(pooled, f"{ROW_GROUP}:{name}", judged[compared(mask)])
            for name, mask in shown.masks.items()
        }
        return cls(pooled, guards, groups, by_name, shown.n_merged, row_of)

    def figures(self, name: str) -> tuple[list[Row], list[Finding]]:
        """Return the AUC of each group, and the finding on the one that is told best.

        The untrained model has neither, as it lacks the score.
        """
        if name == BASE:
            return [], []

        rows = []
        tests = []
        for group in self.by_name.values():
            row = self.row_of(group, name)
            rows.append(row)
            if row.value is not None and row.status in USABLE:
                tests.append(self._test(group, name, row))

        tested = TestedGroups(
            audit="mia",
            checkpoint=name,
            groups=self.groups,
            tests=tests,
            n_merged=self.n_merged,
            unit="AUC",
        )
        finding = tested.finding(lambda worst: self._p_of_rest(worst, name))
        return rows, [finding]

    def _test(self, group: MembershipGroup, name: str, row: Row) -> GroupTest:
        """Return the test of a group: of its AUC, and beyond the best guess."""
        auc = group.estimate(name, GROUP_SCORE)
        above = group.above_texts(
            name, GROUP_SCORE, sides_differ=self.guards.differs_before
        )

        # Without a spread there is no test, and without a best guess only the AUC's.
        auc_p = group.p(name, GROUP_SCORE)
        p = 1.0 if auc_p is None else auc_p
        sides_differ = self.guards.texts_differ
        power = []
        if auc.se:
            test_of_auc = Power(
                test="t",
                se=auc.se,
                df=auc.clusters - 1,
                largest_effect=MAX_AUC_EFFECT,
            )
            power.append(test_of_auc)
        if above is not None:
            sides_differ = above.sides_differ
            power += above.power()
            p = max(p, above.p)
        elif sides_differ:
            p = 1.0

        value = row.value or 0.0
        is_above_chance = value > CHANCE_AUC
        n_groups = len(self.by_name)
        has_moved = auc_p is not None and n_groups * auc_p < ALPHA and is_above_chance
        bounds = []
        if not sides_differ:
            bounds = t_bound(
                row.value,
                row.high,
                df=auc.df,
                no_effect=CHANCE_AUC,
                worst_value=CHANCE_AUC + MAX_AUC_EFFECT,
            )
        return GroupTest(
            row=row,
            claim="membership",
            p=p if is_above_chance else 1.0,
            effect=value - CHANCE_AUC,
            is_confounded=has_moved and sides_differ,
            power=power,
            bounds=bounds,
        )

    def _p_of_rest(self, worst: GroupTest, name: str) -> float | None:
        """Return p that a group is told as well as the rows of all other groups."""
        of_worst = self.by_name[worst.row.group_value]
        others = [
            group.example_indices
            for group in self.by_name.values()
            if group is not of_worst
        ]
        rest = _group_of(self.pooled, "others", np.sort(np.concatenate(others)))
        return p_of_difference(
            of_worst.estimate(name, GROUP_SCORE), rest.estimate(name, GROUP_SCORE)
        )


def _group_of(
    pooled: MembershipGroup, name: str, example_indices: np.ndarray
) -> MembershipGroup:
    """Return some of the pooled rows as a group of their own."""
    return replace(
        pooled,
        name=name,
        example_indices=example_indices,
        seed=seed_for(pooled.context.seed, "mia", name),
        _scored_by_mask={},
        _resampled={},
    )
