"""What a statistic, an audit and a report hand on: estimates, rows, the report."""

from spark_audit.results.estimate import Estimate, Interval, Status, number
from spark_audit.results.report import CheckpointFacts, ManifestFacts, Report
from spark_audit.results.rows import (
    OF_REPORT,
    AuditResult,
    Claim,
    Contrast,
    Family,
    Finding,
    Guard,
    Over,
    Row,
    by_severity,
)

__all__ = [
    "OF_REPORT",
    "AuditResult",
    "CheckpointFacts",
    "Claim",
    "Contrast",
    "Estimate",
    "Family",
    "Finding",
    "Guard",
    "Interval",
    "ManifestFacts",
    "Over",
    "Report",
    "Row",
    "Status",
    "by_severity",
    "number",
]
