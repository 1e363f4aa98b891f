"""What editors know of ``sa.audits``; tests/test_init.py holds it to the audits."""

from typing import Protocol

from spark_audit.audits.contract import Baseline, Tables
from spark_audit.audits.runner import Audits
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult

AUDITS: Audits

def matched(
    tables: Tables,
    manifest: Manifest,
    *,
    baseline: Baseline = None,
    preset: str | None = None,
    seed: int = 0,
    replicates: int = 0,
    placebo_draws: int = 200,
    rematched: bool = True,
    null: str | None = None,
) -> AuditResult: ...
def rank(
    tables: Tables,
    manifest: Manifest,
    *,
    baseline: Baseline = None,
    preset: str | None = None,
    seed: int = 0,
) -> AuditResult: ...
def nll(
    tables: Tables,
    manifest: Manifest,
    *,
    baseline: Baseline = None,
    preset: str | None = None,
    seed: int = 0,
) -> AuditResult: ...
def canary(
    tables: Tables,
    manifest: Manifest,
    *,
    baseline: Baseline = None,
    preset: str | None = None,
    seed: int = 0,
) -> AuditResult: ...
def twins(
    tables: Tables,
    manifest: Manifest,
    *,
    baseline: Baseline = None,
    preset: str | None = None,
    seed: int = 0,
) -> AuditResult: ...
def mia(
    tables: Tables,
    manifest: Manifest,
    *,
    baseline: Baseline = None,
    preset: str | None = None,
    seed: int = 0,
    blind_permutations: int = 199,
    reference: str | None = None,
) -> AuditResult: ...
def extract(
    tables: Tables,
    manifest: Manifest,
    *,
    baseline: Baseline = None,
    preset: str | None = None,
    seed: int = 0,
    prompts: str = "last16,cue",
) -> AuditResult: ...
def noise(
    tables: Tables,
    manifest: Manifest,
    *,
    baseline: Baseline = None,
    preset: str | None = None,
    seed: int = 0,
    sigmas: str = "0.01,0.05,0.1,0.5",
    draws: int = 3,
) -> AuditResult: ...
def utility(
    tables: Tables,
    manifest: Manifest,
    *,
    baseline: Baseline = None,
    preset: str | None = None,
    seed: int = 0,
    order: str | None = None,
    scorer: str = "normalised",
) -> AuditResult: ...

class _Audit(Protocol):
    def __call__(
        self, tables: Tables, manifest: Manifest, **options: object
    ) -> AuditResult: ...

# One that is added as a file alone.
def __getattr__(name: str) -> _Audit: ...
