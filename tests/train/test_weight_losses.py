"""Penalties against the sums that they stand for, weight by weight."""

from __future__ import annotations

import pytest
import torch

from spark_train.losses.weights import Quadratic, overlap

SHAPES = {"a": (3, 2), "b": (4,)}


def random(seed: int, *, power: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) ** power
        for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_one_quadratic_is_the_sum_of_all_tasks(tasks: int) -> None:
    curvatures = [random(k, power=2) for k in range(tasks)]
    if tasks > 1:
        curvatures[0]["b"][:2] = 0
        curvatures[1]["b"][:1] = 0  # no task asks for this weight so far
    places = [random(10 + k) for k in range(tasks)]
    found = Quadratic.of(curvatures[0], places[0])
    for curvature, place in zip(curvatures[1:], places[1:], strict=True):
        found = found.plus(curvature, place)
    for seed in (20, 21):
        weights = random(seed)
        wanted = sum(
            float(f[name].flatten()[j])
            * (float(weights[name].flatten()[j]) - float(at[name].flatten()[j])) ** 2
            for f, at in zip(curvatures, places, strict=True)
            for name in SHAPES
            for j in range(weights[name].numel())
        )
        value = found.value({n: w.requires_grad_() for n, w in weights.items()})
        assert value.item() == pytest.approx(wanted, rel=1e-12)
        value.backward()
        for name, weight in weights.items():
            slope = sum(
                2 * f[name] * (weight.detach() - at[name])
                for f, at in zip(curvatures, places, strict=True)
            )
            torch.testing.assert_close(weight.grad, slope, rtol=1e-10, atol=1e-12)


def test_nothing_cancels_where_weights_hardly_moved() -> None:
    # S theta^2 - 2 M theta + const has no digit left of this in float32.
    at = {"w": torch.full((1000,), 3.0)}
    near = {"w": at["w"] + 1e-4}
    curvature = {"w": torch.full((1000,), 7.0)}
    found = Quadratic.of(curvature, at).plus(curvature, near)
    value = float(found.value({"w": (at["w"] + 0.5e-4)}))
    wanted = sum(
        1000 * 7.0 * (float(at["w"][0] + 0.5e-4) - float(place["w"][0])) ** 2
        for place in (at, near)
    )
    assert value == pytest.approx(wanted, rel=5e-3)
    assert wanted > 0


def test_tasks_in_another_order_are_the_same_penalty() -> None:
    parts = [(random(k, power=2), random(5 + k)) for k in range(3)]
    weights = random(30)
    values = []
    for order in ((0, 1, 2), (2, 0, 1)):
        found = Quadratic.of(*parts[order[0]])
        for k in order[1:]:
            found = found.plus(*parts[k])
        values.append(float(found.value(weights)))
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_overlap_is_the_sum_of_all_entries() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    pairs = [(draw(4, 6), draw(2, 6)), (draw(4, 3), draw(2, 3))]
    wanted = 0.0
    for old, new in pairs:
        for i in range(len(old)):
            for j in range(len(new)):
                wanted += abs(
                    sum(float(old[i, m] * new[j, m]) for m in range(old.shape[1]))
                )
    assert float(overlap(pairs)) == pytest.approx(wanted, rel=1e-12)
    right = torch.eye(6, dtype=torch.float64)
    assert float(overlap([(right[:4], right[4:])])) == 0.0
    assert float(overlap([(right[:4], right[:2])])) == 2.0
