"""GEM's projection against SciPy's general solvers and the conditions of an optimum."""

import numpy as np
import pytest
from scipy.optimize import minimize

from spark_train.training_methods.gem import dual


def project(others: np.ndarray, own: np.ndarray, *, margin: float = 0.0) -> np.ndarray:
    table = np.vstack([others, own])
    return own + dual(table @ table.T, margin=margin) @ others


def nearest(others: np.ndarray, own: np.ndarray) -> np.ndarray:
    """The primal problem, as the paper writes it, by a general solver."""
    found = minimize(
        lambda x: 0.5 * ((x - own) ** 2).sum(),
        own,
        jac=lambda x: x - own,
        method="SLSQP",
        constraints={
            "type": "ineq",
            "fun": lambda x: others @ x,
            "jac": lambda x: others,
        },
        options={"maxiter": 500, "ftol": 1e-15},
    )
    # 8: it cannot get any closer, which on some processors is how it ends at ftol.
    assert found.status in (0, 8), found.message
    return np.asarray(found.x)


@pytest.mark.parametrize("tasks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(6))
def test_the_nearest_gradient_that_hurts_no_task_is_found(tasks, seed):
    rng = np.random.default_rng([tasks, seed])
    others = rng.normal(size=(tasks, 7))
    own = rng.normal(size=7)
    found = project(others, own)
    np.testing.assert_allclose(found, nearest(others, own), atol=1e-6)
    assert (others @ found >= -1e-9).all()


def degenerate(kind: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    others = rng.normal(size=(4, 8))
    own = rng.normal(size=8)
    others *= np.where(others @ own > 0, -1.0, 1.0)[:, None]  # all are hurt
    if kind == "duplicate":
        others[1] = others[0]
        others[2] = 1e3 * others[0]
    elif kind == "zero":
        others[2] = 0
    elif kind == "opposite":
        others[1] = -others[0]  # nothing may move along it
    elif kind == "dependent":
        others[3] = others[0] + 0.5 * others[1]
    elif kind == "sizes":
        others *= np.array([1e-6, 1.0, 1e6, 1e-3])[:, None]
    elif kind == "more than dimensions":
        others = rng.normal(size=(5, 2))
        own = rng.normal(size=2)
    return others, own


@pytest.mark.parametrize(
    "kind",
    ["duplicate", "zero", "opposite", "dependent", "sizes", "more than dimensions"],
)
def test_degenerate_gradients_are_projected_to_the_nearest_harmless_one(kind):
    others, own = degenerate(kind)
    found = project(others, own)
    sizes = np.linalg.norm(others, axis=1, keepdims=True)
    unit = others / np.where(sizes > 0, sizes, 1.0)
    np.testing.assert_allclose(found, nearest(unit, own), atol=1e-6)
    assert (unit @ found >= -1e-6).all()
    # Nothing nearer: what was taken away is no larger than it must be.
    assert own @ found == pytest.approx(found @ found, abs=1e-6)
