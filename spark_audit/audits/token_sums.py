"""Sums over tokens of a manifest's examples, such as their NLL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.scoring.table import TokenTable

MICRO_NATS = 1e6
"""Micro-nats per nat."""

FactsT = TypeVar("FactsT")


class TokenSet(NamedTuple, Generic[FactsT]):
    """Tokens of an example that are summed together.

    Attributes
    ----------
    example
        Place of the example in the manifest.
    tokens
        Places of the tokens in it, shape ``(tokens,)``.
    facts
        What is known of the set: columns of the evidence.
    """

    example: int
    tokens: np.ndarray
    facts: FactsT


class Sums:
    """Sums of one value per token, over ranges or sets of tokens of examples.

    The values are the NLL by a checkpoint or by the reference model, or any other that
    is given. The prefix sums of all examples stand one behind the other in one array,
    so that a hundred thousand ranges cost one subtraction each:

    ==============  =====================================================
    ``_first[i]``   place of example ``i``'s first prefix sum, which is 0
    ``_prefix``     prefix sums; NaN in examples that were not scored
    ==============  =====================================================
    """

    def __init__(
        self,
        manifest: Manifest,
        table: TokenTable | None = None,
        values: np.ndarray | None = None,
    ) -> None:
        """Prepare sums of a checkpoint's NLL, or of the reference model's.

        Parameters
        ----------
        table
            Scores of a checkpoint, NLL in nats; ``None``: those of the reference model,
            which the manifest has. Sums over an example that it lacks are refused.
        values
            Summed instead of the NLL: a value per token of the table, shape ``(n,)``.
        """
        lengths = manifest.lengths  # (examples,), tokens
        # Each example has one place more than tokens: its first prefix sum is 0.
        self._first = np.concatenate([[0], np.cumsum(lengths + 1)])
        self._prefix = np.zeros(int(self._first[-1]))

        if table is not None and values is None:
            values = table.columns["nll"]

        # The manifest makes an example from its key, which takes longer than all else:
        # only the reference needs it.
        for i, key in enumerate(manifest.by_id):
            if table is None or values is None:
                by_token = _reference_nll(manifest.by_id[key])
            else:
                by_token = _values_of(key, table, values, lengths[i])
            first = self._first[i] + 1
            np.cumsum(by_token, out=self._prefix[first : first + len(by_token)])

    def __call__(
        self, example: np.ndarray | int, start: np.ndarray, length: np.ndarray | int
    ) -> np.ndarray:
        """Return sums over ranges of tokens, shape of the arguments; float64.

        Parameters
        ----------
        example
            Places in the manifest's examples.
        start, length
            First token and number of tokens.

        Raises
        ------
        InputError
            If an example was not scored.
        """
        first = self._first[example] + start
        sums = np.asarray(self._prefix[first + length] - self._prefix[first])
        if np.isnan(sums).any():
            raise InputError(
                "the score table lacks an item of the manifest",
                fix="score again with the same manifest",
            )
        return sums

    def over(self, sets: Iterable[tuple[int, np.ndarray]]) -> np.ndarray:
        """Return sums over sets of tokens, each of one example; float64.

        Parameters
        ----------
        sets
            Place of the example, and its tokens, shape ``(tokens,)``.
        """
        return np.array([self(i, tokens, 1).sum() for i, tokens in sets])


def _reference_nll(example: ManifestExample) -> np.ndarray:
    """Return the reference model's NLL, ``(tokens,)``, nats; 0 where not scored."""
    return np.asarray(np.maximum(example.unll, 0) / MICRO_NATS)


def _values_of(
    key: str, table: TokenTable, values: np.ndarray, length: int
) -> np.ndarray:
    """Return an example's values, ``(tokens,)``; NaN if the table lacks it.

    ``values`` has a value per token of the table, shape ``(n,)``.
    """
    if key not in table:
        return np.full(length, np.nan)
    by_token = np.zeros(length)

    rows = table.rows(key)
    by_token[table.position[rows]] = values[rows]
    return by_token
