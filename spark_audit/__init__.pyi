from spark_audit import audits as audits
from spark_audit import stats as stats
from spark_audit.checkpoints.loaded import Loaded as Loaded
from spark_audit.checkpoints.open import open_checkpoint as open_checkpoint
from spark_audit.data.examples import Example as Example
from spark_audit.data.examples import Span as Span
from spark_audit.data.examples import read_examples as read_examples
from spark_audit.data.pii import annotate_examples as annotate_examples
from spark_audit.manifest.build import build_manifest as build_manifest
from spark_audit.manifest.file import load_manifest as load_manifest
from spark_audit.manifest.file import write_manifest as write_manifest
from spark_audit.manifest.items import items_for as items_for
from spark_audit.manifest.items import manifest_items as manifest_items
from spark_audit.manifest.schema import Manifest as Manifest
from spark_audit.pipeline.request import Request as Request
from spark_audit.pipeline.run import run as run
from spark_audit.report.folder import read_report as read_report
from spark_audit.report.states import standings as standings
from spark_audit.results import AuditResult as AuditResult
from spark_audit.results import Estimate as Estimate
from spark_audit.results import Report as Report
from spark_audit.scoring.score import score as score
from spark_audit.scoring.table import Pass as Pass
from spark_audit.scoring.table import TokenTable as TokenTable

__all__: list[str]
