"""The guards of the matched audit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from spark_audit.audits.base import guard
from spark_audit.audits.identifier_facts import sides_of
from spark_audit.audits.matched.changes import Occurrences
from spark_audit.audits.matched.contrasts import row_of
from spark_audit.audits.spans import REPRODUCED
from spark_audit.names import BASE
from spark_audit.results import Estimate, Guard, Row
from spark_audit.results.findings import Fact
from spark_audit.stats.balance import effective_clusters, smd

UNBALANCED = 0.25
"""Standardised mean difference from which readers are told (Stuart, 2010)."""
FEW = 10
"""Identifiers of a type from which its share with a control is judged."""
BALANCE = "balance of annotated identifiers"


def _row(metric: str, value: float, clusters: int) -> Row:
    """A figure that only a guard shows."""
    shown = Estimate(float(value), clusters=clusters)
    return row_of(shown, checkpoint=BASE, metric=metric)


def alike_guard(whole: Occurrences) -> Iterator[Guard]:
    """Whether identifiers on both sides were equally hard before training, and alike.

    Where chance dealt identifiers to the sides, they are alike by design; of annotated
    ones that is an assumption, which their NLL, length and place can refute.
    """
    if whole.before.value is None:
        return
    apart, annotated = bool(whole.reach), whole.spans["form"] == 0
    before = row_of(whole.before, checkpoint=BASE, metric="before")
    name = "never-trained identifiers"
    facts: dict[str, Fact] = {"before": before, "unequal": apart}
    yield guard(name, "before", facts, passed=None if apart else True)
    if annotated.any():
        yield _balance(whole.spans[annotated])


def _balance(spans: pd.DataFrame) -> Guard:
    """Whether compared identifiers differ in what can move their likelihood."""
    sides = sides_of(spans)
    used, cells = spans[sides.cells >= 0], sides.cells[sides.cells >= 0]
    trained, clusters = (
        one[sides.cells >= 0] for one in (sides.trained, sides.clusters)
    )
    counts = [len(set(clusters[side])) for side in (trained, ~trained)]
    # So many standard deviations are no chance, of so few clusters.
    least = max(UNBALANCED, 1.96 * np.sqrt(sum(1 / max(n, 1) for n in counts)))
    nll = used["ref_sum"] / used["n_tokens"]
    covariates = {"nll": nll, "length": used["n_tokens"], "place": used["start"]}
    apart = {}
    for name, values in covariates.items():
        centred = (values - values.groupby(cells).transform("mean")).to_numpy()
        sd = float(centred.std()) if len(centred) else 0.0
        if sd > 0:
            apart[name] = smd(centred[trained], centred[~trained], sd=sd)
    worst = [name for name, value in apart.items() if abs(value) > least]
    facts: dict[str, Fact] = {**apart, "least": float(least), "worst": worst}
    return guard(BALANCE, "balance", facts, passed=not worst)


def pair_guards(train: pd.DataFrame) -> Iterator[Guard]:
    """What can void the matched figures, from the reference alone."""
    pii, control, unmatched = (
        train[train["role"] == role] for role in ("pii", "control", "unmatched")
    )
    if not (total := len(pii) + len(unmatched)):
        return
    lost = train["role"].eq("unmatched")[train["role"] != "control"]
    types = lost.groupby(train["type"]).agg(["sum", "size", "mean"])
    types = types.sort_values("mean", ascending=False)
    half = types.loc[types["size"] >= FEW, "mean"] <= 0.5
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
    tokens, clusters = pii["n_tokens"].to_numpy(float), pii["cluster"].nunique()
    gaps = pii["ref_sum"].to_numpy() - control["ref_sum"].to_numpy()
    residual = gaps.sum() / tokens.sum()
    worst = float(np.quantile(np.abs(gaps) / tokens, 0.95))
    figures = {"residual": residual, "distance": worst}
    quality = {name: _row(name, one, clusters) for name, one in figures.items()}
    sound = bool(abs(residual) <= 0.05)
    yield guard("match quality", "match_quality", quality, passed=sound or None)
    effective = effective_clusters(pii.groupby("cluster")["n_tokens"].sum().to_numpy())
    counts = {"clusters": clusters, "effective": effective}
    yield guard("clusters", "clusters", counts, passed=effective >= 10 or None)


def reproduced_guard(units: pd.DataFrame, change: np.ndarray) -> Guard:
    """Whether the base still scores as the manifest says it did."""
    worst = float((np.abs(change[units.index]) / units["n_tokens"]).max())
    shown = _row("reproduced", worst, units["cluster"].nunique())
    facts: dict[str, Fact] = {"worst": shown, "reproduced": worst <= REPRODUCED}
    name, told = "reference reproduced", {"checkpoint": BASE}
    return guard(name, "reproduced", facts, passed=worst <= REPRODUCED, **told)
