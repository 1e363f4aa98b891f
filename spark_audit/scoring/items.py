"""Items that passes score: sequences, sets of candidates, and prompts.

Every kind of item has these members:

====================  ==================================================================
``key``               Its name in tables.
``row_positions``     For each of its result rows the column ``position`` of the table.
``n_tokens``          Tokens to read, and to write at most: the work.
``n_context_tokens``  Length of the longest sequence that the model's context must hold.
``all_ids``           All of its token ids.
``predicted_ids``     Ids at which the model needs a logit.
``content()``         Bytes that identify it: the store and ``manifest/build.py`` hash
                      them, so a changed layout makes all stored scores unknown.
====================  ==================================================================

A further kind also has a noun in ``_ITEM_NOUNS`` (``item_checks.py``) and a pass that
reads it. ``manifest/sequences.py`` makes the items of a manifest.
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
    def n_tokens(self) -> int:
        """Return the number of tokens that the model reads.

        (A prompt also counts the most tokens that the model may write.)
        """
        return len(self.ids)

    @property
    def n_context_tokens(self) -> int:
        """Return the number of tokens that the model's context must hold."""
        return self.n_tokens

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
        Shape ``(n,)``, int32: what the table's column ``position`` says of each token.
        Of a text it is the token's index in the full tokenisation, by which audits find
        the tokens of a span. Of a string behind a prompt (``asked_prompts.py``) it is
        the number of the string's characters that are complete after the token; -1
        marks tokens of the prompt, which are not scored.
    """

    positions: np.ndarray = field(repr=False)

    @property
    def first_scored(self) -> int:
        """Return the index of its first scored token, behind a prompt and token 0."""
        n_prompt = int(np.count_nonzero(self.positions < 0))
        return max(n_prompt, 1)

    @property
    def row_positions(self) -> np.ndarray:
        """Return the position of each scored token, one per result row."""
        return self.positions[self.first_scored :]

    @property
    def predicted_ids(self) -> np.ndarray:
        """Return the ids at which the model needs a logit: all but the first.

        Those of a prompt are among them, though they are not scored: the check of the
        vocabulary (``item_checks.py``) is the same for all.
        """
        return self.ids[1:]

    def content(self) -> bytes:
        """Return all that its scores depend on besides the checkpoint.

        Layout: the number of ids (8 bytes, big-endian), ids, positions (4 bytes each,
        little-endian).
        """
        ids = self.ids.astype("<i4")
        positions = self.positions.astype("<i4")
        return len(ids).to_bytes(8, "big") + ids.tobytes() + positions.tobytes()


@dataclass(frozen=True)
class Candidates:
    """A set of continuations of one prefix, each of which is scored.

    Attributes
    ----------
    key
        Name of the set in tables. It has a result row per candidate, in order.
    prefix
        Shape ``(p,)``, int32, ``p >= 1``: token ids in front of every candidate.
    continuations
        Token ids of each candidate: arrays of shape ``(n_i,)``, int32, ``n_i >= 1``.
    """

    key: str
    prefix: np.ndarray = field(repr=False)
    continuations: tuple[np.ndarray, ...] = field(repr=False)

    @property
    def example(self) -> Item:
        """Return the prefix with the first candidate, as a text for self-tests."""
        ids = np.append(self.prefix, self.continuations[0])
        return Item(self.key, ids, np.arange(len(ids), dtype=np.int32))

    @property
    def row_positions(self) -> np.ndarray:
        """Return the number of each candidate from 0, one per result row."""
        return np.arange(len(self.continuations), dtype=np.int32)

    @property
    def n_tokens(self) -> int:
        """Return the number of tokens that a model reads if it caches the prefix."""
        return len(self.prefix) + sum(len(ids) for ids in self.continuations)

    @property
    def n_context_tokens(self) -> int:
        """Return the number of tokens of the prefix with the longest candidate."""
        return len(self.prefix) + max(len(ids) for ids in self.continuations)

    @property
    def all_ids(self) -> np.ndarray:
        """Return all of its token ids: prefix, and candidates one after the other."""
        return np.concatenate([self.prefix, *self.continuations])

    @property
    def predicted_ids(self) -> np.ndarray:
        """Return the ids at which the model needs a logit: those of candidates."""
        return np.concatenate(self.continuations)

    def content(self) -> bytes:
        """Return all that its scores depend on besides the checkpoint.

        Layout: for the prefix and each candidate the number of ids (8 bytes,
        big-endian) and the ids (4 bytes each, little-endian). With the lengths, no two
        sets have the same bytes.
        """
        return self._content

    @cached_property
    def _content(self) -> bytes:
        # It is kept: sets have many candidates, and all checkpoints share them.
        parts = []
        for ids in (self.prefix, *self.continuations):
            parts.append(len(ids).to_bytes(8, "big"))
            parts.append(ids.astype("<i4").tobytes())
        return b"".join(parts)


@dataclass(frozen=True)
class Prompt(_SingleSequence):
    """A prompt that is continued greedily, with the expected answer.

    Attributes
    ----------
    key
        Its name in tables (an example id). It has one result row.
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
    def n_tokens(self) -> int:
        """Return the number of tokens that are read and, at most, written."""
        return len(self.ids) + self.max_new_tokens

    @property
    def predicted_ids(self) -> np.ndarray:
        """Return no ids: those that the model writes are not known."""
        return self.ids[:0]

    def content(self) -> bytes:
        """Return all that its answer depends on besides the checkpoint.

        Layout: ``ANSWER_RULE`` (1 byte), the number of ids (8 bytes), the limit of new
        tokens (4 bytes), ids (4 bytes each, little-endian), then target and labels,
        separated by NUL.
        """
        rule = bytes([ANSWER_RULE])
        n_ids = len(self.ids).to_bytes(8, "big")
        limit = self.max_new_tokens.to_bytes(4, "big")
        ids = self.ids.astype("<i4").tobytes()
        answers = "\0".join((self.target, *self.labels)).encode()
        return rule + n_ids + limit + ids + answers


AnyItem: TypeAlias = Item | Candidates | Prompt
"""An item of any kind; the docstring of this file lists their common members."""
