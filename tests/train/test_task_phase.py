"""Learning a task: which rows come when, and what their loss is."""

from collections import Counter
from typing import Any

import pytest
from plain_training import (
    Seen,
    adapted,
    make_rows,
    make_stream,
    one_step,
    response_mean,
    same,
)

from spark_audit.errors import InputError
from spark_train.loop import Phase, Step
from spark_train.task_phase import Rehearsal, learning_phase

ROWS = make_rows(a=40, b=37, c=50)


@pytest.fixture(scope="module")
def phase():
    """The phase of learning task k, with or without replay."""
    model = adapted()

    def make(k: int, *assignments: str, replay: bool = True) -> Phase:
        stream = make_stream(model, ROWS, *assignments)
        return learning_phase(
            stream, k, rehearsal=Rehearsal(stream) if replay else None
        )

    return make


def epochs(phase: Phase, count: int) -> list[list[Step]]:
    steps = [phase.choose(step) for step in range(phase.steps)]
    assert len(steps) % count == 0
    size = len(steps) // count
    return [steps[i : i + size] for i in range(0, len(steps), size)]


def names(steps: list[Step], role: str) -> list[str]:
    return [row.id for step in steps for row in step.rows.get(role, ())]


def sizes(steps: list[Step], role: str) -> list[int]:
    return [len(step.rows.get(role, ())) for step in steps]


def test_half_of_a_later_batch_is_replayed(phase):
    k = 2
    task = "c"
    batches = epochs(phase(k), 3)
    lists = []
    for steps in batches:
        rest = len(ROWS[task]) % 16
        full = len(ROWS[task]) // 16
        assert sizes(steps, "task") == sizes(steps, "replay") == [16] * full + [rest]
        assert sorted(names(steps, "task")) == sorted(row.id for row in ROWS[task])
        lists.append(names(steps, "replay"))
        by_task = Counter(name[0] for name in lists[-1])
        assert set(by_task) == set("abc"[:k])
        assert max(by_task.values()) - min(by_task.values()) <= 1
    # One list, drawn once and reshuffled.
    assert len(lists[0]) == len(ROWS[task])
    assert sorted(lists[0]) == sorted(lists[1]) == sorted(lists[2])
    assert lists[0] != lists[1] != lists[2]


def test_a_batch_of_one_row_has_no_room_for_replay(phase):
    with pytest.raises(InputError, match="batch_size"):
        phase(1, "batch_size=1")
    assert phase(0, "batch_size=1").steps == 3 * 40
    assert phase(1, "batch_size=1", replay=False).steps == 3 * 37
    assert phase(1, "batch_size=1", "replay.enabled=off").steps == 3 * 37


def test_memory_bounds_what_is_replayed(phase):
    memory = 10
    (steps,) = epochs(phase(2, "epochs=1", f"replay.memory={memory}"), 1)
    counts = Counter(names(steps, "replay"))
    assert len(counts) == memory
    assert sum(counts.values()) == 50
    assert max(counts.values()) - min(counts.values()) <= 1


def compare(k: int, *assignments: str, tokens: int = 0) -> Seen:
    """The first step of experience replay beside its plain loss."""
    rows = make_rows(a=5, b=6, c=4)
    stream = make_stream(adapted(), rows, "batch_size=6", *assignments, tokens=tokens)
    s = stream.settings
    full = s.loss.scope == "full"

    def mean(some: Any) -> Any:
        return response_mean(stream.student.model, some, full=full)

    def plain(step: Step) -> dict[str, Any]:
        losses = {"task": mean(step.rows["task"])}
        loss = losses["task"]
        if k:
            losses["replay"] = mean(step.rows["replay"])
            loss = loss + s.replay.lambda_ * losses["replay"]
        return {**losses, "loss": loss}

    phase = learning_phase(stream, k, rehearsal=Rehearsal(stream))
    seen = one_step(stream, phase, plain=plain)
    for name, value in seen.plain.items():
        assert seen.record[name] == pytest.approx(value.item(), rel=1e-6)
    same(seen.gradients, seen.plain_gradients)
    return seen


@pytest.mark.parametrize(
    "assignments",
    [("replay.lambda=0.4",), ("loss.scope=full", "replay.lambda=0")],
)
def test_experience_replay_adds_two_means(assignments):
    seen = compare(2, *assignments)
    if "loss.scope=full" in assignments:
        for role in ("task", "replay"):
            n_covered_tokens = sum(len(row) - 1 for row in seen.chosen.rows[role])
            assert seen.record[f"n_{role}"] == n_covered_tokens
