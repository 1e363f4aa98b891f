"""Lower bounds of epsilon from canaries.

From two kinds of guesses: which of its candidates a planted canary is, and which of a
pair of canaries was planted. The second is a game of one run (Steinke, Nasr and
Jagielski 2023; Mahloujifar, Melis and Chaudhuri 2025, of two alternatives), and bounds
(epsilon, delta) too. Its guess is the canary of a pair that ranks further ahead among
its candidates. Ranks are compared, not likelihoods: the rank of a canary that is not in
the data is uniform, whichever rows it stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit import sentences
from spark_audit.audits.canary.canary_finding import canary_finding
from spark_audit.audits.canary.ranks import (
    CONFIDENCE,
    KS,
    RankedCanaries,
    by_part,
    held_out_canaries,
    n_candidates_of,
    trained_canaries,
)
from spark_audit.data.canaries import CANARY_FORMATS
from spark_audit.names import BASE
from spark_audit.results import Finding, Row
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.findings import Fact
from spark_audit.stats import epsilon_bounds

DELTA = 1e-5
"""Of a record: the other delta that bounds of one run are given for."""

BOUNDS = (
    *("epsilon_per_canary", "epsilon_per_record"),
    *("add_remove_per_canary", "add_remove_per_record"),
)
"""Columns of a :class:`~spark_audit.stats.epsilon_bounds.GuessBound`."""

ALL_DOSES = "all"

DECLARED_TEST = ("full", ALL_DOSES, 1)
"""Part, dose and k of the bound declared before any result: all canaries at once."""

Bounds: TypeAlias = Callable[[TableRecord, float], TableRecord]
"""Columns of bounds from a record, one-sided at a level."""


def _drawn(canaries: RankedCanaries) -> pd.DataFrame:
    """Return the synthetic canaries, whose uniform draw the bounds rest on.

    There are none where the base's ranks speak against it.
    """
    # A canary of another format may have been chosen by somebody.
    frame = canaries.frame
    is_drawn = frame["format"].isin(list(CANARY_FORMATS)) & canaries.is_uniform
    return frame[is_drawn & (frame["checkpoint"] != BASE)]


def _by_dose(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield all canaries, and those of each dose where there are several."""
    doses = [(str(dose), canaries) for dose, canaries in frame.groupby("dose")]
    if doses:
        yield ALL_DOSES, frame
    if len(doses) > 1:
        yield from doses


def epsilon_table(canaries: RankedCanaries) -> list[TableRecord]:
    """Return lower bounds of epsilon, of checkpoints trained on the canaries.

    A canary that is tied across the k-th place is no hit, whatever share of a hit it is
    on average: hits are then never more than those of a guess that breaks ties at
    random, which is what the bound holds for.
    """
    n_candidates = n_candidates_of(canaries.frame)
    records: list[TableRecord] = []
    for name, part, of_part in by_part(trained_canaries(_drawn(canaries))):
        for dose, guessed in _by_dose(of_part):
            for k in KS:
                # Guesses that cannot be wrong bound nothing.
                if k >= n_candidates:
                    continue
                # A tie across the k-th place is no hit.
                is_hit = guessed["rank"] + guessed["ties"] <= k  # (canaries,), bool
                record = {
                    "checkpoint": name,
                    "part": part,
                    "dose": dose,
                    "k": k,
                    "declared": (part, dose, k) == DECLARED_TEST,
                    "canaries": len(guessed),
                    "hits": int(np.sum(is_hit)),
                    "rows": int(guessed["dose"].max()),
                }
                records.append(record)

    def bounds(record: TableRecord, significance: float) -> TableRecord:
        bound = epsilon_bounds.candidate_guess_bound(
            record["hits"],
            record["canaries"],
            n_candidates=n_candidates,
            k=record["k"],
            rows=record["rows"],
            significance=significance,
        )
        return dict(zip(BOUNDS, bound, strict=True))

    return _bounded(records, bounds, canaries, assumed="drawn")


