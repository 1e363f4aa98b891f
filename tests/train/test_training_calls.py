"""Training from Python: the run of the command, and looks between its stages."""

import hashlib
import inspect
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_training import left, write_stream
from slow_cases import fast_and_slow

import spark_audit as sa
import spark_train
from spark_audit.errors import InputError
from spark_audit.spoken_options import for_command_line
from spark_train.cli import run as run_command
from spark_train.run_folder import Folder
from spark_train.run_record import RunRecord
from spark_train.training_request import TrainRequest

TASKS = ["yelp", "fomc"]
SETTINGS = {
    "epochs": 1,
    "batch_size": 4,
    "lr": 0.02,
    "lora.r": 4,
    "save_every": 1,
    "eval_rows": 2,
}
CORRECTION = {"ptpc.steps": 2, "ptpc.lr": 0.001}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_stream(tmp_path_factory.mktemp("data") / "rows.jsonl")


@pytest.fixture
def call(data, tiny_base, tmp_path) -> Callable[..., dict[str, Any]]:
    """Arguments of a tiny run into a folder of this name."""

    def arguments(name: str, method: str = "spark", **changed: Any) -> dict[str, Any]:
        settings = dict(SETTINGS)
        if method == "spark":
            settings |= CORRECTION
        arguments = {
            "data": data,
            "base": tiny_base,
            "output": tmp_path / name,
            "method": method,
            "order": TASKS,
            "settings": settings,
            "seed": 3,
            "device": "cpu",
            "progress": False,
        }
        return arguments | changed

    return arguments


def record_of(folder: Path) -> dict[str, Any]:
    """The record without what depends on when and by what the run was started."""
    record = json.loads((folder / "run.json").read_text())
    for name in ("starts", "seconds", "seal"):
        del record[name]
    return record


def digest(model: Any) -> str:
    """The digest of a model's adapter in training."""
    sha256 = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        if "lora_" in name and ".default." in name:
            sha256.update(weight.detach().numpy().tobytes())
    return sha256.hexdigest()


def test_public_names_resolve_and_are_documented():
    for name in spark_train.__all__:
        assert getattr(spark_train, name).__doc__, name
    assert {"run", "stages", "methods", "TrainingSettings"} <= {*dir(spark_train)}


def test_a_run_from_python_is_the_run_of_the_command(call, data, tiny_base, tmp_path):
    outcome = spark_train.run(**call("python"))
    assert outcome.folder == tmp_path / "python"
    assert outcome.tasks == tuple(TASKS)

    line = ["run", "--method", "spark", "--base", str(tiny_base), "--data", str(data)]
    line += ["--order", "yelp,fomc", "-o", str(tmp_path / "shell"), "--seed", "3"]
    line += ["--device", "cpu", "--quiet", "--set"]
    line += [f"{name}={value}" for name, value in (SETTINGS | CORRECTION).items()]
    assert run_command(line) == 0

    assert len(left(outcome.folder)) > 10
    assert left(outcome.folder) == left(tmp_path / "shell")
    assert record_of(outcome.folder) == record_of(tmp_path / "shell")
    matrix = outcome.record.accuracy
    assert outcome.accuracy.columns.tolist() == outcome.accuracy.index.tolist() == TASKS
    assert np.array_equal(
        outcome.accuracy, np.array(matrix, dtype=float), equal_nan=True
    )


def test_settings_as_types_are_those_of_the_mapping(call):
    by_type = spark_train.TrainingSettings(
        epochs=1,
        batch_size=4,
        lr=0.02,
        save_every=1,
        eval_rows=2,
        lora=spark_train.Lora(r=4),
    )
    first = spark_train.run(**call("mapping", "seqft"))
    second = spark_train.run(**call("types", "seqft", settings=by_type))
    assert left(first.folder) == left(second.folder)
    assert record_of(first.folder) == record_of(second.folder)


