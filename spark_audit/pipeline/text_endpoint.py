"""Audit an endpoint that gives only text: from a request to a report folder.

There is no checkpoint to open and nothing to score: the endpoint is asked for the
manifest's identifiers, its answers are stored, and the audits that can conclude from
answers do so. No request is sent before the user saw how many there will be, and agreed
to them.

``run.py`` calls :func:`run_endpoint`. What is asked stands in
``audits/extract/text_units.py``, what follows from the answers in ``text_findings.py``
beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from spark_audit.audits import Audit, Extraction, about, audit_names
from spark_audit.audits.base import Context
from spark_audit.audits.extract.text_units import (
    AskedUnit,
    asked_units,
    evidence_of_answers,
)
from spark_audit.checkpoints.endpoint_options import Asking, Endpoint
from spark_audit.checkpoints.server import KEY
from spark_audit.checkpoints.specs import Spec, is_server, parse_specs
from spark_audit.checkpoints.text_answers import TextAnswer
from spark_audit.checkpoints.text_server import LIMIT, TextRequest, TextServer
from spark_audit.errors import InputError, shown
from spark_audit.files import alone
from spark_audit.manifest.file import original, read_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.text_prompts import usual_endpoint
from spark_audit.messages import say
from spark_audit.pipeline.conclude import manifest_facts, score_files, write_evidence
from spark_audit.pipeline.folders import MANIFESTS, check_folder, report_folder
from spark_audit.pipeline.job import Progress, given_manifest
from spark_audit.pipeline.lineup import make_plans
from spark_audit.pipeline.request import Request
from spark_audit.provenance import sha256_json
from spark_audit.report.assemble import assemble, matching
from spark_audit.report.audit_report import AuditReport, read_report
from spark_audit.report.folder import check_formats, write_report
from spark_audit.report.kept import keep_if_replaced
from spark_audit.results import AuditResult, CheckpointFacts
from spark_audit.results.report import ENDPOINT_FORMAT
from spark_audit.scoring.answer_store import AnswerStore
from spark_audit.scoring.asking import ask_all
from spark_audit.scoring.refusals import is_refusal

NO_WEIGHTS = "not known: an endpoint"
"""Stands for the hash of weights that nobody here has seen."""

TEXT_ONLY = "text"
"""Stands for the number format of scores."""

CHARACTERS_PER_TOKEN = 4
"""Characters of an average token of English text, for the estimate of the cost."""

TOKENS_PER_PRICE = 1000

Confirm = Callable[[str], bool]
"""Asks the user a question, and returns whether the answer is yes."""


@dataclass(frozen=True)
class PlannedAsking:
    """Everything that an endpoint is to be asked.

    Attributes
    ----------
    units
        Identifiers and prompts.
    keys
        Keys of the answers to each unit, the one at temperature 0 first.
    requests
        Key -> its request.
    """

    units: Sequence[AskedUnit]
    keys: Sequence[Sequence[str]]
    requests: Mapping[str, TextRequest]


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
    endpoint_job = _EndpointJob.of(request)
    store = AnswerStore(endpoint_job.folder / "scores" / "answers")
    planned = endpoint_job.planned(store)
    left = {key: planned.requests[key] for key in planned.requests if key not in store}
    if left:
        for line in cost_lines(planned, left, endpoint_job):
            say(line)
        _check_agreed(request.asking, confirm)
        _ask(endpoint_job, planned, store, progress)

    with alone(endpoint_job.folder / ".report.lock"):
        report = _conclude(endpoint_job, planned, store)
    return endpoint_job.folder, report


def dry_run_lines(request: Request) -> list[str]:
    """Return what a request would ask, and stop before the first request."""
    endpoint_job = _EndpointJob.of(request)
    folder = endpoint_job.folder / "scores" / "answers"
    # A store without a salt was never written to, and a dry run writes none.
    store = AnswerStore(folder if (folder / "salt").exists() else None)
    planned = endpoint_job.planned(store)
    left = {key: planned.requests[key] for key in planned.requests if key not in store}
    return cost_lines(planned, left, endpoint_job)


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


@dataclass(frozen=True)
class _EndpointJob:
    """A checked request for an endpoint.

    Attributes
    ----------
    url, name
        Its address, and its name in reports.
    audit
        The audit of identifiers, with its options.
    with_identifiers
        Whether identifiers are asked for, beside canaries.
    manifest, view
        The whole manifest, and its part under ``--limit``.
    """

    request: Request
    url: str
    name: str
    audit: Audit
    with_identifiers: bool
    manifest: Manifest
    view: Manifest
    endpoint: Endpoint
    folder: Path

    @classmethod
    def of(cls, request: Request) -> _EndpointJob:
        """Check a request, and read its manifest. Nothing is written or sent."""
        check_formats(request.formats)
        spec = _checked_spec(request)
        audits = {audit.asks_for: audit for audit in request.audits if audit.asks_for}
        if not audits:
            names = [name for name in audit_names() if about(name).asks_for]
            raise InputError(
                "gives only text, from which this audit can conclude nothing",
                where=spec.paths[0],
                fix=f"take one of: {', '.join(names)}; or give --agree PATH, the same "
                "checkpoint here",
            )
        # Of canaries text shows only whether they come out, as of identifiers.
        audit = audits.get("identifiers", Extraction())

        manifest = original(
            given_manifest(request) if request.has_manifest else _only_manifest()
        )
        # Answers are about the rows of the audit, so no other audit is in the folder.
        alone_request = replace(request, audits=(audit,))
        folder = report_folder(manifest, [spec.name], [spec], alone_request)
        view, _ = make_plans(
            manifest, [audit], preset=request.preset, limit=request.limit
        )
        return cls(
            request=alone_request,
            url=spec.paths[0],
            name=spec.name,
            audit=audit,
            with_identifiers="identifiers" in audits,
            manifest=manifest,
            view=view,
            endpoint=request.asking.endpoint or usual_endpoint(view),
            folder=folder,
        )

    @property
    def model(self) -> str:
        """Return the model's name on the server."""
        return str(self.request.loading.model)

    @property
    def prompts(self) -> list[str]:
        """Return the prompts beside the true context, as the user names them."""
        names = str(getattr(self.audit, "prompts", ""))
        return [name.strip() for name in names.split(",")]

    def planned(self, store: AnswerStore) -> PlannedAsking:
        """Return everything that is to be asked, within ``--max-requests``.

        Raises
        ------
        InputError
            If there is nothing to ask for.
        """
        units = asked_units(
            self.view,
            self.prompts,
            self.endpoint,
            identifiers=self.with_identifiers,
        )
        units = _within_limit(units, self.request.asking)
        if not units:
            raise InputError(
                "nothing can be asked for: no identifier or canary has text before it",
                where=f"manifest {self.manifest.name!r}",
                fix="give more --max-requests, or another --manifest",
            )

        keys = []
        requests = {}
        for unit in units:
            keys_of_unit = []
            for text_request in _requests_for(unit, self.request.asking):
                facts = [self.url, self.model, asdict(text_request)]
                key = store.key_of(facts)
                requests[key] = text_request
                keys_of_unit.append(key)
            keys.append(keys_of_unit)
        return PlannedAsking(units, keys, requests)


