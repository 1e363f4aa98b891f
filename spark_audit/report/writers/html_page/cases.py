"""The token heat map: a few examples, each token coloured by its NLL.

Words come from the manifest alone, and without them there is no heat map. What belongs
to an identifier is replaced by signs of one length, token by token, before anything
reaches the page. A figure depends on all that stands before its token, and with the
model what is hidden there can be tried out against it: figures and colours end where
hidden words begin.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_audit.errors import visible
from spark_audit.manifest.redaction import Secrets, hidden_ranges
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.names import entry_of
from spark_audit.report.attachments import NLL
from spark_audit.results import Report, number

EDGES = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Limits of the colours, in nats; the same for every checkpoint and example."""

BLOCK, _BLANK, _START = "·", "␣", "⊢"
"""What stands for a hidden token, a blank, the start of a text."""


@dataclass(frozen=True)
class Token:
    """One token: what stands on the page for it, and its NLL by checkpoint.

    ``space`` is what stands before it, a blank or the end of a line; ``response`` is
    set on the first token of the response.
    """

    text: str
    role: str = ""
    nll: tuple[float | None, ...] = ()
    hidden: bool = False
    space: str = ""
    response: bool = False

    def classes(self, which: int | None) -> str:
        """Class names of the cell in one checkpoint's panel."""
        found = ["t", shade(None if which is None else self.nll[which])]
        found += [self.role] if self.role else []
        return " ".join(found + (["x"] if self.hidden else []))

    def cells(self) -> tuple[str, ...]:
        """NLL as readers see it everywhere, one a checkpoint."""
        return tuple(number(value) for value in self.nll)


@dataclass(frozen=True)
class Case:
    """One example."""

    name: str
    task: str
    tokens: tuple[Token, ...]
    types: tuple[str, ...]


@dataclass(frozen=True)
class Cases:
    """All examples, the checkpoints they have figures of, and the pair shown first."""

    cases: tuple[Case, ...]
    checkpoints: tuple[str, ...]
    left: int
    right: int

    @property
    def hidden(self) -> bool:
        """Whether some of an example's words were hidden."""
        return any(token.hidden for case in self.cases for token in case.tokens)


def shade(nll: float | None) -> str:
    """Class of a cell's colour; ``h`` where there is no prediction."""
    # Of the figure that is shown, so that no cell contradicts its number.
    return "h" if nll is None else f"h{bisect_right(EDGES, float(number(nll)))}"


def cases(
    report: Report,
    records: Sequence[Mapping[str, Any]],
    manifest: Manifest | None,
    *,
    show_text: bool,
) -> Cases:
    """The examples of a report, without identifiers unless asked.

    Parameters
    ----------
    records
        Those of :func:`spark_audit.report.attachments.cases`.
    manifest
        Gives the words; examples that it has none of are left out.
    """
    keys = dict.fromkeys(k for r in records for k in r if k.startswith(NLL))
    names = tuple(visible(key.removeprefix(NLL)) for key in keys)
    if not names or manifest is None:
        return Cases((), (), 0, 0)
    secrets = None if show_text else Secrets.of(manifest)
    found = []
    for example in dict.fromkeys(str(r["example"]) for r in records):
        mine = [r for r in records if str(r["example"]) == example]
        own = manifest.by_id.get(example)
        # A redacted manifest has no words; one of another build may end too early.
        end = max(int(record["end"]) for record in mine)
        if own is not None and len(own.prompt + own.response) >= end:
            found.append(_case(mine, tuple(keys), own, secrets))
    left, right = _first_pair(report, names)
    return Cases(tuple(found), names, left, right)


def _first_pair(report: Report, names: Sequence[str]) -> tuple[int, int]:
    """The baseline, or else the reference, beside the last checkpoint."""
    right = len(names) - 1
    for key in ("baseline", "reference"):
        for k, name in enumerate(names[:right]):
            if report.settings.get(key) in (name, entry_of(name)):
                return k, right
    return 0, right


def _case(
    records: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    example: ManifestExample,
    secrets: Secrets | None,
) -> Case:
    places = [(int(r["start"]), int(r["end"])) for r in records]
    hidden = [] if secrets is None else hidden_ranges(example, secrets)
    words = list(_words(example, places, hidden))
    # Of the whole text, of which the records may be a part.
    first = min((start for start, _, _ in hidden), default=math.inf)
    told = sum(end <= first for _, end in places)
    if told < len(places):
        told -= 1  # The one beside what is hidden is left out, too.
    tokens = tuple(
        replace(
            word,
            role=str(record.get("role") or ""),
            nll=tuple(record.get(key) if k < told else None for key in keys),
        )
        for k, (record, word) in enumerate(zip(records, words, strict=True))
    )
    types = dict.fromkeys(visible(str(r["type"])) for r in records if r.get("type"))
    task = visible(str(records[0].get("task") or ""))
    return Case(visible(example.id), task, tokens, tuple(types))


# --- words ----------------------------------------------------------------------------


def _words(
    example: ManifestExample,
    places: Sequence[tuple[int, int]],
    hidden: Sequence[tuple[int, int, str]],
) -> Iterator[Token]:
    """The tokens without their figures; one that touches what is hidden shows none."""
    text, response = example.prompt + example.response, len(example.prompt)
    kinds = [_kind(start, end, hidden) for start, end in places]
    done = 0
    for k, (start, end) in enumerate(places):
        kind = kinds[k]
        before, after = kinds[k - 1] if k else "", kinds[k + 1 :][:1]
        # Several tokens of one character: its text stands in the first.
        own = text[max(start, done) : end]
        if kind:
            shown = _placeholder(kind, first=before != kind, last=after != [kind])
        else:
            shown = _visible(own) if own or k or end else _START
        # Nothing tells where the words of an identifier begin.
        space = "" if kind and before == kind else text[done:start]
        space += own[: len(own) - len(own.lstrip())] if not kind else ""
        yield Token(
            shown,
            hidden=bool(kind),
            space="\n" if "\n" in space and k else " " if space else "",
            response=(places[k - 1][1] if k else 0) <= response < end,
        )
        done = max(done, end)


def _kind(start: int, end: int, hidden: Iterable[tuple[int, int, str]]) -> str:
    return next((kind for s, e, kind in hidden if s < end and start < e), "")


def _placeholder(kind: str, *, first: bool, last: bool) -> str:
    """``[NAME``, dots, ``]``: a run of hidden tokens reads as one placeholder."""
    if first:
        return f"[{kind}]" if last else f"[{kind}"
    return f"{BLOCK}]" if last else BLOCK


def _visible(text: str) -> str:
    """The token without blanks at its edges, with a sign where nothing else is left."""
    if not text.strip():
        return "⏎" if "\n" in text else _BLANK
    return visible(text.strip().replace("\n", "⏎"))
