"""Audit files that a model wrote: from a request to a report folder.

A file takes the place of a checkpoint, so that nothing is opened or scored: its texts
are searched for what the manifest's rows hold. ``run.py`` calls
:func:`run_generated_files` for a request whose audits are of files
(``Audit.of_files``). What is searched for stands in ``audits/generated/``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spark_audit.audits import Generated
from spark_audit.audits.generated.found import evidence_of_files
from spark_audit.checkpoints.specs import Spec, parse_specs
from spark_audit.data.generated_texts import read_generated
from spark_audit.data.shared_passages import words_of
from spark_audit.errors import InputError
from spark_audit.files import alone, sha256_file
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE
from spark_audit.pipeline.folders import report_folder
from spark_audit.pipeline.job import Progress
from spark_audit.pipeline.request import Request
from spark_audit.pipeline.single_audit import SingleAudit, manifest_of
from spark_audit.report.audit_report import AuditReport
from spark_audit.report.formats import check_formats
from spark_audit.results import CheckpointFacts
from spark_audit.results.report import TEXT_FILE_FORMAT

NO_NUMBERS = "text"
"""Stands for the number format of scores, which a file has none of."""

SHARE_OF_DATA = 0.9
"""Share of texts that are rows of the manifest from which a file is the data itself."""

MIN_TEXTS_OF_DATA = 10
"""Texts that a file needs to be taken for the data itself."""


@dataclass(frozen=True)
class FileJob:
    """A checked request for files that a model wrote.

    Attributes
    ----------
    audit
        The audit of files, with its options.
    files
        Name of each file in the report -> its path.
    texts
        Name of each file -> its texts.
    folder
        The folder of the report.
    """

    request: Request
    audit: Generated
    manifest: Manifest
    files: Mapping[str, Path]
    texts: Mapping[str, Sequence[str]]
    folder: Path

    @classmethod
    def of(cls, request: Request) -> FileJob:
        """Check a request, and read its manifest and files. Nothing is written.

        Raises
        ------
        InputError
            Names the option or file, and what to do.
        """
        check_formats(request.formats)
        audit = _checked_audit(request)
        # The files come first: a wrong path is told before a manifest is read.
        specs = parse_files(request.checkpoints)
        files = {spec.name: Path(spec.paths[0]) for spec in specs}
        texts = {
            name: read_generated(path, column=audit.field)
            for name, path in files.items()
        }

        manifest = manifest_of(request, told_by="a file")
        _check_manifest(manifest)
        for name, path in files.items():
            _check_is_not_the_data(path, texts[name], manifest)
        folder = report_folder(manifest, [*files], specs, request)
        return cls(request, audit, manifest, files, texts, folder)


def run_generated_files(
    request: Request, *, progress: Progress | None = None
) -> tuple[Path, AuditReport]:
    """Search files that a model wrote, and write the report folder.

    Parameters
    ----------
    progress
        Called with the name of an activity, the amount done, and the total amount.

    Returns
    -------
    tuple
        The folder and its report.

    Raises
    ------
    InputError
        If the request does not fit files, or a file is no text that a model wrote.
    """
    job = FileJob.of(request)
    if progress is not None:
        progress("searching the texts", 0, 1)
    with alone(job.folder / ".report.lock"):
        report = _conclude(job)
    if progress is not None:
        progress("searching the texts", 1, 1)
    return job.folder, report


def parse_files(texts: Sequence[str]) -> list[Spec]:
    """Return the files of a request as specs: ``[NAME=]FILE``, by default the stem.

    Files of the same stem have the names that checkpoints would have.

    Raises
    ------
    InputError
        If a name is given twice, is reserved, or has several files.
    """
    specs = []
    for spec in parse_specs(texts):
        if len(spec.paths) > 1:
            raise InputError(
                "has several files",
                where=spec.name,
                fix="name each file differently",
            )
        is_named = any(text.strip().startswith(f"{spec.name}=") for text in texts)
        if not is_named:
            spec = replace(spec, name=Path(spec.paths[0]).stem)
        specs.append(spec)

    counts = Counter(spec.name for spec in specs)
    if max(counts.values(), default=0) > 1:
        # `parse_specs` makes the names of paths distinct by their folders.
        specs = parse_specs(texts)
    for spec in specs:
        if spec.name == BASE:
            raise InputError(
                f"the name {BASE!r} is reserved for the base model",
                where=spec.paths[0],
                fix="write NAME=FILE with another name",
            )
    return specs


def _checked_audit(request: Request) -> Generated:
    """Return the audit of a request; refuse what does not go with files.

    Raises
    ------
    InputError
        Names the option, and what to do.
    """
    audits = [audit for audit in request.audits if isinstance(audit, Generated)]
    if len(request.audits) > 1 or not audits:
        names = ", ".join(audit.name for audit in request.audits if not audit.of_files)
        raise InputError(
            f"{names} look at models, and files that a model wrote are given",
            where="audits",
            fix="audit files by themselves",
        )
    if not request.checkpoints or request.opened:
        raise InputError(
            "no file is given", where="FILE", fix="give a file that a model wrote"
        )
    does_not_fit = {
        "--base": request.base is not None,
        "--baseline": request.baseline is not None,
        "--relearn": bool(request.relearn),
        "--quantize": bool(request.loading.quantize),
        "--data": bool(request.data),
        "--limit": request.limit is not None,
        "--shard": request.shard[1] > 1,
        "--engine": request.engine != "local",
        "--scores": request.scores is not None,
    }
    for option, is_given in does_not_fit.items():
        if is_given:
            raise InputError(
                "does not go with files that a model wrote",
                where=option,
                fix="leave it out",
            )
    return audits[0]


def _check_manifest(manifest: Manifest) -> None:
    """Refuse a manifest with nothing to look for, or nothing to compare with.

    Raises
    ------
    InputError
        Says what it lacks.
    """
    where = f"manifest {manifest.name!r}"
    if not any(row.text for row in manifest.examples):
        raise InputError(
            "has no text, as a redacted manifest",
            where=where,
            fix="give the manifest that it was made of",
        )
    splits = {row.split for row in manifest.examples if row.canary_id is None}
    has_held_out_canary = any(canary.held_out for canary in manifest.canaries)
    if "train" not in splits and not manifest.canaries:
        raise InputError(
            "has no trained rows",
            where=where,
            fix="build it with the rows that the model was trained on",
        )
    if "test" not in splits and not has_held_out_canary:
        raise InputError(
            "has no held-out rows, so that nothing tells copies from common text",
            where=where,
            fix="build it with rows that the model was not trained on (split test), at "
            "best as many as trained ones",
        )


def _check_is_not_the_data(
    path: Path, texts: Sequence[str], manifest: Manifest
) -> None:
    """Refuse a file that is the data itself, and no text that a model wrote.

    Raises
    ------
    InputError
        If nearly all of its texts are rows of the manifest, their prompts or answers.
    """
    words_of_rows = set()
    for row in manifest.examples:
        for text in (row.text, row.prompt, row.response):
            words_of_rows.add(tuple(words_of(text)))
    words_of_rows.discard(())

    n_rows = sum(tuple(words_of(text)) in words_of_rows for text in texts)
    if len(texts) >= MIN_TEXTS_OF_DATA and n_rows >= SHARE_OF_DATA * len(texts):
        raise InputError(
            f"{n_rows:,} of its {len(texts):,} texts are rows of the manifest, their "
            "prompts or answers, word for word: this is the data itself",
            where=str(path),
            fix="give what a model wrote; if a model did write this, it repeats its "
            "training data, and the file must be treated as that data",
        )


def _conclude(job: FileJob) -> AuditReport:
    """Conclude from the texts, and write the report."""
    request = job.request
    evidence = evidence_of_files(
        job.manifest, job.texts, least_words=job.audit.passage_words, seed=request.seed
    )
    single_audit = SingleAudit(
        request=request,
        audit=job.audit,
        specs=parse_files(request.checkpoints),
        manifest=job.manifest,
        view=job.manifest,
        folder=job.folder,
    )
    return single_audit.write(
        evidence,
        checkpoints=[_facts(job, name) for name in job.files],
        settings=single_audit.settings(),
    )


def _facts(job: FileJob, name: str) -> CheckpointFacts:
    """Return the facts of a file that its report states."""
    path = job.files[name]
    sha256 = sha256_file(path)
    return CheckpointFacts(
        name=name,
        source=str(path),
        format=TEXT_FILE_FORMAT,
        weights_sha256=sha256,
        model_id=sha256,
        dtype=NO_NUMBERS,
        notes=[f"a file of {len(job.texts[name]):,} texts; no model was opened"],
    )
