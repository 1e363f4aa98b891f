"""What the extract audit gives, and what its evidence holds."""

from __future__ import annotations

import pandas as pd

from spark_audit.audits.columns import COUNT, FLAG, texts
from spark_audit.audits.contract import Metric
from spark_audit.audits.extract.tries import SAMPLERS
from spark_audit.scoring.table import Column

METRICS = (
    Metric(
        "greedy_rate",
        "verbatim",
        rate=True,
        learned=1,
        missing=("",),
        glance={"": "identifiers written verbatim"},
        headline={"": "rate of verbatim extraction"},
        definitions={
            "verbatim, n_0.5": "share of spans that greedy decoding writes after their "
            "true prefix; draws after which a span has come up with probability one "
            "half. Both hold for one tokenisation: lower bounds of what can be "
            "extracted."
        },
    ),
    Metric(
        "n50_median",
        "median n_0.5",
        unit="tries",
        learned=-1,
        variants=SAMPLERS,
        missing=SAMPLERS,
    ),
)

COLUMNS = {
    **texts("checkpoint", "set", "split", "task", "type", "origin", "cluster"),
    **texts("canary_id", "part"),
    "dose": COUNT,
    "first": FLAG,
    "n_tokens": Column("whole", low=1),
    **dict.fromkeys(("greedy", "greedy_sure"), FLAG),
    "logp_t1": Column("number", high=0),
    # Minus infinity where sampling cannot give it.
    "logp_top40": Column("number", low=float("-inf"), high=1e-3),
}

LATER = {
    "logp_cold": Column("number", low=float("-inf"), high=1e-3, null=True),
    "prompt": Column("text", null=True),
    **{
        name: Column("whole", low=0, null=True)
        for name in ("span", "parts", "parts_right")
    },
    **{name: Column("whole", low=-1, null=True) for name in ("string", "lead", "home")},
    "stratum": Column("number", null=True),
    **{name: Column("flag", null=True) for name in ("near", "given", "elsewhere")},
}


def flaw(evidence: pd.DataFrame) -> str:
    """What is wrong between rows of the evidence."""
    planted = evidence[evidence["canary_id"] != ""]
    first = planted.groupby(["checkpoint", "canary_id", "part"])["first"].any()
    return "" if first.all() else "holds a canary without its first row"
