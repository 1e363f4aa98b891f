"""The server of transformers itself, where it can be started: its answers are ours."""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.text_server import TextRequest, TextServer

pytestmark = pytest.mark.slow

PROMPTS = ("The service was", "Contact Maria Jones at", "Customer John Smith paid")
N_TOKENS = 6
SECONDS_TO_START = 120.0

SERVE = """
import sys
from transformers.cli.transformers import main
sys.argv = ["transformers", "serve", "--port", "{port}", "--device", "cpu"]
main()
"""


@pytest.fixture
def url() -> Iterator[str]:
    pytest.importorskip("fastapi", reason="transformers serve needs fastapi")
    pytest.importorskip("uvicorn", reason="transformers serve needs uvicorn")
    pytest.importorskip("openai", reason="transformers serve needs openai")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = [sys.executable, "-c", SERVE.format(port=port)]
    process = subprocess.Popen(
        program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        ends_at = time.monotonic() + SECONDS_TO_START
        while True:
            try:
                urllib.request.urlopen(f"http://localhost:{port}/health", timeout=5)
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < ends_at
                time.sleep(0.5)
        yield f"http://localhost:{port}/v1"
    finally:
        process.kill()
        process.wait()


def written_here(module: Any, tokenizer: Any, text: str) -> str:
    import torch

    ids = tokenizer(text)["input_ids"]
    n_prompt = len(ids)
    with torch.inference_mode():
        for _ in range(N_TOKENS):
            logits = module(input_ids=torch.tensor([ids])).logits[0, -1]
            ids.append(int(logits.argmax()))
    written: str = tokenizer.decode(ids[n_prompt:], skip_special_tokens=True)
    return written


@pytest.mark.parametrize("streams", [False, True])
def test_it_answers_as_the_model_does_here(streams, url, tiny_base: Path):
    base = open_checkpoint(str(tiny_base), name="base", device="cpu")
    server = TextServer(url, str(tiny_base), streams=streams)
    with base.active() as module:
        for prompt in PROMPTS:
            body = {"prompt": prompt, "max_tokens": N_TOKENS, "temperature": 0}
            answer = server.ask(TextRequest("/completions", body))
            expected = written_here(module, base.tokenizer, prompt)
            # A character that a token cuts is shown in different ways.
            assert answer.text.split("\ufffd")[0] == expected.split("\ufffd")[0]
            assert answer.answer_tokens == N_TOKENS
    server.close()
