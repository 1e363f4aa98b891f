"""What is hidden where identifiers must not be shown, and a manifest without text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_audit.data.occurrences import repeats
from spark_audit.data.pii import find_identifiers
from spark_audit.manifest.file import content_of, seal
from spark_audit.manifest.schema import Manifest, ManifestExample

NOT_SHOWN = "not shown"
"""Stands in a redacted copy for the digest of its original."""
REDACTED = (
    "redacted: prompts, responses, canary candidates, the scores of tokens and spans, "
    "and checksums of data files were left out, and with the text the forms by which "
    "audits compare identifiers: it can be read, not audited with"
)


_WORD = re.compile(r"\w+")
_RUN = 5
"""Letters and digits in a row of an identifier that are hidden however written."""
_LEAST = 4
"""Characters from which a part of an identifier is hidden wherever it stands."""


@dataclass(frozen=True)
class Secrets:
    """Strings of all examples' identifiers, and the words of names."""

    strings: tuple[str, ...]
    names: frozenset[str]

    @classmethod
    def of(cls, manifest: Manifest) -> Secrets:
        """What a manifest knows as identifiers, in whichever example it stands."""
        strings: set[str] = set()
        names: set[str] = set()
        for example in manifest.examples:
            text = example.text
            for span in example.spans:
                string = text[span.start : span.end].strip()
                strings.add(string)
                if span.type == "NAME":
                    words = _WORD.findall(string.casefold())
                    names.update(word for word in words if len(word) > 1)
        for canary in manifest.canaries:
            if canary.true_index is not None and canary.part != "full":
                strings.add(canary.candidates[canary.true_index].strip())
        return cls(tuple(sorted(strings - {""})), frozenset(names))


def ids_identify(manifest: Manifest) -> bool:
    """Whether the id of a row or source holds an identifier, annotated or by rule.

    An annotated string of :data:`_LEAST` letters and digits counts where the id's words
    make it up (``maria.jones`` holds "Maria Jones"), and so does a word of a name.
    """
    ids = {key for one in manifest.examples for key in (one.id, one.source_id)}
    secrets = Secrets.of(manifest)
    strings = {_squeezed(string)[0] for string in secrets.strings}
    known = {one for one in strings | secrets.names if len(one) >= _LEAST}
    return any(
        find_identifiers(key) or not known.isdisjoint(_joins(key)) for key in ids
    )


def _joins(key: str) -> Iterator[str]:
    """The words of an id, and those that stand side by side as one."""
    words = [_squeezed(word)[0] for word in re.findall(r"[^\W\d_]+|\d+", key)]
    for at in range(len(words)):
        yield from ("".join(words[at:end]) for end in range(at + 1, at + 9))


def hidden_ranges(
    example: ManifestExample, secrets: Secrets
) -> list[tuple[int, int, str]]:
    """Character ranges to hide with their types, as far as they can be known.

    Beside the example's own identifiers, annotated or found by rule, and repeats of the
    former **[ours]**: words of four characters and more of them, five letters or digits
    in a row of them however they are written, identifiers of other examples, and the
    words of names. The ranges are in no order and may overlap.
    """
    text = example.text
    spans: list[Any] = [*example.spans, *find_identifiers(text)]
    typed = [(span.start, span.end, span.type) for span in spans]
    known = [(start, end) for start, end, _ in typed]
    ranges = [*known, *repeats(text, known[: len(example.spans)])]
    folded = text.casefold()
    for string in secrets.strings:
        if string.casefold() in folded:
            end = len(text) + 1
            given = [(end, end + len(string))]
            ranges += [r for r in repeats(f"{text}\n{string}", given) if r[1] < end]
    parts = {
        word.casefold()
        for start, end in ranges
        for word in _WORD.findall(text[start:end])
        if len(word) >= _LEAST
    }
    for word in _WORD.finditer(text):
        if word[0].casefold() in parts | secrets.names:
            ranges.append(word.span())
    ranges += rewritten(text, ranges)
    return [
        (low, high, next((t for s, e, t in typed if s < high and low < e), "HIDDEN"))
        for low, high in ranges
    ]


def rewritten(
    text: str, ranges: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Where the letters and digits of an identifier stand with other signs between."""
    letters, places = _squeezed(text)
    runs = {
        string[at : at + _RUN]
        for start, end in ranges
        for string in (_squeezed(text[start:end])[0],)
        for at in range(len(string) - _RUN + 1)
    }
    for at in range(len(letters) - _RUN + 1):
        if letters[at : at + _RUN] in runs:
            yield places[at], places[at + _RUN - 1] + 1


def _squeezed(text: str) -> tuple[str, list[int]]:
    """Letters and digits alone, without case and accents, and where each stood."""
    found = [
        (sign, place)
        for place, char in enumerate(text)
        for sign in unicodedata.normalize("NFKD", char).casefold()
        if sign.isalnum()
    ]
    return "".join(sign for sign, _ in found), [place for _, place in found]


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
