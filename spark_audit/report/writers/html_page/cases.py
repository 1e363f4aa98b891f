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
from collections.abc import Iterator, Mapping, Sequence
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

Token = dict[str, Any]
"""What stands on the page for a token: its ``text``, the ``space`` before it, whether
it is ``hidden`` or the first of the ``response``, its ``role``, and its ``nll`` by
checkpoint, nats or ``None``."""


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
) -> dict[str, Any]:
    """The examples of a report, without identifiers unless asked.

    Parameters
    ----------
    records
        Those of :func:`spark_audit.report.attachments.cases`.
    manifest
        Gives the words; examples that it has none of are left out.

    Returns
    -------
    dict
        ``cases``, each with ``name``, ``task``, ``types`` and ``tokens``; the
        ``checkpoints`` that they have figures of, the places among these of the pair
        that is shown first (``left``, ``right``), and whether words are ``hidden``.
    """
    keys = list(dict.fromkeys(k for r in records for k in r if k.startswith(NLL)))
    names = [visible(key.removeprefix(NLL)) for key in keys]
    found: list[dict[str, Any]] = []
    if names and manifest is not None:
        secrets = None if show_text else Secrets.of(manifest)
        for example in dict.fromkeys(str(r["example"]) for r in records):
            mine = [r for r in records if str(r["example"]) == example]
            own = manifest.by_id.get(example)
            # A redacted manifest has no words; one of another build may end too early.
            end = max(int(record["end"]) for record in mine)
            if own is not None and len(own.prompt + own.response) >= end:
                types = dict.fromkeys(
                    visible(str(r["type"])) for r in mine if r["type"]
                )
                found.append(
                    {
                        "name": visible(own.id),
                        "task": visible(str(mine[0]["task"] or "")),
                        "types": [*types],
                        "tokens": _tokens(mine, keys, own, secrets),
                    }
                )
    # The baseline, or else the reference, beside the last checkpoint.
    right = max(len(names) - 1, 0)
    given = [report.settings.get(key) for key in ("baseline", "reference")]
    pairs = ((key, k) for key in given for k in range(right))
    known = (k for key, k in pairs if key in (names[k], entry_of(names[k])))
    hidden = any(token["hidden"] for case in found for token in case["tokens"])
    return {
        "cases": found,
        "checkpoints": names,
        "left": next(known, 0),
        "right": right,
        "hidden": hidden,
    }


def _tokens(
    records: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    example: ManifestExample,
    secrets: Secrets | None,
) -> list[Token]:
    places = [(int(r["start"]), int(r["end"])) for r in records]
    hidden = [] if secrets is None else hidden_ranges(example, secrets)
    # Of the whole text, of which the records may be a part.
    first = min((start for start, _, _ in hidden), default=math.inf)
    told = sum(end <= first for _, end in places)
    if told < len(places):
        told -= 1  # The one beside what is hidden is left out, too.
    words = _words(example, places, hidden)
    return [
        {
            **word,
            "role": str(record.get("role") or ""),
            "nll": [record.get(key) if k < told else None for key in keys],
        }
        for k, (record, word) in enumerate(zip(records, words, strict=True))
    ]


def _words(
    example: ManifestExample,
    places: Sequence[tuple[int, int]],
    hidden: Sequence[tuple[int, int, str]],
) -> Iterator[Token]:
    """The tokens without their figures; one that touches what is hidden shows none."""
    text, response = example.prompt + example.response, len(example.prompt)
    kinds = [
        next((kind for low, high, kind in hidden if low < end and start < high), "")
        for start, end in places
    ]
    done = 0
    for k, (start, end) in enumerate(places):
        kind, before = kinds[k], kinds[k - 1] if k else ""
        # Several tokens of one character: its text stands in the first.
        own = text[max(start, done) : end]
        space = text[done:start]
        if kind:
            # A run of hidden tokens reads as one placeholder.
            first, last = before != kind, kinds[k + 1 :][:1] != [kind]
            shown = (f"[{kind}" if first else BLOCK) + "]" * last
            # Nothing tells where the words of an identifier begin.
            space = space if first else ""
        else:
            # Without blanks at its edges; a sign where nothing else is left.
            told = visible(own.strip().replace("\n", "⏎"))
            told = told or ("⏎" if "\n" in own else _BLANK)
            shown = told if own or k or end else _START
            space += own[: len(own) - len(own.lstrip())]
        yield {
            "text": shown,
            "hidden": bool(kind),
            "space": "\n" if "\n" in space and k else " " if space else "",
            "response": (places[k - 1][1] if k else 0) <= response < end,
        }
        done = max(done, end)
