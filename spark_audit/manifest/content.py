"""A manifest's content: packed, checked, sealed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from spark_audit import files
from spark_audit.errors import InputError
from spark_audit.json_values import JsonObject
from spark_audit.manifest.packed_lists import Records
from spark_audit.manifest.schema import (
    MAX_INTEGER,
    ById,
    Manifest,
    ManifestCanary,
    ManifestExample,
    ManifestPair,
    ManifestTwins,
    UnmatchedSpan,
    check_inside,
)
from spark_audit.provenance import canonical_json

MANIFEST_PARTS: Mapping[str, type[Any]] = {
    "examples": ManifestExample,
    "pairs": ManifestPair,
    "unmatched": UnmatchedSpan,
    "canaries": ManifestCanary,
    "twins": ManifestTwins,
}
"""A manifest's long lists, and what they hold."""


def digest(content: JsonObject) -> str:
    """Return SHA-256 of canonical JSON without ``digest`` and ``name``, in hex."""
    hashed = {
        name: value for name, value in content.items() if name not in ("digest", "name")
    }
    sha256 = hashlib.sha256()
    for piece in canonical_pieces(hashed):
        sha256.update(piece)
    return sha256.hexdigest()


def canonical_pieces(content: JsonObject) -> Iterator[bytes]:
    """Yield canonical JSON of a content, piece by piece."""
    separator = b"{"
    for name in sorted(content):
        yield separator + canonical_json(name) + b":"
        value = content[name]
        if isinstance(value, Records):
            yield from value.pieces()
        else:
            yield canonical_json(value)
        separator = b","
    yield b"}"


def seal(content: JsonObject) -> Manifest:
    """Validate a manifest's content and give it its digest.

    Its lists may be iterables, which are gone through once.
    """
    draft = checked_content({**content, "digest": ""}, where="manifest")
    return draft.having(digest=digest(content_of(draft)))


def _tables(content: JsonObject) -> dict[str, Records[Any]]:
    """Return the long lists of a content that are lists or iterables, packed.

    Raises
    ------
    ValueError, RecursionError
        If one cannot be written as JSON.
    """
    tables: dict[str, Records[Any]] = {}
    for name, kind in MANIFEST_PARTS.items():
        records = content.get(name)
        if isinstance(records, Records):
            tables[name] = records
        elif isinstance(records, Iterable) and not isinstance(records, str | Mapping):
            tables[name] = Records.of(kind, records, name=name)
    return tables


def checked_content(content: JsonObject, *, where: str) -> Manifest:
    """Return the manifest of a content; refuse one that is malformed."""
    try:
        tables = _tables(content)
        # Without them it is a manifest too: that of no example.
        head = canonical_json({**content, **dict.fromkeys(tables, ())})
        draft = Manifest.model_validate_json(head).having(**tables)
        check_joined(draft)
    except (ValueError, RecursionError) as error:
        what = str(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_input=False, include_url=False)[0]
            place = files.field_path(first["loc"], Manifest.model_json_schema())
            field = ".".join(filter(None, [*getattr(error, "__notes__", ()), place]))
            # Whatever a check of ours says stands behind "Value error, ".
            said = first["msg"].lower().removeprefix("value error, ")
            what = f"field {field}: {said}"
        fix = "build the manifest again with this version of SPARK Audit"
        raise InputError(what, where=where, fix=fix) from error
    return draft


def check_joined(manifest: Manifest) -> None:
    """Check that what names an example names one that is here, and a place in it.

    Raises
    ------
    ValueError
        With the part that does not fit.
    """
    is_whole = manifest.redacted_from is None
    sizes = _checked_examples(manifest, is_whole=is_whole)
    # To go through a large manifest again for its ids would take seconds.
    manifest.__dict__["by_id"] = ById(manifest.examples, sizes)

    _check_pairs(manifest, sizes, is_whole=is_whole)
    for i, span in enumerate(manifest.unmatched):
        _check_place(f"unmatched.{i}", span.example, span, sizes)
    _check_candidate_sets(manifest, sizes)
    _check_membership(manifest, sizes)


