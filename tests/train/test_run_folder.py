"""A run folder: a run that was interrupted ends with the bytes of one that was not."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import problem_of
from run_training import Killed, Outcome, left, train, write_stream
from tiny_models import make_model, save_model

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.errors import CheckpointError, InputError, OutputError, SparkError
from spark_train.run_folder import Folder

SETTINGS = (
    "epochs=1",
    "batch_size=2",
    "lr=0.02",
    "lora.r=4",
    "ptpc.steps=4",
    "save_every=2",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_stream(tmp_path_factory.mktemp("data") / "rows.jsonl", train=4, test=1)


@pytest.fixture(scope="module")
def start(tiny_base, data):
    """``start(output, *settings, **options)``: the run, in this process."""

    def call(output: Path, *settings: str, **options: Any) -> Outcome:
        options_given = {
            "method": "spark",
            "base": str(tiny_base),
            "data": [data],
        } | options
        return train(output=output, settings=[*SETTINGS, *settings], **options_given)

    return call


@pytest.fixture(scope="module")
def undisturbed(start, tmp_path_factory):
    """The folder of a run that nothing interrupted."""
    return start(tmp_path_factory.mktemp("whole") / "run").folder


def record(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    assert path.stat().st_mode & 0o077 == 0, "it tells the seed of DP-SGD's noise"
    content: dict[str, Any] = json.loads(path.read_text())
    return content


# --- in company -----------------------------------------------------------------------


def test_a_folder_that_another_process_writes_to_is_refused(start, tmp_path):
    with (
        Folder(tmp_path / "run").lock(),
        pytest.raises(InputError, match="run: "),
    ):
        start(tmp_path / "run")


def test_processes_with_other_folders_are_refused(start, tmp_path, monkeypatch):
    def gathered(own):
        return [*own, (1, 0)] if own else []  # no faults are gathered, too

    monkeypatch.setattr("spark_train.processes.gathered", gathered)
    with pytest.raises(InputError, match=f"^{tmp_path / 'run'}: "):
        start(tmp_path / "run")


# --- said again -----------------------------------------------------------------------


def test_a_complete_run_is_left_alone_and_shown_again(start, undisturbed, monkeypatch):
    before = {p: p.stat().st_mtime_ns for p in undisturbed.rglob("*") if p.is_file()}
    first = start(undisturbed)
    monkeypatch.setattr("spark_train.loop.run_phase", None)
    second = start(undisturbed)
    sealed = first.record.model_copy(update={"seal": second.record.seal})
    assert second.record == sealed
    assert first.record.accuracy
    assert first.record.seconds["1-yelp/task"].keys() >= {"task", "optimizer"}
    after = {p: p.stat().st_mtime_ns for p in undisturbed.rglob("*") if p.is_file()}
    assert after == before


# --- another run's folder -------------------------------------------------------------


def refusal(call: Callable[[], object], kind: type[Exception] = InputError) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_run_is_refused_with_the_difference(start, undisturbed, tmp_path):
    before = left(undisturbed)
    base = tmp_path / "base"
    save_model(make_model(seed=5), base)
    other_data = write_stream(tmp_path / "rows.jsonl", seed=1)
    cases: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
        (("ptpc.alpha_ul=3",), {}, "ptpc.alpha_ul 2 -> 3; "),
        (("lr=0.01", "seed=4"), {}, "lr 0.02 -> 0.01; seed 0 -> 4; "),
        # Accuracies of one matrix are of the same rows.
        (("eval_rows=3",), {}, "eval_rows 0 -> 3; "),
        ((), {"data": [other_data]}, "data: other files or contents; "),
        ((), {"order": "fomc,yelp"}, "order yelp,fomc -> fomc,yelp; "),
        ((), {"dtype": "bfloat16"}, "dtype float32 -> bfloat16; "),
        ((), {"method": "er-ptpc"}, "method spark -> er-ptpc; "),
        ((), {"base": str(base)}, "base "),
    ]
    for settings, changed, said in cases:
        message = refusal(lambda s=settings, c=changed: start(undisturbed, *s, **c))  # type: ignore[misc]
        refusal_told = f"{undisturbed}: holds a run of other settings: {said}"
        assert message.startswith(refusal_told)
        assert len(message) < 250
    start(undisturbed, "save_every=9")
    assert left(undisturbed) == before


def test_neither_names_nor_the_order_of_files_make_another_run(start, tmp_path):
    names = ("yelp", "fomc")
    settings = ("ptpc.steps=1",)
    files = [
        write_stream(tmp_path / n / "rows.jsonl", tasks=(n,), train=2, test=1)
        for n in names
    ]
    renamed = [tmp_path / "all" / f"{name}.jsonl" for name in reversed(names)]
    (tmp_path / "all").mkdir()
    for file, copy in zip(reversed(files), renamed, strict=True):
        shutil.copyfile(file, copy)
    run = tmp_path / "run"
    other_run = tmp_path / "other"
    start(run, *settings, data=files)
    before = left(run)
    start(run, *settings, data=[tmp_path / "all"])
    # And where they train, they train alike.
    start(other_run, *settings, data=renamed)
    assert left(run) == left(other_run) == before


def test_a_folder_that_is_emptied_under_a_run_is_begun_anew(
    start, undisturbed, tmp_path
):
    run = tmp_path / "run"

    def emptied(what: str, done: int, total: int) -> None:
        if run.joinpath("state.safetensors").exists():
            for path in run.glob("*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    refusal_text = refusal(lambda: start(run, progress=emptied), OutputError)
    assert refusal_text.startswith(f"{run}: ")
    start(run)
    assert left(run) == left(undisturbed)
    (run / "run.json").unlink()
    refusal_text = refusal(lambda: start(run))
    assert refusal_text.startswith(f"{run}: ")
    assert {"accuracy.csv", "run.json:", "-o,"} <= {*refusal_text.split()}


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(start, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    refusal_text = refusal(lambda: start(tmp_path))
    assert {"notes.txt", "run.json:"} <= {*refusal_text.split()}
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    for text in ("no JSON", '{"kind": "spark-audit-report"}'):
        (tmp_path / "run.json").write_text(text)
        refusal_text = refusal(lambda: start(tmp_path), OutputError)
        assert "run.json" in refusal_text
        assert (tmp_path / "run.json").read_text() == text


@pytest.fixture(scope="module")
def half(start, tmp_path_factory):
    """The folder of a run that was killed after its first stage."""

    def stop(*args: Any, **options: Any) -> None:
        raise Killed

    run = tmp_path_factory.mktemp("half") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_train.distilled_replay.scored_rows", stop)
        with pytest.raises(Killed):
            start(run)
    return run


@pytest.fixture
def stopped(half, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(half, tmp_path / "run"))


@pytest.mark.parametrize(
    "gone", ["accuracy.csv", "stages/1-yelp/task", "stages/1-yelp/priv"]
)
def test_what_a_finished_phase_left_must_be_there(
    gone, start, undisturbed, stopped, tmp_path
):
    complete = Path(shutil.copytree(undisturbed, tmp_path / "complete"))
    for run in (stopped, complete):
        file = run / gone
        shutil.rmtree(file) if file.is_dir() else file.unlink()
        before = left(run)
        refusal_text = refusal(lambda run=run: start(run), SparkError)  # type: ignore[misc]
        assert gone in refusal_text
        assert left(run) == before
    shutil.rmtree(complete / "stages")
    assert "stages/" in refusal(lambda: start(complete))


# --- checksums ------------------------------------------------------------------------

ADAPTER = "stages/1-yelp/{}/adapter_model.safetensors"
LEFT = [
    *(("half", name) for name in ("run.json", "metrics.jsonl", "state.safetensors")),
    *(
        ("half", f"stages/1-yelp/task/{n}.json")
        for n in ("adapter_config", "trained_on")
    ),
    ("half", ADAPTER.format("priv")),
    *(("undisturbed", name) for name in ("metrics.jsonl", "accuracy.csv")),
    ("undisturbed", ADAPTER.format("task")),
]


def damaged(data: bytes, how: str) -> bytes:
    """A file's bytes with one bit flipped at a place of its own, or without an end."""
    rng = random.Random(f"{how} {len(data)}")
    if how == "cut":
        return data[: rng.randrange(len(data))]
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize(
    ("which", "name", "how"),
    [*((*name, "bit") for name in LEFT), ("half", "metrics.jsonl", "cut")],
)
def test_damage_is_found_on_resume_and_on_audit_by_the_file_s_name(
    which, name, how, start, tiny_base, request, tmp_path
):
    run = Path(shutil.copytree(request.getfixturevalue(which), tmp_path / "run"))
    source = f"{run}@1:task" if "/task/" in name else f"{run}@1"
    assert not problem_of(source, base=tiny_base)
    (run / name).write_bytes(damaged((run / name).read_bytes(), how))
    before = left(run)
    with pytest.raises((CheckpointError, OutputError)) as caught:
        start(run)
    sources = [source]
    if name.startswith("stages"):  # an adapter says so by itself
        sources.append(str((run / name).parent))
    for message in (
        str(caught.value),
        *(problem_of(source, base=tiny_base) for source in sources),
    ):
        assert Path(name).name in message
        assert "\n" not in message
    if name.startswith("stages"):
        with pytest.raises(CheckpointError, match=Path(name).name):
            open_checkpoint(sources[1], base=str(tiny_base), device="cpu")
    assert left(run) == before


