"""PeCL: each of its forms, and a step of all of them, against plain computations."""

from typing import Any

import numpy as np
import pytest
import torch
from plain_training import (
    adapted,
    frozen_logits,
    logits_of,
    make_rows,
    make_stream,
    moved,
    one_step,
    plain_score,
    same,
)

from spark_train.loop import run_phase
from spark_train.training_methods import METHODS
from spark_train.training_methods.ewc import fisher

ROWS = make_rows(a=6, b=5, c=4)
FEW = ("epochs=2", "batch_size=3", "lr=0.01")


@pytest.mark.parametrize(
    ("assignment", "tokens"),
    [
        ("pecl.lambda_max=0.5", 0),
        ("pecl.lambda_unlearn=0.3", 1),
        ("loss.scope=full", 0),
    ],
)
def test_a_step_without_noise_is_its_three_terms(assignment, tokens):
    settings = (*FEW, "pecl.noise_scale=0", assignment)
    stream = make_stream(adapted(), ROWS, *settings, tokens=tokens)
    settings, model = stream.settings.pecl, stream.student.model
    full = stream.settings.loss.scope == "full"
    importance: dict[str, torch.Tensor] = {}
    for k, phase in enumerate(METHODS["pecl"].phases(stream)):
        task = "abc"[k]
        before = {n: w.detach().clone() for n, w in stream.student.trainable.items()}
        logits = frozen_logits(model, ROWS[task])
        texts = {name: ROWS[name] for name in "abc"[: k + 1]}
        score = {
            row.id: plain_score(row, logits[row.id], texts, alpha=0.5)
            for row in ROWS[task]
        }

        def plain(
            step: Any, k: int = k, score: Any = score, before: Any = before
        ) -> dict[str, Any]:
            learned = []
            forgotten = []
            for row in step.rows["task"]:
                logp = logits_of(model, row).log_softmax(-1)
                for t in range(1, len(row)):
                    own = logp[t - 1, int(row.ids[t])]
                    if full or row.response[t]:
                        learned.append(-own)
                    if score[row.id][t] > 0.6:
                        forgotten.append(-torch.log1p(-own.exp()))
            found = {
                "task": torch.stack(learned).mean(),
                "unlearn": torch.stack(forgotten).mean(),
            }
            loss = found["task"] + settings.lambda_unlearn * found["unlearn"]
            if k:
                found["memreg"] = 0.01 * sum(
                    (
                        importance[n].clamp(max=settings.lambda_max)
                        * (w - before[n]) ** 2
                    ).sum()
                    for n, w in stream.student.trainable.items()
                )
                loss = loss + found["memreg"]
            return {**found, "loss": loss}

        seen = one_step(
            stream,
            phase,
            plain=plain,
            after_start=lambda k=k: moved(model, seed=k, size=0.05),
        )
        assert ("memreg" in seen.record) is (k > 0)
        for name, value in seen.plain.items():
            assert seen.record[name] == pytest.approx(value.item(), rel=1e-6)
        same(seen.gradients, seen.plain_gradients)
        stream.student.model.load_state_dict(before, strict=False)
        run_phase(stream.student, phase, seed=0)
        found = fisher(stream, k)
        every = torch.cat([value.reshape(-1) for value in found.values()])
        for name, value in found.items():
            old = importance.get(name, torch.zeros_like(value))
            importance[name] = (k * old + value / every.mean()) / (k + 1)


@pytest.mark.parametrize("uniform", ["off", "on"])
def test_noise_of_its_size_is_on_the_embeddings(uniform):
    scale = 0.3
    assignments = (f"pecl.noise_scale={scale}", f"pecl.uniform={uniform}")
    stream = make_stream(adapted(), ROWS, *FEW, *assignments)
    phase = METHODS["pecl"].phases(stream)[0]
    phase.start()
    logits = frozen_logits(stream.student.model, ROWS["a"])
    embedding = stream.student.model.get_input_embeddings()
    seen: list[torch.Tensor] = []
    body = stream.student.model.base_model.model.model.layers[0]
    handle = body.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(
            (args or [kwargs["hidden_states"]])[0]
        ),
        with_kwargs=True,
    )
    rows = sorted(ROWS["a"], key=len)[-1:]
    (row,) = rows
    draws = []
    for seed in range(100):
        torch.manual_seed(seed)
        with torch.no_grad():
            phase.loss("task", rows)
        clean = embedding(torch.from_numpy(row.ids.astype(np.int64)))
        draws.append((seen.pop()[0] - clean).detach())
    handle.remove()
    noise = torch.stack(draws)  # draws, tokens, width
    score = plain_score(row, logits[row.id], {"a": ROWS["a"]}, alpha=0.5)
    # The paper's noise is the same for each token, even for one of Score 0.
    assert min(score) == 0
    wanted = torch.tensor([scale if uniform == "on" else scale * s for s in score])
    found = noise.square().mean((0, 2)).sqrt()
    # 100 draws of 32 numbers: the standard deviation is known to 1.3%.
    torch.testing.assert_close(found.float(), wanted.float(), rtol=0.06, atol=1e-9)
    assert noise.mean((0, 2)).abs().max() < 5 * scale / np.sqrt(100 * 32)
    assert not embedding._forward_hooks
