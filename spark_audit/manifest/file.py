"""The manifest as a file: sealed, checked, written, read, redacted, held to a model."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import ValidationError

from spark_audit import files
from spark_audit.data.arrow_messages import check_messages, open_messages
from spark_audit.errors import InputError, OutputError, SparkError
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
    MembershipRows,
    UnmatchedSpan,
    check_inside,
)
from spark_audit.provenance import canonical_json

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded

MAGIC = b"ARROW1"
"""How an Arrow file begins."""
BATCH = pa.schema([("part", pa.string()), ("json", pa.binary())])
"""Records of one list as an Arrow file has them."""
MANIFEST = "give a file of `spark-audit manifest build`"
FIX = "build it again, or get the original file"
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
    for piece in _canonical(kept):
        found.update(piece)
    return found.hexdigest()


def _canonical(content: JsonObject) -> Iterator[bytes]:
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
    draft = _checked({**content, "digest": ""}, where="manifest")
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


def _checked(content: JsonObject, *, where: str) -> Manifest:
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


def write_manifest(manifest: Manifest, path: str | Path) -> None:
    """Write a manifest, whole or not at all, readable by the owner only.

    A path that ends in ``.arrow`` is an Arrow file, for many rows, of which no more is
    read than is asked for; any other is canonical JSON, which is read as a whole.
    """
    content, path = content_of(manifest), Path(path)
    if path.suffix == ".arrow":
        write_arrow(content, path)
        return

    def write(file: IO[bytes]) -> None:
        file.writelines(_canonical(content))
        file.write(b"\n")

    files.write_atomically(path, write, mode=0o600)


def load_manifest(path: str | Path | Manifest) -> Manifest:
    """Read and verify a manifest of either format; one that is read stays.

    Raises
    ------
    TypeError
        If it is neither a path nor a manifest.
    OutputError
        If it cannot be read.
    InputError
        If it does not exist, is no manifest, of another schema version, malformed, or
        was changed.
    """
    if isinstance(path, Manifest):
        return path
    if not isinstance(path, str | Path):
        raise TypeError(f"manifest: {type(path).__name__} is no path and no Manifest")
    path = Path(path).expanduser()
    content = _content_of_file(path)
    if not isinstance(content, dict) or content.get("kind") != "spark-audit-manifest":
        raise InputError("is no SPARK Audit manifest", where=str(path), fix=MANIFEST)
    found = _checked(content, where=str(path))
    tables = {name: getattr(found, name) for name in MANIFEST_PARTS if name in content}
    if found.digest != digest({**content, **tables}):
        raise InputError(
            "was changed after it was built: its digest does not fit its content",
            where=str(path),
            fix=FIX,
        )
    return found


def _content_of_file(path: Path) -> Any:
    """What a file holds; nothing where it is known to be something else."""
    try:
        with files.open_regular(path, follow=True) as file:
            if file.peek(len(MAGIC)).startswith(MAGIC):
                return read_arrow(path)
            raw = files.read_whole(file, most=files.data_bytes())
        return files.parse_json(raw, place=str(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise files.no_such_path(path, otherwise=MANIFEST) from error
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        kind: type[SparkError] = OutputError
        if path.is_dir():
            what, kind = "is a folder, not a manifest", InputError
        raise kind(what, where=str(path), fix=files.instead(path, MANIFEST)) from error
    except (pa.ArrowException, KeyError, TypeError, ValueError, struct.error) as error:
        what = "was changed, is not whole, or is no manifest"
        raise InputError(what, where=str(path), fix=FIX) from error


def check_fit(
    manifest: Manifest, checkpoint: Loaded, *, base_sha256: str | None
) -> list[str]:
    """Refuse a checkpoint that the manifest was not made for.

    Parameters
    ----------
    base_sha256
        Hash of the base's weights; ``None`` for full weights, whose base cannot be
        verified: architecture, vocabulary and shape are compared instead.

    Returns
    -------
    list
        Notes for the report, such as ``base not verifiable``.

    Raises
    ------
    InputError
        With what differs.
    """
    reference = manifest.reference
    shape, known = checkpoint.shape, reference.shape or {}
    rows = len(checkpoint.usable)
    # More rows than the base's are left out of every figure.
    if checkpoint.has_rows_of(reference.tokenizer_sha256, reference.vocab_size):
        rows = reference.vocab_size
    compared: list[tuple[str, object, object]] = [
        ("tokenizer", checkpoint.read_by, reference.tokenizer_sha256),
        ("base weights", base_sha256, reference.weights_sha256),
        ("architecture", checkpoint.architecture, reference.architecture),
        ("vocabulary", rows, reference.vocab_size),
    ]
    for size in sorted(shape.keys() & known.keys()):
        compared.append((size, shape[size], known[size]))
    differs = [
        f"{what} ({_short(theirs)} here, {_short(ours)} in the manifest)"
        for what, theirs, ours in compared
        if theirs is not None and theirs != ours
    ]
    if differs:
        raise InputError(
            f"manifest {manifest.name!r} was made for another model: "
            + ", ".join(differs),
            where=f"checkpoint {checkpoint.name!r}",
            fix="build a manifest from this checkpoint's base",
        )
    told = base_sha256 is not None
    return [] if told else ["base not verifiable: full weights name no base"]


def _short(value: object) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else text


def limited(manifest: Manifest, ids: set[str]) -> Manifest:
    """The part of a manifest that concerns some examples; the digest stays."""

    def concerns(part: Any) -> bool:
        if isinstance(part, ManifestExample):
            return part.id in ids
        contexts = getattr(part, "contexts", [part])
        return bool(contexts) and all(one.example in ids for one in contexts)

    return manifest.having(
        **{
            name: Records.of(kind, filter(concerns, getattr(manifest, name)), name=name)
            for name, kind in MANIFEST_PARTS.items()
        },
        membership=MembershipRows(
            members=[i for i in manifest.membership.members if i in ids],
            non_members=[i for i in manifest.membership.non_members if i in ids],
        ),
    )


# --- the file of many rows ------------------------------------------------------------


def write_arrow(content: JsonObject, path: Path) -> None:
    """Write a manifest's content: records in rows, the rest as metadata of the schema.

    Raises
    ------
    OutputError
        If it cannot be written; a file that stood there before is as it was.
    """
    tables = {k: v for k, v in content.items() if isinstance(v, Records)}
    # A table without a record has no row that could name it.
    head = {k: [] if k in tables else v for k, v in content.items()}
    schema = BATCH.with_metadata({"manifest": canonical_json(head)})

    def write(file: IO[bytes]) -> None:
        with pa.ipc.new_file(file, schema) as writer:
            for name, table in tables.items():
                for chunk in table.json.chunks:
                    writer.write_batch(as_batch(name, chunk))

    files.write_atomically(path, write, mode=0o600)


def read_arrow(path: Path) -> Any:
    """The content of :func:`write_arrow`; records stay on disk.

    Raises
    ------
    KeyError, pyarrow.ArrowException
        If the file is damaged, or another one.
    InputError
        If its metadata is no JSON, or it decodes to too much for its size.
    """
    buffer = pa.memory_map(str(path)).read_buffer()
    size = path.stat().st_size
    check_messages(buffer, size=size, place=str(path), is_file=True)
    table = open_messages(buffer, is_file=True).read_all()
    table.validate(full=True)
    if not table.schema.equals(BATCH):
        raise KeyError
    content = files.parse_json(table.schema.metadata[b"manifest"], place=str(path))
    return {**content, **tables_of(table.to_batches())}


def as_batch(part: str, chunk: pa.Array) -> pa.RecordBatch:
    """Some records' JSON with the name of their list."""
    return pa.record_batch([pa.repeat(part, len(chunk)), chunk], schema=BATCH)


