"""A manifest without text: it can be read and shown, but not audited with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel

from spark_audit.json_values import JsonObject
from spark_audit.manifest.content import content_of, seal
from spark_audit.manifest.schema import Manifest, ManifestCanary

NOT_SHOWN = "not shown"
"""Stands in a redacted copy for the digest of its original."""

REDACTED = (
    "redacted: prompts, responses, canary candidates, the scores of tokens and spans, "
    "and checksums of data files were left out, and with the text the forms by which "
    "audits compare identifiers; rows, sources and clusters are numbered: it can be "
    "read, not audited with"
)

_REDACTED_FIELDS: Mapping[str, object] = {
    **dict.fromkeys(("prompt", "response", "classes", "role"), ""),
    **dict.fromkeys(("reference_unll", "low", "candidates"), []),
    **dict.fromkeys(("nll", "distance", "true_index", "token_ids"), None),
}
"""Fields of records that are left out, and what stands in their place."""


class _Redaction:
    """What stands in a redacted copy for names and values of the original."""

    def __init__(self, manifest: Manifest) -> None:
        # Numbers are given in the order of the rows.
        row_names = _numbered((row.id for row in manifest.examples), "row")
        self._names_by_field = {
            "id": row_names,
            "example": row_names,
            "members": row_names,
            "non_members": row_names,
            "source_id": _numbered(
                (row.source_id for row in manifest.examples), "source"
            ),
            "cluster": _numbered((row.cluster for row in manifest.examples), "cluster"),
        }

    def redacted(self, value: object, field: str = "") -> object:
        """Return a value of a field, without text and with numbers for names."""
        if field in _REDACTED_FIELDS:
            return _REDACTED_FIELDS[field]

        if isinstance(value, dict):
            return {name: self.redacted(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.redacted(inner, field) for inner in value]

        # What is no row's name, such as a canary's id, stays.
        if isinstance(value, str) and field in self._names_by_field:
            return self._names_by_field[field].get(value, value)
        return value

    def records(self, records: Iterable[BaseModel]) -> Iterator[object]:
        """Yield the records of a list, redacted."""
        for record in records:
            yield self.redacted(record.model_dump(mode="json"))

    def canaries(self, canaries: Iterable[ManifestCanary]) -> Iterator[object]:
        """Yield canaries, redacted: without candidates, each says why it has none."""
        for canary in canaries:
            redacted = self.redacted(canary.model_dump(mode="json"))
            assert isinstance(redacted, dict)
            yield {**redacted, "reason": canary.reason or "redacted"}


def redact(manifest: Manifest) -> Manifest:
    """Return the manifest without text: it can be shown, but not audited with.

    Prompts, responses, candidates, twins and what is said of single tokens and spans
    are left out, and so is the balance: with the reference model, scores are as good as
    text. Offsets and token counts stay. Rows, sources and clusters are numbered, since
    an id may name somebody. The original's digest is left out, since a guess of the
    text could be tried out against it.
    """
    redaction = _Redaction(manifest)
    # A redacted manifest that is redacted again says it once.
    notes = list(dict.fromkeys([*manifest.notes, REDACTED]))
    return seal(
        {
            **content_of(manifest),
            "examples": redaction.records(manifest.examples),
            "pairs": redaction.records(manifest.pairs),
            "unmatched": redaction.records(manifest.unmatched),
            "canaries": redaction.canaries(manifest.canaries),
            "twins": [],
            "membership": redaction.redacted(manifest.membership.model_dump()),
            "redacted_from": NOT_SHOWN,
            # With a pair or two their mean is a span's score.
            "balance": [],
            # Of few rows a guess could be held against their checksum.
            "data": [_without_checksum(file) for file in manifest.data],
            "notes": notes,
        }
    )


def _numbered(names: Iterable[str], word: str) -> dict[str, str]:
    """Return a numbered name for each, in the order in which they first stand."""
    return {
        name: f"{word} {number}"
        for number, name in enumerate(dict.fromkeys(names), start=1)
    }


def _without_checksum(file: JsonObject) -> dict[str, object]:
    """Return what a manifest says of a data file, but for its checksum."""
    return {name: value for name, value in file.items() if name != "sha256"}
