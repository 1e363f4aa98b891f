"""What a membership score is told of a block of texts with as many tokens each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scored:
    """Texts as a checkpoint scored them, ``k`` of them with ``n`` tokens each.

    ``logp`` (nats) and ``response``, whether a token is of the response, have shape
    ``(k, n)``, as have the other ``columns`` of the plain pass; ``texts`` is what was
    scored, empty where it is unknown.
    """

    logp: np.ndarray
    response: np.ndarray
    columns: Mapping[str, np.ndarray]
    texts: Sequence[str]


@dataclass(frozen=True)
class Untrained:
    """What models that saw none of the texts give the same tokens.

    ``logp`` (nats, shape ``(k, n)``) is the base's, ``mean`` the logarithm of the mean
    probability over it and further references. ``population`` holds, in rising order,
    how far tokens of all texts rose above that mean on the checkpoint.
    """

    logp: np.ndarray
    mean: np.ndarray
    population: np.ndarray


class Chosen(Mapping[str, np.ndarray]):
    """Some rows of columns, which are looked up when they are asked for."""

    def __init__(self, columns: Mapping[str, np.ndarray], rows: np.ndarray) -> None:
        self._columns, self._rows = columns, rows

    def __getitem__(self, name: str) -> np.ndarray:
        found: np.ndarray = self._columns[name][self._rows]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)
