"""Characters to tokens: one tokenisation of ``prompt + response``, read by offsets.

Tokenising the response apart would shift every mask behind it, so the joint text is
tokenised once, with the special tokens that ``tokenizer(text)`` adds, and characters
are mapped by the offset mapping. White space never decides an overlap: byte-level
tokens carry the blank before a word.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.data.training_input import SpecialTokens
from spark_audit.errors import InputError, panicked

T = TypeVar("T")

SECONDS = 120.0
LETTERS_A_SECOND = 10_000
"""How long a tokenizer may take; a slow one reads a hundred times as many letters."""
TOGETHER = 512
"""Texts that the library tokenises at once: it gives lists, 150 bytes a token."""


@dataclass(frozen=True)
class Encoding:
    """One tokenised text.

    Attributes
    ----------
    ids
        Shape ``(T,)``, int32.
    start, end
        Shape ``(T,)``, int32: the characters of each token with the white space at
        its edges left out; ``start == end`` for special and all-blank tokens.
    special
        Shape ``(T,)``, bool: added by the tokenizer, no text of its own.
    written
        Shape ``(T, 2)``, int32: the characters of each token with its white space, of
        rows whose training is known; ``None`` of others.
    """

    ids: np.ndarray
    start: np.ndarray
    end: np.ndarray
    special: np.ndarray
    written: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def leading(self) -> int:
        """Number of special tokens before the text (a BOS, usually 0 or 1)."""
        text = np.flatnonzero(~self.special)
        return int(text[0]) if len(text) else len(self)

    @property
    def text_end(self) -> int:
        """Tokens up to the last one of text, without an EOS of the tokenizer."""
        text = np.flatnonzero(~self.special)
        return int(text[-1]) + 1 if len(text) else len(self)

    def reaching(self, border: int) -> int:
        """First token that reaches over a border (a character); else the text's end."""
        over = np.flatnonzero((self.end > border) & ~self.special)
        return int(over[0]) if len(over) else self.text_end

    def _hit(
        self, starts: np.ndarray, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """First and last tokens of the character ranges that touch any."""
        at = np.flatnonzero(self.start < self.end)  # tokens that show text
        low = np.searchsorted(self.end[at], starts, side="right")
        high = np.searchsorted(self.start[at], ends, side="left") - 1
        hit = low <= high
        return at[low[hit]], at[high[hit]]

    def span(self, start: int, end: int) -> TokenSpan | None:
        """Tokens that overlap the characters ``start:end``; ``None`` if none does.

        A blank token belongs to a span only when it stands between two of its words.
        """
        first, last = self._hit(np.array([start]), np.array([end]))
        if not len(first):
            return None
        low, high = int(first[0]), int(last[0])
        partial = bool(self.start[low] < start or self.end[high] > end)
        return TokenSpan(low, high + 1, partial)

    def mask(self, ranges: Sequence[tuple[int, int]]) -> np.ndarray:
        """Shape ``(T,)``, bool: tokens of :meth:`span` of any of the ranges."""
        places = np.array(ranges, dtype=np.int64).reshape(-1, 2)
        first, last = self._hit(places[:, 0], places[:, 1])
        # Where ranges open and close; open ones reach over the tokens between.
        edges = np.bincount(first, minlength=len(self) + 1)
        edges -= np.bincount(last + 1, minlength=len(self) + 1)
        return np.asarray(np.cumsum(edges)[:-1] > 0)

    def fed(self, kept: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """What the model reads of a kept range: token ids and their positions.

        Leading special tokens stay in front of a text that was cut; ``positions``
        index the full tokenisation. Both have the same length; the first token has
        no prediction.
        """
        start, end = kept
        positions = _from_0(end)[start:]
        if start > 0:
            lead = np.arange(self.leading, dtype=np.int32)
            positions = np.concatenate([lead[lead < start], positions])
        return self.ids[positions], positions


@lru_cache(maxsize=1024)
def _from_0(end: int) -> np.ndarray:
    """Positions up to one, which texts of a length share: they are most of an item."""
    positions = np.arange(end, dtype=np.int32)
    positions.flags.writeable = False
    return positions


class TokenSpan(NamedTuple):
    """Tokens ``start:end``; ``partial`` when an edge token reaches past the span."""

    start: int
    end: int
    partial: bool


class TokenisedRow(Protocol):
    """A row of data, or of a manifest."""

    @property
    def text(self) -> str:
        """``prompt + response``."""

    @property
    def training_input(self) -> RowInput | None:
        """How a training run tokenised it; ``None``: as ``tokenizer(text)`` does."""


class RowInput(Protocol):
    """How a training run tokenised a row."""

    @property
    def special_tokens(self) -> SpecialTokens:
        """Where its special tokens come from."""

    @property
    def token_ids(self) -> Sequence[int] | None:
        """The ids themselves, where the text would be tokenised otherwise."""

    def fed(self, n_tokens: int) -> tuple[int, int]:
        """Return the tokens that the trainer read, of so many."""


def encode_rows(tokenizer: Tokenizer, rows: Sequence[TokenisedRow]) -> list[Encoding]:
    """Tokenise rows as their training run did; others as ``tokenizer(text)`` does.

    Raises
    ------
    InputError
        As :func:`encode`; also if a row's own ids are none of the tokenizer.
    """
    encodings: dict[int, Encoding] = {}
    plain = [i for i, row in enumerate(rows) if row.training_input is None]
    found = encode(tokenizer, [rows[i].text for i in plain])
    encodings.update(zip(plain, found, strict=True))
    for i, row in enumerate(rows):
        if row.training_input is not None:
            encodings[i] = _encode_as_trained(tokenizer, row.text, row.training_input)
    return [encodings[i] for i in range(len(rows))]


def _encode_as_trained(tokenizer: Tokenizer, text: str, training: RowInput) -> Encoding:
    if training.token_ids is not None:
        ids = np.asarray(training.token_ids, np.int32)
        written = np.asarray(offsets_of_ids(tokenizer, ids.tolist())[1], np.int32)
        encoding = _with_offsets(text, ids, written, np.zeros(len(ids), dtype=bool))
    else:
        added = training.special_tokens == "added"
        (encoding,) = encode(tokenizer, [text], special_tokens=added, written=True)
    special = encoding.special.copy()
    if training.special_tokens == "in_text" and len(special):
        # A BOS in the text stays in front of a text that is cut, as an added one does.
        special[0] = encoding.ids[0] == tokenizer.bos_token_id
    if training.fed(len(encoding))[0] > 0:
        special[:] = False  # the trainer cut it off
    end = np.where(special, encoding.start, encoding.end)
    return replace(encoding, special=special, end=end)


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    special_tokens: bool = True,
    written: bool = False,
) -> list[Encoding]:
    """Tokenise texts as ``tokenizer(text)`` does, with offsets.

    Parameters
    ----------
    special_tokens
        Whether the tokenizer adds its special tokens.
    written
        Whether to keep each token's characters with its white space.

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
    found: list[Encoding] = []
    for at in range(0, len(texts), TOGETHER):
        lot = list(texts[at : at + TOGETHER])
        with _tokenising(tokenizer):
            call = partial(
                tokenizer,
                lot,
                add_special_tokens=special_tokens,
                return_offsets_mapping=True,
                return_special_tokens_mask=True,
                return_attention_mask=False,
                verbose=False,
            )
            out = _in_time(call, lot, tokenizer)
        parts = (out["input_ids"], out["offset_mapping"], out["special_tokens_mask"])
        for text, ids, offsets, special in zip(lot, *parts, strict=True):
            encoding = _with_offsets(
                text,
                np.asarray(ids, np.int32),
                np.asarray(offsets, np.int32).reshape(-1, 2),
                np.asarray(special, dtype=bool),
            )
            found.append(encoding if written else replace(encoding, written=None))
    return found


def _with_offsets(
    text: str, ids: np.ndarray, written: np.ndarray, special: np.ndarray
) -> Encoding:
    """An encoding of offsets, from which white space is left out."""
    starts, ends = np.zeros((2, len(ids)), dtype=np.int32)
    for i, (low, high) in enumerate(written.tolist()):
        inner = text[low:high].strip()
        starts[i] = text.index(inner, low) if inner else high
        ends[i] = starts[i] + (0 if special[i] else len(inner))
    return Encoding(ids, starts, ends, special, written)


def offsets_of_ids(
    tokenizer: Tokenizer, ids: Sequence[int]
) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of token ids, and the characters of each token.

    Tokens that only together make a character share it.

    Raises
    ------
    InputError
        If an id is none of the tokenizer's.
    """
    from tokenizers.decoders import DecodeStream

    if any(not 0 <= token < len(tokenizer) for token in ids):
        raise InputError(
            "a row holds a token id that the tokenizer does not have",
            where=type(tokenizer).__name__,
            fix="give the tokenizer that the rows were tokenised with",
        )
    stream = DecodeStream(skip_special_tokens=False)
    text, offsets, n_waiting = "", list[tuple[int, int]](), 0
    with _tokenising(tokenizer):
        for token in ids:
            piece = stream.step(tokenizer.backend_tokenizer, token)
            n_waiting += 1
            if piece is not None:
                place = (len(text), len(text) + len(piece))
                offsets += [place] * n_waiting
                text, n_waiting = text + piece, 0
    # Bytes at the end that make no character.
    return text, [*offsets, *[(len(text), len(text))] * n_waiting]


def tokens_of_ranges(
    encoding: Encoding, ranges: Iterable[tuple[int, int]]
) -> np.ndarray:
    """Shape ``(T,)``, bool: tokens that have a character in any range, blanks too.

    Special tokens that the tokenizer added before or behind the text go with its first
    and its last character.
    """
    assert encoding.written is not None
    start, end = encoding.written.T
    mask = np.zeros(len(encoding), dtype=bool)
    for low, high in ranges:
        mask |= (start < high) & (end > low)
    text = np.flatnonzero(start < end)
    if len(text):
        mask[: text[0]] = mask[text[0]]
        mask[text[-1] + 1 :] = mask[text[-1]]
    return mask


def runs(mask: np.ndarray) -> list[tuple[int, int]]:
    """Return the ranges in which a mask of shape ``(T,)`` is True, end exclusive."""
    edges = np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return [*zip(starts.tolist(), ends.tolist(), strict=True)]


def token_ids(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    special_tokens: bool = True,
) -> list[list[int]]:
    """Token ids alone, as ``tokenizer(text)`` gives them.

    Parameters
    ----------
    special_tokens
        Whether the tokenizer adds its special tokens.
    """
    inner = getattr(tokenizer, "backend_tokenizer", None)
    with _tokenising(tokenizer):
        if inner is None or inner.truncation or inner.padding:
            slow_call = partial(
                tokenizer,
                list(texts),
                add_special_tokens=special_tokens,
                return_attention_mask=False,
                verbose=False,
            )
            return list(_in_time(slow_call, texts, tokenizer)["input_ids"])
        # Without offsets and Python lists of masks: up to twice as fast.
        call = partial(
            inner.encode_batch_fast,
            list(texts),
            add_special_tokens=special_tokens,
        )
        return [encoding.ids for encoding in _in_time(call, texts, tokenizer)]


def _in_time(call: Callable[[], T], texts: Sequence[str], tokenizer: Tokenizer) -> T:
    """Return what a call of the tokenizer gives, if it comes to an end in time.

    The patterns of a tokenizer are somebody else's, and one may take exponential time
    on some text. The library, which is Rust, cannot be interrupted: it goes on in a
    thread that ends with the process.

    Raises
    ------
    InputError
        If it takes longer than any tokenizer does.
    """
    values: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            values.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SECONDS + sum(map(len, texts)) / LETTERS_A_SECOND)
    if errors:
        raise errors[0]
    if not values:
        raise _endless(tokenizer)
    return values[0]


