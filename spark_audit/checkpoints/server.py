"""Ask an OpenAI-compatible server for log-probabilities of texts.

Its scores are used only if they agree with the same checkpoint here: see
:mod:`spark_audit.scoring.served`. Some servers silently leave out adapters, or give
random scores.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_audit import errors
from spark_audit.checkpoints.specs import Loading, Spec, is_server
from spark_audit.files import parse_json

ANSWER_SECONDS = 600
"""Seconds for a whole answer."""
FIRST_ANSWER_SECONDS = 30
"""Seconds for any answer at all."""
ANSWER_BYTES = 1 << 26
"""Most bytes of an answer that are read."""
KEY = "SPARK_AUDIT_API_KEY"
"""Variable whose value is sent as a bearer token, if it is set."""
PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each new request to a server that is busy or away."""
BUSY = (429, 500, 502, 503, 504)
"""HTTP statuses of a server that may answer later."""
COMPLETION_REQUEST = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
"""Parameters of a request for the log-probabilities of a prompt."""
NOTE = (
    "a server gives log-probabilities of tokens alone: figures that rest on ranks, on "
    "the rest of the distribution or on answers are not estimable"
)
_MAX_LOG_PROBABILITY = 1e-3
"""Most by which rounding may lift a log-probability above 0."""
_NEEDS = "give an OpenAI-compatible server that echoes log-probabilities of token ids"
_HOW_ADDRESSES_END = (
    "a server's address ends in /v1, a model on the hub is written hf:ORG/NAME"
)
_SERVER_GONE = f"start it, or check the address: {_HOW_ADDRESSES_END}"


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener of addresses that follows no redirect.

    The user gave neither the other address nor a key for it.
    """
    opener = urllib.request.OpenerDirector()
    opener.add_handler(urllib.request.ProxyHandler())
    opener.add_handler(urllib.request.HTTPHandler())
    opener.add_handler(urllib.request.HTTPSHandler())
    return opener


_OPENER = _opener()


def api_key() -> str:
    """Return the bearer token, or nothing.

    It is never quoted, because messages go to logs.

    Raises
    ------
    InputError
        If a header cannot contain it.
    """
    key = os.environ.get(KEY, "").strip()
    if key.isascii() and key.isprintable():
        return key
    remedy = "set it to the key alone, in one line"
    raise errors.InputError(
        "holds other characters than a key has", where=KEY, fix=remedy
    )


def check_bare_address(address: str) -> None:
    """Refuse an address with a password, a query or a fragment.

    A password would appear in logs, and a query would be lost.

    Raises
    ------
    InputError
        Without the address.
    """
    if any(mark in address for mark in "@?#"):
        raise errors.InputError(
            "an address with a password, a query or a fragment is not taken",
            where="--ckpt",
            fix=f"give --ckpt http://HOST:PORT/v1, and a key by the variable {KEY}",
        )


@dataclass(frozen=True)
class _Answer:
    """An answer of the server, or the reason why there is none.

    Attributes
    ----------
    status
        HTTP status; 0 without an answer.
    content
        The bytes of the answer; without one, those of the reason.
    """

    status: int
    content: bytes


@dataclass(frozen=True)
class Server:
    """The server of a checkpoint, with the model's names.

    Attributes
    ----------
    url, model
        ``http://host:port/v1``, and the model's name on the server.
    name
        The checkpoint's name in reports.
    """

    url: str
    model: str
    name: str = ""

    def reach(self) -> None:
        """Refuse a server that is away or lacks the model, before any work.

        A server that does not list its models is asked for a score.

        Raises
        ------
        CheckpointError
            Lists the server's models.
        InputError
            If the key cannot be sent.
        """
        # A bad key is a mistake of the user, not of the server.
        api_key()
        with errors.at(self.url):
            names = self._listed_models()
            if not names:
                # A short text shows whether the server scores at all.
                self._complete("a")
            elif self.model not in names:
                printed = [errors.shown(name) for name in names]
                choices = errors.choose(self.model, printed)
                problem = f"serves no model {errors.shown(self.model)}"
                raise errors.CheckpointError(
                    problem, fix=f"give --model NAME: {choices}"
                )

    def _listed_models(self) -> list[Any]:
        """Return the models that a server lists; empty if it lists none."""
        # An answer of another form means that the server lists none.
        with suppress(errors.InputError, TypeError, KeyError):
            answer = self._ask("/models", None, FIRST_ANSWER_SECONDS)
            if answer.status == 200:
                content = parse_json(answer.content, place="the answer", finite=False)
                return [model["id"] for model in content["data"]]
        return []

    def nll(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the NLL of each token but the first: ``(tokens - 1,)``, nats, float64.

        Parameters
        ----------
        ids
            Shape ``(tokens,)``.

        Raises
        ------
        CheckpointError
            If the server is away, refuses, or answers anything else; after
            :data:`PAUSES` if waiting may help.
        """
        n_tokens = len(ids)
        with errors.at(self.url):
            answer = self._complete([int(token_id) for token_id in ids], PAUSES)
            try:
                # The first token has no score, and generated tokens follow the prompt.
                listed = answer["choices"][0]["logprobs"]["token_logprobs"]
                n_read = (answer.get("usage") or {}).get("prompt_tokens", n_tokens)
                log_probabilities = np.array(
                    [float(value) for value in listed[1:n_tokens]]
                )  # (tokens - 1,)
            except (TypeError, KeyError, IndexError, ValueError, AttributeError):
                problem = "gives no log-probabilities of the prompt"
                raise errors.CheckpointError(problem, fix=_NEEDS) from None

            # A server that tokenises again, or cuts the text, has read another text.
            if n_read != n_tokens or len(log_probabilities) != n_tokens - 1:
                problem = f"reads {n_read} tokens where {n_tokens} were meant"
                raise errors.CheckpointError(problem, fix=_NEEDS)

            is_valid = np.isfinite(log_probabilities)
            is_valid &= log_probabilities < _MAX_LOG_PROBABILITY
            if not is_valid.all():
                problem = "gives log-probabilities that are not finite, or above 0"
                raise errors.CheckpointError(problem, fix=_NEEDS)

            return -log_probabilities

    def _ask(self, path: str, data: bytes | None, seconds: float) -> _Answer:
        """Send a request, and wait for the whole answer up to a time limit.

        Raises
        ------
        CheckpointError
            If the time is over.
        """
        headers = {"Content-Type": "application/json"}
        key = api_key()
        if key:
            headers["Authorization"] = f"Bearer {key}"

        pending: Future[_Answer] = Future()

        def ask() -> None:
            try:
                url = self.url.rstrip("/") + path
                request = urllib.request.Request(url, data, headers)
                with _OPENER.open(request, timeout=seconds) as response:
                    content = response.read(ANSWER_BYTES)
                    pending.set_result(_Answer(response.status, content))
            # Any error of the thread is raised where its result is awaited.
            except BaseException as error:
                pending.set_exception(error)

        # The time limit of a socket starts again with each byte.
        threading.Thread(target=ask, daemon=True).start()
        try:
            return pending.result(timeout=seconds)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # urllib wraps the error of the socket.
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                problem = f"has not answered for {seconds} s"
                raise errors.CheckpointError(problem, fix=_SERVER_GONE) from error
            return _Answer(0, errors.first_line(Exception(reason)).encode())

    def _complete(self, prompt: list[int] | str, pauses: Sequence[float] = ()) -> Any:
        """Return the parsed answer to a prompt.

        Parameters
        ----------
        pauses
            Seconds before each further try; none: the first answer counts.

        Raises
        ------
        CheckpointError
            If the last try gives no answer, or if waiting would not help.
        """
        request = {**COMPLETION_REQUEST, "model": self.model, "prompt": prompt}
        data = json.dumps(request).encode()

        # No pause follows the last try.
        for pause in (*pauses, None):
            answer = self._ask("/completions", data, ANSWER_SECONDS)
            if 200 <= answer.status < 300:
                # Otherwise the answer has another form, or broke off.
                with suppress(errors.InputError):
                    return parse_json(answer.content, place="the answer", finite=False)

            # A server that is busy or away, or whose answer broke off, may answer
            # later.
            may_pass = answer.status in (0, *BUSY) or 200 <= answer.status < 300
            if pause is None or not may_pass:
                raise _failure(answer, resumes=may_pass and bool(pauses))
            time.sleep(pause)
        return None


