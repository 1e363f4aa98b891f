"""Whether a manifest's parts fit one another, and its examples by id."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

E = TypeVar("E")
"""What an example is: the schema's, which is checked by this."""
MOST = 10**9
"""No count, position or dose is larger: it is beyond any text or vocabulary."""


class ById(Mapping[str, E], Generic[E]):
    """Examples by id: of each it holds the number, and what checks ask for.

    Attributes
    ----------
    sizes
        Id -> place among the examples, letters, tokens (0 where redacted) and split.
    """

    def __init__(self, examples: Sequence[E]) -> None:
        self._examples = examples
        self.sizes: dict[str, tuple[int, int, int, str]] = {}
        example: Any
        for i, example in enumerate(examples):
            if example.id in self.sizes:
                raise ValueError(f"examples.{i} stands twice")
            sizes = len(example.text), len(example.reference_unll)
            self.sizes[example.id] = (i, *sizes, example.split)

    def __getitem__(self, key: str) -> E:
        return self._examples[self.sizes[key][0]]

    def __contains__(self, key: object) -> bool:
        return key in self.sizes

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


def check_inside(field: str, ranges: Collection[tuple[int, int]], length: int) -> None:
    """Refuse a range that is empty, or outside of what is that long."""
    for start, end in ranges:
        if not 0 <= start < end <= length:
            raise ValueError(f"{field}: {start}:{end} is empty or outside 0:{length}")


def check_joined(manifest: Any) -> None:
    """What names an example names one that is here, and a place in it.

    Raises
    ------
    ValueError
        With the part that does not fit.
    """
    sizes, whole = manifest.by_id.sizes, manifest.redacted_from is None
    seen: set[tuple[object, ...]] = set()

    def once(part: str, i: int, *key: object) -> None:
        if (part, *key) in seen:
            raise ValueError(f"{part}.{i} stands twice")
        seen.add((part, *key))

    def inside(field: str, key: str, place: Any) -> None:
        if key not in sizes:
            raise ValueError(f"{field} names an example that is not here")
        at = place.char_start, place.char_end
        check_inside(field, [at], sizes[key][1] or MOST)

    for i, letters, tokens, _ in sizes.values():
        if whole and not (letters and tokens):
            raise ValueError(f"examples.{i} has no text or no tokens")
    for i, pair in enumerate(manifest.pairs):
        for side in (pair.pii, pair.control):
            inside(f"pairs.{i}", pair.example, side)
            at = side.token_start, side.token_end
            check_inside(f"pairs.{i}", [at], sizes[pair.example][2] or MOST)
            if whole and (side.nll is None or pair.distance is None):
                raise ValueError(f"pairs.{i} has no nll or no distance")
        once("pairs", i, pair.example, pair.pii.token_start, pair.pii.token_end)
    for i, span in enumerate(manifest.unmatched):
        inside(f"unmatched.{i}", span.example, span)
    for i, canary in enumerate(manifest.canaries):
        once("canaries", i, canary.canary_id, canary.part)
    for i, twins in enumerate(manifest.twins):
        once("twins", i, twins.id)
    for part in ("canaries", "twins"):
        for i, held in enumerate(getattr(manifest, part)):
            for one in held.contexts:
                inside(f"{part}.{i}.contexts", one.example, one)
    for side, split in (("members", "train"), ("non_members", "test")):
        part = f"membership.{side}"
        for i, key in enumerate(getattr(manifest.membership, side)):
            if key not in sizes or sizes[key][3] != split:
                raise ValueError(f"{part} holds no {split} row's id")
            once(part, i, key)