def added_bos(tokenizer: Tokenizer) -> str | None:
    """Return the BOS that the tokenizer puts before a text that begins with it."""
    bos = getattr(tokenizer, "bos_token", None)
    if not bos:
        return None
    ids = tokenizer(bos)["input_ids"]
    return str(bos) if ids[:2] == [tokenizer.bos_token_id] * 2 else None


def check_one_bos(tokenizer: Tokenizer, texts: Iterable[str]) -> None:
    """Refuse texts that begin with the BOS that the tokenizer adds.

    Raises
    ------
    InputError
        If a model would read two.
    """
    bos = added_bos(tokenizer)
    if bos and any(text.startswith(bos) for text in texts):
        raise InputError(
            "a text begins with the BOS that the tokenizer adds: a model would read "
            "two",
            fix="take it out of the rows, or import the messages that they were made "
            "of with `data import --chat-template CHECKPOINT`",
        )


@contextmanager
def _tokenising(tokenizer: Tokenizer) -> Iterator[None]:
    """A file that loads may still not know what to do with some text.

    What the library says of it is left out: it may quote the text.
    """
    try:
        yield
    except BaseException as error:
        # The library's own errors are of no narrower class.
        if type(error) is not Exception and not panicked(error):
            raise
        # The library for patterns stops a search by itself, after a number of steps.
        if "retry-limit" in str(error):
            raise _endless(tokenizer) from None
        raise InputError(
            "the tokenizer fails on a text",
            where=type(tokenizer).__name__,
            fix="give the tokenizer that the model was trained with by --tokenizer",
        ) from None


