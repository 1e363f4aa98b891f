"""Answers of an endpoint: each is asked for once, whatever the server does."""

import itertools
import json
import logging
import os
import random
import signal
import socket
import ssl
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from text_serving import KEY, MODEL, text_serving

from spark_audit.checkpoints import text_server
from spark_audit.checkpoints.text_answers import read_answer
from spark_audit.checkpoints.text_server import TextRequest, TextServer
from spark_audit.errors import (
    EndpointError,
    IncompleteError,
    InputError,
    SparkError,
)
from spark_audit.scoring.answer_store import AnswerStore
from spark_audit.scoring.asking import ask_all

FAULTS = (
    "busy",
    "date",
    "slow down",
    "error",
    "gateway",
    "hangs up",
    "page",
    "cut",
    "ends early",
    "drips",
    "other model",
)
N_FAULTS = 1000


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A key in the environment, and pauses without any time."""
    monkeypatch.setenv("SPARK_AUDIT_API_KEY", KEY)
    pauses = (0.0,) * len(text_server.PAUSES_BETWEEN_TRIES)
    monkeypatch.setattr(text_server, "PAUSES_BETWEEN_TRIES", pauses)


def answer_of(body: dict[str, Any]) -> str:
    return f"answer to {body.get('prompt') or body['messages'][-1]['content']}"


def requests_of(store: AnswerStore, n: int, **body: Any) -> dict[str, TextRequest]:
    requests = {}
    for i in range(n):
        request = TextRequest("/completions", {"prompt": str(i), "max_tokens": 4})
        if body:
            request = TextRequest("/chat/completions", {"max_tokens": 4, **body})
        requests[store.key_of([request.path, dict(request.body)])] = request
    return requests


def ask_until_done(serving: Any, requests: Any, store: AnswerStore, **options: Any):
    """Run the same command until it ends; return the errors in between."""
    failures = []
    while True:
        server = TextServer(serving.url, MODEL, parallel=4, **options)
        try:
            ask_all(server, requests, store, parallel=4)
            return failures
        except SparkError as error:
            failures.append(error)
        finally:
            server.close()


def faults_of(seed: int, n: int) -> Any:
    """So many faults, at most three in a row, in a drawn order."""
    rng = random.Random(seed)
    for _ in range(n // 2):
        yield rng.choice(FAULTS)
        if rng.random() < 0.5:
            yield ""
        yield rng.choice(FAULTS)
        yield ""


@pytest.mark.parametrize("streams", [False, True])
def test_a_thousand_faults_lose_nothing_and_repeat_no_paid_answer(streams, tmp_path):
    store = AnswerStore(tmp_path / "answers")
    n_faults = N_FAULTS // 2
    requests = requests_of(store, 700)
    with text_serving(answer_of, faults_of(1, n_faults)) as serving:
        failures = ask_until_done(serving, requests, store, streams=streams)
    assert serving.n_faults == n_faults
    for key, request in requests.items():
        assert store[key].text == answer_of(dict(request.body))
    assert set(serving.paid.values()) == {1}
    assert len(serving.paid) == len(requests)

    # The other model's name stops the command once, and is told with the model's own.
    changes = [error for error in failures if isinstance(error, EndpointError)]
    assert len(changes) == 1
    names = store.model_names(requests)
    assert set(names) == {MODEL, "other"}
    assert names.total() == len(requests)
    assert set(store.fingerprints(requests)) == {f"fp-{MODEL}", "fp-other"}


def test_stored_answers_are_read_by_their_owner_alone_and_asked_for_no_more(tmp_path):
    folder = tmp_path / "answers"
    store = AnswerStore(folder)
    requests = requests_of(store, 3)
    with text_serving(answer_of) as serving:
        assert not ask_until_done(serving, requests, store)
        again = AnswerStore(folder)
        assert not ask_until_done(serving, requests_of(again, 5), again)
        assert len(serving.asked) == 5
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_line_that_was_cut_by_a_kill_is_asked_again(tmp_path):
    folder = tmp_path / "answers"
    store = AnswerStore(folder)
    with text_serving(answer_of) as serving:
        ask_until_done(serving, requests_of(store, 3), store)
        (path,) = folder.glob("*.jsonl")
        path.write_bytes(path.read_bytes()[:-9])
        again = AnswerStore(folder)
        ask_until_done(serving, requests_of(again, 3), again)
    assert sorted(serving.paid.values()) == [1, 1, 2]


def test_an_interrupted_command_repeats_no_request(tmp_path):
    store = AnswerStore(tmp_path / "answers")
    requests = requests_of(store, 40)

    def interrupt(count: int) -> None:
        if count == 17:
            os.kill(os.getpid(), signal.SIGINT)

    with text_serving(answer_of) as serving:
        serving.before = interrupt
        server = TextServer(serving.url, MODEL, parallel=4)
        with pytest.raises(KeyboardInterrupt):
            ask_all(server, requests, store, parallel=4)
        server.close()
        n_first = len(serving.asked)
        assert n_first < 40
        # All that was sent is stored.
        assert sum(key in store for key in requests) == n_first
        again = AnswerStore(tmp_path / "answers")
        ask_until_done(serving, requests, again)
    assert len(serving.asked) == 40
    assert set(serving.paid.values()) == {1}


def test_a_killed_process_repeats_no_paid_answer(tmp_path):
    """It is killed by the server, which has not yet answered the last request."""
    folder = tmp_path / "answers"
    requests = requests_of(AnswerStore(folder), 20)
    pids: list[int] = []

    def kill(count: int) -> None:
        if count == 9:
            while not pids:
                pass
            os.kill(pids[0], signal.SIGKILL)
            os.waitpid(pids[0], 0)

    with text_serving(answer_of) as serving:
        serving.before = kill
        pid = os.fork()
        if not pid:
            server = TextServer(serving.url, MODEL)
            ask_all(server, requests, AnswerStore(folder))
            os._exit(0)
        pids.append(pid)
        while len(serving.asked) < 9:
            pass
        serving_lock = threading.Event()
        serving_lock.wait(0.05)
        again = AnswerStore(folder)
        assert sum(key in again for key in requests) == 8
        ask_until_done(serving, requests, again)
    n_by_prompt = serving.paid
    assert len(n_by_prompt) == 20
    # The one that was on its way is the only one that was sent twice.
    assert len(serving.asked) == 21


@pytest.mark.parametrize("fault", ["forbidden", "missing", "moved", "quota"])
def test_a_refusal_stops_at_once_and_keeps_what_was_answered(fault, tmp_path):
    store = AnswerStore(tmp_path / "answers")
    requests = requests_of(store, 9)
    faults = itertools.chain([""] * 4, itertools.repeat(fault))
    with text_serving(answer_of, faults) as serving:
        server = TextServer(serving.url, MODEL)
        with pytest.raises(EndpointError):
            ask_all(server, requests, store)
        server.close()
    assert len(serving.asked) == 5
    assert sum(key in store for key in requests) == 4
    assert EndpointError.exit_code == 4


@pytest.mark.parametrize("fault", ["hangs up", "error", "page", "moved", "forbidden"])
def test_no_error_and_no_log_shows_the_key_or_the_prompt(fault, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    store = AnswerStore(tmp_path / "answers")
    prompt = "the secret of Ann"
    requests = {"one": TextRequest("/completions", {"prompt": prompt, "max_tokens": 4})}
    with text_serving(answer_of, itertools.repeat(fault)) as serving:
        server = TextServer(serving.url, MODEL)
        with pytest.raises(SparkError) as caught:
            ask_all(server, requests, store)
        server.close()
    assert serving.keys[0] == f"Bearer {KEY}"
    for text in (str(caught.value), repr(caught.getrepr(style="long")), caplog.text):
        assert KEY not in text
    assert prompt not in str(caught.value)
    # No error of the transport, which may hold an address, is among its causes.
    cause: BaseException | None = caught.value
    while cause is not None:
        assert isinstance(cause, SparkError)
        cause = cause.__cause__ or cause.__context__


def test_a_proxy_gets_no_word_into_an_error(monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HTTP_PROXY", "http://user:password@127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    server = TextServer("http://model.invalid/v1", MODEL)
    request = TextRequest("/completions", {"prompt": "x", "max_tokens": 1})
    with pytest.raises(IncompleteError) as caught:
        server.ask(request)
    server.close()
    for secret in (KEY, "password"):
        assert secret not in str(caught.value)
        assert secret not in caplog.text


def test_a_key_that_is_sent_back_is_neither_stored_nor_shown(tmp_path):
    store = AnswerStore(tmp_path / "answers")
    requests = requests_of(store, 1)
    with text_serving(lambda body: f"your key is {KEY}") as serving:
        ask_until_done(serving, requests, store)
    for path in store.folder.iterdir():
        assert KEY.encode() not in path.read_bytes()


def test_a_word_in_place_of_a_key_spoils_no_answer(tmp_path, monkeypatch):
    """Local servers take any word: EMPTY, none, 1."""
    monkeypatch.setenv("SPARK_AUDIT_API_KEY", "1")
    store = AnswerStore(tmp_path / "answers")
    requests = requests_of(store, 1)
    with text_serving(lambda body: "call 555-0111") as serving:
        ask_until_done(serving, requests, store)
    (answer,) = (store[key] for key in requests)
    assert answer.text == "call 555-0111"
    assert serving.keys == ["Bearer 1"]


def test_a_server_that_nothing_reaches_is_given_up_soon():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server = TextServer(f"http://127.0.0.1:{closed.getsockname()[1]}/v1", MODEL)
        with pytest.raises(IncompleteError):
            server.ask(TextRequest("/completions", {"prompt": "x", "max_tokens": 1}))
        server.close()
    assert server.n_requests == text_server.TRIES_AT_FIRST


def test_an_unknown_host_and_an_untrusted_certificate_are_told_apart(monkeypatch):
    request = TextRequest("/completions", {"prompt": "x", "max_tokens": 1})

    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    def untrusted(*_: Any, **__: Any) -> Any:
        raise ssl.SSLCertVerificationError(1, "self-signed certificate")

    server = TextServer("https://nowhere.invalid/v1", MODEL)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", unknown)
        with pytest.raises(IncompleteError, match="host"):
            server.ask(request)
    server.close()

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", untrusted)
    with text_serving(answer_of) as serving:
        server = TextServer(serving.url.replace("http://", "https://"), MODEL)
        with pytest.raises(IncompleteError, match="SSL_CERT_FILE"):
            server.ask(request)
        server.close()
        assert not serving.asked


def test_pages_in_place_of_answers_are_given_up_soon_unless_one_was_an_answer():
    """As of an address without /v1, or of a proxy's login."""
    request = TextRequest("/completions", {"prompt": "x", "max_tokens": 1})
    with text_serving(answer_of, itertools.repeat("page")) as serving:
        server = TextServer(serving.url, MODEL)
        with pytest.raises(IncompleteError):
            server.ask(request)
        assert server.n_requests == text_server.TRIES_AT_FIRST
        serving.faults = iter([""])
        server.ask(request)
        serving.faults = itertools.repeat("page")
        with pytest.raises(IncompleteError):
            server.ask(request)
        server.close()
    n_tries = len(text_server.PAUSES_BETWEEN_TRIES) + 1
    assert server.n_requests == text_server.TRIES_AT_FIRST + 1 + n_tries


