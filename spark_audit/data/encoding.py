"""Characters to tokens: one tokenisation of ``prompt + response``, read by offsets.

Tokenising the response apart would shift every mask behind it, so the joint text is
tokenised once, with the special tokens that ``tokenizer(text)`` adds, and characters
are mapped by the offset mapping. White space never decides an overlap: byte-level
tokens carry the blank before a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from spark_audit.errors import InputError, panicked

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
    """

    ids: np.ndarray
    start: np.ndarray
    end: np.ndarray
    special: np.ndarray

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


def encode(tokenizer: Any, texts: Sequence[str]) -> list[Encoding]:
    """Tokenise texts as ``tokenizer(text)`` does, with offsets.

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
            out = tokenizer(
                lot,
                return_offsets_mapping=True,
                return_special_tokens_mask=True,
                return_attention_mask=False,
                verbose=False,
            )
        parts = (out["input_ids"], out["offset_mapping"], out["special_tokens_mask"])
        for text, ids, offsets, special in zip(lot, *parts, strict=True):
            starts, ends = np.zeros((2, len(ids)), dtype=np.int32)
            for i, (low, high) in enumerate(offsets):
                inner = text[low:high].strip()
                starts[i] = text.index(inner, low) if inner else high
                ends[i] = starts[i] + (0 if special[i] else len(inner))
            added = np.asarray(special, dtype=bool)
            found.append(Encoding(np.asarray(ids, np.int32), starts, ends, added))
    return found


def token_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids alone, as ``tokenizer(text)`` gives them."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    with _tokenising(tokenizer):
        if inner is None or inner.truncation or inner.padding:
            found = tokenizer(list(texts), return_attention_mask=False, verbose=False)
            return list(found["input_ids"])
        # Without offsets and Python lists of masks: up to twice as fast.
        return [encoding.ids for encoding in inner.encode_batch_fast(list(texts))]


@contextmanager
def _tokenising(tokenizer: Any) -> Iterator[None]:
    """A file that loads may still not know what to do with some text.

    What the library says of it is left out: it may quote the text.
    """
    try:
        yield
    except BaseException as error:
        # The library's own errors are of no narrower class.
        if type(error) is not Exception and not panicked(error):
            raise
        raise InputError(
            "the tokenizer fails on a text",
            where=type(tokenizer).__name__,
            fix="give the tokenizer that the model was trained with by --tokenizer",
        ) from None


def kept_range(
    encoding: Encoding,
    *,
    max_length: int | None,
    response_start: int,
    spans: Sequence[tuple[int, int]] = (),
) -> tuple[int, int]:
    """Which tokens of a text that may be too long are scored.

    The response is kept and the prompt is cut from its start; a cut inside a PII span
    moves to the span's end, so that no span is scored in part. Leading special tokens
    are read in any case (see :meth:`Encoding.fed`), special tokens behind the text
    (an EOS) are left out. A response that alone is too long keeps its beginning.

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
    total = encoding.text_end
    if max_length is None or total <= max_length:
        return 0, total
    room = max_length - encoding.leading
    if room < 1:
        raise InputError(
            f"a context of {max_length} tokens has no room for any text",
            fix="give a larger one",
        )
    first_answer = encoding.reaching(response_start)
    # Without a special token in front the first token kept has no prediction, so a
    # span must not begin with it either.
    bare = 1 if encoding.leading == 0 else 0
    start, end = total - room, total
    if start > first_answer:
        start, end = first_answer, min(first_answer + room, total)
        for low, high in sorted(spans, reverse=True):
            if low < end < high and low > start:
                end = low
        return start, end
    for low, high in sorted(spans):
        if low < start + bare and start < high:
            start = min(high, first_answer)
    return start, end
