"""Results: evidence, rows, findings, and the report that holds them.

Import from here what audits and readers of reports need. Evidence is imported from its
own file, since it needs pandas and Arrow, which take long to load.
"""

from spark_audit.results.audit_result import AuditResult as AuditResult
from spark_audit.results.findings import OF_REPORT as OF_REPORT
from spark_audit.results.findings import Claim as Claim
from spark_audit.results.findings import Finding as Finding
from spark_audit.results.findings import Hits as Hits
from spark_audit.results.findings import by_severity as by_severity
from spark_audit.results.guards import Guard as Guard
from spark_audit.results.report import CheckpointFacts as CheckpointFacts
from spark_audit.results.report import ManifestFacts as ManifestFacts
from spark_audit.results.report import Report as Report
from spark_audit.results.rows import Contrast as Contrast
from spark_audit.results.rows import Family as Family
from spark_audit.results.rows import Row as Row
from spark_audit.results.rows import grouped as grouped
from spark_audit.results.training import TrainingFacts as TrainingFacts
from spark_audit.sentences import number as number
