"""A model behind an OpenAI-compatible server: asked for log-probabilities of texts.

What such a server says is believed only where it agrees with the same checkpoint here:
see :mod:`spark_audit.scoring.served`. Servers have been seen to leave out adapters, or
to give chance, without a word.
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
"""In which a whole answer must be there."""
FIRST_ANSWER_SECONDS = 30
"""Seconds in which it must answer at all."""
ANSWER_BYTES = 1 << 26
KEY = "SPARK_AUDIT_API_KEY"
"""Sent as a bearer token, where it is set."""
_NEEDS = "give an OpenAI-compatible server that echoes log-probabilities of token ids"
_HOW_ADDRESSES_END = (
    "a server's address ends in /v1, a model on the hub is written hf:ORG/NAME"
)
_SERVER_GONE = f"start it, or check the address: {_HOW_ADDRESSES_END}"
PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before one that is away, or busy, is asked for the same scores again."""
BUSY = (429, 500, 502, 503, 504)
COMPLETION_REQUEST = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
"""Of a prompt: its log-probabilities."""


def api_key() -> str:
    """The bearer token, or nothing; never quoted, for what is said stands in logs.

    Raises
    ------
    InputError
        If a header cannot hold it.
    """
    key = os.environ.get(KEY, "").strip()
    if key.isascii() and key.isprintable():
        return key
    fix = "set it to the key alone, in one line"
    raise errors.InputError("holds other characters than a key has", where=KEY, fix=fix)


