"""What stands beside a membership figure, from the evidence of ``mia`` alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.contract import BASE
from spark_audit.audits.mia.scores import FEWEST
from spark_audit.audits.mia.texts import Sides, label_test, shift
from spark_audit.audits.wording import figure, p_value
from spark_audit.provenance import seed_for
from spark_audit.results import Estimate, Guard, Status, number

FEW = 100
TEXTS = "member and non-member texts differ: what counts is how far it is above the "
TEXTS += "AUC of the texts alone"
LABELS = "INVALID: labels of members and non-members differ"
DUPLICATES = "near-duplicates stand on both sides: the AUC is drawn towards 0.5"
APART = "the sides differ before training: a change can be generalisation, not "
APART += "membership"
UNTRAINED = "the untrained model's AUC is not 0.5 either: what counts is the change"
UNGUARDED = "the untrained model's AUC of loss is not 0.5 and this score has no AUC of "
UNGUARDED += "its own there: the sides differ before training"
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
    """

    guards: list[Guard] = field(default_factory=list)
    void: dict[str, tuple[Status, str]] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)
    texts: bool = False
    apart: set[str] = field(default_factory=set)
    label_p: float | None = None

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
    facts: pd.DataFrame, base: Mapping[str, Estimate] | None, *, seed: int
) -> Findings:
    """Judge the sets and the untrained model.

    Parameters
    ----------
    facts
        One checkpoint's evidence: a row an example of the estimated tasks.
    base
        Attack -> pooled AUC of the untrained model; ``None`` where it was not scored.
    """
    found = Findings()
    _rows(found, facts)
    _blind(found, facts)
    _duplicates(found, facts)
    _labels(found, facts, seed)
    _covariates(found, facts)
    _untrained(found, base)
    return found


def sides_of(facts: pd.DataFrame) -> Sides:
    """Sides with integer codes of clusters and tasks."""
    codes = [
        np.unique(facts[name].to_numpy(str), return_inverse=True)[1].astype(np.int64)
        for name in ("cluster", "task")
    ]
    return Sides(facts["member"].to_numpy(bool), *codes)


def covariate_table(facts: pd.DataFrame, label_p: float | None) -> list[dict[str, Any]]:
    """Length and compressed size of members against non-members, by task."""
    found: list[dict[str, Any]] = []
    for task in dict.fromkeys(facts["task"]):
        part = facts[facts["task"] == task]
        for name in ("length", "zlib_bytes"):
            ours, theirs = (
                part.loc[part["member"] == side, name].to_numpy(np.float64)
                for side in (True, False)
            )
            if (apart := shift(ours, theirs)) is not None:
                row = {"task": task, "covariate": name}
                found.append(row | {"ks": apart.ks, "p": apart.p, "smd": apart.smd})
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
    detail = f"{members} members and {others} non-members in {tasks} "
    detail += f"{'task' if tasks == 1 else 'tasks'} with at least {FEWEST} of each"
    if least < 2:
        found.guards.append(_guard("rows", False, f"{detail}: nothing is estimable"))
        return
    se = np.sqrt((members + others + 1) / (12 * members * others))
    detail += f"; an AUC must differ from 0.5 by about {2.8 * se:.3f} to be seen"
    found.guards.append(_guard("rows", True if least >= FEW else None, detail))


def _blind(found: Findings, facts: pd.DataFrame) -> None:
    value, p = (_fact(facts, name) for name in ("blind_auc", "blind_p"))
    if value is None or p is None:
        detail = "the blind text classifier was not run: not asked for, no text, or "
        detail += "too few clusters. That the sets are alike is not shown"
        found.guards.append(_guard("blind text classifier", None, detail))
        return
    detail = (
        f"texts alone give an out-of-fold AUC of {number(value)} "
        f"({number(_fact(facts, 'blind_null_low'))} to "
        f"{number(_fact(facts, 'blind_null_high'))} without a difference), "
        f"{p_value(p, places=3)}, by {int(_fact(facts, 'blind_permutations') or 0)} "
        f"permutations, over {int(_fact(facts, 'blind_rows') or 0)} rows"
    )
    passed: bool | None = True
    if p < 0.05:
        passed = False
        found.texts = True
        found.beside[ALL] = TEXTS
        detail = f"member and non-member texts differ: {detail}; membership is claimed "
        detail += "only of a score whose AUC is above that by more than their "
        detail += "difference's interval"
    elif value > 0.55:
        passed = None
        detail += "; not validated: too few rows to tell"
    found.guards.append(_guard("blind text classifier", passed, detail))


