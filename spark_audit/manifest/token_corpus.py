"""The tokens of many examples on one axis: classes, control windows, covariates.

Covariates describe a stretch of text, and matching must leave them balanced. They are
measured on the reference model and on the text, never on a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spark_audit.manifest.layout import ManifestLayout
from spark_audit.scoring.table import TokenTable
from spark_audit.stats.matching import micro_nats, non_overlapping_windows

AVERAGED_COVARIATES = (
    "entropy",
    "log2_rank",
    "log_frequency",
    "word_start",
    "in_prompt",
)


class TokenCorpus:
    """The tokens of some examples, N in all, with the values for their covariates.

    Parameters
    ----------
    table
        Plain scores by the reference model, of these rows and perhaps of others.
    counts
        Counts of each token in all texts, special ones left out, shape ``(V,)``.
    before
        As the attribute.

    Attributes
    ----------
    rows
        The examples.
    first
        Shape ``(n + 1,)``: first token of each example, and N at the end.
    unll
        Shape ``(N,)``, int64: micro-nats on the reference model; -1: not scored.
    tokens, special
        Shape ``(N,)``: token ids, and whether each is special.
    start, end
        Shape ``(N,)``: characters of each token in its own example.
    digits, capitals, letters
        Shape ``(2, N)``: number of such characters before the token's start and before
        its end.
    word_start
        Shape ``(N,)``, bool: the first token of a word (nothing or white space
        before it).
    in_prompt
        Shape ``(N,)``, bool: whether the token starts before the response.
    log_frequency
        Shape ``(N,)``: log of the token's share of all tokens of these texts.
    entropy, log2_rank
        Shape ``(N,)``: entropy (nats) and rank (bits) of the reference model's
        prediction; 0 for tokens without a score.
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
        self.rows = rows
        self.before = before
        encodings = [row.encoding for row in rows]
        texts = [row.example.text for row in rows]

        # All tokens on one axis: (N,) each.
        n_tokens = [len(encoding) for encoding in encodings]  # of each row
        self.first = np.concatenate([[0], np.cumsum(n_tokens)]).astype(np.int64)
        self.start = np.concatenate([encoding.char_start for encoding in encodings])
        self.end = np.concatenate([encoding.char_end for encoding in encodings])
        self.tokens = np.concatenate([encoding.ids for encoding in encodings])
        self.special = np.concatenate([encoding.is_special for encoding in encodings])

        # All characters on one axis, with the first and the last one of each token.
        text_starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
        text_start = np.repeat(text_starts[:-1], n_tokens)  # (N,)
        char_start = text_start + self.start
        char_end = text_start + self.end
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
        classes = _character_classes(codes)

        # A blank before the first character of a text belongs to the previous text.
        follows_blank = np.concatenate([[True], classes.is_blank])[char_start]
        begins_word = follows_blank | (self.start == 0)
        self.word_start = begins_word & (self.start < self.end)
        self.digits = _counts_at(classes.is_digit, char_start, char_end)
        self.capitals = _counts_at(classes.is_capital, char_start, char_end)
        self.letters = _counts_at(classes.is_letter, char_start, char_end)

        prompt_lengths = [len(row.example.prompt) for row in rows]
        self.in_prompt = self.start < np.repeat(prompt_lengths, n_tokens)
        self.log_frequency = self._log_frequency(counts)

        # Tokens that the table lacks keep these values.
        self.unll = np.full(len(self.tokens), -1, np.int64)
        self.entropy = np.zeros(len(self.tokens))
        self.log2_rank = np.zeros(len(self.tokens))
        self._read_scores(table)

    def _log_frequency(self, counts: np.ndarray) -> np.ndarray:
        """Return the log of each token's share of all tokens, shape ``(N,)``."""
        share = counts / max(1, int(counts.sum()))  # (V,)
        # Special tokens are not counted, so their share may be 0.
        log_share = np.log(share, out=np.zeros(len(share)), where=share > 0)
        by_token = log_share[np.where(self.special, 0, self.tokens)]
        return np.where(self.special, 0.0, by_token)

    def _read_scores(self, table: TokenTable) -> None:
        """Copy the reference model's scores of its tokens from the table."""
        nll: list[np.ndarray] = []
        mean_logp: list[np.ndarray] = []
        rank_lo: list[np.ndarray] = []
        scored: list[np.ndarray] = []
        for first, row in zip(self.first[:-1].tolist(), self.rows, strict=True):
            table_rows = table.rows(row.example.id)
            scored.append(first + table.position[table_rows])
            nll.append(table.columns["nll"][table_rows])
            mean_logp.append(table.columns["mean_logp"][table_rows])
            rank_lo.append(table.columns["rank_lo"][table_rows])

        # Positions in a row become positions on the common axis.
        places = np.concatenate(scored)  # (scored tokens,)
        self.unll[places] = micro_nats(np.concatenate(nll))
        self.entropy[places] = -np.concatenate(mean_logp)
        self.log2_rank[places] = np.log2(np.concatenate(rank_lo))

    def of(self, example: int) -> slice:
        """Return the tokens of one example, as a slice."""
        return slice(int(self.first[example]), int(self.first[example + 1]))

    def sums(self, name: str) -> np.ndarray:
        """Return the running sums of an attribute, shape ``(N + 1,)``, float64."""
        # The sum over earlier slices comes first, so that the order of addition stays.
        addends = [[self.before.get(name, 0.0)], getattr(self, name)]
        return np.cumsum(np.concatenate(addends, dtype=np.float64))

    def after(self) -> dict[str, float]:
        """Return the totals to pass as ``before`` to the examples that follow."""
        return {name: float(self.sums(name)[-1]) for name in AVERAGED_COVARIATES}


