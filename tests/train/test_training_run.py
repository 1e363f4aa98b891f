"""Runs as a whole: what a method leaves, and how a run that cannot be is refused."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from peft import PeftModel
from run_training import Outcome, probes, steps, train, write_stream
from transformers import AutoModelForCausalLM

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.task_series import series
from spark_train.cli import run
from spark_train.run_record import RunRecord
from spark_train.training_corpus import ORDERS
from spark_train.training_methods import METHODS, groups
from spark_train.training_settings import TrainingSettings

TASKS = ("yelp", "fomc")
COMMON = ("epochs=1", "batch_size=4", "lr=0.02", "lora.r=4", "save_every=5")
SMALL = {
    "ptpc": ("ptpc.steps=2", "ptpc.lr=0.001"),
    "replay": ("replay.top_k=16",),
}
DISTILLED = {"spark", "sd-replay"}
CORRECTED = {"spark", "er-ptpc"}
REHEARSED = {"er", "er-ptpc"}


def settings(method: str) -> tuple[str, ...]:
    """Settings of a short run, those that the method reads."""
    reads = groups(method)
    return COMMON + tuple(s for name in reads for s in SMALL.get(name, ()))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_stream(tmp_path_factory.mktemp("data") / "rows.jsonl")


def trained(
    method: str, base: Path, data: Path, output: Path, *more: str, **options: Any
) -> Outcome:
    """A short run in this process."""
    return train(
        method=method,
        base=str(base),
        data=[data],
        output=output,
        settings=[*settings(method), *more],
        **options,
    )


@pytest.fixture(scope="module")
def runs(tiny_base, data, tmp_path_factory):
    """``runs(method)``: a run of two tasks; each is made once."""
    outcomes: dict[str, Outcome] = {}
    folder = tmp_path_factory.mktemp("runs")

    def of(method: str) -> Outcome:
        if method not in outcomes:
            outcomes[method] = trained(method, tiny_base, data, folder / method)
        return outcomes[method]

    return of


def terms(line: dict[str, Any]) -> set[str]:
    """The terms of a step's loss."""
    return {name[2:] for name in line if name.startswith("n_")}


def expected_phases(method: str) -> dict[str, tuple[int, set[str]]]:
    """Phase -> steps and terms: 7 rows, batches of 4, two of them replayed."""
    correction = {"ul", "dkl", "anchor"}
    if method == "mtl":
        return {"1-all/task": (4, {"task"})}
    own_phases = {"task", "unlearn"} if method == "pecl" else {"task"}
    phases: dict[str, tuple[int, set[str]]] = {"1-yelp/task": (2, own_phases)}
    if method in CORRECTED:
        phases["1-yelp/priv"] = (2, correction | {"old"})
    if method in DISTILLED:
        replay_phases = {"replay_ce", "replay_kl"}
    else:
        replay_phases = {"replay"} if method in REHEARSED else set()
    phases["2-fomc/task"] = (4 if replay_phases else 2, own_phases | replay_phases)
    if method in CORRECTED:
        phases["2-fomc/priv"] = (2, correction | {"old"})
    return phases


# --- what a run leaves ----------------------------------------------------------------


