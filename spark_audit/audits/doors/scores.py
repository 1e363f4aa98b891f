"""The score of each door, from the columns of the plain pass.

Every score is of a whole text, over the tokens that the pass scored, and the higher,
the likelier a member. No door reads more than its attacker sees:

================  ==================================================================
door              score of a text
================  ==================================================================
``answers``       share of its tokens that greedy decoding gives next
``top20``         mean log-probability; tokens that are not listed have a fixed one
``logprobs``      mean log-probability: ``loss`` of the audit of membership
``distribution``  mean rank of ``loss`` and of Min-K%++ at 10%, ``minkpp10`` there
``weights``       mean rank of the scores relative to the base: ``combined`` there
``all_stages``    largest fall of the NLL since the base: ``series`` of that audit
================  ==================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from spark_audit.audits.doors.accesses import (
    ANSWERS,
    DISTRIBUTION,
    DOORS,
    LISTED_TOKENS,
    LOGPROBS,
    STAGES,
    TOP20,
    WEIGHTS_AND_BASE,
)
from spark_audit.audits.mia.score_tables import mean_rank, membership_scores
from spark_audit.audits.series.staged_rows import (
    SERIES,
    StagedRows,
    is_of_large_task,
)
from spark_audit.manifest.schema import Manifest
from spark_audit.scoring.table import TokenTable

UNLISTED_LOGP = -10.0
"""Log-probability of a token that is not listed, nats, and the least of a listed one.

A list only says that other tokens are less likely than those in it, so that the number
is a convention. It was fixed before any audit.
"""


def door_scores(
    table: TokenTable,
    manifest: Manifest,
    ids: Sequence[str],
    *,
    base: TokenTable | None = None,
) -> dict[str, np.ndarray]:
    """Return the score of each text at every door but that of all stages.

    The scores at the doors ``logprobs``, ``distribution`` and ``weights`` are those of
    the audit of membership, or made of them. All other doors average a number over the
    tokens of a text.

    Parameters
    ----------
    table
        Plain table of a checkpoint.
    ids
        Example ids, ``n`` of them.
    base
        Plain table of the base, for the door ``weights``; ``None``: the table is that
        of the base.

    Returns
    -------
    Door -> scores, shape ``(n,)``. NaN: the text was not scored, or the table lacks
    what is seen at the door.
    """
    membership = membership_scores(table, manifest, ids, base=base)
    scores = {
        LOGPROBS: membership["loss"],
        DISTRIBUTION: _mean_rank_of_both(membership["loss"], membership["minkpp10"]),
        WEIGHTS_AND_BASE: membership["combined"],
    }

    exact_logp = -table.columns["nll"].astype(np.float64)  # (tokens of the table,)
    for door in DOORS:
        if door.name in scores or door.sees == STAGES:
            continue
        logp = rounded_logp(exact_logp, door.step)
        token_values = seen_by_token(door.sees, table, logp)
        scores[door.name] = mean_over_tokens(token_values, table, ids)
    return scores


def _mean_rank_of_both(loss: np.ndarray, minkpp: np.ndarray) -> np.ndarray:
    """Return the mean rank of two scores, shape ``(n,)``; NaN without either.

    Min-K%++ reads the least likely tokens alone. By itself it could tell less than
    ``loss``, although its attacker sees more.
    """
    has_both = np.isfinite(loss) & np.isfinite(minkpp)
    return np.where(has_both, mean_rank([loss, minkpp]), np.nan)


def rounded_logp(logp: np.ndarray, step: float) -> np.ndarray:
    """Return log-probabilities (nats), rounded to a step; a step of 0: as they are."""
    if not step:
        return logp
    return np.asarray(np.rint(logp / step) * step)


def seen_by_token(sees: str, table: TokenTable, logp: np.ndarray) -> np.ndarray:
    """Return the number of each token that the score of a door averages.

    ===========  =======================================================
    ``sees``     number
    ===========  =======================================================
    ``answers``  1 if greedy decoding gives the token next, else 0
    ``top20``    log-probability; of unlisted tokens :data:`UNLISTED_LOGP`
    ``logprobs`` log-probability
    ===========  =======================================================

    Parameters
    ----------
    logp
        Log-probabilities, rounded as at this door, shape ``(tokens of the table,)``.

    Returns
    -------
    Shape ``(tokens of the table,)``; NaN without ranks where the door needs them.
    """
    if sees == LOGPROBS:
        return logp
    if "rank_lo" not in table.columns:
        return np.full(len(table), np.nan)

    # A model may give any of the tokens that tie, so the last of them decides.
    last_rank = table.columns["rank_lo"] + table.columns["ties"]
    if sees == ANSWERS:
        return np.asarray((last_rank <= 1).astype(np.float64))

    assert sees == TOP20
    is_listed = last_rank <= LISTED_TOKENS
    return np.where(is_listed, np.maximum(logp, UNLISTED_LOGP), UNLISTED_LOGP)


def mean_over_tokens(
    token_values: np.ndarray, table: TokenTable, ids: Sequence[str]
) -> np.ndarray:
    """Return the mean of a number over the tokens of each text.

    Parameters
    ----------
    token_values
        Shape ``(tokens of the table,)``.

    Returns
    -------
    Shape ``(n,)``; NaN: the text has no scored token.
    """
    means = np.full(len(ids), np.nan)
    for i, key in enumerate(ids):
        if key not in table:
            continue
        values_of_text = token_values[table.rows(key)]
        if len(values_of_text):
            means[i] = values_of_text.mean()
    return means


def stage_scores(
    units: pd.DataFrame,
    base_logp: np.ndarray,
    logp_by_stage: Sequence[np.ndarray],
    stage_by_task: Mapping[str, int],
) -> np.ndarray:
    """Return the score of each text by all stages of a series.

    It is that of the audit of series, on the rows that every stage was scored on.

    Parameters
    ----------
    units
        ``task`` and ``member``, a line per text.
    base_logp
        Mean log-probability by the base, shape ``(n,)``, nats per token.
    logp_by_stage
        The same by each stage, in order.
    stage_by_task
        Task -> number of the stage that trained on it, from 1.

    Returns
    -------
    Shape ``(n,)``, nats per token; NaN: a stage was not scored on it, its task has no
    stage, or too few rows of its task were.
    """
    own_stage = units["task"].map(stage_by_task).fillna(0).astype(int)  # (n,)
    fall = np.stack([logp - base_logp for logp in logp_by_stage])  # (stages, n)
    all_rows = StagedRows(units.assign(trained_at=own_stage), fall)

    is_usable = (own_stage.to_numpy() > 0) & np.isfinite(fall).all(axis=0)  # (n,)
    is_usable &= is_of_large_task(units, is_usable)
    scores = np.full(len(units), np.nan)
    if is_usable.any():
        scores[is_usable] = all_rows.take(is_usable).scores[SERIES]
    return scores
