"""How equally hard text moved beside identifiers."""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_audit.audits.matched.units import (
    CLASS_NAMES,
    FEWEST_ALIKE,
    NO_LOW,
    NONE_ALIKE,
)
from spark_audit.stats import bootstrap, intervals
from spark_audit.stats.estimate import Estimate


def _beyond_alike(train: pd.DataFrame, change: np.ndarray) -> Estimate:
    """Change of matched identifiers minus that of other tokens of their classes.

    Nats per token of the identifiers whose classes all have enough other tokens.
    """
    pii, alike = (train[train["role"] == role] for role in ("pii", "alike"))
    held = alike.groupby("type")["cluster"].nunique()
    letters = [letter for letter in CLASS_NAMES if held.get(letter, 0) >= FEWEST_ALIKE]
    names = [CLASS_NAMES[letter] for letter in letters]
    rare = pii[[*CLASS_NAMES.values()]].drop(columns=names)
    used = pii[(rare == 0).all(axis=1)]
    if used.empty:
        return Estimate.missing(NONE_ALIKE)
    both = pd.concat([used, alike])
    own = (both["role"] == "pii").to_numpy()[:, None]
    other = ~own & (both["type"].to_numpy()[:, None] == np.array(letters, object))
    moved, tokens = change[both.index][:, None], both[["n_tokens"]].to_numpy()
    columns = (own * moved, own * tokens, both[names], other * moved, other * tokens)
    sums = bootstrap.cluster_sums(np.hstack(columns), pd.factorize(both["cluster"])[0])

    def statistic(totals: np.ndarray) -> np.ndarray:
        counts, moved, tokens = np.split(totals[..., 2:], 3, axis=-1)
        expected = (counts * moved / tokens).sum(axis=-1)
        return np.asarray((totals[..., 0] - expected) / totals[..., 1])

    found = intervals.estimate_of(sums, statistic, n=int(used["n_tokens"].sum()))
    if left := len(pii) - len(used):
        note = f"{left} of {len(pii)} identifiers left out: {NONE_ALIKE}"
        found = found.noting(note)
    return found


def pooled_change(spans: pd.DataFrame, change: np.ndarray) -> Estimate:
    """Change of the NLL of some spans, nats per token."""
    columns = np.stack([change[spans.index], spans["n_tokens"]], axis=1)
    codes = pd.factorize(spans["cluster"], sort=True)[0]
    return intervals.ratio_estimate(*bootstrap.cluster_sums(columns, codes).T)


def _low_drift(train: pd.DataFrame, change: np.ndarray) -> Estimate:
    """Change of the NLL of low-sensitivity text, if there is any."""
    low = train[train["role"] == "low"]
    return Estimate.missing(NO_LOW) if low.empty else pooled_change(low, change)