def _failure(answer: _Answer, *, resumes: bool) -> errors.CheckpointError:
    """Return the error about an answer without scores.

    The content of the answer may quote the text, and its reason the key, so neither is
    shown.

    Parameters
    ----------
    resumes
        Whether the same command can resume when the server is back.
    """
    if answer.status == 0:
        problem = f"cannot be reached ({answer.content.decode()})"
        remedy = _SERVER_GONE
    elif 200 <= answer.status < 300:
        problem = "answers something else than JSON"
        remedy = _NEEDS
    else:
        reason = http.client.responses.get(answer.status, "")
        problem = f"answers {answer.status} {reason}"
        remedy = f"check --model and the server's log; {_HOW_ADDRESSES_END}"

    if resumes:
        remedy += "; the same command resumes there"
    return errors.CheckpointError(problem, fix=remedy)


def served(
    specs: Sequence[Spec], loading: Loading, *, relearn: bool
) -> tuple[Server, list[Spec]]:
    """Reach the server of a call; return it, and the specs with local copies.

    Parameters
    ----------
    relearn
        Whether checkpoints are also relearned.

    Returns
    -------
    tuple
        The server, and the specs with the copy of ``--agree`` in place of the served
        one.

    Raises
    ------
    InputError
        If the options do not say what is served, or which copy it must agree with.
    CheckpointError
        If the server cannot be reached.
    """
    served_specs = [
        spec for spec in specs if any(is_server(path) for path in spec.paths)
    ]
    addresses: list[str] = []
    for spec in served_specs:
        addresses += spec.paths

    _check_flags(addresses, loading, relearn=relearn)

    (served_spec,) = served_specs
    server = Server(addresses[0], str(loading.model), served_spec.name)
    server.reach()

    # The local copy is opened, because the server must agree with it.
    local_copy = Spec(served_spec.name, (str(loading.agree),))
    return server, [local_copy if spec is served_spec else spec for spec in specs]


def _check_flags(addresses: Sequence[str], loading: Loading, *, relearn: bool) -> None:
    """Refuse options that do not say what is served, or which copy must agree.

    Raises
    ------
    InputError
        Names the option, and what to give.
    """
    if not addresses:
        raise errors.InputError(
            "is for --ckpt http://HOST:PORT/v1",
            where="--agree" if loading.model is None else "--model",
        )
    for address in addresses:
        check_bare_address(address)
    if len(addresses) > 1:
        raise errors.InputError(
            "one served checkpoint at most",
            where="--ckpt",
            fix="audit one at a time, and compare the reports",
        )
    if loading.model is None or loading.agree is None:
        raise errors.InputError(
            "is read as a server's address, which is believed only where it agrees",
            where=addresses[0],
            fix="write a model on the hub as hf:ORG/NAME; a server's address ends in "
            "/v1, and needs --model NAME, and --agree PATH: the same checkpoint here",
        )
    # The server cannot score other weights than its own.
    if loading.quantize or relearn:
        raise errors.InputError(
            "does not go with a server",
            where="--quantize" if loading.quantize else "--relearn",
        )
