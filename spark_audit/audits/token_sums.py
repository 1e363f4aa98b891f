"""Sums over tokens of a manifest's examples, such as their NLL.

An audit lists the tokens that belong together as :class:`TokenSet`, puts all sets into
arrays once (:class:`TokensOfSets`), and sums them by each checkpoint:
``Sums(manifest, table).over(tokens_of_sets)``.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class TokensOfSets(NamedTuple):
    """The tokens of all sets, one set after the other.

    Attributes
    ----------
    example, token
        Index of the example, and of the token in it, shape ``(tokens,)``.
    set_index
        Index of the set that the token is of, shape ``(tokens,)``.
    n_sets
        Number of sets, of which some may be empty.
    """

    example: np.ndarray
    token: np.ndarray
    set_index: np.ndarray
    n_sets: int

    @classmethod
    def of(cls, token_sets: Sequence[TokenSet[Any]]) -> TokensOfSets:
        """Return the tokens of these sets, in their order."""
        n_tokens = [len(token_set.tokens) for token_set in token_sets]
        examples = [token_set.example for token_set in token_sets]
        # Begin with no token, as there may be no set.
        tokens = [np.zeros(0, np.int64)]
        tokens += [token_set.tokens for token_set in token_sets]
        return cls(
            example=np.repeat(np.array(examples, np.int64), n_tokens),
            token=np.concatenate(tokens),
            set_index=np.repeat(np.arange(len(token_sets)), n_tokens),
            n_sets=len(token_sets),
        )


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

        if table is None:
            # The examples themselves are made only here, as that is the slowest step.
            of_examples = [
                manifest.by_id[key].reference_nll for key in manifest.by_id
            ]  # (tokens,) each, nats
            by_token = np.concatenate([np.zeros(0), *of_examples])
        else:
            if values is None:
                values = table.columns["nll"]
            by_token = _values_by_token(manifest, table, values)

        # Prefix sum 0 of each example stays 0.
        self._prefix = np.zeros(int(self._begin[-1]))
        first_token = 0
        begin_of_examples = self._begin[:-1].tolist()  # behind them is the end of all
        for begin, length in zip(begin_of_examples, lengths.tolist(), strict=True):
            of_example = by_token[first_token : first_token + length]
            of_example.cumsum(out=self._prefix[begin + 1 : begin + 1 + length])
            first_token += length

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

    def over(self, sets: TokensOfSets) -> np.ndarray:
        """Return the sum over each set of tokens, shape ``(sets,)``; float64.

        Raises
        ------
        InputError
            If the example of a set was not scored.
        """
        by_token = self(sets.example, sets.token, 1)  # (tokens,)
        return np.bincount(sets.set_index, by_token, minlength=sets.n_sets)


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


def _values_by_token(
    manifest: Manifest, table: TokenTable, values: np.ndarray
) -> np.ndarray:
    """Return a value per token of all examples, one example after the other.

    Tokens that were not scored have 0. All tokens of an example that the table lacks
    have NaN.

    Parameters
    ----------
    values
        A value per token of the table, shape ``(n,)``.

    Returns
    -------
    Shape ``(tokens of all examples,)``.

    Raises
    ------
    InputError
        If the table has a token behind the end of its example.
    """
    lengths = manifest.lengths  # (examples,), tokens
    first_tokens = np.cumsum(lengths) - lengths  # (examples,)

    # The example of each row of the table; -1: the manifest has no such example.
    index_of = {key: index for index, key in enumerate(manifest.by_id)}
    examples = np.array([index_of.get(key, -1) for key in table.ids], np.int64)
    example_of_row = np.repeat(examples, np.diff(table.offsets))  # (n,)
    is_known = example_of_row >= 0  # (n,)
    example = example_of_row[is_known]
    position = table.position[is_known]
    if (position >= lengths[example]).any():
        raise InputError(
            "the score table has tokens behind the end of an example",
            fix="score again with the same manifest",
        )

    is_scored = np.zeros(len(lengths), dtype=bool)  # (examples,)
    is_scored[examples[examples >= 0]] = True
    by_token = np.where(np.repeat(is_scored, lengths), 0.0, np.nan)
    by_token[first_tokens[example] + position] = values[is_known]
    return by_token