class _Size(NamedTuple):
    """What is kept of an example to check others: the example itself takes 10 KB.

    ``n_characters`` and ``n_tokens`` are 0 where the manifest was redacted.
    """

    n_characters: int
    n_tokens: int
    split: str


class _Once:
    """Refuses a key of a part that was given before."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._seen: set[object] = set()

    def check(self, i: int, key: object) -> None:
        """Refuse the key of the part's record ``i`` if another has it, too."""
        if key in self._seen:
            raise ValueError(f"{self._part}.{i} stands twice")
        self._seen.add(key)


def _checked_examples(manifest: Manifest, *, is_whole: bool) -> dict[str, _Size]:
    """Return the sizes of examples by id; refuse empty ones and ids given twice."""
    once = _Once("examples")
    sizes: dict[str, _Size] = {}
    for i, example in enumerate(manifest.examples):
        once.check(i, example.id)
        size = _Size(
            n_characters=len(example.text),
            n_tokens=len(example.reference_unll),
            split=example.split,
        )
        if is_whole and not (size.n_characters and size.n_tokens):
            raise ValueError(f"examples.{i} has no text or no tokens")
        sizes[example.id] = size
    return sizes


def _check_place(
    field: str, example_id: str, place: Any, sizes: Mapping[str, _Size]
) -> None:
    """Refuse characters of an example that is not here, or that it does not have."""
    if example_id not in sizes:
        raise ValueError(f"{field} names an example that is not here")
    characters = (place.char_start, place.char_end)
    n_characters = sizes[example_id].n_characters or MAX_INTEGER
    check_inside(field, [characters], n_characters)


def _check_pairs(
    manifest: Manifest, sizes: Mapping[str, _Size], *, is_whole: bool
) -> None:
    """Refuse a pair outside its example, one without figures, or one given twice."""
    once = _Once("pairs")
    for i, pair in enumerate(manifest.pairs):
        field = f"pairs.{i}"
        for side in (pair.pii, pair.control):
            _check_place(field, pair.example, side, sizes)
            tokens = (side.token_start, side.token_end)
            check_inside(field, [tokens], sizes[pair.example].n_tokens or MAX_INTEGER)
            if is_whole and (side.nll is None or pair.distance is None):
                raise ValueError(f"{field} has no nll or no distance")
        once.check(i, (pair.example, pair.pii.token_start, pair.pii.token_end))


def _check_candidate_sets(manifest: Manifest, sizes: Mapping[str, _Size]) -> None:
    """Refuse canaries and twins given twice, or outside of the examples."""
    once = _Once("canaries")
    for i, canary in enumerate(manifest.canaries):
        once.check(i, (canary.canary_id, canary.part))
        if canary.pair is not None:
            once.check(i, ("pair", canary.pair, canary.part, canary.held_out))
        for context in canary.contexts:
            _check_place(f"canaries.{i}.contexts", context.example, context, sizes)

    once = _Once("twins")
    for i, twins in enumerate(manifest.twins):
        once.check(i, twins.id)
        for context in twins.contexts:
            _check_place(f"twins.{i}.contexts", context.example, context, sizes)


def _check_membership(manifest: Manifest, sizes: Mapping[str, _Size]) -> None:
    """Refuse members that are no train rows, and non-members that are no test rows."""
    ids_by_side = {
        "members": (manifest.membership.members, "train"),
        "non_members": (manifest.membership.non_members, "test"),
    }
    for side, (ids, split) in ids_by_side.items():
        once = _Once(f"membership.{side}")
        for i, example_id in enumerate(ids):
            if example_id not in sizes or sizes[example_id].split != split:
                raise ValueError(f"membership.{side} holds no {split} row's id")
            once.check(i, example_id)


def content_of(manifest: Manifest) -> dict[str, Any]:
    """Return what a manifest's file holds, its long lists as tables."""
    tables = _tables({name: getattr(manifest, name) for name in MANIFEST_PARTS})
    head = manifest.having(**dict.fromkeys(MANIFEST_PARTS, []))
    return {**head.model_dump(mode="json"), **tables}