def test_every_option_of_the_command_is_an_argument():
    # The demo alone takes the first phase of another run.
    no_options = {"loading", "command", "first_phase_of"}
    options = {field.name for field in fields(TrainRequest)} - no_options
    # These fields of the loading are options, too.
    options |= {"device", "dtype", "tokenizer", "revision", "trust_remote_code"}
    for function in (spark_train.run, spark_train.stages):
        arguments = inspect.signature(function).parameters
        assert {*arguments} == options | {"progress"}
        kinds = {
            argument.kind for name, argument in arguments.items() if name != "data"
        }
        assert kinds == {inspect.Parameter.KEYWORD_ONLY}


# --- stages ---------------------------------------------------------------------------


def disturb(stage: spark_train.TrainedStage) -> None:
    """Do what a careless look does to a model in training."""
    model: Any = stage.model
    random.random()
    np.random.rand()  # noqa: NPY002
    torch.manual_seed(99)
    model.train()
    ids = torch.arange(3, 12)[None]
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    model(input_ids=ids, labels=ids).loss.backward()
    model.generate(input_ids=ids, max_new_tokens=2, do_sample=True)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name and ".default." in name:
                weight.zero_()
    for parameter in model.parameters():
        parameter.requires_grad_(False)


@pytest.mark.parametrize(
    ("method", "dp"),
    fast_and_slow(
        product(("spark", "olora", "mtl"), ("none", "fn")),
        fast=[("spark", "fn"), ("olora", "none"), ("mtl", "none")],
    ),
)
def test_looks_between_stages_do_not_disturb(method, dp, call):
    plain = spark_train.run(**call("plain", method, dp=dp))
    numbers = []
    for stage in spark_train.stages(**call("looked", method, dp=dp)):
        numbers.append((stage.number, stage.task))
        assert not stage.model.training
        disturb(stage)
    tasks = ["all"] if method == "mtl" else TASKS
    assert numbers == [*enumerate(tasks, 1)]
    looked = plain.folder.parent / "looked"
    assert left(plain.folder) == left(looked)
    assert record_of(plain.folder) == record_of(looked)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits_found: torch.Tensor = model(input_ids=torch.arange(3, 12)[None]).logits
    return logits_found


@pytest.mark.parametrize(
    ("method", "dp"), [("spark", "none"), ("olora", "none"), ("seqft", "fn")]
)
def test_a_loop_that_was_left_gives_its_stages_again_and_then_goes_on(
    method, dp, call, tmp_path
):
    plain = spark_train.run(**call("plain", method, dp=dp))
    seen: dict[int, torch.Tensor] = {}
    for stage in spark_train.stages(**call("left", method, dp=dp)):
        seen[stage.number] = logits(stage.model)
        break
    # A run that was left is unlocked, and not complete.
    folder = tmp_path / "left"
    assert json.loads((folder / "run.json").read_text())["status"] == "running"

    again: dict[int, torch.Tensor] = {}
    for stage in spark_train.stages(**call("left", method, dp=dp)):
        again[stage.number] = logits(stage.model)
    assert [*again] == [1, 2]
    assert torch.equal(again[1], seen[1])
    assert left(folder) == left(plain.folder)

    # Of a complete run all stages come again, with the same models.
    for stage in spark_train.stages(**call("left", method, dp=dp)):
        assert torch.equal(logits(stage.model), again[stage.number])
    assert left(folder) == left(plain.folder)


def test_a_run_killed_before_it_was_marked_complete_gives_its_last_stage_once(
    call, tmp_path, monkeypatch
):
    write = Folder.write

    def killed_at_the_end(folder: Folder, record: RunRecord) -> None:
        if record.status == "complete":
            raise KeyboardInterrupt
        write(folder, record)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", killed_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            spark_train.run(**call("killed", "seqft"))
    record_file = tmp_path / "killed" / "run.json"
    assert json.loads(record_file.read_text())["status"] == "running"

    numbers = [stage.number for stage in spark_train.stages(**call("killed", "seqft"))]
    assert numbers == [1, 2]
    assert json.loads(record_file.read_text())["status"] == "complete"


