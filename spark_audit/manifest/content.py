"""Pack, check and seal the content of a manifest.

A *content* is a manifest as a dictionary of JSON values; its long lists may be packed
(:mod:`spark_audit.manifest.packed_lists`). Its fields are checked by
:mod:`spark_audit.manifest.schema`, and references between its parts by
:func:`check_joined`, where a further such check belongs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from spark_audit import files
from spark_audit.errors import InputError
from spark_audit.json_values import JsonObject
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.examples_by_id import ById
from spark_audit.manifest.field_types import MAX_INTEGER, check_inside
from spark_audit.manifest.packed_lists import Records
from spark_audit.manifest.schema import (
    CanaryContext,
    Manifest,
    ManifestCanary,
    ManifestPair,
    ManifestTwins,
    UnmatchedSpan,
)
from spark_audit.provenance import canonical_json

MANIFEST_PARTS: Mapping[str, type[Any]] = {
    "examples": ManifestExample,
    "pairs": ManifestPair,
    "unmatched": UnmatchedSpan,
    "canaries": ManifestCanary,
    "twins": ManifestTwins,
}
"""The long lists of a manifest, which are packed, with the class of their records."""


def digest(content: JsonObject) -> str:
    """Return the SHA-256 of canonical JSON without ``digest`` and ``name``, in hex."""
    hashed = {
        name: value for name, value in content.items() if name not in ("digest", "name")
    }

    # In pieces, because the JSON of a large manifest would take gigabytes.
    sha256 = hashlib.sha256()
    for piece in canonical_pieces(hashed):
        sha256.update(piece)
    return sha256.hexdigest()


def canonical_pieces(content: JsonObject) -> Iterator[bytes]:
    """Yield the canonical JSON of a content, piece by piece."""
    separator = b"{"
    for name in sorted(content):
        yield separator + canonical_json(name) + b":"

        # Packed lists already hold the JSON of their records.
        value = content[name]
        if isinstance(value, Records):
            yield from value.json_pieces()
        else:
            yield canonical_json(value)
        separator = b","
    yield b"}"


def seal(content: JsonObject) -> Manifest:
    """Validate a manifest's content, and add its digest.

    The lists may be iterables, which are consumed unique_keys.
    """
    # The digest covers the checked content, with defaults filled in.
    draft = checked_content({**content, "digest": ""}, where="manifest")
    return draft.with_parts(digest=digest(content_of(draft)))


def _packed_lists(content: JsonObject) -> dict[str, Records[Any]]:
    """Return the long lists of a content in packed form.

    Raises
    ------
    ValueError, RecursionError
        If a list cannot be written as JSON.
    """
    packed_lists: dict[str, Records[Any]] = {}
    for name, record_class in MANIFEST_PARTS.items():
        records = content.get(name)
        if isinstance(records, Records):
            packed_lists[name] = records
        elif isinstance(records, Iterable) and not isinstance(records, str | Mapping):
            packed_lists[name] = Records.pack(record_class, records, name=name)
    return packed_lists


def checked_content(content: JsonObject, *, where: str) -> Manifest:
    """Return the manifest of a content; refuse malformed content.

    Raises
    ------
    InputError
        Names the first bad field, but never its value.
    """
    try:
        packed_lists = _packed_lists(content)
        # Without its lists, the content is a valid manifest without examples, and is
        # checked as a whole. Records of the lists are checked one by one, when they are
        # read.
        head = canonical_json({**content, **dict.fromkeys(packed_lists, ())})
        draft = Manifest.model_validate_json(head).with_parts(**packed_lists)
        check_joined(draft)
    except (ValueError, RecursionError) as error:
        raise InputError(
            _problem_of(error),
            where=where,
            fix="build the manifest again with this version of SPARK Audit",
        ) from None
    return draft


def _problem_of(error: ValueError | RecursionError) -> str:
    """Return a description of the problem, without any values."""
    if not isinstance(error, ValidationError):
        return str(error)

    first = error.errors(include_input=False, include_url=False)[0]
    path = files.field_path(first["loc"], Manifest.model_json_schema())
    # Records adds a note that names the record of the field.
    steps = [*getattr(error, "__notes__", ()), path]
    field = ".".join(step for step in steps if step)
    # pydantic puts "Value error, " in front of our own messages.
    problem = first["msg"].lower().removeprefix("value error, ")
    return f"field {field}: {problem}"


def check_joined(manifest: Manifest) -> None:
    """Check that all references name an example of the manifest and a place in it.

    Raises
    ------
    ValueError
        Names the part that does not fit.
    """
    # Only a redacted manifest may lack texts and scores.
    is_whole = manifest.redacted_from is None
    sizes = _checked_examples(manifest, is_whole=is_whole)

    # The ids are kept as the cached property: to read a large manifest again for them
    # would take seconds.
    manifest.__dict__["by_id"] = ById(manifest.examples, sizes)

    _check_pairs(manifest, sizes, is_whole=is_whole)
    for number, span in enumerate(manifest.unmatched):
        characters = (span.char_start, span.char_end)
        _check_place(f"unmatched.{number}", span.example, characters, sizes)
    _check_candidate_sets(manifest, sizes)
    _check_membership(manifest, sizes)


class _Size(NamedTuple):
    """The sizes of an example, which are kept because the example takes 10 KB.

    ``n_characters`` and ``n_tokens`` are 0 in a redacted manifest.
    """

    n_characters: int
    n_tokens: int
    split: str


class _UniqueKeys:
    """A check that refuses duplicate keys in one list of the manifest."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._seen: set[object] = set()

    def check(self, number: int, key: object) -> None:
        """Refuse the key of a record if an earlier record has the same key."""
        if key in self._seen:
            raise ValueError(f"{self._part}.{number} stands twice")
        self._seen.add(key)


