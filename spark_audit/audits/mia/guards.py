"""Checks of the rows that membership inference compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.base import guard
from spark_audit.audits.mia import estimates, score_tables
from spark_audit.audits.mia.texts import label_test, labelled
from spark_audit.names import BASE
from spark_audit.provenance import seed_for
from spark_audit.results import (
    Guard,
    Hits,
    Row,
    number,
)
from spark_audit.results.findings import Fact
from spark_audit.stats.balance import smd
from spark_audit.stats.bootstrap import correlated
from spark_audit.stats.estimate import Status, side_of

Record: TypeAlias = "dict[str, Any]"

FEW_ROWS = 100

TEXTS_DIFFER = (
    "texts of members and non-members differ, so the AUC must exceed that of the texts "
    "alone"
)

LABELS = "INVALID: labels of members and non-members differ"

DUPLICATES = "both sides contain near-duplicates, which pull the AUC towards 0.5"

SIDES_DIFFER = (
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

ALL_ROWS = ""


@dataclass
class Findings:
    """Guards, and what they say of which score (:data:`ALL_ROWS`: of all of them).

    ``void`` takes a score's status, for rows that cannot be used; ``beside`` is noted
    of a figure that stands. ``texts`` is whether the texts alone tell the sides apart,
    ``apart`` are scores a change of which is no clean evidence of membership
    (:data:`SIDES_DIFFER`): those whose AUC of the untrained model is not 0.5, and all
    of them where that is so of ``loss``. A score of few tokens passes where the sides
    differ. ``alone`` is what the texts alone tell, ``before`` whether the untrained
    model's scores tell the sides, as one family; ``pooled`` has the scores of all rows
    that are judged, ``facts`` what is known of these rows.
    """

    pooled: estimates.MembershipGroup
    alone: Mapping[str, float] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    void: dict[str, tuple[Status, str]] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)
    texts: bool = False
    before: bool = False
    apart: set[str] = field(default_factory=set)

    @cached_property
    def facts(self) -> pd.DataFrame:
        return self.pooled.facts.iloc[self.pooled.rows]

    def add(
        self,
        name: str,
        says: str,
        facts: Mapping[str, Fact],
        *,
        further: Sequence[str] = (),
        passed: bool | None = None,
        checkpoint: str = "",
    ) -> None:
        """Add a guard, by default a warning, whose sentences are ``guard.mia.KEY``."""
        added = guard(
            name,
            f"mia.{says}",
            facts,
            further=[f"mia.{key}" for key in further],
            passed=passed,
            checkpoint=checkpoint,
        )
        self.guards.append(added)

    def of(self, attack: str, *, change: bool = False) -> tuple[Status, str]:
        """Status and notes that a score's figures, or changes of them, must bear."""
        status, reason = self.void.get(attack) or self.void.get(ALL_ROWS) or ("ok", "")
        own = self.beside.get(attack, "")
        if change and attack in self.apart:
            own = SIDES_DIFFER
        notes = dict.fromkeys((reason, own, self.beside.get(ALL_ROWS, "")))
        return status, "; ".join(note for note in notes if note)


def covariate_table(facts: pd.DataFrame) -> Iterator[Record]:
    """Length and compressed size of members against non-members, by task.

    ``ks`` and ``p`` of Kolmogorov-Smirnov with rows taken as independent, and ``smd``,
    the mean difference over the pooled SD (``None`` where that is 0).
    """
    tasks = facts.groupby("task", sort=False)
    for (task, part), name in product(tasks, ("length", "zlib_bytes")):
        sides = (part.loc[part["member"] == side, name] for side in (True, False))
        x, y = (side.dropna().to_numpy(np.float64) for side in sides)
        if len(x) < 2 or len(y) < 2:
            continue
        test = scipy.stats.ks_2samp(x, y)
        figures = {"ks": float(test.statistic), "p": float(test.pvalue)}
        clusters = int(part.groupby("member")["cluster"].nunique().min())
        sd = float(np.sqrt((np.var(x, ddof=1) + np.var(y, ddof=1)) / 2))
        apart = smd(x, y, sd=sd) if sd > 0 else None
        record = {"task": task, "covariate": name, **figures, "smd": apart}
        yield record | {"clusters": clusters}


