"""Which identifiers of trained rows a training computes its loss on.

The states are those of :mod:`spark_audit.data.training_input`. Occurrences are counted,
as ``data supervision`` does. Parts of canaries have counts of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_audit.data.training_input import Supervision
from spark_audit.planning.rows import PlannedRow, PlannedSpan

STATES: tuple[Supervision, ...] = ("in the loss", "read only", "cut off")
"""What training does with an identifier, from the most to the least."""


@dataclass(frozen=True, kw_only=True)
class LossCounts:
    """Identifiers of trained rows by what training does with them.

    Attributes
    ----------
    n_rows, n_unknown
        Trained rows, and those of which it is not known.
    by_type
        Type -> state -> identifiers.
    by_role
        Role of the message -> state -> identifiers; an empty role is no message.
    n_tokens, n_tokens_with_loss
        Tokens of these identifiers, and those with loss.
    n_canaries, n_canaries_without_loss
        Planted canaries of rows of which it is known, and those of which no secret
        part has loss in any row.
    """

    n_rows: int
    n_unknown: int
    by_type: Mapping[str, Mapping[Supervision, int]]
    by_role: Mapping[str, Mapping[Supervision, int]]
    n_tokens: int
    n_tokens_with_loss: int
    n_canaries: int
    n_canaries_without_loss: int

    @property
    def is_known(self) -> bool:
        """Return whether it is known of any trained row."""
        return self.n_unknown < self.n_rows

    def total(self, state: Supervision) -> int:
        """Return the identifiers in a state."""
        return sum(states.get(state, 0) for states in self.by_type.values())

    @property
    def n_identifiers(self) -> int:
        """Return the identifiers in all states."""
        return sum(self.total(state) for state in STATES)


def loss_counts(rows: Sequence[PlannedRow]) -> LossCounts:
    """Count the identifiers of trained rows by what training does with them."""
    trained = [row for row in rows if row.is_trained]
    by_type: dict[str, Counter[Supervision]] = defaultdict(Counter)
    by_role: dict[str, Counter[Supervision]] = defaultdict(Counter)
    has_loss_by_canary: dict[str, bool] = {}
    n_tokens = 0
    n_tokens_with_loss = 0

    for row in trained:
        training = row.training_input
        if training is None:
            continue
        for span in row.personal_spans:
            state = _state_of(row, span)
            by_type[span.type][state] += 1
            by_role[training.role_at(span.start, span.end)][state] += 1
            if span.tokens is not None:
                n_tokens += span.tokens[1] - span.tokens[0]
                n_tokens_with_loss += training.n_tokens_with_loss(span.tokens)

        if row.canary_id is not None:
            has_loss = has_loss_by_canary.get(row.canary_id, False)
            for span in row.spans:
                if span.part is not None:
                    has_loss |= _state_of(row, span) == "in the loss"
            has_loss_by_canary[row.canary_id] = has_loss

    return LossCounts(
        n_rows=len(trained),
        n_unknown=sum(row.training_input is None for row in trained),
        by_type={type: dict(by_type[type]) for type in sorted(by_type)},
        by_role={role: dict(by_role[role]) for role in sorted(by_role)},
        n_tokens=n_tokens,
        n_tokens_with_loss=n_tokens_with_loss,
        n_canaries=len(has_loss_by_canary),
        n_canaries_without_loss=sum(
            not has_loss for has_loss in has_loss_by_canary.values()
        ),
    )


def _state_of(row: PlannedRow, span: PlannedSpan) -> Supervision:
    """Return what training does with an identifier of a row where that is known."""
    state = row.supervision_of(span.start, span.end)
    assert state is not None  # the row says what training reads of it
    return state
