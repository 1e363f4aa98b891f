"""The loop learns, repeats to the bit, and trains exactly the tokens it says."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import plain_training as plain
import pytest
import torch
from tiny_models import make_model

from spark_audit.data.examples import Example
from spark_audit.errors import InputError
from spark_train.correction import correction_phase
from spark_train.distilled_replay import Distillation
from spark_train.fine_tuning import fit, n_covered_tokens, response_loss
from spark_train.loop import Phase, PhaseState, Step, Term, run_phase
from spark_train.student import Student
from spark_train.task_phase import Rehearsal, learning_phase
from spark_train.training_rows import encode_rows

ROWS = [
    Example(f"r{i}", "t", f"{a} said it was {b}. Label:", f" {c}", "train", f"r{i}")
    for i, (a, b, c) in enumerate(
        [
            ("She", "good", "positive"),
            ("Maria", "fine", "positive"),
            ("John", "cold", "negative"),
            ("He", "raised", "hawkish"),
            ("Smith", "read", "neutral"),
        ]
    )
]


@pytest.fixture(scope="module")
def rows(tiny_tokenizer):
    return encode_rows(ROWS, tiny_tokenizer)


def test_the_same_seed_gives_the_same_bytes(rows):
    # GPT-2 has dropout on by default, so that the model draws random numbers too.
    def run(seed: int) -> list[torch.Tensor]:
        model = make_model("gpt2")
        torch.rand(seed + 3)  # the global generator stands anywhere
        order = np.tile(np.arange(5), 2)
        fit(Student(model), rows, order, name="x", lr=1e-3, batch_size=2, seed=seed)
        return list(model.state_dict().values())

    assert all(map(torch.equal, run(0), run(0)))
    assert not all(map(torch.equal, run(0), run(1)))


# --- phases ---------------------------------------------------------------------------


def run_through(
    stream: Any,
    phase: Phase,
    *,
    seed: int = 3,
    state: PhaseState | None = None,
    clip: float = 1.0,
    stop: int | None = None,
    with_probes: bool = False,
) -> tuple[list[dict[str, Any]], PhaseState | None]:
    """Records of a phase and, where it is stopped, the state to go on from.

    ``with_probes``: records of its probe, too, in their order.
    """
    records: list[dict[str, Any]] = []
    kept: list[PhaseState] = []

    class Stop(Exception):
        pass

    def after(record: dict[str, Any], snapshot: Callable[[], PhaseState]) -> None:
        records.append(record)
        if record["step"] == stop:
            kept.append(snapshot())
            raise Stop

    try:
        run_phase(
            stream.student,
            phase,
            seed=seed,
            clip=clip,
            state=state,
            after=after,
            after_probe=records.append if with_probes else None,
        )
    except Stop:
        return records, kept[0]
    return records, None


def state_of(stream: Any) -> dict[str, torch.Tensor]:
    return plain.weights_of(stream.student)


@pytest.mark.parametrize("stop", [1, 5])
def test_a_phase_goes_on_to_the_same_bits_even_with_dropout(stop):
    def fresh() -> tuple[Any, Phase]:
        torch.manual_seed(0)
        stream = plain.make_stream(
            plain.adapted("gpt2"),
            plain.make_rows(a=6, b=6),
            "batch_size=4",
            "epochs=2",
            "lr=1e-2",
        )
        return stream, learning_phase(stream, 1, rehearsal=Rehearsal(stream))

    stream, phase = fresh()
    whole, _ = run_through(stream, phase)
    wanted = state_of(stream)
    stream, phase = fresh()
    first, state = run_through(stream, phase, stop=stop)
    assert state is not None
    stream, phase = fresh()  # as another process would begin
    torch.rand(7)
    rest, _ = run_through(stream, phase, state=state)
    assert [*first, *rest] == whole
    assert all(torch.equal(wanted[name], w) for name, w in state_of(stream).items())


def test_gradients_are_clipped_and_the_norm_before_is_told(monkeypatch):
    seen: list[float] = []
    step = torch.optim.AdamW.step

    def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        weights = [w for group in self.param_groups for w in group["params"]]
        seen.append(math.sqrt(sum(float((w.grad**2).sum()) for w in weights)))
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    for clip in (1e-3, 1e9):
        stream = plain.make_stream(
            plain.adapted(), plain.make_rows(a=4), "batch_size=4", "epochs=1"
        )
        (record,), _ = run_through(stream, learning_phase(stream, 0), clip=clip)
        assert record["grad_norm"] > 0.01
        assert seen[-1] == pytest.approx(min(record["grad_norm"], clip), rel=1e-4)


def test_a_step_without_positions_still_is_a_step():
    """Moments decay where no term has a position, as they do in several processes."""

    def weights(grads: bool) -> dict[str, torch.Tensor]:
        stream = plain.make_stream(plain.adapted(), plain.make_rows(a=4))
        rows = list(stream.rows["a"])

        def choose(at: int) -> Step:
            some = rows if at == 0 else []
            return Step({"task": some})

        def terms(rows: Any) -> dict[str, Term]:
            return {"task": Term(n_covered_tokens(rows["task"], "response"))}

        def loss(role: str, some: Any) -> Any:
            return response_loss(stream.student, some, scope="response", name="task")

        def zeros(at: int) -> None:
            if grads and at:
                for weight in stream.student.trainable.values():
                    weight.grad = torch.zeros_like(weight)

        phase = Phase("1-a", "task", 4, 1e-2, choose, terms, loss, gradients=zeros)
        run_through(stream, phase)
        return state_of(stream)

    given = weights(True)
    none = weights(False)
    assert all(torch.equal(given[name], none[name]) for name in given)


def test_a_gradient_that_is_not_finite_stops_before_the_step():
    stream = plain.make_stream(plain.adapted(), plain.make_rows(a=4))

    def spoil(at: int) -> None:
        next(iter(stream.student.trainable.values())).grad.fill_(float("inf"))

    phase = replace(learning_phase(stream, 0), gradients=spoil)
    before = state_of(stream)
    with pytest.raises(InputError, match=r"\b1 of\b"):
        run_through(stream, phase)
    assert all(torch.equal(before[name], w) for name, w in state_of(stream).items())


def spark_phase(part: str) -> tuple[Any, Phase]:
    """A phase of SPARK in the second task, of a model with dropout."""
    torch.manual_seed(0)
    stream = plain.make_stream(
        plain.adapted("gpt2"),
        plain.make_rows(a=6, b=6),
        "batch_size=4",
        "epochs=2",
        "lr=1e-2",
        "ptpc.steps=6",
        "ptpc.lr=1e-2",
        "sensitivity.alpha=0.12",
        "replay.top_k=7",
    )
    if part == "priv":
        return stream, correction_phase(stream, 1)
    return stream, learning_phase(stream, 1, rehearsal=Distillation(stream, 1))


@pytest.mark.parametrize("part", ["task", "priv"])
def test_a_probe_changes_no_step_and_no_weight(part):
    stream, phase = spark_phase(part)
    without, _ = run_through(stream, phase)
    wanted = state_of(stream)

    stream, phase = spark_phase(part)
    records, _ = run_through(stream, phase, with_probes=True)
    assert [record for record in records if "probe" not in record] == without
    assert all(torch.equal(wanted[name], w) for name, w in state_of(stream).items())

    readings = [record["step"] for record in records if "probe" in record]
    assert readings == sorted({phase.steps * part // 4 for part in range(5)})
    assert records[0]["step"] == 0
    assert records[-1]["step"] == phase.steps


@pytest.mark.parametrize("stop", [1, 3, 6])
def test_a_resumed_phase_reads_each_probe_once(stop):
    stream, phase = spark_phase("priv")
    whole, _ = run_through(stream, phase, with_probes=True)
    stream, phase = spark_phase("priv")
    first, state = run_through(stream, phase, stop=stop, with_probes=True)
    stream, phase = spark_phase("priv")
    rest, _ = run_through(stream, phase, state=state, with_probes=True)
    assert [*first, *rest] == whole
