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
from spark_train.losses.logits import token_nll, unlikelihood
from spark_train.losses.weights import Quadratic
from spark_train.methods.method import Method
from spark_train.model.student import Student, targets
from spark_train.phases.fisher import fisher, relative
from spark_train.phases.task import TASK, learning
from spark_train.settings import Pecl
from spark_train.stream import Stream
from spark_train.task_state import Carried
from spark_train.token_scores.student import keep_scores, scored

UNLEARN = "unlearn"


NO_EPSILON = "unlearned tokens and held weights follow from rows without noise"


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
    bounded = {
        name: value.clamp(max=settings.lambda_max) for name, value in importance.items()
    }
    return Quadratic.of(bounded, at)


def _phase(stream: Stream, k: int, carried: Carried) -> Phase:
    plain, at_work = learning(stream, k), _Unlearning(stream, k, carried)

    def choose(step: int) -> Step:
        learned = plain.choose(step)
        unlearn = at_work.term(learned.rows[TASK])
        return replace(learned, terms={**learned.terms, UNLEARN: unlearn})

    assert plain.each is not None
    terms = plain.each.terms
    each = replace(
        plain.each,
        terms=lambda role, row: {**terms(role, row), UNLEARN: at_work.term([row])},
    )
    return replace(
        plain,
        start=at_work.start,
        choose=choose,
        loss=at_work.loss,
        penalty=at_work.penalty,
        end=at_work.end,
        each=each,
    )


class _Unlearning:
    """What PeCL adds to the learning of one task."""

    def __init__(self, stream: Stream, k: int, carried: Carried) -> None:
        self.stream, self.k, self.carried = stream, k, carried
        self.student, self.settings = stream.student, stream.settings.pecl
        self.rows = stream.rows[stream.tasks[k]]
        self.scores: dict[str, np.ndarray] = {}
        self.chosen: dict[str, np.ndarray] = {}
        self.memory: Quadratic | None = None

    def start(self) -> None:
        """Score the rows, and hold the weights where they are."""
        stream, k, rows = self.stream, self.k, self.rows
        self.scores = scored(stream, k, rows)
        self.chosen = {
            row.id: sensitive(row, self.scores[row.id], self.settings) for row in rows
        }
        keep_scores(stream, k, rows, self.scores)
        if k:
            at = {n: w.detach().clone() for n, w in self.student.trainable.items()}
            importance = self.carried.read(k - 1)["importance"]
            self.memory = held(importance, at, self.settings)

    def term(self, rows: Sequence[TrainRow]) -> Term:
        """The term of what is unlearned of some rows."""
        count = sum(int(self.chosen[row.id].sum()) for row in rows)
        return Term(count, self.settings.lambda_unlearn)

    def loss(self, role: str, some: Sequence[TrainRow]) -> Sums:
        """Sums over what is learned and what is unlearned, under noise."""
        student = self.student
        batch = collate(some).to(student.device)
        full = self.stream.settings.loss.scope == "full"
        learned = batch.attention if full else batch.response
        shape, device = batch.ids.shape, student.device
        forgotten = padded([self.chosen[row.id] for row in some], shape).to(device)
        scores = padded([self.scores[row.id] for row in some], shape)
        mask = learned | forgotten
        with _noisy(student, sigmas(scores, self.settings).to(device)):
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

    def penalty(self) -> Sums:
        """The weights' drift, by importance."""
        if self.memory is None:
            return {}
        drift = self.memory.value(self.student.trainable)
        return {"memreg": self.settings.memreg_scale * drift}

    def end(self) -> None:
        """Carry on which weights the tasks so far need."""
        stream, k = self.stream, self.k
        self.scores, self.chosen = {}, {}
        if k + 1 == len(stream.tasks):
            return  # no later task asks for it
        importance = relative(fisher(stream, k, rows=self.settings.rows))
        if k:
            old = self.carried.read(k - 1)["importance"]
            importance = {
                name: (k * old[name] + new) / (k + 1)
                for name, new in importance.items()
            }
        self.carried.keep(k, {"importance": importance})


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
    no_epsilon=NO_EPSILON,
    summary=__doc__,
)
