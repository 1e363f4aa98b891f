"""A claim of differential privacy, held against what a report's canaries show.

One test per checkpoint, chosen by the claim and never by what came out: with a delta
the coin flips between the two canaries of each pair, without one the canaries' places
among their candidates. Formulas and sources are in
:mod:`spark_audit.stats.epsilon_bounds`.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from spark_audit.errors import InputError
from spark_audit.files import read_regular
from spark_audit.results import Report, grouped
from spark_audit.sentences import render
from spark_audit.stats.epsilon_bounds import (
    candidate_guess_bound,
    declared_guesses,
    one_run_bound,
    one_run_p,
)

Unit: TypeAlias = Literal["row", "canary"]
Relation: TypeAlias = Literal["add-remove", "replace"]
State: TypeAlias = Literal["contradicted", "consistent", "cannot_tell"]
SIGNIFICANCE = 0.05
"""Over all checkpoints of a report (Bonferroni)."""
MAX_CANARIES_COUNTED = 1 << 20
"""Canaries up to which it is worked out how many are needed."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """(epsilon, delta)-DP for one ``unit`` more or less, or another in its place.

    Accountants of DP-SGD state it for a row, by adding or removing one.

    Raises
    ------
    InputError
        If a number is none that a claim can have.
    """

    epsilon: float
    delta: float = 0.0
    unit: Unit = "row"
    relation: Relation = "add-remove"

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < np.inf:
            raise InputError(f"{self.epsilon} is no epsilon", where="--claims")
        if not 0 <= self.delta < 1:
            raise InputError(f"{self.delta} is no delta", where="--delta")

    def bound(
        self, right: int, canaries: int, *, rows: int, level: float, candidates: int
    ) -> float:
        """Lower bound of epsilon, for this unit and relation, of so many right guesses.

        Parameters
        ----------
        canaries
            All of them; of coins, pairs.
        rows
            That each canary stands in.
        candidates
            Of each canary; 0: pairs of canaries, which a coin chooses between.
        """
        facts: dict[str, Any] = {"rows": rows, "significance": level}
        if candidates:
            facts["n_candidates"] = candidates
            found = candidate_guess_bound(right, canaries, **facts)
        else:
            guesses = declared_guesses(canaries)
            found = one_run_bound(right, guesses, canaries, delta=self.delta, **facts)
        name = {"row": "record", "canary": "canary"}[self.unit]
        name += "" if self.relation == "replace" else "_add_remove"
        return float(getattr(found, name))


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What a checkpoint's canaries say of a claim.

    Attributes
    ----------
    by
        ``coins`` or ``candidates``.
    right, guesses, rows
        Right guesses, of how many, and the rows that each canary stands in.
    bound
        Lower bound of epsilon; ``None`` where there is none.
    attainable
        The bound if all guesses had been right: no claim above it is contradicted.
    needed
        Canaries (for coins, pairs) with which it could; ``None``: more than
        :data:`MAX_CANARIES_COUNTED`.
    why
        Why there is no bound.
    """

    checkpoint: str
    state: State
    by: str
    right: int = 0
    guesses: int = 0
    rows: int = 1
    bound: float | None = None
    attainable: float = 0.0
    needed: int | None = None
    why: str = ""

    def sentence(self, claim: Claim) -> str:
        """In words."""
        return render(f"epsilon.{self.state}", **vars(self), claim=vars(claim))


def receipts(report: Report, claim: Claim) -> list[Receipt]:
    """What the canaries of each checkpoint say of a claim.

    Raises
    ------
    InputError
        If the report has no canaries.
    """
    name = "canary_one_run" if claim.delta else "canary_epsilon"
    table = [r for r in report.tables.get(name, ()) if r["part"] == "full"]
    if not table:
        raise InputError(
            "has no canaries by which a claim can be tested: none were planted, or the "
            "base does not rank them by chance (see the report's checks)",
            where=name,
            fix="plant them with `spark-audit data inject`, and audit with `canary`",
        )
    by_name = grouped(table, lambda record: str(record["checkpoint"]))
    level = SIGNIFICANCE / len(by_name)
    found = []
    for own in by_name.values():
        whole = [r for r in own if r.get("k", 1) == 1]
        # A row's epsilon is read best where a canary is one row.
        rows = {r["rows"] for r in whole}
        least = claim.unit == "row" and min(rows) < max(rows)
        wanted = str(min(rows)) if least else "all"
        record = next(r for r in whole if r["dose"] == wanted)
        found.append(_receipt(report, record, claim, level))
    return found