def _rows(found: Findings, facts: pd.DataFrame) -> None:
    members = int(facts["member"].sum())
    others = len(facts) - members
    clusters = facts.groupby("member")["cluster"].nunique()
    least = int(min(clusters.get(True, 0), clusters.get(False, 0)))
    told: dict[str, Fact] = {
        "members": members,
        "others": others,
        "fewest": score_tables.MIN_MEMBERS_FOR_AUC,
    }
    n_tasks = facts["task"].nunique()
    told |= {"tasks": n_tasks, "seen": None}
    says = "rows_of_one_task" if n_tasks == 1 else "rows"
    further = "rows_too_few"
    if least > 1:
        share = (members + others + 1) / (12 * members * others)
        told["seen"] = 2.8 * float(np.sqrt(share))
        further = "rows_detect"
    passed = False if least < 2 else True if least >= FEW_ROWS else None
    found.add("rows", says, told, further=[further], passed=passed)


def _blind_guard(found: Findings, facts: pd.DataFrame) -> None:
    name, alone = "blind text classifier", found.alone
    if "blind_p" not in alone:
        found.add(name, "blind_missing", {})
        return
    value, p = alone["blind_value"], alone["blind_p"]
    passed, says = (None, "unsure") if value > 0.55 else (True, "alike")
    if p < 0.05:
        passed, says = False, "unlike"
        found.texts, found.beside[ALL_ROWS] = True, TEXTS_DIFFER
    auc = Row(
        audit="mia",
        checkpoint="",
        metric="auc",
        of="blind",
        value=value,
        null_low=alone["blind_null_low"],
        null_high=alone["blind_null_high"],
        clusters=facts["cluster"].nunique(),
    )
    shown: dict[str, Fact] = {
        "auc": auc,
        "p": p,
        "permutations": alone["blind_permutations"],
        "rows": alone["blind_rows"],
    }
    found.add(name, f"blind_{says}", shown, passed=passed)


def _duplicates(found: Findings, rows: int) -> None:
    name, known = "near-duplicates", found.alone.get("duplicates_left")
    if known is None:
        found.add(name, "duplicates_missing", {})
        return
    left = Hits(count=int(known), of=rows)
    blurred = known > BLURRED * rows
    if blurred:
        void: Status = "invalid" if known > UNUSABLE * rows else "insensitive"
        found.void[ALL_ROWS] = (void, DUPLICATES)
    passed = False if blurred else None if known else True
    values: dict[str, Fact] = {"left": left, "blurred": blurred}
    values["removed"] = found.alone["duplicates_removed"]
    says = "duplicates" if known else "duplicates_none"
    further = ["duplicates_pull"] if blurred else []
    found.add(name, says, values, further=further, passed=passed)


def _labels(found: Findings, facts: pd.DataFrame, seed: int) -> None:
    p = label_test(*labelled(facts), seed=seed_for(seed, "mia", "labels"))
    if p is None:
        found.add("label balance", "labels_missing", {})
        return
    further: list[str] = []
    if p < 0.01:
        found.void["response"] = ("invalid", LABELS)
        further.append("labels_void")
    passed = False if p < 0.01 else None if p < 0.05 else True
    found.add(
        "label balance",
        "labels",
        {"p": p, "void": p < 0.01},
        further=further,
        passed=passed,
    )


def _covariates(found: Findings, facts: pd.DataFrame) -> None:
    rows = [*covariate_table(facts)]
    apart = [r for r in rows if r["p"] < 0.01 and abs(r["smd"] or 0.0) > 0.1]
    passed = None if apart or not rows else True
    says = "apart" if apart else "alike" if rows else "missing"
    values = {
        "covariates": [r["covariate"] for r in apart],
        "tasks": [r["task"] for r in apart],
        "smds": [number(r["smd"], 2) for r in apart],
    }
    found.add("text covariates", f"covariates_{says}", values, passed=passed)


def _untrained(found: Findings) -> None:
    pooled, alone = found.pooled, list[str]()
    scored = [one for one in score_tables.ALL_SCORES if not pooled.usable(BASE, one)]
    ps = {one: p for one in scored if (p := pooled.p(BASE, one)) is not None}
    if ps:
        together = pooled.correlation(BASE, dict.fromkeys(ps))
        least = correlated([*ps.values()], together)[0].min()
        found.before = bool(least < estimates.TEXTS_ALPHA)
    for attack in score_tables.DECLARED_SCORES:
        estimate = pooled.estimate(BASE, attack)
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
        further: list[str] = []
        if not holds:
            every_score = ["untrained_every"] if attack == "loss" else []
            further = ["untrained_apart", *every_score, "untrained_claims"]
        found.add(
            "untrained model",
            "untrained",
            {"auc": auc, "holds": holds},
            further=further,
            passed=holds,
            checkpoint=BASE,
        )
    if "loss" in found.apart:
        found.apart |= {*score_tables.DECLARED_SCORES}
        found.beside |= dict.fromkeys(alone, UNGUARDED)
