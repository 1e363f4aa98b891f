"""The losses against the paper's equations, written out in float64 loops."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spark_train.losses import (
    demoted_kl,
    kl,
    outside_mass,
    support_kl,
    token_nll,
    top_k,
    unlikelihood,
)

# --- The paper's equations, one position at a time -----------------------------------


def softmax(scores: np.ndarray, temperature: float = 1.0) -> list[float]:
    scaled = [float(score) / temperature for score in scores]
    weights = [math.exp(score - max(scaled)) for score in scaled]
    return [weight / math.fsum(weights) for weight in weights]


def divergence(p: list[float], q: list[float]) -> float:
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def paper_nll(scores: np.ndarray, token: int) -> float:
    return -math.log(softmax(scores)[token])


def paper_unlikelihood(scores: np.ndarray, token: int) -> float:
    return -math.log(1.0 - softmax(scores)[token])


def paper_demoted_kl(teacher: np.ndarray, scores: np.ndarray, token: int) -> float:
    p = softmax(teacher)
    mass_left = 1.0 - p[token]
    demoted = [0.0 if j == token else p[j] / mass_left for j in range(len(p))]
    return divergence(demoted, softmax(scores))


def paper_support_kl(
    teacher: np.ndarray, scores: np.ndarray, k: int, temperature: float
) -> float:
    likeliest = sorted(range(len(teacher)), key=lambda j: -teacher[j])[:k]
    p = softmax(teacher, temperature)
    q = softmax(scores, temperature)
    p_kept = [p[j] / math.fsum(p[i] for i in likeliest) for j in likeliest]
    q_kept = [q[j] / math.fsum(q[i] for i in likeliest) for j in likeliest]
    return divergence(p_kept, q_kept)


# --- Inputs --------------------------------------------------------------------------

Drawn = tuple[np.ndarray, np.ndarray, np.ndarray]


def draw(seed: int, n: int, v: int, scale: float = 3.0) -> Drawn:
    """Teacher and student logits, and observed tokens."""
    rng = np.random.default_rng(seed)
    teacher, student = rng.normal(0, scale, (2, n, v))
    return teacher, student, rng.integers(0, v, n)


def to_torch(*arrays: np.ndarray) -> list[Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def student_support_kl(
    teacher: Tensor, student: Tensor, k: int, temperature: float
) -> Tensor:
    support, logp = top_k(teacher, k=k, temperature=temperature)
    return support_kl(logp, student.gather(-1, support), temperature=temperature)


shapes = {
    "seed": st.integers(0, 10**6),
    "n": st.integers(0, 5),
    "v": st.integers(2, 30),
}
few_examples = settings(max_examples=40, deadline=None)


def beside_the_paper(t: Tensor, s: Tensor, i: Tensor) -> list[tuple[Tensor, Any]]:
    """Each loss of logits and tokens, and the paper's of the same numbers."""
    teacher = t.double().numpy()
    student = s.double().numpy()
    ids = i.numpy()
    rows = range(len(ids))
    return [
        (token_nll(s, i), [paper_nll(student[r], ids[r]) for r in rows]),
        (unlikelihood(s, i), [paper_unlikelihood(student[r], ids[r]) for r in rows]),
        (
            kl(t, s),
            [divergence(softmax(teacher[r]), softmax(student[r])) for r in rows],
        ),
        (
            demoted_kl(t, s, i),
            [paper_demoted_kl(teacher[r], student[r], ids[r]) for r in rows],
        ),
    ]


# --- Values --------------------------------------------------------------------------


@few_examples
@given(**shapes)
def test_every_loss_is_the_papers_in_float64(seed, n, v):
    t, s, i = to_torch(*draw(seed, n, v))
    for got, wanted in beside_the_paper(t, s, i):
        assert got.shape == (n,)
        assert got.dtype == torch.float64
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-7, atol=1e-11)


@few_examples
@given(
    **shapes, k=st.integers(1, 40), temperature=st.sampled_from([0.5, 1.0, 2.0, 5.0])
)
def test_the_support_losses_are_the_papers_in_float64(seed, n, v, k, temperature):
    teacher, student, _ = draw(seed, n, v)
    t, s = to_torch(teacher, student)
    support, logp = top_k(t, k=k, temperature=temperature)
    assert support.shape == logp.shape == (n, min(k, v))
    assert support.dtype == torch.int64
    for r in range(n):
        likeliest = np.argsort(-teacher[r])[:k]
        assert support[r].tolist() == likeliest.tolist()
        teacher_support = softmax(teacher[r][likeliest], temperature)
        np.testing.assert_allclose(logp[r].exp().numpy(), teacher_support, rtol=1e-12)
    np.testing.assert_allclose(
        student_support_kl(t, s, k, temperature).numpy(),
        [paper_support_kl(teacher[r], student[r], k, temperature) for r in range(n)],
        rtol=1e-9,
        atol=1e-12,
    )