def _checked_spec(request: Request) -> Spec:
    """Return the only checkpoint of a request; refuse what does not go with it.

    Raises
    ------
    InputError
        Names the option, and what to do.
    """
    specs = parse_specs(request.checkpoints)
    address = next(path for spec in specs for path in spec.paths if is_server(path))
    if any(mark in address for mark in "@?#"):
        raise InputError(
            "an address with a password, a query or a fragment is not taken",
            where="--ckpt",
            fix=f"give --ckpt http://HOST:PORT/v1, and a key by the variable {KEY}",
        )
    if request.loading.model is None:
        raise InputError(
            "is read as a server's address, whose model is not named",
            where=address,
            fix="write a model on the hub as hf:ORG/NAME; a server's address ends in "
            "/v1, and needs --model NAME",
        )
    is_alone = len(specs) == 1 and len(specs[0].paths) == 1 and not request.opened
    if not is_alone:
        raise InputError(
            "an endpoint that gives only text is audited by itself",
            where="--ckpt",
            fix="audit one at a time, and compare the reports; or give --agree PATH",
        )
    does_not_fit = {
        "--base": request.base is not None,
        "--baseline": request.baseline is not None,
        "--relearn": bool(request.relearn),
        "--quantize": bool(request.loading.quantize),
        "--data": bool(request.data),
        "--shard": request.shard[1] > 1,
        "--engine": request.engine != "local",
        "--scores": request.scores is not None,
    }
    for option, is_given in does_not_fit.items():
        if is_given:
            raise InputError(
                "does not go with an endpoint that gives only text",
                where=option,
                fix="leave it out",
            )
    return specs[0]


