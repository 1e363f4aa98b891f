"""The tokens of many examples on one axis: classes, control windows, covariates.

Covariates say what a stretch of text is like, and matching must leave them balanced.
Everything is measured on the reference model and on the text, never on a checkpoint.
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
        self.rows = rows
        self.before = before
        encodings = [row.encoding for row in rows]
        texts = [row.example.text for row in rows]

        # Tokens of all rows on one axis: (N,) each.
        n_tokens = [len(encoding) for encoding in encodings]  # of each row
        self.first = np.concatenate([[0], np.cumsum(n_tokens)]).astype(np.int64)
        self.start = np.concatenate([encoding.start for encoding in encodings])
        self.end = np.concatenate([encoding.end for encoding in encodings])
        self.tokens = np.concatenate([encoding.ids for encoding in encodings])
        self.special = np.concatenate([encoding.special for encoding in encodings])

        # Characters of all texts on one axis, and each token's first and last there.
        text_starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
        text_start = np.repeat(text_starts[:-1], n_tokens)  # (N,)
        char_start = text_start + self.start
        char_end = text_start + self.end
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
        classes = _character_classes(codes)

        # A blank in front of a text's first character is that of another text.
        follows_blank = np.concatenate([[True], classes.is_blank])[char_start]
        begins_word = follows_blank | (self.start == 0)
        self.word_start = begins_word & (self.start < self.end)
        self.digits = _counts_at(classes.is_digit, char_start, char_end)
        self.capitals = _counts_at(classes.is_capital, char_start, char_end)
        self.letters = _counts_at(classes.is_letter, char_start, char_end)

        prompt_lengths = [len(row.example.prompt) for row in rows]
        self.in_prompt = self.start < np.repeat(prompt_lengths, n_tokens)
        self.log_frequency = self._log_frequency(counts)

        # Tokens that the table does not have keep these values.
        self.unll = np.full(len(self.tokens), -1, np.int64)
        self.entropy = np.zeros(len(self.tokens))
        self.log2_rank = np.zeros(len(self.tokens))
        self._read_scores(table)

    def _log_frequency(self, counts: np.ndarray) -> np.ndarray:
        """Return the log of each token's share of all tokens, shape ``(N,)``."""
        share = counts / max(1, int(counts.sum()))  # (V,)
        # Special tokens are not counted: theirs may be 0.
        log_share = np.log(share, out=np.zeros(len(share)), where=share > 0)
        by_token = log_share[np.where(self.special, 0, self.tokens)]
        return np.where(self.special, 0.0, by_token)

    def _read_scores(self, table: TokenTable) -> None:
        """Fill in what the reference model says of the tokens that it scored."""
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

        # Positions in a row's tokens become places on the common axis.
        places = np.concatenate(scored)  # (scored tokens,)
        self.unll[places] = micro_nats(np.concatenate(nll))
        self.entropy[places] = -np.concatenate(mean_logp)
        self.log2_rank[places] = np.log2(np.concatenate(rank_lo))

    def of(self, example: int) -> slice:
        """Return where the tokens of one example stand."""
        return slice(int(self.first[example]), int(self.first[example + 1]))

    def sums(self, name: str) -> np.ndarray:
        """Return running sums of what is averaged, shape ``(N + 1,)``, float64."""
        # The sum of the slices before comes first, so that it is added first.
        addends = [[self.before.get(name, 0.0)], getattr(self, name)]
        return np.cumsum(np.concatenate(addends, dtype=np.float64))

    def after(self) -> dict[str, float]:
        """Return ``before`` of the examples that follow these."""
        return {name: float(self.sums(name)[-1]) for name in AVERAGED_COVARIATES}


def token_classes(texts: TokenCorpus) -> np.ndarray:
    """Return one letter a token, shape ``(N,)``, uint8 ASCII.

    ``d`` has a digit, ``A`` a capital, ``a`` other letters, ``-`` neither.
    """

    def holds(counts: np.ndarray) -> np.ndarray:
        """Return which tokens hold characters that were counted, shape ``(N,)``."""
        before_start, before_end = counts  # (N,) each
        return np.asarray(before_end > before_start)

    # The first class that a token holds is its own.
    letters = np.select(
        [holds(texts.digits), holds(texts.capitals), holds(texts.letters)],
        [ord("d"), ord("A"), ord("a")],
        ord("-"),
    )
    return letters.astype(np.uint8)


def pool(eligible: np.ndarray, texts: TokenCorpus, spans: np.ndarray) -> np.ndarray:
    """Return eligible windows that could have been controls.

    They are disjoint within each length.

    Token ranges have shape ``(n, 3)``: example (its index), first token in it, length.

    Parameters
    ----------
    eligible
        Shape ``(N,)``, bool.
    spans
        Token ranges of PII spans: windows of their lengths are taken from their
        examples.
    """
    # Two spans of one length in an example could have the same controls.
    windows: list[tuple[int, int, int]] = []
    for example, length in np.unique(spans[:, [0, 2]], axis=0).tolist():
        is_eligible = eligible[texts.of(example)]
        for start in non_overlapping_windows(is_eligible, length):
            windows.append((example, start, length))
    return np.array(windows, np.int64).reshape(-1, 3)


def covariates(texts: TokenCorpus, ranges: np.ndarray) -> dict[str, np.ndarray]:
    """Return covariates of token ranges, all scored.

    Parameters
    ----------
    ranges
        Shape ``(n, 3)``: example (its index), first token in it, length.

    Returns
    -------
    dict
        Name -> values of shape ``(n,)``. NLL and entropy in nats, rank in log2;
        ``position`` is the start over the example's tokens; shares are of characters
        (digit, capital) or of tokens (word-initial, in prompt).
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
        """Return the share of each range's characters, shape ``(n,)``."""
        # Characters before the end of the last token, minus those before the first.
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
    """Which characters are what: shape ``(n,)``, bool, each."""

    is_blank: np.ndarray
    is_digit: np.ndarray
    is_capital: np.ndarray
    is_letter: np.ndarray


def _character_classes(codes: np.ndarray) -> _CharacterClasses:
    """Return the classes of characters by their Unicode numbers, shape ``(n,)``."""
    # Each character is asked once, however often it stands in the texts.
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
    """Return how many such characters stand before each token's start and its end.

    Parameters
    ----------
    is_member
        One element a character, bool.
    char_start, char_end
        Shape ``(N,)``: where tokens start and end among all characters.

    Returns
    -------
    numpy.ndarray
        Shape ``(2, N)``.
    """
    counts = np.concatenate([[0], np.cumsum(is_member)])
    return np.stack([counts[char_start], counts[char_end]])
