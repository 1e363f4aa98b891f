"""What a checkpoint was trained with is what its run recorded until then."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_reports import checkpoint, manifest_facts

from spark_audit.checkpoints.training_facts import training_of
from spark_audit.errors import OutputError
from spark_audit.files import fact_of
from spark_audit.report.assemble import assemble
from spark_audit.report.disclosure.shared import disclosed

SETTINGS = {"epochs": 2, "batch_size": 4, "lr": 0.02, "ptpc.ul": False, "loss": "full"}
PHASES = {
    "1-yelp/task": (30, {"task": 1.5, "optimizer": 0.25}),
    "1-yelp/priv": (3, {"correction": 2.0}),
    "1-yelp/answers": (0, {"answers": 0.5}),
    "2-fomc/task": (240, {"task": 3.0, "replay": 1.0}),
    "2-fomc/priv": (5, {"correction": 4.0, "probe": 64.0}),
    "2-fomc/answers": (0, {"answers": 0.125}),
}
"""Phase -> its steps, and seconds by kind of work."""


def line(key: str, step: int) -> dict[str, Any]:
    """A step: its loss is its number; a term without positions has the mean 0."""
    stage, part = key.split("/")
    n_task = step % 3
    facts = {"stage": stage, "part": part, "step": step, "loss": float(step)}
    facts |= {"lr": 0.1, "grad_norm": 9.0, "n_task": n_task}
    facts |= {"task": step / 8 if n_task else 0.0, "rows_replayed": 1}
    return facts | ({"rows": 3} if part == "priv" else {})


def written_run(folder: Path, **columns: Any) -> Path:
    lines = [line(key, k + 1) for key, (n, _) in PHASES.items() for k in range(n)]
    probe = lines[-1] | {"probe": True, "loss": 1e6}
    texts = [json.dumps(facts) for facts in [*lines, probe]]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("\n".join([*texts, '{"step"']))
    record = {
        "kind": "spark-train-run",
        "status": "running",
        "method": "spark",
        "dp": "none",
        "clock": "processor",
        "tasks": ["yelp", "fomc"],
        "settings": SETTINGS,
        "changed": ["lr", "ptpc.ul"],
        "seconds": {key: seconds for key, (_, seconds) in PHASES.items()},
    }
    (folder / "run.json").write_text(json.dumps(record | columns))
    return folder


@pytest.fixture
def run(tmp_path):
    return written_run(tmp_path / "run")


def at(run: Path, key: str) -> Any:
    return training_of(run / "stages" / key)


def test_facts_are_those_of_the_record(run):
    facts = at(run, "2-fomc/priv")
    assert (facts.method, facts.privacy, facts.clock) == ("spark", "", "processor")
    assert facts.settings == SETTINGS
    assert facts.settings["ptpc.ul"] is False
    assert facts.changed == ["lr", "ptpc.ul"]
    assert facts.tasks == ["yelp", "fomc"]
    assert facts.part("task").seconds == {"task": 4.5, "optimizer": 0.25, "replay": 1}
    assert facts.part("priv").seconds == {"correction": 6.0}
    assert facts.part("answers").seconds == {"answers": 0.625}
    steps = {part.part: part.steps for part in facts.parts}
    assert steps == {"task": 270, "priv": 8, "answers": 0}


def test_losses_are_means_over_the_last_steps_and_terms_over_their_positions(run):
    task, correction, _ = at(run, "2-fomc/priv").parts
    last = range(240 - 24 + 1, 241)
    assert (task.last_steps, correction.last_steps) == (24, 5)
    assert task.loss == pytest.approx(sum(last) / 24)
    with_positions = [(step % 3, step / 8) for step in last if step % 3]
    n_positions = sum(n for n, _ in with_positions)
    mean = sum(n * value for n, value in with_positions) / n_positions
    assert task.terms == {"task": pytest.approx(mean)}
    # The probe at the end is no step.
    assert correction.loss == pytest.approx((1 + 2 + 3 + 4 + 5) / 5)
    assert (task.rows, correction.rows) == (24 * 4, 5 * 3)


@pytest.mark.parametrize(
    ("key", "steps", "answers", "tasks"),
    [
        ("1-yelp/task", (30, 0), 0, 1),
        ("1-yelp/priv", (30, 3), 0.5, 1),
        ("2-fomc/task", (270, 3), 0.5, 2),
        ("2-fomc/priv", (270, 8), 0.625, 2),
    ],
)
def test_a_checkpoint_has_the_phases_up_to_its_own(key, steps, answers, tasks, run):
    facts = at(run, key)
    assert (facts.part("task").steps, facts.part("priv").steps) == steps
    assert sum(facts.part("answers").seconds.values()) == answers
    assert len(facts.tasks) == tasks


def test_rows_of_few_steps_are_not_counted_once_for_each_epoch(run):
    # 30 steps in two epochs of batches of 4: 60 rows, of which 10 steps read 40.
    assert at(run, "1-yelp/task").part("task").rows == 40
    written_run(run, settings=SETTINGS | {"epochs": 10})
    assert at(run, "1-yelp/task").part("task").rows == 12


def test_a_run_that_learns_all_tasks_at_once_has_learned_all(tmp_path):
    run = written_run(tmp_path, method="mtl", seconds={"1-all/task": {}}, dp="dpsgd")
    facts = at(run, "1-all/task")
    assert (facts.tasks, facts.privacy) == (["yelp", "fomc"], "dpsgd")
    assert facts.part("task").steps == 0


def test_what_an_older_or_foreign_record_does_not_say_is_missing(run):
    (run / "metrics.jsonl").unlink()
    record = {"kind": "spark-train-run", "method": "er", "settings": {"a": [1], "b": 2}}
    (run / "run.json").write_text(json.dumps(record))
    facts = at(run, "1-yelp/task")
    assert (facts.changed, facts.settings) == (None, {"b": 2})
    assert facts.part("task").loss is None

    for content in ({"kind": "other"}, {"kind": "spark-train-run"}):
        (run / "run.json").write_text(json.dumps(content))
        assert at(run, "1-yelp/task") is None
    (run / "run.json").unlink()
    assert at(run, "1-yelp/task") is None
    assert training_of(run) is None


def test_losses_that_were_changed_are_refused_by_the_name_of_their_file(run):
    metrics = run / "metrics.jsonl"
    written_run(run, status="complete", files={metrics.name: fact_of(metrics)})
    assert at(run, "1-yelp/task").part("task").steps == 30
    metrics.write_text(metrics.read_text().replace("9.0", "8.0"))
    with pytest.raises(OutputError) as caught:
        at(run, "1-yelp/task")
    assert caught.value.where == str(metrics)


def trainer_run(folder: Path, **columns: Any) -> Path:
    """The record of 100 steps: a loss every 4 steps, and an evaluation between."""
    history: list[dict[str, Any]] = [
        {"step": step, "loss": step / 8, "epoch": step / 25} for step in range(4, 97, 4)
    ]
    history += [{"step": 96, "eval_loss": 1e6}, {"step": 100, "loss": 20.0}]
    history += [{"step": 100, "train_runtime": 12.5, "train_loss": 1e6}]
    state = {"global_step": 100, "epoch": 4.0, "num_train_epochs": 4}
    state |= {"train_batch_size": 8, "log_history": history}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps(state | columns))
    return folder


def test_a_trainers_record_has_steps_and_the_mean_of_its_last_losses(tmp_path):
    facts = training_of(trainer_run(tmp_path / "checkpoint-100"))
    assert facts is not None
    assert facts.settings == {"epochs": 4, "batch_size": 8}
    assert facts.changed == ["epochs"]
    (learning,) = facts.parts
    assert (learning.steps, learning.seconds) == (100, {"task": 12.5})
    # A tenth of the steps are in the last three lines: of steps 92, 96 and 100.
    assert learning.loss == pytest.approx((92 / 8 + 96 / 8 + 20.0) / 3)
    assert (learning.last_steps, learning.rows) == (12, 12 * 8)


def test_lines_of_more_steps_weigh_more_and_an_epoch_bounds_the_rows(tmp_path):
    history = [{"step": 90, "loss": 1.0}, {"step": 95, "loss": 2.0}]
    history += [{"step": 100, "loss": 5.0}]
    columns = {"log_history": history, "epoch": 50.0}
    facts = training_of(trainer_run(tmp_path / "a", **columns))
    assert facts.parts[0].loss == pytest.approx((5 * 2.0 + 5 * 5.0) / 10)
    assert facts.parts[0].rows == 2 * 8

    columns = {"log_history": [{"step": 90, "loss": 1.0}, {"step": 97, "loss": 4.0}]}
    facts = training_of(trainer_run(tmp_path / "b", **columns))
    assert facts.parts[0].loss == pytest.approx((90 * 1.0 + 7 * 4.0) / 97)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1]",
        b"{}",
        b'{"global_step": "x", "log_history": []}',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_a_file_that_is_no_record_of_a_trainer_says_nothing(content, tmp_path):
    (tmp_path / "trainer_state.json").write_bytes(content)
    assert training_of(tmp_path) is None


def test_a_trainers_record_without_losses_or_with_others_says_what_it_has(tmp_path):
    for history in (
        [],
        [1, None],
        [{"loss": "x", "step": 3}],
        [{"loss": float("nan")}],
    ):
        facts = training_of(trainer_run(tmp_path, log_history=history))
        assert (facts.parts[0].steps, facts.parts[0].loss) == (100, None)


HOSTILE: list[Any] = [None, True, -1, 10**400, 1e308, float("nan"), "x", [1], {"a": 1}]
"""Values that no record of ours has in place of a number."""


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_a_record_of_anything_says_less_and_never_fails(value, tmp_path):
    """What is read must also pass the checks of a report, which refuses such values."""
    line = {"stage": "1-yelp", "part": "task", "step": value, "loss": value}
    line |= {"task": value, "n_task": value, "rows": value}
    lines = [json.dumps(line), json.dumps(line | {"loss": 1.5, "step": 2})]
    settings = dict.fromkeys(("epochs", "batch_size", "checkpoint", "note"), value)
    run = written_run(
        tmp_path / "run",
        seconds={"1-yelp/task": value, "2-fomc/task": {"task": value}},
        settings=settings,
        changed=[*settings, value],
        tasks=["yelp", value],
        clock=value,
    )
    (run / "metrics.jsonl").write_text("\n".join([*lines, "[" * 10**5]))
    state = trainer_run(
        tmp_path / "trainer",
        global_step=5,
        train_batch_size=value,
        epoch=value,
        log_history=[value, {"step": value, "loss": value}, {"train_runtime": value}],
    )
    facts = [at(run, "2-fomc/task"), at(run, "1-yelp/task"), training_of(state)]
    assert {facts.method for facts in facts[:2]} == {"spark"}
    checkpoints = [
        checkpoint(f"run-{number}", training=one) for number, one in enumerate(facts)
    ]
    report = assemble(
        {},
        status="complete",
        command=[],
        manifest=manifest_facts(),
        checkpoints=checkpoints,
    )
    assert len(disclosed(report).tables["training"]) == 3
