"""Ask an OpenAI-compatible server for text, where it gives nothing else.

A request is sent again where waiting may help: the server is busy or away, or its
answer broke off. ``Retry-After`` holds back all threads, not only the one that was
refused. A redirect is not followed, because the user gave neither the other address nor
a key for it. The key is read from the environment and never shown: errors of the
transport are replaced by words of ours, without what caused them.

``text_answers.py`` reads the answers, ``scoring/asking.py`` says what is asked.
"""

from __future__ import annotations

import email.utils
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from spark_audit import errors
from spark_audit.checkpoints.server import KEY, api_key
from spark_audit.checkpoints.text_answers import (
    FILTERED,
    TOO_LONG,
    TextAnswer,
    read_answer,
)
from spark_audit.errors import EndpointError, IncompleteError, InputError

TEXT_CONNECT_SECONDS = 30.0
"""Seconds for a connection."""
SILENCE_SECONDS = 120.0
"""Seconds without any byte of an answer."""
TEXT_ANSWER_SECONDS = 600.0
"""Seconds for a whole answer, however it drips."""
TEXT_ANSWER_BYTES = 1 << 24
"""Most bytes of an answer that are read."""
PAUSES_BETWEEN_TRIES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Seconds before each further try of a request."""
MAX_WAIT_SECONDS = 900.0
"""Longest ``Retry-After`` that is waited for; the same command resumes later."""
MAY_ANSWER_LATER = (408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529)
"""HTTP statuses of a server that may answer later."""
QUOTA_IS_USED_UP = b"insufficient_quota"
"""Word in the answer 429 of a server that will not answer later either."""
LIMIT = "max_tokens"
"""Parameter that limits the tokens of an answer."""
OTHER_NAME_OF_LIMIT = "max_completion_tokens"
"""The same for models that reason: a server names it in its answer 400."""
MASK_OF_KEY = "***"
"""Stands for the key wherever a server sends it back."""
MIN_CHARACTERS_OF_KEY = 8
"""Characters from which on a key is secret. Local servers take any word for a key, such
as ``EMPTY`` or ``1``, and to mask that would spoil answers."""
MAX_PORT = 65535
TRIES_AT_FIRST = 3
"""Tries of a request to a server that has never answered anything, nor said that it is
busy: its address is wrong, most likely."""
WORDS_ON_LONG_PROMPTS = re.compile(
    rb"context_length_exceeded|exceed_context_size|context (length|size|window)", re.I
)
"""What servers write where a prompt is longer than the model's context."""
REFUSED_PARAMETERS = {
    "temperature": "the model takes no temperature 0, without which it cannot be asked",
    "seed": "leave out --samples, which are asked for with a seed",
    "stream": "leave out --stream",
    "continue_final_message": "give --endpoint chat, which sends no unfinished turn",
    "add_generation_prompt": "give --endpoint chat, which sends no unfinished turn",
}
"""Parameters that a server may refuse -> what to do then."""


class AskingStopped(Exception):
    """The user has interrupted: no further request is sent."""


@dataclass(frozen=True)
class TextRequest:
    """One request for one answer.

    Attributes
    ----------
    path
        ``/completions`` or ``/chat/completions``.
    body
        Its JSON, without the model, and with ``max_tokens``.
    """

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class _Reply:
    """What a server sent back to one request.

    Attributes
    ----------
    status
        HTTP status; 0: nothing, or not all of it.
    content
        The body.
    wait
        Seconds that the server asks to wait; ``None``: it does not.
    reason
        Without a status: why there is none, in words.
    limit_name
        Name of the parameter that limited the tokens of the answer.
    """

    status: int
    content: bytes = b""
    wait: float | None = None
    reason: str = ""
    limit_name: str = LIMIT


def without_key(text: str) -> str:
    """Return a text without the key, which a server may send back."""
    key = api_key()
    if len(key) < MIN_CHARACTERS_OF_KEY:
        return text
    return text.replace(key, MASK_OF_KEY)


