"""What a statistic, an audit and a report hand on: estimates, rows, the report."""

from spark_audit.results.estimate import Estimate, Interval, Status
from spark_audit.results.findings import (
    OF_REPORT,
    AuditResult,
    Claim,
    Finding,
    Guard,
    Hits,
    by_severity,
)
from spark_audit.results.report import CheckpointFacts, ManifestFacts, Report
from spark_audit.results.rows import Contrast, Family, Over, Row
from spark_audit.sentences import number

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
    "Hits",
    "Interval",
    "ManifestFacts",
    "Over",
    "Report",
    "Row",
    "Status",
    "by_severity",
    "number",
]