def _checked_examples(manifest: Manifest, *, is_whole: bool) -> dict[str, _Size]:
    """Return the sizes of examples by id; refuse empty examples and duplicate ids."""
    unique_keys = _UniqueKeys("examples")
    sizes: dict[str, _Size] = {}
    for number, example in enumerate(manifest.examples):
        unique_keys.check(number, example.id)
        size = _Size(
            n_characters=len(example.text),
            n_tokens=len(example.reference_unll),
            split=example.split,
        )
        # Only examples of a redacted manifest may have neither text nor tokens.
        if is_whole and not (size.n_characters and size.n_tokens):
            raise ValueError(f"examples.{number} has no text or no tokens")
        sizes[example.id] = size
    return sizes


def _check_place(
    field: str,
    example_id: str,
    characters: tuple[int, int],
    sizes: Mapping[str, _Size],
) -> None:
    """Refuse a place in an unknown example or outside of its text."""
    if example_id not in sizes:
        raise ValueError(f"{field} names an example that is not here")

    n_characters = sizes[example_id].n_characters or MAX_INTEGER
    check_inside(field, [characters], n_characters)


def _check_pairs(
    manifest: Manifest, sizes: Mapping[str, _Size], *, is_whole: bool
) -> None:
    """Refuse a pair that is outside of its example, lacks figures, or occurs twice."""
    unique_keys = _UniqueKeys("pairs")
    for number, pair in enumerate(manifest.pairs):
        field = f"pairs.{number}"
        for side in (pair.pii, pair.control):
            characters = (side.char_start, side.char_end)
            _check_place(field, pair.example, characters, sizes)

            tokens = (side.token_start, side.token_end)
            check_inside(field, [tokens], sizes[pair.example].n_tokens or MAX_INTEGER)
            if is_whole and (side.nll is None or pair.distance is None):
                raise ValueError(f"{field} has no nll or no distance")

        # An identifier with two pairs would count twice.
        unique_keys.check(
            number, (pair.example, pair.pii.token_start, pair.pii.token_end)
        )


def _check_candidate_sets(manifest: Manifest, sizes: Mapping[str, _Size]) -> None:
    """Refuse canaries and twins that occur twice or lie outside of their examples."""
    unique_keys = _UniqueKeys("canaries")
    for number, canary in enumerate(manifest.canaries):
        unique_keys.check(number, (canary.canary_id, canary.part))
        # A coin pair consists of one planted and one held-out canary.
        if canary.pair is not None:
            unique_keys.check(
                number, ("pair", canary.pair, canary.part, canary.held_out)
            )
        _check_contexts(f"canaries.{number}.contexts", canary.contexts, sizes)

    unique_keys = _UniqueKeys("twins")
    for number, twins in enumerate(manifest.twins):
        unique_keys.check(number, twins.id)
        _check_contexts(f"twins.{number}.contexts", twins.contexts, sizes)


def _check_contexts(
    field: str, contexts: Iterable[CanaryContext], sizes: Mapping[str, _Size]
) -> None:
    """Refuse contexts outside of their examples."""
    for context in contexts:
        characters = (context.char_start, context.char_end)
        _check_place(field, context.example, characters, sizes)


def _check_membership(manifest: Manifest, sizes: Mapping[str, _Size]) -> None:
    """Refuse members that are not train rows, or non-members that are not test rows."""
    _check_side("members", manifest.membership.members, "train", sizes)
    _check_side("non_members", manifest.membership.non_members, "test", sizes)


def _check_side(
    side: str, ids: Sequence[str], split: str, sizes: Mapping[str, _Size]
) -> None:
    """Refuse duplicate ids, and ids of rows in the other split."""
    unique_keys = _UniqueKeys(f"membership.{side}")
    for number, example_id in enumerate(ids):
        if example_id not in sizes or sizes[example_id].split != split:
            raise ValueError(f"membership.{side} holds an id that no {split} row has")
        unique_keys.check(number, example_id)


def content_of(manifest: Manifest) -> dict[str, object]:
    """Return the content of a manifest's file, with packed lists."""
    packed_lists = _packed_lists(
        {name: getattr(manifest, name) for name in MANIFEST_PARTS}
    )
    head = manifest.with_parts(**dict.fromkeys(MANIFEST_PARTS, []))
    return {**head.model_dump(mode="json"), **packed_lists}
