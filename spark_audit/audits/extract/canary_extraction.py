"""Canaries that come back word for word: their table, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import scipy

from spark_audit.names import BASE
from spark_audit.results import Claim, Finding
from spark_audit.results.findings import Fact
from spark_audit.stats.intervals import clopper_pearson
from spark_audit.stats.sampled_extraction import n_p, n_p_counts

CANARY_P = 0.05
"""One-sided level at which canaries come back more often than held-out ones."""


def canary_table(canaries: pd.DataFrame) -> list[dict[str, Any]]:
    """Canaries that come back, by dose and part.

    In the first of their rows: held-out ones have one row, and more rows are more
    tries. ``greedy_in_any_row`` is no figure to compare.
    """
    found: list[dict[str, Any]] = []
    names = pd.Categorical(canaries["checkpoint"], canaries["checkpoint"].unique())
    groups = canaries.groupby([names, "part", "dose"], observed=True)
    for (name, part, _), chosen in groups:
        dose = int(chosen["dose"].to_numpy(np.int64)[0])
        first = chosen[chosen["first"].astype(bool)]
        hits, n = int(first["greedy"].sum()), len(first)
        low, high = clopper_pearson(hits, n)
        tries = n_p(first["logp_t1"].to_numpy(np.float64))
        anywhere = chosen.groupby("canary_id")["greedy"].any()
        found.append(
            {
                "checkpoint": name,
                "part": part,
                "dose": dose,
                "held_out": dose == 0,
                "canaries": n,
                "rows": len(chosen),
                "greedy": hits,
                "greedy_rate": hits / n,
                "low": low,
                "high": high,
                "greedy_if_ties_lose": int(first["greedy_sure"].sum()),
                "greedy_in_any_row": int(anywhere.sum()),
                **{f"n50_within_{k}": v for k, v in n_p_counts(tries).items()},
            }
        )
    return found


def canary_findings(table: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """What is said of canaries, from :func:`canary_table`."""
    found = []
    for name in dict.fromkeys(r["checkpoint"] for r in table if not r["held_out"]):
        ours = [r for r in table if r["checkpoint"] == name and not r["held_out"]]
        never = [r for r in table if r["checkpoint"] == name and r["held_out"]]
        won, sure, n = _totals(ours)
        guessed, certain, m = _totals(never)
        facts: dict[str, Fact] = {"back": sure, "tied": won - sure, "parts": n}
        facts |= {"held_back": certain, "held_tied": guessed - certain, "held_parts": m}
        facts["highest"] = None if won else max(r["high"] for r in ours)
        tied = won > 0 and not sure
        claim: Claim = "moved"
        says = "canaries"
        p = None if name == BASE else _known_p(ours, never, table)
        if tied:
            claim, says = "not_tested", "canaries_tied"
        elif not won:
            claim = "nothing_shown"
        elif p is not None and p < CANARY_P:
            claim, says = "verbatim", "canaries_back"
        elif p is not None:
            says = "canaries_chance"
        found.append(
            Finding(
                audit="extract",
                checkpoint=str(name),
                claim=claim,
                p=p,
                family="exploratory" if p is None else "primary",
                status="not_resolvable" if tied else "ok",
                says=f"extract.{says}",
                facts=facts,
            )
        )
    return found


def _totals(records: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
    """Hits if ties are won, hits without them, and what was tried."""
    won, sure, n = (
        sum(r[key] for r in records)
        for key in ("greedy", "greedy_if_ties_lose", "canaries")
    )
    return won, sure, n


def _known_p(
    ours: Sequence[Mapping[str, Any]],
    never: Sequence[Mapping[str, Any]],
    table: Sequence[Mapping[str, Any]],
) -> float | None:
    """The p that trained canaries come back beyond held-out ones and beyond the base's.

    By Bonferroni over parts: those of one canary are no independent trials. None where
    there is nothing to compare with.
    """
    first = [r for r in table if r["checkpoint"] == BASE and not r["held_out"]]
    parts = list(dict.fromkeys(r["part"] for r in ours))
    found = []
    for part in parts:
        mine, held, base = (
            _totals([r for r in records if r["part"] == part])
            for records in (ours, never, first)
        )
        sure, n = mine[1:]
        if not (held[2] or base[2]):
            continue
        nulls = [null for null in (held,) if null[2]]
        # Next to a base that returns none, only held-out ones tell what is guessed.
        nulls += [null for null in (base,) if null[0] or not held[2]]
        sides = ([[sure, n - sure], [hits, m - hits]] for hits, _, m in nulls)
        more = partial(scipy.stats.fisher_exact, alternative="greater")
        p = max(float(more(np.array(counts)).pvalue) for counts in sides)
        found.append(min(1.0, len(parts) * p))
    return min(found, default=None)
