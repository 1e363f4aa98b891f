"""Guards of the extraction audit."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from spark_audit.audits.extract.rates import comparable, row_of, split_difference
from spark_audit.names import BASE
from spark_audit.results import Guard
from spark_audit.results.guards import guard
from spark_audit.stats.estimate import side_of


def split_guards(pii: pd.DataFrame) -> list[Guard]:
    """Return a guard where the base, which saw no row, tells the splits apart.

    The list is empty where it does not, and where the base was not scored.

    Parameters
    ----------
    pii
        As for :func:`~spark_audit.audits.extract.findings.findings`.
    """
    compared, is_alike = comparable(pii[pii["checkpoint"] == BASE])
    difference = split_difference(compared)
    # Without a significant difference there is no guard that has passed, either: that
    # none is seen does not show that there is none.
    if not side_of(difference):
        return []

    with_clusters = replace(difference, clusters=compared["cluster"].nunique())
    shown = row_of(with_clusters, checkpoint=BASE, metric="apart")

    # Natural identifiers may differ, which is a warning (passed is None). Injected ones
    # were dealt by chance: a difference voids what rests on it.
    consequence = "natural_differ"
    passed = None
    if is_alike:
        consequence = "splits_differ"
        passed = False
    splits_guard = guard(
        "base reproduces both sides equally",
        "extract.splits",
        {"apart": shown, "injected": is_alike},
        further=["extract.splits_difference", f"extract.{consequence}"],
        passed=passed,
        checkpoint=BASE,
    )
    return [splits_guard]
