"""Guards and notes of membership figures, from the evidence of ``mia`` alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import guard
from spark_audit.audits.mia.scores import FEWEST
from spark_audit.audits.mia.texts import label_test, shift
from spark_audit.names import BASE
from spark_audit.provenance import seed_for
from spark_audit.results import Estimate, Guard, Hits, Row, Status, number, side_of
from spark_audit.results.findings import Fact
from spark_audit.stats.roc import Design

FEW = 100
TEXTS = (
    "texts of members and non-members differ, so the AUC must exceed that of the texts "
    "alone"
)
LABELS = "INVALID: labels of members and non-members differ"
DUPLICATES = "both sides contain near-duplicates, which pull the AUC towards 0.5"
APART = (
    "the two sides differ before training, so a change can be generalisation instead "
    "of membership"
)
UNTRAINED = "the AUC of the untrained model is not 0.5 either: only the change counts"
UNGUARDED = (
    "the AUC of loss is not 0.5 for the untrained model, and it has no AUC of this "
    "score: the two sides differ before training"
)
BLURRED, UNUSABLE = 0.01, 0.2
"""Shares of rows with a near-duplicate on the other side: figures are drawn to chance,
and are of no use."""
ALL = ""


@dataclass
class Findings:
    """Guards, and what they say of which score (:data:`ALL`: of all of them).

    ``void`` takes a score's status, for rows that cannot be used; ``beside`` is noted
    of a figure that stands. ``texts`` is whether the texts alone tell the sides apart,
    ``apart`` are scores a change of which is no clean evidence of membership
    (:data:`APART`): those whose AUC of the untrained model is not 0.5, and all of them
    where that is so of ``loss``. A score of few tokens passes where the sides differ.
    ``alone`` is what the texts alone tell.
    """

    alone: Mapping[str, float] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    void: dict[str, tuple[Status, str]] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)
    texts: bool = False
    apart: set[str] = field(default_factory=set)
    label_p: float | None = None

    def add(self, name: str, says: str, facts: Mapping[str, Fact], **more: Any) -> None:
        """Add a guard, by default a warning."""
        self.guards.append(guard(name, f"mia.{says}", facts, **more))

    def of(self, attack: str, *, change: bool = False) -> tuple[Status, str]:
        """Status and notes that a score's figures, or changes of them, must bear."""
        status, reason = self.void.get(attack) or self.void.get(ALL) or ("ok", "")
        own = self.beside.get(attack, "")
        if change and attack in self.apart:
            own = APART
        notes = dict.fromkeys((reason, own, self.beside.get(ALL, "")))
        return status, "; ".join(note for note in notes if note)

    def doubted(self, attack: str) -> bool:
        """Whether the sides differ in what is no training: nothing is clean then."""
        return self.texts or attack in self.apart


def findings(
    facts: pd.DataFrame,
    alone: Mapping[str, float],
    base: Mapping[str, Estimate] | None,
    *,
    seed: int,
) -> Findings:
    """Judge the sets and the untrained model.

    Parameters
    ----------
    facts
        One checkpoint's evidence: a row an example of the estimated tasks.
    alone
        What the texts alone tell.
    base
        Attack -> pooled AUC of the untrained model; ``None`` where it was not scored.
    """
    found = Findings(alone if len(facts) else {})
    _rows(found, facts)
    _blind(found, facts)
    _duplicates(found, len(facts))
    _labels(found, facts, seed)
    _covariates(found, facts)
    _untrained(found, base)
    return found


def covariate_table(facts: pd.DataFrame, label_p: float | None) -> list[dict[str, Any]]:
    """Length and compressed size of members against non-members, by task."""
    found: list[dict[str, Any]] = []
    for task, part in facts.groupby("task", sort=False):
        for name in ("length", "zlib_bytes"):
            ours, theirs = (
                part.loc[part["member"] == side, name].to_numpy(np.float64)
                for side in (True, False)
            )
            if (apart := shift(ours, theirs)) is not None:
                found.append({"task": task, "covariate": name, **apart})
    if label_p is not None:
        row = {"task": "all", "covariate": "label"}
        found.append(row | {"ks": None, "p": label_p, "smd": None})
    return found


