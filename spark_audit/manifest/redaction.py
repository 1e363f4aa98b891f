"""A manifest without text: it can be read and shown, but not audited with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from spark_audit.manifest.schema import (
    Manifest,
)

if TYPE_CHECKING:
    pass
from spark_audit.manifest.content import content_of, seal

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
