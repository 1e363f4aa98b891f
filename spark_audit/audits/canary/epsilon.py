"""Lower bounds of epsilon from guesses at canaries drawn at random."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from spark_audit.audits.canary.chance import (
    LEVEL,
)
from spark_audit.audits.canary.ranks import (
    by_part,
    trained,
)
from spark_audit.audits.canary.tables import KS, Record
from spark_audit.audits.contract import BASE
from spark_audit.audits.wording import confidence
from spark_audit.data.canaries import FORMATS
from spark_audit.stats.epsilon import candidate_guess_bound

STATED = "each canary was drawn at random from its candidates"
UNCONTROLLED = "nothing: the positive control was not detected"
UNGROUNDED = "nothing: held-out canaries rank above chance too"
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
        several_of = declared if record["declared"] else len(found) - declared
        record["significance"] = (1 - LEVEL) / several_of
        bound = candidate_guess_bound(
            right,
            record["canaries"],
            n_candidates=size,
            k=record["k"],
            rows=record["rows"],
            significance=record["significance"],
        )
        why = UNCONTROLLED if record["part"] not in sensitive else ""
        why = why or (UNGROUNDED if record["checkpoint"] in lifted else "")
        claimed = not why
        record.update(
            {
                "epsilon_per_canary": bound.canary if claimed else None,
                "epsilon_per_record": bound.record if claimed else None,
                "add_remove_per_canary": bound.canary_add_remove if claimed else None,
                "add_remove_per_record": bound.record_add_remove if claimed else None,
                "says": why or _says(record, bound.record),
            }
        )
    return found


def _says(record: Record, epsilon: float) -> str:
    if epsilon <= 0:
        return "a bound of 0 proves nothing"
    which = "declared" if record["declared"] else "other"
    return (
        f"the training run is not eps-DP for eps < {epsilon:.3f} a record at "
        f"{confidence(record['significance'])} confidence (so that all {which} bounds "
        f"hold together at 95%; pure DP (delta 0), if {STATED})"
    )
