"""A job for an endpoint that gives only text: a checked request, and what it asks.

:meth:`EndpointJob.of` checks a request, and :meth:`EndpointJob.planned` returns the
requests for its answers. Nothing is written or sent here. ``text_endpoint.py`` sends
them, and ``asking_cost.py`` says beforehand how many there are. An option that does not
go with an endpoint is a line of :func:`_check_options`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from spark_audit.audits import Audit, Extraction, about, audit_names
from spark_audit.audits.extract.audit import DEFAULT_PROMPTS
from spark_audit.audits.extract.prompts import listed
from spark_audit.audits.extract.text_units import AskedUnit, asked_units
from spark_audit.checkpoints.endpoint_options import Asking, Endpoint
from spark_audit.checkpoints.server import check_bare_address
from spark_audit.checkpoints.specs import Loading, Spec, is_server, parse_specs
from spark_audit.checkpoints.text_server import LIMIT, TextRequest
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.text_prompts import (
    FULL_PROMPT,
    PROMPTS_OF_TEXT,
    usual_endpoint,
)
from spark_audit.pipeline.folders import report_folder
from spark_audit.pipeline.lineup import make_plans
from spark_audit.pipeline.request import Request
from spark_audit.pipeline.single_audit import manifest_of
from spark_audit.report.formats import check_formats
from spark_audit.scoring.answer_store import AnswerStore

VARIABLES = {
    "--base": "SPARK_AUDIT_BASE",
    "--scores": "SPARK_AUDIT_SCORES",
    "--batch-size": "SPARK_AUDIT_BATCH_SIZE",
    "--device": "SPARK_AUDIT_DEVICE",
    "--dtype": "SPARK_AUDIT_DTYPE",
}
"""Options that mean nothing for an endpoint -> the variable that may set them."""


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
    n_left_out
        Identifiers that ``--max-requests`` leaves out.
    n_too_long
        Identifiers that are left out because a prompt was too long for the model, once
        that is known.
    """

    units: Sequence[AskedUnit]
    keys: Sequence[Sequence[str]]
    requests: Mapping[str, TextRequest]
    n_left_out: int = 0
    n_too_long: int = 0

    def unanswered(self, store: AnswerStore) -> dict[str, TextRequest]:
        """Return the requests whose answers are not in a store."""
        return {
            key: request for key, request in self.requests.items() if key not in store
        }


