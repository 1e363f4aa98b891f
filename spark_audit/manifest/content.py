"""A manifest's content: packed, checked, sealed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    pass


MANIFEST_PARTS: Mapping[str, type[Any]] = {
    "examples": ManifestExample,
    "pairs": ManifestPair,
    "unmatched": UnmatchedSpan,
    "canaries": ManifestCanary,
    "twins": ManifestTwins,
}
"""A manifest's long lists, and what they hold."""


def digest(content: JsonObject) -> str:
    """SHA-256 of canonical JSON without ``digest`` and ``name``, in hex."""
    kept = {k: v for k, v in content.items() if k not in ("digest", "name")}
    found = hashlib.sha256()
    for piece in canonical_pieces(kept):
        found.update(piece)
    return found.hexdigest()


def canonical_pieces(content: JsonObject) -> Iterator[bytes]:
    """Canonical JSON of a content, piece by piece."""
    for k, key in enumerate(sorted(content)):
        yield (b"," if k else b"{") + canonical_json(key) + b":"
        value = content[key]
        yield from (
            value.pieces() if isinstance(value, Records) else [canonical_json(value)]
        )
    yield b"}"


def seal(content: JsonObject) -> Manifest:
    """Validate a manifest's content and give it its digest.

    Its lists may be iterables, which are gone through once.
    """
    draft = checked_content({**content, "digest": ""}, where="manifest")
    return draft.having(digest=digest(content_of(draft)))


def _tables(content: JsonObject) -> dict[str, Records[Any]]:
    """The long lists of a content that are lists or iterables, packed.

    Raises
    ------
    ValueError, RecursionError
        If one cannot be written as JSON.
    """
    return {
        name: held if isinstance(held, Records) else Records.of(kind, held, name=name)
        for name, kind in MANIFEST_PARTS.items()
        if isinstance(held := content.get(name), Iterable)
        and not isinstance(held, str | Mapping)
    }


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
    """What names an example names one that is here, and a place in it.

    Raises
    ------
    ValueError
        With the part that does not fit.
    """
    whole = manifest.redacted_from is None
    # Letters, tokens (0 where redacted) and split: an example itself takes 10 KB.
    sizes: dict[str, tuple[int, int, str]] = {}
    seen: dict[str, set[object]] = {}

    def once(part: str, i: int, key: object) -> None:
        if part not in seen:
            seen.clear()  # of parts before
        if key in seen.setdefault(part, set()):
            raise ValueError(f"{part}.{i} stands twice")
        seen[part].add(key)

    def inside(field: str, key: str, place: Any) -> None:
        if key not in sizes:
            raise ValueError(f"{field} names an example that is not here")
        at = place.char_start, place.char_end
        check_inside(field, [at], sizes[key][0] or MAX_INTEGER)

    for i, example in enumerate(manifest.examples):
        once("examples", i, example.id)
        letters, tokens = len(example.text), len(example.reference_unll)
        if whole and not (letters and tokens):
            raise ValueError(f"examples.{i} has no text or no tokens")
        sizes[example.id] = letters, tokens, example.split
    # To go through a large manifest again for its ids would take seconds.
    manifest.__dict__["by_id"] = ById(manifest.examples, sizes)
    for i, pair in enumerate(manifest.pairs):
        for side in (pair.pii, pair.control):
            inside(f"pairs.{i}", pair.example, side)
            at = side.token_start, side.token_end
            check_inside(f"pairs.{i}", [at], sizes[pair.example][1] or MAX_INTEGER)
            if whole and (side.nll is None or pair.distance is None):
                raise ValueError(f"pairs.{i} has no nll or no distance")
        once("pairs", i, (pair.example, pair.pii.token_start, pair.pii.token_end))
    for i, span in enumerate(manifest.unmatched):
        inside(f"unmatched.{i}", span.example, span)
    whose = {"canaries": attrgetter("canary_id", "part"), "twins": attrgetter("id")}
    for part, key in whose.items():
        for i, held in enumerate(getattr(manifest, part)):
            once(part, i, key(held))
            if part == "canaries" and held.pair is not None:
                once(part, i, ("pair", held.pair, held.part, held.held_out))
            for one in held.contexts:
                inside(f"{part}.{i}.contexts", one.example, one)
    for part, split in (("members", "train"), ("non_members", "test")):
        for i, key in enumerate(getattr(manifest.membership, part)):
            if key not in sizes or sizes[key][2] != split:
                raise ValueError(f"membership.{part} holds no {split} row's id")
            once(f"membership.{part}", i, key)


def content_of(manifest: Manifest) -> dict[str, Any]:
    """What a manifest's file holds, its long lists as tables."""
    tables = _tables({name: getattr(manifest, name) for name in MANIFEST_PARTS})
    head = manifest.having(**dict.fromkeys(MANIFEST_PARTS, []))
    return {**head.model_dump(mode="json"), **tables}