def _endless(tokenizer: Tokenizer) -> InputError:
    """Return the error for a text on which a pattern of the tokenizer does not end."""
    return InputError(
        "the tokenizer takes too long for a text: one of its patterns does not end",
        where=type(tokenizer).__name__,
        fix="give the tokenizer that the model was trained with by --tokenizer",
    )


def kept_range(
    encoding: Encoding,
    *,
    max_length: int | None,
    response_start: int,
    spans: Sequence[tuple[int, int]] = (),
) -> tuple[int, int]:
    """Return which tokens of a text that may be too long are scored.

    The response is kept and the prompt is cut from its start; where that cut falls
    inside a PII span it moves to the span's end. A response that alone is too long
    keeps its beginning; where the cut at its end falls inside a span it moves back to
    the span's start. So a span is kept whole or cut whole. Two are cut in part: one
    that reaches from the prompt into the response, and one that the response begins
    with and that alone is too long.

    Leading special tokens are read in any case (see :meth:`Encoding.fed`), special
    tokens behind the text (an EOS) are left out.

    Parameters
    ----------
    max_length
        Tokens that fit, special tokens included; ``None``: no limit.
    response_start
        First character of the response.
    spans
        Token ranges of the PII spans.

    Returns
    -------
    tuple
        ``(token_start, token_end)`` in the full tokenisation, end exclusive.

    Raises
    ------
    InputError
        If not one token of text fits.
    """
    text_end = encoding.text_end
    if max_length is None or text_end <= max_length:
        return 0, text_end

    n_text_tokens = max_length - encoding.leading
    if n_text_tokens < 1:
        raise InputError(
            f"a context of {max_length} tokens has no room for any text",
            fix="give a larger one",
        )

    response_token = encoding.reaching(response_start)
    if text_end - response_token > n_text_tokens:
        # The response alone is too long: cut its end.
        end = response_token + n_text_tokens
        for span_start, span_end in sorted(spans, reverse=True):
            if response_token < span_start < end < span_end:
                end = span_start
        return response_token, end

    # Without a special token in front the first token kept has no prediction, so a
    # span must not begin with it either.
    n_unpredicted = 1 if encoding.leading == 0 else 0
    start = text_end - n_text_tokens
    for span_start, span_end in sorted(spans):
        if span_start < start + n_unpredicted and start < span_end:
            start = min(span_end, response_token)
    return start, text_end