@dataclass(frozen=True)
class Server:
    """Where a checkpoint is served, and by what it is known to be that.

    Attributes
    ----------
    url, model
        ``http://host:port/v1``, and what the server calls the model.
    name
        What reports call the checkpoint.
    """

    url: str
    model: str
    name: str = ""

    def reach(self) -> None:
        """Refuse a server that is not there, or has no such model, before any work.

        One that does not list its models is asked for scores first.

        Raises
        ------
        CheckpointError
            With the models that it lists.
        InputError
            If the key cannot be sent.
        """
        api_key()
        with errors.at(self.url):
            names = []
            with suppress(errors.InputError, TypeError, KeyError):
                status, raw = self._sent("/models", None, FIRST_ANSWER_SECONDS)
                if status == 200:
                    answer = parse_json(raw, place="the answer", finite=False)
                    names = [one["id"] for one in answer["data"]]
            if not names:
                self._post("a")
            elif self.model not in names:
                known = errors.choose(self.model, map(errors.shown, names))
                what = f"serves no model {errors.shown(self.model)}"
                raise errors.CheckpointError(what, fix=f"give --model NAME: {known}")

    def nll(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """NLL of each token but the first, nats, float64.

        Raises
        ------
        CheckpointError
            If the server cannot be reached, refuses, or answers anything else; after
            :data:`PAUSES` where waiting may help.
        """
        with errors.at(self.url):
            answer, count, what = self._post([*map(int, ids)], PAUSES), len(ids), ""
            try:
                given = answer["choices"][0]["logprobs"]["token_logprobs"]
                read = (answer.get("usage") or {}).get("prompt_tokens", count)
                values = np.array([*map(float, given[1:count])])
            except (TypeError, KeyError, IndexError, ValueError, AttributeError):
                what = "gives no log-probabilities of the prompt"
            else:
                if read != count or len(values) != count - 1:
                    what = f"reads {read} tokens where {count} were meant"
                elif not (np.isfinite(values) & (values < 1e-3)).all():
                    what = "gives log-probabilities that are none"
            if what:
                raise errors.CheckpointError(what, fix=_NEEDS)
            return -values

    def _sent(self, path: str, data: bytes | None, seconds: float) -> tuple[int, bytes]:
        """HTTP's status and what is answered; 0 and the reason, where nothing is."""
        head = {"Content-Type": "application/json"}
        if key := api_key():
            head["Authorization"] = f"Bearer {key}"
        asked: Future[tuple[int, bytes]] = Future()

        def ask() -> None:
            try:
                url = self.url.rstrip("/") + path
                request = urllib.request.Request(url, data, head)
                with _OPENER.open(request, timeout=seconds) as answer:
                    asked.set_result((answer.status, answer.read(ANSWER_BYTES)))
            except BaseException as error:
                asked.set_exception(error)

        # A socket's own limit starts again with each byte that comes.
        threading.Thread(target=ask, daemon=True).start()
        try:
            return asked.result(timeout=seconds)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                what = f"has not answered for {seconds} s"
                raise errors.CheckpointError(what, fix=_SERVER_GONE) from error
            return 0, errors.first_line(Exception(reason)).encode()

    def _post(self, prompt: list[int] | str, pauses: Sequence[float] = ()) -> Any:
        """What it says of a prompt."""
        body = json.dumps(
            {**COMPLETION_REQUEST, "model": self.model, "prompt": prompt}
        ).encode()
        for pause in (*pauses, None):
            status, raw = self._sent("/completions", body, ANSWER_SECONDS)
            # What it answers may quote the text, and its own reason the key.
            what, fix, passes = "answers something else than JSON", _NEEDS, True
            if 200 <= status < 300:
                with suppress(errors.InputError):  # or an answer that broke off
                    return parse_json(raw, place="the answer", finite=False)
            elif status:
                what = f"answers {status} {http.client.responses.get(status, '')}"
                fix = f"check --model and the server's log; {_HOW_ADDRESSES_END}"
                passes = status in BUSY
            else:
                what, fix = f"cannot be reached ({raw.decode()})", _SERVER_GONE
            if pause is None or not passes:
                resumes = "; the same command resumes there" * bool(passes and pauses)
                raise errors.CheckpointError(what, fix=fix + resumes)
            time.sleep(pause)
        return None


# It follows no redirect: another address is not the one given, nor is the key for it.
_OPENER = urllib.request.OpenerDirector()
_OPENER.add_handler(urllib.request.ProxyHandler())
_OPENER.add_handler(urllib.request.HTTPHandler())
_OPENER.add_handler(urllib.request.HTTPSHandler())


NOTE = (
    "a server gives log-probabilities of tokens alone: figures that rest on ranks, on "
    "the rest of the distribution or on answers are not estimable"
)


def served(
    specs: Sequence[Spec], loading: Loading, *, relearn: bool
) -> tuple[Server, list[Spec]]:
    """The server of a call, reached, and all specs: in its place what it serves.

    Raises
    ------
    InputError
        If the flags do not say what is served and what it must agree with.
    CheckpointError
        If the server cannot be reached.
    """
    there = [spec for spec in specs if any(map(is_server, spec.paths))]
    paths = [path for spec in there for path in spec.paths]
    where, what, fix = "--ckpt", "", None
    if not there:
        where = "--agree" if loading.model is None else "--model"
        what = "is for --ckpt http://HOST:PORT/v1"
    elif any({*path} & {*"@?#"} for path in paths):
        what = "an address with a password, a query or a fragment is not taken"
        fix = f"give --ckpt http://HOST:PORT/v1, and a key by the variable {KEY}"
    elif len(paths) > 1:
        what = "one served checkpoint at most"
        fix = "audit one at a time, and compare the reports"
    elif loading.model is None or loading.agree is None:
        where = paths[0]
        what = "is read as a server's address, which is believed only where it agrees"
        fix = "write a model on the hub as hf:ORG/NAME; a server's address ends in "
        fix += "/v1, and needs --model NAME, and --agree PATH: the same checkpoint here"
    elif loading.quantize or relearn:
        where = "--quantize" if loading.quantize else "--relearn"
        what = "does not go with a server"
    if what:
        raise errors.InputError(what, where=where, fix=fix)
    (spec,) = there
    server = Server(paths[0], str(loading.model), spec.name)
    server.reach()
    here = Spec(spec.name, (str(loading.agree),))
    return server, [here if one is spec else one for one in specs]
