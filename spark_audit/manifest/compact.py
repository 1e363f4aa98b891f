"""What keeps a manifest of many rows small in memory; files know nothing of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, overload

import numpy as np
from pydantic import AfterValidator, BaseModel, Field, PlainSerializer

_SETS: dict[frozenset[str], set[str]] = {}
_NONE: dict[str, Any] = {}


class Scores(Sequence[int | None]):
    """Micro-nats of a text's tokens, 8 bytes each; ``None`` where none was scored.

    Attributes
    ----------
    array
        Shape ``(T,)``, int64, read-only; -1 stands for ``None``.
    """

    __slots__ = ("array",)

    def __init__(self, values: Sequence[int | None]) -> None:
        known = (-1 if value is None else value for value in values)
        self.array = np.fromiter(known, np.int64, len(values))
        self.array.flags.writeable = False

    @overload
    def __getitem__(self, at: int) -> int | None: ...
    @overload
    def __getitem__(self, at: slice) -> list[int | None]: ...
    def __getitem__(self, at: int | slice) -> int | None | list[int | None]:
        if isinstance(at, slice):
            return self.tolist()[at]
        value = int(self.array[at])
        return None if value < 0 else value

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[int | None]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Scores):
            return np.array_equal(self.array, other.array)
        return isinstance(other, list) and self.tolist() == other

    __hash__ = None  # type: ignore[assignment]

    def tolist(self) -> list[int | None]:
        """As it stands in the file."""
        return [None if value < 0 else value for value in self.array.tolist()]


MOST = 10**9
"""No count, position or dose is larger: it is beyond any text or vocabulary."""
MOST_NATS = 1e4
"""No token is this unlikely to a model whose logits are finite."""
MicroNats = Annotated[int, Field(ge=0, le=round(1e6 * MOST_NATS))]
Unlls = Annotated[
    list[MicroNats | None],
    AfterValidator(Scores),
    PlainSerializer(Scores.tolist, return_type=list[int | None]),
]


def share(part: BaseModel) -> None:
    """Let a part, which nobody may change, share what pydantic keeps of each of them.

    That are the names of the fields that were given, and fields that are not known:
    most of what a span takes.
    """
    given = part.model_fields_set
    own = _SETS.setdefault(frozenset(given), given)
    object.__setattr__(part, "__pydantic_fields_set__", own)
    if not part.model_extra:
        object.__setattr__(part, "__pydantic_extra__", _NONE)
