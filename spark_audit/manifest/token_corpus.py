"""The tokens of many examples on one axis: classes, control windows, covariates.

Covariates describe a stretch of text, and matching must leave them balanced. They are
measured on the reference model and on the text, never on a checkpoint.

A further covariate is an entry of :func:`covariates`. If it is the mean of a value per
token, that value is an attribute of :class:`TokenCorpus` and a name in
:data:`AVERAGED_COVARIATES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spark_audit.manifest.layout import ManifestLayout
from spark_audit.scoring.table import TokenTable
from spark_audit.stats.matching import (
    MICRO_NATS_PER_NAT,
    micro_nats,
    non_overlapping_windows,
)

AVERAGED_COVARIATES = (
    "entropy",
    "log2_rank",
    "log_frequency",
    "word_start",
    "in_prompt",
)
"""Attributes of :class:`TokenCorpus` whose mean over a range is a covariate."""


class TokenCorpus:
    """The tokens of some examples, N in all, with the values for their covariates.

    Parameters
    ----------
    table
        Plain scores by the reference model, of these rows and perhaps of others.
    token_counts
        How often each token occurs in the whole data, special tokens left out, shape
        ``(V,)``.
    carried_sums
        As the attribute.

    Attributes
    ----------
    rows
        The examples, in the order of their tokens.
    first_token
        Shape ``(n + 1,)``: first token of each example, and N at the end.
    nll_micronats
        Shape ``(N,)``, int64: micro-nats on the reference model; -1: not scored.
    token_ids, is_special
        Shape ``(N,)``: token ids, and whether each is special.
    char_start, char_end
        Shape ``(N,)``: characters of each token in its own example.
    digit_counts, capital_counts, letter_counts
        Shape ``(2, N)``: number of such characters, in the texts up to here, before the
        token's start and before its end. A capital is ``str.isupper``, a letter
        ``str.isalpha``.
    word_start
        Shape ``(N,)``, bool: the first token of a word (nothing or white space
        before it).
    in_prompt
        Shape ``(N,)``, bool: whether the token starts before the response.
    log_frequency
        Shape ``(N,)``: log of the token's share of all tokens of the whole data; 0 for
        special tokens.
    entropy, log2_rank
        Shape ``(N,)``: entropy (nats) and rank (bits) of the reference model's
        prediction; 0 for tokens without a score.
    carried_sums
        Totals over the slices before this one, by the names in
        :data:`AVERAGED_COVARIATES`. Running sums begin with them, so that a slice's
        means are to the last bit those of all examples in one corpus.
    """

    def __init__(
        self,
        rows: Sequence[ManifestLayout],
        table: TokenTable,
        *,
        token_counts: np.ndarray,
        carried_sums: Mapping[str, float],
    ) -> None:
        self.rows = rows
        self.carried_sums = carried_sums
        encodings = [row.encoding for row in rows]
        texts = [row.example.text for row in rows]

        # All tokens on one axis: (N,) each.
        n_tokens = [len(encoding) for encoding in encodings]  # of each row
        self.first_token = np.concatenate([[0], np.cumsum(n_tokens)]).astype(np.int64)
        self.char_start = np.concatenate(
            [encoding.char_start for encoding in encodings]
        )
        self.char_end = np.concatenate([encoding.char_end for encoding in encodings])
        self.token_ids = np.concatenate([encoding.ids for encoding in encodings])
        self.is_special = np.concatenate(
            [encoding.is_special for encoding in encodings]
        )

        # All characters on one axis, with the start and the end of each token.
        text_bounds = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
        text_start = np.repeat(text_bounds[:-1], n_tokens)  # (N,)
        axis_start = text_start + self.char_start  # (N,)
        axis_end = text_start + self.char_end  # (N,)
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
        classes = _character_classes(codes)

        # A blank before the first character of a text belongs to the previous text.
        blank_before = np.concatenate([[True], classes.is_blank])  # element i: before i
        follows_blank = blank_before[axis_start]  # (N,)
        begins_word = follows_blank | (self.char_start == 0)
        self.word_start = begins_word & (self.char_start < self.char_end)
        self.digit_counts = _counts_at(classes.is_digit, axis_start, axis_end)
        self.capital_counts = _counts_at(classes.is_capital, axis_start, axis_end)
        self.letter_counts = _counts_at(classes.is_letter, axis_start, axis_end)

        prompt_lengths = [len(row.example.prompt) for row in rows]
        self.in_prompt = self.char_start < np.repeat(prompt_lengths, n_tokens)
        self.log_frequency = self._log_frequency(token_counts)

        # Tokens that the table lacks keep these values.
        self.nll_micronats = np.full(len(self.token_ids), -1, np.int64)
        self.entropy = np.zeros(len(self.token_ids))
        self.log2_rank = np.zeros(len(self.token_ids))
        self._read_scores(table)

    def _log_frequency(self, token_counts: np.ndarray) -> np.ndarray:
        """Return the log of each token's share of all tokens, shape ``(N,)``."""
        share = token_counts / max(1, int(token_counts.sum()))  # (V,)
        # Special tokens are not counted, so their share may be 0.
        log_share = np.log(share, out=np.zeros(len(share)), where=share > 0)

        # Id 0 is looked up in place of a special token, and its value replaced.
        counted_ids = np.where(self.is_special, 0, self.token_ids)
        log_share_by_token = log_share[counted_ids]  # (N,)
        return np.where(self.is_special, 0.0, log_share_by_token)

    def _read_scores(self, table: TokenTable) -> None:
        """Copy the reference model's scores of its tokens from the table."""
        nll: list[np.ndarray] = []
        mean_logp: list[np.ndarray] = []
        rank_lo: list[np.ndarray] = []
        scored: list[np.ndarray] = []
        for first, row in zip(self.first_token[:-1].tolist(), self.rows, strict=True):
            table_rows = table.rows(row.example.id)
            scored.append(first + table.position[table_rows])
            nll.append(table.columns["nll"][table_rows])
            mean_logp.append(table.columns["mean_logp"][table_rows])
            rank_lo.append(table.columns["rank_lo"][table_rows])

        # The rank is 1 for the likeliest token, so that its log is 0.
        indices = np.concatenate(scored)  # (scored tokens,), on the common axis
        self.nll_micronats[indices] = micro_nats(np.concatenate(nll))
        self.entropy[indices] = -np.concatenate(mean_logp)
        self.log2_rank[indices] = np.log2(np.concatenate(rank_lo))

    def tokens_of(self, example: int) -> slice:
        """Return the tokens of one example, given by its index, as a slice."""
        return slice(int(self.first_token[example]), int(self.first_token[example + 1]))

    def running_sums(self, name: str) -> np.ndarray:
        """Return the running sums of an attribute, shape ``(N + 1,)``, float64.

        Element i is the sum over all tokens before token i, those of earlier slices
        included.
        """
        # The sum over earlier slices comes first, so that the order of addition stays.
        addends = [[self.carried_sums.get(name, 0.0)], getattr(self, name)]
        return np.cumsum(np.concatenate(addends, dtype=np.float64))

    def sums_to_carry(self) -> dict[str, float]:
        """Return totals up to the end of this slice: ``carried_sums`` of the next."""
        return {
            name: float(self.running_sums(name)[-1]) for name in AVERAGED_COVARIATES
        }


