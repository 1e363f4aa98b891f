"""Slices of a manifest's rows: what is found in some rows at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_audit.data.examples import REQUIRED
from spark_audit.manifest.arrow_file import BATCH, as_batch
from spark_audit.manifest.canary_sets import is_whole
from spark_audit.manifest.layout import ManifestLayout
from spark_audit.manifest.packed_lists import packed
from spark_audit.manifest.pair_selection import Balance, match
from spark_audit.manifest.quiet_tokens import low_sensitivity
from spark_audit.manifest.records import CUT_OFF, Record
from spark_audit.manifest.schema import ManifestSettings
from spark_audit.manifest.token_corpus import TokenCorpus, token_classes
from spark_audit.manifest.twins import Identifiers
from spark_audit.scoring.table import TokenTable

if TYPE_CHECKING:
    pass


def example_record(row: ManifestLayout, cluster: str) -> Record:
    """What a manifest says of an example before any of its tokens is scored."""
    example, tokens, spans = row.example, len(row.encoding), list[Record]()
    for span, at in row.spans:
        low, high, cut = at if at and row.within(at) else (None, None, False)
        place = {"token_start": low, "token_end": high, "partial": cut}
        spans.append({**asdict(span), **place})
    return {
        **{name: getattr(example, name) for name in (*REQUIRED, "source_id")},
        "cluster": cluster,
        "spans": spans,
        "canary_id": example.canary.id if example.canary else None,
        "template": [list(place) for place in row.template],
        "kept": list(row.kept),
        "response_token": row.response_token,
        "reference_unll": [None] * tokens,
        "excluded": [],
        "classes": "-" * tokens,
        "low": [],
        **row.training_record(),
    }


class Found:
    """What comes of the rows: matched, described and counted slice by slice.

    Parameters
    ----------
    settings
        As the manifest says them.
    by_task
        How often each token stands in the rows of each task, special ones left out:
        task -> shape ``(V,)``.
    labels
        Cluster of each row.

    Attributes
    ----------
    counted
        Counts by name; those of pairs and spans are over both splits.
    comparable
        Spans that could be compared, matched or not.
    canary_rows
        The rows that hold a canary, and whether all of it was scored.
    """

    def __init__(
        self,
        settings: ManifestSettings,
        by_task: Mapping[str, np.ndarray],
        labels: Sequence[str],
    ) -> None:
        self._settings, self._by_task, self._labels = settings, by_task, labels
        self._tokens = np.asarray(sum(by_task.values()))
        self._before: dict[str, float] = {}
        # Digits take a quarter of their room until all rows are matched.
        small = pa.ipc.IpcWriteOptions(compression="zstd")
        self._sink = pa.BufferOutputStream()
        self._packed = pa.ipc.new_stream(self._sink, BATCH, options=small)
        self.balance, self.identifiers = Balance(), Identifiers()
        self.counted: Counter[str] = Counter()
        self.comparable = 0
        self.canary_rows: list[tuple[ManifestLayout, bool]] = []

    def add(
        self, rows: Sequence[ManifestLayout], table: TokenTable, *, first: int
    ) -> None:
        """Take a slice of rows, of which the first has this number among all."""
        chosen, labels = self._settings, self._labels[first : first + len(rows)]
        texts = TokenCorpus(rows, table, counts=self._tokens, before=self._before)
        self._before = texts.after()
        excluded = np.concatenate([row.excluded(chosen) for row in rows])
        eligible = (texts.unll >= 0) & ~excluded
        pairs = match(texts, eligible, chosen)
        low = low_sensitivity(texts, chosen, counts=self._by_task)
        examples = self._examples(texts, excluded, low, labels)
        for part, records in (
            ("examples", examples),
            ("pairs", pairs.pairs),
            ("unmatched", pairs.unmatched),
        ):
            for chunk in packed(records):
                self._packed.write_batch(as_batch(part, chunk))
        spans = [one for row in rows for one in row.spans]
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
            }
        )
        self.comparable += len(pairs.places)
        self.balance.add(texts, eligible, pairs)
        self.identifiers.add(texts, first=first)
        self.canary_rows += [
            (row, is_whole(row, texts.unll[texts.of(i)]))
            for i, row in enumerate(rows)
            if row.example.canary is not None
        ]

    def records(self) -> pa.Buffer:
        """The manifest's records of the rows taken, as a compressed Arrow stream."""
        self._packed.close()
        return self._sink.getvalue()

    def _examples(
        self,
        texts: TokenCorpus,
        excluded: np.ndarray,
        low: np.ndarray,
        labels: Sequence[str],
    ) -> Iterator[Record]:
        """The manifest's examples, made one after the other: a record takes 10 KB."""
        classes = token_classes(texts).tobytes().decode("ascii")
        for i, row in enumerate(texts.rows):
            part = texts.of(i)
            edges = np.diff(np.concatenate([[False], excluded[part], [False]]))
            yield {
                **example_record(row, labels[i]),
                "reference_unll": [
                    u if u >= 0 else None for u in texts.unll[part].tolist()
                ],
                "excluded": np.flatnonzero(edges).reshape(-1, 2).tolist(),
                "classes": classes[part],
                "low": np.flatnonzero(low[part]).tolist(),
            }


NOTES = {
    "texts_cut": "{texts_cut} of {examples} texts are longer than {max_length} tokens: "
    "their prompts were cut from the start, {spans_cut} spans were lost",
    "incomparable": "no identifier was annotated in scored text: there are no pairs",
    "spans_partial": "{spans_partial} of {spans} spans begin or end inside a token",
    "canary_rows_cut": "{canary_rows_cut} rows lost their canary to the context's "
    "length",
    "unranked": "{unranked} of {canary_parts} canary parts cannot be ranked: {reasons}",
    "rows_near_duplicate": "{rows_near_duplicate} rows with a near-duplicate in the "
    "other split were left out of membership",
    "no_members": "there are no members",
    "no_non_members": "there are no non-members",
}
"""What a reader must know where a count is not 0, one sentence each."""
