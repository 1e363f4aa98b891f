"""The tests of a door, and what they come to.

Each door is judged by itself, at 5%, in the direction that was declared: trained rows
have the higher score. It has two tests, and both must reject: that its AUC rose since
the base (or exceeds 0.5, where the base has no such score), and that it exceeds the
best guess without the checkpoint. Nothing is corrected over doors, and no state of a
checkpoint rests on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from spark_audit.audits.claims import ALPHA
from spark_audit.audits.doors.accesses import AGAINST_BASE_DOORS, DOOR_NAMES
from spark_audit.audits.mia.above_texts import CHANCE_AUC
from spark_audit.audits.mia.estimates import TEXTS_ALPHA, MembershipGroup
from spark_audit.names import BASE
from spark_audit.results import Row
from spark_audit.stats.multiple_tests import holm

SHOWN = "shown"
NOT_SHOWN = "not shown"
CONFOUNDED = "confounded"
NOT_ESTIMABLE = "not estimable"


@dataclass(frozen=True)
class DoorOutcome:
    """The figure of a door, and the outcome of its tests.

    Attributes
    ----------
    row
        The AUC.
    says
        ``shown``, ``confounded``, ``not shown``, or ``not estimable`` with the reason.
    """

    row: Row
    says: str

    @property
    def is_shown(self) -> bool:
        """Return whether trained rows are shown to be told from others."""
        return self.says == SHOWN


@dataclass(frozen=True)
class DoorTests:
    """The tests of all doors on one group of examples."""

    group: MembershipGroup

    def outcome(self, row: Row) -> DoorOutcome:
        """Return the outcome of a door; the first match wins.

        =================  ===========================================================
        outcome            condition
        =================  ===========================================================
        ``not estimable``  there is no figure, or no test of it; the reason follows
        ``shown``          its AUC rose, and exceeds the best guess
        ``confounded``     its AUC rose, and the sides differ without training
        ``not shown``      else
        =================  ===========================================================

        Parameters
        ----------
        row
            The AUC of the door, with or without a value.
        """
        if row.value is None:
            return DoorOutcome(row, f"{NOT_ESTIMABLE}: {row.note}")

        has_risen = self._has_risen(row.checkpoint, row.variant)
        above_texts = self.group.above_texts(
            row.checkpoint, row.variant, sides_differ=self.sides_differ
        )
        if above_texts is None:
            reason = "the best guess without the checkpoint was not tested"
            return DoorOutcome(row, f"{NOT_ESTIMABLE}: {reason}")

        if has_risen and above_texts.p < ALPHA:
            return DoorOutcome(row, SHOWN)
        if has_risen and above_texts.sides_differ:
            return DoorOutcome(row, CONFOUNDED)
        return DoorOutcome(row, NOT_SHOWN)

    def _has_risen(self, name: str, door: str) -> bool:
        """Return whether an AUC is significantly above that of the base, or above 0.5.

        A two-sided p at the level is used on one side only, so that the error is half
        of it.
        """
        group = self.group
        if door in AGAINST_BASE_DOORS or group.reason_missing(BASE, door):
            p = group.p(name, door)
            change = (group.estimate(name, door).value or CHANCE_AUC) - CHANCE_AUC
        else:
            difference = next(iter(group.differences((name, door), (BASE, door))))
            p = difference.p
            change = difference.estimate.value or 0.0
        return p is not None and p < ALPHA and change > 0

    @cached_property
    def sides_differ(self) -> bool:
        """Whether a score of the base tells the sides apart, which read neither."""
        ps = []
        for door in DOOR_NAMES:
            if not self.group.reason_missing(BASE, door):
                p = self.group.p(BASE, door)
                if p is not None:
                    ps.append(p)
        return bool(ps) and bool(holm(ps).min() < TEXTS_ALPHA)
