"""The phases of each method, and the settings that it reads."""

from typing import Any

import pytest
import torch
from plain_training import adapted, make_rows, make_stream, weights_of

from spark_train import training_request as request
from spark_train.loop import Phase, run_phase
from spark_train.privacy import PRIVACY
from spark_train.stream import Stream
from spark_train.training_methods import METHODS

ROWS = make_rows(a=7, b=6, c=5)
FEW = ("epochs=2", "batch_size=4", "lr=0.01")
CORRECTED = ("er-ptpc", "spark")
REPLAYING = ("er", "er-ptpc", "sd-replay", "spark")
ALONE = ("seqft", "ewc", "gem", "olora", "pecl")
ALL = (*ALONE, *REPLAYING)


@pytest.fixture(scope="module")
def plan():
    model = adapted()

    def make(method: str, *assignments: str) -> list[Phase]:
        stream = make_stream(model, ROWS, *FEW, *assignments)
        return METHODS[method].phases(stream)

    return make


def test_every_option_is_offered_by_the_command():
    assert set(request.DP) == {request.NO_PRIVACY, *PRIVACY}


@pytest.mark.parametrize("method", ALL)
def test_each_method_has_its_phases(plan, method):
    # Half of a batch of 4 is replayed from the second task on.
    new = (4, 2, 2) if method in REPLAYING else (4, 4, 4)
    wanted = []
    for k, task in enumerate("abc"):
        steps = 2 * -(-len(ROWS[task]) // new[k])
        wanted.append((f"{k + 1}-{task}", "task", steps, 0.01, True))
        if method in CORRECTED:
            wanted.append((f"{k + 1}-{task}", "priv", 200, 1e-5, False))
    phases_found = plan(method)
    assert [(p.stage, p.part, p.steps, p.lr, p.cosine) for p in phases_found] == wanted
    for phase in phases_found:
        last = phase.learning_rate(phase.steps - 1)
        assert phase.learning_rate(0) == phase.lr
        assert last == phase.lr if phase.part == "priv" else last < phase.lr / 5


def test_without_replay_the_old_anchor_keeps_its_rows(plan):
    for phase, phase_with_replay in zip(
        plan("spark", "replay.enabled=off"), plan("spark"), strict=True
    ):
        for step in range(3) if phase.part == "priv" else ():
            own_choice = phase.choose(step)
            same = phase_with_replay.choose(step)
            assert own_choice.rows == same.rows
            assert phase.terms(own_choice.rows) == phase_with_replay.terms(same.rows)
        assert phase.part == "priv" or set(phase.choose(0).rows) == {"task"}


def run(
    method: str, *assignments: str
) -> dict[str, tuple[dict[str, torch.Tensor], list[dict[str, Any]]]]:
    """Weights after each phase, and the records of its steps."""
    stream: Stream = make_stream(adapted(), ROWS, *FEW, *assignments)
    teachers = {}
    for phase in METHODS[method].phases(stream):
        records: list[dict[str, Any]] = []
        run_phase(
            stream.student, phase, seed=0, after=lambda r, _, to=records: to.append(r)
        )
        teachers[phase.key] = (weights_of(stream.student), records)
    return teachers


def test_spark_without_its_correction_is_sd_replay():
    off = [f"ptpc.{name}=off" for name in ("ul", "dkl", "anchor", "old_anchor")]
    spark = run("spark", *off, "ptpc.steps=2")
    plain = run("sd-replay")
    assert list(plain) == ["1-a/task", "2-b/task", "3-c/task"]
    for key, (weights, records) in plain.items():
        assert spark[key][1] == records
        assert all(torch.equal(spark[key][0][name], w) for name, w in weights.items())


def test_the_teacher_of_replay_is_the_corrected_model():
    # theta_{k-1}^priv: the first step's student is the teacher itself.
    phases_run = run("spark", "ptpc.steps=3", "ptpc.lr=0.01")
    for key in ("2-b/task", "3-c/task"):
        assert phases_run[key][1][0]["replay_kl"] == pytest.approx(0, abs=1e-10)
        assert phases_run[key][1][-1]["replay_kl"] > 1e-4
    for key in ("1-a/priv", "2-b/priv", "3-c/priv"):
        assert phases_run[key][1][0]["anchor"] == pytest.approx(0, abs=1e-10)
        assert phases_run[key][1][-1]["anchor"] > 1e-5


def test_mtl_learns_every_row_once_an_epoch_tasks_mixed(plan):
    (phase,) = plan("mtl")
    assert (phase.stage, phase.part, phase.steps) == ("1-all", "task", 10)
    assert phase.tasks == ("a", "b", "c")
    epochs = []
    for epoch in (0, 1):
        steps = [phase.choose(5 * epoch + step).rows["task"] for step in range(5)]
        assert [len(rows) for rows in steps] == [4] * 4 + [2]
        epochs.append([row.id for rows in steps for row in rows])
        wanted = [row.id for rows in ROWS.values() for row in rows]
        assert sorted(epochs[-1]) == sorted(wanted)
        assert sum(len({row.task for row in rows}) > 1 for rows in steps) >= 3
    assert epochs[0] != epochs[1]
