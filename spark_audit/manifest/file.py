"""The manifest as a file: sealed, written, read, redacted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from spark_audit.errors import InputError, OutputError
from spark_audit.files import (
    data_bytes,
    field_path,
    parse_json,
    read_regular,
    write_atomically,
)
from spark_audit.manifest.schema import MOST, Manifest
from spark_audit.provenance import canonical_json, sha256_json
from spark_audit.terminal.hints import instead


def digest(content: dict[str, Any]) -> str:
    """SHA-256 of canonical JSON without ``digest`` and ``name``, in hex."""
    return sha256_json(
        {k: v for k, v in content.items() if k not in ("digest", "name")}
    )


def seal(content: dict[str, Any]) -> Manifest:
    """Validate a manifest's content and give it its digest."""
    # JSON mode: tuples may come as lists, as they do from a file.
    draft = _validated(canonical_json({**content, "digest": ""}), where="manifest")
    # What is written is hashed, not what was given: 1 and 1.0 differ in JSON.
    found = digest(draft.model_dump(mode="json"))
    return draft.model_copy(update={"digest": found})


def redact(manifest: Manifest) -> Manifest:
    """The manifest without text: it can be read and shown, but not audited with.

    Prompts, responses, candidates, twins and what is said of single tokens and spans
    are left out, and so is the balance: with the reference model, scores are as good as
    text. Ids, offsets and token counts stay. ``redacted_from`` holds the digest of the
    original.
    """
    blank = {"prompt": "", "response": "", "reference_unll": [], "classes": ""}
    unscored = {"nll": None}
    told = (
        "redacted: prompts, responses, canary candidates, the scores of tokens and "
        "spans, and checksums of data files were left out"
    )
    note = [] if told in manifest.notes else [told]
    return seal(
        {
            **manifest.model_dump(mode="json"),
            "redacted_from": manifest.redacted_from or manifest.digest,
            # With a pair or two their mean is a span's score.
            "balance": [],
            # Of few rows a guess could be held against their checksum.
            "data": [
                {k: v for k, v in e.items() if k != "sha256"} for e in manifest.data
            ],
            "examples": [
                {**e.model_dump(mode="json"), **blank, "low": []}
                for e in manifest.examples
            ],
            "pairs": [
                {
                    **p.model_dump(mode="json"),
                    "pii": {**p.pii.model_dump(mode="json"), **unscored},
                    "control": {**p.control.model_dump(mode="json"), **unscored},
                    "distance": None,
                }
                for p in manifest.pairs
            ],
            "canaries": [
                {
                    **c.model_dump(mode="json"),
                    "candidates": [],
                    "true_index": None,
                    "reason": c.reason or "redacted",
                }
                for c in manifest.canaries
            ],
            "twins": [],
            "notes": [*manifest.notes, *note],
        }
    )


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
            fix="give the original, whose digest begins with "
            f"{manifest.redacted_from[:12]}",
        )
    return manifest


def json_schema() -> dict[str, Any]:
    """JSON Schema of a manifest file; shipped as ``schemas/manifest.json``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Manifest.model_json_schema(),
    }


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write canonical JSON, whole or not at all, readable by the owner only."""
    data = canonical_json(manifest.model_dump(mode="json")) + b"\n"
    write_atomically(path, lambda file: file.write(data), mode=0o600)


def load_manifest(path: str | Path) -> Manifest:
    """Read and verify a manifest.

    Raises
    ------
    OutputError
        If the file cannot be read.
    InputError
        If it is no manifest, of another schema version, malformed, or was changed.
    """
    path = Path(path)
    try:
        raw = read_regular(path, follow=True, most=data_bytes())
    except OSError as error:
        raise OutputError(
            f"cannot be read ({error.strerror or error})",
            where=str(path),
            fix=instead(path, wanted="manifest"),
        ) from error
    content = parse_json(raw, place=str(path))
    if not isinstance(content, dict) or content.get("kind") != "spark-audit-manifest":
        raise InputError(
            "is no SPARK Audit manifest",
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
    try:
        found = digest(content)
    except (ValueError, RecursionError) as error:
        raise InputError(
            "holds half a surrogate pair or too deep a nesting",
            where=str(path),
            fix="build it again, or get the original file",
        ) from error
    given = content.get("digest")
    # It takes several times as much memory as what is made of the bytes again below.
    del content
    if given != found:
        raise InputError(
            "was changed after it was built: its digest does not fit its content",
            where=str(path),
            fix="build it again, or get the original file",
        )
    return _validated(raw, where=str(path))


def _validated(raw: bytes, *, where: str) -> Manifest:
    try:
        return Manifest.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = field_path(first["loc"], Manifest.model_json_schema())
        # Whatever a check of ours says stands behind "Value error, ".
        said = first["msg"].lower().removeprefix("value error, ")
        raise InputError(
            f"field {field}: {said}" if field else said,
            where=where,
            fix="build the manifest again with this version of SPARK Audit",
        ) from error