def _only_manifest() -> Manifest:
    """Return the only manifest in ``manifests/``.

    Raises
    ------
    InputError
        If there is none, or there are several.
    """
    paths = sorted([*MANIFESTS.glob("*.json"), *MANIFESTS.glob("*.arrow")])
    if len(paths) == 1:
        return read_manifest(paths[0])
    listed = ", ".join(str(path) for path in paths)
    raise InputError(
        f"{len(paths)} manifests are in {MANIFESTS}/"
        + (f": {listed}" if listed else ""),
        where="--manifest",
        fix="give one: an endpoint does not tell which one fits",
    )


def _within_limit(units: Sequence[AskedUnit], asking: Asking) -> list[AskedUnit]:
    """Return the units that ``--max-requests`` leaves room for, chosen by hash.

    All prompts of an identifier are asked, or none. A larger limit only adds some.
    """
    if asking.max_requests is None:
        return list(units)

    units_by_place: dict[str, list[AskedUnit]] = {}
    for unit in units:
        units_by_place.setdefault(unit.place, []).append(unit)
    by_hash = sorted(
        units_by_place, key=lambda place: hashlib.sha256(place.encode()).digest()
    )
    n_left = asking.max_requests
    chosen = set()
    for place in by_hash:
        n_requests = len(units_by_place[place]) * asking.answers_each
        if n_requests > n_left:
            break
        n_left -= n_requests
        chosen.add(place)
    return [unit for unit in units if unit.place in chosen]


def _requests_for(unit: AskedUnit, asking: Asking) -> list[TextRequest]:
    """Return the requests for the answers to a unit, the greedy one first."""
    body = {**unit.prompt.content, LIMIT: unit.prompt.max_tokens}
    requests = [TextRequest(unit.prompt.path, {**body, "temperature": 0})]
    for number in range(asking.samples):
        # Without a seed, a server that caches would repeat the first sample.
        sampled = {**body, "temperature": asking.temperature, "seed": number + 1}
        requests.append(TextRequest(unit.prompt.path, sampled))
    return requests


