"""Match, describe and count the rows of a manifest, slice by slice.

A further field of examples goes into :func:`example_record`, and, if it follows from
scores, into :meth:`RowSlices._examples`; a further count into
:meth:`RowSlices._count`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

import numpy as np
import pyarrow as pa

from spark_audit.data.encoding import TokenSpan, true_runs
from spark_audit.data.examples import Span
from spark_audit.manifest.arrow_file import MANIFEST_BATCH, as_batch
from spark_audit.manifest.canary_sets import is_whole
from spark_audit.manifest.layout import ManifestLayout
from spark_audit.manifest.packed_lists import packed_chunks
from spark_audit.manifest.pair_selection import (
    Balance,
    SelectedPairs,
    match_identifiers,
)
from spark_audit.manifest.quiet_tokens import low_sensitivity
from spark_audit.manifest.records import CUT_OFF, Record
from spark_audit.manifest.schema import ManifestSettings
from spark_audit.manifest.token_corpus import TokenCorpus, token_classes
from spark_audit.manifest.twins import Identifiers
from spark_audit.scoring.table import TokenTable

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
"""Name of a count -> the note for readers if it is not 0.

The counts, and the facts beside them, are those of ``build.py``, ``_notes_on_counts``.
"""


def example_record(row: ManifestLayout, cluster: str) -> Record:
    """Return the manifest's record of an example before it is scored.

    The fields are those of
    :class:`~spark_audit.manifest.example_schema.ManifestExample`.
    """
    example = row.example
    n_tokens = len(row.encoding)
    return {
        "id": example.id,
        "task": example.task,
        "prompt": example.prompt,
        "response": example.response,
        "split": example.split,
        "source_id": example.source_id,
        "cluster": cluster,
        "spans": [_span_record(row, span, tokens) for span, tokens in row.spans],
        "canary_id": example.canary.id if example.canary else None,
        "template": [list(range_) for range_ in row.template],
        "kept": list(row.kept),
        "response_token": row.response_token,
        "reference_unll": [None] * n_tokens,
        "excluded": [],
        "classes": "-" * n_tokens,
        "low": [],
        **row.training_record(),
    }


def _span_record(row: ManifestLayout, span: Span, tokens: TokenSpan | None) -> Record:
    """Return the manifest's record of a span; without tokens if any was cut off."""
    record: Record = {
        **asdict(span),
        "token_start": None,
        "token_end": None,
        "partial": False,
    }
    if tokens is not None and row.keeps(tokens):
        record["token_start"] = tokens.start
        record["token_end"] = tokens.end
        record["partial"] = tokens.partial
    return record


