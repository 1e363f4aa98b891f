"""Spans of a manifest: which are audited, and what any range of tokens costs.

The folder turns a manifest and token tables into the evidence that the matched audit
concludes from (``evidence``), and matches the spans again under other settings
(``rematch``). It needs no model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_audit.audits.base import Plan
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.selectivity import Windows


class Sums:
    """Summed NLL over any token range of a manifest's examples.

    Prefix sums over the full tokenisation of every scored example, so that a hundred
    thousand ranges cost one subtraction each.
    """

    def __init__(self, manifest: Manifest, nll: Iterable[np.ndarray | None]) -> None:
        lengths = [len(example.reference_unll) for example in manifest.examples]
        self._first = np.concatenate([[0], np.cumsum(np.add(lengths, 1))])
        self._prefix = np.zeros(int(self._first[-1]))
        self._scored = np.zeros(len(lengths), bool)
        for i, values in enumerate(nll):
            if values is not None:
                self._scored[i] = True
                start = int(self._first[i]) + 1
                np.cumsum(values, out=self._prefix[start : start + len(values)])

    @classmethod
    def of_table(cls, manifest: Manifest, table: TokenTable) -> Sums:
        """Of a checkpoint; examples that the table lacks cannot be asked for."""

        def whole(example: ManifestExample) -> np.ndarray | None:
            if example.id not in table:
                return None
            rows = table.rows(example.id)
            values = np.zeros(len(example.reference_unll))
            values[table.position[rows]] = table.columns["nll"][rows]
            return values

        return cls(manifest, map(whole, manifest.examples))

    @classmethod
    def of_reference(cls, manifest: Manifest) -> Sums:
        """Of the reference model, from the manifest itself."""
        return cls(manifest, (np.maximum(e.unll, 0) / 1e6 for e in manifest.examples))

    def __call__(
        self, example: np.ndarray, start: np.ndarray, length: np.ndarray
    ) -> np.ndarray:
        """Summed NLL in nats, shape of the arguments; float64."""
        if not self._scored[example].all():
            raise ValueError("an example was asked for that was not scored")
        first = self._first[example] + start
        return np.asarray(self._prefix[first + length] - self._prefix[first])

    def of_tokens(self, example: int, tokens: Sequence[int]) -> float:
        """Summed NLL in nats of one example's tokens, wherever they stand."""
        at = np.asarray(tokens, dtype=np.int64)
        return float(self(np.full(len(at), example), at, np.ones_like(at)).sum())


class SumsOf(Mapping[str, Sums]):
    """Those of each checkpoint whose plain pass was scored; none is kept."""

    def __init__(
        self, manifest: Manifest, tables: Mapping[str, Mapping[Pass, TokenTable]]
    ) -> None:
        self._manifest = manifest
        self._tables = {n: passes for n, passes in tables.items() if Pass() in passes}

    def __getitem__(self, name: str) -> Sums:
        return Sums.of_table(self._manifest, self._tables[name][Pass()])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


class Places:
    """Rows of score tables that hold given tokens of given examples.

    Where a token stands within its example is looked up in the first table; another
    order of examples, or of their tokens, is found out.
    """

    def __init__(self, keys: Sequence[str], tokens: Sequence[np.ndarray]) -> None:
        self._keys, self._tokens = keys, tokens
        self.sizes = np.array([len(each) for each in tokens], np.int64)
        self._positions = np.concatenate([np.zeros(0, np.int64), *tokens])
        self._first = np.cumsum([0, *self.sizes[:-1]])
        self._within: np.ndarray | None = None

    def of(self, table: TokenTable) -> np.ndarray:
        """Rows of all tokens, one set after the other."""
        wholes = [table.rows(key) for key in self._keys]
        starts = np.repeat(np.array([w.start for w in wholes], np.int64), self.sizes)
        if self._within is not None:
            rows = starts + self._within
            if rows.max(initial=-1) < len(table) and np.array_equal(
                table.position[rows], self._positions
            ):
                return np.asarray(rows)
        each = zip(wholes, self._tokens, strict=True)
        within = [table.position[whole].searchsorted(tokens) for whole, tokens in each]
        self._within = np.concatenate([np.zeros(0, np.int64), *within])
        return np.asarray(starts + self._within)

    def first(self, table: TokenTable) -> np.ndarray:
        """The row of each set's first token."""
        return np.asarray(self.of(table)[self._first])

    def summed(self, values: np.ndarray) -> np.ndarray:
        """Sums over each set of values as :meth:`of` orders them."""
        return np.asarray(np.add.reduceat(values, self._first))


def audited_spans(
    manifest: Manifest, *, split: str = "train"
) -> Iterator[tuple[int, ManifestExample, list[tuple[int, int]]]]:
    """Examples of a split with the token ranges of the spans that are audited.

    These are the matched and the unmatched spans; canaries and spans that were cut
    off are no part of the matched audit.
    """
    wanted: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for pair in manifest.pairs:
        wanted[pair.example].add((pair.pii.char_start, pair.pii.char_end))
    for span in manifest.unmatched:
        wanted[span.example].add((span.char_start, span.char_end))
    for i, example in enumerate(manifest.examples):
        if example.split != split or example.id not in wanted:
            continue
        ranges = [
            tokens
            for span, tokens in example.identifiers
            if (span.start, span.end) in wanted[example.id]
        ]
        if ranges:
            yield i, example, ranges


