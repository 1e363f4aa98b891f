"""Spans of a manifest: which are audited, and what any range of tokens costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from spark_audit.audits.base import Plan
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.intervals import Estimand, ratio
from spark_audit.stats.matching import Windows


class Sums:
    """Summed NLL over any token range of a manifest's examples.

    Prefix sums over the full tokenisation of every scored example, so that a hundred
    thousand ranges cost one subtraction each.
    """

    def __init__(self, manifest: Manifest, nll: Iterable[np.ndarray]) -> None:
        lengths = [len(example.reference_unll) for example in manifest.examples]
        self._first = np.concatenate([[0], np.cumsum(np.add(lengths, 1))])
        self._prefix = np.zeros(int(self._first[-1]))
        for start, values in zip(self._first.tolist(), nll, strict=False):
            np.cumsum(values, out=self._prefix[start + 1 : start + 1 + len(values)])

    @classmethod
    def of_table(cls, manifest: Manifest, table: TokenTable) -> Sums:
        """Of a checkpoint; sums over an example that the table lacks are refused."""

        def whole(example: ManifestExample) -> np.ndarray:
            if example.id not in table:
                return np.full(len(example.reference_unll), np.nan)
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
        """Summed NLL in nats, shape of the arguments; float64.

        Raises
        ------
        InputError
            If an example was not scored.
        """
        first = self._first[example] + start
        found = np.asarray(self._prefix[first + length] - self._prefix[first])
        if np.isnan(found).any():
            raise InputError(
                "the score table lacks an item of the manifest",
                fix="score again with the same manifest",
            )
        return found

    def of_tokens(self, example: int, tokens: Sequence[int]) -> float:
        """Summed NLL in nats of one example's tokens, wherever they stand."""
        at = np.asarray(tokens, dtype=np.int64)
        return float(self(np.full(len(at), example), at, np.ones_like(at)).sum())


def summed(
    table: TokenTable, sets: Iterable[tuple[str, np.ndarray]], values: np.ndarray
) -> np.ndarray:
    """Sums of what each scored token has over sets of tokens, each of one example."""

    def values_of(key: str, tokens: np.ndarray) -> np.ndarray:
        rows = table.rows(key)
        return np.asarray(values[rows][table.position[rows].searchsorted(tokens)])

    return np.array([values_of(*each).sum(dtype=np.float64) for each in sets])


def audited_spans(
    manifest: Manifest, *, split: str = "train"
) -> Iterator[tuple[int, ManifestExample, list[tuple[int, int]]]]:
    """Examples of a split with the token ranges of the spans that are audited.

    These are the matched and the unmatched spans; canaries and spans that were cut
    off are no part of the matched audit.
    """
    wanted = {
        (pair.example, pair.pii.char_start, pair.pii.char_end)
        for pair in manifest.pairs
    }
    wanted |= {(s.example, s.char_start, s.char_end) for s in manifest.unmatched}
    for i, example in enumerate(manifest.examples):
        ranges = [
            tokens
            for span, tokens in (example.identifiers if example.split == split else ())
            if (example.id, span.start, span.end) in wanted
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
    """One group's pairs and windows: places in the evidence, for all checkpoints.

    ``pii`` and ``control`` are the sides of the pairs, with ``tokens`` and cluster
    ``codes``; ``residual`` is what matching left over, the reference's PII sum minus
    its control sum, nats; ``pool`` are the windows, ``windows`` the reference's means
    over spans and pool. Cells are the numbers of (example, length).
    """

    name: str
    pii: np.ndarray
    control: np.ndarray
    tokens: np.ndarray
    codes: np.ndarray
    residual: np.ndarray
    pool: np.ndarray
    pool_tokens: np.ndarray
    windows: Windows

    def mean(self, values: np.ndarray) -> Estimand:
        """Mean of the pairs' values per token."""
        columns = np.stack([values, self.tokens], axis=1)
        sums = cluster_sums(columns, self.codes, self.windows.n_clusters)
        return Estimand(sums, ratio, round(float(self.tokens.sum())))

    def means(self, nll: np.ndarray) -> np.ndarray:
        """Mean NLL of the windows, nats per token."""
        return np.asarray(nll[self.pool] / self.pool_tokens)

    def is_reference(self, nll: np.ndarray) -> bool:
        """Whether a checkpoint scores windows and pairs as the reference did."""
        pairs = (nll[self.pii] - nll[self.control] - self.residual) / self.tokens
        windows = self.means(nll) - self.windows.pool
        change = np.abs(np.concatenate([pairs, windows]))
        return bool(len(change)) and float(change.max()) <= REPRODUCED


def groups(units: pd.DataFrame) -> Iterator[Group]:
    """Train rows pooled, by task and by type, and test rows.

    The windows of a group are those of the cells of its spans.
    """
    cells = units.groupby(["example", "n_tokens"]).ngroup().to_numpy()
    roles, splits = units["role"], units["split"]
    spans = roles.isin(["pii", "control", "unmatched"]).to_numpy()
    windows = (roles == "window").to_numpy()
    for split, whole in (("train", "pooled"), ("test", "split:test")):
        inside = (splits == split).to_numpy()
        if not inside.any():
            continue
        labels, clusters = pd.factorize(units["cluster"].where(inside), sort=True)
        chosen = [(whole, inside)]
        for column in ("task", "type") if split == "train" else ():
            values = units[column].to_numpy()
            for value in sorted(set(values[inside & spans])):
                held = inside & spans & (values == value)
                pool = inside & windows & np.isin(cells, cells[held])
                chosen.append((f"{column}:{value}", held | pool))
        for name, kept in chosen:
            yield _group(name, units[kept], labels[kept], cells[kept], len(clusters))


def _group(
    name: str, part: pd.DataFrame, codes: np.ndarray, cells: np.ndarray, size: int
) -> Group:
    mean = part["ref_sum"] / part["n_tokens"]
    part = part.assign(code=codes, cell=cells, mean=mean)
    ordered = part.sort_values("pair", kind="stable")
    pii, control = (ordered[ordered["role"] == side] for side in ("pii", "control"))
    pool = part[part["role"] == "window"]
    spans = part[part["role"].isin(["pii", "unmatched"])]
    return Group(
        name=name,
        pii=pii.index.to_numpy(),
        control=control.index.to_numpy(),
        tokens=pii["n_tokens"].to_numpy(np.float64),
        codes=pii["code"].to_numpy(),
        residual=pii["ref_sum"].to_numpy() - control["ref_sum"].to_numpy(),
        pool=pool.index.to_numpy(),
        pool_tokens=pool["n_tokens"].to_numpy(np.float64),
        windows=Windows(
            pool=pool["mean"].to_numpy(),
            pool_clusters=pool["code"].to_numpy(),
            spans=spans["mean"].to_numpy(),
            span_tokens=spans["n_tokens"].to_numpy(),
            span_clusters=spans["code"].to_numpy(),
            n_clusters=size,
            pool_cells=pool["cell"].to_numpy(),
            span_cells=spans["cell"].to_numpy(),
        ),
    )
