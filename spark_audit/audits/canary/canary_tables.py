"""Tables of the canary audit: doses, and bounds of epsilon.

Lower bounds of epsilon come from two kinds of guesses: which of its candidates a
planted canary is, and which of a pair of canaries was planted. The second is a game of
one run (Steinke, Nasr and Jagielski 2023; Mahloujifar, Melis and Chaudhuri 2025, of two
alternatives), and says something of (epsilon, delta), too. Its guess: of a pair, the
one that ranks further ahead among its candidates. Ranks are compared, not likelihoods:
the rank of a canary that is not in the data is uniform, whichever rows it stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from spark_audit import sentences
from spark_audit.audits.canary.rank_tests import (
    LEVEL,
    Judged,
    by_part,
    held_out,
    p_by_chance,
    resolved,
    tied,
    trained,
)
from spark_audit.data.canaries import FORMATS
from spark_audit.names import BASE
from spark_audit.stats.chance_ranks import null_mean
from spark_audit.stats.epsilon import (
    GuessBound,
    candidate_guess_bound,
    declared_guesses,
    one_run_bound,
    one_run_mu,
)
from spark_audit.stats.intervals import ratio_estimate

Record = dict[str, Any]

KS = (1, 10)
"""Numbers of guesses that epsilon is bounded from: fixed here, before any result."""


def dose_table(frame: pd.DataFrame) -> list[Record]:
    """Each dose compared with chance; dose 0 are the held-out canaries."""
    found: list[Record] = []
    for name, part, whole in by_part(frame):
        doses = whole["dose"].where(~whole["held_out"].astype(bool), 0)
        for dose, chosen in whole.groupby(doses):
            size, n = int(chosen["n_candidates"].iloc[0]), len(chosen)
            bounds = (0.0, float(np.log2(size)))
            mean = ratio_estimate(chosen["exposure"], np.ones(n), bounds=bounds)
            low, high = null_mean(chosen["n_candidates"].to_numpy()).band(LEVEL)
            # Where nothing is ranked there is no test.
            able = bool(resolved(chosen).any())
            record = {
                "checkpoint": name,
                "part": part,
                "dose": int(dose),
                "held_out": bool(chosen["held_out"].iloc[0]),
                "canaries": n,
                "tied": tied(chosen),
                "exposure_mean": float(chosen["exposure"].mean()),
                "exposure_low": mean.low,
                "exposure_high": mean.high,
                "exposure_most": bounds[1],
                "chance_exposure_low": low,
                "chance_exposure_high": high,
                "p_remembered": p_by_chance(chosen, "exposure") if able else None,
                "p_suppressed": p_by_chance(chosen, "lower_tail") if able else None,
                "status": "ok" if able else "not_resolvable",
            }
            found.append(record)
    return found


# --- bounds of epsilon ----------------------------------------------------------------

DELTA = 1e-5
"""Of a record: the other delta that bounds of one run are given for."""
DECLARED = ("full", "all", 1)
"""Part, dose and k of the bound declared before any result: all canaries at once."""


def _doses_of(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """All canaries, and those of each dose where there are several."""
    yield DECLARED[1], frame
    several = frame["dose"].nunique() > 1
    yield from ((str(dose), part) for dose, part in frame.groupby("dose") if several)


def epsilon_table(frame: pd.DataFrame, judged: Judged) -> list[Record]:
    """Lower bounds of epsilon, of checkpoints that were trained on the canaries.

    A canary that is tied across the k-th place is no hit, whatever share of a hit it is
    on average: hits are then never more than those of a guess that breaks ties at
    random, which is what the bound holds for.
    """
    found: list[Record] = []
    # The same for all canaries.
    size = int(frame["n_candidates"].max()) if len(frame) else 0
    guesses = [k for k in KS if k < size]
    for name, part, whole in by_part(trained(_drawn(frame))):
        for (label, chosen), k in product(_doses_of(whole), guesses):
            record = {
                "checkpoint": name,
                "part": part,
                "dose": label,
                "k": k,
                "declared": (part, label, k) == DECLARED,
                "canaries": len(chosen),
                "hits": int(np.sum(chosen["rank"] + chosen["ties"] <= k)),
                "rows": int(chosen["dose"].max()),
            }
            found.append(record)

    def bounds(record: Record, share: float) -> Record:
        count = record["hits"], record["canaries"]
        options = {"k": record["k"], "rows": record["rows"], "n_candidates": size}
        return _figures(candidate_guess_bound(*count, **options, significance=share))

    return _bounded(found, bounds, judged, assumed="drawn")


def one_run_table(frame: pd.DataFrame, judged: Judged) -> list[Record]:
    """Lower bounds of epsilon from the coins that chose between two canaries each.

    Half of the pairs are guessed, those whose ranks lie furthest apart; that number was
    fixed beforehand. All bounds of a row are thresholds of one count, and hold
    together. ``*_at_delta`` are at :data:`DELTA` a record, ``gaussian_mu`` is what a
    Gaussian mechanism would have.
    """
    found: list[Record] = []
    tossed = _drawn(frame)
    for name, part, whole in by_part(tossed[tossed["pair"] != ""]):
        for label, chosen in _doses_of(_pairs(whole)):
            if not len(chosen):
                continue
            guesses = declared_guesses(len(chosen))
            # A guess at a tie is one that is wrong.
            first = chosen.sort_values("gap", ascending=False, kind="stable")[:guesses]
            record = {
                "checkpoint": name,
                "part": part,
                "dose": label,
                "declared": (part, label) == DECLARED[:2],
                "pairs": len(chosen),
                "guesses": guesses,
                "right": int((first["planted"] < first["held_out"]).sum()),
                "rows": int(chosen["dose"].max()),
            }
            found.append(record)
    return _bounded(found, coin_figures, judged, assumed="tossed")


def coin_figures(record: Record, share: float) -> Record:
    """Bounds from so many ``right`` of ``guesses`` at ``pairs``, one-sided at a level.

    A canary stands in ``rows`` at most.
    """
    count = record["right"], record["guesses"], record["pairs"]
    options: dict[str, Any] = {"rows": record["rows"], "significance": share}
    return {
        **_figures(one_run_bound(*count, **options)),
        "epsilon_per_record_at_delta": one_run_bound(
            *count, delta=DELTA, **options
        ).record,
        "gaussian_mu_per_record": one_run_mu(*count, **options),
    }


def _figures(bound: GuessBound) -> Record:
    return {
        "epsilon_per_canary": bound.canary,
        "epsilon_per_record": bound.record,
        "add_remove_per_canary": bound.canary_add_remove,
        "add_remove_per_record": bound.record_add_remove,
    }


def _drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """Synthetic canaries: theirs is the uniform draw that bounds rest on."""
    drawn = frame["format"].isin(list(FORMATS))
    return frame[drawn & (frame["checkpoint"] != BASE)]


def _bounded(
    found: list[Record],
    bounds: Callable[[Record, float], Record],
    judged: Judged,
    *,
    assumed: str,
) -> list[Record]:
    """The records with their bounds of epsilon, by a one-sided significance.

    The declared bounds hold together at 95 % over checkpoints, all others together
    too (Bonferroni). Of a part without its positive control none is given, nor of a
    checkpoint whose held-out canaries rank above chance.
    """
    # How many bounds there are is known before any result, sensitive parts or not.
    declared = sum(record["declared"] for record in found)
    for record in found:
        others = len(found) - declared
        share = (1 - LEVEL) / (declared if record["declared"] else others)
        figures = bounds(record, share)
        epsilon = figures["epsilon_per_record"]
        why = ""
        if record["part"] not in judged.sensitive:
            why = "uncontrolled"
        elif record["checkpoint"] in judged.lifted:
            why = "ungrounded"
        record["significance"] = share
        record |= dict.fromkeys(figures) if why else figures
        key = why or ("bounded" if epsilon > 0 else "bound_of_0")
        facts = {**record, "epsilon": epsilon, "assumed": assumed}
        record["says"] = sentences.render(f"canary.{key}", **facts)
    return found


def _pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Both ranks of each pair, in the order of the pairs: of those that have both.

    Ties are broken at random, so that a rank without memory is exactly uniform.
    """
    order = frame.sort_values("canary_id", kind="stable")
    jitter = np.random.default_rng(0).random(len(order))
    order = order.assign(at=order["rank"] + np.floor(jitter * (order["ties"] + 1)))
    planted, never = (side(order).set_index("pair") for side in (trained, held_out))
    both = planted.index.intersection(never.index).sort_values()
    ranks = {"planted": planted["at"][both], "held_out": never["at"][both]}
    found = pd.DataFrame({**ranks, "dose": planted["dose"][both]})
    return found.assign(gap=np.abs(np.log(found["planted"] / found["held_out"])))


def tables_of(frame: pd.DataFrame, judged: Judged) -> dict[str, list[Record]]:
    """Every table, by its name."""
    # Without a uniform draw bounds of epsilon have no ground.
    drawn = frame if judged.uniform else frame[:0]
    return {
        "canary_by_dose": dose_table(frame),
        "canary_epsilon": epsilon_table(drawn, judged),
        "canary_one_run": one_run_table(drawn, judged),
    }
