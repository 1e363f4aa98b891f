"""Look up the examples of a manifest by id, without keeping them."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

ExampleT = TypeVar("ExampleT")


class ById(UserDict[str, Any], Generic[ExampleT]):
    """Examples by id, each made on demand.

    ``data`` maps each id to an index of the manifest's list, because the examples
    themselves would take 10 KB each.
    """

    def __init__(self, examples: Sequence[ExampleT], ids: Iterable[str]) -> None:
        self._examples = examples
        self.data = {example_id: index for index, example_id in enumerate(ids)}

    def __getitem__(self, key: str) -> ExampleT:
        index: int = self.data[key]
        return self._examples[index]
