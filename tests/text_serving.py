"""A server that gives only text, and can misbehave in many ways."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-of-nobody-4711"
MODEL = "tuned"


class TextServing:
    """What a server was asked, and what it does to the next requests.

    Attributes
    ----------
    asked
        Bodies of all requests, in order, each with its path.
    keys
        Authorization headers of all requests.
    paid
        How often each request, as JSON, got a whole answer.
    faults
        Names of faults; each request takes the next one, ``""`` is none.
    """

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], str],
        faults: Iterator[str] | None = None,
    ) -> None:
        self.answer = answer
        self.faults = iter(()) if faults is None else faults
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.keys: list[str] = []
        self.paid: Counter[str] = Counter()
        self.n_faults = 0
        self.before: Callable[[int], None] = lambda count: None
        self.lock = threading.Lock()
        self.url = ""

    def next_fault(self, path: str, body: dict[str, Any], key: str) -> str:
        with self.lock:
            self.asked.append((path, body))
            self.keys.append(key)
            fault = next(self.faults, "")
            self.n_faults += bool(fault)
            count = len(self.asked)
        self.before(count)
        return fault

    def pay(self, body: dict[str, Any]) -> None:
        known = {name: value for name, value in body.items() if name != "stream"}
        with self.lock:
            self.paid[json.dumps(known, sort_keys=True)] += 1


def _objects(path: str, body: dict[str, Any], text: str, model: str) -> list[Any]:
    """One object, or those of a stream: the text in two pieces, then the usage."""
    is_chat = path.endswith("/chat/completions")
    about = {"model": model, "system_fingerprint": f"fp-{model}"}
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    if not body.get("stream"):
        choice = {"message": {"content": text}} if is_chat else {"text": text}
        choice["finish_reason"] = "length"  # type: ignore[assignment]
        return [{**about, "choices": [choice], "usage": usage}]
    pieces = []
    for piece in (text[:2], text[2:]):
        choice = {"delta": {"content": piece}} if is_chat else {"text": piece}
        pieces.append({**about, "choices": [choice]})
    return [*pieces, {**about, "choices": [], "usage": usage}]


STATUSES = {
    "busy": (429, {"Retry-After": "0"}),
    "date": (429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
    "slow down": (503, {"Retry-After-Ms": "1"}),
    "error": (500, {}),
    "gateway": (502, {}),
    "moved": (302, {"Location": "/elsewhere"}),
    "forbidden": (401, {}),
    "missing": (404, {}),
}

REPLIES = {
    "quota": (429, b"insufficient_quota"),
    "filter": (400, b"content_filter"),
    "limit": (400, b"use max_completion_tokens"),
    "too long": (400, b"This model's maximum context length is 4 tokens."),
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body leave together, without waiting for the other side.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True
    serving: TextServing
    # Whether the connection is closed, which the next request on it finds.
    has_left = False

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.has_left:
            self.close_connection = True
            return
        body = json.loads(raw)
        key = self.headers.get("Authorization", "")
        fault = self.serving.next_fault(self.path, body, key)
        if fault in STATUSES:
            status, headers = STATUSES[fault]
            # A careless server quotes the key and the prompt.
            self.reply(status, f"{key} {body}".encode(), headers)
            return
        if fault == "hangs up":
            self.close_connection = True
            return
        if fault in REPLIES:
            self.reply(*REPLIES[fault], {})
            return

        text = self.serving.answer(body)
        model = "other" if fault == "other model" else MODEL
        objects = _objects(self.path, body, text, model)
        if body.get("stream"):
            events = "".join(f"data: {json.dumps(one)}\n\n" for one in objects)
            content = f"{events}data: [DONE]\n\n".encode()
        else:
            content = json.dumps(objects[0]).encode()

        if fault == "page":
            self.reply(200, b"<html>", {})
        elif fault == "cut":
            # Half of the bytes that were promised, or half of a stream.
            self.reply(200, content[: len(content) // 2], {}, promised=len(content))
            self.close_connection = True
        elif fault == "ends early" and body.get("stream"):
            self.reply(200, content[: content.index(b"\n\n") + 2], {})
        elif fault == "ends early":
            self.reply(200, content[:-3], {})
        elif fault == "drips":
            self.serving.pay(body)
            self.reply(200, content, {}, drips=True)
        else:
            self.serving.pay(body)
            self.reply(200, content, {})
            self.has_left = fault == "leaves"

    def reply(
        self,
        status: int,
        content: bytes,
        headers: dict[str, str],
        *,
        promised: int | None = None,
        drips: bool = False,
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(promised or len(content)))
        self.end_headers()
        pieces = [content[:9], content[9:30], content[30:]] if drips else [content]
        for piece in pieces:
            self.wfile.write(piece)
            self.wfile.flush()
            if drips:
                time.sleep(0.002)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def text_serving(
    answer: Callable[[dict[str, Any]], str], faults: Iterator[str] | None = None
) -> Iterator[TextServing]:
    """A server of ``/completions`` and ``/chat/completions`` while the block runs."""
    serving = TextServing(answer, faults)
    handler = type("Handler", (_Handler,), {"serving": serving})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    serving.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield serving
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
