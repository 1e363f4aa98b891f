"""Coins: canaries whose planted string was drawn from a pair, and epsilon from them.

An attacker guesses which string of each pair was planted. The number of right guesses
bounds epsilon from below (Steinke et al., 2023). The only assumption is the draw of the
coin.

:mod:`~spark_audit.audits.series.audit` puts the coins into the evidence, two units
each, and the bounds into the table ``series_epsilon``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from spark_audit import sentences
from spark_audit.audits.canary.epsilon import coin_figures
from spark_audit.audits.series.staged_rows import LAST_STAGE, SERIES, StagedRows
from spark_audit.data.canaries import CANARY_FORMATS
from spark_audit.manifest.encodings import components_of, key_of
from spark_audit.manifest.schema import Manifest, ManifestCanary
from spark_audit.results.audit_result import TableRecord
from spark_audit.stats.epsilon_bounds import declared_guesses

COIN_ATTACKS = (SERIES, LAST_STAGE)
"""Attacks that bound epsilon, one bound of each series by each."""

EPSILON_SIGNIFICANCE = 0.05
"""Joint error of all bounds of a report."""


def coins_of(manifest: Manifest) -> dict[str, ManifestCanary]:
    """Return the planted canaries that rest on a coin, by the key of their pair.

    The key (:func:`~spark_audit.manifest.encodings.key_of`) is that of the pass
    ``candidates``, which scores both strings. The bound rests on the draw. Only whole
    canaries of a format of this package that a coin chose count.
    """
    coins = {}
    for canary in manifest.canaries:
        is_whole = canary.part == "full"
        is_drawn_here = canary.format in CANARY_FORMATS
        is_planted = canary.dose and not canary.held_out
        if is_whole and is_drawn_here and is_planted and canary.coin:
            first_example = min(context.example for context in canary.contexts)
            coins[key_of("coin", canary.canary_id, first_example)] = canary
    return coins


def coin_units(manifest: Manifest, coins: Mapping[str, ManifestCanary]) -> pd.DataFrame:
    """Return two units for each coin: the planted string, then the other one.

    Columns: ``example``, ``task`` and ``cluster``; ``member``, whether it was planted;
    and ``dose``, the number of rows that the planted string stands in, for both.

    Parameters
    ----------
    coins
        From :func:`coins_of`.
    """
    records = []
    for key, canary in coins.items():
        # The first example that the planted string stands in is the end of the key.
        example = manifest.by_id[components_of(key)[-1]]
        for is_planted in (True, False):
            record = {
                "example": example.id,
                "task": example.task,
                "cluster": canary.canary_id,
                "member": is_planted,
                "dose": canary.dose,
            }
            records.append(record)
    return pd.DataFrame.from_records(records)


def epsilon_table(coins: Mapping[str, StagedRows]) -> Iterator[TableRecord]:
    """Yield lower bounds of epsilon: by all stages of a series, and by the last one.

    Half of the coins are guessed, those whose two scores lie furthest apart; a tie is a
    wrong guess. All bounds of a report hold together at 95%
    (:data:`EPSILON_SIGNIFICANCE`, Bonferroni).

    Parameters
    ----------
    coins
        Series -> its coins, in pairs.
    """
    series_with_coins = {
        name: staged for name, staged in coins.items() if len(staged.rows)
    }

    n_bounds = len(COIN_ATTACKS) * max(len(series_with_coins), 1)
    significance = EPSILON_SIGNIFICANCE / n_bounds

    for name, staged in series_with_coins.items():
        for attack in COIN_ATTACKS:
            yield _epsilon_record(name, staged, attack, significance)


def _epsilon_record(
    name: str, staged: StagedRows, attack: str, significance: float
) -> TableRecord:
    """Return the bound of one series by one attack, with its sentence.

    For the columns see :mod:`spark_audit.audits.canary.epsilon`.

    Parameters
    ----------
    name
        Name of the series.
    staged
        Its coins: two rows for each, the planted string first.
    significance
        Error that the bound may have.
    """
    # Two units for each coin: the planted string, then the other one.
    planted, other = staged.scores[attack].reshape(-1, 2).T  # each (coins,)
    gap = planted - other  # (coins,), above 0: the planted one looks more familiar

    # Only the surest half is guessed.
    n_guesses = declared_guesses(len(gap))
    surest = np.argsort(-np.abs(gap), kind="stable")[:n_guesses]

    record: TableRecord = {
        "checkpoint": name,
        "variant": attack,
        "pairs": len(gap),
        "guesses": n_guesses,
        "right_guesses": int((gap[surest] > 0).sum()),
        "rows_per_canary": int(staged.rows["dose"].max()),
        "significance": significance,
    }
    record |= coin_figures(record, significance)

    epsilon = record["epsilon_per_record"]
    key = "canary.bounded" if epsilon > 0 else "canary.bound_of_0"
    record["says"] = sentences.render(
        key, **record, epsilon=epsilon, declared=True, assumed="drawn"
    )
    return record