@dataclass(frozen=True)
class EndpointJob:
    """A checked request for an endpoint.

    Attributes
    ----------
    request
        The request, with the audit of identifiers as its only audit.
    url, name
        Address of the endpoint, and its name in reports.
    audit
        The audit of identifiers, with its options.
    with_identifiers
        Whether identifiers are asked for; canaries always are.
    manifest, view
        The whole manifest, and its part under ``--limit``.
    endpoint
        Kind of requests, such as ``chat``.
    folder
        The report folder.
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
    def of(cls, request: Request) -> EndpointJob:
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
        # Text shows whether a canary comes out, and not its rank. So the audit of
        # identifiers concludes on both.
        audit = audits.get("identifiers", Extraction())
        if isinstance(audit, Extraction):
            _check_audit(audit)

        manifest = manifest_of(request, told_by="an endpoint")
        # An endpoint has no scores, so no other audit can be in its folder.
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
        all_units = asked_units(
            self.view,
            self.prompts,
            self.endpoint,
            identifiers=self.with_identifiers,
        )
        units = _within_limit(all_units, self.request.asking)
        if all_units and not units:
            raise InputError(
                "leaves room for no identifier with all of its prompts",
                where="--max-requests",
                fix="give more",
            )
        if not units:
            raise InputError(
                "nothing can be asked for: no identifier or canary has text before it",
                where=f"manifest {self.manifest.name!r}",
                fix="give another --manifest",
            )

        keys = []
        requests = {}
        for unit in units:
            keys_of_unit = []
            for text_request in _requests_for(unit, self.request.asking):
                # The same request to another server or model is another one.
                key = store.key_of([self.url, self.model, asdict(text_request)])
                requests[key] = text_request
                keys_of_unit.append(key)
            keys.append(keys_of_unit)

        n_places = len({unit.place for unit in all_units})
        n_asked = len({unit.place for unit in units})
        return PlannedAsking(units, keys, requests, n_left_out=n_places - n_asked)


def _checked_spec(request: Request) -> Spec:
    """Return the only checkpoint of a request; refuse what does not go with it.

    Raises
    ------
    InputError
        Names the option, and what to do.
    """
    specs = parse_specs(request.checkpoints)
    address = next(path for spec in specs for path in spec.paths if is_server(path))
    check_bare_address(address)
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
    _check_options(request)
    return specs[0]


def _check_options(request: Request) -> None:
    """Refuse options that mean nothing for an endpoint that gives only text.

    Variables of the environment are meant for all commands, and hold for others.

    Raises
    ------
    InputError
        Names the first of them.
    """
    loading = request.loading
    usual = Loading()
    values = {
        "--base": (request.base, Request.base),
        "--baseline": (request.baseline, Request.baseline),
        "--data": (request.data, Request.data),
        "--relearn": (request.relearn, Request.relearn),
        "--relearn-steps": (request.relearn_steps, Request.relearn_steps),
        "--relearn-lr": (request.relearn_lr, Request.relearn_lr),
        "--scores": (request.scores, Request.scores),
        "--shard": (request.shard, Request.shard),
        "--engine": (request.engine, Request.engine),
        "--batch-size": (request.batch_size, Request.batch_size),
        "--jobs": (request.jobs, Request.jobs),
        "--device": (loading.device, usual.device),
        "--dtype": (loading.dtype, usual.dtype),
        "--device-map": (loading.device_map, usual.device_map),
        "--tokenizer": (loading.tokenizer, usual.tokenizer),
        "--lora-alpha": (loading.lora_alpha, usual.lora_alpha),
        "--revision": (loading.revision, usual.revision),
        "--trust-remote-code": (loading.trust_remote_code, usual.trust_remote_code),
        "--quantize": (loading.quantize, usual.quantize),
    }
    for option, (value, usual_value) in values.items():
        variable = VARIABLES.get(option)
        is_of_variable = variable is not None and str(value) == os.environ.get(variable)
        if value != usual_value and not is_of_variable:
            raise InputError(
                "does not go with an endpoint that gives only text",
                where=option,
                fix="leave it out",
            )


def _check_audit(audit: Extraction) -> None:
    """Refuse options of the audit that need the probabilities of tokens.

    Raises
    ------
    InputError
        Names the first of them.
    """
    if audit.top_p:
        raise InputError(
            "needs the probabilities of tokens, which text does not tell",
            where="--top-p",
            fix="leave it out, and ask for --samples",
        )
    if audit.prompts == DEFAULT_PROMPTS:
        return
    for prompt in listed(audit.prompts):
        if prompt not in PROMPTS_OF_TEXT:
            raise InputError(
                f"{prompt} is counted in tokens, which an endpoint does not show",
                where="--prompts",
                fix=f"take some of: {', '.join(PROMPTS_OF_TEXT)}; or {FULL_PROMPT}",
            )


def _within_limit(units: Sequence[AskedUnit], asking: Asking) -> list[AskedUnit]:
    """Return the units that ``--max-requests`` leaves room for, chosen by hash.

    All prompts of an identifier are asked, or none. A larger limit only adds
    identifiers, so that stored answers stay of use.
    """
    if asking.max_requests is None:
        return list(units)

    units_by_place: dict[str, list[AskedUnit]] = {}
    # (identifiers or canaries, whether trained) -> their places.
    places_by_side: dict[tuple[str, bool], list[str]] = {}
    for unit in units:
        if unit.place not in units_by_place:
            side = (unit.record["set"], unit.record["dose"] > 0)
            places_by_side.setdefault(side, []).append(unit.place)
        units_by_place.setdefault(unit.place, []).append(unit)

    # Trained and held-out ones take turns, so that few requests ask for both.
    turn_of_place = {}
    for places in places_by_side.values():
        for turn, place in enumerate(sorted(places, key=_hash_of)):
            turn_of_place[place] = turn
    in_turns = sorted(
        turn_of_place, key=lambda place: (turn_of_place[place], _hash_of(place))
    )

    n_requests_left = asking.max_requests
    chosen_places = set()
    for place in in_turns:
        n_requests = len(units_by_place[place]) * asking.answers_each
        if n_requests > n_requests_left:
            break
        n_requests_left -= n_requests
        chosen_places.add(place)
    return [unit for unit in units if unit.place in chosen_places]


def _hash_of(place: str) -> bytes:
    """Return the hash that orders the places of identifiers."""
    return hashlib.sha256(place.encode()).digest()


def _requests_for(unit: AskedUnit, asking: Asking) -> list[TextRequest]:
    """Return the requests for the answers to a unit, the greedy one first."""
    body = {**unit.prompt.content, LIMIT: unit.prompt.max_tokens}
    requests = [TextRequest(unit.prompt.path, {**body, "temperature": 0})]
    for number in range(asking.samples):
        # Without a seed, a server that caches would repeat the first sample.
        sampled = {**body, "temperature": asking.temperature, "seed": number + 1}
        requests.append(TextRequest(unit.prompt.path, sampled))
    return requests
