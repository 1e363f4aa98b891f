"""Memory by group of rows (``--by``): figures, and the group that is remembered most.

The trained identifiers of a group are compared with the held-out ones of the same
group, as all are: within types, forms and cues, with intervals over clusters. Groups
with few clusters are shown together
(:mod:`~spark_audit.audits.groups.merging`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from spark_audit.audits.groups.column import UnitGroups
from spark_audit.audits.groups.merging import shown_groups
from spark_audit.audits.groups.worst import (
    GroupTest,
    TestedGroups,
    p_of_difference,
)
from spark_audit.audits.identifiers import memory_claim, sides_of
from spark_audit.audits.matched.memory import rows_of_group
from spark_audit.audits.matched.units import MemoryTest, Occurrences, UnitScores
from spark_audit.names import RELEARNED_BASE, entry_of
from spark_audit.results import Finding, Row
from spark_audit.results.rows import ROW_GROUP
from spark_audit.stats.estimate import Estimate

TOLD_BY_TEXT_ALONE = "the text alone distinguishes trained from held-out identifiers"
"""Why memory is not tested by group."""


@dataclass(frozen=True, eq=False)
class IdentifierGroups:
    """Trained and held-out identifiers by group, the same for all checkpoints.

    Attributes
    ----------
    groups
        The field, and how many of its values are numbered.
    occurrences
        Name of a group -> its identifiers; empty: too few groups have enough.
    n_merged
        Groups that are shown together as one.
    """

    scores: UnitScores
    groups: UnitGroups
    occurrences: dict[str, Occurrences]
    n_merged: int

    @classmethod
    def of(cls, scores: UnitScores, groups: UnitGroups) -> IdentifierGroups:
        """Return the identifiers of each shown group.

        Parameters
        ----------
        groups
            Of all units of the evidence.
        """
        spans = scores.pooled.spans
        names = groups.names[spans.index]  # (occurrences,)
        is_trained = (spans["split"] == "train").to_numpy()  # (occurrences,), bool

        def compared(mask: np.ndarray) -> np.ndarray:
            """Return which identifiers of a group have counterparts in it."""
            is_compared = np.zeros(len(spans), dtype=bool)
            is_compared[mask] = sides_of(spans[mask]).cells >= 0
            return is_compared

        shown = shown_groups(names, spans["cluster"].to_numpy(), is_trained, compared)
        occurrences = {
            name: Occurrences(f"{ROW_GROUP}:{name}", spans[mask])
            for name, mask in shown.masks.items()
        }
        return cls(scores, groups, occurrences, shown.n_merged)

    def figures(self, name: str) -> tuple[list[Row], list[Finding]]:
        """Return the figures of a checkpoint by group, and the finding on the worst.

        The matching reference has neither. Single replicates of a method, and the
        relearned base, have no finding, as they have none on all identifiers.
        """
        if name in self.scores.references:
            return [], []

        has_finding = entry_of(name) == name and name != RELEARNED_BASE
        if self.scores.pooled.is_told_by_text:
            untested = Finding.not_tested(
                "matched",
                "groups.none",
                checkpoint=name,
                field=self.groups.field,
                reason=TOLD_BY_TEXT_ALONE,
            )
            return [], [untested] if has_finding else []

        change = self.scores.changes[name]  # (units,), nats
        rows: list[Row] = []
        tests: list[GroupTest] = []
        for occurrences in self.occurrences.values():
            test = occurrences.test_memory(change, seed=self.scores.context.seed)
            rows_of_test = rows_of_group(name, occurrences.group, test)
            rows += rows_of_test
            tests += _group_tests(test, rows_of_test)

        if not has_finding:
            return rows, []
        tested = TestedGroups(
            audit="matched",
            checkpoint=name,
            groups=self.groups,
            tests=tests,
            n_merged=self.n_merged,
        )
        finding = tested.finding(lambda worst: self._p_of_rest(worst, change))
        return rows, [finding]

    def _p_of_rest(self, worst: GroupTest, change: np.ndarray) -> float | None:
        """Return p that a group is remembered as all other identifiers are."""
        of_worst = self.occurrences[worst.row.group_value]
        spans = self.scores.pooled.spans
        others = spans[~spans.index.isin(of_worst.spans.index)]
        return p_of_difference(
            _memory_of(of_worst, change),
            _memory_of(Occurrences("others", others), change),
        )


def _memory_of(occurrences: Occurrences, change: np.ndarray) -> Estimate:
    """Return memory of some identifiers, with its degrees of freedom."""
    memory = occurrences.test_memory(change, seed=None).memory
    return replace(memory.difference, df=memory.freedom)


def _group_tests(test: MemoryTest, rows: list[Row]) -> Iterator[GroupTest]:
    """Yield the test of a group, if it has one.

    Parameters
    ----------
    rows
        Rows of the group, with that of ``memory`` among them.
    """
    (row,) = (row for row in rows if row.metric == "memory")
    if row.value is None or test.p is None:
        return

    # Memory is below 0; identifiers that became less likely are no memory.
    is_towards_leak = row.value < 0
    claim = memory_claim(row)
    yield GroupTest(
        row=row,
        claim=claim if claim == "memory" else "nothing_shown",
        p=test.p if is_towards_leak else 1.0,
        effect=-row.value,
        power=test.power,
        bounds=test.bounds,
    )
