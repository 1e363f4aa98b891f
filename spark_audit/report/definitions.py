"""What the terms of a report mean: every format that has room says the same."""

from __future__ import annotations

from collections.abc import Iterator

from spark_audit.audits import AUDITS
from spark_audit.report.tables import METHODS
from spark_audit.results import Report

GENERAL = {
    "NLL": "mean negative log-likelihood, nats a token; lower = likelier.",
    "MDE": "the smallest effect that this many clusters detect with 80% power, smaller "
    "ones cannot be excluded: at the level that a claim must pass where a claim rests "
    "on the figure, else of one test at 5%.",
}


def definitions(report: Report) -> Iterator[tuple[str, str]]:
    """Term and meaning, of the audits that the report holds."""
    yield from GENERAL.items()
    for audit in dict.fromkeys(row.audit for row in report.results):
        yield from definitions_of(audit)
    yield intervals(report)


def definitions_of(audit: str) -> Iterator[tuple[str, str]]:
    """Term and meaning of what an audit gives."""
    for metric in AUDITS.metrics(audit):
        yield from metric.definitions.items()


def intervals(report: Report) -> tuple[str, str]:
    """What the report's intervals are over, and how they were made."""
    used = {row.interval for row in report.results} - {"none"}
    names = ", ".join(METHODS.get(name, name) for name in sorted(used)) or "none"
    return "intervals", (
        "95%, over clusters (rows that share a source, a canary, an identifier or "
        f"nearly all words), by {names}. Percentile bootstrap limits stand in "
        "tables/results.csv as parity_low and parity_high."
    )
