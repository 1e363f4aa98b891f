"""The manifest as a file: sealed, written, read, redacted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from pydantic import ValidationError

from spark_audit.errors import InputError, OutputError, SparkError
from spark_audit.files import (
    data_bytes,
    field_path,
    open_regular,
    parse_json,
    read_whole,
    write_atomically,
)
from spark_audit.manifest.consistency import MOST, check_joined
from spark_audit.manifest.redaction import ids_identify
from spark_audit.manifest.schema import (
    Manifest,
    ManifestCanary,
    ManifestExample,
    ManifestPair,
    ManifestTwins,
    UnmatchedSpan,
)
from spark_audit.manifest.tables import MAGIC, Table, read_arrow, write_arrow
from spark_audit.provenance import canonical_json
from spark_audit.terminal.suggestions import goes, instead

NOT_SHOWN = "not shown"
"""Stands in a redacted copy for the digest of its original."""
NO_MANIFEST = "is no SPARK Audit manifest"
MANIFEST = "give a file of `spark-audit manifest build`"
FIX = "build it again, or get the original file"
REDACTED = (
    "redacted: prompts, responses, canary candidates, the scores of tokens and spans, "
    "and checksums of data files were left out, and with the text the forms by which "
    "audits compare identifiers: it can be read, not audited with"
)


PARTS: Mapping[str, type[Any]] = {
    "examples": ManifestExample,
    "pairs": ManifestPair,
    "unmatched": UnmatchedSpan,
    "canaries": ManifestCanary,
    "twins": ManifestTwins,
}
"""A manifest's long lists, and what they hold."""


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of canonical JSON without ``digest`` and ``name``, in hex."""
    kept = {k: v for k, v in content.items() if k not in ("digest", "name")}
    found = hashlib.sha256()
    for piece in _canonical(kept):
        found.update(piece)
    return found.hexdigest()


def _canonical(content: Mapping[str, Any]) -> Iterator[bytes]:
    """Canonical JSON of a content, piece by piece."""
    for k, key in enumerate(sorted(content)):
        yield (b"," if k else b"{") + canonical_json(key) + b":"
        value = content[key]
        yield from (
            value.pieces() if isinstance(value, Table) else [canonical_json(value)]
        )
    yield b"}"


def seal(content: Mapping[str, Any]) -> Manifest:
    """Validate a manifest's content and give it its digest.

    Its lists may be iterables, which are gone through once.
    """
    draft = _checked({**content, "digest": ""}, where="manifest")
    return draft.having(digest=digest(content_of(draft)))


def _tables(content: Mapping[str, Any]) -> dict[str, Table[Any]]:
    """The long lists of a content that are lists or iterables, packed.

    Raises
    ------
    ValueError, RecursionError
        If one cannot be written as JSON.
    """
    return {
        name: held if isinstance(held, Table) else Table.of(kind, held, name=name)
        for name, kind in PARTS.items()
        if isinstance(held := content.get(name), Iterable)
        and not isinstance(held, str | Mapping)
    }


def _checked(content: Mapping[str, Any], *, where: str) -> Manifest:
    tables = _tables(content)
    try:
        # Without them it is a manifest too: that of no example.
        head = canonical_json({**content, **dict.fromkeys(tables, ())})
        draft = Manifest.model_validate_json(head).having(**tables)
        check_joined(draft)
    except ValueError as error:
        what = str(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_input=False, include_url=False)[0]
            place = field_path(first["loc"], Manifest.model_json_schema())
            field = ".".join(filter(None, [*getattr(error, "__notes__", ()), place]))
            # Whatever a check of ours says stands behind "Value error, ".
            said = first["msg"].lower().removeprefix("value error, ")
            what = f"field {field}: {said}"
        fix = "build the manifest again with this version of SPARK Audit"
        raise InputError(what, where=where, fix=fix) from error
    return draft


def content_of(manifest: Manifest) -> dict[str, Any]:
    """What a manifest's file holds, its long lists as tables."""
    tables = _tables({name: getattr(manifest, name) for name in PARTS})
    if not tables["twins"]:  # manifests before them had no such field
        del tables["twins"]
    head = manifest.having(**dict.fromkeys(PARTS, []))
    return {**head.model_dump(mode="json"), **tables}


