"""The part of a row that a training run read, and the part that had loss.

Rows of chat data, and rows that were already tokenised, have this beside their text.
Other rows are tokenised as ``tokenizer(text)`` does, and their loss is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StrictInt, StrictStr

from spark_audit.errors import InputError

SpecialTokens = Literal["in_text", "added"]
"""Source of special tokens. ``in_text``: the text contains them, and none is added.
``added``: the tokenizer adds its own, as for other rows."""

Truncation = Literal["end", "start"]
"""The side of a too long row that a trainer cuts off."""

Supervision = Literal["in the loss", "read only", "cut off"]
"""The use that training made of a stretch of text."""

CharRange = tuple[StrictInt, StrictInt]
"""Characters ``(start, end)`` of a row's text, end exclusive."""

# A file's objects hold no other keys, and no value is coerced. Errors of pydantic leave
# out their input, which may be text of a row.
_CLOSED = ConfigDict(extra="forbid", hide_input_in_errors=True)
# A file leaves fields out if they are empty, or if they are None.
_UNSAID = Field(exclude_if=lambda value: not value)
_UNSAID_IF_NONE = Field(exclude_if=lambda value: value is None)


@dataclass(frozen=True, slots=True)
class Turn:
    """The content of one message: characters ``start:end`` of the row's text.

    Text that the template writes around it, such as the name of its role, is outside.
    """

    start: StrictInt
    end: StrictInt
    role: StrictStr

    __pydantic_config__ = _CLOSED


@dataclass(frozen=True, slots=True)
class TrainingInput:
    """The tokenisation of a row in a training run, the cut part, and the loss.

    Attributes
    ----------
    special_tokens
        Source of the row's special tokens.
    turns
        The messages that could be located in the text, in text order.
    supervised
        Character ranges whose tokens had loss.
    max_length, truncation
        Most tokens that the trainer read, special tokens included, and the side that it
        cut; ``None``: it cut nothing.
    token_ids
        The ids themselves, if the tokenizer would give others for the text.
    """

    special_tokens: SpecialTokens
    turns: Annotated[tuple[Turn, ...], _UNSAID] = ()
    supervised: Annotated[tuple[CharRange, ...], _UNSAID] = ()
    max_length: Annotated[StrictInt | None, _UNSAID_IF_NONE] = None
    truncation: Truncation = "end"
    token_ids: Annotated[tuple[StrictInt, ...] | None, _UNSAID_IF_NONE] = None

    __pydantic_config__ = _CLOSED

    def token_range_read(self, n_tokens: int) -> tuple[int, int]:
        """Return the range of a row's tokens that the trainer read, end exclusive.

        Examples
        --------
        >>> cut = TrainingInput("in_text", max_length=3, truncation="start")
        >>> cut.token_range_read(5), cut.token_range_read(2)
        ((2, 5), (0, 2))
        """
        if self.max_length is None or n_tokens <= self.max_length:
            return 0, n_tokens

        if self.truncation == "end":
            return 0, self.max_length
        return n_tokens - self.max_length, n_tokens


def with_insertion(training: TrainingInput, place: int, length: int) -> TrainingInput:
    """Return a row's training input after so many characters were inserted.

    At the beginning or end of a turn, the new characters become a part of the turn and
    have loss if the turn has. In front of other text they have no loss.

    Parameters
    ----------
    place
        Position in the row's text, in characters.
    length
        Number of characters.

    Raises
    ------
    InputError
        If the row has fixed token ids: they belong to the old text.

    Examples
    --------
    >>> user = Turn(2, 5, "user")
    >>> row = TrainingInput("in_text", turns=(user,), supervised=((7, 9),))
    >>> moved = with_insertion(row, 5, 10)
    >>> moved.turns[0].end, moved.supervised
    (15, ((17, 19),))
    """
    if training.token_ids is not None:
        raise InputError(
            "a row that was tokenised before cannot get other text",
            fix="plant identifiers in the rows that it was made of",
        )

    # A turn that begins or ends at the place includes the new text.
    turns = []
    for turn in training.turns:
        start = turn.start + length if turn.start > place else turn.start
        end = turn.end + length if turn.end >= place else turn.end
        turns.append(Turn(start, end, turn.role))

    # A supervised range that begins at the place includes the new text only if a turn
    # begins there, too, or at the beginning of the row.
    begins_turn = any(turn.start == place for turn in training.turns)
    supervised = []
    for start, end in training.supervised:
        is_moved = start > place or (start == place > 0 and not begins_turn)
        new_start = start + length if is_moved else start
        new_end = end + length if end > place else end
        supervised.append((new_start, new_end))
    return replace(training, turns=tuple(turns), supervised=tuple(supervised))


def supervision_of(
    start: int,
    end: int,
    *,
    supervised: Iterable[tuple[int, int]],
    fed_text: tuple[int, int],
) -> Supervision:
    """Return how training used the characters ``start:end`` of a row.

    Text is ``cut off`` if any of its characters was cut off. Other text is ``in the
    loss`` if any of its characters is supervised, and otherwise ``read only``.

    Parameters
    ----------
    supervised
        Character ranges whose tokens had loss.
    fed_text
        The characters that the trainer read.

    Examples
    --------
    >>> supervision_of(3, 8, supervised=[(5, 20)], fed_text=(0, 10))
    'in the loss'
    >>> supervision_of(3, 8, supervised=[(8, 20)], fed_text=(0, 10))
    'read only'
    >>> supervision_of(8, 12, supervised=[(5, 20)], fed_text=(0, 10))
    'cut off'
    """
    fed_start, fed_end = fed_text
    if start < fed_start or end > fed_end:
        return "cut off"

    for loss_start, loss_end in supervised:
        if loss_start < end and start < loss_end:
            return "in the loss"
    return "read only"


def answer_end(
    turns: Iterable[tuple[int, int]], response_start: int, length: int
) -> int:
    """Return the end of a row's answer, in front of what a template adds.

    It is the end of the turn with which the response begins. If the row has turns but
    none begins there, the message is empty. In a row without turns, the whole response
    is the answer.

    Parameters
    ----------
    turns
        Character ranges of the row's turns.
    response_start
        First character of the response.
    length
        Characters of the row's text.

    Examples
    --------
    >>> answer_end([(2, 8), (20, 24)], 20, 30), answer_end([], 20, 30)
    (24, 30)
    >>> answer_end([(2, 8)], 20, 30)
    20
    """
    has_turns = False
    for start, end in turns:
        has_turns = True
        if start == response_start:
            return end

    # If all turns are elsewhere, the template wrote the whole response.
    return response_start if has_turns else length
