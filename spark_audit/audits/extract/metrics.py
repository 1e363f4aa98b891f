"""What the extract audit gives, and what its evidence holds."""

from __future__ import annotations

from spark_audit.audits.contract import Metric
from spark_audit.audits.extract.tries import SAMPLERS

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

COLUMNS = (
    *("checkpoint", "set", "split", "task", "type", "origin", "cluster", "canary_id"),
    *("part", "dose", "first", "n_tokens", "greedy", "greedy_sure"),
    *("logp_t1", "logp_top40", "logp_cold", "prompt", "span", "parts", "parts_right"),
    *("string", "lead", "home", "stratum", "near", "given", "elsewhere"),
)
