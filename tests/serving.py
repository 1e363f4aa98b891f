"""A server of completions around a module here, which can misbehave."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def serving(
    model: Any,
    tokenizer: Any,
    *,
    fault: str = "",
    before: Callable[[int], int | None] = lambda count: None,
) -> Iterator[str]:
    """The address of a server that echoes log-probabilities while the block runs.

    ``before`` is told the number of each request for scores, from 1 on; a status in
    its answer is sent in the place of scores, and 0 is none: it hangs up.

    ``fault``: ``unlisted`` does not say what it serves; ``bos`` adds a token;
    ``shifted``, ``chance``, ``none``, ``nan``, ``short``, ``page``, ``busy`` are what
    they say.
    """
    import torch

    lock, count = threading.Lock(), itertools.count(1)

    def scored(ids: list[int]) -> list[float | None]:
        with lock, torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0].double()
        if fault == "chance":
            logits = torch.zeros_like(logits)
        logp = logits.log_softmax(-1)
        places = range(len(ids) - 1)
        told = [float(logp[i, ids[i + (fault != "shifted")]]) for i in places]
        return [None, *told]

    def answer(body: dict[str, Any]) -> Any:
        prompt = body["prompt"]
        if isinstance(prompt, str):
            prompt = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        elif fault == "bos":
            prompt = [prompt[0], *prompt]
        if fault == "busy":
            return 503
        told: list[Any] = scored(prompt)
        if fault == "nan":
            told[-1] = float("nan")
        if fault == "short":
            told = told[:3]
        logprobs = None if fault == "none" else {"token_logprobs": [*told, -1.0]}
        return {
            "choices": [{"text": "", "logprobs": logprobs}],
            "usage": {"prompt_tokens": len(prompt)},
        }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if fault == "moved":
                self.send_response(302)
                self.send_header("Location", "/v1/models")
                self.end_headers()
                return
            known = self.path == "/v1/models" and fault != "unlisted"
            self.send_response(200 if known else 404)
            self.end_headers()
            if known and fault != "page":
                self.wfile.write(json.dumps({"data": [{"id": "tiny"}]}).encode())

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            if fault == "moved":
                self.send_response(302)
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                return
            if (status := before(next(count))) == 0:
                return
            found = status or answer(json.loads(raw))
            self.send_response(found if isinstance(found, int) else 200)
            self.end_headers()
            page = b"<html>" if fault == "page" else json.dumps(found).encode()
            self.wfile.write(page)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
