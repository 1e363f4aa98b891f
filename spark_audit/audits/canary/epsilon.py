"""Lower bounds of epsilon from guesses at canaries drawn at random.

Two kinds of guesses: which of its candidates a planted canary is, and which of a pair
of canaries was planted. The second is a game of one run (Steinke, Nasr and Jagielski
2023; Mahloujifar, Melis and Chaudhuri 2025, of two alternatives), and says something of
(epsilon, delta), too. Its guess: of a pair, the one that ranks further ahead among its
candidates. Ranks are compared, not likelihoods: the rank of a canary that is not in the
data is uniform, whichever rows it stands in.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from spark_audit import sentences
from spark_audit.audits.canary.canary_tables import KS, Record
from spark_audit.audits.canary.rank_tests import LEVEL, by_part, held_out, trained
from spark_audit.data.canaries import FORMATS
from spark_audit.names import BASE
from spark_audit.stats.epsilon import (
    GuessBound,
    candidate_guess_bound,
    declared_guesses,
    one_run_bound,
    one_run_mu,
)

DELTA = 1e-5
"""Of a record: the other delta that bounds of one run are given for."""
DECLARED = ("full", "all", 1)
"""Part, dose and k of the bound declared before any result: all canaries at once."""


def epsilon_table(
    frame: pd.DataFrame,
    *,
    sensitive: Collection[str],
    lifted: Collection[str] = (),
) -> list[Record]:
    """Lower bounds of epsilon, of checkpoints that were trained on the canaries.

    Only synthetic canaries are taken: theirs is the uniform draw that bounds rest on.
    The declared bounds hold together at 95 % over checkpoints, all others together
    too (Bonferroni). Of a part without its positive control none is given, nor of a
    checkpoint in ``lifted``, whose held-out canaries rank above chance. A canary
    that is tied across the k-th place is no hit, whatever share of a hit it is on
    average: hits are then never more than those of a guess that breaks ties at random,
    which is what the bound holds for.
    """
    found: list[Record] = []
    hits: list[tuple[int, int]] = []
    drawn = frame[frame["format"].isin(list(FORMATS)) & (frame["checkpoint"] != BASE)]
    for name, part, whole in by_part(trained(drawn)):
        doses: list[tuple[str, pd.DataFrame]] = [("all", whole)]
        several = sorted(set(whole["dose"].tolist()))
        if len(several) > 1:
            doses += [(str(dose), whole[whole["dose"] == dose]) for dose in several]
        for label, chosen in doses:
            size = int(chosen["n_candidates"].iloc[0])
            for k in KS:
                if k >= size:
                    continue
                hits.append((int(np.sum(chosen["rank"] + chosen["ties"] <= k)), size))
                found.append(
                    {
                        "checkpoint": name,
                        "part": part,
                        "dose": label,
                        "k": k,
                        "declared": (part, label, k) == DECLARED,
                        "canaries": len(chosen),
                        "hits": hits[-1][0],
                        "rows": int(chosen["dose"].max()),
                    }
                )
    # How many bounds there are is known before any result, sensitive parts or not.
    declared = sum(record["declared"] for record in found)
    for record, (right, size) in zip(found, hits, strict=True):
        record["significance"] = _significance(record, declared, len(found))
        bound = candidate_guess_bound(
            right,
            record["canaries"],
            n_candidates=size,
            k=record["k"],
            rows=record["rows"],
            significance=record["significance"],
        )
        why = _withheld(record, sensitive, lifted)
        record.update(_figures(bound, why))
        record["says"] = _says(record, bound.record, why, assumed="drawn")
    return found


def one_run_table(
    frame: pd.DataFrame,
    *,
    sensitive: Collection[str],
    lifted: Collection[str] = (),
) -> list[Record]:
    """Lower bounds of epsilon from the coins that chose between two canaries each.

    Half of the pairs are guessed, those whose ranks lie furthest apart; that number was
    fixed beforehand. Withheld and corrected as in :func:`epsilon_table`, with one bound
    declared. All bounds of a row are thresholds of one count, and hold together.
    ``*_at_delta`` are at :data:`DELTA` a record,
    ``gaussian_mu`` is what a Gaussian mechanism would have.
    """
    found: list[Record] = []
    tossed = frame[frame["format"].isin(list(FORMATS)) & (frame["pair"] != "")]
    for name, part, whole in by_part(tossed[tossed["checkpoint"] != BASE]):
        both = _pairs(whole)
        several = sorted(set(both["dose"].tolist()))
        for label in ["all", *(several if len(several) > 1 else [])]:
            chosen = both if label == "all" else both[both["dose"] == label]
            if not len(chosen):
                continue
            guesses = declared_guesses(len(chosen))
            # A guess at a tie is one that is wrong.
            first = chosen.sort_values("gap", ascending=False, kind="stable")[:guesses]
            found.append(
                {
                    "checkpoint": name,
                    "part": part,
                    "dose": str(label),
                    "declared": (part, label) == DECLARED[:2],
                    "pairs": len(chosen),
                    "guesses": guesses,
                    "right": int((first["planted"] < first["held_out"]).sum()),
                    "rows": int(chosen["dose"].max()),
                }
            )
    declared = sum(record["declared"] for record in found)
    for record in found:
        record["significance"] = _significance(record, declared, len(found))
        count = record["right"], record["guesses"], record["pairs"]
        options = {"rows": record["rows"], "significance": record["significance"]}
        pure = one_run_bound(*count, **options)
        loose = one_run_bound(*count, delta=DELTA, **options)
        mu = one_run_mu(*count, **options)
        why = _withheld(record, sensitive, lifted)
        record.update(_figures(pure, why))
        record["epsilon_per_record_at_delta"] = None if why else loose.record
        record["gaussian_mu_per_record"] = None if why else mu
        record["says"] = _says(record, pure.record, why, assumed="tossed")
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


def _significance(record: Record, declared: int, bounds: int) -> float:
    """Each bound's share: the declared ones hold together, and all others do."""
    return (1 - LEVEL) / (declared if record["declared"] else bounds - declared)


def _withheld(
    record: Record, sensitive: Collection[str], lifted: Collection[str]
) -> str:
    """Why a bound is not given, as the key of a sentence; empty where it is."""
    if record["part"] not in sensitive:
        return "uncontrolled"
    return "ungrounded" if record["checkpoint"] in lifted else ""


def _figures(bound: GuessBound, why: str) -> Record:
    return {
        "epsilon_per_canary": None if why else bound.canary,
        "epsilon_per_record": None if why else bound.record,
        "add_remove_per_canary": None if why else bound.canary_add_remove,
        "add_remove_per_record": None if why else bound.record_add_remove,
    }


def _says(record: Record, epsilon: float, why: str, *, assumed: str) -> str:
    facts = {**record, "epsilon": epsilon, "assumed": assumed}
    key = why or ("bounded" if epsilon > 0 else "bound_of_0")
    return sentences.render(f"canary.{key}", **facts)