def plan_of_identifiers(manifest: Manifest) -> Plan:
    """All examples with an audited span, for the plain pass."""
    ids = [
        example.id
        for split in ("train", "test")
        for _, example, _ in audited_spans(manifest, split=split)
    ]
    return {Pass(): sorted(ids)} if ids else {}


REPRODUCED = 1e-3
"""Nats by which scores of the same model may differ from those of the manifest."""


@dataclass(frozen=True)
class Group:
    """One group's spans on one checkpoint, as the statistics take them.

    ``pii``, ``control``, ``residual``, ``tokens`` and ``codes`` (cluster codes) have
    one entry a matched pair; ``residual`` is what matching left over, the reference's
    PII sum minus its control sum; ``windows`` are the reference's means over PII and
    pool, ``checkpoint_windows`` the checkpoint's over the pool, ``cells`` the code of
    each (example, length). Sums are in nats.
    """

    pii: np.ndarray
    control: np.ndarray
    residual: np.ndarray
    tokens: np.ndarray
    codes: np.ndarray
    windows: Windows
    checkpoint_windows: np.ndarray
    cells: dict[tuple[str, int], int]

    @property
    def num(self) -> np.ndarray:
        """Per-cluster sums of the differences."""
        size = self.windows.n_clusters
        return cluster_sums(self.pii - self.control, self.codes, size)

    @property
    def is_reference(self) -> bool:
        """Whether the checkpoint scores windows and pairs as the reference did."""
        pairs = (self.pii - self.control - self.residual) / self.tokens
        windows = self.checkpoint_windows - self.windows.pool
        change = np.abs(np.concatenate([pairs, windows]))
        return bool(len(change)) and float(change.max()) <= REPRODUCED

    @property
    def change(self) -> np.ndarray:
        """Per-cluster sums of the differences minus those on the reference."""
        size = self.windows.n_clusters
        change = self.pii - self.control - self.residual
        return cluster_sums(change, self.codes, size)

    @property
    def den(self) -> np.ndarray:
        """Per-cluster PII tokens."""
        return cluster_sums(self.tokens, self.codes, self.windows.n_clusters)


def groups(part: pd.DataFrame, split: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Named groups of a split's evidence; windows follow the spans of their cell."""
    if split == "test":
        yield "split:test", part
        return
    yield "pooled", part
    pii = part[part["role"].isin(["pii", "control", "unmatched"])]
    for column, prefix in (("task", "task"), ("type", "type")):
        for value in sorted(set(pii[column])):
            spans = pii[pii[column] == value]
            cells = pd.MultiIndex.from_frame(spans[["example", "n_tokens"]])
            windows = part[part["role"] == "window"]
            inside = pd.MultiIndex.from_frame(windows[["example", "n_tokens"]])
            yield (
                f"{prefix}:{value}",
                pd.concat([spans, windows[inside.isin(cells)]]),
            )


def group_of(part: pd.DataFrame, clusters: Sequence[str]) -> Group:
    """One group's evidence on one checkpoint; ``clusters`` are its labels, sorted."""
    code = {name: i for i, name in enumerate(clusters)}
    part = part.assign(
        code=part["cluster"].map(code),
        cell=part.groupby(["example", "n_tokens"]).ngroup(),
    )
    by_pair = part[part["pair"] >= 0].sort_values("pair", kind="stable")
    pii, control = (by_pair[by_pair["role"] == role] for role in ("pii", "control"))
    windows = part[part["role"] == "window"]
    spans = part[part["role"].isin(["pii", "unmatched"])]
    return Group(
        pii=pii["nll_sum"].to_numpy(),
        control=control["nll_sum"].to_numpy(),
        residual=pii["ref_sum"].to_numpy() - control["ref_sum"].to_numpy(),
        tokens=pii["n_tokens"].to_numpy(np.float64),
        codes=pii["code"].to_numpy(np.int64),
        windows=Windows(
            pool=(windows["ref_sum"] / windows["n_tokens"]).to_numpy(),
            pool_clusters=windows["code"].to_numpy(np.int64),
            spans=(spans["ref_sum"] / spans["n_tokens"]).to_numpy(),
            span_tokens=spans["n_tokens"].to_numpy(np.float64),
            span_clusters=spans["code"].to_numpy(np.int64),
            n_clusters=len(clusters),
            pool_cells=windows["cell"].to_numpy(np.int64),
            span_cells=spans["cell"].to_numpy(np.int64),
        ),
        checkpoint_windows=(windows["nll_sum"] / windows["n_tokens"]).to_numpy(),
        cells=dict(
            zip(
                zip(part["example"], part["n_tokens"], strict=True),
                part["cell"],
                strict=True,
            )
        ),
    )
