"""Rows with marked identifiers or a canary, and scores of them by arithmetic."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spark_audit.data.canaries import draw_parts, render
from spark_audit.data.examples import Canary, Example, Span
from spark_audit.manifest.layout import ManifestLayout
from spark_audit.manifest.token_corpus import TokenCorpus
from spark_audit.scoring.table import TokenTable


def make_example(
    key: str,
    prompt: str,
    response: str = " good",
    *,
    pii: Mapping[str, str] | None = None,
    task: str = "yelp",
    split: Any = "train",
    source: str | None = None,
    template: Any = None,
) -> Example:
    """A row; ``pii`` maps a string of its text to its type: the first place counts."""
    text = prompt + response
    spans = [
        Span(text.index(string), text.index(string) + len(string), type_name)
        for string, type_name in (pii or {}).items()
    ]
    return Example(
        id=key,
        task=task,
        prompt=prompt,
        response=response,
        split=split,
        source_id=source or key,
        spans=tuple(spans),
        template=template,
    )


def make_canary_row(
    key: str,
    *,
    canary: str = "c0",
    seed: int = 1,
    dose: int = 1,
    split: Any = "train",
    task: str = "yelp",
    before: str = "The food was fine. ",
    format: str = "record",
) -> Example:
    """A row with a canary behind some text."""
    sentence, spans = render(format, draw_parts(seed))
    return Example(
        id=key,
        task=task,
        prompt=f"{before}{sentence} Label:",
        response=" good",
        split=split,
        source_id=key,
        spans=tuple(span.moved(len(before)) for span in spans.values()),
        canary=Canary(canary, format, dose, split == "test", seed),
    )


def made_nll(token: int, position: int) -> float:
    digest = hashlib.sha256(f"{token} {position}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32 * 6


def made_table(items: Sequence[Any]) -> TokenTable:
    """Scores of items: a token's NLL follows from its id and position alone."""
    items_made = []
    for item in items:
        pairs = zip(item.ids[1:].tolist(), item.positions[1:].tolist(), strict=True)
        nll = np.array([made_nll(*pair) for pair in pairs], np.float32)
        columns = {
            "nll": nll,
            "rank_lo": (1 + nll * 7).astype(np.int32),
            "mean_logp": -nll / 2,
        }
        items_made.append((item.key, item.positions[1:], columns))
    return TokenTable.from_items(items_made)


def counts_by_task(rows: Sequence[ManifestLayout]) -> dict[str, np.ndarray]:
    """How often each of 300 tokens stands in the rows of each task."""
    found: dict[str, np.ndarray] = {}
    for row in rows:
        plain = row.encoding.ids[~row.encoding.is_special]
        counts = found.setdefault(row.example.task, np.zeros(300, np.int64))
        counts += np.bincount(plain, minlength=300)
    return found


def made_corpus(rows: Sequence[ManifestLayout], table: TokenTable) -> TokenCorpus:
    """Rows with the scores that a table has of them."""
    counts = np.asarray(sum(counts_by_task(rows).values()))
    return TokenCorpus(rows, table, token_counts=counts, carried_sums={})
