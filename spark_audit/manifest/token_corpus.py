"""The tokens of many examples on one axis: classes, control windows, covariates.

Covariates say what a stretch of text is like, and matching must leave them balanced.
Everything is measured on the reference model and on the text, never on a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spark_audit.scoring.table import TokenTable
from spark_audit.stats.matching import micro_nats, non_overlapping_windows

if TYPE_CHECKING:
    pass
from spark_audit.manifest.layout import ManifestLayout

REFERENCE_SCORES = ("nll", "mean_logp", "rank_lo")
"""What is asked of the reference model per token."""

AVERAGED_COVARIATES = (
    "entropy",
    "log2_rank",
    "log_frequency",
    "word_start",
    "in_prompt",
)


class TokenCorpus:
    """The tokens of some examples, N in all, and what covariates are taken from.

    Parameters
    ----------
    table
        Plain scores of the rows by the reference model, other rows among them.
    counts
        How often each token stands in all texts, special ones left out.
    before
        As the attribute.

    Attributes
    ----------
    rows
        The examples.
    first
        Shape ``(n + 1,)``: where each example's tokens start.
    unll
        Shape ``(N,)``, int64: micro-nats on the reference model, -1: not scored.
    tokens, special
        Shape ``(N,)``: ids, and which are special.
    start, end
        Shape ``(N,)``: characters of each token in its own example.
    digits, capitals, letters
        Shape ``(2, N)``: how many such characters stand before the token's start and
        before its end.
    word_start
        Shape ``(N,)``, bool: the first token of a word (nothing or white space
        before it).
    in_prompt
        Shape ``(N,)``, bool: starts before the response.
    log_frequency
        Shape ``(N,)``: log of the token's share of all tokens of these texts.
    entropy, log2_rank
        Shape ``(N,)``: of the reference model's prediction, in nats and bits; 0 where
        nothing was scored.
    before
        What the tokens of the examples before these add up to, by the name of what is
        averaged: so the means of a slice are those of all in one go, to the last bit.
    """

    def __init__(
        self,
        rows: Sequence[ManifestLayout],
        table: TokenTable,
        *,
        counts: np.ndarray,
        before: Mapping[str, float],
    ) -> None:
        self.rows, self.before = rows, before
        encodings = [row.encoding for row in rows]
        texts = [row.example.text for row in rows]
        lengths = [len(encoding) for encoding in encodings]
        self.first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.start = np.concatenate([encoding.start for encoding in encodings])
        self.end = np.concatenate([encoding.end for encoding in encodings])
        self.tokens = np.concatenate([encoding.ids for encoding in encodings])
        self.special = np.concatenate([encoding.special for encoding in encodings])
        base = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
        base = np.repeat(base[:-1], lengths)
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
        blank, *kinds = _kinds(codes)
        opens = np.concatenate([[True], blank])[base + self.start] | (self.start == 0)
        self.word_start = opens & (self.start < self.end)
        edges = base + self.start, base + self.end
        self.digits, self.capitals, self.letters = (
            np.stack([np.concatenate([[0], np.cumsum(kind)])[at] for at in edges])
            for kind in kinds
        )
        border = [len(row.example.prompt) for row in rows]
        self.in_prompt = self.start < np.repeat(border, lengths)
        share = counts / max(1, int(counts.sum()))
        log_share = np.log(share, out=np.zeros(len(share)), where=share > 0)
        shares = log_share[np.where(self.special, 0, self.tokens)]
        self.log_frequency = np.where(self.special, 0.0, shares)
        self.unll = np.full(len(self.tokens), -1, np.int64)
        self.entropy, self.log2_rank = np.zeros((2, len(self.tokens)))
        own = [table.rows(row.example.id) for row in rows]
        offsets = zip(self.first.tolist(), own, strict=False)
        at = np.concatenate([first + table.position[held] for first, held in offsets])

        def column(name: str) -> np.ndarray:
            return np.concatenate([table.columns[name][held] for held in own])

        nll, mean_logp, rank = map(column, REFERENCE_SCORES)
        self.unll[at], self.entropy[at] = micro_nats(nll), -mean_logp
        self.log2_rank[at] = np.log2(rank)

    def of(self, example: int) -> slice:
        """The tokens of one example."""
        return slice(int(self.first[example]), int(self.first[example + 1]))

    def sums(self, name: str) -> np.ndarray:
        """What is averaged, added up: shape ``(N + 1,)``, float64."""
        parts = [[self.before.get(name, 0.0)], getattr(self, name)]
        return np.cumsum(np.concatenate(parts, dtype=np.float64))

    def after(self) -> dict[str, float]:
        """Return ``before`` of the examples that follow these."""
        return {name: float(self.sums(name)[-1]) for name in AVERAGED_COVARIATES}


def token_classes(texts: TokenCorpus) -> np.ndarray:
    """One letter a token, shape ``(N,)``, uint8 ASCII.

    ``d`` has a digit, ``A`` a capital, ``a`` other letters, ``-`` neither.
    """
    kinds = (texts.digits, texts.capitals, texts.letters)
    found = [before_end > before_start for before_start, before_end in kinds]
    letter = np.select(found, [ord(c) for c in "dAa"], ord("-"))
    return letter.astype(np.uint8)


def pool(eligible: np.ndarray, texts: TokenCorpus, spans: np.ndarray) -> np.ndarray:
    """Eligible windows that could have been controls, disjoint within each length.

    Token ranges have shape ``(n, 3)``: example (its index), first token in it, length.

    Parameters
    ----------
    eligible
        Shape ``(N,)``, bool.
    spans
        Token ranges of PII spans: windows of their lengths are taken from their
        examples.
    """
    found = [
        (example, start, length)
        for example, length in np.unique(spans[:, [0, 2]], axis=0).tolist()
        for start in non_overlapping_windows(eligible[texts.of(example)], length)
    ]
    return np.array(found, np.int64).reshape(-1, 3)


def covariates(texts: TokenCorpus, ranges: np.ndarray) -> dict[str, np.ndarray]:
    """Covariates of token ranges, all scored.

    Returns
    -------
    dict
        Name -> values of shape ``(n,)``. NLL and entropy in nats, rank in log2;
        ``position`` is the start over the example's tokens; shares are of characters
        (digit, capital) or of tokens (word-initial, in prompt).
    """
    example, start, length = ranges.T
    low = texts.first[example] + start
    high = low + length
    last = high - 1
    tokens = length.astype(np.float64)
    total = np.diff(texts.first)[example]
    chars = np.maximum(texts.end[last] - texts.start[low], 1).astype(np.float64)

    def mean(name: str) -> np.ndarray:
        sums = texts.sums(name)
        return np.asarray((sums[high] - sums[low]) / tokens)

    def share(counts: np.ndarray) -> np.ndarray:
        return np.asarray((counts[1, last] - counts[0, low]) / chars)

    unll = np.concatenate([[0], np.cumsum(np.maximum(texts.unll, 0))])
    largest = [texts.unll[a:b].max() for a, b in zip(low, high, strict=True)]
    return {
        "nll_mean": (unll[high] - unll[low]) / (1e6 * tokens),
        "nll_max": np.array(largest, np.float64) / 1e6,
        "nll_first": texts.unll[low] / 1e6,
        "entropy": mean("entropy"),
        "log2_rank": mean("log2_rank"),
        "position": start / total,
        "tokens": tokens,
        "chars_per_token": chars / tokens,
        "digit_share": share(texts.digits),
        "capital_share": share(texts.capitals),
        "log_frequency": mean("log_frequency"),
        "word_initial_share": mean("word_start"),
        "in_prompt_share": mean("in_prompt"),
    }


def _kinds(codes: np.ndarray) -> tuple[np.ndarray, ...]:
    """Which characters are blank, digits, capitals, letters: four bool arrays."""
    tests = (str.isspace, str.isdigit, str.isupper, str.isalpha)
    seen, inverse = np.unique(codes, return_inverse=True)
    chars = [chr(code) for code in seen]
    return tuple(np.array([*map(test, chars)])[inverse] for test in tests)
