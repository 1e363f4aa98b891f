"""Look up the examples of a manifest by id, without keeping them."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_audit.manifest.schema import ManifestExample


class ById(UserDict[str, Any]):
    """Examples by id, each made on demand.

    ``data`` maps each id to an index of the manifest's list, because the examples
    themselves would take 10 KB each.
    """

    def __init__(self, examples: Sequence[ManifestExample], ids: Iterable[str]) -> None:
        self._examples = examples
        self.data = {example_id: index for index, example_id in enumerate(ids)}

    def __getitem__(self, key: str) -> ManifestExample:
        example: ManifestExample = self._examples[self.data[key]]
        return example
