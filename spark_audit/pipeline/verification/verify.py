"""Hold a report against its own evidence, and name whatever does not follow from it.

First each audit concludes again from its evidence file, and the report must state
exactly these conclusions. Then its shared files (pages, ``tables/*.csv``, figures) are
rendered again from ``report.json``, and must be the same to the byte. What no evidence
shows is listed by
:func:`~spark_audit.pipeline.verification.trust.taken_on_trust`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_audit.audits import about, audit_names
from spark_audit.errors import SparkError
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.compare import NOT_INSTALLED, ComparedReport
from spark_audit.pipeline.verification.checked import NOT_NAMED, Checked
from spark_audit.pipeline.verification.conclusions import conclusion_checks
from spark_audit.pipeline.verification.counts import (
    count_checks,
    manifest_checks,
)
from spark_audit.pipeline.verification.files import (
    MENDED_BY_RENDERING,
    shared_file_checks,
)
from spark_audit.pipeline.verification.statements import statement_checks, weight_checks
from spark_audit.report.folder import read_report
from spark_audit.report.gate.statement import read_rules
from spark_audit.results import Report
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import OF_REPORT

NO_EVIDENCE = "left no evidence, so nothing can be concluded from it"
"""Problem of an audit that the report states something of."""

NOTHING = "nothing could be verified: the report has no evidence"
"""Problem of the whole report."""

OTHER_BYTES_OF_CHANGED = (
    "is not what report.json gives, and report.json does not follow from its evidence: "
    "do not render it again, take the report from whoever made it, or audit again"
)
"""Problem of a shared file where ``report.json`` itself is wrong."""

NOT_AUDITS = (OF_REPORT, "manifest")
"""What rows and tables may be of without being an audit's, which needs no evidence."""


def verify(
    folder: Path,
    *,
    attestation: Path | None = None,
    ckpt: Sequence[str] = (),
    base: str | None = None,
    manifest: Manifest | None = None,
) -> Iterator[Checked]:
    """Yield the name of each thing that is verified, and its problem; empty: none.

    Parameters
    ----------
    folder
        The folder of the report.
    attestation
        A statement of ``gate --attest``, which must equal the one that this report
        gives, byte by byte.
    ckpt, base
        Checkpoints whose weights must be those of the report.
    manifest
        The manifest, which must be that of the report; needed for counts and tables.

    Raises
    ------
    InputError
        If a checkpoint is not in the report, or a statement cannot be read.
    """
    report = read_report(folder)
    # Only to refuse an unreadable statement early, before minutes of concluding again.
    if attestation is not None:
        read_rules(attestation)

    follows_from_evidence = True
    for name, problem in evidence_checks(report, folder):
        if problem:
            follows_from_evidence = False
        yield name, problem

    if manifest is not None:
        yield from manifest_checks(report, manifest)

    for name, problem in shared_file_checks(report, folder, manifest):
        # Here report.json itself was changed: the advice to render files again would
        # write the changed figures into the honest pages.
        if problem in MENDED_BY_RENDERING and not follows_from_evidence:
            yield name, OTHER_BYTES_OF_CHANGED
        else:
            yield name, problem

    if attestation is not None:
        yield from statement_checks(report, folder, attestation)
    if ckpt:
        yield from weight_checks(report, ckpt, base)


def evidence_checks(report: Report, folder: Path) -> Iterator[Checked]:
    """Yield the name and problem of each evidence file, audit and conclusion.

    The problem is empty where the report agrees with its evidence. ``gate --attest``
    calls this, too, and states nothing on a report with a problem.
    """
    # Checkpoints keep their names: this is no comparison with another report.
    compared_report = ComparedReport(folder, report, names={})

    # Read the evidence; a changed file is a problem of its own.
    evidence: dict[str, Evidence] = {}
    for name, file in _evidence_files(report, compared_report).items():
        problem = file.problem
        if not problem:
            try:
                evidence[file.audit] = compared_report.evidence(file.audit)
            except SparkError as error:
                problem = error.what
        yield f"scores/{name}", problem

    # An audit whose evidence file is named but unreadable was yielded above.
    for audit in _claimed_audits(report):
        is_named = about(audit).evidence_file() in report.evidence
        if audit in evidence or is_named:
            continue
        is_installed = audit in audit_names()
        yield audit, NO_EVIDENCE if is_installed else NOT_INSTALLED
    if not evidence:
        yield "report.json", NOTHING
        return

    # Conclude again from what could be read.
    yield from conclusion_checks(report, evidence)
    yield from count_checks(report, evidence)


@dataclass(frozen=True)
class EvidenceFile:
    """A file of evidence that a report names, or that lies in its folder.

    Attributes
    ----------
    audit
        The audit that left it; empty where there is a problem.
    problem
        Why it cannot be used; empty: it can be read.
    """

    audit: str
    problem: str


def _evidence_files(
    report: Report, compared_report: ComparedReport
) -> dict[str, EvidenceFile]:
    """Map the name of each file of evidence to its audit, or to why it has none.

    Parameters
    ----------
    compared_report
        The same report, which knows where its evidence lies.
    """
    audit_by_file = {about(audit).evidence_file(): audit for audit in audit_names()}
    files: dict[str, EvidenceFile] = {}
    for name in report.evidence:
        if name in audit_by_file:
            files[name] = EvidenceFile(audit_by_file[name], problem="")
        else:
            files[name] = EvidenceFile(audit="", problem=NOT_INSTALLED)

    # A file that the report does not name has no checksum.
    for name, audit in audit_by_file.items():
        if name not in report.evidence and compared_report.path(audit).exists():
            files[name] = EvidenceFile(audit="", problem=NOT_NAMED)
    return files


def _claimed_audits(report: Report) -> list[str]:
    """List the audits that a report states a figure, a finding or a table of.

    Each of them must have left evidence.
    """
    audits: list[str] = []
    for row in report.results:
        if row.value is not None:
            audits.append(row.audit)
    for contrast in report.contrasts:
        audits.append(contrast.audit)
    for finding in report.findings:
        if finding.claim != "not_tested":
            audits.append(finding.audit)
    audits += report.origins.values()

    return [audit for audit in dict.fromkeys(audits) if audit not in NOT_AUDITS]