def test_a_server_without_tls_is_told_from_one_that_is_away():
    request = TextRequest("/completions", {"prompt": "x", "max_tokens": 1})
    with text_serving(answer_of) as serving:
        server = TextServer(serving.url.replace("http:", "https:"), MODEL)
        with pytest.raises(IncompleteError, match="TLS"):
            server.ask(request)
        server.close()


@pytest.mark.parametrize(
    ("reply", "parameter"),
    [
        (b'{"error": {"param": "temperature", "message": "use 1"}}', "temperature"),
        (b'{"detail": [{"loc": ["body", "seed"]}]}', "seed"),
        (b'{"error": "in [\'stream\']: not supported"}', "stream"),
        (b'{"error": "the temperature of the seed"}', ""),
        (b'{"sent": {"temperature": 0, "seed": 1}}', ""),
    ],
)
def test_a_refused_parameter_is_named_and_nothing_else_of_the_reply(
    reply, parameter, monkeypatch
):
    replies = {"refused": (400, reply + b" Ann Lee")}
    monkeypatch.setattr("text_serving.REPLIES", replies)
    with text_serving(answer_of, itertools.repeat("refused")) as serving:
        server = TextServer(serving.url, MODEL)
        with pytest.raises(EndpointError) as raised:
            server.ask(TextRequest("/completions", {"prompt": "x", "max_tokens": 1}))
        server.close()
    assert len(serving.asked) == 1
    names = [name for name in text_server.REFUSED_PARAMETERS if name in str(raised)]
    assert (names[:1] or [""]) == [parameter]
    assert "Ann Lee" not in str(raised)


