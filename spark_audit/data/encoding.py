"""Map characters to tokens by the offsets of one tokenisation of prompt + response.

A separate tokenisation of the response would shift every mask behind it. So the joint
text is tokenised once, with the special tokens that ``tokenizer(text)`` adds, and the
offset mapping gives the tokens of characters.

There are two ways from characters to tokens. Audits use :meth:`Encoding.span` and
:meth:`Encoding.mask`, where white space never decides an overlap: byte-level tokens
carry the blank before a word. The loss of a training run counts blanks, too:
:func:`tokens_of_ranges`.

Ranges are ``start:end``, end exclusive, of characters or of tokens as their names say;
``T`` is the number of tokens of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from spark_audit.data.tokenising import in_time, tokenising
from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.data.training_input import SpecialTokens
from spark_audit.errors import InputError

TEXTS_PER_CALL = 512
"""Texts that the tokenizer gets in one call. It returns Python lists, which take 150
bytes a token: all texts at once would not fit into memory."""


@dataclass(frozen=True)
class Encoding:
    """One tokenised text.

    Attributes
    ----------
    ids
        Shape ``(T,)``, int32.
    char_start, char_end
        Shape ``(T,)``, int32: the characters of each token without white space at its
        edges; both are equal for special tokens and tokens of white space alone.
    is_special
        Shape ``(T,)``, bool: tokens that the tokenizer added, without text of their
        own.
    full_offsets
        Shape ``(T, 2)``, int32: the characters of each token with its white space.
        ``None`` unless it was asked for, as for rows with a ``training_input``.
    """

    ids: np.ndarray
    char_start: np.ndarray
    char_end: np.ndarray
    is_special: np.ndarray
    full_offsets: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_leading_special(self) -> int:
        """Number of special tokens in front of the text: usually 0, or 1 for a BOS."""
        text_tokens = np.flatnonzero(~self.is_special)
        return int(text_tokens[0]) if len(text_tokens) else len(self)

    @property
    def text_token_end(self) -> int:
        """End of the text's tokens, exclusive: special tokens behind are left out."""
        text_tokens = np.flatnonzero(~self.is_special)
        return int(text_tokens[-1]) + 1 if len(text_tokens) else len(self)

    def first_token_past(self, character: int) -> int:
        """Return the index of the first text token that ends behind a character.

        For the response's first character this is the response's first token, also
        where that token begins in the prompt. If there is none, return
        :attr:`text_token_end`.

        Parameters
        ----------
        character
            Index in the text.
        """
        tokens = np.flatnonzero((self.char_end > character) & ~self.is_special)
        return int(tokens[0]) if len(tokens) else self.text_token_end

    def _edge_tokens(
        self, starts: np.ndarray, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the last token of each character range.

        Ranges without a token are left out.

        Parameters
        ----------
        starts, ends
            Shape ``(ranges,)``: characters.

        Returns
        -------
        first, last
            Shape ``(ranges with a token,)`` each: token indices, both inclusive.
        """
        # Only tokens with text: blanks and special tokens touch no range.
        text_tokens = np.flatnonzero(self.char_start < self.char_end)
        # Indices into text_tokens: the first token that ends behind a range's start,
        # and the last one that begins before its end.
        first = np.searchsorted(self.char_end[text_tokens], starts, side="right")
        last = np.searchsorted(self.char_start[text_tokens], ends, side="left") - 1
        has_token = first <= last  # (ranges,)
        return text_tokens[first[has_token]], text_tokens[last[has_token]]

    def span(self, start: int, end: int) -> TokenSpan | None:
        """Return the tokens that overlap the characters ``start:end``, if any do.

        A blank token belongs to a span only when it stands between two of its words.
        """
        first_tokens, last_tokens = self._edge_tokens(
            np.array([start]), np.array([end])
        )
        if not len(first_tokens):
            return None

        first = int(first_tokens[0])
        last = int(last_tokens[0])
        is_partial = bool(self.char_start[first] < start or self.char_end[last] > end)
        return TokenSpan(first, last + 1, is_partial)

    def mask(self, ranges: Sequence[tuple[int, int]]) -> np.ndarray:
        """Return a mask of the tokens that :meth:`span` gives for any of the ranges.

        Parameters
        ----------
        ranges
            Character ranges, in any order; they may overlap.

        Returns
        -------
        numpy.ndarray
            Shape ``(T,)``, bool.
        """
        edges = np.array(ranges, dtype=np.int64).reshape(-1, 2)  # (ranges, 2)
        first, last = self._edge_tokens(edges[:, 0], edges[:, 1])

        # A token is inside a range where more ranges have begun than ended.
        n_begun = np.bincount(first, minlength=len(self) + 1)
        n_ended = np.bincount(last + 1, minlength=len(self) + 1)
        n_open = np.cumsum(n_begun - n_ended)  # (T + 1,)
        return np.asarray(n_open[:-1] > 0)

    def model_input(self, kept: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the token ids that a model reads, and their positions.

        Leading special tokens stay in front of a text that was cut. The model predicts
        every one of these tokens but the first.

        Parameters
        ----------
        kept
            Token range of the full tokenisation, as ``kept_range.py`` gives it.

        Returns
        -------
        ids, positions
            Shape ``(K,)`` each; ``positions`` are indices in the full tokenisation.
        """
        start, end = kept
        positions = _positions_to(end)[start:]  # (end - start,)
        if start > 0:
            leading = np.arange(min(self.n_leading_special, start), dtype=np.int32)
            positions = np.concatenate([leading, positions])
        return self.ids[positions], positions


@lru_cache(maxsize=1024)
def _positions_to(end: int) -> np.ndarray:
    """Return the positions ``0 .. end - 1``, shape ``(end,)``, read-only.

    Texts of equal length share one array, because positions take most of an item's
    memory.
    """
    positions = np.arange(end, dtype=np.int32)
    positions.flags.writeable = False
    return positions


class TokenSpan(NamedTuple):
    """Tokens ``start:end`` of a character span.

    ``partial``: the first or the last of them also holds characters outside of it.
    """

    start: int
    end: int
    partial: bool


class TokenisedRow(Protocol):
    """A row that can be tokenised, of data or of a manifest."""

    @property
    def text(self) -> str:
        """``prompt + response``."""

    @property
    def training_input(self) -> RowInput | None:
        """The tokenisation by the training run; ``None``: ``tokenizer(text)``."""


class RowInput(Protocol):
    """The way in which a training run tokenised a row."""

    @property
    def special_tokens(self) -> SpecialTokens:
        """The source of the row's special tokens."""

    @property
    def token_ids(self) -> Sequence[int] | None:
        """The row's token ids, if the tokenizer would give others for the text."""

    def token_range_read(self, n_tokens: int) -> tuple[int, int]:
        """Return the token range that the trainer read of a row of ``n_tokens``."""


def encode_rows(tokenizer: Tokenizer, rows: Sequence[TokenisedRow]) -> list[Encoding]:
    """Tokenise rows as their training run did, and others as ``tokenizer(text)`` does.

    Raises
    ------
    InputError
        As for :func:`encode`. Also raised if a row's own ids are unknown to the
        tokenizer.
    """
    # Plain rows are tokenised together, which is much faster.
    plain_texts = [row.text for row in rows if row.training_input is None]
    plain_encodings = iter(encode(tokenizer, plain_texts))

    encodings = []
    for row in rows:
        if row.training_input is None:
            encodings.append(next(plain_encodings))
        else:
            encodings.append(
                _encode_as_trained(tokenizer, row.text, row.training_input)
            )
    return encodings


def _encode_as_trained(tokenizer: Tokenizer, text: str, training: RowInput) -> Encoding:
    """Tokenise a row as its training run did, and keep its tokens' white space."""
    if training.token_ids is not None:
        ids = np.asarray(training.token_ids, np.int32)
        _, offsets = offsets_of_ids(tokenizer, ids.tolist())
        encoding = _without_white_space(
            text,
            ids,
            np.asarray(offsets, np.int32),
            is_special=np.zeros(len(ids), dtype=bool),
        )
    else:
        (encoding,) = encode(
            tokenizer,
            [text],
            special_tokens=training.special_tokens == "added",
            keep_full_offsets=True,
        )

    is_special = encoding.is_special.copy()  # (T,)
    if training.special_tokens == "in_text" and len(is_special):
        # A BOS in the text stays in front of a cut text, like an added one.
        is_special[0] = encoding.ids[0] == tokenizer.bos_token_id
    first_read, _ = training.token_range_read(len(encoding))
    if first_read > 0:
        # The trainer cut the special tokens off, so none is put in front of the rest.
        is_special[:] = False

    # A special token shows no text and therefore belongs to no span.
    char_end = np.where(is_special, encoding.char_start, encoding.char_end)
    return replace(encoding, is_special=is_special, char_end=char_end)


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    special_tokens: bool = True,
    keep_full_offsets: bool = False,
) -> list[Encoding]:
    """Tokenise texts as ``tokenizer(text)`` does, with offsets.

    Parameters
    ----------
    special_tokens
        Whether the tokenizer adds its special tokens.
    keep_full_offsets
        Whether to keep :attr:`Encoding.full_offsets`: 8 bytes a token.

    Raises
    ------
    InputError
        If the tokenizer gives no offset mapping (a "slow" tokenizer), or fails.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            "the tokenizer gives no character offsets",
            where=type(tokenizer).__name__,
            fix="use the fast tokenizer (a folder with tokenizer.json)",
        )

    encodings: list[Encoding] = []
    for first in range(0, len(texts), TEXTS_PER_CALL):
        batch = list(texts[first : first + TEXTS_PER_CALL])
        for encoding in _encode_batch(tokenizer, batch, special_tokens=special_tokens):
            if not keep_full_offsets:
                encoding = replace(encoding, full_offsets=None)
            encodings.append(encoding)
    return encodings


def _encode_batch(
    tokenizer: Tokenizer, texts: list[str], *, special_tokens: bool
) -> Iterator[Encoding]:
    """Yield the encodings of texts, which are tokenised in one call."""

    def call() -> Mapping[str, Sequence[Sequence[object]]]:
        output: Mapping[str, Sequence[Sequence[object]]] = tokenizer(
            texts,
            add_special_tokens=special_tokens,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            return_attention_mask=False,
            verbose=False,
        )
        return output

    with tokenising(tokenizer):
        output = in_time(call, texts, tokenizer)

    columns = (
        output["input_ids"],
        output["offset_mapping"],
        output["special_tokens_mask"],
    )
    for text, ids, offsets, is_special in zip(texts, *columns, strict=True):
        yield _without_white_space(
            text,
            np.asarray(ids, np.int32),
            np.asarray(offsets, np.int32).reshape(-1, 2),
            is_special=np.asarray(is_special, dtype=bool),
        )


def _without_white_space(
    text: str, ids: np.ndarray, full_offsets: np.ndarray, *, is_special: np.ndarray
) -> Encoding:
    """Return an encoding whose tokens start and end without white space.

    ::

        text          a n n _ l e e           "_" is a blank
        full_offsets  |  0:3  |3:7|           "ann", "_lee"
        char_start    0        4
        char_end      3        7

    Parameters
    ----------
    ids, is_special
        Shape ``(T,)``.
    full_offsets
        Shape ``(T, 2)``: the characters of each token, its white space among them.
    """
    char_start = np.zeros(len(ids), dtype=np.int32)
    char_end = np.zeros(len(ids), dtype=np.int32)
    for i, (low, high) in enumerate(full_offsets.tolist()):
        stripped = text[low:high].strip()
        # A token of blanks becomes an empty range at the end of its blanks.
        char_start[i] = text.index(stripped, low) if stripped else high
        char_end[i] = char_start[i]
        if not is_special[i]:
            char_end[i] += len(stripped)
    return Encoding(
        ids=ids,
        char_start=char_start,
        char_end=char_end,
        is_special=is_special,
        full_offsets=full_offsets,
    )


def offsets_of_ids(
    tokenizer: Tokenizer, ids: Sequence[int]
) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of token ids, and the character range of each token.

    Tokens that form one character only together share that character. Ranges include
    white space, as :attr:`Encoding.full_offsets` do.

    Raises
    ------
    InputError
        If the tokenizer does not know an id.
    """
    from tokenizers.decoders import DecodeStream

    if any(not 0 <= token < len(tokenizer) for token in ids):
        raise InputError(
            "a row holds a token id that the tokenizer does not have",
            where=type(tokenizer).__name__,
            fix="give the tokenizer that the rows were tokenised with",
        )

    # The stream gives text only when the bytes of whole characters are complete.
    stream = DecodeStream(skip_special_tokens=False)
    text = ""
    offsets: list[tuple[int, int]] = []
    n_waiting = 0  # tokens whose bytes do not complete a character yet
    with tokenising(tokenizer):
        for token in ids:
            piece = stream.step(tokenizer.backend_tokenizer, token)
            n_waiting += 1
            if piece is None:
                continue
            characters = (len(text), len(text) + len(piece))
            offsets.extend([characters] * n_waiting)
            text += piece
            n_waiting = 0

    # Bytes at the end that do not complete a character.
    offsets.extend([(len(text), len(text))] * n_waiting)
    return text, offsets


