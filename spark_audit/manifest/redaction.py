"""Whether ids hold identifiers, and a manifest without text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from spark_audit.data.pii import find_identifiers
from spark_audit.manifest.file import content_of, seal
from spark_audit.manifest.schema import Manifest

NOT_SHOWN = "not shown"
"""Stands in a redacted copy for the digest of its original."""
REDACTED = (
    "redacted: prompts, responses, canary candidates, the scores of tokens and spans, "
    "and checksums of data files were left out, and with the text the forms by which "
    "audits compare identifiers: it can be read, not audited with"
)


_WORD = re.compile(r"\w+")
_LEAST = 4
"""Letters and digits from which an identifier counts."""


def ids_identify(manifest: Manifest) -> bool:
    """Whether the id of a row or source holds an identifier, annotated or by rule.

    An annotated string of :data:`_LEAST` letters and digits counts where the id's words
    make it up (``maria.jones`` holds "Maria Jones"), and so does a word of a name.
    """
    ids = {key for one in manifest.examples for key in (one.id, one.source_id)}
    known = set[str]()
    for one in manifest.examples:
        for span in one.spans:
            string = one.text[span.start : span.end]
            known.add(_squeezed(string))
            if span.type == "NAME":
                known |= {*_WORD.findall(string.casefold())}
    known = {one for one in known if len(one) >= _LEAST}
    return any(
        find_identifiers(key) or not known.isdisjoint(_joins(key)) for key in ids
    )


def _joins(key: str) -> Iterator[str]:
    """The words of an id, and those that stand side by side as one."""
    words = [_squeezed(word) for word in re.findall(r"[^\W\d_]+|\d+", key)]
    for at in range(len(words)):
        yield from ("".join(words[at:end]) for end in range(at + 1, at + 9))


def _squeezed(text: str) -> str:
    """Letters and digits alone, without case and accents."""
    folded = unicodedata.normalize("NFKD", text).casefold()
    return "".join(filter(str.isalnum, folded))


_BLANK: Mapping[str, Any] = {
    **dict.fromkeys(("prompt", "response", "classes"), ""),
    **dict.fromkeys(("reference_unll", "low", "candidates"), []),
    **dict.fromkeys(("nll", "distance", "true_index"), None),
}
"""Fields of records that are left out, and what stands in their place."""


def redact(manifest: Manifest) -> Manifest:
    """The manifest without text: it can be read and shown, but not audited with.

    Prompts, responses, candidates, twins and what is said of single tokens and spans
    are left out, and so is the balance: with the reference model, scores are as good as
    text. Offsets and token counts stay, and so do ids, unless one holds an identifier:
    then rows, sources and clusters are numbered. The original's digest is left out,
    since a guess of the text could be tried out against it.
    """
    notes, numbers = [REDACTED], dict[str, dict[str, str]]()
    if ids_identify(manifest):
        notes.append("rows, sources and clusters are numbered: ids held identifiers")
        for field, word in (("id", "row"), ("source_id", "source"), ("cluster",) * 2):
            names = dict.fromkeys(getattr(one, field) for one in manifest.examples)
            numbers[field] = {name: f"{word} {i}" for i, name in enumerate(names, 1)}
        numbers |= dict.fromkeys(("example", "members", "non_members"), numbers["id"])

    def redacted(value: Any, field: str = "") -> Any:
        if field in _BLANK:
            return _BLANK[field]
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
            "notes": [*dict.fromkeys((*manifest.notes, *notes))],
        }
    )
