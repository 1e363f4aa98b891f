"""The parts of a manifest that are told: examples, balance, counts and notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_audit.manifest.clusters import Clusters
from spark_audit.manifest.covariates import Corpus, Ranges, balance, pool, token_classes
from spark_audit.manifest.layout import Layout
from spark_audit.manifest.selection import CUT_OFF, Pairs, Record


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
        part, example = texts.of(i), row.example
        spans = []
        for span, tokens in zip(example.spans, row.spans, strict=True):
            whole = tokens if tokens is not None and row.within(tokens) else None
            spans.append(
                {
                    **vars(span),
                    "token_start": whole.start if whole else None,
                    "token_end": whole.end if whole else None,
                    "partial": bool(whole and whole.partial),
                }
            )
        yield {
            "id": example.id,
            "task": example.task,
            "source_id": example.source_id,
            "cluster": labels[i],
            "split": example.split,
            "prompt": example.prompt,
            "response": example.response,
            "spans": spans,
            "canary_id": example.canary.id if example.canary else None,
            "template": [list(place) for place in row.template],
            "kept": list(row.kept),
            "response_token": row.response_token,
            "reference_unll": [
                u if u >= 0 else None for u in texts.unll[part].tolist()
            ],
            "excluded": _runs(excluded[part]),
            "classes": classes[part],
            "low": np.flatnonzero(low[part]).tolist(),
        }


def balance_records(
    rows: Sequence[Layout], texts: Corpus, eligible: np.ndarray, pairs: Pairs
) -> list[Record]:
    """Balance over the train rows, which are what is audited."""
    train = {i for i, row in enumerate(rows) if row.example.split == "train"}
    index = {row.example.id: i for i, row in enumerate(rows)}
    spans = Ranges.of([place for place in pairs.scored if place[0] in train])
    if not len(spans):
        return []
    sides = [
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
    ]
    found = balance(
        texts,
        spans=spans,
        windows=pool(eligible, texts, spans),
        matched=sides[0],
        controls=sides[1],
    )
    # The last digits of a mean depend on the machine.
    return [
        {k: round(v, 9) if isinstance(v, float) else v for k, v in row.items()}
        for row in found
    ]


def _runs(mask: np.ndarray) -> list[list[int]]:
    """The ranges of True tokens, end exclusive."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return edges.reshape(-1, 2).tolist()


@dataclass(frozen=True)
class Facts:
    """What the counts and notes of a manifest are taken from."""

    rows: Sequence[Layout]
    texts: Corpus
    pairs: Pairs
    canaries: list[Record]
    canary_rows_cut: int
    members: dict[str, list[str]]
    crossing: int
    units: Clusters

    def counts(self) -> dict[str, int]:
        """Counts by name; those of pairs and spans are over both splits."""
        examples = [row.example for row in self.rows]
        spans = [span for example in examples for span in example.spans]
        tokens = [s for row in self.rows for s in row.spans if s is not None]
        return {
            "examples": len(examples),
            "tasks": len({example.task for example in examples}),
            "train": sum(example.split == "train" for example in examples),
            "test": sum(example.split == "test" for example in examples),
            "sources": len({example.source_id for example in examples}),
            **self.units.counts,
            "tokens": len(self.texts.unll),
            "tokens_scored": int((self.texts.unll >= 0).sum()),
            "texts_cut": sum(row.was_cut for row in self.rows),
            "spans": len(spans),
            "spans_of_canaries": sum(span.part is not None for span in spans),
            "spans_partial": sum(span.partial for span in tokens),
            "spans_cut": sum(m["reason"] == CUT_OFF for m in self.pairs.unmatched),
            "pairs": len(self.pairs.pairs),
            "unmatched": len(self.pairs.unmatched),
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
        if not self.pairs.scored:
            found.append(
                "no identifier was annotated in scored text: there are no pairs"
            )
        if count["spans_partial"]:
            found.append(
                f"{count['spans_partial']} of {count['spans']} spans begin or end "
                "inside a token"
            )
        if "milp" in self.pairs.solvers:
            found.append(
                f"{self.pairs.solvers['milp']} examples with many spans were matched "
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
        if unmarked := sum(map(_unmarked, self.rows)):
            found.append(
                f"{unmarked} rows hold injected identifiers and do not say which "
                "sentence was injected, as earlier versions wrote them: controls may "
                "lie on its words, which many rows share; inject again"
            )
        return [*found, *self.units.notes]


def _unmarked(row: Layout) -> bool:
    example = row.example
    injected = any(span.origin == "injected" for span in example.spans)
    return injected and not example.frames