def test_a_stage_is_the_adapter_in_its_folder(call, tiny_base):
    plain: list[tuple[int, str]] = []
    for stage in spark_train.stages(**call("run")):
        plain.append((stage.number, stage.folder.name))
        opened = sa.open_checkpoint(stage.folder, base=tiny_base, device="cpu")
        assert torch.equal(logits(stage.model), logits(opened.model))
        measured = [task for task, value in stage.accuracy.items() if value is not None]
        assert measured == TASKS[: stage.number]
    assert plain == [(1, "priv"), (2, "priv")]


def test_the_example_of_the_page_runs_as_it_stands(tiny_base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tasks = ("reviews", "support")
    rows = write_stream(tmp_path / "data/injected/rows.jsonl", tasks=tasks, train=12)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "base").symlink_to(tiny_base)
    base = sa.open_checkpoint(tiny_base, name="base", device="cpu")
    manifest = sa.build_manifest(sa.read_examples(rows), base, name="m", caliper=5.0)
    sa.write_manifest(manifest, tmp_path / "manifests/m.json")

    page = Path(spark_train.__file__).parents[1] / "docs" / "training.md"
    (block,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    names: dict[str, Any] = {}
    exec(block, names)

    # Looking changed nothing: the same run without looks gives the same files.
    plain = spark_train.run(
        "data/injected",
        base="models/base",
        order=tasks,
        settings=names["settings"],
        output="runs/plain",
        seed=1,
    )
    assert left(plain.folder) == left(Path("runs/spark"))
    values = []
    for number in (1, 2):
        figures = sa.read_report(f"reports/after-{number}").to_frame()
        figures = figures.query(
            "metric == 'nll_pii' and group_kind == 'pooled' and variant == ''"
        )
        values.append(figures.set_index("checkpoint")["value"][tasks[number - 1]])
    assert values[0] != values[1]


# --- what is refused ------------------------------------------------------------------


@pytest.fixture
def in_python() -> Iterator[None]:
    with for_command_line(is_running=False):
        yield


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": "sprak"}, "method: 'sprak' .*'spark'"),
        ({"settings": {"ptpc.step": 1}}, "'ptpc.steps'"),
        ({"settings": {"lr": -1}}, "settings: lr is '-1': "),
        ({"dtype": "float16"}, "dtype: 'float16' "),
        ({"dp": "dpsdg"}, "dp: 'dpsdg' .*'dpsgd'"),
        ({"order": "yelp,nothing"}, "order"),
        ({"base": "models/nowhere"}, "nowhere"),
    ],
)
def test_a_bad_value_is_refused_in_the_words_of_python(
    changed, message, call, tmp_path, in_python
):
    for function in (spark_train.run, spark_train.stages):
        with pytest.raises(InputError) as caught:
            [*function(**call("run", **changed))]
        assert re.search(message, str(caught.value))
        assert "--" not in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bse": "b"}, "'base'"),
        ({"data": 3}, "data: 3 "),
        ({"data": ["a", None]}, r"data\[1\]: None "),
        ({"order": None}, "order: None "),
        ({"order": ["a", 2]}, r"order\[1\]: 2 "),
        ({"lora_targets": 3}, "lora_targets: 3 "),
        ({"device": None}, "device: None "),
        ({"output": None}, "output: None "),
        ({"settings": ["lr=1"]}, "settings: list "),
    ],
)
def test_a_wrong_argument_is_a_type_error_at_the_call(changed, message, call):
    for function in (spark_train.run, spark_train.stages):
        with pytest.raises(TypeError, match=message):
            function(**call("run", **changed))


def test_methods_say_what_they_do_and_what_they_read():
    summaries = {method.name: method for method in spark_train.methods()}
    assert len(summaries) == 10
    assert all(summary.summary for summary in summaries.values())
    known_settings = spark_train.TrainingSettings().flat()
    for summary in summaries.values():
        assert {*summary.settings} <= {*known_settings}
    assert "ptpc.steps" in summaries["spark"].settings
    assert "ptpc.steps" not in summaries["er"].settings