@pytest.mark.parametrize("method", list(METHODS))
def test_a_method_leaves_a_whole_run_folder(method, runs, tiny_base):
    outcome = runs(method)
    folder = outcome.folder
    record = RunRecord.model_validate_json((folder / "run.json").read_text())
    assert (record.status, record.method, record.tasks) == (
        "complete",
        method,
        list(TASKS),
    )
    assert record.settings["lr"] == 0.02
    defaults = TrainingSettings().flat()
    assert record.changed == [
        name for name in record.settings if record.settings[name] != defaults[name]
    ]
    assert "lr" in record.changed
    files_left = {path.name for path in folder.iterdir()}
    wanted = {"run.json", "stages", "accuracy.csv", "metrics.jsonl"}
    assert files_left - {"scores"} == wanted  # the state is gone: nothing to go on from

    lines = steps(folder)
    records: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        records.setdefault(f"{line['stage']}/{line['part']}", []).append(line)
        assert math.isfinite(line["loss"])
        assert math.isfinite(line["grad_norm"])
        for name in terms(line):
            assert math.isfinite(line[name])
            assert line[f"n_{name}"] > 0 or line[name] == 0
    for key, records_of_phase in records.items():
        assert [line["step"] for line in records_of_phase] == list(
            range(1, len(records_of_phase) + 1)
        ), key
    known_terms = {
        key: (len(records_of_phase), terms(records_of_phase[0]))
        for key, records_of_phase in records.items()
    }
    assert known_terms == expected_phases(method)
    penalties = {"ewc": "ewc", "olora": "orthogonal", "pecl": "memreg"}
    if method in penalties:
        has_penalty = [penalties[method] in line for line in lines]
        assert has_penalty == [line["stage"] == "2-fomc" for line in lines]
        last = lines[-1]
        total_loss = last["task"] + last[penalties[method]] + last.get("unlearn", 0.0)
        assert last["loss"] == pytest.approx(total_loss)
        assert last[penalties[method]] > 0
    adapters = [p.parent for p in folder.glob("stages/*/*/adapter_config.json")]
    assert {f"{p.parent.name}/{p.name}" for p in adapters} == set(records)
    spent = {key for key in record.seconds if not key.endswith("/answers")}
    assert spent == set(records)

    table = pd.read_csv(folder / "accuracy.csv", index_col="after")
    matrix = outcome.record.accuracy
    assert [*table] == list(TASKS)
    np.testing.assert_allclose(table.to_numpy(), np.array(matrix, dtype=float))
    assert None not in matrix[-1]
    opens_alike(folder, tiny_base)


def test_probes_are_logged_of_correction_and_of_distilled_replay(runs):
    probes_by_phase: dict[str, list[dict[str, Any]]] = {}
    for line in probes(runs("spark").folder):
        key = f"{line['stage']}/{line['part']}"
        probes_by_phase.setdefault(key, []).append(line)
    readings = {
        key: [line["step"] for line in of_phase]
        for key, of_phase in probes_by_phase.items()
    }
    # Corrections have two steps, the learning of the second task four.
    assert readings == {
        "1-yelp/priv": [0, 1, 2],
        "2-fomc/task": [0, 1, 2, 3, 4],
        "2-fomc/priv": [0, 1, 2],
    }
    for key, of_phase in probes_by_phase.items():
        counts = [
            {name: line[name] for name in line if name.startswith("n_")}
            for line in of_phase
        ]
        assert counts == counts[:1] * len(counts), key
    assert all(0 < line["outside"] < 1 for line in probes_by_phase["2-fomc/task"])
    for key in ("1-yelp/priv", "2-fomc/priv"):
        first, *_, last = probes_by_phase[key]
        assert first["anchor"] == pytest.approx(0, abs=1e-6)
        assert last["pii_nll"] > first["pii_nll"]
    assert not probes(runs("er").folder)


def opens_alike(folder: Path, base: Path) -> None:
    """Adapters open in the audit as in stock PEFT, and each phase changes something."""
    stages = series(str(folder))
    assert [stage.name for stage in stages] == sorted(
        path.name for path in folder.glob("stages/*")
    )
    ids = torch.arange(5, 29)[None]
    model = AutoModelForCausalLM.from_pretrained(base).eval()
    with torch.no_grad():
        plain = model(input_ids=ids).logits
    paths = sorted(p.parent for p in folder.glob("stages/*/*/adapter_config.json"))
    stock: Any = None
    seen = {}
    for number, path in enumerate(paths):
        if stock is None:
            stock = PeftModel.from_pretrained(model, path, adapter_name="0")
        else:
            stock.load_adapter(path, adapter_name=str(number))
            stock.set_adapter(str(number))
        stock.eval()
        with torch.no_grad():
            seen[path] = stock(input_ids=ids).logits
    for earlier, later in zip(
        [plain, *seen.values()], [*seen.values(), plain], strict=True
    ):
        assert (earlier - later).abs().max() > 1e-4  # each phase changes something

    # Beside it lies what it was trained on, by which another base is refused.
    beside = json.loads((paths[-1] / "trained_on.json").read_text())
    assert beside["base_sha256"] == open_checkpoint(str(base)).weights_sha256

    last = next(iter([*stages.values()][-1].values()))
    first = next(iter(stages)) / "task"
    for source, path in ((str(folder), last), (f"{folder}@1:task", first)):
        loaded = open_checkpoint(source, device="cpu")
        assert loaded.base == base.name
        with torch.no_grad():
            logits = loaded.model(input_ids=ids).logits
        torch.testing.assert_close(logits, seen[path], atol=1e-5, rtol=1e-5)
    assert last == paths[-1 if len(paths) == len(stages) else -2]


