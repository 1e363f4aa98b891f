"""The manifest as a file: written, read, and held to the model that is audited."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from spark_audit import files, wrong_paths
from spark_audit.errors import InputError, OutputError, SparkError
from spark_audit.manifest.packed_lists import Records
from spark_audit.manifest.schema import (
    Manifest,
    ManifestExample,
    MembershipRows,
)

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
from spark_audit.manifest.arrow_file import read_arrow, write_arrow
from spark_audit.manifest.content import (
    MANIFEST_PARTS,
    canonical_pieces,
    checked_content,
    content_of,
    digest,
)

MAGIC = b"ARROW1"
"""How an Arrow file begins."""

MANIFEST = "give a file of `spark-audit manifest build`"

FIX = "build it again, or get the original file"


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
        file.writelines(canonical_pieces(content))
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
    found = checked_content(content, where=str(path))
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
        raise wrong_paths.no_such_path(path, otherwise=MANIFEST) from error
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        kind: type[SparkError] = OutputError
        if path.is_dir():
            what, kind = "is a folder, not a manifest", InputError
        raise kind(
            what, where=str(path), fix=wrong_paths.instead(path, MANIFEST)
        ) from error
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