def redact(manifest: Manifest) -> Manifest:
    """The manifest without text: it can be read and shown, but not audited with.

    Prompts, responses, candidates, twins and what is said of single tokens and spans
    are left out, and so is the balance: with the reference model, scores are as good as
    text. Offsets and token counts stay, and so do ids, unless one holds an identifier:
    then rows, sources and clusters are numbered. The original's digest is left out,
    since a guess of the text could be tried out against it.
    """
    rows, sources, clusters = _numbers(manifest)

    def numbered(part: Any, **changed: Any) -> Any:
        return part.model_copy(
            update={"example": rows.get(part.example, part.example), **changed}
        )

    notes = [REDACTED]
    if rows:
        notes.append("rows, sources and clusters are numbered: ids held identifiers")
    unscored = {"nll": None}
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
                e.model_copy(
                    update={
                        **{"prompt": "", "response": "", "classes": ""},
                        **{"reference_unll": [], "low": []},
                        "id": rows.get(e.id, e.id),
                        "source_id": sources.get(e.source_id, e.source_id),
                        "cluster": clusters.get(e.cluster, e.cluster),
                    }
                )
                for e in manifest.examples
            ),
            "pairs": (
                numbered(
                    p,
                    pii=p.pii.model_copy(update=unscored),
                    control=p.control.model_copy(update=unscored),
                    distance=None,
                )
                for p in manifest.pairs
            ),
            "unmatched": (numbered(u) for u in manifest.unmatched),
            "membership": {
                side: [rows.get(key, key) for key in getattr(manifest.membership, side)]
                for side in ("members", "non_members")
            },
            "canaries": (
                c.model_copy(
                    update={
                        "contexts": [numbered(one) for one in c.contexts],
                        **{"candidates": [], "true_index": None},
                        "reason": c.reason or "redacted",
                    }
                )
                for c in manifest.canaries
            ),
            "twins": [],
            "notes": [*dict.fromkeys((*manifest.notes, *notes))],
        }
    )


def _numbers(manifest: Manifest) -> list[dict[str, str]]:
    """Words for rows, sources and clusters; none where ids identify nobody."""
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
    """Refuse a name that says of no format what it is.

    Raises
    ------
    InputError
        If it ends in neither ``.json`` nor ``.arrow``, as a folder's.
    """
    if path.suffix not in (".json", ".arrow"):
        raise InputError(
            "is no name of a manifest",
            where=str(path),
            fix="give NAME.json, or NAME.arrow for many rows",
        )


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write a manifest, whole or not at all, readable by the owner only.

    A path that ends in ``.arrow`` is an Arrow file, for many rows, of which no more is
    read than is asked for; any other is canonical JSON, which is read as a whole.
    """
    content = content_of(manifest)
    if path.suffix == ".arrow":
        write_arrow(content, path)
        return

    def write(file: IO[bytes]) -> None:
        file.writelines(_canonical(content))
        file.write(b"\n")

    write_atomically(path, write, mode=0o600)


def load_manifest(path: str | Path | Manifest) -> Manifest:
    """Read and verify a manifest of either format; one that is read stays.

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
    content = _content_of_file(path)
    _check_heading(content, path)
    try:
        content |= _tables(content)
        fits = content.get("digest") == digest(content)
    except (ValueError, RecursionError) as error:
        raise InputError(
            "holds half a surrogate pair or too deep a nesting",
            where=str(path),
            fix=FIX,
        ) from error
    if not fits:
        raise InputError(
            "was changed after it was built: its digest does not fit its content",
            where=str(path),
            fix=FIX,
        )
    return _checked(content, where=str(path))


def _content_of_file(path: Path) -> Any:
    try:
        with open_regular(path, follow=True) as file:
            if file.peek(len(MAGIC)).startswith(MAGIC):
                return read_arrow(path, PARTS)
            raw = read_whole(file, most=data_bytes())
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        kind: type[SparkError] = OutputError
        if path.is_dir():
            what, kind = "is a folder, not a manifest", InputError
        otherwise = instead(path, wanted="manifest", otherwise=MANIFEST)
        raise kind(what, where=str(path), fix=otherwise) from error
    except (pa.ArrowException, KeyError, TypeError) as error:
        what = "was changed, is not whole, or is no manifest"
        raise InputError(what, where=str(path), fix=FIX) from error
    try:
        return parse_json(raw, place=str(path))
    except InputError as error:
        if (fix := goes(path, wanted="manifest")) is None:
            raise
        raise InputError(NO_MANIFEST, where=str(path), fix=fix) from error


def _check_heading(content: Any, path: Path) -> None:
    """Refuse what is no manifest, and one of another version."""
    if not isinstance(content, dict) or content.get("kind") != "spark-audit-manifest":
        fix = instead(path, wanted="manifest", otherwise=MANIFEST)
        raise InputError(NO_MANIFEST, where=str(path), fix=fix)
    version = content.get("schema_version")
    if version != 1:
        known = isinstance(version, int) and abs(version) < MOST
        raise InputError(
            f"has schema version {version if known else 'unknown'}, not 1",
            where=str(path),
            fix="build it again with this version of SPARK Audit",
        )
