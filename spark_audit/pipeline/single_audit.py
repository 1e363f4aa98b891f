"""One audit of what has no weights here: its manifest, conclusion and report.

Endpoints that give only text and files that a model wrote are not opened and not
scored. Their jobs (``text_endpoint.py``, ``generated_files.py``) make the evidence of
one audit, and the rest is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from spark_audit.audits.base import Audit, Context
from spark_audit.checkpoints.specs import Spec
from spark_audit.errors import InputError
from spark_audit.manifest.file import original, read_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.conclude import manifest_facts, score_files, write_evidence
from spark_audit.pipeline.folders import MANIFESTS, check_folder
from spark_audit.pipeline.job import given_manifest
from spark_audit.pipeline.request import Request
from spark_audit.report.assemble import assemble, matching
from spark_audit.report.audit_report import AuditReport, read_report
from spark_audit.report.folder import write_report
from spark_audit.report.kept import keep_if_replaced
from spark_audit.results import CheckpointFacts
from spark_audit.results.evidence import Evidence


@dataclass(frozen=True, kw_only=True)
class SingleAudit:
    """One audit of a request, and where its report stands.

    Attributes
    ----------
    specs
        The endpoint or the files.
    manifest, view
        The whole manifest, and its part under ``--limit``.
    folder
        The report folder.
    """

    request: Request
    audit: Audit
    specs: Sequence[Spec]
    manifest: Manifest
    view: Manifest
    folder: Path

    def settings(self) -> dict[str, object]:
        """Return the settings that shape the report."""
        settings = self.request.shared_settings(self.manifest)
        settings["caliper"] = self.manifest.settings.caliper
        settings["reference"] = self.manifest.reference.name
        for name, value in asdict(self.audit).items():
            settings[f"{self.audit.name}.{name}"] = value
        return settings

    def write(
        self,
        evidence: Evidence,
        checkpoints: Sequence[CheckpointFacts],
        settings: dict[str, object],
    ) -> AuditReport:
        """Conclude from evidence, and write the report."""
        request = self.request
        preset = request.preset or self.manifest.settings.preset
        context = Context(
            paper=preset == "paper",
            seed=request.seed,
            replicates=self.audit.replicates_of(preset),
        )
        result = self.audit.conclude(evidence, context)

        # Another command may have written a report to this folder meanwhile.
        old_report = check_folder(self.folder, self.manifest, self.specs, request)
        checksums = write_evidence(self.folder, {self.audit.name: evidence})
        is_partial = len(self.view.examples) < len(self.manifest.examples)
        report = assemble(
            {self.audit.name: replace(result, evidence=evidence)},
            status="partial" if is_partial else "complete",
            command=list(request.command),
            manifest=manifest_facts(self.view),
            checkpoints=list(checkpoints),
            settings=settings,
            tables=matching(self.view),
            evidence=checksums,
        )
        keep_if_replaced(self.folder, old_report, report)
        report = report.model_copy(update={"files": score_files(checksums)})
        write_report(
            report,
            self.folder,
            formats=("json", *request.formats) if request.formats else (),
            manifest=self.view,
            show_text=request.show_text,
        )
        return read_report(self.folder)


def manifest_of(request: Request, *, told_by: str) -> Manifest:
    """Return the manifest that a request gives, or the only one in ``manifests/``.

    Parameters
    ----------
    told_by
        What does not tell which manifest fits, as the error names it.

    Raises
    ------
    InputError
        If none is given, and there is none or several.
    """
    if request.has_manifest:
        return original(given_manifest(request))

    paths = sorted([*MANIFESTS.glob("*.json"), *MANIFESTS.glob("*.arrow")])
    if len(paths) == 1:
        return original(read_manifest(paths[0]))
    problem = f"{len(paths)} manifests are in {MANIFESTS}/"
    if paths:
        problem += f": {', '.join(str(path) for path in paths)}"
    raise InputError(
        problem,
        where="--manifest",
        fix=f"give one: {told_by} does not tell which one fits",
    )