@pytest.mark.parametrize(
    "url",
    ["http:///v1", "https://", "http://host:port/v1", "http://127.0.0.1:99999/v1"],
)
def test_what_is_no_address_is_refused_before_a_request(url):
    with pytest.raises(InputError):
        TextServer(url, MODEL)


def test_a_server_that_asks_for_no_time_gets_some(tmp_path, monkeypatch):
    """Else all tries are used up within milliseconds."""
    pauses = (0.03,) * len(text_server.PAUSES_BETWEEN_TRIES)
    monkeypatch.setattr(text_server, "PAUSES_BETWEEN_TRIES", pauses)
    times: list[float] = []
    store = AnswerStore(tmp_path / "answers")
    with text_serving(answer_of, iter(["busy", "date", "busy"])) as serving:
        serving.before = lambda count: times.append(time.monotonic())
        ask_until_done(serving, requests_of(store, 1), store)
    assert len(times) == 4
    assert times[-1] - times[0] > 3 * 0.025


def test_requests_that_are_used_up_tell_why_they_were():
    with text_serving(answer_of, itertools.repeat("gateway")) as serving:
        server = TextServer(serving.url, MODEL, max_requests=2)
        with pytest.raises(IncompleteError, match="502"):
            server.ask(TextRequest("/completions", {"prompt": "x", "max_tokens": 1}))
        server.close()


