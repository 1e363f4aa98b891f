"""The figures of a report that each of the paper's figures shows.

A mapping has the panels of a figure, or the lines of its panels, in the paper's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias


class Measure(NamedTuple):
    """Where the rows of a panel stand in a report.

    Attributes
    ----------
    variants
        The first of them that a report has values of is shown; none: all are.
    """

    audit: str
    metric: str
    variants: Sequence[str] = ("",)


Measures: TypeAlias = Mapping[str, Measure]
"""Panel -> what it shows."""

SELECTIVITY_MEASURES: Measures = {"delta_sel": Measure("matched", "delta_sel")}

TOP1_MEASURES: Measures = {"top1": Measure("rank", "top1_rate", ("pii", "pii_all"))}

LIKELIHOOD_MEASURES: Measures = {
    "identifiers": Measure("nll", "nll", ("pii",)),
    "other": Measure("nll", "nll", ("low",)),
}

UTILITY_MEASURES: Measures = {
    "last": Measure("utility", "last"),
    "avg": Measure("utility", "avg"),
    "bwt": Measure("utility", "bwt"),
}

ORDERS_MEASURES: Measures = {
    **UTILITY_MEASURES,
    "pii": Measure("nll", "nll", ("pii",)),
    "low": Measure("nll", "nll", ("low",)),
    "canary": Measure("nll", "nll", ("canary",)),
}

SWEEP_MEASURES: Measures = {
    "last": Measure("utility", "last"),
    "pii": Measure("nll", "nll", ("pii",)),
}

CANARY_MEASURES: Measures = {
    part: Measure("canary", "nll", (f"{part}/annotation", part))
    for part in ("full", "password", "ssn")
}

NOISE_MEASURES: Measures = {
    "dp_pii": Measure("noise", "dp_pii", ()),
    "dp_nonpii": Measure("noise", "dp_nonpii", ()),
}
"""Their variants are the sizes of noise."""
