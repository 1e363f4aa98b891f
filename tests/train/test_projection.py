"""GEM's projection against SciPy's general solvers and the conditions of an optimum."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import lsq_linear, minimize

from spark_train.losses.projection import dual


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
def test_the_nearest_gradient_that_hurts_no_task(tasks: int, seed: int) -> None:
    rng = np.random.default_rng([tasks, seed])
    others, own = rng.normal(size=(tasks, 7)), rng.normal(size=7)
    found = project(others, own)
    np.testing.assert_allclose(found, nearest(others, own), atol=1e-6)
    assert (others @ found >= -1e-9).all()


@pytest.mark.parametrize("tasks", [1, 2, 5])
@pytest.mark.parametrize("margin", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_margin_bounds_the_dual_from_below(
    tasks: int, margin: float, seed: int
) -> None:
    # min |G'v + g|^2 / 2 over v >= margin, as the authors' quadprog call.
    rng = np.random.default_rng([tasks, seed])
    others, own = rng.normal(size=(tasks, 9)), rng.normal(size=9)
    table = np.vstack([others, own])
    v = dual(table @ table.T, margin=margin)
    wanted = lsq_linear(others.T, -own, bounds=(margin, np.inf), tol=1e-14).x
    np.testing.assert_allclose(v, wanted, atol=1e-6)
    # Karush, Kuhn and Tucker: at the bound the slope is upwards, elsewhere 0.
    slope = others @ (own + others.T @ v)
    assert (v >= margin - 1e-12).all()
    assert (slope >= -1e-8).all()
    assert np.abs(slope * (v - margin)).max() < 1e-7


def test_one_constraint_by_hand() -> None:
    own, other = np.array([1.0, -1.0]), np.array([[0.0, 2.0]])
    # <g, g_1> = -2, |g_1|^2 = 4: v = 1/2 takes away what points against it.
    np.testing.assert_allclose(project(other, own), [1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(project(other, own, margin=0.5), [1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(project(other, own, margin=0.75), [1.0, 0.5], atol=1e-12)
    np.testing.assert_allclose(project(other, -own), -own, atol=1e-12)


def degenerate(kind: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    others, own = rng.normal(size=(4, 8)), rng.normal(size=8)
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
        others, own = rng.normal(size=(5, 2)), rng.normal(size=2)
    return others, own


@pytest.mark.parametrize(
    "kind",
    ["duplicate", "zero", "opposite", "dependent", "sizes", "more than dimensions"],
)
def test_degenerate_gradients(kind: str) -> None:
    others, own = degenerate(kind)
    found = project(others, own)
    sizes = np.linalg.norm(others, axis=1, keepdims=True)
    unit = others / np.where(sizes > 0, sizes, 1.0)
    np.testing.assert_allclose(found, nearest(unit, own), atol=1e-6)
    assert (unit @ found >= -1e-6).all()
    # Nothing nearer: what was taken away is no larger than it must be.
    assert own @ found == pytest.approx(found @ found, abs=1e-6)


def test_gradients_of_0_change_nothing() -> None:
    own = np.array([1.0, 2.0])
    np.testing.assert_array_equal(project(np.zeros((2, 2)), own, margin=0.5), own)
    assert (dual(np.zeros((3, 3)), margin=0.5) == 0.5).all()
    found = project(np.array([[1.0, 0.0]]), np.zeros(2))
    np.testing.assert_allclose(found, 0.0, atol=1e-12)
