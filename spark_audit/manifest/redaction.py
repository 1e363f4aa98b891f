"""Make a manifest without text, which can be shown but not used for audits.

A field that reveals text, or figures from which text can be computed, goes into
:data:`_REDACTED_FIELDS`, and a field that holds names of rows into
:class:`_Redaction`. Both work by the name of a field, wherever it stands. Fields of the
manifest itself are redacted one by one in :func:`redact`: a further one stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel

from spark_audit.json_values import JsonObject
from spark_audit.manifest.content import content_of, seal
from spark_audit.manifest.schema import Manifest, ManifestCanary

NOT_SHOWN = "not shown"
"""The digest of a redacted copy, in place of the original's."""

REDACTED_NOTE = (
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
"""Fields of any record that a redacted copy leaves out, with their replacements."""


class _Redaction:
    """The replacements of names and values for a redacted copy of one manifest."""

    def __init__(self, manifest: Manifest) -> None:
        # Rows are numbered in their order.
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
        """Return a JSON value without text, and with numbers in place of names.

        Parameters
        ----------
        field
            Name of the field that holds the value, or the list with the value.
        """
        if field in _REDACTED_FIELDS:
            return _REDACTED_FIELDS[field]

        if isinstance(value, dict):
            return {name: self.redacted(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.redacted(inner, field) for inner in value]

        # Other names, such as a canary's id, stay.
        if isinstance(value, str) and field in self._names_by_field:
            return self._names_by_field[field].get(value, value)
        return value

    def records(self, records: Iterable[BaseModel]) -> Iterator[object]:
        """Yield the records of a list, redacted."""
        for record in records:
            yield self.redacted(record.model_dump(mode="json"))

    def canaries(self, canaries: Iterable[ManifestCanary]) -> Iterator[object]:
        """Yield redacted canaries, without candidates and with the reason for that."""
        for canary in canaries:
            redacted = self.redacted(canary.model_dump(mode="json"))
            assert isinstance(redacted, dict)
            yield {**redacted, "reason": canary.reason or "redacted"}


def redact(manifest: Manifest) -> Manifest:
    """Return a copy of the manifest without text, which cannot be used for audits.

    It leaves out prompts, responses, candidates, twins, and everything about single
    tokens and spans. It also leaves out the balance: whoever has the reference model
    can compute text from scores. Offsets and token counts stay. Rows, sources and
    clusters get numbers, because an id may name somebody. The original's digest is left
    out, because a guess of the text could be tested against it.
    """
    redaction = _Redaction(manifest)
    # A second redaction must not repeat the note.
    notes = list(dict.fromkeys([*manifest.notes, REDACTED_NOTE]))
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
            # With only one pair or two, a mean would be the score of a span.
            "balance": [],
            # With few rows, a guess of the data could be tested against the checksum.
            "data": [_without_checksum(file) for file in manifest.data],
            "notes": notes,
        }
    )


def _numbered(names: Iterable[str], word: str) -> dict[str, str]:
    """Return a numbered name for each name, in order of first appearance."""
    return {
        name: f"{word} {number}"
        for number, name in enumerate(dict.fromkeys(names), start=1)
    }


def _without_checksum(file: JsonObject) -> dict[str, object]:
    """Return the manifest's record of a data file, without its checksum."""
    return {name: value for name, value in file.items() if name != "sha256"}
