"""PeCL in our forms: noisy embeddings, held weights, unlearning, all at once.

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

from spark_train.data import TrainRow, collate, padded
from spark_train.loop import Phase, Step, Sums, Term
from spark_train.losses import token_nll, unlikelihood
from spark_train.methods.method import Method
from spark_train.model.student import Student
from spark_train.phases.importance import Quadratic, fisher, relative
from spark_train.phases.task import TASK, learning
from spark_train.run_folder import keep, kept
from spark_train.settings import Pecl
from spark_train.stream import Stream
from spark_train.token_scores import keep_scores, scored

UNLEARN = "unlearn"


def pecl(stream: Stream) -> list[Phase]:
    """One phase a task."""
    return [_phase(stream, k) for k in range(len(stream.tasks))]


def sigmas(scores: Tensor, settings: Pecl) -> Tensor:
    """Standard deviation of the noise on each token's input embedding **[ours]**.

    ``sigma_i = noise_scale Score_i``, so that a token of Score 0 has none; with
    ``pecl.uniform`` noise_scale for every token. Shape ``(B, T)``, as the scores.
    """
    of_each = torch.ones_like(scores) if settings.uniform else scores
    return settings.noise_scale * of_each


def sensitive(row: TrainRow, score: np.ndarray, settings: Pecl) -> np.ndarray:
    """The tokens that are unlearned, those of a Score above theta: ``(T,)`` **[ours]**.

    Identifiers (Score 1) are among them, and surprising tokens of plain text. So are
    the response's, which the same step learns; ``pecl.unlearn=prompt`` leaves those
    out. The first token has no prediction.
    """
    above = score > settings.theta
    above[0] = False
    return above & ~row.response if settings.unlearn == "prompt" else above


def held(
    importance: Mapping[str, Tensor], at: Mapping[str, Tensor], settings: Pecl
) -> Quadratic:
    """MemReg: drift from the weights after the task before, by importance **[ours]**.

    ``sum_j min(Omega_j, lambda_max) (theta_j - theta_j^{k-1})^2``. Omega is the mean
    over the tasks so far of their Fisher diagonals, each over its own mean: 1 is an
    average weight's, and lambda_max bounds how much more one weight may count.
    """
    bound = settings.lambda_max
    return Quadratic.of({n: v.clamp(max=bound) for n, v in importance.items()}, at)


def _phase(stream: Stream, k: int) -> Phase:
    student, settings = stream.student, stream.settings.pecl
    plain, rows = learning(stream, k), stream.rows[stream.tasks[k]]
    scores: dict[str, np.ndarray] = {}
    unlearned: dict[str, np.ndarray] = {}
    memory: list[Quadratic] = []

    def start() -> None:
        own = {r.id: s for part in scored(stream, k, rows) for r, s, _ in part}
        scores.update(stream.processes.collect(own))
        unlearned.update({r.id: sensitive(r, scores[r.id], settings) for r in rows})
        keep_scores(stream, k, rows, scores)
        if k:
            at = {n: w.detach().clone() for n, w in student.trainable.items()}
            memory[:] = [held(kept(stream, k - 1)["importance"], at, settings)]

    def term(some: Sequence[TrainRow]) -> dict[str, Term]:
        count = sum(int(unlearned[row.id].sum()) for row in some)
        return {UNLEARN: Term(count, settings.lambda_unlearn)}

    def choose(step: int) -> Step:
        chosen = plain.choose(step)
        return replace(chosen, terms={**chosen.terms, **term(chosen.rows[TASK])})

    def loss(role: str, some: Sequence[TrainRow]) -> Sums:
        batch = collate(some).to(student.device)
        scope = stream.settings.loss.scope
        learned = batch.attention if scope == "full" else batch.response
        forgotten, score = (
            padded([values[row.id] for row in some], batch.ids.shape).to(student.device)
            for values in (unlearned, scores)
        )
        mask = learned | forgotten
        with _noisy(student, sigmas(score, settings)):
            hidden = student.hidden(batch, mask)
        return {
            TASK: student.summed(hidden, batch, mask, learned, token_nll),
            UNLEARN: student.summed(hidden, batch, mask, forgotten, unlikelihood),
        }

    def penalty() -> Sums:
        if not memory:
            return {}
        return {"memreg": settings.memreg_scale * memory[0].value(student.trainable)}

    def end() -> None:
        if k + 1 < len(stream.tasks):  # else no later task asks for it
            new = relative(fisher(stream, k, rows=settings.rows))
            old = kept(stream, k - 1)["importance"] if k else new
            mean = {n: (k * old[n] + new[n]) / (k + 1) for n in new}
            keep(stream, k, {"importance": mean})

    assert plain.each is not None
    terms = plain.each.terms
    each = replace(
        plain.each, terms=lambda role, row: {**terms(role, row), **term([row])}
    )
    return replace(
        plain,
        start=start,
        choose=choose,
        loss=loss,
        penalty=penalty,
        end=end,
        each=each,
    )


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


METHOD = Method(
    "pecl",
    pecl,
    reads=("pecl", "sensitivity.alpha"),
    no_epsilon="unlearned tokens and held weights follow from rows without noise",
    summary=__doc__,
)
