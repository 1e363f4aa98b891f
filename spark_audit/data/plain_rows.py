"""Rows without identifiers, wherever an identifier of the data stands unannotated.

An identifier is often annotated in one row and stands in others, where nobody marked
it: such a row is no plain text, and must not be shown as such.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from spark_audit.data.examples import Example, Split
from spark_audit.data.occurrences import identifier_ranges, repeats
from spark_audit.errors import InputError


class Annotated:
    """The annotated strings of some examples, canaries' among them."""

    def __init__(self, examples: Iterable[Any]) -> None:
        types: dict[str, str] = {}
        for example in examples:
            text = example.text
            for span in example.spans:
                string = text[span.start : span.end].strip().casefold()
                types.setdefault(string, span.type)
        types.pop("", None)
        self._types = types

    def places(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Characters ``start:end`` of a text that are one of the strings, and its type.

        What counts as the same string is what
        :func:`spark_audit.data.occurrences.repeats` says: of any case, and one or two
        characters only where they are a word. Places come in no order.
        """
        folded = text.casefold()
        at = len(text) + 1
        for string in (one for one in self._types if one in folded):
            for start, end in repeats(f"{text}\n{string}", [(at, at + len(string))]):
                if end < at:
                    yield start, end, self._types[string]


def without_identifiers(
    examples: Sequence[Example],
    *,
    splits: Sequence[Split] = ("train",),
    audited: Collection[Any] = (),
    where: str = "--data",
) -> tuple[list[Example], dict[str, int]]:
    """The rows that hold no identifier, and how many others there are, and why.

    A row is left out if it holds a canary (``canary``), an annotated span
    (``annotated``), anything that the rules find (``rules``), or a string that is
    annotated in another row of either split (``elsewhere``). A row with a blank
    response (``blank``) cannot be trained on. Of ``audited`` rows neither their text
    nor another row of their source is kept (``audited``): whoever trains on the
    held-out rows of a comparison spoils it. They are examples, of data or a manifest.

    Raises
    ------
    InputError
        If none is left, naming the option ``where``.
    """
    annotated = Annotated([*examples, *audited])
    texts = {row.text for row in audited}
    sources = {row.source_id for row in audited}
    reasons: dict[str, Callable[[Example], object]] = {}
    if audited:
        reasons["audited"] = lambda r: r.text in texts or r.source_id in sources
    reasons |= {
        "canary": lambda row: row.canary is not None,
        "annotated": lambda row: row.spans,
        "rules": identifier_ranges,
        "elsewhere": lambda row: next(annotated.places(row.text), None),
        "blank": lambda row: not row.response.strip(),
    }
    kept, left_out = [], dict.fromkeys(reasons, 0)
    for example in examples:
        if example.split in splits:
            why = next((n for n, holds in reasons.items() if holds(example)), None)
            if why is None:
                kept.append(example)
            else:
                left_out[why] += 1
    if not kept:
        listed = ", ".join(f"{name} {n}" for name, n in left_out.items() if n)
        kind = "train row" if "test" not in splits else "row"
        # Rows of other data may bear the ids of sources that are audited.
        own = ", with other texts and source ids" * bool(left_out.get("audited"))
        raise InputError(
            f"has no {kind} without an identifier (left out: {listed or 'none'})",
            where=where,
            fix=f"give rows from before injection, or of another task{own}",
        )
    return kept, left_out
