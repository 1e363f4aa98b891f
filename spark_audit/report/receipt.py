"""A claim of differential privacy, held against what a report's canaries show.

One test per checkpoint, chosen by the claim and never by what came out: with a delta
the coin flips between the two canaries of each pair, without one the canaries' places
among their candidates. Formulas and sources are in
:mod:`spark_audit.stats.epsilon_bounds`.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from spark_audit.errors import InputError
from spark_audit.files import read_regular
from spark_audit.results import Report, grouped
from spark_audit.results.audit_result import TableRecord
from spark_audit.sentences import render
from spark_audit.stats.epsilon_bounds import (
    candidate_guess_bound,
    declared_guesses,
    one_run_bound,
    one_run_p,
)

Unit: TypeAlias = Literal["row", "canary"]
Relation: TypeAlias = Literal["add-remove", "replace"]
ClaimState: TypeAlias = Literal["contradicted", "consistent", "cannot_tell"]
By: TypeAlias = Literal["coins", "candidates"]
SIGNIFICANCE = 0.05
"""Over all checkpoints of a report (Bonferroni)."""
GUESS_COLUMNS: Mapping[By, tuple[str, str, str]] = {
    "coins": ("right", "guesses", "pairs"),
    "candidates": ("hits", "canaries", "canaries"),
}
"""Columns of right guesses, of all guesses and of what is guessed."""
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
        """Return the lower bound of epsilon that so many right guesses show.

        Parameters
        ----------
        canaries
            All of them; of coins, pairs.
        rows
            That each canary stands in.
        candidates
            Of each canary; 0: pairs of canaries, which a coin chooses between.
        """
        if candidates:
            bounds = candidate_guess_bound(
                right,
                canaries,
                rows=rows,
                significance=level,
                n_candidates=candidates,
            )
        else:
            bounds = one_run_bound(
                right,
                declared_guesses(canaries),
                canaries,
                delta=self.delta,
                rows=rows,
                significance=level,
            )
        name = {"row": "record", "canary": "canary"}[self.unit]
        name += "" if self.relation == "replace" else "_add_remove"
        return float(getattr(bounds, name))


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The outcome of a claim for a checkpoint, by its canaries.

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
    state: ClaimState
    by: By
    right: int = 0
    guesses: int = 0
    rows: int = 1
    bound: float | None = None
    attainable: float = 0.0
    needed: int | None = None
    why: str = ""

    def sentence(self, claim: Claim) -> str:
        """Return what the canaries say of the claim, in sentences."""
        keys: list[str] = [self.state]
        if self.state == "consistent":
            keys += ["attainable", "no_proof"]
        elif self.state == "cannot_tell":
            needed = "needed_none" if self.needed is None else f"needed_{self.by}"
            keys = ["no_bound"] if self.why else ["cannot_tell", needed]
        return " ".join(
            render(f"epsilon.{key}", **vars(self), claim=vars(claim)) for key in keys
        )


def receipts(report: Report, claim: Claim) -> list[Receipt]:
    """Return the outcome of a claim for each checkpoint, by its canaries.

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
    """Return what the accountant of a run of ``spark-train`` states, next to a claim.

    Raises
    ------
    InputError
        If it is no folder of a run.
    """
    try:
        privacy = json.loads(read_regular(run / "run.json"))["privacy"]
        stated = {str(k): float(v) for k, v in privacy.get("epsilon", {}).items()}
        delta = privacy.get("delta")
        accountant = privacy.get("accountant")
        why = privacy.get("no_epsilon", "")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        fix = "give the folder of a run of `spark-train run --dp dpsgd`"
        raise InputError("is no run with privacy", where=str(run), fix=fix) from error
    if not stated:
        key = "epsilon.unaccounted_why" if why else "epsilon.unaccounted"
        return render(key, why=why)

    most = max(stated.values())
    sentence = render(
        "epsilon.accounted", delta=delta, accountant=accountant, most=most
    )
    if most > claim.epsilon:
        sentence += f" {render('epsilon.accounted_more')}"
    return sentence


def _receipt(
    report: Report, record: TableRecord, claim: Claim, level: float
) -> Receipt:
    by: By = "coins" if claim.delta else "candidates"
    columns = GUESS_COLUMNS[by]
    right, guesses, canaries = (int(record[name]) for name in columns)
    checkpoint = str(record["checkpoint"])
    rows = int(record["rows"])
    if record["epsilon_per_record"] is None:
        return Receipt(
            checkpoint=checkpoint,
            state="cannot_tell",
            by=by,
            right=right,
            guesses=guesses,
            rows=rows,
            why=str(record["says"]),
        )

    n_candidates = 0 if by == "coins" else _candidates(report)
    bound = claim.bound(
        right, canaries, rows=rows, level=level, candidates=n_candidates
    )
    attainable = claim.bound(
        guesses, canaries, rows=rows, level=level, candidates=n_candidates
    )
    state: ClaimState = "consistent"
    if bound > claim.epsilon:
        state = "contradicted"
    elif attainable <= claim.epsilon:
        state = "cannot_tell"
    return Receipt(
        checkpoint=checkpoint,
        state=state,
        by=by,
        right=right,
        guesses=guesses,
        rows=rows,
        bound=bound,
        attainable=attainable,
        needed=canaries_needed(claim, rows=rows, level=level, candidates=n_candidates),
    )


def _candidates(report: Report) -> int:
    """Return how many candidates a canary has: the best rank has all their bits."""
    doses = report.tables.get("canary_by_dose", ())
    most_bits = next(one["exposure_most"] for one in doses if one["part"] == "full")
    return int(round(2.0 ** float(most_bits)))


def canaries_needed(
    claim: Claim,
    *,
    rows: int = 1,
    level: float = SIGNIFICANCE,
    candidates: int = 0,
) -> int | None:
    """Return how many canaries could contradict a claim if all guesses are right.

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
            bound = claim.bound(
                count, count, level=level, rows=rows, candidates=candidates
            )
            return bound > claim.epsilon
        guesses = declared_guesses(count)
        return one_run_p(guesses, guesses, count, epsilon=epsilon, delta=delta) <= level

    powers = (1 << k for k in range(MAX_CANARIES_COUNTED.bit_length()))
    if (high := next(filter(enough, powers), None)) is None:
        return None
    least = high // 2 + 1
    return least + bisect_left(range(least, high), True, key=enough)
