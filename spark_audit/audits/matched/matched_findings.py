"""The findings and guards of the matched audit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.identifier_facts import Moved, sides_of
from spark_audit.audits.matched.changes import Occurrences, pooled_change
from spark_audit.audits.matched.contrasts import has_sentence
from spark_audit.audits.matched.matched_claims import (
    contrast_finding,
    memory_findings,
    row_of,
    selectivity_finding,
)
from spark_audit.audits.spans import REPRODUCED
from spark_audit.names import BASE, entry_of
from spark_audit.results import Contrast, Estimate, Finding, Guard, Row
from spark_audit.stats.balance import effective_clusters, smd


def findings(
    rows: Sequence[Row],
    units: pd.DataFrame,
    whole: Occurrences,
    changes: Mapping[str, np.ndarray],
    references: Collection[str],
    tested: Mapping[str, Mapping[str, Moved]],
) -> list[Finding]:
    """What is said of each method.

    Parameters
    ----------
    whole
        All identifiers that are compared.
    changes
        Change of the units' NLL since the reference, nats, by checkpoint; single
        replicates of a method have no finding.
    references
        Checkpoints that score as the matching reference does.
    tested
        The tests of no memory, by checkpoint and group.
    """
    entries = {entry_of(name) for name in changes if entry_of(name) != name}
    by_key = {(r.checkpoint, r.metric, r.of, r.group): r for r in rows}
    found = []
    lost = whole.left_out(units)
    pii = units[(units["split"] == "train") & (units["role"] == "pii")]
    for name, change in changes.items():
        if entry_of(name) != name:
            continue
        of_name = {key[1:]: row for key, row in by_key.items() if key[0] == name}
        seeds, reference = name in entries, name in references
        if not reference:
            doubt = whole.confounded(name)
            found += memory_findings(
                of_name, tested[name], seeds=seeds, doubt=doubt, lost=lost
            )
        own = pooled_change(pii, change)
        found.append(
            selectivity_finding(of_name, own, reference=reference, seeds=seeds)
        )
    return found


def contrast_findings(
    rows: Sequence[Row],
    contrasts: Sequence[Contrast],
    entries: Collection[str],
    ordinary: Collection[str],
) -> list[Finding]:
    """What is said of each contrast that has a sentence.

    Parameters
    ----------
    entries
        Methods that have replicates.
    ordinary
        Checkpoints whose training nobody corrected.
    """
    by_key = {(r.checkpoint, r.metric, r.of, r.group): r for r in rows}
    found = []
    pooled = [row for row in contrasts if row.group == "pooled"]
    for row in contrasts:
        if not has_sentence(row):
            continue
        who = (row.checkpoint, row.baseline)
        beside = {
            one.metric: one for one in pooled if (one.checkpoint, one.baseline) == who
        }
        drift = [by_key.get((n, "low_change", "", "pooled")) for n in who]
        spread = [
            one.value
            for one in pooled
            if (one.metric, one.baseline) == ("did", row.baseline)
            and one.checkpoint in ordinary
            and one.value is not None
        ]
        found.append(
            contrast_finding(
                row,
                beside,
                (drift[0], drift[1]),
                spread if row.checkpoint not in ordinary else (),
                seeds=row.checkpoint in entries,
            )
        )
    return found


UNBALANCED = 0.25
"""Standardised mean difference from which readers are told (Stuart, 2010)."""
BALANCE = "balance of annotated identifiers"


def _row(metric: str, value: float, clusters: int) -> Row:
    """A figure that only a guard shows."""
    shown = Estimate(float(value), clusters=clusters)
    return row_of(shown, checkpoint=BASE, metric=metric)


def alike_guard(whole: Occurrences) -> list[Guard]:
    """Whether identifiers on both sides were equally hard before training, and alike.

    Where chance dealt identifiers to the sides, they are alike by design; of annotated
    ones that is an assumption, which their NLL, length and place can refute.
    """
    if whole.before.value is None:
        return []
    apart, spans = bool(whole.reach), whole.spans
    before = row_of(whole.before, checkpoint=BASE, metric="before")
    guard = Guard(
        name="never-trained identifiers",
        passed=None if apart else True,
        says="guard.before",
        facts={"before": before, "unequal": apart},
    )
    if (spans["form"] > 0).all():
        return [guard]
    return [guard, _balance(spans[spans["form"] == 0])]


def _balance(spans: pd.DataFrame) -> Guard:
    """Whether compared identifiers differ in what can move their likelihood."""
    sides = sides_of(spans)
    cells = sides.cells
    used, trained = cells >= 0, sides.trained[cells >= 0]
    covariates = {
        "nll": spans["ref_sum"] / spans["n_tokens"],
        "length": spans["n_tokens"],
        "place": spans["start"],
    }
    counts = [len(set(sides.clusters[used][side])) for side in (trained, ~trained)]
    # So many standard deviations are no chance, of so few clusters.
    least = max(UNBALANCED, 1.96 * np.sqrt(sum(1 / max(n, 1) for n in counts)))
    apart = {}
    for name, values in covariates.items():
        values = values[used]
        centred = (values - values.groupby(cells[used]).transform("mean")).to_numpy()
        sd = float(centred.std()) if len(centred) else 0.0
        if sd > 0:
            apart[name] = smd(centred[trained], centred[~trained], sd=sd)
    worst = [name for name, value in apart.items() if abs(value) > least]
    facts: dict[str, Any] = {name: float(value) for name, value in apart.items()}
    facts |= {"least": float(least), "worst": worst}
    return Guard(name=BALANCE, passed=not worst, says="guard.balance", facts=facts)


def pair_guards(train: pd.DataFrame) -> list[Guard]:
    """What can void the matched figures, from the reference alone."""
    pii, control = (train[train["role"] == r] for r in ("pii", "control"))
    unmatched = int((train["role"] == "unmatched").sum())
    total = len(pii) + unmatched
    if not total:
        return []
    share = len(pii) / total
    missing = train[train["role"] == "unmatched"]["type"].value_counts()
    worst = [f"{count} {kind}" for kind, count in missing.head(4).items()]
    guards = [
        Guard(
            name="matched share",
            passed=True if share >= 0.5 else None,
            says="guard.matched_share",
            facts={"matched": len(pii), "identifiers": total, "without": worst},
        )
    ]
    if not len(pii):
        return guards
    tokens, clusters = pii["n_tokens"].to_numpy(float), pii["cluster"].nunique()
    gaps = pii["ref_sum"].to_numpy() - control["ref_sum"].to_numpy()
    residual = gaps.sum() / tokens.sum()
    distance = np.quantile(np.abs(gaps) / tokens, 0.95)
    guards.append(
        Guard(
            name="match quality",
            passed=True if abs(residual) <= 0.05 else None,
            says="guard.match_quality",
            facts={
                "residual": _row("residual", residual, clusters),
                "distance": _row("distance", distance, clusters),
            },
        )
    )
    effective = effective_clusters(pii.groupby("cluster")["n_tokens"].sum().to_numpy())
    guards.append(
        Guard(
            name="clusters",
            passed=True if effective >= 10 else None,
            says="guard.clusters",
            facts={"clusters": clusters, "effective": float(effective)},
        )
    )
    return guards


def reproduced_guard(units: pd.DataFrame, change: np.ndarray) -> Guard:
    """Whether the base still scores as the manifest says it did."""
    worst = float((np.abs(change[units.index]) / units["n_tokens"]).max())
    return Guard(
        name="reference reproduced",
        checkpoint=BASE,
        passed=worst <= REPRODUCED,
        says="guard.reproduced",
        facts={
            "worst": _row("reproduced", worst, units["cluster"].nunique()),
            "reproduced": worst <= REPRODUCED,
        },
    )
