"""Coins: canaries whose planted string was drawn from a pair, and epsilon from them.

An attacker guesses which string of each pair was planted. The number of right guesses
bounds epsilon from below (Steinke et al., 2023). The only assumption is the draw of the
coin.
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

N_ATTACKS_ON_COINS = 2
"""Bounds of each series: by all of its stages, and by the last one."""

EPSILON_SIGNIFICANCE = 0.05
"""Joint error of all bounds of a report."""


def coins_of(manifest: Manifest) -> dict[str, ManifestCanary]:
    """Return the planted canaries that rest on a coin, by the key of their pair.

    The bound rests on the draw. Only whole canaries of a format of this package that a
    coin chose count.
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

    Columns: ``example``, ``task``, ``cluster``, ``member`` (planted), ``dose``.

    Parameters
    ----------
    coins
        From :func:`coins_of`.
    """
    records = []
    for key, canary in coins.items():
        # The example that the planted string stands in.
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
    wrong guess. All bounds of a report hold together at 95% (Bonferroni).

    Parameters
    ----------
    coins
        Series -> its coins, in pairs.
    """
    with_coins = {name: staged for name, staged in coins.items() if len(staged.rows)}

    n_bounds = N_ATTACKS_ON_COINS * max(len(with_coins), 1)
    significance = EPSILON_SIGNIFICANCE / n_bounds

    for name, staged in with_coins.items():
        for attack in (SERIES, LAST_STAGE):
            yield _epsilon_record(name, staged, attack, significance)


def _epsilon_record(
    name: str, staged: StagedRows, attack: str, significance: float
) -> TableRecord:
    """Return the bound of one series by one attack, with its sentence.

    For the columns see :mod:`spark_audit.audits.canary.epsilon`.
    """
    # Two units for each coin: the planted string, then the other one.
    planted, other = staged.scores[attack].reshape(-1, 2).T  # each (coins,)
    gap = planted - other  # (coins,), above 0: the planted one looks familiar

    # Only the surest half is guessed.
    n_guesses = declared_guesses(len(gap))
    surest = np.argsort(-np.abs(gap), kind="stable")[:n_guesses]

    record: TableRecord = {
        "checkpoint": name,
        "of": attack,
        "pairs": len(gap),
        "guesses": n_guesses,
        "right": int((gap[surest] > 0).sum()),
        "rows": int(staged.rows["dose"].max()),
        "significance": significance,
    }
    record |= coin_figures(record, significance)

    epsilon = record["epsilon_per_record"]
    key = "canary.bounded" if epsilon > 0 else "canary.bound_of_0"
    record["says"] = sentences.render(
        key, **record, epsilon=epsilon, declared=True, assumed="drawn"
    )
    return record