def cost_lines(
    planned: PlannedAsking, left: Mapping[str, TextRequest], job: _EndpointJob
) -> list[str]:
    """Return how many requests there will be, and what they cost, in lines.

    Parameters
    ----------
    left
        The requests whose answers are not stored yet.
    """
    asking = job.request.asking
    n_read = 0
    n_written = 0
    for request in left.values():
        texts = [str(request.body.get("prompt", ""))]
        for message in request.body.get("messages", ()):
            texts.append(message["content"])
        n_characters = sum(len(text) for text in texts)
        n_read += n_characters // CHARACTERS_PER_TOKEN + 1
        n_written += int(request.body[LIMIT])

    places = {unit.place for unit in planned.units}
    each = "one answer" if not asking.samples else f"{asking.answers_each} answers"
    n_stored = len(planned.requests) - len(left)
    stored = f", {n_stored:,} more are answered already" if n_stored else ""
    cost = "their price is not known (--price-per-1k)"
    if asking.price_per_1k is not None:
        price = (n_read + n_written) / TOKENS_PER_PRICE * asking.price_per_1k
        cost = f"at most about {price:,.2f} at {asking.price_per_1k:g} per 1,000"
    return [
        f"{len(left):,} requests to {shown(job.model)} at {job.url} "
        f"({job.endpoint}){stored}",
        f"they ask for {len(places):,} identifiers, with {each} to each prompt",
        f"about {n_read:,} tokens are read and at most {n_written:,} written; {cost}",
    ]


def _ask(
    job: _EndpointJob,
    planned: PlannedAsking,
    store: AnswerStore,
    progress: Progress | None,
) -> None:
    """Send the requests whose answers are not stored."""
    asking = job.request.asking
    server = TextServer(
        job.url,
        job.model,
        streams=asking.stream,
        max_requests=asking.max_requests,
        parallel=asking.parallel,
    )

    def show(done: int, total: int) -> None:
        if progress is not None:
            progress(f"asking {job.name}", done, total)

    try:
        ask_all(
            server,
            planned.requests,
            store,
            parallel=asking.parallel,
            progress=show,
        )
    finally:
        server.close()


def _conclude(
    job: _EndpointJob, planned: PlannedAsking, store: AnswerStore
) -> AuditReport:
    """Conclude from the stored answers, and write the report."""
    request = job.request
    answers = [[store[key] for key in keys] for keys in planned.keys]
    evidence = evidence_of_answers(
        planned.units, answers, checkpoint=job.name, prompts=job.prompts
    )
    preset = request.preset or job.manifest.settings.preset
    context = Context(
        paper=preset == "paper",
        seed=request.seed,
        replicates=job.audit.replicates_of(preset),
    )
    result: AuditResult = job.audit.conclude(evidence, context)

    # Another command may have written a report to this folder meanwhile.
    specs = parse_specs(request.checkpoints)
    old_report = check_folder(job.folder, job.manifest, specs, request)
    checksums = write_evidence(job.folder, {job.audit.name: evidence})
    is_partial = len(job.view.examples) < len(job.manifest.examples)
    report = assemble(
        {job.audit.name: replace(result, evidence=evidence)},
        status="partial" if is_partial else "complete",
        command=list(request.command),
        manifest=manifest_facts(job.view),
        checkpoints=[_facts(job, planned, store, answers)],
        settings=_settings(job),
        tables=matching(job.view),
        evidence=checksums,
    )
    keep_if_replaced(job.folder, old_report, report)
    report = report.model_copy(update={"files": score_files(checksums)})
    write_report(
        report,
        job.folder,
        formats=("json", *request.formats) if request.formats else (),
        manifest=job.view,
        show_text=request.show_text,
    )
    return read_report(job.folder)


def _settings(job: _EndpointJob) -> dict[str, object]:
    """Return the settings that shaped the report."""
    asking = job.request.asking
    settings = job.request.shared_settings(job.manifest)
    settings["caliper"] = job.manifest.settings.caliper
    settings["reference"] = job.manifest.reference.name
    for name, value in asdict(job.audit).items():
        settings[f"{job.audit.name}.{name}"] = value
    settings[f"{job.audit.name}.endpoint"] = job.endpoint
    settings[f"{job.audit.name}.samples"] = asking.samples
    settings[f"{job.audit.name}.temperature"] = (
        asking.temperature if asking.samples else None
    )
    settings[f"{job.audit.name}.max_requests"] = asking.max_requests
    return settings


def _facts(
    job: _EndpointJob,
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
    job: _EndpointJob,
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
