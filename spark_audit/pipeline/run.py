"""Run a request from beginning to end: checkpoints and a manifest to a report folder.

For each checkpoint, all passes that any audit needs are scored once, into a store that
can resume. An engine does this: this machine, workers that share a folder, or Ray.
Among several workers, the one that finds nothing missing writes the report.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from spark_audit.audits import DEFAULT_AUDITS
from spark_audit.errors import IncompleteError
from spark_audit.files import alone
from spark_audit.messages import awaited, say
from spark_audit.messages import progress as shown
from spark_audit.pipeline import up_to_date
from spark_audit.pipeline.conclude import conclude
from spark_audit.pipeline.estimate import stored_passes
from spark_audit.pipeline.job import (
    CheckpointJob,
    Job,
    Progress,
    Unscored,
    checked_job,
    missing_base_note,
)
from spark_audit.pipeline.request import Request
from spark_audit.report.audit_report import AuditReport, read_report

LOCK = ".report.lock"
"""The lock in a report folder, held by the process that writes the report."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run: its report and the report folder.

    Attributes
    ----------
    folder
        The folder of the report.
    report
        ``None`` while other workers still have items to score.
    anew
        Whether the report was written by this run; false: the folder held it already,
        and nothing had changed since.
    missing
        How many items other workers still have to score.
    """

    folder: Path
    report: AuditReport | None
    anew: bool = True
    missing: int = 0


def run(request: Request, *, progress: Progress | None = None) -> Outcome:
    """Audit checkpoints against a manifest and write the report folder.

    Raises
    ------
    SparkError
        For any input of the user that cannot be used. Finished scores are kept, and the
        same request resumes.
    """
    folder = up_to_date.unchanged(request)
    if folder is not None:
        return Outcome(folder, read_report(folder), anew=False)

    # Problems that headers show are refused before anything is scored.
    job = checked_job(request, progress)
    inputs = up_to_date.inputs_of(request, job.opening)
    unscored = job.unscored()
    _say_before_scoring(job, unscored)

    # Every engine has a function `score`, which fills the job's store.
    engine = import_module(f"spark_audit.pipeline.engines.{request.engine}")
    checkpoint_jobs: list[CheckpointJob] = engine.score(job, unscored)
    with job.clock("gathering"):
        n_missing = job.n_missing(checkpoint_jobs)

    # Of several workers, one that finds nothing missing concludes; the others end here.
    has_other_workers = request.shard[1] > 1
    if n_missing and has_other_workers:
        return Outcome(job.folder, None, missing=n_missing)
    if n_missing:
        raise IncompleteError(f"{n_missing} items could not be scored")

    # Only one process at a time writes a report: other commands and workers wait.
    with alone(job.folder / LOCK):
        if has_other_workers and up_to_date.unchanged(request) is not None:
            return Outcome(job.folder, read_report(job.folder), anew=False)
        report = conclude(job, job.with_notes(checkpoint_jobs))
        up_to_date.keep_inputs(request, inputs, job.folder, report)
    return Outcome(job.folder, report)


def _say_before_scoring(job: Job, unscored: Unscored) -> None:
    """Tell the user what is not tested without a base, and what is stored already."""
    note = missing_base_note(job.manifest, job.opening.described, job.request)
    if note:
        say(f"note: {note}")

    stored = job.stored(unscored)
    if stored is None:
        return
    n_whole, n_passes, n_in_part = stored
    if n_whole or n_in_part or job.request.scores is not None:
        passes = stored_passes(n_whole, n_passes, n_in_part)
        say(f"{passes} are stored in {job.store.folder}")


def audit(
    checkpoints: Any,
    *,
    audits: Any = DEFAULT_AUDITS,
    progress: bool | None = None,
    **options: Any,
) -> AuditReport:
    """Audit checkpoints against a manifest, write the report folder, return the report.

    Parameters
    ----------
    checkpoints
        Path of a checkpoint, several paths, or ``{name: path}``.
    audits
        Names of audits, or audits with options (``sa.audits.Matched(...)``).
    progress
        Whether to show progress; default: if a person waits.
    **options
        The other fields of :class:`Request`: ``base``, ``manifest``, ``output``,
        ``formats``, ``baseline`` ...

    Raises
    ------
    SparkError
        As for :func:`run`.
    """
    request = Request(checkpoints=checkpoints, audits=audits, **options)
    is_shown = awaited() if progress is None else progress
    with shown(quiet=not is_shown) as show:
        report = run(request, progress=show).report
    if report is None:
        raise IncompleteError("other workers have not scored their part")
    return report
