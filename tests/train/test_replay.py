"""Phase 1 asks of replayed rows what the replay equations say."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from plain_training import (
    Seen,
    adapted,
    frozen_logits,
    kl,
    logits_of,
    make_rows,
    make_stream,
    moved,
    one_step,
    plain_score,
    response_mean,
    same,
)

from spark_train.distilled_replay import Distillation
from spark_train.loop import probe_record
from spark_train.stream import Stream
from spark_train.task_phase import learning_phase
from spark_train.training_rows import TrainRow

ROWS = make_rows(a=9, b=8, c=5)
USUAL = ("sensitivity.alpha=0.12", "replay.top_k=7", "batch_size=8")
# With this alpha the NLL decides: scores lie on both sides of 0.6.


def plain_replay(
    stream: Stream,
    k: int,
    rows: Sequence[TrainRow],
    teacher: dict[str, torch.Tensor],
) -> dict[str, Any]:
    """Eqs. replay_ce, replay_kl and replay, position by position."""
    settings = stream.settings
    texts = {task: stream.rows[task] for task in stream.tasks[: k + 1]}
    temperature = settings.replay.temperature
    ce: list[Any] = []
    divergence: list[Any] = []
    factor = temperature**2 if settings.replay.t_squared else 1.0
    for row in rows:
        scores = plain_score(
            row, teacher[row.id], texts, alpha=settings.sensitivity.alpha
        )
        student = logits_of(stream.student.model, row)
        for t in range(1, len(row)):
            if scores[t] > settings.sensitivity.tau:
                was = teacher[row.id][t - 1]
                top = sorted(range(len(was)), key=lambda v: -float(was[v]))
                top = top[: settings.replay.top_k]
                p = (was[top] / temperature).exp()
                q = (student[t - 1][top] / temperature).exp()
                divergence.append(kl(p / p.sum(), q / q.sum()))
            elif row.response[t]:
                z = student[t - 1]
                ce.append(z.exp().sum().log() - z[int(row.ids[t])])
    zero = torch.zeros((), dtype=torch.float64)
    sum_ce = sum(ce, zero)
    sum_kl = sum(divergence, zero)
    mean_ce = sum_ce / max(len(ce), 1)
    mean_kl = sum_kl / max(len(divergence), 1)
    forms = {
        "count": (sum_ce + factor * sum_kl) / max(len(ce) + len(divergence), 1),
        "mean": mean_ce + factor * mean_kl,
    }
    return {
        "ce": float(sum_ce.detach()) / max(len(ce), 1),
        "kl": float(sum_kl.detach()) / max(len(divergence), 1),
        "sizes": (len(ce), len(divergence)),
        "replay": forms[settings.replay.weighting],
    }


def compare(
    *assignments: str,
    k: int = 2,
    move: bool = True,
    tokens: int = 0,
    kind: str = "llama",
) -> tuple[Seen, dict[str, Any]]:
    """The first step of learning the last task, beside the equations."""
    stream = make_stream(adapted(kind), ROWS, *USUAL, *assignments, tokens=tokens)
    model = stream.student.model
    all_rows = [row for rows in ROWS.values() for row in rows]
    teacher = frozen_logits(model, all_rows)
    terms_found: dict[str, Any] = {}

    def plain(step: Any) -> dict[str, Any]:
        with torch.enable_grad():
            terms_found.update(plain_replay(stream, k, step.rows["replay"], teacher))
            task = response_mean(model, step.rows["task"])
            return {
                "loss": task + stream.settings.replay.lambda_ * terms_found["replay"]
            }

    seen = one_step(
        stream,
        learning_phase(stream, k, rehearsal=Distillation(stream, k)),
        after_start=lambda: moved(model, seed=3) if move else None,
        plain=plain,
    )
    return seen, terms_found


def number(value: torch.Tensor) -> float:
    return float(value.detach())


def agree(seen: Seen, found: dict[str, Any]) -> None:
    record = seen.record
    assert (record["n_replay_ce"], record["n_replay_kl"]) == found["sizes"]
    # abs: a KL of exactly 0 rounds on either side of it.
    close = {"rel": 1e-5, "abs": 1e-7}
    assert record["replay_ce"] == pytest.approx(found["ce"], **close)
    assert record["replay_kl"] == pytest.approx(found["kl"], **close)
    assert record["loss"] == pytest.approx(seen.plain["loss"].item(), **close)
    same(seen.gradients, seen.plain_gradients)


@pytest.mark.parametrize(
    "assignments",
    [
        (),
        ("replay.temperature=3.5", "replay.t_squared=on", "replay.lambda=0.3"),
        ("replay.top_k=1000", "sensitivity.alpha=0.5", "sensitivity.tau=0.45"),
        ("replay.weighting=mean", "replay.t_squared=on"),
    ],
)
def test_loss_and_gradient_are_the_equations(assignments):
    seen, terms_found = compare(*assignments, tokens=0 if assignments else 60)
    assert min(terms_found["sizes"]) > 0
    assert terms_found["kl"] > 1e-3
    agree(seen, terms_found)


def test_a_probe_has_the_mass_outside_the_teachers_support():
    """Position by position, of a student that has moved away from its teacher."""
    stream = make_stream(adapted(), ROWS, *USUAL)
    model = stream.student.model
    rows_of_all_tasks = [row for rows in ROWS.values() for row in rows]
    teacher = frozen_logits(model, rows_of_all_tasks)
    phase = learning_phase(stream, 2, rehearsal=Distillation(stream, 2))
    phase.start()
    assert phase.probe is not None
    before = probe_record(stream.student, phase, phase.probe, step=0)
    moved(model, seed=3)
    after = probe_record(stream.student, phase, phase.probe, step=9)

    rows = phase.probe.rows["replay"]
    wanted = plain_replay(stream, 2, rows, teacher)
    texts = {task: stream.rows[task] for task in stream.tasks}
    masses = []
    for row in rows:
        scores = plain_score(row, teacher[row.id], texts, alpha=0.12)
        student = logits_of(model, row).detach().softmax(-1)
        for t in range(1, len(row)):
            if scores[t] > 0.6:
                was = teacher[row.id][t - 1]
                top = sorted(range(len(was)), key=lambda v: -float(was[v]))[:7]
                masses.append(1 - float(student[t - 1][top].sum()))

    assert after["n_outside"] == after["n_replay_kl"] == len(masses) > 0
    assert after["outside"] == pytest.approx(sum(masses) / len(masses), rel=1e-6)
    assert after["replay_ce"] == pytest.approx(wanted["ce"], rel=1e-6)
    assert after["replay_kl"] == pytest.approx(wanted["kl"], rel=1e-6)
    assert after["loss"] == pytest.approx(number(wanted["replay"]), rel=1e-6)
    # Before the first step the student is the teacher.
    assert before["replay_kl"] == pytest.approx(0, abs=1e-10)
    assert before["outside"] != after["outside"]


def test_no_position_at_all_is_a_loss_of_0():
    rows = {
        task: [replace(row, fixed=~row.pii, response=row.pii) for row in rows_of_task]
        for task, rows_of_task in ROWS.items()
    }
    stream = make_stream(adapted(), rows, *USUAL)
    rehearsal = Distillation(stream, 1)
    silent = [replace(r, response=r.pii & False, pii=r.pii & False) for r in rows["a"]]
    silent = [replace(r, fixed=r.fixed | True) for r in silent]
    rehearsal.start(silent, 9)
    terms = rehearsal.terms(silent)
    assert [terms[name].count for name in ("replay_ce", "replay_kl")] == [0, 0]
    assert [number(value) for value in rehearsal.loss(silent).values()] == [0, 0]


def test_the_teacher_is_asked_once_and_does_not_follow_the_student():
    stream = make_stream(adapted(), ROWS, *USUAL)
    rehearsal = Distillation(stream, 1)
    rehearsal.start(ROWS["a"], 9)
    before = {name: number(v) for name, v in rehearsal.loss(ROWS["a"]).items()}
    assert before["replay_kl"] == pytest.approx(0, abs=1e-10)
    moved(stream.student.model, seed=5)
    assert number(rehearsal.loss(ROWS["a"])["replay_kl"]) > 0.01
    rehearsal.start(ROWS["a"], 9)  # anew: now the moved student is the teacher
    assert number(rehearsal.loss(ROWS["a"])["replay_kl"]) == pytest.approx(0, abs=1e-10)


def test_tasks_still_to_come_do_not_tell_in_the_score():
    # N of Score_2 is the number of tasks seen so far.
    def count(rows: dict[str, list[TrainRow]]) -> tuple[int, int]:
        stream = make_stream(adapted(), rows, *USUAL)
        rehearsal = Distillation(stream, 1)
        rehearsal.start(rows["a"], 9)
        terms_found = rehearsal.terms(rows["a"])
        return terms_found["replay_ce"].count, terms_found["replay_kl"].count

    shorter = {task: ROWS[task] for task in "ab"}
    assert count(ROWS) == count(shorter)
    assert math.prod(count(ROWS)) > 0
