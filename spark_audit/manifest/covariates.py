"""What a stretch of text is like: the covariates that matching must leave balanced.

All examples' tokens stand on one axis, so that a million windows cost a few prefix
sums. Everything is measured on the reference model and on the text, never on a
checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_audit.manifest.layout import Layout
from spark_audit.scoring.table import COLUMNS
from spark_audit.stats.balance import balance_rows
from spark_audit.stats.matching import micro_nats, non_overlapping_windows

SCORES = np.dtype([(name, COLUMNS[name]) for name in ("nll", "mean_logp", "rank_lo")])
"""What is asked of the reference model per token; one that was not scored has no NLL:
it is NaN."""
AVERAGED = ("entropy", "log2_rank", "log_frequency", "word_start", "in_prompt")


@dataclass(frozen=True)
class Ranges:
    """Token ranges, one entry a range.

    Shapes ``(n,)``, int64: ``example`` (index), ``start`` (in the example's own full
    tokenisation) and ``length``.
    """

    example: np.ndarray
    start: np.ndarray
    length: np.ndarray

    @classmethod
    def of(cls, records: Sequence[tuple[int, int, int]]) -> Ranges:
        """From ``(example, start, length)`` records."""
        return cls(*np.array(records, dtype=np.int64).reshape(-1, 3).T)

    def __len__(self) -> int:
        return len(self.example)


@dataclass(frozen=True)
class Corpus:
    """The tokens of some examples, N in all, and what covariates are taken from.

    Attributes
    ----------
    first
        Shape ``(n + 1,)``: where each example's tokens start.
    unll
        Shape ``(N,)``, int64: micro-nats on the reference model, -1: not scored.
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

    first: np.ndarray
    unll: np.ndarray
    start: np.ndarray
    end: np.ndarray
    digits: np.ndarray
    capitals: np.ndarray
    letters: np.ndarray
    word_start: np.ndarray
    in_prompt: np.ndarray
    log_frequency: np.ndarray
    entropy: np.ndarray
    log2_rank: np.ndarray
    before: Mapping[str, float]

    def of(self, example: int) -> slice:
        """The tokens of one example."""
        return slice(int(self.first[example]), int(self.first[example + 1]))

    def sums(self, name: str) -> np.ndarray:
        """What is averaged, added up: shape ``(N + 1,)``, float64."""
        parts = [[self.before.get(name, 0.0)], getattr(self, name)]
        return np.cumsum(np.concatenate(parts, dtype=np.float64))

    def after(self) -> dict[str, float]:
        """:attr:`before` of the examples behind these."""
        return {name: float(self.sums(name)[-1]) for name in AVERAGED}


def corpus(
    rows: Sequence[Layout],
    scores: np.ndarray,
    *,
    counts: np.ndarray,
    before: Mapping[str, float],
) -> Corpus:
    """Lay texts, tokens and reference scores out on one axis.

    Parameters
    ----------
    scores
        Plain scores of the rows' tokens by the reference model, shape ``(N,)``,
        :data:`SCORES`.
    counts
        How often each token stands in all texts, special ones left out.
    before
        As :attr:`Corpus.before`.
    """
    encodings = [row.encoding for row in rows]
    texts = [row.example.text for row in rows]
    lengths = [len(encoding) for encoding in encodings]
    first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    start = np.concatenate([encoding.start for encoding in encodings])
    end = np.concatenate([encoding.end for encoding in encodings])
    tokens = np.concatenate([encoding.ids for encoding in encodings])
    special = np.concatenate([encoding.special for encoding in encodings])
    base = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
    base = np.repeat(base[:-1], lengths)
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
    blank, digits, capitals, letters = _kinds(codes)
    opens = np.concatenate([[True], blank])[base + start] | (start == 0)
    share = counts / max(1, int(counts.sum()))
    with np.errstate(divide="ignore"):
        log_share = np.log(share)
    log_share[share == 0] = 0.0
    log_frequency = np.where(special, 0.0, log_share[np.where(special, 0, tokens)])
    unll = np.full(len(tokens), -1, np.int64)
    entropy, log2_rank = np.zeros(len(tokens)), np.zeros(len(tokens))
    scored = ~np.isnan(scores["nll"])
    unll[scored] = micro_nats(scores["nll"][scored])
    entropy[scored] = -scores["mean_logp"][scored]
    log2_rank[scored] = np.log2(scores["rank_lo"][scored])
    border = [len(row.example.prompt) for row in rows]
    return Corpus(
        first=first,
        start=start,
        end=end,
        digits=_counts(digits, base, start, end),
        capitals=_counts(capitals, base, start, end),
        letters=_counts(letters, base, start, end),
        word_start=opens & (start < end),
        in_prompt=start < np.repeat(border, lengths),
        log_frequency=log_frequency,
        unll=unll,
        entropy=entropy,
        log2_rank=log2_rank,
        before=before,
    )


def token_classes(texts: Corpus) -> np.ndarray:
    """One letter a token, shape ``(N,)``, uint8 ASCII.

    ``d`` has a digit, ``A`` a capital, ``a`` other letters, ``-`` neither.
    """
    kinds = (texts.digits, texts.capitals, texts.letters)
    found = [before_end > before_start for before_start, before_end in kinds]
    letter = np.select(found, [ord(c) for c in "dAa"], ord("-"))
    return letter.astype(np.uint8)