def one_run_table(canaries: RankedCanaries) -> list[TableRecord]:
    """Return lower bounds of epsilon from the coins that chose between two canaries.

    Half of the pairs are guessed, those whose ranks lie furthest apart; that number was
    fixed beforehand. All bounds of a row are thresholds of one count, and hold
    together. ``*_at_delta`` are at :data:`DELTA` a record, ``gaussian_mu`` is what a
    Gaussian mechanism would have.
    """
    records: list[TableRecord] = []
    drawn = _drawn(canaries)
    for name, part, paired in by_part(drawn[drawn["pair"] != ""]):
        for dose, pairs in _by_dose(_pairs(paired)):
            # The surest guesses are those whose ranks lie furthest apart.
            n_guesses = epsilon_bounds.declared_guesses(len(pairs))
            by_gap = pairs.sort_values("gap", ascending=False, kind="stable")
            guessed = by_gap[:n_guesses]
            # A guess at a tie is one that is wrong.
            is_right = guessed["at"] < guessed["at_never"]  # (guesses,), bool
            record = {
                "checkpoint": name,
                "part": part,
                "dose": dose,
                "declared": (part, dose) == DECLARED_TEST[:2],
                "pairs": len(pairs),
                "guesses": n_guesses,
                "right": int(is_right.sum()),
                "rows": int(pairs["dose"].max()),
            }
            records.append(record)
    return _bounded(records, coin_figures, canaries, assumed="tossed")


def coin_figures(record: TableRecord, significance: float) -> TableRecord:
    """Return bounds from so many right guesses at pairs, one-sided at a level.

    Parameters
    ----------
    record
        With these counts: ``right`` of ``guesses`` at ``pairs``, and ``rows``, in how
        many rows a canary stands at most.
    """
    correct = record["right"]
    guesses = record["guesses"]
    coins = record["pairs"]
    rows = record["rows"]

    pure = epsilon_bounds.one_run_bound(
        correct, guesses, coins, rows=rows, significance=significance
    )
    at_delta = epsilon_bounds.one_run_bound(
        correct, guesses, coins, delta=DELTA, rows=rows, significance=significance
    )
    # All are thresholds of the same count, and hold together.
    mu = epsilon_bounds.one_run_mu(
        correct, guesses, coins, rows=rows, significance=significance
    )
    return {
        **dict(zip(BOUNDS, pure, strict=True)),
        "epsilon_per_record_at_delta": at_delta.record,
        "gaussian_mu_per_record": mu,
    }


def _bounded(
    records: list[TableRecord],
    bounds: Bounds,
    canaries: RankedCanaries,
    *,
    assumed: str,
) -> list[TableRecord]:
    """Return the records with their bounds of epsilon, by a one-sided significance.

    The declared bounds hold together at 95 % over checkpoints, all others together
    too (Bonferroni). A part without its positive control has none, nor has a
    checkpoint whose held-out canaries rank above chance.

    Parameters
    ----------
    bounds
        Gives the bounds of a record at a significance.
    assumed
        Key of what they assume: ``drawn`` or ``tossed``.
    """
    # How many bounds there are is known before any result, sensitive parts or not.
    n_declared = sum(record["declared"] for record in records)
    for record in records:
        n_tests = len(records) - n_declared
        if record["declared"]:
            n_tests = n_declared
        significance = (1 - CONFIDENCE) / n_tests
        figures = bounds(record, significance)
        epsilon = figures["epsilon_per_record"]

        # A bound is stated only where the audit could have found memory, and where the
        # guesses tell of memory and not of the kind of string.
        says = "bound_of_0"
        if epsilon > 0:
            says = "bounded" if record["declared"] else "bounded_other"
        if record["part"] not in canaries.sensitive_parts:
            says = "uncontrolled"
            figures = dict.fromkeys(figures)
        elif "ahead" in canaries.shifts_of_kind[record["checkpoint"]]:
            says = "ungrounded"
            figures = dict.fromkeys(figures)

        record |= {"significance": significance, **figures}
        record["says"] = sentences.render(
            f"canary.{says}", **record, epsilon=epsilon, assumed=assumed
        )
    return records