@few_examples
@given(**shapes, k=st.integers(1, 40), scale=st.sampled_from([3.0, 30.0]))
def test_the_mass_outside_the_support_is_what_the_support_leaves(seed, n, v, k, scale):
    teacher, student, _ = draw(seed, n, v, scale)
    t, s = to_torch(teacher, student)
    support, _ = top_k(t, k=k, temperature=2.0)
    mass = outside_mass(s, support).numpy()
    for r in range(n):
        p = softmax(student[r])
        kept = set(np.argsort(-teacher[r])[:k].tolist())
        wanted = math.fsum(p[j] for j in range(v) if j not in kept)
        # Relative: 1 minus the mass inside would lose the smallest to rounding.
        assert mass[r] == pytest.approx(wanted, rel=1e-9, abs=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_logits_are_computed_in_float32(dtype):
    teacher, student, ids = draw(1, 6, 400)
    student[np.arange(3), ids[:3]] += 14.0  # P near 1, where bfloat16 is coarse
    t, s = (x.to(dtype) for x in to_torch(teacher, student))
    i = torch.from_numpy(ids)
    teacher = t.double().numpy()
    student = s.double().numpy()
    rows = range(6)
    support, logp = top_k(t, k=64, temperature=2.0)
    # bfloat16 ties at the edge of the support: any 64 of equal value will do.
    p, q = (
        [softmax(x[r][support[r].numpy()], 2.0) for r in rows]
        for x in (teacher, student)
    )
    expected = [
        *beside_the_paper(t, s, i),
        (
            support_kl(logp, s.gather(-1, support), temperature=2.0),
            [divergence(p[r], q[r]) for r in rows],
        ),
    ]
    assert logp.dtype == torch.float32
    for got, wanted in expected:
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got.numpy(), wanted, rtol=2e-6, atol=1e-6)


# --- The edges -----------------------------------------------------------------------


@pytest.mark.parametrize("gap", [-60.0, -20.0, 0.0, 10.0, 17.0, 25.0, 60.0, 300.0])
@pytest.mark.parametrize("v", [2, 50])
@pytest.mark.parametrize(
    ("dtype", "rounding"), [(torch.float32, 5e-6), (torch.float64, 1e-13)]
)
def test_unlikelihood_is_exact_from_p_tiny_to_p_one(gap, v, dtype, rounding):
    # One token `gap` above v - 1 equal others: 1 / (1 - P) = 1 + exp(gap) / (v - 1).
    ratio = gap - math.log(v - 1)
    wanted = math.log1p(math.exp(ratio)) if ratio < 30 else ratio
    logits = torch.full((1, v), 1.5, dtype=dtype)
    logits[0, 1] += gap
    logits.requires_grad_()
    ids = torch.tensor([1])
    loss = unlikelihood(logits, ids)
    assert math.isclose(loss.item(), wanted, rel_tol=rounding)
    loss.sum().backward()
    # Of -log(1 - P): P for the token itself, -P p_j / (1 - P) for another.
    p = 1 / (1 + math.exp(-ratio))
    slope = np.full(v, -p / (v - 1))
    slope[1] = p
    np.testing.assert_allclose(logits.grad[0].numpy(), slope, rtol=rounding)


def test_a_teacher_probability_of_zero_adds_nothing():
    inf = math.inf
    # Zero by -inf (student finite, student -inf too) and by underflow.
    t = torch.tensor([[0.5, -inf, 1.0, -inf, -900.0]], requires_grad=True)
    s = torch.tensor([[0.2, 3.0, -1.0, -inf, 2.0]], requires_grad=True)
    loss = kl(t, s)
    p = softmax(np.array([0.5, 1.0]))
    q = softmax(np.array([0.2, 3.0, -1.0, 2.0]))
    wanted = p[0] * math.log(p[0] / q[0]) + p[1] * math.log(p[1] / q[2])
    assert math.isclose(loss.item(), wanted, rel_tol=1e-6)
    loss.sum().backward()
    slope = [q[0] - p[0], q[1], q[2] - p[1], 0.0, q[3]]
    np.testing.assert_allclose(s.grad[0].numpy(), slope, rtol=1e-5, atol=1e-7)
    assert torch.isfinite(t.grad).all()


# --- Gradients -----------------------------------------------------------------------

LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "token_nll": lambda t, s, i: token_nll(s, i),
    "unlikelihood": lambda t, s, i: unlikelihood(s, i),
    "kl": lambda t, s, i: kl(t, s),
    "demoted_kl": demoted_kl,
    "support_kl": lambda t, s, i: student_support_kl(t, s, 5, 2.0),
}


@pytest.mark.parametrize("v", [2, 11])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_finite_differences(name, v):
    t, s, i = to_torch(*draw(3, 4, v))
    s.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: LOSSES[name](t, s, i), (s,))
