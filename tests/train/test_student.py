"""The student's streamed head, its gradients and its frozen copies are plain ones."""

from typing import Any

import pytest
import torch
from plain_training import adapted, logits_of, make_rows, moved, same
from tiny_models import make_model
from torch import Tensor

from spark_train.lora import add_lora
from spark_train.losses import token_nll
from spark_train.student import Student, targets
from spark_train.training_rows import collate

ROWS = make_rows(a=5)["a"]
KINDS = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "gpt2": {},
    "gemma2": {"head_dim": 8, "final_logit_softcapping": 2.0},
}
ROUNDED = {"gemma2": 5e-6}
"""Error of a model in float64 whose norms compute in float32 all the same."""


def asked(kind: str) -> Tensor:
    """Some mask over predicted tokens of ROWS."""
    batch = collate(ROWS)
    return batch.attention if kind == "all" else batch.response | batch.pii


def plain(model: Any, mask: Tensor) -> Tensor:
    """Logits that predict the masked tokens, row by row without padding."""
    found = []
    for row, wanted in zip(ROWS, mask, strict=True):
        logits = logits_of(model, row)
        found += [logits[t - 1] for t in range(1, len(row)) if wanted[t]]
    return torch.stack(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["all", "some"])
def test_logits_are_the_models_own(kind, which):
    model = adapted(kind, **KINDS[kind])
    student = Student(model)
    batch = collate(ROWS)
    mask = asked(which)
    assert not student.note  # the head is streamed
    with torch.no_grad():
        hidden, wanted = student.hidden(batch, mask), plain(model, mask)
        logits = student.logits(hidden)
        ids = torch.arange(5) * 7 + torch.arange(len(hidden))[:, None]
        some = student.logits_at(hidden, ids)
    assert hidden.shape == (len(wanted), 32)
    error = ROUNDED.get(kind, 1e-7)
    torch.testing.assert_close(logits, wanted, rtol=error, atol=error)
    torch.testing.assert_close(some, wanted.gather(1, ids), rtol=error, atol=error)
    wrong = torch.roll(wanted, 1, 0)
    assert (logits - wrong).abs().max() > 0.1


@pytest.mark.parametrize(("known", "why"), [(False, "Unheard"), (True, "differ")])
def test_a_class_that_does_more_gives_its_own_logits(known, why, monkeypatch):
    inner = make_model(initializer_range=0.4)
    forward = inner.forward

    def scaled(*args: Any, **options: Any) -> Any:
        found = forward(*args, **options)
        found.logits = 2 * found.logits
        return found

    monkeypatch.setattr(inner, "forward", scaled)
    if not known:
        inner.__class__ = type("Unheard", (type(inner),), {})
    model = add_lora(inner, r=4).double()
    moved(model, seed=1)
    student = Student(model)
    assert why in student.note
    mask = asked("some")
    hidden, wanted = student.hidden(collate(ROWS), mask), plain(model, mask)
    assert hidden.shape[1] == 300
    torch.testing.assert_close(student.logits(hidden), wanted)
    ids = torch.arange(len(hidden))[:, None] + torch.arange(3)
    torch.testing.assert_close(student.logits_at(hidden, ids), wanted.gather(1, ids))
    check_total(student, model, rows=3)