def test_requests_are_limited_with_those_that_are_sent_again(tmp_path):
    store = AnswerStore(tmp_path / "answers")
    requests = requests_of(store, 9)
    with text_serving(answer_of, iter(["busy", "", "error"])) as serving:
        server = TextServer(serving.url, MODEL, max_requests=5)
        with pytest.raises(IncompleteError):
            ask_all(server, requests, store)
        server.close()
        assert len(serving.asked) == 5
        assert sum(key in store for key in requests) == 3


def test_retry_after_holds_all_threads_back(tmp_path, monkeypatch):
    times: list[float] = []
    waited: list[float] = []
    now = 1000.0

    class Clock:
        def monotonic(self) -> float:
            return now

        def time(self) -> float:
            return now

    monkeypatch.setattr(text_server, "time", Clock())
    store = AnswerStore(tmp_path / "answers")
    requests = requests_of(store, 2)
    monkeypatch.setitem(
        __import__("text_serving").STATUSES, "busy", (429, {"Retry-After": "30"})
    )
    with text_serving(answer_of, iter(["busy"])) as serving:
        server = TextServer(serving.url, MODEL)

        class Stopped:
            def wait(self, seconds: float) -> bool:
                nonlocal now
                waited.append(seconds)
                now += seconds
                return False

            def is_set(self) -> bool:
                return False

            def set(self) -> None:
                raise AssertionError

        server._stopped = Stopped()  # type: ignore[assignment]
        serving.before = lambda count: times.append(now)
        ask_all(server, requests, store)
        server.close()
    # The request's own pause is over meanwhile.
    assert sum(waited) == 30.0
    assert times == [1000.0, 1030.0, 1030.0]


def test_a_server_that_asks_for_hours_is_left_for_later(tmp_path, monkeypatch):
    monkeypatch.setitem(
        __import__("text_serving").STATUSES, "busy", (429, {"Retry-After": "7200"})
    )
    store = AnswerStore(tmp_path / "answers")
    with text_serving(answer_of, iter(["busy"])) as serving:
        server = TextServer(serving.url, MODEL)
        with pytest.raises(IncompleteError):
            ask_all(server, requests_of(store, 1), store)
        server.close()
        assert len(serving.asked) == 1


