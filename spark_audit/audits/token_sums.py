"""Sums over tokens of a manifest's examples, such as their NLL.

An audit lists the tokens that belong together as :class:`TokenSet`, and sums them by
each checkpoint: ``Sums(manifest, table).over(token_sets)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from spark_audit.errors import InputError
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.schema import Manifest
from spark_audit.scoring.table import TokenTable

FactsT = TypeVar("FactsT")


class TokenSet(NamedTuple, Generic[FactsT]):
    """Tokens of an example that are summed together.

    Attributes
    ----------
    example
        Index of the example in ``manifest.examples``.
    tokens
        Indices of the tokens in the example, shape ``(tokens,)``.
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
    so that a hundred thousand ranges cost one subtraction each. An example of ``T``
    tokens has ``T + 1`` prefix sums, of which number ``t`` is the sum over its tokens
    before ``t``:

    ===================  =====================================================
    ``_begin[i]``        index in ``_prefix`` of example ``i``'s prefix sum 0
    ``_prefix``          prefix sums; NaN in examples that were not scored
    ===================  =====================================================
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
            Needs a table, which says what token each value is of.
        """
        lengths = manifest.lengths  # (examples,), tokens
        self._begin = np.concatenate([[0], np.cumsum(lengths + 1)])
        # Prefix sum 0 of each example stays 0.
        self._prefix = np.zeros(int(self._begin[-1]))

        if table is not None and values is None:
            values = table.columns["nll"]

        for i, key in enumerate(manifest.by_id):
            if table is None or values is None:
                # The example itself is made only here, as that is the slowest step.
                by_token = manifest.by_id[key].reference_nll  # (tokens,), nats
            else:
                by_token = _values_of(key, table, values, lengths[i])  # (tokens,)

            sum_of_first_token = self._begin[i] + 1  # index of prefix sum 1
            prefix_sums = slice(sum_of_first_token, sum_of_first_token + len(by_token))
            np.cumsum(by_token, out=self._prefix[prefix_sums])

    def __call__(
        self, example: np.ndarray | int, start: np.ndarray, length: np.ndarray | int
    ) -> np.ndarray:
        """Return sums over ranges of tokens, float64; arguments are broadcast.

        Parameters
        ----------
        example
            Index in ``manifest.examples`` of the example of each range.
        start, length
            Index of the first token in its example, and number of tokens.

        Raises
        ------
        InputError
            If an example was not scored.
        """
        at_start = self._begin[example] + start
        sums = np.asarray(self._prefix[at_start + length] - self._prefix[at_start])
        if np.isnan(sums).any():
            raise InputError(
                "the score table lacks an item of the manifest",
                fix="score again with the same manifest",
            )
        return sums

    def over(self, token_sets: Iterable[TokenSet[Any]]) -> np.ndarray:
        """Return the sum over each set of tokens, shape ``(sets,)``; float64.

        Raises
        ------
        InputError
            If the example of a set was not scored.
        """
        sums = [
            self(token_set.example, token_set.tokens, 1).sum()
            for token_set in token_sets
        ]
        return np.array(sums)


def base_nll_of(
    example: ManifestExample, base_table: TokenTable | None, position: np.ndarray
) -> np.ndarray:
    """Return the NLL of an example's scored tokens by the base, ``(tokens,)``, nats.

    Parameters
    ----------
    base_table
        Scores of the base. If there are none, or none of this example, those of the
        reference model stand for them, which the manifest has.
    position
        Indices in the example of the tokens that the checkpoint scored, ``(tokens,)``.

    Raises
    ------
    InputError
        If the base was scored on other tokens of the example.
    """
    if base_table is None or example.id not in base_table:
        return np.asarray(example.reference_nll[position])

    token_slice = base_table.rows(example.id)
    if not np.array_equal(base_table.position[token_slice], position):
        raise InputError(
            "the base and a checkpoint were scored on different tokens",
            where=f"example {example.id!r}",
            fix="score again with the same manifest",
        )
    return np.asarray(base_table.columns["nll"][token_slice], np.float64)


def _values_of(
    key: str, table: TokenTable, values: np.ndarray, length: int
) -> np.ndarray:
    """Return a value per token of an example, shape ``(length,)``.

    Tokens that were not scored have 0, and all have NaN if the table lacks the example.

    Parameters
    ----------
    key
        Id of the example.
    values
        A value per token of the table, shape ``(n,)``.
    length
        Tokens of the example, scored or not.
    """
    if key not in table:
        return np.full(length, np.nan)

    by_token = np.zeros(length)
    token_slice = table.rows(key)
    by_token[table.position[token_slice]] = values[token_slice]
    return by_token
