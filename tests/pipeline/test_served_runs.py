"""Commands that read a server: stopped in the middle, they go on from there."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from named import examples
from serving import serving

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.server import PAUSES
from spark_audit.cli.main import run
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.file import write_manifest
from spark_audit.scoring import score as scoring
from spark_audit.scoring import served

ROWS = 24
STOPS = 20
"""Requests are for as many rows, and first for some of them that must agree."""


@pytest.fixture
def line(tiny_base, tmp_path, monkeypatch):
    """``line(url)``: the words of a command."""
    monkeypatch.setattr("spark_audit.checkpoints.server.PAUSES", (0.01,) * len(PAUSES))
    monkeypatch.setattr(served, "TEXTS_OF_TRIAL", 4)
    base = open_checkpoint(str(tiny_base), name="base", device="cpu")
    write_manifest(build_manifest(examples(ROWS), base, name="m"), tmp_path / "m.json")

    def made(url: str) -> list[str]:
        words = f"nll --ckpt s={url} --model tiny --agree {tiny_base} --device cpu"
        words += f" --manifest {tmp_path}/m.json -o {tmp_path}/out --format json"
        return f"{words} --base {tiny_base} --quiet".split()

    return made


@pytest.mark.parametrize("stop", ["interrupt", "hangs up"])
def test_what_was_scored_is_kept_and_the_next_run_goes_on(
    stop, line, tiny_base, tmp_path, capsys, monkeypatch
):
    done = threading.Event()
    is_kept = threading.Event()
    asked = 0
    late: list[int] = []
    runner = scoring.pass_runner

    def watched(loaded: Any, kind: Any) -> Any:
        """Run a pass, and tell when a row of the server's was stored."""
        run = runner(loaded, kind)
        if loaded.name != "s":
            return run

        def rows(*arguments: Any) -> Iterator[Any]:
            for row in run(*arguments):
                yield row
                # Whoever asks for the next one has stored this one.
                if asked > 4:  # four rows are asked for the agreement
                    is_kept.set()

        return rows

    monkeypatch.setattr(scoring, "pass_runner", watched)

    def before(count: int) -> int | None:
        """It gets slow, and somebody presses Ctrl-C; or it is gone."""
        nonlocal asked
        asked = max(asked, count)
        if done.is_set() or count <= STOPS:
            return None
        is_kept.wait(60)  # what came before arrives in its own time on a busy machine
        if stop == "hangs up":
            return 0
        if count == STOPS + 1:
            os.kill(os.getpid(), signal.SIGINT)
        if not done.wait(300):
            late.append(count)
        return None

    opened_base = open_checkpoint(str(tiny_base), device="cpu")
    with (
        opened_base.active() as module,
        serving(module, opened_base.tokenizer, before=before) as url,
    ):
        assert run([*line(url), "--dry-run"]) == 2
        assert "error: --dry-run: " in capsys.readouterr().err
        code = run(line(url))
        # It waits for no answer that is on its way.
        assert not late
        error_output = capsys.readouterr().err
        assert code == (130 if stop == "interrupt" else 3)
        assert "Traceback" not in error_output
        (server_line,) = [
            text for text in error_output.splitlines() if "spark-audit: " in text
        ]
        again = "spark-audit nll --ckpt s=http"
        assert (again in server_line) == (code == 130)
        first = asked
        done.set()
        assert run(line(url)) == 0
    # The rows that were not kept, and four for the agreement.
    assert 4 < asked - first < ROWS + 4
    assert (tmp_path / "out" / "report.json").exists()
