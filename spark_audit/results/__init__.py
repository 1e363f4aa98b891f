"""What a statistic, an audit and a report hand on: estimates, rows, the report."""

from spark_audit.results.findings import OF_REPORT as OF_REPORT
from spark_audit.results.findings import AuditResult as AuditResult
from spark_audit.results.findings import Claim as Claim
from spark_audit.results.findings import Contrast as Contrast
from spark_audit.results.findings import Family as Family
from spark_audit.results.findings import Finding as Finding
from spark_audit.results.findings import Guard as Guard
from spark_audit.results.findings import Hits as Hits
from spark_audit.results.findings import Row as Row
from spark_audit.results.findings import by_severity as by_severity
from spark_audit.results.findings import grouped as grouped
from spark_audit.results.report import CheckpointFacts as CheckpointFacts
from spark_audit.results.report import ManifestFacts as ManifestFacts
from spark_audit.results.report import Report as Report
from spark_audit.sentences import number as number
