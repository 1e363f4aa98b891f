"""Served checkpoints: taken where they agree, refused where they do not."""

import socket
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from refusals import each
from serving import serving

from spark_audit.checkpoints.detect import read_headers
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.server import PAUSES, Server
from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.cli.main import run
from spark_audit.data.encoding import encode
from spark_audit.errors import CheckpointError, InputError
from spark_audit.pipeline.estimate import estimate
from spark_audit.pipeline.request import Request
from spark_audit.scoring.items import Candidates, Item
from spark_audit.scoring.score import item, score
from spark_audit.scoring.table import Pass

TEXTS = [
    "The service was good and the food was cold.",
    "Contact Maria Jones at maria.jones@example.org or call 555-0142 today.",
    "World, Sports, Business and Technology news of the week were read again.",
]


@pytest.fixture(scope="module")
def adapter(make_adapter, tmp_path_factory):
    return make_adapter(tmp_path_factory.mktemp("adapter") / "a")


@pytest.fixture(scope="module")
def merged(adapter):
    """The adapter's checkpoint, opened here."""
    return open_checkpoint(str(adapter))


@pytest.fixture(scope="module")
def texts(merged):
    encoded = encode(merged.tokenizer, TEXTS)
    return [item(f"t{i}", one, (0, len(one))) for i, one in enumerate(encoded)]


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """How long it waits between requests, which nobody does here.

    The module's own clock is changed, not the process's: other threads sleep too. A
    thread of an earlier test may still ask a server that is gone: it does not count.
    """
    waited = []
    earlier = threading.enumerate()

    def sleep(seconds):
        if threading.current_thread() not in earlier:
            waited.append(seconds)

    clock = SimpleNamespace(sleep=sleep)
    monkeypatch.setattr("spark_audit.checkpoints.server.time", clock)
    return waited


@contextmanager
def served(merged, **faults):
    """The address of a server of the checkpoint."""
    with (
        merged.active() as module,
        serving(module, merged.tokenizer, **faults) as url,
    ):
        yield url


def opened(url, agree, **options):
    return open_checkpoint(url, model="tiny", agree=str(agree), **options)


@pytest.mark.parametrize("fault", ["", "unlisted"])
def test_a_server_that_agrees(adapter, merged, texts, fault):
    ours = score(merged, texts)[Pass()]
    with served(merged, fault=fault) as url:
        one = opened(url, adapter)
        assert (one.format, one.source) == ("server", f"tiny at {url}")
        assert one.model_id != merged.model_id
        found = score(one, texts)
        # A prefix is told of by every token: what stands before a candidate counts.
        prefix = texts[0].ids[:5]
        rows = (texts[0].ids[5:7], texts[1].ids[4:8])
        sets = [Candidates("c", prefix, rows)]
        kind = Pass("candidates")
        theirs = score(one, sets, passes=[kind])[kind]
        here = score(merged, sets, passes=[kind])[kind]
    assert "agrees with the same checkpoint scored here on 3 texts" in found.notes[0]
    table = found[Pass()]
    np.testing.assert_allclose(table.columns["nll"], ours.columns["nll"], atol=1e-4)
    for name in ("nll_sum", "nll_mean"):
        np.testing.assert_allclose(theirs.columns[name], here.columns[name], atol=1e-4)
    # What a server cannot tell is told by nothing that could be taken for a number.
    assert set(table.columns["rank_lo"]) == {0}
    assert all(np.isnan(table.columns[n]).all() for n in ("mean_logp", "top1_margin"))


def test_a_server_that_drops_the_adapter_is_caught(adapter, merged, texts, tiny_base):
    base = open_checkpoint(str(tiny_base)).model
    with serving(base, merged.tokenizer) as url:
        with pytest.raises(CheckpointError) as caught:
            score(opened(url, adapter), texts)
    message = str(caught.value)
    assert message.startswith(f"{url}: ")
    assert " 3 texts" in message


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("shifted", "its scores are not this checkpoint's"),
        ("chance", "its scores of all 120 tokens are one and the same"),
        ("none", "gives no log-probabilities of the prompt"),
        ("nan", "gives log-probabilities that are not finite, or above 0"),
        ("short", "tokens where"),
        ("bos", "tokens where"),
        ("busy", "answers 503 Service Unavailable; check --model"),
    ],
)
def test_a_server_that_misbehaves_is_refused(adapter, merged, texts, fault, said):
    with served(merged, fault=fault) as url:
        one = opened(url, adapter)
        with pytest.raises(CheckpointError) as caught:
            score(one, texts)
    message = str(caught.value)
    assert message.startswith(url)
    assert said in message
    assert "Maria" not in message


