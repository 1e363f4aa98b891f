"""A claim of differential privacy, compared with the canaries of a report.

There is one test per checkpoint, chosen by the claim and never by results. With a delta
it is the coin flips between the two canaries of each pair; without one it is the ranks
of canaries among their candidates. Formulas and sources are in
:mod:`spark_audit.stats.epsilon_bounds`.

A receipt is the outcome of a claim for one checkpoint. The tables on canaries that it
reads are made by the audit ``canary`` (``audits/canary/``). A further state of a claim
is an item of :data:`ClaimState`, a branch of :func:`_receipt`, and has a sentence
``epsilon.STATE``.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
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
GuessedBy: TypeAlias = Literal["coins", "candidates"]
"""What a guess is made from: which canary of a pair a coin chose, or a canary's rank
among its candidates."""

WHOLE_CANARY = "full"
"""Part of a canary, in the tables on canaries, that a claim is tested by."""

SIGNIFICANCE = 0.05
"""Significance of all tests of a report's checkpoints together (Bonferroni)."""

GUESS_COLUMNS: Mapping[GuessedBy, tuple[str, str, str]] = {
    "coins": ("right_guesses", "guesses", "pairs"),
    "candidates": ("hits", "canaries", "canaries"),
}
"""Columns of the numbers of right guesses, of all guesses, and of canaries or pairs."""

MAX_CANARIES_COUNTED = 1 << 20
"""No larger number of needed canaries is worked out."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """(epsilon, delta)-DP for one ``unit`` more or less, or another in its place.

    Accountants of DP-SGD state it for a row, by adding or removing one.

    Raises
    ------
    InputError
        If a number is not valid for a claim.
    """

    epsilon: float
    delta: float = 0.0
    unit: Unit = "row"
    relation: Relation = "add-remove"

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < np.inf:
            raise InputError(
                f"{self.epsilon} is no epsilon",
                where="--claims",
                fix="give a finite number of 0 or more",
            )
        if not 0 <= self.delta < 1:
            raise InputError(
                f"{self.delta} is no delta",
                where="--delta",
                fix="give a number from 0 to below 1, such as 1e-5",
            )

    def bound(
        self, right: int, canaries: int, *, rows: int, level: float, candidates: int
    ) -> float:
        """Return the lower bound of epsilon from the right guesses.

        Parameters
        ----------
        right
            Number of right guesses.
        canaries
            Number of canaries; with coins, of pairs.
        rows
            Number of rows that each canary stands in.
        level
            Significance of the test.
        candidates
            Number of candidates of each canary; 0: a coin chooses one of each pair.
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

        bound_by_claim = {
            ("row", "add-remove"): bounds.record_add_remove,
            ("row", "replace"): bounds.record,
            ("canary", "add-remove"): bounds.canary_add_remove,
            ("canary", "replace"): bounds.canary,
        }
        return float(bound_by_claim[self.unit, self.relation])

    def steps_of_canary(self, rows_of_canary: int) -> int:
        """Return how many steps of the claim replace a canary by another one.

        A step is one row, or one canary with all its rows. If the claim is on adding or
        removing, it takes two steps to replace one: it is removed, another one added.
        """
        n_units = 1
        if self.unit == "row":
            n_units = rows_of_canary
        if self.relation == "replace":
            return n_units
        return 2 * n_units


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The outcome of a claim for a checkpoint, by its canaries.

    Attributes
    ----------
    state
        ``contradicted``: the bound is above the claimed epsilon. ``cannot_tell``: it
        could not be, even if all guesses were right. ``consistent``: neither.
    by
        ``coins`` or ``candidates``; see :data:`GuessedBy`.
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
    by: GuessedBy
    right: int = 0
    guesses: int = 0
    rows: int = 1
    bound: float | None = None
    attainable: float = 0.0
    needed: int | None = None
    why: str = ""

    def sentence(self, claim: Claim) -> str:
        """Return the result of the canaries on the claim, in sentences."""
        keys: list[str] = [self.state]
        if self.state == "consistent":
            keys += ["attainable", "no_proof"]
        elif self.state == "cannot_tell" and self.why:
            keys = ["no_bound"]
        elif self.state == "cannot_tell":
            keys.append("needed_none" if self.needed is None else f"needed_{self.by}")

        sentences = []
        for key in keys:
            sentences.append(render(f"epsilon.{key}", **vars(self), claim=vars(claim)))
        return " ".join(sentences)


def receipts(report: Report, claim: Claim) -> list[Receipt]:
    """Return the outcome of a claim for each checkpoint, by its canaries.

    Raises
    ------
    InputError
        If the report has no canaries.
    """
    # Chosen by the claim, never by what came out.
    table_name = "canary_epsilon"
    if claim.delta:
        table_name = "canary_one_run"
    records = [
        record
        for record in report.tables.get(table_name, ())
        if record["part"] == WHOLE_CANARY
    ]
    if not records:
        raise InputError(
            "has no canaries by which a claim can be tested: none were planted, or the "
            "base does not rank them by chance (see the report's checks)",
            where=table_name,
            fix="plant them with `spark-audit data inject`, and audit with `canary`",
        )

    records_by_checkpoint = grouped(records, lambda record: str(record["checkpoint"]))
    # Bonferroni: the claim is tested once on each checkpoint.
    level = SIGNIFICANCE / len(records_by_checkpoint)
    outcomes = []
    for records_of_checkpoint in records_by_checkpoint.values():
        record = _record_to_test(records_of_checkpoint, claim)
        outcomes.append(_receipt(report, record, claim, level))
    return outcomes


