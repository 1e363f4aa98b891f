"""What a training run read of a row, and which part of it had loss.

A row of chat data, or one that was tokenised before, carries this beside its text. Rows
without it are tokenised as ``tokenizer(text)`` does, and nothing is known of their
loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StrictInt, StrictStr

from spark_audit.errors import InputError

SpecialTokens = Literal["in_text", "added"]
"""Where special tokens come from: ``in_text``: they are written in the text, parsed as
tokens, and none is added; ``added``: the tokenizer adds its own, as for other rows."""

Truncation = Literal["end", "start"]
"""Which side of a row that is too long a trainer cuts off."""

Supervision = Literal["in the loss", "read only", "cut off"]
"""What training did with a stretch of text."""

CharRange = tuple[StrictInt, StrictInt]

# A file's objects hold no other keys, and nothing is coerced.
_CLOSED = ConfigDict(extra="forbid")
_UNSAID = Field(exclude_if=lambda value: not value)


@dataclass(frozen=True, slots=True)
class Turn:
    """The content of one message: characters ``start:end`` of the row's text.

    What the template writes around it, such as its role's name, is outside.
    """

    start: StrictInt
    end: StrictInt
    role: StrictStr

    __pydantic_config__ = _CLOSED


@dataclass(frozen=True, slots=True)
class TrainingInput:
    """How a training run tokenised a row, what it cut off and what had loss.

    Attributes
    ----------
    special_tokens
        Where the row's special tokens come from.
    turns
        The messages that could be located in the text, in its order.
    supervised
        Character ranges whose tokens had loss.
    max_length, truncation
        Tokens that the trainer read at most, special tokens included, and the side
        that it cut; ``None``: it cut nothing.
    token_ids
        The ids themselves, where the text would be tokenised otherwise.
    """

    special_tokens: SpecialTokens
    turns: Annotated[tuple[Turn, ...], _UNSAID] = ()
    supervised: Annotated[tuple[CharRange, ...], _UNSAID] = ()
    max_length: Annotated[
        StrictInt | None, Field(exclude_if=lambda value: value is None)
    ] = None
    truncation: Truncation = "end"
    token_ids: Annotated[
        tuple[StrictInt, ...] | None, Field(exclude_if=lambda value: value is None)
    ] = None

    __pydantic_config__ = _CLOSED

    def fed(self, n_tokens: int) -> tuple[int, int]:
        """Return the range of a row's tokens that the trainer read, end exclusive.

        Examples
        --------
        >>> cut = TrainingInput("in_text", max_length=3, truncation="start")
        >>> cut.fed(5), cut.fed(2)
        ((2, 5), (0, 2))
        """
        if self.max_length is None or n_tokens <= self.max_length:
            return 0, n_tokens

        if self.truncation == "end":
            return 0, self.max_length
        return n_tokens - self.max_length, n_tokens


def with_insertion(training: TrainingInput, place: int, length: int) -> TrainingInput:
    """Return the input of a row into which so many characters were put at a place.

    At a turn's beginning or end they become a part of the turn, and have loss where it
    has; before other text they do not.

    Raises
    ------
    InputError
        If the row's ids are kept as they are: they are of the old text.

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

    # A turn that begins or ends at the place takes the new text in.
    turns = []
    for turn in training.turns:
        start = turn.start + length if turn.start > place else turn.start
        end = turn.end + length if turn.end >= place else turn.end
        turns.append(Turn(start, end, turn.role))

    # A supervised range that begins at the place takes the text in only where a turn
    # does, or at the beginning of the row.
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
    """Return what training did with the characters ``start:end`` of a row.

    Text of which any character was cut off is ``cut off``; the rest is ``in the loss``
    where any of its characters is supervised.

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

    for low, high in supervised:
        if low < end and start < high:
            return "in the loss"
    return "read only"


def answer_end(
    turns: Iterable[tuple[int, int]], response_start: int, length: int
) -> int:
    """Return where a row's answer ends: what a template adds stands behind it.

    It is the end of the turn that the response begins with. If no turn begins there,
    the message is empty; of a row without turns the answer is the whole response.

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

    # Turns that are elsewhere: the template writes all of the response.
    return response_start if has_turns else length
