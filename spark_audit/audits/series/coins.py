"""Bounds of epsilon from all stages of a series, and from its last one.

A canary's candidates stand in neighbouring pairs, and where the true one stands was
drawn: which of its pair was planted is a fair coin. Both are read in the canary's own
row, with as many tokens each, and guessed by the score of the series. A held-out canary
would not do: it stands in another row, which alone can make it likelier.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from spark_audit import sentences
from spark_audit.audits.canary.canary_tables import coin_figures
from spark_audit.audits.series.series_scores import LAST, SERIES, StagedRows
from spark_audit.data.canaries import FORMATS
from spark_audit.manifest.prompts import coin_key
from spark_audit.manifest.schema import Manifest, ManifestCanary
from spark_audit.scoring.table import TokenTable
from spark_audit.stats.epsilon import declared_guesses

Coins = Mapping[str, ManifestCanary]


def coins_of(manifest: Manifest) -> Coins:
    """Planted canaries that a coin can be told of, by the key of their pair.

    They are ours by their format: the bound rests on the draw.
    """
    return {
        coin_key(one.canary_id, min(context.example for context in one.contexts)): one
        for one in manifest.canaries
        if one.part == "full" and one.format in FORMATS
        if one.dose and not one.held_out and one.coin
    }


def coin_units(manifest: Manifest, coins: Coins) -> pd.DataFrame:
    """Two units a coin: the planted string, and the one that could have been."""
    return pd.DataFrame.from_records(
        {
            "example": (row := manifest.by_id[key.partition("/")[2]]).id,
            "task": row.task,
            "cluster": one.canary_id,
            "member": member,
            "dose": one.dose,
        }
        for key, one in coins.items()
        for member in (True, False)
    )


def coin_nll(coins: Coins, table: TokenTable | None) -> np.ndarray:
    """Mean NLL of the units, nats per token; NaN where they were not scored."""
    nll = np.full((len(coins), 2), np.nan)
    for i, (key, one) in enumerate(coins.items()):
        if table is not None and key in table and one.coin:
            both = table.columns["nll_mean"][table.rows(key)]
            nll[i] = both[::-1] if one.coin[1] else both
    return nll.ravel()


def epsilon_table(series: Mapping[str, StagedRows]) -> list[dict[str, Any]]:
    """Lower bounds of each series' epsilon: by all its stages, and by the last one.

    Half of the coins are guessed, those whose two scores lie furthest apart; a tie is a
    wrong guess. All bounds of a report hold together at 95 % (Bonferroni).
    """
    known = {name: coins for name, coins in series.items() if len(coins.rows)}
    share = 0.05 / (2 * max(len(known), 1))
    bounds = []
    for (name, coins), of in product(known.items(), (SERIES, LAST)):
        planted, other = coins.scores[of].reshape(-1, 2).T
        gap = planted - other
        guesses = declared_guesses(len(gap))
        surest = np.argsort(-np.abs(gap), kind="stable")[:guesses]
        record: dict[str, Any] = {
            "checkpoint": name,
            "of": of,
            "pairs": len(gap),
            "guesses": guesses,
            "right": int((gap[surest] > 0).sum()),
            "rows": int(coins.rows["dose"].max()),
            "significance": share,
        }
        record |= coin_figures(record, share)
        epsilon = record["epsilon_per_record"]
        key = "canary.bounded" if epsilon > 0 else "canary.bound_of_0"
        told = {**record, "epsilon": epsilon, "declared": True, "assumed": "drawn"}
        bounds.append({**record, "says": sentences.render(key, **told)})
    return bounds
