"""GEM: memories, fresh gradients, and what the optimizer is given."""

from typing import Any

import numpy as np
import pytest
import torch
from plain_training import adapted, make_rows, make_stream, moved, response_mean
from scipy.optimize import lsq_linear

from spark_audit.errors import InputError
from spark_train.loop import Phase, flat_gradient, run_phase, set_gradient
from spark_train.stream import Stream
from spark_train.training_methods import METHODS
from spark_train.training_methods.gem import stored_rows

ROWS = make_rows(a=9, b=8, c=7)
FEW = ("epochs=1", "batch_size=4", "lr=0.01", "gem.memory=5")


def plain_gradient(stream: Stream, rows: Any) -> np.ndarray:
    loss = response_mean(stream.student.model, rows)
    weights = list(stream.student.trainable.values())
    found = torch.autograd.grad(loss, weights)
    return np.concatenate([g.reshape(-1).numpy() for g in found])


def made(*assignments: str) -> tuple[Stream, list[Phase]]:
    stream = make_stream(adapted(), ROWS, *FEW, *assignments)
    return stream, METHODS["gem"].phases(stream)


def test_each_task_s_memory_is_the_same_at_all_later_tasks():
    stream, _ = made()
    for k, task in enumerate("abc"):
        rows = stored_rows(stream, k)
        assert len({row.id for row in rows}) == 5
        assert {row.task for row in rows} == {task}
    # Which rows are kept is drawn from the seed, whatever the file's order.
    drawn = {
        tuple(row.id for row in stored_rows(made(seed)[0], 0))
        for seed in ("seed=0", "seed=0", "seed=1", "seed=2")
    }
    assert len(drawn) == 3
    stream, _ = made("gem.memory=100")
    rows = stored_rows(stream, 0)
    assert sorted(row.id for row in rows) == sorted(row.id for row in ROWS["a"])


@pytest.mark.parametrize("margin", ["0", "0.5"])
def test_the_gradient_is_projected_by_fresh_gradients(margin):
    stream, phases = made(f"gem.margin={margin}")
    # Of the first memory's gradient more than the margin is to be undone, and less.
    for seed, share in ((1, 2.0), (2, 0.1)):
        moved(stream.student.model, seed=seed)  # gradients are those of these weights
        memories = [stored_rows(stream, k) for k in range(2)]
        others = np.stack([plain_gradient(stream, rows) for rows in memories])
        rng = np.random.default_rng(seed)
        size = np.linalg.norm(others, axis=1).min() / others.shape[1] ** 0.5
        own = rng.normal(size=others.shape[1]) * 0.01 * size
        own -= share * others[0] + others[1]
        set_gradient(stream.student, torch.from_numpy(own))
        told = phases[2].gradients(0)
        found = flat_gradient(stream.student).numpy()
        v = lsq_linear(others.T, -own, bounds=(float(margin), np.inf), tol=1e-14).x
        assert bool(v.min() < 0.5 + 1e-9) is (share < 0.5)
        np.testing.assert_allclose(found, own + others.T @ v, rtol=1e-5, atol=1e-8)
        assert told == {"violated": int((others @ own < 0).sum())}
        assert (others @ own).min() < -1e-3
        assert (others @ found).min() > -1e-8
        assert all(
            weight.grad is not None for weight in stream.student.trainable.values()
        )


def test_a_gradient_that_hurts_no_task_is_left_as_it_is():
    stream, phases = made()
    memories = [stored_rows(stream, k) for k in range(2)]
    others = np.stack([plain_gradient(stream, rows) for rows in memories])
    own = np.linalg.pinv(others) @ np.ones(2)  # <own, g_k> = 1
    set_gradient(stream.student, torch.from_numpy(own))
    before = flat_gradient(stream.student).clone()
    assert phases[2].gradients(0) == {"violated": 0}
    assert torch.equal(flat_gradient(stream.student), before)
    assert not phases[0].gradients(0)


def test_a_stored_gradient_that_is_not_finite_ends_the_run():
    stream, phases = made()
    stored_tokens = np.concatenate([row.ids for row in stored_rows(stream, 1)])
    own_tokens = np.concatenate([row.ids for row in ROWS["c"]])
    token = int(np.setdiff1d(stored_tokens, own_tokens)[0])
    table = torch.nn.Parameter(
        stream.student.model.get_input_embeddings().weight.detach().clone(),
        requires_grad=False,
    )
    table[token] = torch.nan
    stream.student.model.get_input_embeddings().weight = table

    # The step's own rows are whole: what the loop looks at is finite.
    assert np.isfinite(plain_gradient(stream, ROWS["c"])).all()
    with pytest.raises(InputError) as refused:
        run_phase(stream.student, phases[2], seed=0)
    assert "'b'" in str(refused.value)
    assert refused.value.where == phases[2].key
