"""Items that passes score: sequences, sets of candidates, prompts.

Every kind has a key, positions of the rows that its scoring gives (``scored``), sizes
(``tokens``, ``longest``), the token ids that a model reads (``read``) and is asked for
(``predicted``), and bytes by which the store knows it (``content``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from spark_audit.scoring.answers import ANSWER_RULE


@dataclass(frozen=True)
class _Read:
    """Key and token ids of an item that reads one sequence."""

    key: str
    # Token ids are as good as text.
    ids: np.ndarray = field(repr=False)

    @property
    def tokens(self) -> int:
        """Tokens that the model reads, and at most writes."""
        return len(self.ids)

    @property
    def longest(self) -> int:
        """Positions that it takes of the model's context."""
        return self.tokens

    @property
    def read(self) -> np.ndarray:
        """All token ids of it."""
        return self.ids


@dataclass(frozen=True)
class Item(_Read):
    """A sequence to score: a text, or a string behind a prompt.

    Attributes
    ----------
    key
        What tables call it (an example id).
    ids
        Shape ``(n,)``, int32: what the model reads. The first token has no prediction.
    positions
        Shape ``(n,)``, int32. Of a text: where each token stands in the full
        tokenisation. Of a string behind a prompt: how many of its characters stand once
        the token is written; -1 for tokens of the prompt, which are read only.
    """

    positions: np.ndarray = field(repr=False)

    @property
    def first(self) -> int:
        """The first token that is scored: behind a prompt, and never token 0."""
        n_prompt = int(np.count_nonzero(self.positions < 0))
        return max(n_prompt, 1)

    @property
    def scored(self) -> np.ndarray:
        """Positions of the rows that scoring gives."""
        return self.positions[self.first :]

    @property
    def predicted(self) -> np.ndarray:
        """The token ids that the model is asked for."""
        return self.ids[1:]

    def content(self) -> bytes:
        """Return what scores depend on besides the checkpoint; the store hashes it."""
        ids = self.ids.astype("<i4")
        positions = self.positions.astype("<i4")
        return len(ids).to_bytes(8, "big") + ids.tobytes() + positions.tobytes()


@dataclass(frozen=True)
class Candidates:
    """A set of continuations of one prefix, of which each is scored.

    Attributes
    ----------
    key
        What tables call the set; its rows are the candidates, in order.
    prefix
        Shape ``(p,)``, int32: what stands before every candidate, ``p >= 1``.
    rows
        Token ids of each candidate, arrays of shape ``(n_i,)``, int32, ``n_i >= 1``.
    """

    key: str
    prefix: np.ndarray = field(repr=False)
    rows: tuple[np.ndarray, ...] = field(repr=False)

    @property
    def example(self) -> Item:
        """The prefix with the first candidate, as a text."""
        ids = np.append(self.prefix, self.rows[0])
        return Item(self.key, ids, np.arange(len(ids), dtype=np.int32))

    @property
    def scored(self) -> np.ndarray:
        """One row a candidate."""
        return np.arange(len(self.rows), dtype=np.int32)

    @property
    def tokens(self) -> int:
        """Tokens that a model reads when it keeps the prefix."""
        return len(self.prefix) + sum(len(row) for row in self.rows)

    @property
    def longest(self) -> int:
        """Positions that it takes of the model's context."""
        return len(self.prefix) + max(len(row) for row in self.rows)

    @property
    def read(self) -> np.ndarray:
        """All token ids of it."""
        return np.concatenate([self.prefix, *self.rows])

    @property
    def predicted(self) -> np.ndarray:
        """The token ids that the model is asked for."""
        return np.concatenate(self.rows)

    def content(self) -> bytes:
        """Return what scores depend on besides the checkpoint; the store hashes it.

        Each part is preceded by its length, so that no two sets have the same bytes.
        """
        parts = []
        for ids in (self.prefix, *self.rows):
            parts.append(len(ids).to_bytes(8, "big"))
            parts.append(ids.astype("<i4").tobytes())
        return b"".join(parts)


@dataclass(frozen=True)
class Prompt(_Read):
    """A prompt that is continued greedily, and the expected answer.

    Attributes
    ----------
    key
        What tables call it (an example id); it has one row.
    ids
        Shape ``(n,)``, int32: what the model reads first.
    target
        The expected answer. No text is stored, only whether it came.
    max_new_tokens
        Tokens after which generation stops anyway.
    labels
        All answers that the task knows; empty where its answers are free text.
    """

    target: str = field(repr=False)
    max_new_tokens: int
    labels: tuple[str, ...] = field(default=(), repr=False)

    @property
    def scored(self) -> np.ndarray:
        """One row a prompt."""
        return np.zeros(1, dtype=np.int32)

    @property
    def tokens(self) -> int:
        """Tokens read and, at most, written."""
        return len(self.ids) + self.max_new_tokens

    @property
    def predicted(self) -> np.ndarray:
        """The token ids that the model is asked for: none are known."""
        return self.ids[:0]

    def content(self) -> bytes:
        """Return what the outcome depends on besides the checkpoint.

        The store hashes it.
        """
        rule = bytes([ANSWER_RULE])
        n_ids = len(self.ids).to_bytes(8, "big")
        limit = self.max_new_tokens.to_bytes(4, "big")
        ids = self.ids.astype("<i4").tobytes()
        answers = "\0".join((self.target, *self.labels)).encode()
        return rule + n_ids + limit + ids + answers


AnyItem: TypeAlias = Item | Candidates | Prompt
"""An item of any kind; the top of this file says what all kinds have."""
