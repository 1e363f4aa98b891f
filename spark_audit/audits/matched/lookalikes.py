"""Two checkpoints compared on identifiers, beside tokens that look like theirs.

Kinds of tokens drift unequally in any training: digits as digits do, capitalised words
as those. What identifiers do beyond other tokens of their own classes (prices and years
for numbers, places and firms for names, addresses of pages for those of people) is not
that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.matched.evidence import CLASSES
from spark_audit.results import Contrast, Estimate
from spark_audit.stats.intervals import estimate_of, ratio_estimate

NONE_ALIKE = "no other text has tokens of the identifiers' classes"
FEWEST = 2
"""Clusters that must hold other tokens of a class."""


def own_contrasts(
    name: str, baseline: str, ours: pd.DataFrame, theirs: pd.DataFrame
) -> list[Contrast]:
    """NLL of matched identifiers against the baseline's, and beyond look-alikes.

    Parameters
    ----------
    ours, theirs
        Evidence of the two, with the same rows.
    """
    keys = ["example", "role", "start", "type", "n_tokens"]
    both = ours.merge(theirs[[*keys, "nll_sum"]], on=keys, suffixes=("", "_other"))
    both = both[both["split"] == "train"]
    both = both.assign(apart=both["nll_sum"] - both["nll_sum_other"])
    pii = both[both["role"] == "pii"]
    sums = pii.groupby("cluster")[["apart", "n_tokens"]].sum()
    columns: dict[str, Any] = {
        "audit": "matched",
        "checkpoint": name,
        "baseline": baseline,
        "unit": "nats",
        "null": 0.0,
    }
    own = ratio_estimate(sums["apart"], sums["n_tokens"])
    return [
        Contrast.of_estimate(own, metric="nll_pii", **columns),
        Contrast.of_estimate(_beyond(both, pii), metric="did_alike", **columns),
    ]


def _beyond(both: pd.DataFrame, pii: pd.DataFrame) -> Estimate:
    """Mean over identifiers' tokens minus that over other tokens of their classes."""
    alike = both[both["role"] == "alike"]
    held = alike.groupby("type")["cluster"].nunique()
    known = {n: held.get(letter, 0) >= FEWEST for letter, n in CLASSES.items()}
    used = pii[~(pii[[n for n in known if not known[n]]] > 0).any(axis=1)]
    if used.empty:
        return Estimate.missing(NONE_ALIKE)
    letters = [letter for letter, name in CLASSES.items() if known[name]]
    names = [CLASSES[letter] for letter in letters]
    table = _table(used, alike, letters, names)
    size = len(letters)

    def statistic(totals: np.ndarray) -> np.ndarray:
        own, tokens = totals[..., 0], totals[..., 1]
        counts, sums, others = (
            totals[..., 2 + i * size : 2 + (i + 1) * size] for i in range(3)
        )
        return np.asarray((own - (counts * sums / others).sum(-1)) / tokens)

    found = estimate_of(table, statistic, n=int(used["n_tokens"].sum()))
    left = len(pii) - len(used)
    if not left:
        return found
    return found.noting(f"{left} of {len(pii)} identifiers left out: {NONE_ALIKE}")


def _table(
    used: pd.DataFrame, alike: pd.DataFrame, letters: Sequence[str], names: list[str]
) -> np.ndarray:
    """Per cluster: changes, tokens, tokens by class; of others changes and tokens."""
    own = used.groupby("cluster")[["apart", "n_tokens", *names]].sum()
    other = alike[alike["type"].isin(letters)].pivot_table(
        index="cluster", columns="type", values=["apart", "n_tokens"], aggfunc="sum"
    )
    other = other.reindex(
        columns=[(v, c) for v in ("apart", "n_tokens") for c in letters]
    )
    clusters = own.index.union(other.index)
    parts = [part.reindex(clusters).fillna(0.0).to_numpy() for part in (own, other)]
    return np.concatenate(parts, axis=1)