def tables_of(batches: Iterable[pa.RecordBatch]) -> dict[str, Records[Any]]:
    """The lists whose records stand in batches; another's name is a ``KeyError``."""
    chunks: dict[str, list[pa.Array]] = {}
    for batch in batches:
        chunks.setdefault(batch["part"][0].as_py(), []).append(batch["json"])
    return {
        part: Records(MANIFEST_PARTS[part], own, name=part)
        for part, own in chunks.items()
    }


# --- a manifest without text ----------------------------------------------------------


NOT_SHOWN = "not shown"
"""Stands in a redacted copy for the digest of its original."""
REDACTED = (
    "redacted: prompts, responses, canary candidates, the scores of tokens and spans, "
    "and checksums of data files were left out, and with the text the forms by which "
    "audits compare identifiers; rows, sources and clusters are numbered: it can be "
    "read, not audited with"
)
_REDACTED_FIELDS: Mapping[str, Any] = {
    **dict.fromkeys(("prompt", "response", "classes", "role"), ""),
    **dict.fromkeys(("reference_unll", "low", "candidates"), []),
    **dict.fromkeys(("nll", "distance", "true_index", "token_ids"), None),
}
"""Fields of records that are left out, and what stands in their place."""


def redact(manifest: Manifest) -> Manifest:
    """The manifest without text: it can be read and shown, but not audited with.

    Prompts, responses, candidates, twins and what is said of single tokens and spans
    are left out, and so is the balance: with the reference model, scores are as good as
    text. Offsets and token counts stay. Rows, sources and clusters are numbered, since
    an id may name somebody. The original's digest is left out, since a guess of the
    text could be tried out against it.
    """
    numbers: dict[str, dict[str, str]] = {}
    for field, word in (("id", "row"), ("source_id", "source"), ("cluster",) * 2):
        names = dict.fromkeys(getattr(one, field) for one in manifest.examples)
        numbers[field] = {name: f"{word} {i}" for i, name in enumerate(names, 1)}
    numbers |= dict.fromkeys(("example", "members", "non_members"), numbers["id"])

    def redacted(value: Any, field: str = "") -> Any:
        if field in _REDACTED_FIELDS:
            return _REDACTED_FIELDS[field]
        if isinstance(value, dict):
            return {name: redacted(held, name) for name, held in value.items()}
        if isinstance(value, list):
            return [redacted(held, field) for held in value]
        return numbers[field].get(value, value) if field in numbers else value

    def records(part: str) -> Iterator[Any]:
        for one in getattr(manifest, part):
            yield redacted(one.model_dump(mode="json"))

    return seal(
        {
            **content_of(manifest),
            **{part: records(part) for part in ("examples", "pairs", "unmatched")},
            "canaries": (
                {**canary, "reason": canary["reason"] or "redacted"}
                for canary in records("canaries")
            ),
            "membership": redacted(manifest.membership.model_dump()),
            "redacted_from": NOT_SHOWN,
            # With a pair or two their mean is a span's score.
            "balance": [],
            # Of few rows a guess could be held against their checksum.
            "data": [
                {k: v for k, v in e.items() if k != "sha256"} for e in manifest.data
            ],
            "twins": [],
            "notes": [*dict.fromkeys((*manifest.notes, REDACTED))],
        }
    )
