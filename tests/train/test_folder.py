"""A run folder: a run that was interrupted ends with the bytes of one that was not."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_audit.errors import InputError
from spark_train.folder import Folder, data_files
from spark_train.run import Outcome, train

SETTINGS = (
    "epochs=2",
    "batch_size=4",
    "lr=0.02",
    "lora.r=4",
    "ptpc.steps=6",
    "save_every=3",
)
PROGRAM = "from spark_train.cli import main; main()"
SHOWS = "seconds, "


@pytest.fixture(scope="module")
def data(
    make_stream: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return make_stream(tmp_path_factory.mktemp("data") / "rows.jsonl")


@pytest.fixture(scope="module")
def start(tiny_base: Path, data: Path) -> Callable[..., Outcome]:
    """``start(output, *settings, **options)``: the run, in this process."""

    def call(output: Path, *settings: str, **options: Any) -> Outcome:
        given = {
            "method": "spark",
            "base": str(tiny_base),
            "data": [data],
            "order": "yelp,fomc",
            "device": "cpu",
        } | options
        return train(output=output, settings=[*SETTINGS, *settings], **given)

    return call


@pytest.fixture(scope="module")
def undisturbed(
    start: Callable[..., Outcome], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a run that nothing interrupted."""
    return start(tmp_path_factory.mktemp("whole") / "run").folder


def left(folder: Path) -> dict[str, str]:
    """Hash of everything that a run leaves, but for its record of times."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("run.json", ".lock")
    }


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


class Killed(BaseException):
    """Stands for a process that ends at once."""


# --- interrupted ----------------------------------------------------------------------

PLACES = {
    "while learning": ("spark_train.loop._record", 3),
    "while learning the second task": ("spark_train.loop._record", 15),
    "while correcting": ("spark_train.loop._record", 9),
    "while correcting the second task": ("spark_train.loop._record", 22),
    "while the teacher is asked": ("spark_train.distillation.write_scores", 1),
    "before an adapter is saved": ("spark_train.run.save_adapter", 2),
    "while an adapter is written": ("spark_train.lora.write_atomically", 2),
    "before an adapter takes its place": ("shutil.rmtree", 4),
    "before the accuracy is written": ("spark_train.run.write_matrix", 2),
    "before the state is written": ("spark_train.folder.write_atomically", 5),
    "before the last state": ("spark_train.folder.write_atomically", 13),
    "between phases": ("spark_train.run.run_phase", 3),
    "when all but the record is done": ("spark_train.folder.Folder.close", 1),
}
"""Function -> at which of its calls the process ends."""


@pytest.mark.parametrize("place", PLACES)
def test_a_run_that_was_killed_ends_with_the_same_bytes(
    place: str,
    start: Callable[..., Outcome],
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, at = PLACES[place]
    module, _, name = target.rpartition(".")
    calls = [0]

    def once(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] == at:
                raise Killed
            return real(*args, **options)

        return call

    owner = Folder if module.endswith("Folder") else importlib.import_module(module)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, once(getattr(owner, name)))
        with pytest.raises(Killed):
            start(tmp_path / "run")
    assert calls[0] == at
    assert left(tmp_path / "run") != left(undisturbed) or place.startswith("when all")
    start(tmp_path / "run", "save_every=4")  # this one may change
    assert left(tmp_path / "run") == left(undisturbed)
    assert record(tmp_path / "run")["status"] == "complete"


@pytest.fixture
def launch(
    tiny_base: Path, data: Path, tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``launch(output, *settings)``: the same run as a process of its own."""
    begun: list[subprocess.Popen[str]] = []

    def call(output: Path, *settings: str) -> subprocess.Popen[str]:
        line = f"run --method spark --base {tiny_base} --data {data} --order yelp,fomc"
        flags = [*line.split(), "--device", "cpu", "-o", str(output), "--set"]
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *flags, *SETTINGS, *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        begun.append(process)
        return process

    yield call
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for_a_state(run: Path, size: int, process: subprocess.Popen[str]) -> None:
    """Wait until steps beyond ``size`` bytes are written, or the process has ended."""
    metrics, end = run / "metrics.jsonl", time.monotonic() + 60
    while process.poll() is None:
        if metrics.exists() and metrics.stat().st_size > size:
            return
        assert time.monotonic() < end
        time.sleep(0.001)


LONG = ("epochs=8", "ptpc.steps=20", "save_every=7")


def test_kill_9_and_an_interrupt_at_any_moment_change_nothing(
    launch: Callable[..., subprocess.Popen[str]],
    start: Callable[..., Outcome],
    tmp_path: Path,
) -> None:
    whole = start(tmp_path / "whole", *LONG).folder
    run, rng = tmp_path / "run", random.Random(0)
    for sent in (signal.SIGKILL, signal.SIGINT):
        size = (run / "metrics.jsonl").stat().st_size if run.exists() else 0
        process = launch(run, *LONG)
        wait_for_a_state(run, size, process)
        time.sleep(rng.uniform(0, 0.1))
        if sent == signal.SIGKILL:
            # While the first is there, a second one is refused.
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(InputError, match="another process is writing to it"):
                start(run, *LONG)
        assert process.poll() is None, process.communicate()
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
        assert out == ""
        if sent == signal.SIGINT:
            assert process.returncode == 130
            assert "resume with: spark-train run --method spark" in err
            assert "Traceback" not in err
        before = record(run)
        assert before["status"] == "running"
    spent = sum(sum(kinds.values()) for kinds in before["seconds"].values())
    start(run, *LONG)
    assert left(run) == left(whole)
    after = record(run)
    assert sum(sum(kinds.values()) for kinds in after["seconds"].values()) > spent
    assert after["created"] == before["created"]


