"""Audit an endpoint that gives only text: from a request to a report folder.

There is no checkpoint to open and nothing to score: the endpoint is asked for the
manifest's identifiers, its answers are stored, and the audits that can conclude from
answers do so. No request is sent before the user saw how many there will be, and agreed
to them.

``run.py`` calls :func:`run_endpoint`. ``endpoint_job.py`` checks the request and plans
what is asked, and ``asking_cost.py`` says what that costs. Units of evidence stand in
``audits/extract/text_units.py``, what follows from the answers in ``text_findings.py``
beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import compress
from pathlib import Path

from spark_audit.audits.extract.text_units import evidence_of_answers
from spark_audit.checkpoints.endpoint_options import Asking
from spark_audit.checkpoints.specs import parse_specs
from spark_audit.checkpoints.text_answers import TextAnswer
from spark_audit.checkpoints.text_server import TextServer
from spark_audit.errors import InputError, shown
from spark_audit.files import alone
from spark_audit.messages import say
from spark_audit.pipeline.asking_cost import AskingCost, asking_cost, cost_lines
from spark_audit.pipeline.endpoint_job import EndpointJob, PlannedAsking
from spark_audit.pipeline.job import Progress
from spark_audit.pipeline.request import Request
from spark_audit.pipeline.single_audit import SingleAudit
from spark_audit.provenance import sha256_json
from spark_audit.report.audit_report import AuditReport
from spark_audit.results import CheckpointFacts
from spark_audit.results.report import ENDPOINT_FORMAT
from spark_audit.scoring.answer_store import AnswerStore
from spark_audit.scoring.asking import ask_all
from spark_audit.scoring.refusals import is_refusal

NO_WEIGHTS = "not known: an endpoint"
"""Stands for the hash of weights that nobody here has seen."""

TEXT_ONLY = "text"
"""Stands for the number format of scores."""

Confirm = Callable[[str], bool]
"""Asks the user a question, and returns whether the answer is yes."""


def run_endpoint(
    request: Request,
    *,
    progress: Progress | None = None,
    confirm: Confirm | None = None,
) -> tuple[Path, AuditReport]:
    """Ask an endpoint, conclude from its answers, and write the report folder.

    Parameters
    ----------
    progress
        Called with the name of an activity, the amount done, and the total amount.
    confirm
        Asks whether the requests may be sent; ``None``: nobody can be asked.

    Returns
    -------
    tuple
        The folder and its report.

    Raises
    ------
    InputError
        If the request does not fit an endpoint, or nobody has agreed to the requests.
    EndpointError
        If the endpoint refuses, or has changed its model.
    IncompleteError
        If it gives no answer; the same request resumes.
    """
    endpoint_job = EndpointJob.of(request)
    store = AnswerStore(_answers_folder(endpoint_job))
    planned = endpoint_job.planned(store)
    unanswered = planned.unanswered(store)
    if unanswered:
        # An address, a key or a proxy that cannot be used is refused before the
        # question.
        with closing(_server_of(endpoint_job)) as server:
            for line in cost_lines(asking_cost(planned, unanswered, endpoint_job)):
                say(line)
            _check_agreed(request.asking, confirm)
            _ask(server, endpoint_job, planned, store, progress)

    with alone(endpoint_job.folder / ".report.lock"):
        report = _conclude(endpoint_job, planned, store)
    return endpoint_job.folder, report


def cost_of(request: Request) -> AskingCost:
    """Return what a request would ask and cost, for ``--dry-run``.

    Nothing is written or sent.
    """
    endpoint_job = EndpointJob.of(request)
    _server_of(endpoint_job).close()
    folder = _answers_folder(endpoint_job)
    # A store without a salt was never written to, and a dry run writes none.
    store = AnswerStore(folder if (folder / "salt").exists() else None)
    planned = endpoint_job.planned(store)
    return asking_cost(planned, planned.unanswered(store), endpoint_job)


def _answers_folder(job: EndpointJob) -> Path:
    """Return the folder of stored answers."""
    return job.folder / "scores" / "answers"


def _server_of(job: EndpointJob) -> TextServer:
    """Return the server of a job, which is not asked yet."""
    asking = job.request.asking
    return TextServer(
        job.url,
        job.model,
        streams=asking.stream,
        max_requests=asking.max_requests,
        parallel=asking.parallel,
    )


def _check_agreed(asking: Asking, confirm: Confirm | None) -> None:
    """Refuse to send a request that nobody has agreed to."""
    if asking.yes:
        return
    if confirm is None:
        raise InputError(
            "nobody is there to agree to these requests",
            where="--yes",
            fix="add --yes to send them, or run the command in a terminal",
        )
    if not confirm("Send them?"):
        raise InputError("nothing was sent", fix="add --yes to send the requests")


def _ask(
    server: TextServer,
    job: EndpointJob,
    planned: PlannedAsking,
    store: AnswerStore,
    progress: Progress | None,
) -> None:
    """Send the requests whose answers are not stored."""

    def show(done: int, total: int) -> None:
        if progress is not None:
            progress(f"asking {job.name}", done, total)

    ask_all(
        server,
        planned.requests,
        store,
        parallel=job.request.asking.parallel,
        progress=show,
    )


def _conclude(
    job: EndpointJob, planned: PlannedAsking, store: AnswerStore
) -> AuditReport:
    """Conclude from the stored answers, and write the report."""
    request = job.request
    concluded_from, answers = _with_answers(planned, store)
    evidence = evidence_of_answers(
        concluded_from.units, answers, checkpoint=job.name, prompts=job.prompts
    )
    single_audit = SingleAudit(
        request=request,
        audit=job.audit,
        specs=parse_specs(request.checkpoints),
        manifest=job.manifest,
        view=job.view,
        folder=job.folder,
    )
    return single_audit.write(
        evidence,
        checkpoints=[_facts(job, concluded_from, store, answers)],
        settings=_settings(job, single_audit),
    )


def _with_answers(
    planned: PlannedAsking, store: AnswerStore
) -> tuple[PlannedAsking, list[list[TextAnswer]]]:
    """Return the units whose prompts the model could read, and the answers to them.

    If one prompt of an identifier was too long, all of its prompts are left out.

    Raises
    ------
    InputError
        If all prompts were too long.
    """
    answers = [[store[key] for key in keys] for keys in planned.keys]
    too_long = set()
    for unit, answers_of_unit in zip(planned.units, answers, strict=True):
        if any(answer.is_too_long for answer in answers_of_unit):
            too_long.add(unit.place)

    is_read = [unit.place not in too_long for unit in planned.units]
    if not any(is_read):
        raise InputError(
            "all prompts are longer than the model's context there",
            where="--ckpt",
            fix="serve it with a longer context, and give another -o",
        )
    read = replace(
        planned,
        units=list(compress(planned.units, is_read)),
        keys=list(compress(planned.keys, is_read)),
        n_too_long=len(too_long),
    )
    return read, list(compress(answers, is_read))


def _settings(job: EndpointJob, single_audit: SingleAudit) -> dict[str, object]:
    """Return the settings that shape the report, with those of asking."""
    asking = job.request.asking
    settings = single_audit.settings()
    settings[f"{job.audit.name}.endpoint"] = job.endpoint
    settings[f"{job.audit.name}.samples"] = asking.samples
    settings[f"{job.audit.name}.temperature"] = (
        asking.temperature if asking.samples else None
    )
    settings[f"{job.audit.name}.max_requests"] = asking.max_requests
    return settings


def _facts(
    job: EndpointJob,
    planned: PlannedAsking,
    store: AnswerStore,
    answers: Sequence[Sequence[TextAnswer]],
) -> CheckpointFacts:
    """Return the facts of an endpoint that its report states."""
    return CheckpointFacts(
        name=job.name,
        source=f"{shown(job.model)} at {job.url}",
        format=ENDPOINT_FORMAT,
        weights_sha256=NO_WEIGHTS,
        model_id=sha256_json({"endpoint": job.url, "model": job.model}),
        dtype=TEXT_ONLY,
        notes=_notes(job, planned, store, answers),
    )


def _notes(
    job: EndpointJob,
    planned: PlannedAsking,
    store: AnswerStore,
    answers: Sequence[Sequence[TextAnswer]],
) -> list[str]:
    """Return notes for readers: how it was asked, refusals, and what changed."""
    asking = job.request.asking
    each = "one answer at temperature 0 to each prompt"
    if asking.samples:
        each += f", and {asking.samples} samples at temperature {asking.temperature:g}"
    notes = [f"answers of an endpoint that gives only text ({job.endpoint}): {each}"]

    n_asked = len({unit.place for unit in planned.units}) + planned.n_too_long
    if planned.n_too_long:
        notes.append(
            f"{planned.n_too_long:,} of {n_asked:,} identifiers are left out: their "
            "prompts are longer than the model's context there"
        )
    if planned.n_left_out:
        n_all = n_asked + planned.n_left_out
        notes.append(
            f"--max-requests {asking.max_requests} left room for {n_asked:,} of "
            f"{n_all:,} identifiers"
        )

    n_answers = sum(len(answers_of_unit) for answers_of_unit in answers)
    n_refusals = sum(
        is_refusal(answer) for answers_of_unit in answers for answer in answers_of_unit
    )
    notes.append(f"{n_refusals:,} of {n_answers:,} answers are refusals")

    changes = {
        "answered as": store.model_names(planned.requests),
        "had the system fingerprint": store.fingerprints(planned.requests),
    }
    for words, counts in changes.items():
        known = {name: n for name, n in counts.items() if name}
        if len(known) > 1:
            listed = ", ".join(f"{shown(name)!r} {n:,}" for name, n in known.items())
            notes.append(
                f"the endpoint changed while it was asked: it {words} {listed} times"
            )
    return notes
