"""Lower bounds of epsilon from canaries: two tables, and a finding on the first.

If training were epsilon-DP, an attacker could not guess canaries more often than a
limit that depends on epsilon. More right guesses than that refute, at a confidence, all
epsilon up to a bound. There are two kinds of guesses:

- of candidates (:func:`epsilon_table`): which of its candidates was planted, guessed by
  the first k ranks;
- of pairs (:func:`one_run_table`): which of two canaries was planted, guessed as the
  one that ranks further ahead among its candidates. It is a game of one run (Steinke,
  Nasr and Jagielski 2023; Mahloujifar, Melis and Chaudhuri 2025, of two alternatives),
  and bounds (epsilon, delta) too. Ranks are compared, not likelihoods: the rank of a
  canary that is not in the data is uniform, whichever rows it stands in.

A record of either table is one bound. Its columns are those of the report:

====================  ==============================================================
column                meaning
====================  ==============================================================
checkpoint, part      whose canaries, and ``full``, ``password`` or ``ssn`` of them
dose                  how many train rows hold each of them, or ``all``
k                     guesses at each canary (first table)
declared              whether the bound was fixed before any result
canaries, hits        guessed canaries, and how many of them rank among the first k
                      (first table)
pairs, guesses,       pairs of canaries, how many of them were guessed, and how many of
right_guesses         these guesses are right (second table)
rows_per_canary       most train rows that hold one of the canaries
significance          error of this bound by itself, so that all hold together at 95%
epsilon_per_canary,   bounds for replacing a canary with all its copies, and for
epsilon_per_record    replacing one train row; all bounds are lower ones, 0 or more,
                      and ``None`` where no bound is stated
add_remove_per_*      the same for adding or removing instead of replacing
says                  the bound as a sentence, or why there is none
====================  ==============================================================

The second table also has the columns that only :func:`coin_figures` gives.

A new column of counts goes into the record of its table; a new bound into
``_columns_of`` (both tables) or :func:`coin_figures` (the second).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd
import scipy

from spark_audit import sentences
from spark_audit.audits.canary.canary_finding import canary_finding
from spark_audit.audits.canary.ranked_canaries import RankedCanaries
from spark_audit.audits.canary.ranks import (
    CONFIDENCE,
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
from spark_audit.results.rows import POOLED
from spark_audit.stats import epsilon_bounds

KS = (1, 10)
"""Numbers of guesses at each canary, fixed here before any result."""

DELTA = 1e-5
"""The delta of one train row that bounds from pairs are given for, besides 0."""

ALL_DOSES = "all"

DECLARED_TEST = ("full", ALL_DOSES, 1)
"""Part, dose and k of the declared bound: all canaries together."""

DECLARED_PAIRS = ("full", ALL_DOSES)
"""Part and dose of the declared bound from pairs: all of them together."""

N_KINDS_OF_BOUNDS = 2
"""Kinds of bounds that can claim memory: the declared one, and the others."""

BoundsAt: TypeAlias = Callable[[TableRecord, float], TableRecord]
"""A function that returns the bounds of a record at a one-sided significance."""


def _drawn(canaries: RankedCanaries) -> pd.DataFrame:
    """Return the canaries of fine-tuned checkpoints that were drawn uniformly.

    The bounds rest on that draw. If the ranks of the base contradict it, the frame is
    empty.
    """
    # This package drew canaries of its own formats; somebody may have chosen others by
    # hand.
    frame = canaries.frame
    is_drawn = frame["format"].isin(list(CANARY_FORMATS)) & canaries.is_base_uniform
    return frame[is_drawn & (frame["checkpoint"] != BASE)]


def _by_dose(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield all lines as :data:`ALL_DOSES`, then those of each dose if it has several.

    Parameters
    ----------
    frame
        Canaries or pairs: column ``dose``.
    """
    lines_by_dose = [(str(dose), lines) for dose, lines in frame.groupby("dose")]
    if lines_by_dose:
        yield ALL_DOSES, frame
    if len(lines_by_dose) > 1:
        yield from lines_by_dose


