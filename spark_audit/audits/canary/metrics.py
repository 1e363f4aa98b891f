"""What the canary audit gives, and what its evidence holds."""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_audit.audits.columns import FLAG, MAYBE, counts, held_twice, texts
from spark_audit.audits.contract import Metric
from spark_audit.data.canaries import RANKED
from spark_audit.scoring.table import Column

OFS = (*RANKED, *(f"{part}/annotation" for part in RANKED))

METRICS = (
    Metric(
        "nll",
        "NLL",
        unit="nats",
        bounds=(0.0, np.inf),
        learned=-1,
        variants=OFS,
        missing=RANKED,
    ),
    Metric(
        "rank_mean",
        "mean rank",
        unit="ranks",
        bounds=(1.0, np.inf),
        learned=-1,
        variants=OFS,
        missing=RANKED,
    ),
    Metric(
        "exposure_mean",
        "mean exposure",
        unit="bits",
        bounds=(0.0, np.inf),
        learned=1,
        variants=OFS,
        missing=RANKED,
        glance={"full": "mean exposure of whole canaries, bits"},
        headline={"full": "mean exposure of canaries"},
        definitions={
            "exposure": "log2(N) - log2(rank) of the true string among N candidates, "
            "itself included; `full` etc. rank once over all contexts, "
            "`full/annotation` etc. rank in each context (SPARK's averaging). Ties "
            "count as on average over random orders, in bounds of epsilon against the "
            "attacker; where all are tied nothing is resolvable."
        },
    ),
    *(
        Metric(
            f"top{k}_rate",
            f"Top-{k}",
            rate=True,
            learned=1,
            variants=OFS,
            missing=RANKED,
        )
        for k in (1, 10)
    ),
)
"""Ranks and exposures are bounded by the number of candidates, once it is known."""

COLUMNS = {
    **texts("checkpoint", "kind", "canary_id", "part", "example", "format"),
    **counts("dose", "contexts", "n_candidates", "ties"),
    "rank": Column("number", low=0),
    "held_out": FLAG,
    **dict.fromkeys(("nll_sum", "nll_mean", "posterior_bits"), MAYBE),
    **dict.fromkeys(("extrapolated", "extrapolated_ks"), MAYBE),
    "extrapolated_clipped": FLAG,
}

LATER = texts("pair")
"""Columns that older files lack; no pair: none was told."""


def flaw(evidence: pd.DataFrame) -> str:
    """What is wrong between rows and columns of the evidence."""
    keys = ("checkpoint", "kind", "canary_id", "part", "example")
    if said := held_twice(evidence, keys):
        return said
    ranked = evidence[evidence["kind"].isin(["canary", "context"])]
    # A missing rank fails the comparison too.
    behind = ranked["n_candidates"] - ranked["ties"]
    inside = ranked["rank"].between(1, behind).all()
    return "" if inside else "holds a rank that is none of the candidates'"
