"""Items that passes score: sequences, sets of candidates, and prompts.

Every kind has a key, the positions of its result rows (``row_positions``), sizes
(``tokens``, ``context_tokens``), its token ids (``all_ids``), those that a model must
predict (``predicted_ids``), and the bytes that identify it in the store (``content``).
A further kind has all of these, a noun in ``_ITEM_NOUNS`` (``item_checks.py``) and a
pass that reads it. ``manifest/sequences.py`` makes the items of a manifest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np

from spark_audit.scoring.answers import ANSWER_RULE


@dataclass(frozen=True)
class _SingleSequence:
    """The key and the token ids of an item with a single sequence."""

    key: str
    # Token ids reveal as much as text.
    ids: np.ndarray = field(repr=False)

    @property
    def tokens(self) -> int:
        """Return the number of tokens that the model reads and, at most, writes."""
        return len(self.ids)

    @property
    def context_tokens(self) -> int:
        """Return the number of positions that it takes in the model's context."""
        return self.tokens

    @property
    def all_ids(self) -> np.ndarray:
        """Return all of its token ids, shape ``(n,)``."""
        return self.ids


@dataclass(frozen=True)
class Item(_SingleSequence):
    """A sequence to score: a text, or a string behind a prompt.

    Attributes
    ----------
    key
        Its name in tables (an example id).
    ids
        Shape ``(n,)``, int32: token ids that the model reads. The first one has no
        prediction.
    positions
        Shape ``(n,)``, int32. For a text: index of each token in the full tokenisation.
        For a string behind a prompt: how many of its characters are complete after the
        token; -1 for tokens of the prompt, which are not scored.
    """

    positions: np.ndarray = field(repr=False)

    @property
    def first_scored(self) -> int:
        """Return its first scored token: the first behind a prompt, never token 0."""
        n_prompt = int(np.count_nonzero(self.positions < 0))
        return max(n_prompt, 1)

    @property
    def row_positions(self) -> np.ndarray:
        """Return the positions of its result rows, one per scored token."""
        return self.positions[self.first_scored :]

    @property
    def predicted_ids(self) -> np.ndarray:
        """Return the token ids that the model must predict: all but the first."""
        return self.ids[1:]

    def content(self) -> bytes:
        """Return all that scores depend on besides the checkpoint, for the store."""
        ids = self.ids.astype("<i4")
        positions = self.positions.astype("<i4")
        return len(ids).to_bytes(8, "big") + ids.tobytes() + positions.tobytes()


@dataclass(frozen=True)
class Candidates:
    """A set of continuations of one prefix, each of which is scored.

    Attributes
    ----------
    key
        Name of the set in tables. Its rows are the candidates, in order.
    prefix
        Shape ``(p,)``, int32, ``p >= 1``: token ids in front of every candidate.
    rows
        Token ids of each candidate, arrays of shape ``(n_i,)``, int32, ``n_i >= 1``.
    """

    key: str
    prefix: np.ndarray = field(repr=False)
    rows: tuple[np.ndarray, ...] = field(repr=False)

    @property
    def example(self) -> Item:
        """Return the prefix with the first candidate, as a text for self-tests."""
        ids = np.append(self.prefix, self.rows[0])
        return Item(self.key, ids, np.arange(len(ids), dtype=np.int32))

    @property
    def row_positions(self) -> np.ndarray:
        """Return the positions of its result rows: the number of each candidate."""
        return np.arange(len(self.rows), dtype=np.int32)

    @property
    def tokens(self) -> int:
        """Return the number of tokens that a model reads if it caches the prefix."""
        return len(self.prefix) + sum(len(row) for row in self.rows)

    @property
    def context_tokens(self) -> int:
        """Return the positions that its longest candidate takes in the context."""
        return len(self.prefix) + max(len(row) for row in self.rows)

    @property
    def all_ids(self) -> np.ndarray:
        """Return all of its token ids: prefix, and candidates one after the other."""
        return np.concatenate([self.prefix, *self.rows])

    @property
    def predicted_ids(self) -> np.ndarray:
        """Return the token ids that the model must predict: those of candidates."""
        return np.concatenate(self.rows)

    def content(self) -> bytes:
        """Return all that scores depend on besides the checkpoint, for the store.

        Each part is preceded by its length, so that no two sets have the same bytes.
        """
        return self._content

    @cached_property
    def _content(self) -> bytes:
        # It is kept: sets have many rows, and all checkpoints share them.
        parts = []
        for ids in (self.prefix, *self.rows):
            parts.append(len(ids).to_bytes(8, "big"))
            parts.append(ids.astype("<i4").tobytes())
        return b"".join(parts)


@dataclass(frozen=True)
class Prompt(_SingleSequence):
    """A prompt that is continued greedily, with the expected answer.

    Attributes
    ----------
    key
        Its name in tables (an example id); it has one row.
    ids
        Shape ``(n,)``, int32: token ids of the prompt.
    target
        The expected answer. Only whether it came is stored, not the text.
    max_new_tokens
        Most tokens of a generated answer.
    labels
        All answers of the task; empty if its answers are free text.
    """

    target: str = field(repr=False)
    max_new_tokens: int
    labels: tuple[str, ...] = field(default=(), repr=False)

    @property
    def row_positions(self) -> np.ndarray:
        """Return the position of its only result row, 0."""
        return np.zeros(1, dtype=np.int32)

    @property
    def tokens(self) -> int:
        """Return the number of tokens that are read and, at most, written."""
        return len(self.ids) + self.max_new_tokens

    @property
    def predicted_ids(self) -> np.ndarray:
        """Return no token ids: those that the model writes are not known."""
        return self.ids[:0]

    def content(self) -> bytes:
        """Return all that its answer depends on besides the checkpoint."""
        rule = bytes([ANSWER_RULE])
        n_ids = len(self.ids).to_bytes(8, "big")
        limit = self.max_new_tokens.to_bytes(4, "big")
        ids = self.ids.astype("<i4").tobytes()
        answers = "\0".join((self.target, *self.labels)).encode()
        return rule + n_ids + limit + ids + answers


AnyItem: TypeAlias = Item | Candidates | Prompt
"""An item of any kind; the docstring of this file lists their common members."""
