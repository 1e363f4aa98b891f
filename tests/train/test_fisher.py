"""Importance of weights against one gradient an example, taken plainly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plain_training import adapted, logp_of, make_rows, make_stream, same

from spark_train.distributed import Processes
from spark_train.phases.fisher import fisher, relative

ROWS = make_rows(a=6, b=5)


def plain(model: Any, rows: Any, *, full: bool = False) -> dict[str, torch.Tensor]:
    """Mean of squared gradients of log p(response | prompt)."""
    weights = {n: w for n, w in model.named_parameters() if w.requires_grad}
    total = {name: torch.zeros_like(w) for name, w in weights.items()}
    for row in rows:
        logp = logp_of(model, row)
        value = sum(
            logp[t - 1, int(row.ids[t])]
            for t in range(1, len(row))
            if full or row.response[t]
        )
        for name, g in zip(
            weights, torch.autograd.grad(value, list(weights.values())), strict=True
        ):
            total[name] += g**2 / len(rows)
    return total


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_mean_of_squared_gradients(
    make_model: Callable[..., Any], kind: str, full: bool
) -> None:
    scope = ["loss.scope=full"] if full else []
    model = adapted(make_model, kind)
    stream = make_stream(model, ROWS, *scope)
    model.train()  # importance is that of the model without dropout
    found = fisher(stream, 1)
    assert model.training
    model.eval()
    same(found, plain(model, ROWS["b"], full=full))
    assert all(weight.grad is None for weight in stream.student.trainable.values())


def test_some_rows_stand_for_all(make_model: Callable[..., Any]) -> None:
    model = adapted(make_model)
    stream = make_stream(model, ROWS)
    rows = stream.drawn(0, ROWS["a"], 3, purpose="fisher")
    assert len({row.id for row in rows}) == 3
    same(fisher(stream, 0, rows=3), plain(model, rows))
    same(fisher(stream, 0, rows=99), plain(model, ROWS["a"]))


def test_processes_share_the_rows(
    make_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = adapted(make_model)
    parts: list[torch.Tensor] = []
    monkeypatch.setattr(Processes, "sum", lambda self, t: parts.append(t.clone()) or t)
    for rank in (0, 1):
        fisher(make_stream(model, ROWS, processes=Processes(rank, 2)), 0)
    whole = plain(model, ROWS["a"])
    found = torch.cat([value.reshape(-1) for value in whole.values()]) * 6
    torch.testing.assert_close(parts[0] + parts[1], found, rtol=1e-6, atol=1e-12)


def test_relative_importance_has_mean_1() -> None:
    found = relative({"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([[5.0, 7.0]])})
    assert found["a"].tolist() == [0.25, 0.75]
    assert found["b"].tolist() == [[1.25, 1.75]]
    assert relative({"a": torch.zeros(2)})["a"].tolist() == [0, 0]
