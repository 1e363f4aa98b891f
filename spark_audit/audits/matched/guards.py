"""Checks of the matching that stand beside its figures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from spark_audit.audits.base import guard
from spark_audit.audits.identifiers import (
    sides_of,
)
from spark_audit.audits.matched.units import UnitScores, _row, row_of
from spark_audit.names import BASE
from spark_audit.results import Guard
from spark_audit.results.findings import Fact
from spark_audit.stats import balance

FEWEST_REPLICATES = 100

UNBALANCED = 0.25
"""Standardised mean difference from which readers are told (Stuart, 2010)."""

MIN_IDENTIFIERS_OF_TYPE = 10
"""Identifiers of a type from which its share with a control is judged."""

BALANCE_GUARD = "balance of annotated identifiers"


def _balance(spans: pd.DataFrame) -> Guard:
    """Whether compared identifiers differ in what can move their likelihood."""
    sides = sides_of(spans)
    kept = sides.cells >= 0
    used, cells, trained = spans[kept], sides.cells[kept], sides.trained[kept]
    counts = [used["cluster"][side].nunique() for side in (trained, ~trained)]
    # So many standard deviations are no chance, of so few clusters.
    least = max(UNBALANCED, 1.96 * np.sqrt(sum(1 / max(n, 1) for n in counts)))
    nll = used["ref_sum"] / used["n_tokens"]
    covariates = {"nll": nll, "length": used["n_tokens"], "place": used["start"]}
    centred = pd.DataFrame(covariates).groupby(cells).transform(lambda x: x - x.mean())
    apart: dict[str, float] = {}
    for name, sd in centred.std(ddof=0).items():
        values = centred[name].to_numpy()
        if sd > 0:
            apart[str(name)] = balance.smd(values[trained], values[~trained], sd=sd)
    worst = [name for name, value in apart.items() if abs(value) > least]
    facts: dict[str, Fact] = {**apart, "least": float(least), "worst": worst}
    return guard(BALANCE_GUARD, "balance", facts, passed=not worst)


def _guards(known: UnitScores) -> Iterator[Guard]:
    """What can void the figures, from the reference alone.

    And whether the base still scores as the manifest says it did. Where chance dealt
    identifiers to the sides, they were equally hard before training by design; of
    annotated ones that is an assumption, which their text, NLL, length and place can
    refute.
    """
    units, whole = known.units, known.sides[0]
    if BASE in known.nll:
        worst = _row("reproduced", known.worst[BASE], units["cluster"].nunique())
        is_reproduced = BASE in known.references
        yield guard(
            "reference reproduced",
            "reproduced",
            {"worst": worst, "reproduced": is_reproduced},
            passed=is_reproduced,
            checkpoint=BASE,
        )
    yield from _pair_guards(known.train)
    if whole.before.value is None:
        return
    apart, annotated = bool(whole.reach), whole.spans["form"] == 0
    before = row_of(whole.before, checkpoint=BASE, metric="before")
    facts: dict[str, Fact] = {"before": before, "unequal": apart}
    name = "never-trained identifiers"
    yield guard(name, "before", facts, passed=None if apart else True)
    if annotated.any():
        facts = {**whole.by_text(BASE), "apart": whole.told_apart}
        passed = (None if "fewest" in facts else False) if whole.told_apart else True
        yield guard("text of annotated identifiers", "by_text", facts, passed=passed)
        yield _balance(whole.spans[annotated])


def _pair_guards(train: pd.DataFrame) -> Iterator[Guard]:
    """Whether enough identifiers have a control, and one that is as hard."""
    pii, control = train[train["role"] == "pii"], train[train["role"] == "control"]
    every = train[train["role"].isin(["pii", "unmatched"])]
    if not (total := len(every)):
        return
    lost = every["role"].eq("unmatched").groupby(every["type"])
    types = lost.agg(["sum", "size", "mean"]).sort_values("mean", ascending=False)
    half = types.loc[types["size"] >= MIN_IDENTIFIERS_OF_TYPE, "mean"] <= 0.5
    share: dict[str, Fact] = {"matched": len(pii), "identifiers": total}
    share["without"] = [
        f"{kind} {missing}/{count}"
        for kind, missing, count, _ in types[:4].itertuples()
        if missing
    ]
    sound = len(pii) / total >= 0.5 and bool(half.all())
    yield guard("matched share", "matched_share", share, passed=sound or None)
    if not len(pii):
        return
    tokens = pii["n_tokens"].to_numpy(float)
    clusters = pii["cluster"].nunique()
    gaps = pii["ref_sum"].to_numpy() - control["ref_sum"].to_numpy()
    residual = gaps.sum() / tokens.sum()
    worst = float(np.quantile(np.abs(gaps) / tokens, 0.95))
    quality = {"residual": _row("residual", residual, clusters)}
    quality["distance"] = _row("distance", worst, clusters)
    sound = bool(abs(residual) <= 0.05)
    yield guard("match quality", "match_quality", quality, passed=sound or None)
    effective = balance.effective_clusters(
        pii.groupby("cluster")["n_tokens"].sum().to_numpy()
    )
    counts = {"clusters": clusters, "effective": effective}
    yield guard("clusters", "clusters", counts, passed=effective >= 10 or None)