# --- what is said of the starts, and what is left of a refused one --------------------


def test_each_start_is_told(start, stopped, undisturbed, monkeypatch):
    (first,) = record(stopped)["starts"]
    assert (first["device"], first["gradient_checkpointing"]) == ("cpu", False)
    assert first["threads"] == torch.get_num_threads()
    assert {"torch", "accelerate", "safetensors"} <= first["versions"].keys()
    start(stopped, command=("spark-train", "again"))
    before, later = record(stopped)["starts"]
    assert before == first
    assert later["command"] == ["spark-train", "again"]
    assert left(stopped) == left(undisturbed)


@pytest.mark.parametrize(
    "name",
    [
        "stages",
        "stages/1-yelp/task",
        "carried",
        "metrics.jsonl",
        "accuracy.csv",
    ],
)
def test_a_run_writes_and_deletes_nothing_elsewhere(name, tmp_path):
    outside = tmp_path / "theirs"
    run = tmp_path / "run"
    outside.mkdir()
    for kept in ("accuracy.csv", "metrics.jsonl"):
        (outside / kept).write_text("kept")
    (run / name).parent.mkdir(parents=True)
    (run / name).symlink_to(outside / name if "." in name else outside)
    with (
        pytest.raises(InputError, match=f"{name}: "),
        Folder(run).lock(),
    ):
        pass
    assert {path.read_text() for path in outside.iterdir()} == {"kept"}
    assert len(list(outside.iterdir())) == 2
    assert not (run / ".lock").exists()
