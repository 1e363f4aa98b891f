"""A model behind an OpenAI-compatible server: asked for log-probabilities of texts.

What such a server says is believed only where it agrees with the same checkpoint here,
or with a table of its scores: see :mod:`spark_audit.scoring.served`. Servers have been
seen to leave out adapters, or to give chance, without a word.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.errors import CheckpointError, InputError, choose, first_line, shown
from spark_audit.files import parse_json
from spark_audit.provenance import sha256_file, sha256_json

SCHEMES = ("http://", "https://")
SECONDS = 600
"""In which a whole answer must be there."""
SOON = 30
"""Seconds in which it must answer at all."""
ANSWER_BYTES = 1 << 26
KEY = "SPARK_AUDIT_API_KEY"
"""Sent as a bearer token, where it is set."""
_GONE = "start it, or check the address"
PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before one that is away, or busy, is asked for the same scores again."""
BUSY = (429, 500, 502, 503, 504)
ASKED = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
"""Of a prompt: its log-probabilities."""


def is_server(source: str) -> bool:
    """Whether a checkpoint is given as an address."""
    return source.startswith(SCHEMES)


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
    raise InputError("holds other characters than a key has", where=KEY, fix=fix)


@dataclass(frozen=True)
class Server:
    """Where a checkpoint is served, and by what it is known to be that.

    Attributes
    ----------
    url, model
        ``http://host:port/v1``, and what the server calls the model.
    table
        A table of the checkpoint's plain scores; ``None``: it is loaded here.
    by_text
        Whether texts are sent as such, as the server takes no token ids.
    """

    url: str
    model: str
    table: Path | None = None
    by_text: list[bool] = field(default_factory=list, compare=False)

    def stands_in(self, here: Any) -> Any:
        """A ``Loaded`` that was opened here as what the server scores."""
        identity = {"server": self.url, "model": self.model, "here": here.model_id}
        if self.table is not None:
            identity["here"] = sha256_file(self.table)
        own = sha256_json(identity)
        return replace(
            here,
            source=f"{self.model} at {self.url}",
            format="server",
            weights_sha256=here.weights_sha256 if self.table is None else own,
            model_id=own,
            served=self,
            notes=(*here.notes, NOTE),
        )

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
        names = self._names("/models")
        if names is None:
            if self._names("/v1/models"):
                fix = f"give --ckpt {self.url.rstrip('/')}/v1"
                raise self._wrong("is not the whole address", fix)
            self._post({**ASKED, "model": self.model, "prompt": "a"})
        if names and self.model not in names:
            what = f"serves no model {shown(self.model)}"
            fix = f"give --model NAME: {choose(self.model, map(shown, names))}"
            raise self._wrong(what, fix)

    def _names(self, path: str) -> list[str] | None:
        """What it calls its models; ``None`` if it does not say."""
        try:
            listed = self._sent(path, None, SOON)["data"]
            return [one["id"] for one in listed if isinstance(one["id"], str)]
        except (urllib.error.HTTPError, InputError, TypeError, KeyError):
            return None

    def nll(self, ids: Sequence[int] | np.ndarray, tokenizer: Any) -> np.ndarray:
        """NLL of each token but the first, nats, float64.

        Raises
        ------
        CheckpointError
            If the server cannot be reached, refuses, or answers anything else; after
            :data:`PAUSES` where waiting may help.
        """
        if not self.by_text:
            try:
                found = self._asked(list(map(int, ids)), len(ids))
            except _Refused:
                self.by_text.append(True)
            else:
                return found
        text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        fed = tokenizer(text, add_special_tokens=False)["input_ids"]
        if list(fed) != list(map(int, ids)):
            raise self._wrong(
                "takes texts alone, and one of them has other tokens then"
            )
        return self._asked(text, len(ids))

    def _asked(self, prompt: list[int] | str, count: int) -> np.ndarray:
        answer = self._insisted({**ASKED, "model": self.model, "prompt": prompt})
        try:
            given = answer["choices"][0]["logprobs"]["token_logprobs"]
            read = (answer.get("usage") or {}).get("prompt_tokens", count)
            values = [float(one) for one in given[1:count]]
        except (TypeError, KeyError, IndexError, ValueError, AttributeError) as error:
            raise self._wrong("gives no log-probabilities of the prompt") from error
        if read != count or len(values) != count - 1:
            raise self._wrong(f"reads {read} tokens where {count} were meant")
        if not all(math.isfinite(one) and one < 1e-3 for one in values):
            raise self._wrong("gives log-probabilities that are none")
        return -np.array(values)

    def _sent(self, path: str, data: bytes | None, seconds: float) -> Any:
        """What is answered, as JSON; HTTP's errors and those of JSON are raised."""
        head = {"Content-Type": "application/json"}
        if key := api_key():
            head["Authorization"] = f"Bearer {key}"
        asked: Future[bytes] = Future()

        def ask() -> None:
            try:
                request = urllib.request.Request(
                    self.url.rstrip("/") + path, data, head
                )
                with _OPENER.open(request, timeout=seconds) as answer:
                    asked.set_result(answer.read(ANSWER_BYTES))
            except BaseException as error:
                asked.set_exception(error)

        # A socket's own limit starts again with each byte that comes.
        threading.Thread(target=ask, daemon=True).start()
        try:
            raw = asked.result(timeout=seconds)
        except urllib.error.HTTPError as error:
            error.close()
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise self._wrong(f"has not answered for {seconds} s", _GONE) from error
            what = f"cannot be reached ({first_line(Exception(reason))})"
            raise _Later(what, where=self.url, fix=_GONE) from error
        return parse_json(raw, place="the answer", finite=False)

    def _post(self, body: dict[str, Any]) -> Any:
        try:
            return self._sent("/completions", json.dumps(body).encode(), SECONDS)
        except urllib.error.HTTPError as error:
            # What it answers may quote the text.
            if error.code in (400, 422) and isinstance(body["prompt"], list):
                raise _Refused from error
            kind = _Later if error.code in BUSY else CheckpointError
            # Nor is its own reason said: it knows the key.
            said = f"answers {error.code} {http.client.responses.get(error.code, '')}"
            fix = "check --model and the server's log"
            raise kind(said, where=self.url, fix=fix) from error
        except InputError as error:  # or an answer that broke off
            wrong = self._wrong("answers something else than JSON")
            raise _Later(wrong.what, where=wrong.where, fix=wrong.fix) from error

    def _insisted(self, body: dict[str, Any]) -> Any:
        for pause in PAUSES:
            with contextlib.suppress(_Later):
                return self._post(body)
            time.sleep(pause)
        try:
            return self._post(body)
        except _Later as error:
            fix = f"{error.fix}; the same command resumes there"
            raise self._wrong(error.what, fix) from error

    def _wrong(self, what: str, fix: str | None = None) -> CheckpointError:
        needs = "give an OpenAI-compatible server that echoes log-probabilities"
        return CheckpointError(what, where=self.url, fix=fix or needs)