def token_classes(texts: TokenCorpus) -> np.ndarray:
    """Return one letter per token, shape ``(N,)``, uint8 ASCII.

    ``d``: has a digit; ``A``: has a capital; ``a``: has other letters; ``-``: none of
    these.
    """

    def holds(counts: np.ndarray) -> np.ndarray:
        """Return whether each token holds such characters, shape ``(N,)``."""
        before_start, before_end = counts  # (N,) each
        return np.asarray(before_end > before_start)

    # The first class that applies is used.
    letters = np.select(
        [holds(texts.digits), holds(texts.capitals), holds(texts.letters)],
        [ord("d"), ord("A"), ord("a")],
        ord("-"),
    )
    return letters.astype(np.uint8)


def pool(eligible: np.ndarray, texts: TokenCorpus, spans: np.ndarray) -> np.ndarray:
    """Return the eligible windows that could have been controls.

    Windows of equal length are disjoint.

    Token ranges have shape ``(n, 3)``: index of the example, first token in it, length.

    Parameters
    ----------
    eligible
        Shape ``(N,)``, bool.
    spans
        Token ranges of PII spans. Windows have their lengths and come from their
        examples.
    """
    # Spans of equal length in one example share their possible controls.
    windows: list[tuple[int, int, int]] = []
    for example, length in np.unique(spans[:, [0, 2]], axis=0).tolist():
        is_eligible = eligible[texts.of(example)]
        for start in non_overlapping_windows(is_eligible, length):
            windows.append((example, start, length))
    return np.array(windows, np.int64).reshape(-1, 3)


def covariates(texts: TokenCorpus, ranges: np.ndarray) -> dict[str, np.ndarray]:
    """Return the covariates of token ranges whose tokens are all scored.

    Parameters
    ----------
    ranges
        Shape ``(n, 3)``: example (its index), first token in it, length.

    Returns
    -------
    dict
        Name -> values of shape ``(n,)``. NLL and entropy are in nats, rank in log2.
        ``position`` is the start divided by the example's tokens. Shares are of
        characters (digit, capital) or of tokens (word-initial, in prompt).
    """
    example, start, length = ranges.T  # (n,) each
    low = texts.first[example] + start  # first token on the common axis
    high = low + length
    last = high - 1
    n_tokens = length.astype(np.float64)
    n_tokens_of_text = np.diff(texts.first)[example]
    # A range of special tokens has no characters.
    n_chars = np.maximum(texts.end[last] - texts.start[low], 1).astype(np.float64)

    def mean(name: str) -> np.ndarray:
        sums = texts.sums(name)
        return np.asarray((sums[high] - sums[low]) / n_tokens)

    def share(counts: np.ndarray) -> np.ndarray:
        """Return the share of such characters in each range, shape ``(n,)``."""
        # Count before the end of the last token, minus count before the first token.
        return np.asarray((counts[1, last] - counts[0, low]) / n_chars)

    unll_sums = np.concatenate([[0], np.cumsum(np.maximum(texts.unll, 0))])
    largest = [texts.unll[a:b].max() for a, b in zip(low, high, strict=True)]
    return {
        "nll_mean": (unll_sums[high] - unll_sums[low]) / (1e6 * n_tokens),
        "nll_max": np.array(largest, np.float64) / 1e6,
        "nll_first": texts.unll[low] / 1e6,
        "entropy": mean("entropy"),
        "log2_rank": mean("log2_rank"),
        "position": start / n_tokens_of_text,
        "tokens": n_tokens,
        "chars_per_token": n_chars / n_tokens,
        "digit_share": share(texts.digits),
        "capital_share": share(texts.capitals),
        "log_frequency": mean("log_frequency"),
        "word_initial_share": mean("word_start"),
        "in_prompt_share": mean("in_prompt"),
    }


class _CharacterClasses(NamedTuple):
    """Masks of character classes, each of shape ``(n,)``, bool."""

    is_blank: np.ndarray
    is_digit: np.ndarray
    is_capital: np.ndarray
    is_letter: np.ndarray


def _character_classes(codes: np.ndarray) -> _CharacterClasses:
    """Return the classes of characters, given by Unicode numbers of shape ``(n,)``."""
    # Each distinct character is classified once, however often it occurs.
    distinct, inverse = np.unique(codes, return_inverse=True)
    characters = [chr(code) for code in distinct]

    def holds(test: Callable[[str], bool]) -> np.ndarray:
        return np.array([test(character) for character in characters])[inverse]

    return _CharacterClasses(
        is_blank=holds(str.isspace),
        is_digit=holds(str.isdigit),
        is_capital=holds(str.isupper),
        is_letter=holds(str.isalpha),
    )


def _counts_at(
    is_member: np.ndarray, char_start: np.ndarray, char_end: np.ndarray
) -> np.ndarray:
    """Return the counts of such characters before each token's start and its end.

    Parameters
    ----------
    is_member
        Shape ``(characters,)``, bool: whether each character counts.
    char_start, char_end
        Shape ``(N,)``: start and end of each token on the axis of characters.

    Returns
    -------
    numpy.ndarray
        Shape ``(2, N)``.
    """
    counts = np.concatenate([[0], np.cumsum(is_member)])
    return np.stack([counts[char_start], counts[char_end]])