def epsilon_table(canaries: RankedCanaries) -> list[TableRecord]:
    """Return the first table: bounds from guesses of candidates.

    There is one record for each checkpoint, part, dose and k. The module docstring
    lists the columns.
    """
    n_candidates = n_candidates_of(canaries.frame)
    # With as many guesses as candidates no guess is wrong, which bounds nothing.
    numbers_of_guesses = [k for k in KS if k < n_candidates]

    records: list[TableRecord] = []
    for name, part, of_part in by_part(trained_canaries(_drawn(canaries))):
        for dose, guessed in _by_dose(of_part):
            for k in numbers_of_guesses:
                # Ties count behind: a canary tied across the k-th rank is no hit. The
                # bound stays valid, since guesses that break ties at random never have
                # fewer hits.
                is_hit = guessed["rank"] + guessed["ties"] <= k  # (canaries,), bool
                record = {
                    "checkpoint": name,
                    "part": part,
                    "dose": dose,
                    "k": k,
                    "declared": (part, dose, k) == DECLARED_TEST,
                    "canaries": len(guessed),
                    "hits": int(np.sum(is_hit)),
                    "rows_per_canary": int(guessed["dose"].max()),
                }
                records.append(record)

    def bounds_at(record: TableRecord, significance: float) -> TableRecord:
        """Return the columns of bounds from the hits of a record."""
        bound = epsilon_bounds.candidate_guess_bound(
            record["hits"],
            record["canaries"],
            n_candidates=n_candidates,
            k=record["k"],
            rows=record["rows_per_canary"],
            significance=significance,
        )
        return _columns_of(bound)

    return _with_bounds(records, bounds_at, canaries, assumed="drawn")


def one_run_table(canaries: RankedCanaries) -> list[TableRecord]:
    """Return the second table: bounds from guesses of pairs.

    A coin chose which canary of a pair was planted; the other one is held out.

    There is one record for each checkpoint, part and dose, with the columns that the
    module docstring lists and those of :func:`coin_figures`. Only the half of the pairs
    whose ranks lie furthest apart is guessed; this share was fixed beforehand.
    """
    records: list[TableRecord] = []
    drawn = _drawn(canaries)
    for name, part, paired in by_part(drawn[drawn["pair"] != ""]):
        for dose, pairs in _by_dose(_pairs(paired)):
            # Guesses are surest where the ranks lie furthest apart.
            n_guesses = epsilon_bounds.declared_guesses(len(pairs))
            by_gap = pairs.sort_values("gap", ascending=False, kind="stable")
            guessed = by_gap[:n_guesses]

            # The canary that ranks ahead is guessed; a tie counts as wrong.
            is_right = guessed["rank_planted"] < guessed["rank_other"]  # (guesses,)
            record = {
                "checkpoint": name,
                "part": part,
                "dose": dose,
                "declared": (part, dose) == DECLARED_PAIRS,
                "pairs": len(pairs),
                "guesses": n_guesses,
                "right_guesses": int(is_right.sum()),
                "rows_per_canary": int(pairs["dose"].max()),
            }
            records.append(record)
    return _with_bounds(records, coin_figures, canaries, assumed="tossed")


def coin_figures(record: TableRecord, significance: float) -> TableRecord:
    """Return the columns of bounds from guesses of pairs, one-sided.

    All bounds follow from one count and hold together.

    Parameters
    ----------
    record
        Holds the counts ``right_guesses``, ``guesses`` and ``pairs``, and
        ``rows_per_canary``, the largest number of train rows with one canary.
    significance
        Error of each bound, one-sided.

    Returns
    -------
    The four bounds at delta 0; ``epsilon_per_record_at_delta``, at :data:`DELTA`; and
    ``gaussian_mu_per_record``, the bound on mu of a Gaussian mechanism.
    """
    n_right = record["right_guesses"]
    n_guesses = record["guesses"]
    n_pairs = record["pairs"]
    rows = record["rows_per_canary"]

    at_delta_0 = epsilon_bounds.one_run_bound(
        n_right, n_guesses, n_pairs, rows=rows, significance=significance
    )
    at_delta = epsilon_bounds.one_run_bound(
        n_right, n_guesses, n_pairs, delta=DELTA, rows=rows, significance=significance
    )
    mu = epsilon_bounds.one_run_mu(
        n_right, n_guesses, n_pairs, rows=rows, significance=significance
    )
    return {
        **_columns_of(at_delta_0),
        "epsilon_per_record_at_delta": at_delta.record,
        "gaussian_mu_per_record": mu,
    }