def accounted(run: Path, claim: Claim) -> str:
    """What the accountant of a run of ``spark-train`` states, beside a claim.

    Raises
    ------
    InputError
        If it is no folder of a run.
    """
    try:
        privacy = json.loads(read_regular(run / "run.json"))["privacy"]
        stated = {str(k): float(v) for k, v in privacy.get("epsilon", {}).items()}
        facts = {"delta": privacy.get("delta"), "accountant": privacy.get("accountant")}
        why = privacy.get("no_epsilon", "")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        fix = "give the folder of a run of `spark-train run --dp dpsgd`"
        raise InputError("is no run with privacy", where=str(run), fix=fix) from error
    most = max(stated.values(), default=None)
    return render("epsilon.accounted", **facts, most=most, why=why, claim=vars(claim))


def _receipt(
    report: Report, record: dict[str, Any], claim: Claim, level: float
) -> Receipt:
    coins = ("right", "guesses", "pairs")
    columns = coins if claim.delta else ("hits", "canaries", "canaries")
    right, guesses, canaries = (record[name] for name in columns)
    facts: dict[str, Any] = {
        "checkpoint": record["checkpoint"],
        "by": "coins" if claim.delta else "candidates",
        "right": right,
        "guesses": guesses,
        "rows": record["rows"],
    }
    if record["epsilon_per_record"] is None:
        return Receipt(state="cannot_tell", why=record["says"], **facts)
    candidates = 0
    if not claim.delta:  # the best rank among them has all their bits
        doses = report.tables.get("canary_by_dose", ())
        most = next(r["exposure_most"] for r in doses if r["part"] == "full")
        candidates = int(round(2.0**most))
    test = {"rows": record["rows"], "level": level, "candidates": candidates}
    shown, most = (claim.bound(n, canaries, **test) for n in (right, guesses))
    state: State = "cannot_tell" if most <= claim.epsilon else "consistent"
    if shown > claim.epsilon:
        state = "contradicted"
    facts |= {"bound": shown, "attainable": most}
    return Receipt(state=state, needed=canaries_needed(claim, **test), **facts)


def canaries_needed(
    claim: Claim,
    *,
    rows: int = 1,
    level: float = SIGNIFICANCE,
    candidates: int = 0,
) -> int | None:
    """With how many canaries a claim could be contradicted, were all guesses right.

    Parameters
    ----------
    rows
        That each canary stands in.
    level
        Significance of the test.
    candidates
        Of each canary; 0: pairs of canaries, which a coin chooses between.

    Returns
    -------
    The smallest number; ``None`` where it is above :data:`MAX_CANARIES_COUNTED`, or
    there is none.
    """
    group = (rows if claim.unit == "row" else 1) * (1 + (claim.relation != "replace"))
    epsilon = group * claim.epsilon
    ratio = np.expm1(epsilon) / np.expm1(claim.epsilon) if claim.epsilon else group
    delta = min(1.0, claim.delta * float(ratio))

    def enough(count: int) -> bool:
        if candidates:
            facts = {"rows": rows, "candidates": candidates}
            return claim.bound(count, count, level=level, **facts) > claim.epsilon
        guesses = declared_guesses(count)
        return one_run_p(guesses, guesses, count, epsilon=epsilon, delta=delta) <= level

    powers = (1 << k for k in range(MAX_CANARIES_COUNTED.bit_length()))
    if (high := next(filter(enough, powers), None)) is None:
        return None
    least = high // 2 + 1
    return least + bisect_left(range(least, high), True, key=enough)
