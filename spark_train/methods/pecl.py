"""PeCL in forms of our own: noisy embeddings, held weights, unlearning, all at once.

What stands here is **not compared with PeCL's own equations** (arXiv 2509.12958), whose
code is not public. From SPARK's reproduction come the scalars: noise scale 0.01, MemReg
scale 0.01 with lambda_max 10, lambda_unlearn 1.0 with theta 0.6. **[ours]** are all
forms, each a function of this file: :func:`sigmas` (token-level noise),
:func:`held` (MemReg), :func:`sensitive` (what is unlearned; by the unlikelihood
``-log(1 - P)``), and that both scores and importance are computed once a task:

``L = L_task + lambda_unlearn L_unlearn + memreg_scale sum_j min(Omega_j, lambda_max)
(theta_j - theta_j^{k-1})^2``, with the forward pass under noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spark_train.data import TrainRow, collate
from spark_train.loop import Phase, Step, Sums, Term
from spark_train.losses.logits import token_nll, unlikelihood
from spark_train.losses.weights import Quadratic
from spark_train.methods import METHODS
from spark_train.model.student import Student, targets
from spark_train.phases.fisher import fisher, relative
from spark_train.phases.task import TASK, learning
from spark_train.settings import Pecl
from spark_train.stream import Stream
from spark_train.task_state import Carried
from spark_train.token_scores.student import keep_scores, scored

UNLEARN = "unlearn"


NO_EPSILON = (
    "what is unlearned and which weights are held follow from rows without noise"
)


@METHODS.register(
    reads=lambda: ("pecl", "sensitivity.alpha"), no_epsilon=lambda: NO_EPSILON
)
def pecl(stream: Stream) -> list[Phase]:
    """One phase a task."""
    carried = Carried(stream)
    return [_phase(stream, k, carried) for k in range(len(stream.tasks))]


def sigmas(scores: Tensor, settings: Pecl) -> Tensor:
    """Standard deviation of the noise on each token's input embedding **[ours]**.

    ``sigma_i = noise_scale Score_i``, so that a token of Score 0 has none; with
    ``pecl.uniform`` noise_scale for every token. Shape ``(B, T)``, as the scores.
    """
    if settings.uniform:
        return torch.full_like(scores, settings.noise_scale)
    return settings.noise_scale * scores


def sensitive(row: TrainRow, score: np.ndarray, settings: Pecl) -> np.ndarray:
    """The tokens that are unlearned, those of a Score above theta: ``(T,)`` **[ours]**.

    Identifiers (Score 1) are among them, and surprising tokens of plain text. So are
    the response's, which the same step learns; ``pecl.unlearn=prompt`` leaves those
    out. The first token has no prediction.
    """
    found = score > settings.theta
    found[0] = False
    return found & ~row.response if settings.unlearn == "prompt" else found


def held(
    importance: Mapping[str, Tensor], at: Mapping[str, Tensor], settings: Pecl
) -> Quadratic:
    """MemReg: drift from the weights after the task before, by importance **[ours]**.

    ``sum_j min(Omega_j, lambda_max) (theta_j - theta_j^{k-1})^2``. Omega is the mean
    over the tasks so far of their Fisher diagonals, each over its own mean: 1 is an
    average weight's, and lambda_max bounds how much more one weight may count.
    """
    bounded = {
        name: value.clamp(max=settings.lambda_max) for name, value in importance.items()
    }
    return Quadratic.of(bounded, at)


def _phase(stream: Stream, k: int, carried: Carried) -> Phase:
    student, settings = stream.student, stream.settings.pecl
    rows, full = stream.rows[stream.tasks[k]], stream.settings.loss.scope == "full"
    plain = learning(stream, k)
    scores: dict[str, np.ndarray] = {}
    chosen: dict[str, np.ndarray] = {}
    memory: list[Quadratic] = []

    def start() -> None:
        scores.update(scored(stream, k, rows))
        chosen.update(
            {row.id: sensitive(row, scores[row.id], settings) for row in rows}
        )
        keep_scores(stream, k, rows, scores)
        if k:
            at = {n: w.detach().clone() for n, w in student.trainable.items()}
            found = carried.read(k - 1)["importance"]
            memory[:] = [held(found, at, settings)]

    def choose(step: int) -> Step:
        found = plain.choose(step)
        count = sum(int(chosen[row.id].sum()) for row in found.rows[TASK])
        terms = {**found.terms, UNLEARN: Term(count, settings.lambda_unlearn)}
        return replace(found, terms=terms)

    def own(role: str, row: TrainRow) -> Mapping[str, Term]:
        assert plain.each is not None
        count = int(chosen[row.id].sum())
        unlearn = Term(count, settings.lambda_unlearn)
        return {**plain.each.terms(role, row), UNLEARN: unlearn}

    def loss(role: str, some: Sequence[TrainRow]) -> Sums:
        batch = collate(some).to(student.device)
        learned = batch.attention if full else batch.response
        shape, device = batch.ids.shape, student.device
        forgotten = _padded([chosen[row.id] for row in some], shape).bool().to(device)
        sigma = sigmas(_padded([scores[row.id] for row in some], shape), settings)
        mask = learned | forgotten
        with _noisy(student, sigma.to(device)):
            hidden = student.hidden(batch, mask)
        ids = targets(batch, mask)

        def summed(part: Tensor, value: Any) -> Tensor:
            inside = part[:, 1:][mask[:, 1:]]
            goal = ids[inside]
            return student.total(
                hidden[inside], lambda some, at: value(student.logits(some), goal[at])
            )

        return {
            TASK: summed(learned, token_nll),
            UNLEARN: summed(forgotten, unlikelihood),
        }

    def penalty() -> Sums:
        if not memory:
            return {}
        drift = memory[0].value(student.trainable)
        return {"memreg": settings.memreg_scale * drift}

    def end() -> None:
        scores.clear()
        chosen.clear()
        if k + 1 == len(stream.tasks):
            return  # no later task asks for it
        found = relative(fisher(stream, k, rows=settings.rows))
        if k:
            old = carried.read(k - 1)["importance"]
            found = {n: (k * old[n] + new) / (k + 1) for n, new in found.items()}
        carried.keep(k, {"importance": found})

    assert plain.each is not None
    return replace(
        plain,
        start=start,
        choose=choose,
        loss=loss,
        penalty=penalty,
        end=end,
        each=replace(plain.each, terms=own),
    )


def _padded(values: Sequence[np.ndarray], shape: Sequence[int]) -> Tensor:
    """Rows' values, padded on the right with 0: shape ``(B, T)``, float32."""
    found = torch.zeros(tuple(shape))
    for i, value in enumerate(values):
        found[i, : len(value)] = torch.from_numpy(value)
    return found


@contextmanager
def _noisy(student: Student, sigma: Tensor) -> Iterator[None]:
    """Gaussian noise on what the input embedding gives, anew at each forward pass.

    Drawn as dropout is: from the global generator, which the loop seeds at each step.
    A tied output head does not see it.
    """

    def add(module: Any, args: tuple[Any, ...], output: Tensor) -> Tensor:
        wide = torch.promote_types(output.dtype, torch.float32)
        noise = torch.randn(output.shape, dtype=wide, device=output.device)
        return (output + sigma[..., None].to(wide) * noise).to(output.dtype)

    handle = student.model.get_input_embeddings().register_forward_hook(add)
    try:
        yield
    finally:
        handle.remove()
