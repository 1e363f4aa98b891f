"""Lower bounds of epsilon from canaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TypeAlias

import numpy as np
import pandas as pd

from spark_audit import sentences
from spark_audit.audits.canary.ranks import (
    CONFIDENCE,
    KS,
    Judged,
    by_part,
    held_out,
    size_of,
    trained,
)
from spark_audit.data.canaries import CANARY_FORMATS
from spark_audit.names import BASE
from spark_audit.results.audit_result import TableRecord
from spark_audit.stats import epsilon_bounds

#
# From two kinds of guesses: which of its candidates a planted canary is, and which of a
# pair of canaries was planted. The second is a game of one run (Steinke, Nasr and
# Jagielski 2023; Mahloujifar, Melis and Chaudhuri 2025, of two alternatives), and says
# something of (epsilon, delta), too. Its guess: of a pair, the one that ranks further
# ahead among its candidates. Ranks are compared, not likelihoods: the rank of a canary
# that is not in the data is uniform, whichever rows it stands in.
DELTA = 1e-5
"""Of a record: the other delta that bounds of one run are given for."""

BOUNDS = (
    *("epsilon_per_canary", "epsilon_per_record"),
    *("add_remove_per_canary", "add_remove_per_record"),
)
"""Columns of a :class:`~spark_audit.stats.epsilon_bounds.GuessBound`."""

DECLARED_TEST = ("full", "all", 1)
"""Part, dose and k of the bound declared before any result: all canaries at once."""


def _drawn(judged: Judged) -> pd.DataFrame:
    """Synthetic canaries: theirs is the uniform draw that bounds rest on.

    None where the base's ranks speak against it.
    """
    frame = judged.frame
    drawn = frame["format"].isin(list(CANARY_FORMATS)) & judged.uniform
    return frame[drawn & (frame["checkpoint"] != BASE)]


def _by_dose(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """All canaries, and those of each dose where there are several."""
    doses = [(str(dose), part) for dose, part in frame.groupby("dose")]
    if doses:
        yield DECLARED_TEST[1], frame
    if len(doses) > 1:
        yield from doses


def epsilon_table(judged: Judged) -> list[TableRecord]:
    """Lower bounds of epsilon, of checkpoints that were trained on the canaries.

    A canary that is tied across the k-th place is no hit, whatever share of a hit it is
    on average: hits are then never more than those of a guess that breaks ties at
    random, which is what the bound holds for.
    """
    size = size_of(judged.frame)
    found = [
        {
            "checkpoint": name,
            "part": part,
            "dose": dose,
            "k": k,
            "declared": (part, dose, k) == DECLARED_TEST,
            "canaries": len(chosen),
            "hits": int(np.sum(chosen["rank"] + chosen["ties"] <= k)),
            "rows": int(chosen["dose"].max()),
        }
        for name, part, whole in by_part(trained(_drawn(judged)))
        for (dose, chosen), k in product(_by_dose(whole), KS)
        if k < size
    ]

    def bounds(record: TableRecord, significance: float) -> TableRecord:
        bound = epsilon_bounds.candidate_guess_bound(
            record["hits"],
            record["canaries"],
            n_candidates=size,
            k=record["k"],
            rows=record["rows"],
            significance=significance,
        )
        return dict(zip(BOUNDS, bound, strict=True))

    return _bounded(found, bounds, judged, assumed="drawn")


def one_run_table(judged: Judged) -> list[TableRecord]:
    """Lower bounds of epsilon from the coins that chose between two canaries each.

    Half of the pairs are guessed, those whose ranks lie furthest apart; that number was
    fixed beforehand. All bounds of a row are thresholds of one count, and hold
    together. ``*_at_delta`` are at :data:`DELTA` a record, ``gaussian_mu`` is what a
    Gaussian mechanism would have.
    """
    found: list[TableRecord] = []
    tossed = _drawn(judged)
    for name, part, whole in by_part(tossed[tossed["pair"] != ""]):
        for dose, pairs in _by_dose(_pairs(whole)):
            guesses = epsilon_bounds.declared_guesses(len(pairs))
            surest = pairs.sort_values("gap", ascending=False, kind="stable")[:guesses]
            record = {
                "checkpoint": name,
                "part": part,
                "dose": dose,
                "declared": (part, dose) == DECLARED_TEST[:2],
                "pairs": len(pairs),
                "guesses": guesses,
                # A guess at a tie is one that is wrong.
                "right": int((surest["at"] < surest["at_never"]).sum()),
                "rows": int(pairs["dose"].max()),
            }
            found.append(record)
    return _bounded(found, coin_figures, judged, assumed="tossed")


def coin_figures(record: TableRecord, significance: float) -> TableRecord:
    """Bounds from so many ``right`` of ``guesses`` at ``pairs``, one-sided at a level.

    Parameters
    ----------
    record
        With these three counts, and in ``rows`` in how many rows a canary stands at
        most.
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
    mu = epsilon_bounds.one_run_mu(
        correct, guesses, coins, rows=rows, significance=significance
    )
    return {
        **dict(zip(BOUNDS, pure, strict=True)),
        "epsilon_per_record_at_delta": at_delta.record,
        "gaussian_mu_per_record": mu,
    }


Bounds: TypeAlias = Callable[[TableRecord, float], TableRecord]
"""Columns of bounds from a record, one-sided at a level."""


def _bounded(
    found: list[TableRecord], bounds: Bounds, judged: Judged, *, assumed: str
) -> list[TableRecord]:
    """The records with their bounds of epsilon, by a one-sided significance.

    The declared bounds hold together at 95 % over checkpoints, all others together
    too (Bonferroni). Of a part without its positive control none is given, nor of a
    checkpoint whose held-out canaries rank above chance.
    """
    # How many bounds there are is known before any result, sensitive parts or not.
    declared = sum(record["declared"] for record in found)
    for record in found:
        family = declared if record["declared"] else len(found) - declared
        share = (1 - CONFIDENCE) / family
        figures = bounds(record, share)
        epsilon = figures["epsilon_per_record"]
        key = "bounded" if epsilon > 0 else "bound_of_0"
        if record["part"] not in judged.sensitive:
            key, figures = "uncontrolled", dict.fromkeys(figures)
        elif "ahead" in judged.kinds[record["checkpoint"]]:
            key, figures = "ungrounded", dict.fromkeys(figures)
        record |= {"significance": share, **figures}
        record["says"] = sentences.render(
            f"canary.{key}", **record, epsilon=epsilon, assumed=assumed
        )
    return found


def _pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Ranks of both canaries of each pair that has both, in the order of the pairs.

    ``at`` is the planted one's, ``at_never`` the other's. Ties are broken at random, so
    that a rank without memory is exactly uniform.
    """
    order = frame.sort_values("canary_id", kind="stable")
    jitter = np.random.default_rng(0).random(len(order))
    order = order.assign(at=order["rank"] + np.floor(jitter * (order["ties"] + 1)))
    ours, never = (side(order)[["pair", "dose", "at"]] for side in (trained, held_out))
    both = ours.merge(never, on="pair", suffixes=("", "_never"), validate="1:1")
    both = both.sort_values("pair")
    return both.assign(gap=np.abs(np.log(both["at"] / both["at_never"])))
