"""EWC: the penalty of a step against a sum over tasks, taken plainly."""

from typing import Any

import pytest
import torch
from plain_training import (
    adapted,
    logp_of,
    make_rows,
    make_stream,
    moved,
    one_step,
    response_mean,
    same,
    weights_of,
)

from spark_train.loop import run_phase
from spark_train.training_methods import METHODS

ROWS = make_rows(a=5, b=6, c=4, d=3)
FEW = ("epochs=1", "batch_size=3", "lr=0.01")


def fisher(stream: Any, rows: Any) -> dict[str, torch.Tensor]:
    """Mean of squared gradients of log p(response | prompt), row by row."""
    weights = stream.student.trainable
    total = {name: torch.zeros_like(w) for name, w in weights.items()}
    for row in rows:
        logp = logp_of(stream.student.model, row)
        places = [t for t in range(1, len(row)) if row.response[t]]
        value = torch.stack([logp[t - 1, int(row.ids[t])] for t in places]).sum()
        found = torch.autograd.grad(value, list(weights.values()))
        for name, gradient in zip(weights, found, strict=True):
            total[name] += gradient**2 / len(rows)
    return total


def test_a_step_pays_for_drift_from_every_earlier_task():
    stream = make_stream(adapted(), ROWS, *FEW, "ewc.lambda=30")
    settings = stream.settings.ewc
    phases = METHODS["ewc"].phases(stream)
    tasks: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []
    for k, phase in enumerate(phases):

        def plain(step: Any) -> dict[str, Any]:
            task = response_mean(stream.student.model, step.rows["task"])
            drift = sum(
                (importance[n] * (w - at[n]) ** 2).sum()
                for importance, at in tasks
                for n, w in stream.student.trainable.items()
            )
            ewc = 0.5 * settings.lambda_ * drift
            return {"task": task, "ewc": ewc, "loss": task + ewc}

        before = weights_of(stream.student)
        seen = one_step(
            stream,
            phase,
            plain=plain,
            after_start=lambda k=k: moved(stream.student.model, seed=k, size=0.05),
        )
        for name in ("task", "ewc", "loss") if k else ("task", "loss"):
            assert seen.record[name] == pytest.approx(seen.plain[name].item(), rel=1e-6)
        same(seen.gradients, seen.plain_gradients)
        if k:
            assert seen.record["ewc"] > 1e-3 * seen.record["task"]  # it says something
        else:
            assert "ewc" not in seen.record
        stream.student.model.load_state_dict(before, strict=False)
        run_phase(stream.student, phase, seed=0)
        tasks.append((fisher(stream, ROWS["abcd"[k]]), weights_of(stream.student)))
