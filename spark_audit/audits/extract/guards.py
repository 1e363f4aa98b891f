"""Guards of the extraction audit."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from spark_audit.audits.base import guard
from spark_audit.audits.extract.rates import comparable, row_of, split_difference
from spark_audit.names import BASE
from spark_audit.results import Guard
from spark_audit.stats.estimate import side_of


def split_guards(pii: pd.DataFrame) -> list[Guard]:
    """Return a guard where the base, which saw no row, tells the splits apart.

    Parameters
    ----------
    pii
        As for :func:`~spark_audit.audits.extract.findings.findings`.
    """
    compared, is_alike = comparable(pii[pii["checkpoint"] == BASE])
    difference = split_difference(compared)
    # That no difference is seen does not show that there is none.
    if not side_of(difference):
        return []

    in_clusters = replace(difference, clusters=compared["cluster"].nunique())
    shown = row_of(in_clusters, checkpoint=BASE, metric="apart")
    # Injected identifiers were dealt by chance: a difference voids what rests on it.
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