def tokens_of_ranges(
    encoding: Encoding, ranges: Iterable[tuple[int, int]]
) -> np.ndarray:
    """Return a mask of the tokens with a character in any of the ranges, even a blank.

    Special tokens that the tokenizer added before or behind the text go with its first
    and its last character.

    Parameters
    ----------
    encoding
        With :attr:`Encoding.full_offsets`.
    ranges
        Character ranges, in any order; they may overlap.

    Returns
    -------
    numpy.ndarray
        Shape ``(T,)``, bool.
    """
    assert encoding.full_offsets is not None
    start, end = encoding.full_offsets.T  # (T,) each
    is_inside = np.zeros(len(encoding), dtype=bool)
    for low, high in ranges:
        is_inside |= (start < high) & (end > low)

    text_tokens = np.flatnonzero(start < end)
    if len(text_tokens):
        first = text_tokens[0]
        last = text_tokens[-1]
        is_inside[:first] = is_inside[first]
        is_inside[last + 1 :] = is_inside[last]
    return is_inside


def true_runs(mask: np.ndarray) -> list[tuple[int, int]]:
    """Return the ranges in which a mask of shape ``(T,)`` is True, end exclusive."""
    # The padding adds an edge to a run at either end of the mask.
    padded = np.concatenate([[False], mask, [False]]).astype(np.int8)
    change = np.diff(padded)  # (T + 1,)
    starts = np.flatnonzero(change == 1)
    ends = np.flatnonzero(change == -1)
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def token_ids(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    special_tokens: bool = True,
) -> list[list[int]]:
    """Return only the token ids of texts, as ``tokenizer(text)`` gives them.

    Parameters
    ----------
    special_tokens
        Whether the tokenizer adds its special tokens.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    is_plain = backend is not None and not (backend.truncation or backend.padding)

    def call() -> list[list[int]]:
        if backend is not None and is_plain:
            # Without offsets and lists of masks this is up to twice as fast.
            encodings = backend.encode_batch_fast(
                list(texts), add_special_tokens=special_tokens
            )
            return [encoding.ids for encoding in encodings]

        output = tokenizer(
            list(texts),
            add_special_tokens=special_tokens,
            return_attention_mask=False,
            verbose=False,
        )
        return list(output["input_ids"])

    with tokenising(tokenizer):
        return in_time(call, texts, tokenizer)


def added_bos(tokenizer: Tokenizer) -> str | None:
    """Return the BOS that the tokenizer adds even to a text that begins with it."""
    bos = getattr(tokenizer, "bos_token", None)
    if not bos:
        return None

    # No setting tells what a tokenizer adds, so a trial does.
    ids = tokenizer(bos)["input_ids"]
    is_doubled = ids[:2] == [tokenizer.bos_token_id, tokenizer.bos_token_id]
    return str(bos) if is_doubled else None


def check_one_bos(tokenizer: Tokenizer, texts: Iterable[str]) -> None:
    """Refuse texts that begin with the BOS that the tokenizer adds.

    Raises
    ------
    InputError
        If a model would read two BOS tokens.
    """
    bos = added_bos(tokenizer)
    if bos and any(text.startswith(bos) for text in texts):
        raise InputError(
            "a text begins with the BOS that the tokenizer adds: a model would read "
            "two",
            fix="take it out of the rows, or import the messages that they were made "
            "of with `data import --chat-template CHECKPOINT`",
        )