def pool(eligible: np.ndarray, texts: Corpus, spans: Ranges) -> Ranges:
    """Eligible windows that could have been controls, disjoint within each length.

    Parameters
    ----------
    eligible
        Shape ``(N,)``, bool.
    spans
        The PII spans: windows of their lengths are taken from their examples.
    """
    cells = np.unique(np.stack([spans.example, spans.length], axis=1), axis=0)
    return Ranges.of(
        [
            (example, start, length)
            for example, length in cells.tolist()
            for start in non_overlapping_windows(eligible[texts.of(example)], length)
        ]
    )


def covariates(texts: Corpus, ranges: Ranges) -> dict[str, np.ndarray]:
    """Covariates of token ranges, all scored.

    Returns
    -------
    dict
        Name -> values of shape ``(n,)``. NLL and entropy in nats, rank in log2;
        ``position`` is the start over the example's tokens; shares are of characters
        (digit, capital) or of tokens (word-initial, in prompt).
    """
    low = texts.first[ranges.example] + ranges.start
    high = low + ranges.length
    last = high - 1
    tokens = ranges.length.astype(np.float64)
    total = np.diff(texts.first)[ranges.example]
    chars = np.maximum(texts.end[last] - texts.start[low], 1).astype(np.float64)

    def mean(name: str) -> np.ndarray:
        sums = texts.sums(name)
        return np.asarray((sums[high] - sums[low]) / tokens)

    def share(counts: np.ndarray) -> np.ndarray:
        return np.asarray((counts[1, last] - counts[0, low]) / chars)

    unll = np.concatenate([[0], np.cumsum(np.maximum(texts.unll, 0))])
    return {
        "nll_mean": (unll[high] - unll[low]) / (1e6 * tokens),
        "nll_max": _largest(texts.unll, low, high) / 1e6,
        "nll_first": texts.unll[low] / 1e6,
        "entropy": mean("entropy"),
        "log2_rank": mean("log2_rank"),
        "position": ranges.start / total,
        "tokens": tokens,
        "chars_per_token": chars / tokens,
        "digit_share": share(texts.digits),
        "capital_share": share(texts.capitals),
        "log_frequency": mean("log_frequency"),
        "word_initial_share": mean("word_start"),
        "in_prompt_share": mean("in_prompt"),
    }


def measured(
    texts: Corpus,
    *,
    spans: Ranges,
    windows: Ranges,
    matched: Ranges,
    controls: Ranges,
) -> dict[tuple[str, str], np.ndarray]:
    """What balance is judged by: ``(side, covariate)`` to values.

    Parameters
    ----------
    spans, windows
        Before: all fully scored PII spans, and the pool (:func:`pool`).
    matched, controls
        After: the two sides of the pairs, in the same order.
    """
    sides = {"spans": spans, "windows": windows, "matched": matched}
    found = {
        (side, name): values
        for side, ranges in {**sides, "controls": controls}.items()
        for name, values in covariates(texts, ranges).items()
    }
    before = controls.start < matched.start
    found["controls", "distance_to_pii"] = np.where(
        before,
        matched.start - controls.start - controls.length,
        controls.start - matched.start - matched.length,
    )
    found["controls", "control_before"] = before
    return found


def balance(values: Mapping[tuple[str, str], np.ndarray]) -> list[dict[str, Any]]:
    """Balance of all covariates before and after matching, one after the other.

    Parameters
    ----------
    values
        As :func:`measured` gives them.

    Returns
    -------
    list
        As :func:`spark_audit.stats.balance.balance_rows`, and two rows that have
        values for controls only: their distance to the PII span in tokens, and the
        share of them that stand before it.
    """
    rows: list[dict[str, Any]] = []
    for name in [name for side, name in values if side == "spans"]:
        spans, windows, controls, matched = (
            {name: values[side, name]}
            for side in ("spans", "windows", "controls", "matched")
        )
        rows += balance_rows(spans, windows, controls, covariates_matched=matched)
    nothing = np.zeros(0)
    for name, note in (
        ("distance_to_pii", "tokens between the control and its span"),
        ("control_before", "share of controls before their span"),
    ):
        own = values["controls", name].astype(np.float64)
        (row,) = balance_rows({name: nothing}, {name: nothing}, {name: own})
        rows.append({**row, "note": note if len(own) else row["note"]})
    return rows


def _kinds(codes: np.ndarray) -> tuple[np.ndarray, ...]:
    """Which characters are blank, digits, capitals, letters: four bool arrays."""
    tests = (str.isspace, str.isdigit, str.isupper, str.isalpha)
    seen, inverse = np.unique(codes, return_inverse=True)
    chars = [chr(code) for code in seen]
    return tuple(np.array([*map(test, chars)])[inverse] for test in tests)


def _counts(
    kind: np.ndarray, base: np.ndarray, start: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """Shape ``(2, N)``, int64: characters of a kind before each start and end."""
    sums = np.concatenate([[0], np.cumsum(kind, dtype=np.int64)])
    return np.stack([sums[base + start], sums[base + end]])


def _largest(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Largest value of each range ``low:high``; none is empty."""
    if not len(low):
        return np.zeros(0)
    order = np.argsort(low, kind="stable")
    padded = np.append(values, values[-1])
    edges = np.stack([low[order], high[order]], axis=1).ravel()
    out = np.empty(len(low), dtype=values.dtype)
    out[order] = np.maximum.reduceat(padded, edges)[::2]
    return out