# --- variants -------------------------------------------------------------------------


def test_checkpointing_and_bfloat16_run(runs, tiny_base, data, tmp_path):
    plain = steps(runs("spark").folder)
    saving = trained(
        "spark", tiny_base, data, tmp_path / "a", gradient_checkpointing=True
    )
    for step, plain_step in zip(steps(saving.folder), plain, strict=True):
        assert math.isclose(
            step["loss"], plain_step["loss"], rel_tol=1e-6, abs_tol=1e-9
        )
    coarse = steps(
        trained("seqft", tiny_base, data, tmp_path / "b", dtype="bfloat16").folder
    )
    assert all(math.isfinite(line["loss"]) for line in coarse)
    assert 0 < abs(coarse[0]["loss"] - plain[0]["loss"]) < 0.1


def test_a_numbered_order_keeps_the_tasks_that_are_there(tiny_base, tmp_path):
    # Names are compared without case; the data's own are kept.
    data = write_stream(tmp_path / "d.jsonl", tasks=("Yelp", "other", "FOMC"))
    outcome = trained(
        "seqft", tiny_base, data, tmp_path / "r", "eval_rows=2", order="1"
    )
    assert outcome.record.tasks == ["FOMC", "Yelp"]
    missing = [name for name in ORDERS["1"] if name not in ("fomc", "yelp")]
    not_in_data, not_in_order = outcome.record.notes
    assert not_in_data.startswith("order 1: ")
    assert not_in_data.endswith(f": {', '.join(missing)}")
    assert not_in_order.endswith(": other")
    stages = sorted(path.name for path in (tmp_path / "r" / "stages").iterdir())
    assert stages == ["1-FOMC", "2-Yelp"]


def test_data_of_one_task_needs_no_order(tiny_base, tmp_path):
    data = write_stream(tmp_path / "d.jsonl", tasks=("mine",), train=2, test=1)
    outcome = trained("seqft", tiny_base, data, tmp_path / "r", "epochs=1", order="")
    assert outcome.record.tasks == ["mine"]


# --- a run that cannot be -------------------------------------------------------------


@pytest.fixture
def refused(tiny_base, data, tmp_path, capsys):
    """``refused(option=value)``: exit code and the one line of a run that fails."""

    def attempt(*flags: str, **changed: Any) -> tuple[int, str]:
        arguments = {
            "method": "spark",
            "base": tiny_base,
            "data": data,
            "order": ",".join(TASKS),
            "output": tmp_path / "run",
            "device": "cpu",
        } | changed
        line = ["run", "--quiet", *flags]
        for name, value in arguments.items():
            line += [f"--{name}", str(value)]
        capsys.readouterr()
        code = run(line)
        out, err = capsys.readouterr()
        assert out == ""
        error_lines = [
            x for x in err.splitlines() if x.startswith("spark-train: error: ")
        ]
        assert len(error_lines) == 1, err
        assert "Traceback" not in err
        assert err.splitlines()[-1] == error_lines[0]
        return code, error_lines[0].removeprefix("spark-train: error: ")

    return attempt


def test_data_that_cannot_be_trained_on_is_refused(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    held = write_stream(tmp_path / "held.jsonl", train=0)
    other_data = write_stream(tmp_path / "other.jsonl", tasks=("mine",))
    for flags, changed, message in (
        ((), {"data": tmp_path / "nowhere.jsonl"}, "nowhere.jsonl"),
        ((), {"data": tmp_path / "empty"}, f"{tmp_path / 'empty'}: "),
        ((), {"data": held}, "train"),
        (
            (),
            {"data": other_data, "order": 1},
            ": mine",
        ),
        ((), {"order": "yelp,yelp"}, "order"),
        ((), {"order": ""}, ": fomc, yelp"),
        ((), {"order": "yelp,mine"}, "'mine'"),
        (("--set", "max_length=4"), {}, "max_length 4 "),
    ):
        code, error_lines = refused(*flags, **changed)
        assert code == 2
        assert message in error_lines
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_loss_that_is_not_finite_stops_the_run(refused, tmp_path):
    # The first step moves the weights so far that the second one's loss overflows.
    settings = ("lr=1e30", "epochs=1", "batch_size=4")
    code, error_lines = refused("--set", *settings, method="seqft")
    assert code == 2
    assert error_lines.startswith("1-yelp/task: ")
    assert " 2 of 2" in error_lines
