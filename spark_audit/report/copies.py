"""Checkpoints as they were given, and copies that the audit made of them.

A copy (``NAME+int8``, ``NAME+relearn``) has a state of its own. Titles count it apart,
and a matrix shows it behind the checkpoints as given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_audit.names import original_of
from spark_audit.report.checkpoint_states import SHAPES, CheckpointState


@dataclass(frozen=True)
class GivenAndCopies:
    """The checkpoints of a report, the worst first, and the copies of these.

    Attributes
    ----------
    given
        States of checkpoints as given, and of copies without an original.
    copies
        States of copies whose original has a state, too.
    """

    given: tuple[CheckpointState, ...]
    copies: tuple[CheckpointState, ...]

    @classmethod
    def of(cls, all_checkpoint_states: Sequence[CheckpointState]) -> GivenAndCopies:
        """Return the states of a report, split."""
        names = {checkpoint_state.name for checkpoint_state in all_checkpoint_states}
        given = []
        copies = []
        for checkpoint_state in all_checkpoint_states:
            original = original_of(checkpoint_state.name)
            if original != checkpoint_state.name and original in names:
                copies.append(checkpoint_state)
            else:
                given.append(checkpoint_state)
        return cls(given=tuple(given), copies=tuple(copies))

    @property
    def worse_copies(self) -> list[CheckpointState]:
        """Return the copies whose state is worse than that of their original."""
        order = list(SHAPES)  # the worst first
        state_by_name = {
            checkpoint_state.name: checkpoint_state.state
            for checkpoint_state in self.given
        }
        worse = []
        for copy in self.copies:
            state_of_original = state_by_name[original_of(copy.name)]
            if order.index(copy.state) < order.index(state_of_original):
                worse.append(copy)
        return worse