def check_total(
    student: Student, model: Any, *, rows: int | None, error: float = 1e-8
) -> None:
    """Value and gradient of a weighted NLL against plain autograd."""
    batch = collate(ROWS)
    mask = asked("some")
    ids = targets(batch, mask)
    weight = torch.linspace(1, 2, len(ids), dtype=torch.float64)
    hidden = student.hidden(batch, mask)
    seen: list[int] = []

    def value(part: Tensor, at: slice) -> Tensor:
        seen.append(len(part))
        return weight[at] * token_nll(student.logits(part), ids[at])

    total = student.sum_in_chunks(hidden, value, rows=rows)
    (3 * total).backward()
    found = {name: w.grad for name, w in student.trainable.items()}
    assert sum(seen) == len(ids)
    if rows:
        assert max(seen) == min(rows, len(ids))

    logp = plain(model, mask).log_softmax(-1)
    wanted = -sum(weight[i] * logp[i, ids[i]] for i in range(len(ids)))
    torch.testing.assert_close(total, wanted, rtol=10 * error, atol=10 * error)
    gradients = torch.autograd.grad(3 * wanted, list(student.trainable.values()))
    same(
        {name: w for name, w in found.items() if w is not None},
        dict(zip(student.trainable, gradients, strict=True)),
        within=error,
    )


@pytest.mark.parametrize("rows", [3, None])
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_sum_in_chunks_is_plain_autograd(kind, rows):
    model = adapted(kind, **KINDS[kind])
    error = ROUNDED.get(kind, 1e-8)
    check_total(Student(model), model, rows=rows, error=error)


def adapter_weights(model: Any, name: str) -> dict[str, Tensor]:
    return {k: w for k, w in model.named_parameters() if f".{name}." in k}


def test_a_teacher_stays_where_the_student_was():
    model = adapted("gpt2")
    student = Student(model)
    batch = collate(ROWS)
    mask = asked("all")

    def logits() -> Tensor:
        return student.logits(student.hidden(batch, mask))

    with torch.no_grad():
        before = plain(model, mask)
    student.freeze("old")
    moved(model, seed=2)
    with torch.no_grad():
        now = plain(model, mask)
    assert (now - before).abs().max() > 0.1
    model.train()
    with student.teacher("old"):
        assert not model.training  # GPT-2's dropout is off
        assert not torch.is_grad_enabled()
        taught = logits()
        torch.testing.assert_close(taught, before)
    assert model.training
    assert not taught.requires_grad
    model.eval()
    torch.testing.assert_close(logits(), now)
    with torch.no_grad():
        torch.testing.assert_close(plain(model, mask), now)
    # Exactly the student's adapter is trained, and no gradient reaches the teacher.
    wanting = {name for name, w in model.named_parameters() if w.requires_grad}
    assert wanting == set(student.trainable) == set(adapter_weights(model, "default"))
    (logits().sum() + (logits() - taught).square().sum()).backward()
    assert all(w.grad is not None for w in student.trainable.values())
    old = adapter_weights(model, "old")
    assert len(old) == len(student.trainable)
    assert all(w.grad is None for w in old.values())

    student.freeze("old")  # again: the copy of today
    with student.teacher("old"):
        torch.testing.assert_close(logits(), now)


def test_a_student_in_bfloat16_is_near_its_model():
    model = add_lora(make_model("llama").to(torch.bfloat16), r=4).eval()
    moved(model, seed=1, size=0.02)
    student = Student(model)
    mask = asked("all")
    assert not student.note
    assert {w.dtype for w in student.trainable.values()} == {torch.float32}
    hidden = student.hidden(collate(ROWS), mask)
    logits = student.logits(hidden)
    assert hidden.dtype == torch.bfloat16
    assert logits.dtype == torch.float32
    with torch.no_grad():
        wanted = plain(model, mask)
    torch.testing.assert_close(logits.double(), wanted, rtol=0.05, atol=0.1)
    ids = targets(collate(ROWS), mask)
    total = student.sum_in_chunks(
        hidden, lambda p, at: token_nll(student.logits(p), ids[at])
    )
    assert total.dtype == torch.float32
    nll = -wanted.log_softmax(-1)[torch.arange(len(ids)), ids].sum()
    assert total.item() == pytest.approx(float(nll), rel=0.01)


def test_a_model_without_adapter_trains_itself():
    model = make_model(initializer_range=0.4).double()
    student = Student(model)
    assert "head is trained" in student.note
    assert "lm_head.weight" in student.trainable
    check_total(student, model, rows=2)