def _record_to_test(records: Sequence[TableRecord], claim: Claim) -> TableRecord:
    """Return the record of the canaries by which a claim is tested.

    A row's epsilon is read best where a canary is one row: so a claim on rows is tested
    by canaries of the lowest dose, if there are several doses.
    """
    # A claim is tested by one guess at each canary; the table of coins has no ``k``.
    of_all_guesses = [record for record in records if record.get("k", 1) == 1]
    # The record of all canaries has the highest number of rows.
    doses = {record["rows_per_canary"] for record in of_all_guesses}

    dose = "all"
    if claim.unit == "row" and len(doses) > 1:
        dose = str(min(doses))
    return next(record for record in of_all_guesses if record["dose"] == dose)


def accounted(run: Path, claim: Claim) -> str:
    """Return the statement of a run's accountant next to a claim.

    Raises
    ------
    InputError
        If it is no folder of a run.
    """
    try:
        privacy = json.loads(read_regular(run / "run.json"))["privacy"]
        # The accountant states an epsilon for each stage of the run.
        epsilons = [float(value) for value in privacy.get("epsilon", {}).values()]
        delta = privacy.get("delta")
        accountant = privacy.get("accountant")
        why_unaccounted = privacy.get("no_epsilon", "")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise InputError(
            "is no run with privacy",
            where=str(run),
            fix="give the folder of a run of `spark-train run --dp dpsgd`",
        ) from None

    if not epsilons:
        if why_unaccounted:
            return render("epsilon.unaccounted_why", why=why_unaccounted)
        return render("epsilon.unaccounted")

    highest = max(epsilons)
    sentence = render(
        "epsilon.accounted", delta=delta, accountant=accountant, most=highest
    )
    if highest > claim.epsilon:
        sentence += f" {render('epsilon.accounted_more')}"
    return sentence


def _receipt(
    report: Report, record: TableRecord, claim: Claim, level: float
) -> Receipt:
    """Return the outcome of a claim for one checkpoint.

    Parameters
    ----------
    record
        The checkpoint's record of the table on canaries that the claim chooses.
    level
        Significance of the test.
    """
    by: GuessedBy = "coins" if claim.delta else "candidates"
    right_column, guesses_column, canaries_column = GUESS_COLUMNS[by]
    n_right = int(record[right_column])
    n_guesses = int(record[guesses_column])
    n_canaries = int(record[canaries_column])
    checkpoint = str(record["checkpoint"])
    rows_per_canary = int(record["rows_per_canary"])
    if record["epsilon_per_record"] is None:
        return Receipt(
            checkpoint=checkpoint,
            state="cannot_tell",
            by=by,
            right=n_right,
            guesses=n_guesses,
            rows=rows_per_canary,
            why=str(record["says"]),
        )

    # The best possible outcome says whether the canaries could contradict the claim.
    n_candidates = 0
    if by == "candidates":
        n_candidates = _candidates(report)
    bound = claim.bound(
        n_right,
        n_canaries,
        rows=rows_per_canary,
        level=level,
        candidates=n_candidates,
    )
    attainable = claim.bound(
        n_guesses,
        n_canaries,
        rows=rows_per_canary,
        level=level,
        candidates=n_candidates,
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
        right=n_right,
        guesses=n_guesses,
        rows=rows_per_canary,
        bound=bound,
        attainable=attainable,
        needed=canaries_needed(
            claim, rows=rows_per_canary, level=level, candidates=n_candidates
        ),
    )


def _candidates(report: Report) -> int:
    """Return the number of candidates of a canary, from the bits of the best rank."""
    doses = report.tables.get("canary_by_dose", ())
    most_bits = next(
        float(record["exposure_most"])
        for record in doses
        if record["part"] == WHOLE_CANARY
    )
    # The first of n candidates has an exposure of log2(n) bits.
    return int(round(2.0**most_bits))


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
        Number of rows that each canary stands in.
    level
        Significance of the test.
    candidates
        Number of candidates of each canary; 0: a coin chooses one of each pair.

    Returns
    -------
    The smallest number; ``None``: it is above :data:`MAX_CANARIES_COUNTED`, or no
    number is enough.
    """
    # Group privacy: over k steps epsilon grows k times, and delta by the sum of
    # 1 + e^epsilon + ... = (e^(k epsilon) - 1) / (e^epsilon - 1).
    n_steps = claim.steps_of_canary(rows)
    epsilon = n_steps * claim.epsilon
    delta_factor = float(n_steps)
    if claim.epsilon:
        delta_factor = float(np.expm1(epsilon) / np.expm1(claim.epsilon))
    delta = min(1.0, claim.delta * delta_factor)

    def is_enough(n_canaries: int) -> bool:
        """Return whether the claim is contradicted if all guesses are right."""
        if candidates:
            bound = claim.bound(
                n_canaries, n_canaries, level=level, rows=rows, candidates=candidates
            )
            return bound > claim.epsilon
        n_guesses = declared_guesses(n_canaries)
        p = one_run_p(n_guesses, n_guesses, n_canaries, epsilon=epsilon, delta=delta)
        return p <= level

    # Double until it is enough; the smallest number then lies in the last doubling.
    high = 1
    while not is_enough(high):
        high *= 2
        if high > MAX_CANARIES_COUNTED:
            return None
    least = high // 2 + 1
    return least + bisect_left(range(least, high), True, key=is_enough)