def _columns_of(bound: epsilon_bounds.GuessBound) -> TableRecord:
    """Return the columns of a bound in a record."""
    return {
        "epsilon_per_canary": bound.canary,
        "epsilon_per_record": bound.record,
        "add_remove_per_canary": bound.canary_add_remove,
        "add_remove_per_record": bound.record_add_remove,
    }


def _with_bounds(
    records: list[TableRecord],
    bounds_at: BoundsAt,
    canaries: RankedCanaries,
    *,
    assumed: str,
) -> list[TableRecord]:
    """Add bounds to the records, and each bound as a sentence; return the records.

    The declared bounds hold together at 95% over checkpoints, all others together too
    (Bonferroni). For the sentence the first match wins:

    =============  =================================================================
    sentence       condition
    =============  =================================================================
    uncontrolled   the positive control of the part was not found: no bound
    ungrounded     held-out canaries rank above chance, so that guesses tell of the
                   kind of string and not of memory: no bound
    bounded        the bound is above 0, and was declared
    bounded_other  the bound is above 0
    bound_of_0     the bound is 0
    =============  =================================================================

    Parameters
    ----------
    bounds_at
        Returns the columns of bounds of a record.
    assumed
        What the sentences say that the bounds assume: ``drawn`` (candidates) or
        ``tossed`` (coins), keys of ``sentences/en/canary.toml``.
    """
    # The number of bounds does not depend on results: it includes insensitive parts.
    n_declared = sum(record["declared"] for record in records)
    n_others = len(records) - n_declared

    for record in records:
        n_joint_bounds = n_declared if record["declared"] else n_others
        significance = (1 - CONFIDENCE) / n_joint_bounds
        columns = bounds_at(record, significance)
        epsilon = columns["epsilon_per_record"]

        is_controlled = record["part"] in canaries.sensitive_parts
        has_kind_moved_ahead = "ahead" in canaries.shifts_of_kind[record["checkpoint"]]
        if not is_controlled:
            says = "uncontrolled"
        elif has_kind_moved_ahead:
            says = "ungrounded"
        elif epsilon > 0:
            says = "bounded" if record["declared"] else "bounded_other"
        else:
            says = "bound_of_0"

        # A record without a stated bound has None in its columns.
        if says in ("uncontrolled", "ungrounded"):
            columns = dict.fromkeys(columns)

        record |= {"significance": significance, **columns}
        record["says"] = sentences.render(
            f"canary.{says}", **record, epsilon=epsilon, assumed=assumed
        )
    return records


