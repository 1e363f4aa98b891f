"""Run a request from beginning to end: checkpoints and a manifest to a report folder.

For each checkpoint, all passes that any audit needs are scored once, into a store that
can resume. An engine does this: this machine, workers that share a folder, or Ray.
Among several workers, the one that finds nothing missing writes the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from spark_audit.arguments import checked_call
from spark_audit.audits import DEFAULT_AUDITS
from spark_audit.checkpoints.endpoint_options import DEFAULT_ASKING, Asking
from spark_audit.checkpoints.given import GivenCheckpoint
from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import IncompleteError
from spark_audit.files import alone
from spark_audit.manifest.schema import Manifest
from spark_audit.messages import is_watched, say
from spark_audit.messages import progress as shown
from spark_audit.options import BatchSize
from spark_audit.pipeline import up_to_date
from spark_audit.pipeline.conclude import conclude
from spark_audit.pipeline.estimate import stored_passes
from spark_audit.pipeline.given_base import missing_base_note
from spark_audit.pipeline.job import (
    CheckpointJob,
    Job,
    Progress,
    Unscored,
    checked_job,
)
from spark_audit.pipeline.opened import python_random_kept, split_base, split_open
from spark_audit.pipeline.request import (
    GivenAudits,
    GivenCheckpoints,
    GivenPaths,
    Request,
    given_audits,
    given_paths,
    given_texts,
    typed_checkpoints,
)
from spark_audit.report.audit_report import AuditReport, read_report

if TYPE_CHECKING:
    from spark_audit.pipeline.handed_scores import GivenScores

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


@checked_call
def run(
    request: Request,
    *,
    progress: Progress | None = None,
    scores: GivenScores | None = None,
    confirm: Callable[[str], bool] | None = None,
) -> Outcome:
    """Audit checkpoints against a manifest and write the report folder.

    Parameters
    ----------
    progress
        Called with the name of an activity, the amount done, and the total amount.
    scores
        Scores of ``sa.score`` for some of the checkpoints, which are not made again.
    confirm
        Asks whether requests may be sent to an endpoint that gives only text.

    Raises
    ------
    SparkError
        For any input of the user that cannot be used. Finished scores are kept, and the
        same request resumes.

    Examples
    --------
    >>> request = sa.Request(
    ...     audits="nll",
    ...     checkpoints="runs/mine",
    ...     manifest="m.json",
    ...     output="reports/nll",
    ... )
    >>> sa.run(request).report.status
    'complete'
    """
    if request.reads_text_files:
        from spark_audit.pipeline.generated_files import run_generated_files

        folder_of_files, report = run_generated_files(request, progress=progress)
        return Outcome(folder_of_files, report)

    if request.asks_endpoint:
        from spark_audit.pipeline.text_endpoint import run_endpoint

        endpoint_folder, report = run_endpoint(
            request, progress=progress, confirm=confirm
        )
        return Outcome(endpoint_folder, report)

    if scores is not None:
        from spark_audit.pipeline.handed_scores import check_scores

        check_scores(scores)
    # Scores that are handed over must be checked, also if a report is there already.
    folder = up_to_date.unchanged(request) if scores is None else None
    if folder is not None:
        return Outcome(folder, read_report(folder), anew=False)

    # Problems that headers show are refused before anything is scored.
    job = checked_job(request, progress)
    inputs = up_to_date.inputs_of(request, job.opening)
    if scores is not None:
        from spark_audit.pipeline.handed_scores import take_scores

        take_scores(job, scores)
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
        up_to_date.keep_inputs(request, inputs, job.folder, report, job.store)
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


@checked_call
def audit(
    checkpoints: GivenCheckpoints,
    manifest: Manifest | str | Path | None = None,
    *,
    base: GivenCheckpoint | None = None,
    baseline: str | None = None,
    audits: GivenAudits = DEFAULT_AUDITS,
    scores: GivenScores | str | Path | None = None,
    output: str | Path | None = None,
    formats: str | Sequence[str] = (),
    data: GivenPaths = (),
    relearn: GivenPaths = (),
    relearn_steps: int = 50,
    relearn_lr: float = 1e-3,
    preset: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    batch_size: BatchSize = "auto",
    shard: tuple[int, int] = (0, 1),
    jobs: int | Literal["auto"] = "auto",
    engine: str = "local",
    address: str | None = None,
    show_text: bool = False,
    device: str = "auto",
    dtype: str = "float32",
    device_map: str | None = None,
    tokenizer: str | Path | None = None,
    lora_alpha: float | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    quantize: str | Sequence[str] = (),
    model: str | None = None,
    agree: str | Path | None = None,
    asking: Asking = DEFAULT_ASKING,
    progress: bool | None = None,
) -> AuditReport:
    """Audit checkpoints against a manifest, write the report folder, return the report.

    Parameters
    ----------
    checkpoints
        Path of a checkpoint, an open one, or a model in memory, which is scored as it
        stands; several of these, or ``{name: checkpoint}``; for the seeds of one method
        ``{name: [checkpoint, ...]}``.
    manifest
        A manifest or its file; default: the one in ``manifests/`` that fits the
        checkpoint.
    base
        Base model: the model before this training. Needed for adapters that do not
        name theirs, and to compare full weights with it; audited as ``base``.
    baseline
        Name of the same run without the correction; gives contrasts.
    audits
        Audits by name (``"mia"`` or ``"membership"``), class
        (``sa.audits.Membership``), or with options (``sa.audits.Matched(null="x")``).
    scores
        What ``sa.score`` returned for these checkpoints, one or ``{name: scores}``:
        these texts are not scored again. Or the folder of a score store or report.
    output
        Folder of the report; default: ``reports/<manifest>-<names>``.
    formats
        What is rendered beside ``report.json``; none stands for the usual ones.
    data
        Data files, for audits of series in place of a manifest: their test rows are
        answered.
    relearn, relearn_steps, relearn_lr
        Data files to train each checkpoint on for a few steps, and audit it again as
        NAME+relearn; the steps and the peak learning rate of that training.
    preset
        ``robust`` or ``paper``; default: that of the manifest.
    seed
        Seed of everything random.
    limit
        Score only so many examples; the report is partial.
    batch_size
        Most texts of a batch; ``auto``: limited by a budget of tokens.
    shard
        Part of this worker, from 0, and how many workers there are.
    jobs
        Processes on this machine's CPU; ``auto``: one per core, as memory allows.
    engine, address
        ``local``, or ``ray`` with the address of the cluster.
    show_text
        Show identifiers in the dossier.
    device, dtype, device_map, tokenizer, lora_alpha, revision, trust_remote_code
        How checkpoints are opened; see
        :class:`~spark_audit.checkpoints.specs.Loading`.
    quantize
        Audit each checkpoint but the base with weights rounded to ``int8``,
        ``int4`` or ``nf4``, too.
    model, agree
        Name of the model on a server, and the local copy of the served checkpoint.
    asking
        How an endpoint is asked that gives only text: a server without ``agree``.
    progress
        Whether to show progress; default: if a person waits.

    Raises
    ------
    SparkError
        As for :func:`run`.
    ArgumentError
        If there is no such argument (the error names the nearest), or a value has a
        wrong type.

    Examples
    --------
    >>> report = sa.audit(
    ...     {"mine": "runs/mine"},
    ...     "m.json",
    ...     base=base,
    ...     audits="rank",
    ...     output="reports/rank",
    ... )
    >>> report.status
    'complete'
    """
    score_folder = Path(scores) if isinstance(scores, str | Path) else None
    handed_scores = None if isinstance(scores, str | Path) else scores

    loading = Loading(
        device=device,
        dtype=dtype,
        device_map=device_map,
        tokenizer=_text(tokenizer),
        lora_alpha=lora_alpha,
        revision=revision,
        trust_remote_code=trust_remote_code,
        quantize=given_texts(quantize),
        model=model,
        agree=_text(agree),
    )
    paths, opened = split_open(checkpoints)
    base_path, opened = split_base(base, opened)
    request = Request(
        checkpoints=typed_checkpoints(paths),
        opened=opened,
        base=base_path,
        baseline=baseline,
        manifest=Path(manifest) if isinstance(manifest, str | Path) else None,
        open_manifest=manifest if isinstance(manifest, Manifest) else None,
        audits=given_audits(audits),
        scores=score_folder,
        output=_path(output),
        formats=given_texts(formats),
        data=given_paths(data),
        relearn=given_paths(relearn),
        relearn_steps=relearn_steps,
        relearn_lr=relearn_lr,
        preset=preset,
        seed=seed,
        limit=limit,
        batch_size=batch_size,
        shard=shard,
        jobs=jobs,
        engine=engine,
        address=address,
        show_text=show_text,
        loading=loading,
        asking=asking,
    )
    return _report_of(request, handed_scores, progress=progress)


def _report_of(
    request: Request, scores: GivenScores | None, *, progress: bool | None
) -> AuditReport:
    """Run a request, and refuse to end without a report.

    A loop that calls it goes on with the same random numbers as without it. Progress is
    shown if a person waits, unless ``progress`` says whether it is.
    """
    is_shown = is_watched() if progress is None else progress
    with python_random_kept(), shown(quiet=not is_shown) as show:
        report = run(request, progress=show, scores=scores).report
    if report is None:
        raise IncompleteError("other workers have not scored their part")
    return report


def _text(value: str | Path | None) -> str | None:
    """Return a path as text; ``None`` stays."""
    return None if value is None else str(value)


def _path(value: str | Path | None) -> Path | None:
    """Return a text as path; ``None`` stays."""
    return None if value is None else Path(value)