def token_classes(corpus: TokenCorpus) -> np.ndarray:
    """Return one letter per token, shape ``(N,)``, uint8 ASCII.

    ``d``: has a digit; ``A``: has a capital; ``a``: has other letters; ``-``: none of
    these.
    """

    def contains(char_counts: np.ndarray) -> np.ndarray:
        """Return whether each token has counted characters, shape ``(N,)``."""
        before_start, before_end = char_counts  # (N,) each
        return np.asarray(before_end > before_start)

    # The first class that applies is used.
    letters = np.select(
        [
            contains(corpus.digit_counts),
            contains(corpus.capital_counts),
            contains(corpus.letter_counts),
        ],
        [ord("d"), ord("A"), ord("a")],
        ord("-"),
    )
    return letters.astype(np.uint8)


def control_pool(
    is_eligible: np.ndarray, corpus: TokenCorpus, spans: np.ndarray
) -> np.ndarray:
    """Return the eligible windows that could have been controls.

    The balance compares the spans with this pool before matching, and with the chosen
    controls after it. Windows of equal length are disjoint.

    Token ranges have shape ``(n, 3)``: index of the example, first token in it, length.

    Parameters
    ----------
    is_eligible
        Shape ``(N,)``, bool: tokens that a control may use.
    spans
        Token ranges of PII spans. Windows have their lengths and come from their
        examples.
    """
    # Spans of equal length in one example share their possible controls.
    windows: list[tuple[int, int, int]] = []
    for example, length in np.unique(spans[:, [0, 2]], axis=0).tolist():
        is_eligible_there = is_eligible[corpus.tokens_of(example)]
        for start in non_overlapping_windows(is_eligible_there, length):
            windows.append((example, start, length))
    return np.array(windows, np.int64).reshape(-1, 3)