class TextServer:
    """A server that gives text; its methods may be called by several threads.

    Parameters
    ----------
    url, model
        ``http://host:port/v1``, and the model's name on the server.
    streams
        Whether answers are asked for as streams.
    max_requests
        Most requests that are sent, further tries included; ``None``: no limit.
    parallel
        Most requests at once.

    Attributes
    ----------
    n_requests
        Requests that were sent so far.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        streams: bool = False,
        max_requests: int | None = None,
        parallel: int = 1,
    ) -> None:
        _check_address(url)
        self.url = url.rstrip("/")
        self.model = model
        self.n_requests = 0
        self._streams = streams
        self._max_requests = max_requests
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        # Monotonic time before which no thread sends a request.
        self._not_before = 0.0
        self._limit_name = LIMIT
        # Whether it has ever answered, or said that it is busy.
        self._has_replied = False

        # After a stream, llama.cpp's server may close a connection without a word, so
        # that the next request on it would break off.
        n_kept_open = 0 if streams else parallel
        headers = {"Accept-Encoding": "identity"}
        if key := api_key():
            headers["Authorization"] = f"Bearer {key}"
        try:
            self._client = httpx2.Client(
                headers=headers,
                timeout=httpx2.Timeout(SILENCE_SECONDS, connect=TEXT_CONNECT_SECONDS),
                limits=httpx2.Limits(
                    max_connections=parallel, max_keepalive_connections=n_kept_open
                ),
                follow_redirects=False,
            )
        # A proxy of the environment may be no address, and may hold a password.
        except (ValueError, httpx2.InvalidURL):
            raise InputError(
                "the address of a proxy is not valid",
                where="HTTP_PROXY, HTTPS_PROXY or ALL_PROXY",
                fix="correct or unset the variable",
            ) from None

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def stop(self) -> None:
        """Send no further request; those that wait for a pause end at once."""
        self._stopped.set()

    def ask(self, request: TextRequest) -> TextAnswer:
        """Return the answer to a request, after further tries where they may help.

        Raises
        ------
        EndpointError
            If the server refuses, so that waiting would not help.
        IncompleteError
            If all tries failed, or all requests of ``max_requests`` are sent.
        AskingStopped
            After :meth:`stop`.
        """
        with errors.at(self.url):
            failure = ""
            # No pause follows the last try.
            pauses = (*PAUSES_BETWEEN_TRIES, None)
            for n_tries, pause in enumerate(pauses, start=1):
                self._wait_for_all()
                self._count_request(failure)
                reply = self._send(request)
                answer = _answer_in(reply)
                if answer is not None:
                    self._has_replied = True
                    return answer
                if self._has_renamed_limit(reply):
                    continue
                if not _may_be_answered_later(reply):
                    raise _refusal(reply, request.path)

                failure = _failure_of(reply)
                self._has_replied |= reply.status in MAY_ANSWER_LATER
                # A wrong address is told soon.
                seems_wrong = not self._has_replied and n_tries >= TRIES_AT_FIRST
                if pause is None or seems_wrong:
                    break
                self._wait(pause, reply)
            raise IncompleteError(
                f"{failure}, {n_tries} times",
                fix="check the address; what was answered is kept, and the same "
                "command resumes",
            )

    def _has_renamed_limit(self, reply: _Reply) -> bool:
        """Take the other name of the limit if a refusal asks for it.

        All later requests use that name. Return whether the refused request may succeed
        with it.
        """
        has_other_name = OTHER_NAME_OF_LIMIT.encode() in reply.content
        if reply.status != 400 or not has_other_name or reply.limit_name != LIMIT:
            return False
        self._limit_name = OTHER_NAME_OF_LIMIT
        return True

    def _wait(self, seconds: float, reply: _Reply) -> None:
        """Wait before a further try of one request.

        A time that the server asks for holds back all threads. This one waits for its
        own pause, too: a server that asks for no time at all would else see all tries
        at once.

        Parameters
        ----------
        seconds
            The pause before this try.
        """
        if reply.wait is not None:
            if reply.wait > MAX_WAIT_SECONDS:
                raise IncompleteError(
                    f"asks to wait for {reply.wait:.0f} seconds",
                    fix="the same command resumes later",
                )
            with self._lock:
                not_before = time.monotonic() + reply.wait
                self._not_before = max(self._not_before, not_before)
        if self._stopped.wait(seconds):
            raise AskingStopped

    def _wait_for_all(self) -> None:
        """Wait as long as the server asked all threads to."""
        while (seconds := self._not_before - time.monotonic()) > 0:
            if self._stopped.wait(seconds):
                raise AskingStopped

    def _send(self, request: TextRequest) -> _Reply:
        """Send a request once, and read the whole reply up to the time limits."""
        # Another thread may rename the limit meanwhile.
        limit_name = self._limit_name
        body = {"model": self.model, **request.body}
        body[limit_name] = body.pop(LIMIT)
        if self._streams:
            body["stream"] = True
        ends_at = time.monotonic() + TEXT_ANSWER_SECONDS
        content = bytearray()
        try:
            with self._client.stream(
                "POST", self.url + request.path, json=body
            ) as response:
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > TEXT_ANSWER_BYTES:
                        return _Reply(0, reason="its answer is too long")
                    # Each byte starts the time limit of a socket again.
                    if time.monotonic() > ends_at:
                        return _Reply(0, reason="its answer takes too long")
                wait = _seconds_to_wait(response.headers)
                return _Reply(
                    response.status_code, bytes(content), wait, limit_name=limit_name
                )
        # Its own message may hold an address with a password.
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            return _Reply(0, reason=_reason_of(error))

    def _count_request(self, failure: str) -> None:
        """Count a request that is sent now; refuse one too many.

        Parameters
        ----------
        failure
            Why the try before failed; empty: this is the first one.
        """
        with self._lock:
            if self._stopped.is_set():
                raise AskingStopped
            if self._max_requests is not None and self.n_requests >= self._max_requests:
                problem = (
                    f"all {self._max_requests} requests of --max-requests are sent"
                )
                if failure:
                    problem = f"{failure}; {problem}"
                raise IncompleteError(
                    problem, fix="the same command resumes with as many again"
                )
            self.n_requests += 1


def _check_address(url: str) -> None:
    """Refuse what is no address of a server, before anything is sent.

    Raises
    ------
    InputError
        If it has no host, or its port is no port.
    """
    try:
        address = httpx2.URL(url)
        is_address = bool(address.host) and (address.port or 0) <= MAX_PORT
    except (httpx2.InvalidURL, ValueError):
        is_address = False
    if not is_address:
        raise InputError(
            "is not the address of a server",
            where=url,
            fix="write http://HOST:PORT/v1 or https://HOST/v1",
        )


def _without_key_in(answer: TextAnswer) -> TextAnswer:
    """Return an answer without the key, which a server may send back."""
    return TextAnswer(
        text=without_key(answer.text),
        finish=without_key(answer.finish),
        model=without_key(answer.model),
        fingerprint=without_key(answer.fingerprint),
        refused=answer.refused,
        prompt_tokens=answer.prompt_tokens,
        answer_tokens=answer.answer_tokens,
    )


def _seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a reply asks to wait; ``None`` if it does not.

    ``Retry-After`` has seconds, or a date.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000

    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return max(0.0, date.timestamp() - time.time())


def _number(text: str | None) -> float | None:
    """Return a number of at least 0; ``None`` if a text is none."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _reason_of(error: Exception) -> str:
    """Return why no reply came, in words of ours."""
    if isinstance(error, httpx2.ConnectTimeout):
        return f"no connection in {TEXT_CONNECT_SECONDS:.0f} seconds"
    if isinstance(error, httpx2.TimeoutException):
        return f"no byte in {SILENCE_SECONDS:.0f} seconds"
    if isinstance(error, httpx2.ProxyError):
        return "the proxy refuses"
    if isinstance(error, httpx2.ConnectError):
        return _reason_without_connection(error)
    return "the connection broke off"


