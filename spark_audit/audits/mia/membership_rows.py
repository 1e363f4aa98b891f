"""Rows, contrasts and tables of the membership audit, as the guards let them stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from spark_audit.audits.mia.estimates import Group, Known
from spark_audit.audits.mia.membership_guards import Findings
from spark_audit.audits.mia.scores import DECLARED, FPRS
from spark_audit.results import Contrast, Estimate, Row
from spark_audit.sentences import p_value
from spark_audit.stats.power import NOT_DETECTED
from spark_audit.stats.roc import auc_estimate

CURVE = 20
"""Points of a ROC curve in the report."""
MARGIN = 0.05
"""An AUC is called equivalent to chance within this distance of 0.5."""


def rows_of(group: Group, name: str, attack: str, judged: Findings) -> Iterator[Row]:
    """AUC and rates of one score, with what the guards say of it."""
    columns = {"audit": "mia", "checkpoint": name, "group": group.name, "of": attack}
    for metric in ("auc", *FPRS):
        null: dict[str, float | None] = {"null": 0.5 if metric == "auc" else None}
        if metric == "auc":
            estimate = group.auc(name, attack)
        else:
            estimate = group.tpr(name, attack, metric)
            if estimate.value is not None:
                null |= group.chance(name, attack, metric)
        if attack == "blind":
            estimate, null = _blind(group, estimate, null, metric, judged.alone)
        else:
            estimate = _voided(estimate, judged, attack)
            if metric == "auc":
                estimate = _noted(estimate, group)
        yield Row.of_estimate(estimate, metric=metric, **columns, **null)


def _noted(estimate: Estimate, group: Group) -> Estimate:
    """Over which tasks the mean is, and whether chance is excluded."""
    if estimate.value is None:
        return estimate
    if group.name == "pooled":
        count = group.known.facts["task"].iloc[group.rows].nunique()
        estimate = estimate.noting(
            f"mean over {count} tasks" if count > 1 else "1 task"
        )
    if estimate.status != "ok" or estimate.low is None or estimate.high is None:
        return estimate
    if estimate.low <= 0.5 <= estimate.high and estimate.mde is not None:
        return estimate.noting(NOT_DETECTED)
    return estimate


def _voided(
    estimate: Estimate, judged: Findings, attack: str, *, change: bool = False
) -> Estimate:
    """The estimate with the status and notes that the guards give it."""
    status, reason = judged.of(attack, change=change)
    if estimate.value is None:
        return estimate
    if status == "ok":
        status = estimate.status
    note = "; ".join(text for text in (reason, estimate.note) if text)
    return replace(estimate, status=status, note=note)


def _blind(
    group: Group,
    estimate: Estimate,
    null: dict[str, float | None],
    metric: str,
    alone: Mapping[str, float],
) -> tuple[Estimate, dict[str, float | None]]:
    """The blind classifier's figure, compared with permutations, without interval.

    Intervals of a cross-validated AUC that take its scores as given are too narrow.
    """
    if estimate.value is None:
        return estimate, null
    bare = Estimate(estimate.value, n=estimate.n, clusters=estimate.clusters)
    bare = replace(bare, status=estimate.status)
    bare = bare.noting("cross-validated, without a model")
    if metric != "auc" or group.name != "pooled":
        return bare, null
    band: dict[str, float | None] = {
        name: alone[f"blind_{name}"] for name in ("null", "null_low", "null_high")
    }
    p, drawn = p_value(alone["blind_p"]), alone["blind_permutations"]
    return bare.noting(f"permutation {p}, {drawn} permutations"), band


def contrasts_of(
    group: Group, name: str, other: str, attack: str, judged: Findings
) -> Iterator[Contrast]:
    """AUC and rates of one score minus those of another checkpoint."""
    columns = {"audit": "mia", "checkpoint": name, "group": group.name, "of": attack}
    for metric, estimate, p in group.differences((name, attack), (other, attack)):
        shown = _voided(estimate, judged, attack, change=True)
        figure: dict[str, Any] = {"metric": metric, "p": p, "null": 0.0}
        yield Contrast.of_estimate(shown, baseline=other, **columns, **figure)


def all_rows_table(known: Known, names: list[str]) -> list[dict[str, Any]]:
    """AUC with all rows in one, tasks mixed, and whether it is equivalent to 0.5."""
    found: list[dict[str, Any]] = []
    for name in names:
        for attack in DECLARED:
            values = known.scores[name][attack]
            rows = np.flatnonzero(np.isfinite(values))
            if not len(rows):
                continue
            estimate = auc_estimate(known.design(rows, by_task=False), values[rows])
            record: dict[str, Any] = {"checkpoint": name, "of": attack}
            record["auc"] = estimate.value
            record |= {key: getattr(estimate, key) for key in ("low", "high", "n")}
            record["equivalent_to_chance"] = None
            if estimate.value is not None and estimate.se:
                # Two one-sided tests (Schuirmann 1987) at 5% each.
                reach = float(scipy.special.ndtri(0.95)) * estimate.se
                apart = abs(estimate.value - 0.5) + reach
                record["equivalent_to_chance"] = apart < MARGIN
            found.append(record)
    return found


def curve_table(pooled: Group, names: list[str]) -> list[dict[str, Any]]:
    """Points of the ROC curves, with the band of a score that knows nothing.

    Budgets of false positives run from what one non-member of the smallest task
    allows to 1; a rate is the mean over tasks, as in the rows.
    """
    found = []
    for name in names:
        for attack in DECLARED:
            if pooled.usable(name, attack):
                continue
            drawn, _ = pooled.drawn((name, attack))
            held = [len(others) for _, others in drawn.design.tasks]
            if not held or min(held) < 2:
                continue
            # A hair above, or the smallest task's first false positive is lost.
            for fpr in np.geomspace(1 / min(held) * (1 + 1e-9), 0.99, CURVE):
                band = pooled.band(drawn, float(fpr))
                rate = pooled.rate(name, attack, drawn, float(fpr))
                if band is None or rate is None:
                    continue
                point = {"checkpoint": name, "of": attack, "fpr": float(fpr)}
                ends = {"chance_low": band.low, "chance_high": band.high}
                found.append({**point, "tpr": rate, **ends})
    return found