@pytest.mark.parametrize(("status", "times"), [(429, 1), (500, 4), (0, 4)])
def test_what_passes_is_waited_for(adapter, merged, texts, pauses, status, times):
    def before(count):
        return status if count <= times else None

    with served(merged, before=before) as url:
        one = opened(url, adapter)
        found = score(one, texts[:1])[Pass()].columns["nll"]
    ours = score(merged, texts[:1])[Pass()].columns["nll"]
    np.testing.assert_allclose(found, ours, atol=1e-4)
    assert pauses == list(PAUSES[:times])


@pytest.mark.parametrize(
    ("status", "said"),
    [(503, "answers 503 Service Unavailable; check"), (0, "cannot be reached (")],
)
def test_it_is_waited_for_so_long_and_no_longer(
    adapter, merged, texts, pauses, status, said
):
    with served(merged, before=lambda count: status) as url:
        with pytest.raises(CheckpointError) as caught:
            score(opened(url, adapter), texts[:1])
    assert f"{url}: {said}" in str(caught.value)
    assert pauses == list(PAUSES)


def test_one_that_does_not_answer_in_time_is_not_asked_again(
    adapter, merged, texts, pauses, monkeypatch
):
    done = threading.Event()
    monkeypatch.setattr("spark_audit.checkpoints.server.ANSWER_SECONDS", 0.05)

    def before(count):
        done.wait(60)

    with served(merged, before=before) as url:
        one = opened(url, adapter)
        with pytest.raises(CheckpointError, match=r"0\.05 s"):
            score(one, texts[:1])
        done.set()
    assert pauses == []


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_one_deadline_stands_for_the_whole_answer(answer, monkeypatch):
    """A byte now and then, of headers or of the body, is no answer."""
    monkeypatch.setattr("spark_audit.checkpoints.server.FIRST_ANSWER_SECONDS", 0.5)
    done = threading.Event()
    limit = threading.Timer(300, done.set)
    limit.start()
    with socket.create_server(("127.0.0.1", 0)) as line:

        def drip():
            with line.accept()[0] as other, suppress(OSError):
                other.recv(4096)
                other.sendall(answer)
                while not done.wait(0.05):
                    other.sendall(b"x")

        slow = threading.Thread(target=drip)
        slow.start()
        url = f"http://127.0.0.1:{line.getsockname()[1]}/v1"
        with pytest.raises(CheckpointError, match=r"0\.5 s"):
            Server(url, "tiny").reach()
        assert not done.is_set()
        done.set()
        limit.cancel()
        slow.join()


@pytest.mark.parametrize(
    ("key", "sent"),
    [
        ("s3cr3t", "Bearer s3cr3t"),
        ("s3cr3t\r\n", "Bearer s3cr3t"),
        (" \n", None),
        ("s3cr3t\nX-Other: 1", ""),
        ("s3cr3t\u00e9", ""),
        ("s3cr3t\x00", ""),
    ],
)
def test_a_key_is_sent_or_refused_and_never_quoted(key, sent, monkeypatch):
    heads = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            heads.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"data": [{"id": "tiny"}]}')

        def log_message(self, *_):
            pass

    monkeypatch.setattr("os.environ", {"SPARK_AUDIT_API_KEY": key})
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            if sent == "":
                with pytest.raises(InputError) as caught:
                    Server(url, "tiny").reach()
                assert caught.value.where == "SPARK_AUDIT_API_KEY"
                assert "s3cr3t" not in str(caught.value)
                with pytest.raises(InputError, match="SPARK_AUDIT_API_KEY: "):
                    opened(url, "x")
            else:
                Server(url, "tiny").reach()
        finally:
            server.shutdown()
            thread.join()
    assert heads == ([] if sent == "" else [sent])


