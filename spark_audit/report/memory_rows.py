"""What the memory plot shows of each checkpoint, in every format of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spark_audit.report.states import Outcome, Standing, Tried
from spark_audit.results import Report, Row
from spark_audit.sentences import render

SIGNS: dict[Outcome, str] = {
    "FOUND": "●",
    "not shown": "○",
    "confounded": "×",
    "void": "×",
    "not tested": "–",
}
"""Signs of what an attack came to: they differ without colour."""


@dataclass(frozen=True)
class Memory:
    """One checkpoint of the memory plot.

    Attributes
    ----------
    row
        How the log-likelihood of trained identifiers changed relative to comparable
        ones that were never trained on, nats per token: above 0 is more likely.
    sides
        Groups of trained and of held-out identifiers; empty where they are not known.
    attacks
        All other attacks.
    """

    standing: Standing
    row: Row | None
    sides: tuple[int, ...]
    attacks: Sequence[Tried]

    @property
    def text(self) -> str:
        """The figure in words, with its interval, nats and groups."""
        return render("figure.memory.figure", row=self.row, sides=self.sides)

    @property
    def estimable(self) -> bool:
        """Whether there is a figure to show."""
        return self.row is not None and self.row.value is not None


def memories(report: Report, found: Sequence[Standing]) -> list[Memory]:
    """Every checkpoint in the order of states; empty where none has a figure."""
    # Over sources, as the states are: over a few seeds an interval may be endless, and
    # next to what was found in these checkpoints it read as if nothing had been.
    rows = {
        row.checkpoint: row
        for row in report.results
        if (row.audit, row.metric, row.of) == ("matched", "memory", "")
        and (row.group, row.over) == ("pooled", "sources")
    }
    made = [
        Memory(
            standing=one,
            # Where the setup is at fault, there is no valid figure.
            row=None if one.faults else rows.get(one.name),
            sides=_sides(report, one.name),
            attacks=[tried for tried in one.tried if tried.audit != "matched"],
        )
        for one in found
    ]
    return made if any(one.estimable for one in made) else []


def reach(found: Sequence[Memory]) -> float:
    """How far from 0 the plot goes, nats: an interval of few groups may be endless."""
    values = [abs(one.row.value) for one in found if one.row and one.row.value]
    return 1.5 * max(values, default=0.0) + math.log(1.1)


def _sides(report: Report, name: str) -> tuple[int, ...]:
    """How many groups the comparison of a checkpoint rests on, by side."""
    for finding in report.findings:
        if (finding.audit, finding.checkpoint) == ("matched", name):
            sides = [finding.facts.get(side) for side in ("trained", "held_out")]
            if all(isinstance(side, Row) for side in sides):
                return tuple(side.clusters for side in sides if isinstance(side, Row))
    return ()
