"""What a build adds up, slice by slice of rows: records, balance, counts and notes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_audit.data.encoding import TokenSpan
from spark_audit.data.examples import REQUIRED, Example, Span
from spark_audit.manifest.clusters import Clusters
from spark_audit.manifest.covariates import (
    Corpus,
    covariates,
    pool,
    token_classes,
    token_ranges,
)
from spark_audit.manifest.drawn_twins import Identifiers
from spark_audit.manifest.layout import Layout
from spark_audit.manifest.schema import packed
from spark_audit.manifest.selection import (
    CUT_OFF,
    Pairs,
    Record,
    low_sensitivity,
    match,
)
from spark_audit.stats.matching import balance_rows

CONTROLS_ONLY = {
    "distance_to_pii": "tokens between the control and its span",
    "control_before": "share of controls before their span",
}
"""Covariates of controls alone, and what is noted of them."""


def example_records(
    texts: Corpus, excluded: np.ndarray, low: np.ndarray, labels: Sequence[str]
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
    for i, row in enumerate(texts.rows):
        part = texts.of(i)
        yield {
            **example_record(row, labels[i]),
            "reference_unll": [
                u if u >= 0 else None for u in texts.unll[part].tolist()
            ],
            "excluded": np.flatnonzero(
                np.diff(np.concatenate([[False], excluded[part], [False]]))
            )
            .reshape(-1, 2)
            .tolist(),
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
        **{name: getattr(example, name) for name in (*REQUIRED, "source_id")},
        "cluster": cluster,
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


class Balance:
    """Balance over the train rows, which are what is audited, from slices of rows."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)

    def add(self, texts: Corpus, eligible: np.ndarray, pairs: Pairs) -> None:
        """Take a slice's spans, windows and pairs."""
        train = [row.example.split == "train" for row in texts.rows]
        spans, matched, controls = (
            token_ranges([at for at in places if train[at[0]]])
            for places in (pairs.scored, pairs.matched, pairs.controls)
        )
        if not len(spans):
            return
        windows, apart = pool(eligible, texts, spans), controls[:, 1] - matched[:, 1]
        sides = {"spans": spans, "windows": windows, "matched": matched}
        for side, ranges in {**sides, "controls": controls}.items():
            for name, values in covariates(texts, ranges).items():
                self._parts[side, name].append(values)
        for name, values in (
            ("distance_to_pii", np.abs(apart) - matched[:, 2]),
            ("control_before", apart < 0),
        ):
            self._parts["controls", name].append(values)

    def records(self) -> list[Record]:
        """As :func:`spark_audit.stats.matching.balance_rows`; none without a span.

        Two more rows have values for controls only: their distance to the PII span in
        tokens, and the share of them that stand before it.
        """
        rows: list[Record] = []
        for name in [name for side, name in self._parts if side == "spans"]:
            spans, windows, controls, matched = (
                {name: self._values(side, name)}
                for side in ("spans", "windows", "controls", "matched")
            )
            rows += balance_rows(spans, windows, controls, covariates_matched=matched)
        for name, note in CONTROLS_ONLY.items() if rows else ():
            own, nothing = self._values("controls", name), {name: np.zeros(0)}
            (row,) = balance_rows(nothing, nothing, {name: own})
            rows.append({**row, "note": note if len(own) else row["note"]})
        # The last digits of a mean depend on the machine.
        return [
            {k: round(v, 9) if isinstance(v, float) else v for k, v in row.items()}
            for row in rows
        ]

    def _values(self, side: str, name: str) -> np.ndarray:
        return np.concatenate(self._parts[side, name]).astype(np.float64)


def _spans(row: Layout) -> Iterator[tuple[Span, TokenSpan | None]]:
    return zip(row.example.spans, row.spans, strict=True)


