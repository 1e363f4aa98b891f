"""The manifest as a file: sealed, written, read, redacted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from spark_audit.errors import InputError, OutputError
from spark_audit.files import (
    data_bytes,
    field_path,
    parse_json,
    read_regular,
    write_atomically,
)
from spark_audit.manifest.consistency import check_joined
from spark_audit.manifest.packed_lists import MOST, Packed, as_packed, canonical
from spark_audit.manifest.schema import (
    Manifest,
    ManifestCanary,
    ManifestExample,
    ManifestPair,
    ManifestTwins,
    UnmatchedSpan,
)
from spark_audit.provenance import canonical_json
from spark_audit.terminal.suggestions import goes, instead

NOT_SHOWN = "not shown"
"""Stands in a redacted copy for the digest of its original."""
NO_MANIFEST = "is no SPARK Audit manifest"
REDACTED = (
    "redacted: prompts, responses, canary candidates, the scores of tokens and spans, "
    "and checksums of data files were left out"
)


PARTS: Mapping[str, type[Any]] = {
    "examples": ManifestExample,
    "pairs": ManifestPair,
    "unmatched": UnmatchedSpan,
    "canaries": ManifestCanary,
    "twins": ManifestTwins,
    "membership.members": str,
    "membership.non_members": str,
}
"""Where a manifest's long lists stand, and what they hold."""


def is_folder(path: Path) -> bool:
    """Whether a manifest of this name is written as a folder."""
    return path.suffix.lower() != ".json"


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of canonical JSON without ``digest`` and ``name``, in hex."""
    told = {k: v for k, v in content.items() if k not in ("digest", "name")}
    found = hashlib.sha256()
    for piece in canonical(told):
        found.update(piece)
    return found.hexdigest()


def seal(content: Mapping[str, Any]) -> Manifest:
    """Validate a manifest's content and give it its digest.

    Its lists may be iterables, which are gone through once.
    """
    packed = with_packed(content, always=True)
    draft = assembled({**packed, "digest": ""}, where="manifest")
    # What is written is hashed, not what was given: 1 and 1.0 differ in JSON.
    kept = {name: part.settled() for name, part in _lists(draft)}
    draft = _having(draft, kept)
    return draft.having(digest=digest(content_of(draft)))


def with_packed(content: Mapping[str, Any], *, always: bool = False) -> dict[str, Any]:
    """A manifest's content, its lists packed; nothing is checked.

    Parameters
    ----------
    always
        Whether what is no list is packed too.

    Raises
    ------
    ValueError, RecursionError
        If it cannot be written as JSON.
    """
    found = dict(content)
    for path, kind in PARTS.items():
        *above, name = path.split(".")
        place: Any = found
        if above and isinstance(own := found.get(above[0]), Mapping):
            place = found[above[0]] = dict(own)
        held = place.get(name) if isinstance(place, dict) else None
        if isinstance(held, list) or (always and held is not None):
            place[name] = as_packed(kind, held, name=path)
    return found


def assembled(content: Mapping[str, Any], *, where: str) -> Manifest:
    """The manifest whose lists are packed already.

    Raises
    ------
    InputError
        If it is malformed.
    """
    head, lists = _apart(content)
    try:
        # Without them it is a manifest too: that of no example.
        draft = Manifest.model_validate_json(canonical_json(head))
        found = _having(draft, lists)
        check_joined(found)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = field_path(first["loc"], Manifest.model_json_schema())
        # Whatever a check of ours says stands behind "Value error, ".
        said = first["msg"].lower().removeprefix("value error, ")
        raise _malformed(f"field {field}: {said}" if field else said, where) from error
    except ValueError as error:
        raise _malformed(str(error), where) from error
    return found


def content_of(manifest: Manifest) -> dict[str, Any]:
    """What a manifest's file holds, its lists packed."""
    lists = dict(_lists(manifest))
    bare = _having(manifest, {name: [] for name in lists})
    return _placed(bare.model_dump(mode="json"), lists)


def _placed(
    content: dict[str, Any], lists: Mapping[str, Packed[Any]]
) -> dict[str, Any]:
    """A content with the lists in their places."""
    for path, part in lists.items():
        above, _, name = path.rpartition(".")
        place = content.get(above) if above else content
        if isinstance(place, dict) and (len(part) or path != "twins"):
            place[name] = part
    return content


