"""A report held against its own evidence: whatever does not follow from it is named.

Evidence comes first. Every file of it is concluded again, and the report must say that
and nothing else; then the shared files must be, to the byte, what the report gives.
What no evidence shows is listed by
:func:`~spark_audit.pipeline.verification.trust.taken_on_trust`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_audit.audits import about, audit_names
from spark_audit.errors import SparkError
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.compare import ABSENT, Part
from spark_audit.pipeline.verification.checked import NOT_NAMED, Checked
from spark_audit.pipeline.verification.conclusions import conclusions
from spark_audit.pipeline.verification.counts import (
    agreement_with_manifest,
    counts_of_evidence,
)
from spark_audit.pipeline.verification.files import OTHER_BYTES, shared_files
from spark_audit.pipeline.verification.statements import attested, weights
from spark_audit.report.folder import read_report
from spark_audit.report.gate.statement import read_rules
from spark_audit.results import Report
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import OF_REPORT

NO_EVIDENCE = "left no evidence, so nothing can be concluded from it"

NOTHING = "nothing could be verified: the report has no evidence"

OTHER_BYTES_OF_CHANGED = (
    "is not what report.json gives, and report.json does not follow from its evidence: "
    "do not render it again, take the report from whoever made it, or audit again"
)


def verify(
    folder: Path,
    *,
    attestation: Path | None = None,
    ckpt: Sequence[str] = (),
    base: str | None = None,
    manifest: Manifest | None = None,
) -> Iterator[Checked]:
    """Yield each thing that is verified, and the problem with it; empty: it is sound.

    Parameters
    ----------
    folder
        Of the report.
    attestation
        A statement of ``gate --attest``; it must be, to the byte, the one that this
        report gives.
    ckpt, base
        Checkpoints whose weights must be those that the report is of.
    manifest
        The manifest that must be the one of the report, for its counts and tables.

    Raises
    ------
    InputError
        If a checkpoint is none of the report's, or a statement cannot be read.
    """
    report = read_report(folder)
    # What cannot be read is refused before minutes of concluding again.
    if attestation is not None:
        read_rules(attestation)

    is_sound = True
    for name, problem in follows(report, folder):
        if problem:
            is_sound = False
        yield name, problem

    if manifest is not None:
        yield from agreement_with_manifest(report, manifest)

    for name, problem in shared_files(report, folder, manifest):
        # Rendering it again would write the changed figures into the honest pages.
        if problem == OTHER_BYTES and not is_sound:
            yield name, OTHER_BYTES_OF_CHANGED
        else:
            yield name, problem

    if attestation is not None:
        yield from attested(report, folder, attestation)
    if ckpt:
        yield from weights(report, ckpt, base)


def follows(report: Report, folder: Path) -> Iterator[Checked]:
    """Yield whether all that a report concludes follows from the evidence beside it."""
    part = Part(folder, report, names={})

    # Read the evidence; a file that is not as it was written is a problem of its own.
    evidence: dict[str, Evidence] = {}
    for name, file in _evidence_files(report, part).items():
        problem = file.problem
        if not problem:
            try:
                evidence[file.audit] = part.evidence(file.audit)
            except SparkError as error:
                problem = error.what
        yield f"scores/{name}", problem

    for audit in _claimed_audits(report):
        is_named = about(audit).evidence_file() in report.evidence
        if audit not in evidence and not is_named:
            yield audit, NO_EVIDENCE if audit in audit_names() else ABSENT
    if not evidence:
        yield "report.json", NOTHING
        return

    # Conclude again from what could be read.
    yield from conclusions(report, evidence)
    yield from counts_of_evidence(report, evidence)


@dataclass(frozen=True)
class EvidenceFile:
    """A file of evidence that a report names, or that lies beside it.

    Attributes
    ----------
    audit
        The audit that left it; empty: none that is known here.
    problem
        Why it cannot be used; empty: it is to be read.
    """

    audit: str
    problem: str


def _evidence_files(report: Report, part: Part) -> dict[str, EvidenceFile]:
    """Map the name of each file of evidence to its audit, or to why it has none."""
    audit_of = {about(audit).evidence_file(): audit for audit in audit_names()}
    files: dict[str, EvidenceFile] = {}
    for name in report.evidence:
        if name in audit_of:
            files[name] = EvidenceFile(audit_of[name], problem="")
        else:
            files[name] = EvidenceFile(audit="", problem=ABSENT)

    # A file that the report does not name has no checksum to compare it with.
    for name, audit in audit_of.items():
        if name not in report.evidence and part.path(audit).exists():
            files[name] = EvidenceFile(audit="", problem=NOT_NAMED)
    return files


def _claimed_audits(report: Report) -> list[str]:
    """List the audits of which a report says more than that there is nothing."""
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

    # These two make no claims of their own.
    makes_none = (OF_REPORT, "manifest")
    return [audit for audit in dict.fromkeys(audits) if audit not in makes_none]