def test_seconds_of_an_interrupted_phase_add_up(
    start: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_train import loop

    ticks = iter(range(10**6))
    # Every look at the clock is a second later: what is counted are looks.
    monkeypatch.setattr(loop.time, "perf_counter", lambda: float(next(ticks)))
    start(tmp_path / "whole", "save_every=1")
    real, calls = loop._record, [0]

    def once(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 9:
            raise Killed
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_record", once)
        with pytest.raises(Killed):
            start(tmp_path / "run", "save_every=1")
    start(tmp_path / "run", "save_every=1")
    whole, again = (record(tmp_path / n)["seconds"] for n in ("whole", "run"))
    # Each step is counted once; starting the phase again took time again.
    assert again["1-yelp/priv"].pop("start") == 2 * whole["1-yelp/priv"].pop("start")
    for times in (whole, again):
        for stage in ("1-yelp", "2-fomc"):
            del times[f"{stage}/answers"]
    assert again == whole


# --- said again -----------------------------------------------------------------------


def test_a_complete_run_is_left_alone_and_shown_again(
    start: Callable[..., Outcome],
    undisturbed: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {p: p.stat().st_mtime_ns for p in undisturbed.rglob("*") if p.is_file()}
    first = start(undisturbed)
    monkeypatch.setattr("spark_train.run.run_phase", None)
    second = start(undisturbed)
    assert first == second
    assert first.matrix
    assert first.seconds.keys() >= {"task", "correction", "answers"}
    after = {p: p.stat().st_mtime_ns for p in undisturbed.rglob("*") if p.is_file()}
    del before[undisturbed / ".lock"], after[undisturbed / ".lock"]
    assert after == before


# --- another run's folder -------------------------------------------------------------


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_setting_is_refused_with_the_difference(
    start: Callable[..., Outcome], undisturbed: Path
) -> None:
    before = left(undisturbed)
    for settings, said in [
        (("ptpc.alpha_ul=3",), "ptpc.alpha_ul 2 -> 3"),
        (("replay.enabled=off",), "replay.enabled on -> off"),
        (("lr=0.01", "seed=4"), "lr 0.02 -> 0.01; seed 0 -> 4"),
        # Accuracies of one matrix are of the same rows.
        (("eval_rows=3",), "eval_rows 0 -> 3"),
    ]:
        message = refusal(lambda settings=settings: start(undisturbed, *settings))  # type: ignore[misc]
        assert message == (
            f"{undisturbed}: holds a run of other settings: {said}; "
            "give another -o, or the same settings"
        )
    start(undisturbed, "save_every=9")
    assert left(undisturbed) == before


def test_other_data_another_base_order_or_method_is_refused(
    start: Callable[..., Outcome],
    undisturbed: Path,
    make_stream: Callable[..., Path],
    make_model: Callable[..., Any],
    tiny_tokenizer: Any,
    tmp_path: Path,
) -> None:
    other = make_stream(tmp_path / "rows.jsonl", seed=1)
    said = refusal(lambda: start(undisturbed, data=[other]))
    assert "data 1 (rows.jsonl) " in said
    said = refusal(lambda: start(undisturbed, order="fomc,yelp"))
    assert "settings: order yelp,fomc -> fomc,yelp;" in said
    said = refusal(lambda: start(undisturbed, dtype="bfloat16"))
    assert "settings: dtype float32 -> bfloat16;" in said
    said = refusal(lambda: start(undisturbed, method="er-ptpc"))
    assert "settings: method spark -> er-ptpc;" in said
    base = tmp_path / "base"
    make_model(seed=5).save_pretrained(base)
    tiny_tokenizer.save_pretrained(base)
    said = refusal(lambda: start(undisturbed, base=str(base)))
    assert "settings: base " in said
    assert len(said) < 250


def test_two_files_of_one_name_are_told_apart(
    start: Callable[..., Outcome], make_stream: Callable[..., Path], tmp_path: Path
) -> None:
    names = ("yelp", "fomc")
    files = [make_stream(tmp_path / n / "rows.jsonl", tasks=(n,)) for n in names]
    run = tmp_path / "run"
    start(run, "epochs=1", "ptpc.steps=1", data=files)
    make_stream(files[0], tasks=("yelp",), seed=3)
    said = refusal(lambda: start(run, "epochs=1", "ptpc.steps=1", data=files))
    assert "data 1 (rows.jsonl)" in said
    assert "data 2" not in said


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(
    start: Callable[..., Outcome], tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    said = refusal(lambda: start(tmp_path))
    assert "holds something else than a run (notes.txt)" in said
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    for text in ("no JSON", '{"kind": "spark-audit-report"}'):
        (tmp_path / "run.json").write_text(text)
        assert "is no record of a run" in refusal(lambda: start(tmp_path))
        assert (tmp_path / "run.json").read_text() == text


def test_a_damaged_state_is_said(
    start: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: Any, **options: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("spark_train.run.save_adapter", stop)
        with pytest.raises(Killed):
            start(tmp_path / "run")
    state = tmp_path / "run" / "state.safetensors"
    assert state.stat().st_mode & 0o777 == 0o600
    state.write_bytes(state.read_bytes()[:50])
    said = refusal(lambda: start(tmp_path / "run"))
    assert said.startswith(f"{state}: cannot be read; remove the run folder")


def test_data_files_of_folders_come_in_order(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "c.txt"):
        (tmp_path / name).write_text("")
    one = tmp_path / "c.txt"
    found = data_files([one, tmp_path])
    assert [path.name for path in found] == ["c.txt", "a.jsonl", "b.jsonl"]