def _lists(manifest: Manifest) -> Iterator[tuple[str, Packed[Any]]]:
    for path, kind in PARTS.items():
        yield path, as_packed(kind, attrgetter(path)(manifest), name=path)


def _having(manifest: Manifest, lists: Mapping[str, Any]) -> Manifest:
    own = {name: part for name, part in lists.items() if "." not in name}
    sides = {k.partition(".")[2]: part for k, part in lists.items() if "." in k}
    both = manifest.membership.model_copy(update=sides)
    return manifest.having(**own, membership=both)


def _apart(content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A content with empty lists, and the lists that are packed by their paths."""
    lists = {}

    def bare(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
        found = dict(values)
        for key, value in values.items():
            if isinstance(value, Packed):
                lists[above + key], found[key] = value, []
            elif key == "membership" and isinstance(value, Mapping):
                found[key] = bare(value, "membership.")
        return found

    return bare(content), lists


def _malformed(what: str, where: str) -> InputError:
    fix = "build the manifest again with this version of SPARK Audit"
    return InputError(what, where=where, fix=fix)


def redact(manifest: Manifest) -> Manifest:
    """The manifest without text: it can be read and shown, but not audited with.

    Prompts, responses, candidates, twins and what is said of single tokens and spans
    are left out, and so is the balance: with the reference model, scores are as good as
    text. Offsets and token counts stay, and so do ids, unless one holds an identifier:
    then rows, sources and clusters are numbered. The original's digest is left out,
    since a guess of the text could be tried out against it.
    """
    rows, sources, clusters = _numbers(manifest)

    def numbered(part: Any) -> dict[str, Any]:
        found: dict[str, Any] = part.model_dump(mode="json")
        if "example" in found:
            found["example"] = rows.get(part.example, part.example)
        return found

    blank = {"prompt": "", "response": "", "reference_unll": [], "classes": ""}
    unscored = {"nll": None}
    notes = [REDACTED]
    if rows:
        notes.append("rows, sources and clusters are numbered: ids held identifiers")
    return seal(
        {
            **content_of(manifest),
            "redacted_from": NOT_SHOWN,
            # With a pair or two their mean is a span's score.
            "balance": [],
            # Of few rows a guess could be held against their checksum.
            "data": [
                {k: v for k, v in e.items() if k != "sha256"} for e in manifest.data
            ],
            "examples": (
                {
                    **e.model_dump(mode="json"),
                    **blank,
                    "low": [],
                    "id": rows.get(e.id, e.id),
                    "source_id": sources.get(e.source_id, e.source_id),
                    "cluster": clusters.get(e.cluster, e.cluster),
                }
                for e in manifest.examples
            ),
            "pairs": (
                {
                    **numbered(p),
                    "pii": {**p.pii.model_dump(mode="json"), **unscored},
                    "control": {**p.control.model_dump(mode="json"), **unscored},
                    "distance": None,
                }
                for p in manifest.pairs
            ),
            "unmatched": (numbered(u) for u in manifest.unmatched),
            "membership": {
                side: [rows.get(key, key) for key in getattr(manifest.membership, side)]
                for side in ("members", "non_members")
            },
            "canaries": (
                {
                    **c.model_dump(mode="json"),
                    "contexts": [numbered(one) for one in c.contexts],
                    "candidates": [],
                    "true_index": None,
                    "reason": c.reason or "redacted",
                }
                for c in manifest.canaries
            ),
            "twins": [],
            "notes": [*dict.fromkeys((*manifest.notes, *notes))],
        }
    )


def _numbers(manifest: Manifest) -> list[dict[str, str]]:
    """Words for rows, sources and clusters; none where ids identify nobody."""
    from spark_audit.manifest.redaction import ids_identify

    words = {"id": "row", "source_id": "source", "cluster": "cluster"}
    named: list[dict[str, str]] = [{} for _ in words]
    if ids_identify(manifest):
        for own, (kind, word) in zip(named, words.items(), strict=True):
            for one in manifest.examples:
                own.setdefault(getattr(one, kind), f"{word} {len(own) + 1}")
    return named


def original(manifest: Manifest) -> Manifest:
    """The manifest, if it is one that can be audited with.

    Raises
    ------
    InputError
        If it was redacted.
    """
    if manifest.redacted_from is not None:
        raise InputError(
            "was redacted: it has no text and no scores to audit with",
            where=f"manifest {manifest.name!r}",
            fix="give the original that it was made from",
        )
    return manifest


def check_output(path: Path) -> None:
    """Refuse a folder to write a manifest to that holds other things.

    Raises
    ------
    InputError, OutputError
        If one does, or what stands there is no folder.
    """
    if is_folder(path):
        from spark_audit.manifest.folder import check_free

        check_free(path)


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write a manifest, whole or not at all, readable by the owner only.

    A path that ends in ``.json`` is one file of canonical JSON, which is read at once;
    any other is a folder (:mod:`spark_audit.manifest.folder`), for many rows.
    """
    if is_folder(path):
        from spark_audit.manifest.folder import write_folder

        write_folder(*_apart(content_of(manifest)), path)
        return

    def write(file: IO[bytes]) -> None:
        file.writelines(canonical(content_of(manifest)))
        file.write(b"\n")

    write_atomically(path, write, mode=0o600)


def load_manifest(path: str | Path | Manifest) -> Manifest:
    """Read and verify a manifest, be it a file or a folder; one that is read stays.

    Raises
    ------
    TypeError
        If it is neither a path nor a manifest.
    OutputError
        If it cannot be read.
    InputError
        If it is no manifest, of another schema version, malformed, or was changed.
    """
    if isinstance(path, Manifest):
        return path
    if not isinstance(path, str | Path):
        raise TypeError(f"manifest: {type(path).__name__} is no path and no Manifest")
    path = Path(path).expanduser()
    if not path.is_dir():
        content = _content_of_file(path)
        if "parts" not in content:
            return _verified(content, path)
        path = path.parent  # a folder's head was given
    from spark_audit.manifest.folder import HEAD, read_head, read_lists

    content = read_head(path)
    _check_heading(content, path / HEAD)
    lists = read_lists(content, path, PARTS)
    return _verified(_placed(content, lists), path)


def _content_of_file(path: Path) -> Any:
    try:
        raw = read_regular(path, follow=True, most=data_bytes())
    except OSError as error:
        raise OutputError(
            f"cannot be read ({error.strerror or error})",
            where=str(path),
            fix=instead(path, wanted="manifest"),
        ) from error
    try:
        content = parse_json(raw, place=str(path))
    except InputError as error:
        if (fix := goes(path, wanted="manifest")) is None:
            raise
        raise InputError(NO_MANIFEST, where=str(path), fix=fix) from error
    del raw
    _check_heading(content, path)
    try:
        return with_packed(content)
    except (ValueError, RecursionError) as error:
        raise _unwritable(path) from error


def _unwritable(path: Path) -> InputError:
    return InputError(
        "holds half a surrogate pair or too deep a nesting",
        where=str(path),
        fix="build it again, or get the original file",
    )


def _check_heading(content: Any, path: Path) -> None:
    """Refuse what is no manifest, and one of another version."""
    if not isinstance(content, dict) or content.get("kind") != "spark-audit-manifest":
        raise InputError(
            NO_MANIFEST,
            where=str(path),
            fix=instead(
                path,
                wanted="manifest",
                otherwise="give a file of `spark-audit manifest build`",
            ),
        )
    version = content.get("schema_version")
    if version != 1:
        known = isinstance(version, int) and abs(version) < MOST
        raise InputError(
            f"has schema version {version if known else 'unknown'}, not 1",
            where=str(path),
            fix="build it again with this version of SPARK Audit",
        )


def _verified(content: Mapping[str, Any], path: Path) -> Manifest:
    """The manifest, if its digest is that of its content, and it is well-formed."""
    try:
        found = digest(content)
    except (ValueError, RecursionError) as error:
        raise _unwritable(path) from error
    if content.get("digest") != found:
        raise InputError(
            "was changed after it was built: its digest does not fit its content",
            where=str(path),
            fix="build it again, or get the original file",
        )
    return assembled(content, where=str(path))
