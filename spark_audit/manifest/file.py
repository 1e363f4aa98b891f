"""Write and read manifest files, and check them against the audited model.

:mod:`spark_audit.manifest.content` checks what a file holds. A further property that a
checkpoint must share with a manifest is a line of :func:`check_fit`.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from spark_audit import files, wrong_paths
from spark_audit.arguments import checked_call
from spark_audit.checkpoints.given import IN_MEMORY
from spark_audit.data.arrow_messages import ARROW_MAGIC
from spark_audit.errors import InputError, OutputError, memory_failure
from spark_audit.manifest.arrow_file import read_arrow, write_arrow
from spark_audit.manifest.content import (
    MANIFEST_PARTS,
    canonical_pieces,
    checked_content,
    content_of,
    digest,
)
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.packed_lists import Records
from spark_audit.manifest.schema import Manifest, MembershipRows
from spark_audit.names import BASE

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint

GIVE_A_MANIFEST = "give a file of `spark-audit manifest build`"

REBUILD_FIX = "build it again, or get the original file"


def original(manifest: Manifest) -> Manifest:
    """Return the manifest if it can be used for audits.

    Raises
    ------
    InputError
        If the manifest was redacted.
    """
    if manifest.redacted_from is not None:
        raise InputError(
            "was redacted: it has no text and no scores to audit with",
            where=f"manifest {manifest.name!r}",
            fix="give the original that it was made from",
        )
    return manifest


def check_output(path: Path) -> None:
    """Refuse a file name that does not show the format.

    Raises
    ------
    InputError
        If it ends neither in ``.json`` nor in ``.arrow``.
    """
    if path.suffix not in (".json", ".arrow"):
        raise InputError(
            "is not the name of a manifest",
            where=str(path),
            fix="give NAME.json, or NAME.arrow for many rows",
        )


@checked_call
def write_manifest(manifest: Manifest, path: str | Path) -> None:
    """Write a manifest, whole or not at all, readable by the owner only.

    A path with the ending ``.arrow`` becomes an Arrow file. It suits data with many
    rows, because a reader loads only what it needs. Any other path becomes canonical
    JSON, which is read as a whole.

    Examples
    --------
    >>> sa.write_manifest(manifest, "m.arrow")
    >>> sa.read_manifest("m.arrow").digest == manifest.digest
    True
    """
    path = Path(path)
    content = content_of(manifest)
    if path.suffix == ".arrow":
        write_arrow(content, path)
        return

    def write(file: IO[bytes]) -> None:
        file.writelines(canonical_pieces(content))
        file.write(b"\n")

    files.write_atomically(path, write, mode=0o600)


@checked_call
def read_manifest(manifest: str | Path | Manifest) -> Manifest:
    """Read and verify a manifest in either format; return a given manifest unchanged.

    Raises
    ------
    ArgumentError
        If the argument is neither a path nor a manifest.
    OutputError
        If the file cannot be read.
    InputError
        If the file does not exist, is not a manifest, has another schema version, is
        malformed, or was changed.

    Examples
    --------
    >>> manifest = sa.read_manifest("m.json")
    >>> manifest.name
    'notes'
    """
    if isinstance(manifest, Manifest):
        return manifest

    path = Path(os.path.expanduser(manifest))
    content = _content_of_file(path)
    if not isinstance(content, dict) or content.get("kind") != "spark-audit-manifest":
        raise _no_manifest(path)

    # The digest covers the content exactly as the file has it, including fields that
    # this version does not know.
    manifest = checked_content(content, where=str(path))
    packed_lists = {
        name: getattr(manifest, name) for name in MANIFEST_PARTS if name in content
    }
    if manifest.digest != digest({**content, **packed_lists}):
        raise InputError(
            "was changed after it was built: its digest does not fit its content",
            where=str(path),
            fix=REBUILD_FIX,
        )
    return manifest


def _content_of_file(path: Path) -> object:
    """Return the content of a file, which may be any JSON value.

    Raises
    ------
    InputError
        If the file does not exist, is a folder, or is incomplete or not JSON.
    OutputError
        If the file cannot be read.
    """
    try:
        with files.open_regular(path, follow=True) as file:
            if file.peek(len(ARROW_MAGIC)).startswith(ARROW_MAGIC):
                return read_arrow(path)
            raw = files.read_whole(file, most=files.data_bytes())
        return _parsed(raw, path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise wrong_paths.no_such_path(path, otherwise=GIVE_A_MANIFEST) from error
    except OSError as error:
        advice = wrong_paths.instead(path, GIVE_A_MANIFEST)
        if path.is_dir():
            raise InputError(
                "is a folder, not a manifest", where=str(path), fix=advice
            ) from error
        raise OutputError(
            f"cannot be read ({error.strerror or error})", where=str(path), fix=advice
        ) from error
    except (pa.ArrowException, KeyError, TypeError, ValueError, struct.error) as error:
        raise InputError(
            "was changed, is not whole, or is no manifest",
            where=str(path),
            fix=REBUILD_FIX,
        ) from memory_failure(error)


def _parsed(raw: bytes, path: Path) -> object:
    """Return the JSON value of a file; say plainly that another file is no manifest.

    A manifest is one JSON object. Of a damaged one the error says how it is damaged.
    """
    # An empty file may be one that was not copied whole.
    starts_as_object = raw.lstrip()[:1] in (b"{", b"")
    has_byte_order_mark = raw.startswith(files.BYTE_ORDER_MARKS)
    if not starts_as_object and not has_byte_order_mark:
        raise _no_manifest(path)

    try:
        return files.parse_json(raw, place=str(path))
    except InputError as error:
        # JSON lines: a whole object, and another one behind it.
        # The error hides that of the decoder, which remains its context.
        cause = error.__context__
        if isinstance(cause, json.JSONDecodeError) and cause.msg == "Extra data":
            raise _no_manifest(path) from None
        raise


def _no_manifest(path: Path) -> InputError:
    """Return the error for a file of another kind."""
    return InputError(
        "is no SPARK Audit manifest", where=str(path), fix=GIVE_A_MANIFEST
    )


def check_fit(
    manifest: Manifest, checkpoint: Checkpoint, *, base_sha256: str | None
) -> list[str]:
    """Refuse a checkpoint that does not belong to the manifest.

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
        Names the difference.
    """
    reference = manifest.reference
    vocabulary_size = len(checkpoint.usable)
    # Tokens that were added to those of the base are left out of every figure.
    if checkpoint.has_rows_of(reference.tokenizer_sha256, reference.vocab_size):
        vocabulary_size = reference.vocab_size

    compared = [
        _Comparison(
            "tokenizer", checkpoint.scored_tokenizer_sha256, reference.tokenizer_sha256
        ),
        _Comparison("base weights", base_sha256, reference.weights_sha256),
        _Comparison("architecture", checkpoint.architecture, reference.architecture),
        _Comparison("vocabulary", vocabulary_size, reference.vocab_size),
    ]

    # A size that only one side names cannot be compared.
    reference_shape = reference.shape or {}
    for size in sorted(checkpoint.shape.keys() & reference_shape.keys()):
        compared.append(
            _Comparison(size, checkpoint.shape[size], reference_shape[size])
        )

    differences = [str(comparison) for comparison in compared if comparison.differs]
    if differences:
        raise InputError(
            f"manifest {manifest.name!r} was made for another model: "
            + ", ".join(differences),
            where=f"checkpoint {checkpoint.name!r}",
            fix="build a manifest from this checkpoint's base",
        )

    # A base in memory, or under an adapter in memory, was recognised by its scores (see
    # reference_distance.py).
    is_in_memory = checkpoint.format == IN_MEMORY
    is_recognised = is_in_memory and (checkpoint.name == BASE or checkpoint.base)
    if base_sha256 is not None or is_recognised:
        return []
    weights = "weights in memory" if is_in_memory else "full weights"
    return [f"base not verifiable: {weights} name no base"]


class _Comparison(NamedTuple):
    """A property of a checkpoint, and its value in the manifest.

    As text it names both values, for the error of :func:`check_fit`.
    """

    name: str
    of_checkpoint: object
    of_manifest: object

    @property
    def differs(self) -> bool:
        """Return whether the property is known and has another value."""
        # Full weights do not name a base, and an unknown value cannot differ.
        is_known = self.of_checkpoint is not None
        return is_known and self.of_checkpoint != self.of_manifest

    def __str__(self) -> str:
        checkpoint_value = _shortened(self.of_checkpoint)
        manifest_value = _shortened(self.of_manifest)
        return (
            f"{self.name} ({checkpoint_value} here, {manifest_value} in the manifest)"
        )


def _shortened(value: object) -> str:
    """Return a value as text; a SHA-256 as its first twelve digits."""
    text = str(value)
    return text[:12] if len(text) == 64 else text


def restricted_to(manifest: Manifest, ids: set[str]) -> Manifest:
    """Return a manifest restricted to some examples, with the digest of the whole.

    An estimate of the run time scores only these, and a trainer's callback audits them.
    """

    def is_within(record: Any) -> bool:
        """Return whether all examples of a record are among the ids."""
        if isinstance(record, ManifestExample):
            return record.id in ids
        # A canary or a set of twins may have several examples. A pair or a span
        # without one names its only example itself.
        contexts = getattr(record, "contexts", [record])
        return bool(contexts) and all(context.example in ids for context in contexts)

    packed_lists = {}
    for name, record_class in MANIFEST_PARTS.items():
        records = (record for record in getattr(manifest, name) if is_within(record))
        packed_lists[name] = Records.pack(record_class, records, name=name)

    membership = manifest.membership
    return manifest.with_parts(
        **packed_lists,
        membership=MembershipRows(
            members=[row_id for row_id in membership.members if row_id in ids],
            non_members=[row_id for row_id in membership.non_members if row_id in ids],
        ),
    )
