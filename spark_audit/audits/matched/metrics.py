"""What the matched audit gives, and what its evidence holds."""

from __future__ import annotations

import numpy as np

from spark_audit.audits.contract import Metric
from spark_audit.stats.selectivity import UNLIKE

_SIDES = "change since the reference, in trained rows and in rows never trained on"

METRICS = (
    Metric(
        "memory",
        "difference (memory)",
        unit="nats",
        learned=-1,
        panel=_SIDES,
        variants=("", "trend"),
        labels={"trend": "memory for each doubling of the dose"},
        counted={"": "difference"},
        glance={"": "identifiers, trained minus never trained, nats"},
        headline={"": "change of identifiers, trained minus never trained,"},
        definitions={
            "memory": "change of the NLL of identifiers in trained rows since the "
            "reference, minus that of identifiers of the same kinds (type; where "
            "injected, format and sentence too; else form and place) in rows never "
            "trained on, which stand in no trained row. 0 without memory; below 0, "
            "what was trained on is likelier than others of its kind; above 0, less "
            "likely, which tells it as well. Where the two were unequally hard on the "
            "reference already, the "
            "difference must clear that too."
        },
    ),
    Metric(
        "pii_change",
        unit="nats",
        learned=-1,
        panel=_SIDES,
        variants=("trained", "never-trained"),
        labels={
            "trained": "identifiers of trained rows",
            "never-trained": "identifiers of rows never trained on",
        },
    ),
    Metric(
        "kind",
        "kind, against equally hard text",
        unit="nats",
        panel=_SIDES,
        definitions={
            "kind": "change of identifiers never trained on minus that of their "
            "controls: below 0, their formats were learned; above 0, identifiers were "
            "made less likely whoever's they are."
        },
    ),
    Metric(
        "specific",
        "specific selectivity",
        unit="nats",
        panel=_SIDES,
        definitions={
            "specific selectivity": "what the change of Delta_sel in trained rows has "
            "beyond the kind. Kind and specific selectivity add up to it."
        },
    ),
    Metric("low_change", "low-sensitivity text", unit="nats", panel=_SIDES),
    *(
        Metric(name, f"NLL of {whose}", unit="nats", bounds=(0.0, np.inf), learned=-1)
        for name, whose in (("nll_pii", "PII"), ("nll_control", "controls"))
    ),
    Metric(
        "delta_sel",
        "Delta_sel",
        unit="nats",
        learned=-1,
        variants=("", "change", "span-weighted", "source-weighted"),
        hidden=("span-weighted", "source-weighted"),
        labels={"change": "change since reference"},
        counted={"change": "change"},
        glance={"change": "change of Delta_sel since reference, nats"},
        headline={"change": "change of Delta_sel"},
        definitions={
            "Delta_sel": "NLL of annotated identifiers minus NLL of their controls: "
            "non-PII spans of the same example, of equal token count and equally "
            "difficult for the reference model (SPARK, Difficulty-Matched Selectivity "
            "Evaluation).",
            "change since reference": "Delta_sel minus what matching left over on the "
            "reference itself, pair by pair. Ordinary fine-tuning moves it: formats "
            "are learned, and kinds of text drift unequally.",
        },
    ),
    Metric(
        "rtm_bias",
        "R1 (one mechanism)",
        unit="nats",
        variants=("", "change"),
        labels={"change": "R1 of the change"},
        definitions={
            "R1": "what one mechanism, regression to the mean, would give if all text "
            "drifted alike: (1 - beta) times the reference gap between identifiers "
            "and other text; for the change, without what matching left over. Drift "
            "that depends on difficulty or on the kind of token gives other values, "
            "often of the other sign: R1 is no null, and nothing is tested against it."
        },
    ),
    Metric(
        "did",
        "DiD",
        unit="nats",
        learned=-1,
        glance={"": "DiD, nats"},
        headline={"": "DiD"},
        definitions={
            "DiD": "Delta_sel of a checkpoint minus that of the baseline, paired by "
            "source. Nothing is claimed of it where the drift of low-sensitivity text "
            "of the same rows differs between the two by more than "
            f"{UNLIKE:.0%} of the DiD and the paired interval of that difference "
            "excludes 0: unequal drift can make a DiD. Where it does not, identifiers "
            "moved; why is not shown."
        },
    ),
    Metric(
        "did_alike",
        "DiD against look-alikes",
        unit="nats",
        definitions={
            "DiD against look-alikes": "NLL of identifiers on a checkpoint minus that "
            "on the baseline, minus the same of other tokens of their classes (with "
            "digits, with capitals, other letters, neither) in the same rows."
        },
    ),
)