class RowSlices:
    """Records and counts of all rows, from slices that are matched one by one.

    Parameters
    ----------
    settings
        Settings of the manifest.
    counts_by_task
        Counts of tokens, without special ones, in the rows of each task: task -> shape
        ``(V,)``.
    cluster_of_row
        Cluster of each row, of all slices.

    Attributes
    ----------
    counts
        Counts by name. Counts of pairs and spans cover both splits.
    n_comparable
        Number of spans that can be compared, matched or not.
    canary_rows
        Rows that hold a canary, each with whether the whole canary was scored.
    """

    def __init__(
        self,
        settings: ManifestSettings,
        counts_by_task: Mapping[str, np.ndarray],
        cluster_of_row: Sequence[str],
    ) -> None:
        self._settings = settings
        self._counts_by_task = counts_by_task
        self._cluster_of_row = cluster_of_row
        self._token_counts = np.asarray(sum(counts_by_task.values()))  # (V,)
        self._carried_sums: dict[str, float] = {}

        # Records wait here, compressed to a quarter, until all rows are matched.
        compressed = pa.ipc.IpcWriteOptions(compression="zstd")
        self._sink = pa.BufferOutputStream()
        self._packed = pa.ipc.new_stream(self._sink, MANIFEST_BATCH, options=compressed)

        self.balance = Balance()
        self.identifiers = Identifiers()
        self.counts: Counter[str] = Counter()
        self.n_comparable = 0
        self.canary_rows: list[tuple[ManifestLayout, bool]] = []

    def add(
        self, rows: Sequence[ManifestLayout], table: TokenTable, *, first_row: int
    ) -> None:
        """Add a slice of rows, in order.

        Parameters
        ----------
        table
            The reference model's plain scores of these rows, and perhaps of others.
        first_row
            The number of the slice's first row among all rows.
        """
        settings = self._settings
        corpus = TokenCorpus(
            rows,
            table,
            token_counts=self._token_counts,
            carried_sums=self._carried_sums,
        )
        self._carried_sums = corpus.sums_to_carry()

        # Masks over all tokens of these rows, shape (N,), bool.
        is_excluded = np.concatenate([row.excluded(settings) for row in rows])
        is_eligible = (corpus.nll_micronats >= 0) & ~is_excluded
        is_low = low_sensitivity(corpus, settings, counts_by_task=self._counts_by_task)

        # Records are packed at once, because objects take six times the memory.
        pairs = match_identifiers(corpus, is_eligible, settings)
        slice_clusters = self._cluster_of_row[first_row : first_row + len(rows)]
        self._write(
            "examples", self._examples(corpus, is_excluded, is_low, slice_clusters)
        )
        self._write("pairs", pairs.pairs)
        self._write("unmatched", pairs.unmatched)

        self._count(rows, corpus, pairs)
        self.balance.add(corpus, is_eligible, pairs)
        self.identifiers.add(corpus, first_row=first_row)

        # Canaries need all of their rows at the end; there are few of them.
        for i, row in enumerate(rows):
            if row.example.canary is not None:
                is_scored = is_whole(row, corpus.nll_micronats[corpus.tokens_of(i)])
                self.canary_rows.append((row, is_scored))

    def _write(self, list_name: str, records: Iterable[Record]) -> None:
        """Append records of a list of the manifest, such as ``pairs``."""
        for chunk in packed_chunks(records):
            self._packed.write_batch(as_batch(list_name, chunk))

    def _count(
        self, rows: Sequence[ManifestLayout], corpus: TokenCorpus, pairs: SelectedPairs
    ) -> None:
        """Add the tokens, spans and pairs of a slice to the counts."""
        reasons = [record["reason"] for record in pairs.unmatched]
        self.counts.update(
            {
                "tokens": len(corpus.nll_micronats),
                "tokens_scored": int((corpus.nll_micronats >= 0).sum()),
                "texts_cut": sum(row.was_cut for row in rows),
                "spans": 0,
                "spans_of_canaries": 0,
                "spans_partial": 0,
                "pairs": len(pairs.pairs),
                "unmatched": len(pairs.unmatched),
                "spans_cut": reasons.count(CUT_OFF),
            }
        )

        # These counts include spans of canaries, which also have a count of their own.
        for row in rows:
            for span, tokens in row.spans:
                self.counts["spans"] += 1
                self.counts["spans_of_canaries"] += span.part is not None
                self.counts["spans_partial"] += tokens is not None and tokens.partial
        self.n_comparable += len(pairs.comparable_spans)

    def records(self) -> pa.Buffer:
        """Return the records of all added rows, as a compressed Arrow stream.

        ``arrow_file.lists_of_batches`` makes lists of it. No slice can follow.
        """
        self._packed.close()
        return self._sink.getvalue()

    def _examples(
        self,
        corpus: TokenCorpus,
        is_excluded: np.ndarray,
        is_low: np.ndarray,
        slice_clusters: Sequence[str],
    ) -> Iterator[Record]:
        """Yield the manifest's examples one by one, because a record takes 10 KB."""
        classes = token_classes(corpus).tobytes().decode("ascii")
        for i, row in enumerate(corpus.rows):
            tokens = corpus.tokens_of(i)
            unll = corpus.nll_micronats[tokens].tolist()
            # These fields replace those of the record before scoring.
            yield {
                **example_record(row, slice_clusters[i]),
                "reference_unll": [value if value >= 0 else None for value in unll],
                "excluded": [list(run) for run in true_runs(is_excluded[tokens])],
                "classes": classes[tokens],
                "low": np.flatnonzero(is_low[tokens]).tolist(),
            }