def test_a_drip_that_takes_too_long_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(text_server, "TEXT_ANSWER_SECONDS", 0.0)
    store = AnswerStore(tmp_path / "answers")
    with text_serving(answer_of, itertools.repeat("drips")) as serving:
        server = TextServer(serving.url, MODEL)
        with pytest.raises(IncompleteError):
            ask_all(server, requests_of(store, 1), store)
        server.close()
        assert len(serving.asked) == text_server.TRIES_AT_FIRST


def test_a_filter_of_the_server_is_a_refusal_that_is_not_asked_again(tmp_path):
    store = AnswerStore(tmp_path / "answers")
    requests = requests_of(store, 2)
    with text_serving(answer_of, iter(["filter"])) as serving:
        ask_until_done(serving, requests, store)
        assert len(serving.asked) == 2
    # Two are asked at once, so either may be the first.
    assert sorted(store[key].refused for key in requests) == [False, True]


def test_a_server_that_wants_the_other_name_of_the_limit_gets_it(tmp_path):
    store = AnswerStore(tmp_path / "answers")
    with text_serving(answer_of, iter(["limit"])) as serving:
        server = TextServer(serving.url, MODEL)
        ask_all(server, requests_of(store, 2), store)
        server.close()
    names = [sorted(body) for _, body in serving.asked]
    assert names[0] == ["max_tokens", "model", "prompt"]
    assert names[1:] == 2 * [["max_completion_tokens", "model", "prompt"]]


def test_a_connection_that_is_closed_after_a_stream_costs_no_request(tmp_path):
    """llama.cpp's server closes some without a word."""
    store = AnswerStore(tmp_path / "answers")
    with text_serving(answer_of, itertools.repeat("leaves")) as serving:
        server = TextServer(serving.url, MODEL, streams=True, max_requests=3)
        ask_all(server, requests_of(store, 3), store)
        server.close()
        assert len(serving.asked) == server.n_requests == 3


@pytest.mark.parametrize("streams", [False, True])
def test_chat_answers_are_read_as_one_object_and_as_a_stream(streams, tmp_path):
    store = AnswerStore(tmp_path / "answers")
    messages = [{"role": "user", "content": "Hi"}]
    requests = requests_of(store, 1, messages=messages)
    with text_serving(answer_of) as serving:
        ask_until_done(serving, requests, store, streams=streams)
    (answer,) = (store[key] for key in requests)
    assert answer.text == "answer to Hi"
    assert (answer.prompt_tokens, answer.answer_tokens) == (7, 2)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"choices": [{"message": {"content": None, "refusal": "No."}}]}, "No."),
        ({"choices": [{"message": {"content": [{"text": "a"}, {"text": "b"}]}}]}, "ab"),
        ({"choices": [{"text": "x", "finish_reason": "content_filter"}]}, "x"),
        ({"choices": []}, None),
        ({"choices": [{"message": "x"}]}, None),
        ([], None),
        ({"error": "x"}, None),
    ],
)
def test_objects_of_other_forms_are_read_or_are_no_answer(content, text):
    answer = read_answer(json.dumps(content).encode())
    assert (None if answer is None else answer.text) == text


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_ends_of_lines_inside_an_answer_do_not_cut_a_stream(end):
    """U+2028, U+2029, U+0085 and others need no escape in JSON."""
    text = "Ann\u2028Lee\u2029 of\u0085 Bonn\x7f"
    piece = json.dumps({"choices": [{"text": text}]}, ensure_ascii=False)
    content = f"data: {piece}{end}{end}data: [DONE]{end}{end}"
    answer = read_answer(content.encode())
    assert answer is not None
    assert answer.text == text


def test_two_processes_do_not_ask_for_the_same(tmp_path: Path):
    """The second one waits for the first, and reads what it wrote."""
    first = AnswerStore(tmp_path / "answers")
    second = AnswerStore(tmp_path / "answers")
    requests = requests_of(first, 12)
    with text_serving(answer_of) as serving:
        threads = []
        for store in (first, second):
            thread = threading.Thread(
                target=ask_until_done, args=(serving, requests, store)
            )
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
    assert len(serving.asked) == 12