def _reason_without_connection(error: Exception) -> str:
    """Return why there is no connection, by the error that caused another one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return "no host of this name"
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "its certificate is not trusted: set SSL_CERT_FILE"
        if isinstance(cause, ssl.SSLError):
            return "no TLS: is it http:// in place of https://"
        cause = cause.__cause__ or cause.__context__
    return "no connection"


def _answer_in(reply: _Reply) -> TextAnswer | None:
    """Return the answer in a reply; ``None`` if there is none, or it broke off.

    A prompt that a filter refuses, or that is too long, would be refused again. So that
    refusal counts as an answer without text.
    """
    if 200 <= reply.status < 300:
        answer = read_answer(reply.content)
        return None if answer is None else _without_key_in(answer)
    if reply.status == 400 and FILTERED.encode() in reply.content:
        return TextAnswer(text="", finish=FILTERED, refused=True)
    if reply.status in (400, 413) and WORDS_ON_LONG_PROMPTS.search(reply.content):
        return TextAnswer(text="", finish=TOO_LONG)
    return None


def _may_be_answered_later(reply: _Reply) -> bool:
    """Return whether a further try may help after a reply that is no answer."""
    is_broken = reply.status == 0 or 200 <= reply.status < 300
    return is_broken or (
        reply.status in MAY_ANSWER_LATER and not _is_out_of_quota(reply)
    )


def _is_out_of_quota(reply: _Reply) -> bool:
    """Return whether waiting does not help, since the quota is used up."""
    return reply.status == 429 and QUOTA_IS_USED_UP in reply.content


def _refusal(reply: _Reply, path: str) -> EndpointError:
    """Return the error about a reply that no further try would change.

    Its content may quote the prompt, and its reason the key, so neither is shown.
    """
    reason = http.client.responses.get(reply.status, "")
    problem = f"answers {reply.status} {reason}".rstrip()
    other_endpoint = "chat" if path == "/completions" else "completions"

    if _is_out_of_quota(reply):
        problem += ": the quota is used up"
        remedy = "raise it with the provider"
    elif reply.status in (401, 403):
        remedy = f"set the variable {KEY} to a key that may use the model"
    elif 300 <= reply.status < 400:
        remedy = "a redirect is not followed: give the other address itself"
    elif reply.status in (404, 405):
        remedy = (
            "check --model and the address, which often ends in /v1, or give "
            f"--endpoint {other_endpoint}"
        )
    elif parameter := _refused_parameter(reply.content):
        problem += f", and names {parameter}"
        remedy = REFUSED_PARAMETERS[parameter]
    else:
        remedy = "check --model and --endpoint, and the server's log"
    return EndpointError(problem, fix=f"{remedy}; what was answered is kept")


def _refused_parameter(content: bytes) -> str:
    """Return the only parameter of a request that a refusal quotes; empty: none is."""
    quoted = []
    for parameter in REFUSED_PARAMETERS:
        if re.search(rb"""['"`]%b['"`]""" % parameter.encode(), content):
            quoted.append(parameter)
    return quoted[0] if len(quoted) == 1 else ""


def _failure_of(reply: _Reply) -> str:
    """Return why a reply is no answer, where a further try may help."""
    if reply.reason:
        return f"gives no answer ({reply.reason})"
    if 200 <= reply.status < 300:
        return "answers something else than the OpenAI protocol, or breaks off"
    reason = http.client.responses.get(reply.status, "")
    return f"answers {reply.status} {reason}".rstrip()