class Found:
    """What comes of the rows: matched, described and counted slice by slice.

    Parameters
    ----------
    settings
        As the manifest says them.
    by_task
        As :func:`spark_audit.manifest.selection.counts_by_task` of all rows.
    labels
        Cluster of each row.

    Attributes
    ----------
    lists
        JSON of the manifest's records, packed, by the name of their list.
    canary_rows
        The rows that hold a canary, and micro-nats of their tokens.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        by_task: Mapping[str, np.ndarray],
        labels: Sequence[str],
    ) -> None:
        self._settings, self._by_task, self._labels = settings, by_task, labels
        self._tokens = np.asarray(sum(by_task.values()))
        self._before: dict[str, float] = {}
        self.lists: dict[str, list[pa.Array]] = {
            name: [] for name in ("examples", "pairs", "unmatched")
        }
        self.balance, self.identifiers = Balance(), Identifiers()
        self.counted: Counter[str] = Counter()
        self.canary_rows: list[tuple[Layout, np.ndarray]] = []

    def add(self, rows: Sequence[Layout], scores: np.ndarray, *, first: int) -> None:
        """Take a slice of rows, of which the first has this number among all.

        Parameters
        ----------
        scores
            As :class:`spark_audit.manifest.covariates.Corpus` takes them.
        """
        chosen, labels = self._settings, self._labels[first : first + len(rows)]
        texts = Corpus(rows, scores, counts=self._tokens, before=self._before)
        self._before = texts.after()
        rule = {name: chosen[name] for name in ("buffer", "exclude_template")}
        excluded = np.concatenate([row.excluded(**rule) for row in rows])
        eligible = (texts.unll >= 0) & ~excluded
        rule = {name: chosen[name] for name in ("caliper", "distance", "controls")}
        pairs = match(texts, eligible, **rule)
        rule = {name: chosen[name] for name in ("alpha", "tau")}
        low = low_sensitivity(texts, counts=self._by_task, **rule)
        for name, records in (
            ("examples", example_records(texts, excluded, low, labels)),
            ("pairs", pairs.pairs),
            ("unmatched", pairs.unmatched),
        ):
            self.lists[name] += packed(records)
        spans = [(span, tokens) for row in rows for span, tokens in _spans(row)]
        self.counted.update(
            {
                "tokens": len(texts.unll),
                "tokens_scored": int((texts.unll >= 0).sum()),
                "texts_cut": sum(row.was_cut for row in rows),
                "spans": len(spans),
                "spans_of_canaries": sum(span.part is not None for span, _ in spans),
                "spans_partial": sum(bool(at and at.partial) for _, at in spans),
                "pairs": len(pairs.pairs),
                "unmatched": len(pairs.unmatched),
                "spans_cut": sum(u["reason"] == CUT_OFF for u in pairs.unmatched),
                "scored_spans": len(pairs.scored),
            }
        )
        self.balance.add(texts, eligible, pairs)
        self.identifiers.add(texts, first=first)
        for i, row in enumerate(rows):
            if row.example.canary is not None:
                self.canary_rows.append((row, texts.unll[texts.of(i)].copy()))


def row_numbers(examples: Sequence[Example]) -> dict[str, int]:
    """How many rows, tasks and sources there are."""
    return {
        "examples": len(examples),
        "tasks": len({example.task for example in examples}),
        "train": sum(example.split == "train" for example in examples),
        "test": sum(example.split == "test" for example in examples),
        "sources": len({example.source_id for example in examples}),
    }


def counts(
    examples: Sequence[Example],
    found: Found,
    canaries: Sequence[Record],
    members: Mapping[str, Sequence[str]],
    units: Clusters,
) -> dict[str, int]:
    """Counts by name; those of pairs and spans are over both splits."""
    return {
        **row_numbers(examples),
        **units.counts,
        **{k: n for k, n in found.counted.items() if k != "scored_spans"},
        "canaries": len({c["canary_id"] for c in canaries}),
        "canary_parts": len(canaries),
        "canary_parts_rankable": sum(bool(c["candidates"]) for c in canaries),
        **{side: len(keys) for side, keys in members.items()},
    }


def notes(
    count: Mapping[str, int],
    found: Counter[str],
    max_length: int | None,
    canaries: Sequence[Record],
) -> Iterator[str]:
    """What a reader must know, one sentence each.

    Parameters
    ----------
    count
        All counts of the manifest.
    found
        What was counted of the rows, and not stored.
    """
    if count["texts_cut"]:
        yield (
            f"{count['texts_cut']} of {count['examples']} texts are longer than "
            f"{max_length} tokens: their prompts were cut from the "
            f"start, {count['spans_cut']} spans were lost"
        )
    if not found["scored_spans"]:
        yield "no identifier was annotated in scored text: there are no pairs"
    if count["spans_partial"]:
        yield (
            f"{count['spans_partial']} of {count['spans']} spans begin or end "
            "inside a token"
        )
    if cut := count["canary_rows_cut"]:
        yield f"{cut} rows lost their canary to the context's length"
    if lost := count["canary_parts"] - count["canary_parts_rankable"]:
        yield (
            f"{lost} of {count['canary_parts']} canary parts cannot be ranked: "
            + "; ".join(sorted({c["reason"] for c in canaries if c["reason"]}))
        )
    if crossing := count["rows_near_duplicate"]:
        yield (
            f"{crossing} rows with a near-duplicate in the other split were "
            "left out of membership"
        )
    for side in ("members", "non_members"):
        if not count[side]:
            yield f"there are no {side.replace('_', '-')}"