def _pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one line per pair whose canaries are both ranked, in the order of pairs.

    Ties are broken at random, so that ranks without memory are exactly uniform.

    Parameters
    ----------
    frame
        Canaries of one checkpoint and part that belong to a pair.

    Returns
    -------
    Columns ``pair``, ``dose`` (of the planted canary), ``rank_planted``, ``rank_other``
    and ``gap``, the absolute difference of the logarithms of both ranks.
    """
    # Order and seed are fixed, so that the same evidence gives the same ranks.
    ordered = frame.sort_values("canary_id", kind="stable")
    jitter = np.random.default_rng(0).random(len(ordered))  # (canaries,), in [0, 1)
    n_ties_ahead = np.floor(jitter * (ordered["ties"] + 1))
    ordered = ordered.assign(untied_rank=ordered["rank"] + n_ties_ahead)

    planted = trained_canaries(ordered)[["pair", "dose", "untied_rank"]]
    planted = planted.rename(columns={"untied_rank": "rank_planted"})
    others = held_out_canaries(ordered)[["pair", "untied_rank"]]
    others = others.rename(columns={"untied_rank": "rank_other"})

    # The merge leaves out pairs of which only one canary was ranked.
    pairs = planted.merge(others, on="pair", validate="1:1").sort_values("pair")
    gap = np.abs(np.log(pairs["rank_planted"] / pairs["rank_other"]))
    return pairs.assign(gap=gap)


def epsilon_finding(
    name: str, bounds: Sequence[TableRecord], n_candidates: int
) -> Finding | None:
    """Return the finding on the bounds of one checkpoint; ``None``: none is above 0.

    Its p is the chance of guesses at least as good without memory.

    Parameters
    ----------
    bounds
        From :func:`epsilon_table`, of all checkpoints.
    """
    stated = _stated_bounds(name, bounds)
    if not stated:
        return None

    rows = [_epsilon_row(name, record) for record in stated]
    facts: dict[str, Fact] = {
        "bound": rows[0],
        "k": stated[0]["k"],
        "larger": None,
        "larger_k": None,
    }

    # Declared bounds are primary, others exploratory.
    further = [f"epsilon_{rows[0].family}", "epsilon_guesses"]
    if len(rows) > 1:
        facts["larger"] = rows[1]
        facts["larger_k"] = stated[1]["k"]
        further.append("epsilon_larger")
    further.append("epsilon_assumes")

    # Bonferroni, over declared bounds and others.
    least_p = min(_p_of_guesses(record, n_candidates) for record in stated)
    return canary_finding(
        name,
        "memory",
        "epsilon",
        facts,
        further=further,
        p=min(1.0, N_KINDS_OF_BOUNDS * least_p),
    )


def _stated_bounds(name: str, bounds: Sequence[TableRecord]) -> list[TableRecord]:
    """Return the records that the finding on a checkpoint states: up to two.

    They are the declared one, if its bound is above 0, and the largest other one, if it
    is larger than that or the only one above 0.
    """
    # A record without a bound has None; a bound of 0 proves nothing.
    above_0 = [
        record
        for record in bounds
        if record["checkpoint"] == name and record["epsilon_per_record"]
    ]
    stated = [record for record in above_0 if record["declared"]]
    others = [record for record in above_0 if not record["declared"]]

    declared_epsilon = 0.0
    if stated:
        declared_epsilon = stated[0]["epsilon_per_record"]
    if others:
        largest = max(others, key=lambda record: record["epsilon_per_record"])
        if largest["epsilon_per_record"] > declared_epsilon:
            stated.append(largest)
    return stated


def _epsilon_row(name: str, record: TableRecord) -> Row:
    """Return the bound per train row of a record as a row of the report."""
    dose = record["dose"]
    is_of_all_doses = dose == ALL_DOSES
    return Row(
        audit="canary",
        checkpoint=name,
        metric="epsilon_per_record",
        variant=record["part"],
        group_kind=POOLED if is_of_all_doses else "dose",
        group_value="" if is_of_all_doses else str(dose),
        value=record["epsilon_per_record"],
        interval_level=1 - record["significance"],
        n=record["canaries"],
        family="primary" if record["declared"] else "exploratory",
    )


def _p_of_guesses(record: TableRecord, n_candidates: int) -> float:
    """Return the chance of as many right guesses, corrected over all bounds."""
    # By chance a canary ranks among the first k of its N candidates in k of N cases.
    chance = record["k"] / n_candidates
    p = float(scipy.stats.binom.sf(record["hits"] - 1, record["canaries"], chance))

    # Bonferroni: multiply p by the number of bounds that hold together. That number is
    # the joint significance divided by that of one bound.
    significance = float(record["significance"])
    return p * (1 - CONFIDENCE) / significance
