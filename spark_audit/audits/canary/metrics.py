"""What the canary audit gives, and what its evidence holds."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.contract import Metric
from spark_audit.data.canaries import RANKED

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

COLUMNS = (
    *("checkpoint", "kind", "canary_id", "part", "example", "format", "dose"),
    *("contexts", "n_candidates", "ties", "rank", "held_out"),
    *("nll_sum", "nll_mean", "posterior_bits", "extrapolated", "extrapolated_ks"),
    *("extrapolated_clipped", "pair"),
)
