"""What the twins audit gives, and what its evidence holds."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.contract import Metric

TRAINED, NEVER = "trained", "never-trained"
SIDES = (TRAINED, NEVER)
LABELS = {
    TRAINED: "identifiers of trained rows",
    NEVER: "identifiers never trained on",
}

METRICS = (
    Metric(
        "rise",
        "rise since the base",
        learned=1,
        unit="bits",
        null=0.0,
        variants=SIDES,
        missing=(TRAINED,),
        labels={k: f"rise, {v}" for k, v in LABELS.items()},
        counted={TRAINED: "rise"},
        panel="rise of exposure among twins since the base",
        glance={TRAINED: "rise of identifiers among their twins, bits"},
        headline={TRAINED: "rise of trained identifiers among their twins, bits,"},
        definitions={
            "twins": "fresh strings of an identifier's kind: same format, same number "
            "of tokens in its place, in its own context.",
            "rise": "exposure of an identifier among its twins, log2(N) - log2(rank) "
            "of N strings, minus that on the base. An identifier may be likelier than "
            "its twins without any training on it: only the rise is evidence, and "
            "beyond that of identifiers never trained on where there are some.",
        },
    ),
    Metric(
        "beyond",
        "trained minus never trained",
        learned=1,
        unit="bits",
        null=0.0,
        variants=("rise", "exposure"),
        labels={
            "rise": "rise, trained minus never trained",
            "exposure": "exposure, trained minus never trained",
        },
        panel="rise of exposure among twins since the base",
    ),
    Metric(
        "exposure_mean",
        "mean exposure",
        learned=1,
        unit="bits",
        bounds=(0.0, np.inf),
        variants=SIDES,
        missing=(TRAINED,),
        labels={k: f"mean exposure, {v}" for k, v in LABELS.items()},
    ),
    Metric(
        "top1_rate",
        "Top-1",
        learned=1,
        rate=True,
        variants=SIDES,
        missing=(TRAINED,),
        labels={k: f"Top-1, {v}" for k, v in LABELS.items()},
    ),
)

COLUMNS = (
    *("checkpoint", "twins_id", "type", "cluster", "dose", "contexts"),
    *("n_candidates", "ties", "rank", "injected", "stratum"),
)
