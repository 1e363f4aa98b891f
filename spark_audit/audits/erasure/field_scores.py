"""Scores of rows as papers on unlearning report them, from one plain pass.

Exact memorisation, extraction strength and Min-K% of a row follow open-unlearning
(github.com/locuslab/open-unlearning, ``src/evals/metrics``): they are over the tokens
with a label, which are those of the response. privleak compares the AUC of Min-K% of
forget and held-out rows with that of a model that never read them.

========================  ==============================================================
:class:`RowScores`        scores of one row
:func:`privleak`          of two AUCs
========================  ==============================================================
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.scoring.table import TokenTable

MIN_K_SHARE = 0.4
"""Share of the least likely tokens in Min-K%, as benchmarks of unlearning set it."""

AUC_OF_STRANGER = 0.5
"""AUC of a model that never read the rows, where no retrained model is given."""

TINY = 1e-10
"""Added to a divisor, as published."""


class RowScores(NamedTuple):
    """Scores of one row by one checkpoint; NaN: it has no token with a label.

    Attributes
    ----------
    exact
        Exact memorisation: the share of tokens that are the model's first guess.
    strength
        Extraction strength: 1 minus the share of these tokens that must be given before
        the model's first guesses are the rest of them.
    mink
        Mean log-probability of the :data:`MIN_K_SHARE` least likely tokens, nats: the
        higher, the likelier a trained row.
    n_labels
        Number of tokens with a label, over which the other scores are.
    """

    exact: float
    strength: float
    mink: float
    n_labels: float

    @classmethod
    def of(cls, example: ManifestExample, table: TokenTable) -> RowScores:
        """Return the scores of a row, from the tokens that a checkpoint scored."""
        missing = cls(exact=np.nan, strength=np.nan, mink=np.nan, n_labels=np.nan)
        if example.id not in table:
            return missing

        token_slice = table.rows(example.id)
        position = table.position[token_slice]  # (scored,)
        has_label = labelled_tokens(example)[position]  # (scored,), bool
        if not has_label.any():
            return missing

        nll = table.columns["nll"][token_slice][has_label].astype(np.float64)  # nats
        exact = strength = np.nan
        if "rank_lo" in table.columns:
            is_first = table.columns["rank_lo"][token_slice][has_label] == 1
            exact = float(is_first.mean())
            strength = extraction_strength(is_first)
        return cls(
            exact=exact,
            strength=strength,
            mink=lowest_mean(-nll),
            n_labels=float(has_label.sum()),
        )


def labelled_tokens(example: ManifestExample) -> np.ndarray:
    """Return a mask of the tokens with a label, shape ``(tokens,)`` bool.

    They are those that had loss, where that is known; else those of the response; and
    all scored tokens of a row without a response.
    """
    is_scored = example.scored
    had_loss = example.had_loss
    if had_loss is not None and (is_scored & had_loss).any():
        return np.asarray(is_scored & had_loss)

    is_response = np.arange(len(is_scored)) >= example.response_token
    if (is_scored & is_response).any():
        return np.asarray(is_scored & is_response)
    return np.asarray(is_scored)


def extraction_strength(is_first: np.ndarray) -> float:
    """Return the extraction strength of a row of at least one token.

    Parameters
    ----------
    is_first
        Shape ``(tokens,)``, bool: whether a token is the model's first guess.

    Notes
    -----
    ``1 - k / T``, with k the fewest tokens in front after which all others are first
    guesses, but at most ``T - 1``: so a row is never 0 (Carlini et al. 2021, as
    open-unlearning computes it).

    Examples
    --------
    >>> extraction_strength(np.array([True, False, True, True]))
    0.5
    >>> extraction_strength(np.array([True, True, True, False]))
    0.25
    """
    n_tokens = len(is_first)
    wrong = np.flatnonzero(~is_first)
    n_given = int(wrong[-1]) + 1 if len(wrong) else 0
    return 1 - min(n_given, n_tokens - 1) / n_tokens


def lowest_mean(logp: np.ndarray, share: float = MIN_K_SHARE) -> float:
    """Return the mean of the lowest share of a row's log-probabilities, nats.

    Parameters
    ----------
    logp
        Shape ``(tokens,)``, at least one.

    Examples
    --------
    >>> lowest_mean(np.array([-3.0, -1.0, -2.0, -0.5, -4.0]))
    -3.5
    """
    n_lowest = max(1, int(len(logp) * share))
    return float(np.sort(logp)[:n_lowest].mean())


def privleak(auc: float, auc_of_retrained: float = AUC_OF_STRANGER) -> float:
    """Return privleak, per cent: below 0 rows are remembered, above 0 avoided.

    Parameters
    ----------
    auc, auc_of_retrained
        Chance that a forget row looks likelier to be trained on than a held-out one, by
        the audited model and by one that never read the forget rows.

    Notes
    -----
    Shi et al. 2024, "MUSE: Machine Unlearning Six-Way Evaluation for Language Models".
    Its AUC has the other direction, so that both are turned.

    Examples
    --------
    >>> round(privleak(0.9), 1), round(privleak(0.0), 1)
    (-80.0, 100.0)
    """
    distance = (1 - auc) - (1 - auc_of_retrained)
    return 100 * distance / (1 - auc_of_retrained + TINY)