ADDRESS = "http://me:s3cr3t@127.0.0.1:9/v1"
OPEN = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (ADDRESS, {"model": "m", "agree": "x"}),
        (ADDRESS.replace("http", "HTTPS"), {}),
        (f"{OPEN}?key=s3cr3t", {"model": "m", "agree": "x"}),
        ("none", {"loading": Loading(base=ADDRESS, include_base=True)}),
        (OPEN, {"model": "m", "agree": ADDRESS}),
    ],
)
def test_a_password_in_an_address_is_refused_unquoted(source, options):
    with pytest.raises((CheckpointError, InputError)) as caught:
        open_checkpoint(source, **options)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        ["--ckpt", f"n=[{ADDRESS},{ADDRESS}]"],
        ["--ckpt", "x", "--seed", ADDRESS],
        ["--ckpt", "x", "--engine", "ray", "--address", ADDRESS],
        ["--ckpt", "x", "--manifest", ADDRESS],
        ["--ckpt", "x", "-o", ADDRESS],
        ["--nothing", ADDRESS],
    ],
)
def test_no_command_line_error_quotes_a_password(given, capfd):
    assert run(["nll", *given]) == 2
    said = "".join(capfd.readouterr())
    assert "error: " in said
    assert "s3cr3t" not in said


def test_a_server_is_asked_what_it_serves_before_any_work(adapter, merged):
    with pytest.raises(CheckpointError, match="^http://127.0.0.1:9/v1: "):
        opened("http://127.0.0.1:9/v1", adapter)
    with served(merged) as url:
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(url, model="tiny\x1b2", agree=str(adapter))
        message = str(caught.value)
        assert message.startswith(f"{url}: ")
        assert "'tiny'?" in message
        assert "\x1b" not in message


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("page", "answers something else than JSON"),
        ("moved", "answers 302"),
        ("", "cannot be reached"),
    ],
)
def test_what_is_no_such_server_is_told_before_any_work(adapter, merged, fault, said):
    with merged.active() as module:
        with serving(module, merged.tokenizer, fault=fault) as url:
            # A host that no URL can have, where nothing else is wrong.
            given = url if fault else "http://[::1/v1"
            with pytest.raises(CheckpointError, match=said):
                Server(given, "tiny").reach()


def test_a_small_difference_is_said_and_a_large_one_refused(
    adapter, merged, texts, monkeypatch
):
    def off(by):
        def nll(self, ids):
            one = Item("x", np.asarray(ids), np.arange(len(ids), dtype=np.int32))
            return score(merged, [one])[Pass()].columns["nll"] + by

        return nll

    monkeypatch.setattr(Server, "reach", lambda self: None)
    one = opened("http://127.0.0.1:9/v1", adapter)
    monkeypatch.setattr(Server, "nll", off(0.015))
    assert " 1.5e-02 " in score(one, texts).notes[0]
    monkeypatch.setattr(Server, "nll", off(0.025))
    with pytest.raises(CheckpointError, match=r"0\.025"):
        score(one, texts)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "http://127.0.0.1:9/v1: "),
        ({"model": "m"}, "http://127.0.0.1:9/v1: "),
        ({"model": "m", "agree": "x", "quantize": ("int8",)}, "--quantize: "),
    ],
)
def test_what_flags_must_say(options, said):
    with pytest.raises(InputError) as caught:
        open_checkpoint("http://127.0.0.1:9/v1", **options)
    assert str(caught.value).startswith(said)


def test_flags_and_servers_go_together(tiny_base):
    with pytest.raises(InputError, match="^--model: "):
        open_checkpoint(str(tiny_base), model="m")
    specs = [Spec("a", ("http://127.0.0.1:9/v1",)), Spec("b", ("http://g/v1",))]
    with pytest.raises(InputError, match="^--ckpt: "):
        list(each(specs, model="m", agree=str(tiny_base)))


def test_what_is_not_done_with_a_server_says_so():
    here = Loading(model="m", agree="x")
    with pytest.raises(CheckpointError, match="^http://h:9/v1: "):
        estimate(Request(audits=("nll",), checkpoints=("http://h:9/v1",), loading=here))
    with pytest.raises(InputError, match="--ckpt http"):
        read_headers("http://127.0.0.1:9/v1", Loading())
