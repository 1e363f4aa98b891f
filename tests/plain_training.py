"""Rows, small models and plain float64 computations that tests of training share.

The references read one row at a time, without padding, through the model's own
``model(...).logits``, and spell out each equation position by position.
"""

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_models import make_model
from torch import Tensor

from spark_train.loop import Phase, Step, run_phase
from spark_train.lora import add_lora
from spark_train.stream import Stream
from spark_train.student import Student
from spark_train.training_rows import TrainRow
from spark_train.training_settings import TrainingSettings, parse

BOS = 1
EOS = 2


def make_row(
    task: str, number: int, *, pii: float = 0.25, size: int | None = None
) -> TrainRow:
    """BOS, 4 to 12 random tokens, EOS; the last tokens are the response."""
    rng = np.random.default_rng([sum(map(ord, task)), number])
    length = size or int(rng.integers(6, 14))
    low = 3 + 10 * (ord(task[0]) % 3)  # tasks share some of their words
    ids = rng.integers(low, low + 30, length).astype(np.int32)
    ids[0], ids[-1] = BOS, EOS
    response = np.arange(length) >= length - 3
    inner = (np.arange(length) > 0) & (np.arange(length) < length - 1)
    return TrainRow(
        id=f"{task}-{number}",
        task=task,
        ids=ids,
        response=response,
        pii=inner & (rng.random(length) < pii),
        fixed=inner & (rng.random(length) < 0.3),
        special=(0, length - 1),
    )


def make_rows(pii: float = 0.25, **counts: int) -> dict[str, list[TrainRow]]:
    return {
        task: [make_row(task, i, pii=pii) for i in range(count)]
        for task, count in counts.items()
    }


def adapted(kind: str = "llama", *, sure: float = 1.0, **config: Any) -> Any:
    """A float64 model with an adapter that already says something.

    ``sure``: its head's weights are that many times as large.
    """
    inner = make_model(kind, **{"initializer_range": 0.4, **config})
    with torch.no_grad():
        inner.get_output_embeddings().weight *= sure
    model = add_lora(inner, r=4, alpha=8).double().eval()
    moved(model, seed=11)
    return model


def moved(model: Any, *, seed: int, size: float = 0.1) -> None:
    """Change the trained weights at random."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                noise = torch.randn(weight.shape, generator=generator)
                weight += size * noise.to(weight.dtype)


def make_stream(
    model: Any,
    rows: Mapping[str, Sequence[TrainRow]],
    *assignments: str,
    tokens: int = 0,
    **options: Any,
) -> Stream:
    settings: TrainingSettings = parse(list(assignments))
    # A method carries what it knows from task to task in the run folder.
    options.setdefault("folder", Path(tempfile.mkdtemp()))
    return Stream(Student(model, tokens=tokens), rows, settings, **options)


def weights_of(student: Student) -> dict[str, Tensor]:
    """A copy of the trained weights."""
    return {name: w.detach().clone() for name, w in student.trainable.items()}


def logits_of(model: Any, row: TrainRow) -> Tensor:
    """Shape (T, V); position t predicts token t + 1."""
    ids = torch.tensor(row.ids[None].astype(np.int64))
    found: Tensor = model(input_ids=ids).logits[0]
    return found.double()


def logp_of(model: Any, row: TrainRow) -> Tensor:
    return logits_of(model, row).log_softmax(-1)


def frozen_logits(model: Any, rows: Sequence[TrainRow]) -> dict[str, Tensor]:
    with torch.no_grad():
        return {row.id: logits_of(model, row) for row in rows}


def response_mean(model: Any, rows: Sequence[TrainRow], *, full: bool = False) -> Any:
    """Mean NLL of the responses' tokens, or of all."""
    values = []
    for row in rows:
        logp = logp_of(model, row)
        for t in range(1, len(row)):
            if full or row.response[t]:
                values.append(-logp[t - 1, int(row.ids[t])])
    return torch.stack(values).mean()


def plain_score(
    row: TrainRow,
    logits: Tensor,
    texts: Mapping[str, Sequence[TrainRow]],
    *,
    alpha: float,
) -> list[float]:
    """The sensitivity score of each token, from the teacher's logits (T, V)."""
    counts = [
        Counter(
            int(token)
            for one in rows
            for t, token in enumerate(one.ids)
            if t not in one.special
        )
        for rows in texts.values()
    ]
    z = logits.numpy()
    found = [0.0]
    for t in range(1, len(row)):
        token = int(row.ids[t])
        first = math.log(np.exp(z[t - 1]).sum()) - z[t - 1][token]
        p = [count[token] / max(count.values()) for count in counts]
        d = sum(share >= 0.2 for share in p)
        second = sum(share * math.log(len(p) / (1 + d)) for share in p) / len(p)
        score = 1 - math.exp(-(alpha * first + (1 - alpha) * second))
        score = 0.0 if row.fixed[t] else score
        found.append(1.0 if row.pii[t] else min(max(score, 0.0), 1.0))
    return found


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Sum of p log(p / q), where p > 0."""
    some = p > 0
    return (p[some] * (p[some] / q[some]).log()).sum()


class Seen:
    """What a step of a phase did: record, gradients, and the reference's."""

    record: dict[str, Any]
    chosen: Step
    gradients: dict[str, Tensor]
    plain: dict[str, Any]
    plain_gradients: dict[str, Tensor]


def one_step(
    stream: Stream,
    phase: Phase,
    *,
    at: int = 0,
    after_start: Callable[[], None] = lambda: None,
    plain: Callable[[Step], dict[str, Any]] | None = None,
) -> Seen:
    """Step ``at`` of a phase, taken first; ``plain`` is asked at the same weights.

    ``plain(step)`` gives terms by name, the whole ``loss`` among them.
    """
    student, seen = stream.student, Seen()

    def start() -> None:
        phase.start()
        after_start()

    def choose(step: int) -> Step:
        seen.chosen = phase.choose(at)
        return seen.chosen

    def gradients(step: int) -> None:
        seen.gradients = {
            name: torch.zeros_like(w) if w.grad is None else w.grad.clone()
            for name, w in student.trainable.items()
        }
        if plain is not None:
            seen.plain = plain(seen.chosen)
            found = torch.autograd.grad(
                seen.plain["loss"], list(student.trainable.values()), allow_unused=True
            )
            seen.plain_gradients = {
                name: torch.zeros_like(seen.gradients[name]) if g is None else g
                for name, g in zip(student.trainable, found, strict=True)
            }

    hooks = {"start": start, "choose": choose, "gradients": gradients}
    once = replace(phase, steps=1, **hooks)
    run_phase(
        student, once, seed=0, after=lambda record, _: setattr(seen, "record", record)
    )
    return seen


def same(
    found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, within: float = 1e-8
) -> None:
    """Gradients agree within a share of the largest, and say something."""
    assert found.keys() == wanted.keys()
    size = max(float(w.abs().max()) for w in wanted.values())
    assert size > 1e-6
    for name, gradient in wanted.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=1e2 * within, atol=within * size, msg=name
        )
