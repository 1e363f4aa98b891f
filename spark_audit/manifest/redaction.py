"""A manifest without text: it can be read and shown, but not audited with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from spark_audit.manifest.content import content_of, seal
from spark_audit.manifest.schema import Manifest

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
    """Return the manifest without text: it can be shown, but not audited with.

    Prompts, responses, candidates, twins and what is said of single tokens and spans
    are left out, and so is the balance: with the reference model, scores are as good as
    text. Offsets and token counts stay. Rows, sources and clusters are numbered, since
    an id may name somebody. The original's digest is left out, since a guess of the
    text could be tried out against it.
    """
    row_numbers = _numbered((row.id for row in manifest.examples), "row")
    numbers = {
        "id": row_numbers,
        "example": row_numbers,
        "members": row_numbers,
        "non_members": row_numbers,
        "source_id": _numbered((row.source_id for row in manifest.examples), "source"),
        "cluster": _numbered((row.cluster for row in manifest.examples), "cluster"),
    }

    def redacted(value: Any, field: str = "") -> Any:
        """Return a value of a field, without text and with numbers for names."""
        if field in _REDACTED_FIELDS:
            return _REDACTED_FIELDS[field]
        if isinstance(value, dict):
            return {name: redacted(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [redacted(inner, field) for inner in value]
        if field in numbers:
            return numbers[field].get(value, value)
        return value

    def records(part: str) -> Iterator[Any]:
        for record in getattr(manifest, part):
            yield redacted(record.model_dump(mode="json"))

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
            "data": [_without_checksum(file) for file in manifest.data],
            "twins": [],
            "notes": [*dict.fromkeys((*manifest.notes, REDACTED))],
        }
    )


def _numbered(names: Iterable[str], word: str) -> dict[str, str]:
    """Return a numbered name for each, in the order in which they first stand."""
    return {
        name: f"{word} {number}"
        for number, name in enumerate(dict.fromkeys(names), start=1)
    }


def _without_checksum(file: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in file.items() if name != "sha256"}
