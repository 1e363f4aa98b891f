"""The parts of a manifest that are told: examples, balance, counts and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spark_audit.data.encoding import TokenSpan
from spark_audit.data.examples import Span
from spark_audit.manifest.clusters import Clusters
from spark_audit.manifest.covariates import (
    Corpus,
    Likelihoods,
    Ranges,
    balance,
    measured,
    pool,
    token_classes,
)
from spark_audit.manifest.layout import Layout, Outline
from spark_audit.manifest.packed_lists import Packer, Slices
from spark_audit.manifest.schema import ManifestExample, ManifestPair, UnmatchedSpan
from spark_audit.manifest.selection import Pairs, Record
from spark_audit.manifest.twins import Identifiers

COUNTED = (
    "tokens",
    "tokens_scored",
    "texts_cut",
    "spans",
    "spans_of_canaries",
    "spans_partial",
    "spans_cut",
    "pairs",
    "unmatched",
)
"""What is counted slice by slice."""


def example_records(
    rows: Sequence[Layout],
    texts: Corpus,
    excluded: np.ndarray,
    low: np.ndarray,
    labels: Sequence[str],
) -> Iterator[Record]:
    """The manifest's examples, made one after the other: a record takes 10 KB.

    Parameters
    ----------
    excluded, low
        Shape ``(N,)``, bool, over all tokens of the corpus.
    labels
        Cluster of each row.
    """
    classes = token_classes(texts).tobytes().decode("ascii")
    for i, row in enumerate(rows):
        part = texts.of(i)
        yield {
            **example_record(row, labels[i]),
            "reference_unll": [
                u if u >= 0 else None for u in texts.unll[part].tolist()
            ],
            "excluded": _runs(excluded[part]),
            "classes": classes[part],
            "low": np.flatnonzero(low[part]).tolist(),
        }


def example_record(row: Layout, cluster: str) -> Record:
    """What a manifest says of an example before any of its tokens is scored."""
    example = row.example
    spans = []
    for span, tokens in _spans(row):
        whole = tokens if tokens is not None and row.within(tokens) else None
        spans.append(
            {
                **vars(span),
                "token_start": whole.start if whole else None,
                "token_end": whole.end if whole else None,
                "partial": bool(whole and whole.partial),
            }
        )
    return {
        "id": example.id,
        "task": example.task,
        "source_id": example.source_id,
        "cluster": cluster,
        "split": example.split,
        "prompt": example.prompt,
        "response": example.response,
        "spans": spans,
        "canary_id": example.canary.id if example.canary else None,
        "template": [list(place) for place in row.template],
        "kept": list(row.kept),
        "response_token": row.response_token,
        "reference_unll": [None] * len(row.encoding),
        "excluded": [],
        "classes": "-" * len(row.encoding),
        "low": [],
    }


class Balance(Mapping[tuple[str, str], np.ndarray]):
    """Balance over the train rows, which are what is audited, from slices of rows.

    What it is judged by, by side and covariate, lies in a file: 3 KB a row.
    """

    def __init__(self) -> None:
        self._values = Slices()
        self._places: dict[tuple[str, str], list[int]] = {}

    def add(
        self, rows: Sequence[Layout], texts: Corpus, eligible: np.ndarray, pairs: Pairs
    ) -> None:
        """Take a slice's spans, windows and pairs."""
        index = {row.example.id: i for i, row in enumerate(rows)}
        train = {i for i, row in enumerate(rows) if row.example.split == "train"}
        spans = Ranges.of([place for place in pairs.scored if place[0] in train])
        matched, controls = (
            Ranges.of(
                [
                    (
                        index[pair["example"]],
                        pair[side]["token_start"],
                        pair[side]["token_end"] - pair[side]["token_start"],
                    )
                    for pair in pairs.pairs
                    if index[pair["example"]] in train
                ]
            )
            for side in ("pii", "control")
        )
        if not len(spans):
            return
        windows = pool(eligible, texts, spans)
        sides = {"matched": matched, "controls": controls}
        found = measured(texts, spans=spans, windows=windows, **sides)
        for key, values in found.items():
            self._places.setdefault(key, []).append(len(self._values))
            self._values.append(values.astype(np.float64).tobytes())

    def records(self) -> list[Record]:
        """The manifest's records; none where there is no span."""
        if not self._places:
            return []
        # The last digits of a mean depend on the machine.
        return [
            {k: round(v, 9) if isinstance(v, float) else v for k, v in row.items()}
            for row in balance(self)
        ]

    def __getitem__(self, key: tuple[str, str]) -> np.ndarray:
        parts = (self._values[place] for place in self._places[key])
        return np.frombuffer(b"".join(parts), np.float64)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _runs(mask: np.ndarray) -> list[list[int]]:
    """The ranges of True tokens, end exclusive."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return edges.reshape(-1, 2).tolist()


def row_counts(rows: Sequence[Layout], unll: np.ndarray) -> Counter[str]:
    """What a manifest counts of rows and their tokens."""
    spans = [(span, at) for row in rows for span, at in _spans(row)]
    return Counter(
        {
            "tokens": len(unll),
            "tokens_scored": int((unll >= 0).sum()),
            "texts_cut": sum(row.was_cut for row in rows),
            "spans": len(spans),
            "spans_of_canaries": sum(span.part is not None for span, _ in spans),
            "spans_partial": sum(bool(at and at.partial) for _, at in spans),
        }
    )


def _spans(row: Layout) -> Iterator[tuple[Span, TokenSpan | None]]:
    return zip(row.example.spans, row.spans, strict=True)


@dataclass
class Found:
    """What came of the rows.

    Attributes
    ----------
    pairs, unmatched
        Waiting to be packed.
    canary_rows, canary_unll
        The rows that hold a canary, and their reference scores.
    """

    examples: Packer[ManifestExample]
    pairs: Packer[ManifestPair]
    unmatched: Packer[UnmatchedSpan]
    balance: Balance = field(default_factory=Balance)
    identifiers: Identifiers = field(default_factory=Identifiers)
    counted: Counter[str] = field(default_factory=Counter)
    solvers: Counter[str] = field(default_factory=Counter)
    canary_rows: list[Layout] = field(default_factory=list)
    canary_unll: list[np.ndarray] = field(default_factory=list)

    @property
    def canary_scores(self) -> Likelihoods:
        """Reference scores of the rows that hold a canary."""
        ends = np.cumsum([0, *map(len, self.canary_unll)])
        return Likelihoods(ends, np.concatenate([np.zeros(0, int), *self.canary_unll]))


@dataclass(frozen=True)
class Facts:
    """What the counts and notes of a manifest are taken from.

    Attributes
    ----------
    found
        What going through all rows gave: its counts are of them.
    """

    rows: Sequence[Outline]
    found: Found
    canaries: list[Record]
    canary_rows_cut: int
    members: dict[str, list[str]]
    crossing: int
    units: Clusters

    def counts(self) -> dict[str, int]:
        """Counts by name; those of pairs and spans are over both splits."""
        splits, tasks, sources = Counter[str](), set[str](), set[str]()
        for row in self.rows:
            splits[row.example.split] += 1
            tasks.add(row.example.task)
            sources.add(row.example.source_id)
        own = {name: self.found.counted.get(name, 0) for name in COUNTED}
        return {
            "examples": len(self.rows),
            "tasks": len(tasks),
            "train": splits["train"],
            "test": splits["test"],
            "sources": len(sources),
            **self.units.counts,
            **own,
            "canaries": len({c["canary_id"] for c in self.canaries}),
            "canary_parts": len(self.canaries),
            "canary_parts_rankable": sum(bool(c["candidates"]) for c in self.canaries),
            "canary_rows_cut": self.canary_rows_cut,
            "members": len(self.members["members"]),
            "non_members": len(self.members["non_members"]),
            "rows_near_duplicate": self.crossing,
        }

    def notes(self, settings: Mapping[str, Any]) -> list[str]:
        """What a reader must know, one sentence each."""
        count = self.counts()
        found = []
        if count["texts_cut"]:
            found.append(
                f"{count['texts_cut']} of {count['examples']} texts are longer than "
                f"{settings['max_length']} tokens: their prompts were cut from the "
                f"start, {count['spans_cut']} spans were lost"
            )
        if not self.found.counted.get("scored_spans"):
            found.append(
                "no identifier was annotated in scored text: there are no pairs"
            )
        if count["spans_partial"]:
            found.append(
                f"{count['spans_partial']} of {count['spans']} spans begin or end "
                "inside a token"
            )
        if "milp" in self.found.solvers:
            found.append(
                f"{self.found.solvers['milp']} examples with many spans were matched "
                "by HiGHS"
            )
        if self.canary_rows_cut:
            found.append(
                f"{self.canary_rows_cut} rows lost their canary to the context's length"
            )
        if lost := count["canary_parts"] - count["canary_parts_rankable"]:
            found.append(
                f"{lost} of {count['canary_parts']} canary parts cannot be ranked: "
                + "; ".join(sorted({c["reason"] for c in self.canaries if c["reason"]}))
            )
        if self.crossing:
            found.append(
                f"{self.crossing} rows with a near-duplicate in the other split were "
                "left out of membership"
            )
        for side in ("members", "non_members"):
            if not self.members[side]:
                found.append(f"there are no {side.replace('_', '-')}")
        return [*found, *self.units.notes]