class _Stays(urllib.request.HTTPRedirectHandler):
    """Another address is not the one given, and the key is not for it."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_Stays)


class _Later(CheckpointError):
    """It is away, busy, or broke off, which may pass."""


class _Refused(Exception):
    """Token ids instead of a text are no prompt to the server."""


NOTE = (
    "a server gives log-probabilities of tokens alone: figures that rest on ranks, on "
    "the rest of the distribution or on answers are not estimable"
)


def served(specs: Sequence[Spec], loading: Loading) -> dict[str, Server]:
    """Checkpoints that are behind a server, by name.

    Raises
    ------
    InputError
        If the flags do not say what is served and what it must agree with.
    """
    found = {spec.name: spec for spec in specs if any(map(is_server, spec.paths))}
    fix = "give --agree PATH: the same checkpoint here, or a table of its plain scores"
    for flag, value in (("--model", loading.model), ("--agree", loading.agree)):
        if value is not None and not found:
            raise InputError("is for --ckpt http://HOST:PORT/v1", where=flag)
        if found and value is None:
            raise InputError(
                "a served checkpoint is believed only where it agrees"
                if flag == "--agree"
                else "the name of the model on the server is not known",
                where=flag,
                fix=fix if flag == "--agree" else "give --model NAME",
            )
    if not found:
        return {}
    ((name, spec), *others) = found.items()
    api_key()
    if any({*path} & {*"@?#"} for path in spec.paths if is_server(path)):
        fix = f"give --ckpt http://HOST:PORT/v1, and a key by the variable {KEY}"
        what = "an address with a password, a query or a fragment is not taken"
        raise InputError(what, where="--ckpt", fix=fix)
    if others or len(spec.paths) > 1:
        fix = "audit one at a time, and compare the reports"
        raise InputError("one served checkpoint at most", where="--ckpt", fix=fix)
    if loading.quantize:
        raise InputError("does not go with a server", where="--quantize")
    agree = Path(str(loading.agree)).expanduser()
    table = agree if agree.suffix == ".parquet" else None
    if table is not None and loading.base is None:
        fix = "give --base MODEL, whose tokenizer and configuration are read"
        raise InputError(
            "a table does not describe the model", where="--agree", fix=fix
        )
    return {name: Server(spec.paths[0], str(loading.model), table)}


def local(specs: Sequence[Spec], loading: Loading) -> list[Spec]:
    """The checkpoints as they are opened here: in a server's place what it serves."""
    found = served(specs, loading)
    stand_ins = {
        name: str(loading.agree if one.table is None else loading.base)
        for name, one in found.items()
    }
    return [
        Spec(spec.name, (stand_ins[spec.name],)) if spec.name in stand_ins else spec
        for spec in specs
    ]