def covariates(corpus: TokenCorpus, ranges: np.ndarray) -> dict[str, np.ndarray]:
    """Return the covariates of token ranges whose tokens are all scored.

    Parameters
    ----------
    ranges
        Shape ``(n, 3)``: example (its index), first token in it, length.

    Returns
    -------
    dict
        Name -> values of shape ``(n,)``. NLL and entropy are in nats, rank in log2.
        ``position`` is the first token divided by the number of tokens in the example.
        Shares are of characters (digit, capital) or of tokens (word-initial, in
        prompt).
    """
    example, start, length = ranges.T  # (n,) each
    first = corpus.first_token[example] + start  # on the common axis
    end = first + length
    last = end - 1
    n_tokens = length.astype(np.float64)
    n_tokens_of_text = np.diff(corpus.first_token)[example]
    # A range of special tokens has no characters; 1 avoids a division by 0.
    extent = corpus.char_end[last] - corpus.char_start[first]  # characters
    n_chars = np.maximum(extent, 1).astype(np.float64)

    def token_mean(name: str) -> np.ndarray:
        """Return the mean of an attribute over each range's tokens, shape ``(n,)``."""
        sums = corpus.running_sums(name)
        return np.asarray((sums[end] - sums[first]) / n_tokens)

    def char_share(char_counts: np.ndarray) -> np.ndarray:
        """Return the share of counted characters in each range, shape ``(n,)``."""
        # Count before the end of the last token, minus count before the first token.
        return np.asarray((char_counts[1, last] - char_counts[0, first]) / n_chars)

    nll = corpus.nll_micronats
    nll_sums = np.concatenate([[0], np.cumsum(np.maximum(nll, 0))])  # (N + 1,)
    largest = [
        nll[range_first:range_end].max()
        for range_first, range_end in zip(first, end, strict=True)
    ]
    return {
        "nll_mean": (nll_sums[end] - nll_sums[first]) / (MICRO_NATS_PER_NAT * n_tokens),
        "nll_max": np.array(largest, np.float64) / MICRO_NATS_PER_NAT,
        "nll_first": nll[first] / MICRO_NATS_PER_NAT,
        "entropy": token_mean("entropy"),
        "log2_rank": token_mean("log2_rank"),
        "position": start / n_tokens_of_text,
        "tokens": n_tokens,
        "chars_per_token": n_chars / n_tokens,
        "digit_share": char_share(corpus.digit_counts),
        "capital_share": char_share(corpus.capital_counts),
        "log_frequency": token_mean("log_frequency"),
        "word_initial_share": token_mean("word_start"),
        "in_prompt_share": token_mean("in_prompt"),
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

    def passes(test: Callable[[str], bool]) -> np.ndarray:
        """Return whether each character passes a test, shape ``(n,)``, bool."""
        return np.array([test(character) for character in characters])[inverse]

    return _CharacterClasses(
        is_blank=passes(str.isspace),
        is_digit=passes(str.isdigit),
        is_capital=passes(str.isupper),
        is_letter=passes(str.isalpha),
    )


def _counts_at(
    is_counted: np.ndarray, axis_start: np.ndarray, axis_end: np.ndarray
) -> np.ndarray:
    """Return how many counted characters precede each token's start and its end.

    Parameters
    ----------
    is_counted
        Shape ``(characters,)``, bool.
    axis_start, axis_end
        Shape ``(N,)``: start and end of each token on the axis of characters.

    Returns
    -------
    numpy.ndarray
        Shape ``(2, N)``.
    """
    n_before = np.concatenate([[0], np.cumsum(is_counted)])  # of each character
    return np.stack([n_before[axis_start], n_before[axis_end]])