def _rows(found: Findings, facts: pd.DataFrame) -> None:
    members = int(facts["member"].sum())
    others = len(facts) - members
    clusters = facts.groupby("member")["cluster"].nunique()
    least = int(min(clusters.get(True, 0), clusters.get(False, 0)))
    tasks = facts["task"].nunique()
    seen: float | None = None
    if least > 1:
        seen = 2.8 * float(np.sqrt((members + others + 1) / (12 * members * others)))
    passed = False if seen is None else True if least >= FEW else None
    counts = {"members": members, "others": others, "tasks": tasks, "fewest": FEWEST}
    told = {**counts, "seen": seen}
    found.add("rows", "rows", told, passed=passed)


def _blind(found: Findings, facts: pd.DataFrame) -> None:
    name, alone = "blind text classifier", found.alone
    if "blind_p" not in alone:
        found.add(name, "blind_missing", {})
        return
    value, p = alone["blind_value"], alone["blind_p"]
    passed: bool | None = True
    says = "alike"
    if p < 0.05:
        passed, says = False, "unlike"
        found.texts = True
        found.beside[ALL] = TEXTS
    elif value > 0.55:
        passed, says = None, "unsure"
    columns: dict[str, Any] = {"audit": "mia", "checkpoint": "", "metric": "auc"}
    ends = {name: alone[f"blind_{name}"] for name in ("null_low", "null_high")}
    columns |= {"of": "blind", "clusters": facts["cluster"].nunique(), **ends}
    auc = Row(value=value, **columns)
    values: dict[str, Fact] = {"p": p, "auc": auc}
    values |= {of: alone[f"blind_{of}"] for of in ("permutations", "rows")}
    found.add(name, f"blind_{says}", values, passed=passed)


def _duplicates(found: Findings, rows: int) -> None:
    name, known = "near-duplicates", found.alone.get("duplicates_left")
    if known is None:
        found.add(name, "duplicates_missing", {})
        return
    left = Hits(count=int(known), of=rows)
    blurred = known > BLURRED * rows
    if blurred:
        void: Status = "invalid" if known > UNUSABLE * rows else "insensitive"
        found.void[ALL] = (void, DUPLICATES)
    removed = found.alone["duplicates_removed"]
    passed = False if blurred else None if known else True
    values: dict[str, Fact] = {"removed": removed, "left": left, "blurred": blurred}
    found.add(name, "duplicates", values, passed=passed)


def _labels(found: Findings, facts: pd.DataFrame, seed: int) -> None:
    p = label_test(
        Design.of(facts["member"], facts["cluster"], facts["task"]),
        facts["label"].to_numpy(np.int64),
        seed=seed_for(seed, "mia", "labels"),
    )
    found.label_p = p
    if p is None:
        found.add("label balance", "labels_missing", {})
        return
    if p < 0.01:
        found.void["response"] = ("invalid", LABELS)
    passed = False if p < 0.01 else None if p < 0.05 else True
    values = {"p": p, "void": "response" in found.void}
    found.add("label balance", "labels", values, passed=passed)


def _covariates(found: Findings, facts: pd.DataFrame) -> None:
    rows = covariate_table(facts, None)
    apart = [r for r in rows if r["p"] < 0.01 and abs(r["smd"] or 0.0) > 0.1]
    passed = None if apart or not rows else True
    says = "apart" if apart else "alike" if rows else "missing"
    values = {
        "covariates": [r["covariate"] for r in apart],
        "tasks": [r["task"] for r in apart],
        "smds": [number(r["smd"], 2) for r in apart],
    }
    found.add("text covariates", f"covariates_{says}", values, passed=passed)


def _untrained(found: Findings, base: Mapping[str, Estimate] | None) -> None:
    name = "untrained model"
    if base is None:
        found.add(name, "untrained_missing", {})
        return
    alone = []
    for attack, estimate in base.items():
        if (side := side_of(estimate, 0.5)) is None:
            alone.append(attack)
            continue
        holds = side == 0
        if not holds:
            found.apart.add(attack)
            found.beside[attack] = UNTRAINED
        auc = Row.of_estimate(
            estimate, audit="mia", checkpoint=BASE, metric="auc", of=attack
        )
        values: dict[str, Fact] = {"auc": auc, "holds": holds}
        found.add(name, "untrained", values, passed=holds, checkpoint=BASE)
    if "loss" in found.apart:
        found.apart |= set(base)
        for attack in alone:
            found.beside[attack] = UNGUARDED