def _duplicates(found: Findings, facts: pd.DataFrame) -> None:
    known = _fact(facts, "duplicates_left")
    if known is None:
        detail = "not looked for: there is no text"
        found.guards.append(_guard("near-duplicates", None, detail))
        return
    left, gone = int(known), int(_fact(facts, "duplicates_removed") or 0)
    detail = f"{gone} rows with a near-duplicate in the other split were left out; "
    detail += f"{left or 'none'} remain"
    passed: bool | None = True
    if left > BLURRED * len(facts):
        passed = False
        void: Status = "invalid" if left > UNUSABLE * len(facts) else "insensitive"
        found.void[ALL] = (void, DUPLICATES)
        detail += f": {DUPLICATES}"
    elif left:
        passed = None
    found.guards.append(_guard("near-duplicates", passed, detail))


def _labels(found: Findings, facts: pd.DataFrame, seed: int) -> None:
    p = label_test(
        sides_of(facts),
        facts["label"].to_numpy(np.int64),
        seed=seed_for(seed, "mia", "labels"),
    )
    found.label_p = p
    if p is None:
        detail = "no task has two labels to compare"
        found.guards.append(_guard("label balance", None, detail))
        return
    detail = (
        f"labels of members against non-members: permutation {p_value(p, places=3)}"
    )
    if p < 0.01:
        found.void["response"] = ("invalid", LABELS)
        detail += "; `response` is void, the other scores may be shifted too"
    passed = False if p < 0.01 else None if p < 0.05 else True
    found.guards.append(_guard("label balance", passed, detail))


def _covariates(found: Findings, facts: pd.DataFrame) -> None:
    rows = covariate_table(facts, None)
    apart = [r for r in rows if r["p"] < 0.01 and abs(r["smd"] or 0.0) > 0.1]
    detail = "text length and compressed size are alike on both sides"
    if not rows:
        detail = "text length and compressed size cannot be compared"
    if apart:
        detail = "differ between the sides: " + ", ".join(
            f"{r['covariate']} of {r['task']} (SMD {number(r['smd'], 2)})"
            for r in apart
        )
    passed = None if apart or not rows else True
    found.guards.append(_guard("text covariates", passed, detail))


def _untrained(found: Findings, base: Mapping[str, Estimate] | None) -> None:
    name = "untrained model"
    if base is None:
        detail = f"no checkpoint {BASE!r} was scored: that its AUC is 0.5, as it must "
        detail += "be, is not shown, and `reference` cannot be computed"
        found.guards.append(_guard(name, None, detail))
        return
    alone = []
    for attack, estimate in base.items():
        if estimate.value is None or estimate.low is None or estimate.high is None:
            alone.append(attack)
            continue
        holds = estimate.low <= 0.5 <= estimate.high
        detail = f"{attack}: AUC {figure(estimate)} of a model that saw neither side"
        if not holds:
            found.apart.add(attack)
            found.beside[attack] = UNTRAINED
            detail += "; it must be 0.5: a change of this score can be generalisation"
            if attack == "loss":
                detail += ", and so can `reference`, which is such a change, and every "
                detail += "other score"
            detail += "; membership is claimed only above the AUC of the texts alone"
        found.guards.append(
            Guard(name=name, checkpoint=BASE, passed=holds, detail=f"{detail}.")
        )
    if "loss" in found.apart:
        found.apart |= set(base)
        for attack in alone:
            found.beside[attack] = UNGUARDED


def _guard(name: str, passed: bool | None, detail: str) -> Guard:
    return Guard(name=name, passed=passed, detail=f"{detail}.")


def _fact(facts: pd.DataFrame, name: str) -> float | None:
    """A fact of the sets, the same on every row."""
    if not len(facts):
        return None
    value = float(facts[name].iloc[0])
    return None if np.isnan(value) else value
