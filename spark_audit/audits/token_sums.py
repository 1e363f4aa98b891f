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
    """Sums over tokens of a manifest's examples.

    Prefix sums over the full tokenisation of every scored example, so that a hundred
    thousand ranges cost one subtraction each.
    """

    def __init__(
        self,
        manifest: Manifest,
        table: TokenTable | None = None,
        values: np.ndarray | None = None,
    ) -> None:
        """Sum a checkpoint's NLL, or the reference model's if there is no table.

        Sums over an example that the table lacks are refused.

        Parameters
        ----------
        table
            Scores of a checkpoint; NLL in nats.
        values
            Values of the table's tokens that are summed instead, shape ``(n,)``.
        """
        lengths = manifest.lengths  # (examples,), tokens
        # Each example has one place more than tokens: its first prefix sum is 0.
        self._first = np.concatenate([[0], np.cumsum(lengths + 1)])
        self._prefix = np.zeros(int(self._first[-1]))

        if table is not None and values is None:
            values = table.columns["nll"]

        # An example is made from its key, which takes longer than all else.
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
