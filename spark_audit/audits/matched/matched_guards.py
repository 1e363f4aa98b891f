"""The guards of the matched audit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

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


def _warns(name: str, says: str, sound: bool, **facts: Fact) -> Guard:
    """A guard that is a warning where it does not hold."""
    return Guard(name=name, passed=sound or None, says=f"guard.{says}", facts=facts)


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
    yield _warns(name, "before", not apart, before=before, unequal=apart)
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
    return Guard(name=BALANCE, passed=not worst, says="guard.balance", facts=facts)


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
    yield _warns(
        "matched share",
        "matched_share",
        bool(len(pii) / total >= 0.5 and half.all()),
        matched=len(pii),
        identifiers=total,
        without=[
            f"{kind} {missing}/{count}"
            for kind, missing, count, _ in types[:4].itertuples()
            if missing
        ],
    )
    if not len(pii):
        return
    tokens, clusters = pii["n_tokens"].to_numpy(float), pii["cluster"].nunique()
    gaps = pii["ref_sum"].to_numpy() - control["ref_sum"].to_numpy()
    residual = gaps.sum() / tokens.sum()
    yield _warns(
        "match quality",
        "match_quality",
        bool(abs(residual) <= 0.05),
        residual=_row("residual", residual, clusters),
        distance=_row("distance", np.quantile(np.abs(gaps) / tokens, 0.95), clusters),
    )
    effective = effective_clusters(pii.groupby("cluster")["n_tokens"].sum().to_numpy())
    yield _warns(
        "clusters", "clusters", effective >= 10, clusters=clusters, effective=effective
    )


def reproduced_guard(units: pd.DataFrame, change: np.ndarray) -> Guard:
    """Whether the base still scores as the manifest says it did."""
    worst = float((np.abs(change[units.index]) / units["n_tokens"]).max())
    shown = _row("reproduced", worst, units["cluster"].nunique())
    passed = worst <= REPRODUCED
    return Guard(
        name="reference reproduced",
        checkpoint=BASE,
        passed=passed,
        says="guard.reproduced",
        facts={"worst": shown, "reproduced": passed},
    )
