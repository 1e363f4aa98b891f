"""A report held against its own evidence: whatever does not follow from it is named.

Evidence comes first. Every file of it is concluded again, and the report must say that
and nothing else; then the shared files must be, to the byte, what the report gives.
What no evidence shows is listed by
:func:`~spark_audit.pipeline.verification.trust.taken_on_trust`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from spark_audit.report.folder import (
    read_report,
)
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
    """Yield what was verified, and what is wrong with it; empty where nothing is.

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
    for name, wrong in follows(report, folder):
        is_sound = is_sound and not wrong
        yield name, wrong
    if manifest is not None:
        yield from agreement_with_manifest(report, manifest)
    for name, wrong in shared_files(report, folder, manifest):
        # Rendering it again would write the changed figures into the honest pages.
        is_misleading = wrong == OTHER_BYTES and not is_sound
        yield name, OTHER_BYTES_OF_CHANGED if is_misleading else wrong
    if attestation is not None:
        yield from attested(report, folder, attestation)
    if ckpt:
        yield from weights(report, ckpt, base)


def follows(report: Report, folder: Path) -> Iterator[Checked]:
    """Yield whether all that a report concludes follows from the evidence beside it."""
    part = Part(folder, report, names={})
    evidence: dict[str, Evidence] = {}
    for name, (audit, wrong) in _named_evidence(report, part).items():
        if audit and not wrong:
            try:
                evidence[audit] = part.evidence(audit)
            except SparkError as error:
                wrong = error.what
        yield f"scores/{name}", wrong
    for audit in _claimed_audits(report):
        if (
            audit not in evidence
            and about(audit).evidence_file() not in report.evidence
        ):
            yield audit, NO_EVIDENCE if audit in audit_names() else ABSENT
    if not evidence:
        yield "report.json", NOTHING
        return
    yield from conclusions(report, evidence)
    yield from counts_of_evidence(report, evidence)


def _named_evidence(report: Report, part: Part) -> dict[str, tuple[str, str]]:
    """Map each file of evidence to its audit, and to what is wrong with its name."""
    audit_of = {about(name).evidence_file(): name for name in audit_names()}
    found: dict[str, tuple[str, str]] = {}
    for name in report.evidence:
        found[name] = (audit_of.get(name, ""), "" if name in audit_of else ABSENT)
    for name, audit in audit_of.items():
        if name not in report.evidence and part.path(audit).exists():
            found[name] = ("", NOT_NAMED)
    return found


def _claimed_audits(report: Report) -> list[str]:
    """List the audits of which a report says more than that there is nothing."""
    rows = (*report.results, *report.contrasts)
    audits = [row.audit for row in rows if row.value is not None]
    audits += [row.audit for row in report.contrasts]
    audits += [one.audit for one in report.findings if one.claim != "not_tested"]
    audits += report.origins.values()
    return [one for one in dict.fromkeys(audits) if one not in (OF_REPORT, "manifest")]
