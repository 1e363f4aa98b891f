"""Canaries that come back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.extract.rates import CONFIDENCE, Facts
from spark_audit.names import BASE
from spark_audit.results import Claim, Finding
from spark_audit.stats.estimate import Bound
from spark_audit.stats.intervals import clopper_pearson


def canary_findings(canaries: pd.DataFrame) -> Iterator[Finding]:
    """What is said of canaries of each checkpoint.

    Each part counts in the first row of its canary: held-out canaries have one row, and
    more rows are more tries.
    """
    first = canaries[canaries["first"].astype(bool)]
    first = first.assign(n=1, trained=first["dose"] > 0)
    # Parts that come back if ties are won, and surely, of how many.
    by_part = first.groupby(["checkpoint", "trained", "part"], sort=False)
    counts = by_part[["greedy", "greedy_sure", "n"]].sum()
    for name, spans in first[first["trained"]].groupby("checkpoint", sort=False):
        parts = spans["part"].unique()
        ours, never, base = (
            counts.reindex([(*side, part) for part in parts], fill_value=0).to_numpy()
            for side in ((name, True), (name, False), (BASE, True))
        )
        won, sure, n = ours.sum(axis=0).tolist()
        guessed, certain, m = never.sum(axis=0).tolist()
        facts: Facts = {"back": sure, "tied": won - sure, "parts": n}
        facts |= {"held_back": certain, "held_tied": guessed - certain, "held_parts": m}
        fewest = int(spans.groupby(["part", "dose"]).size().min())
        facts["highest"] = None if won else clopper_pearson(0, fewest)[1]
        p = None if name == BASE else _canary_p(ours, never, base)
        bounds = []
        if p is not None:
            # Parts of one canary are no independent trials.
            n_canaries = int(spans.groupby("part").size().max())
            bounds = [Bound(test="hits", value=won / n, n=n_canaries, most=1.0)]
        claim: Claim = "moved"
        says, tied = "canaries", won > 0 and not sure
        if tied:
            claim, says = "not_tested", "canaries_tied"
        elif not won:
            claim = "nothing_shown"
        elif p is not None and p < 1 - CONFIDENCE:
            claim, says = "verbatim", "canaries_back"
        elif p is not None:
            says = "canaries_chance"
        yield Finding(
            audit="extract",
            checkpoint=str(name),
            claim=claim,
            says=f"extract.{says}",
            facts=facts,
            status="not_resolvable" if tied else "ok",
            family="exploratory" if p is None else "primary",
            p=p,
            bounds=bounds,
        )


def _canary_p(*sides: np.ndarray) -> float | None:
    """The p that trained canaries come back beyond held-out ones and beyond the base's.

    By Bonferroni over parts: those of one canary are no independent trials. None where
    there is nothing to compare with.

    Parameters
    ----------
    sides
        Trained canaries, held-out ones, and trained ones at the base, shape
        ``(parts, 3)`` each: what comes back if ties are won, and surely, of how many.
    """
    found = []
    for (_, sure, n), held, first in zip(*sides, strict=True):
        # Next to a base that returns none, only held-out ones tell what is guessed.
        nulls = [held] if held[2] else []
        nulls += [first] if first[2] and (first[0] or not held[2]) else []
        tables = ([[sure, n - sure], [hits, m - hits]] for hits, _, m in nulls)
        more = partial(scipy.stats.fisher_exact, alternative="greater")
        found += (
            [max(more(np.array(table)).pvalue for table in tables)] if nulls else []
        )
    return min(1.0, len(sides[0]) * float(min(found))) if found else None