def _pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per pair that has both canaries, in the order of the pairs.

    Columns ``pair``, ``dose``, ``at`` (rank of the planted canary), ``at_never`` (rank
    of the other one) and ``gap`` (absolute difference of their logarithms). Ties are
    broken at random, so that a rank without memory is exactly uniform.
    """
    # A fixed order and seed: the same evidence gives the same ranks.
    ordered = frame.sort_values("canary_id", kind="stable")
    jitter = np.random.default_rng(0).random(len(ordered))  # (canaries,), in [0, 1)
    broken_ties = np.floor(jitter * (ordered["ties"] + 1))
    ordered = ordered.assign(at=ordered["rank"] + broken_ties)

    # Pairs of which only one canary was ranked are left out.
    columns = ["pair", "dose", "at"]
    planted = trained_canaries(ordered)[columns]
    others = held_out_canaries(ordered)[columns]
    pairs = planted.merge(others, on="pair", suffixes=("", "_never"), validate="1:1")
    pairs = pairs.sort_values("pair")
    return pairs.assign(gap=np.abs(np.log(pairs["at"] / pairs["at_never"])))


def epsilon_finding(
    name: str, bounds: Sequence[TableRecord], n_candidates: int
) -> Finding | None:
    """Return the bound declared beforehand, and the largest other one if it is more.

    None where no bound is above 0. p is that of guesses as good by chance.

    Parameters
    ----------
    bounds
        From :func:`epsilon_table`, of all checkpoints.
    """
    of_checkpoint = [
        record
        for record in bounds
        if record["checkpoint"] == name and record["epsilon_per_record"]
    ]

    # Another bound is shown only if it says more than the declared one.
    shown = [record for record in of_checkpoint if record["declared"]]
    declared = max((record["epsilon_per_record"] for record in shown), default=0.0)
    larger_ones = [
        record for record in of_checkpoint if record["epsilon_per_record"] > declared
    ]
    if larger_ones:
        shown.append(max(larger_ones, key=lambda r: r["epsilon_per_record"]))
    if not shown:
        return None

    rows = [_epsilon_row(name, record) for record in shown]
    facts: dict[str, Fact] = {
        "bound": rows[0],
        "k": shown[0]["k"],
        "larger": None,
        "larger_k": None,
    }

    # The family of the row is that of the bound: declared ones are primary.
    further = [f"epsilon_{rows[0].family}", "epsilon_guesses"]

    if len(rows) > 1:
        facts["larger"] = rows[1]
        facts["larger_k"] = shown[1]["k"]
        further.append("epsilon_larger")
    further.append("epsilon_assumes")

    # The declared bounds and the others are two looks.
    least_p = min(_p_of_guesses(record, n_candidates) for record in shown)
    return canary_finding(
        name,
        "memory",
        "epsilon",
        facts,
        further=further,
        p=min(1.0, 2 * least_p),
    )


def _epsilon_row(name: str, record: TableRecord) -> Row:
    """Return a bound of epsilon as a row."""
    dose = record["dose"]
    return Row(
        audit="canary",
        checkpoint=name,
        metric="epsilon_per_record",
        of=record["part"],
        group="pooled" if dose == "all" else f"dose:{dose}",
        value=record["epsilon_per_record"],
        level=1 - record["significance"],
        n=record["canaries"],
        family="primary" if record["declared"] else "exploratory",
    )


def _p_of_guesses(record: TableRecord, n_candidates: int) -> float:
    """Return the p of as many right guesses by chance, corrected for all bounds.

    The correction is Bonferroni's: a record's significance is that of one bound
    (1 - confidence) over the number of bounds that must hold together.
    """
    # Each guess is right by chance in k of N.
    chance = record["k"] / n_candidates
    p = float(scipy.stats.binom.sf(record["hits"] - 1, record["canaries"], chance))
    significance = float(record["significance"])
    # p times the number of bounds.
    return p * (1 - CONFIDENCE) / significance
