"""SD-Replay, phase 1 of SPARK: replayed rows are distilled from the student's past.

Low-sensitivity response tokens are learned as they are; every other sensitive position
keeps the distribution that the corrected model of the previous task had there, so that
replay does not teach identifiers again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from spark_train.loop import Sums, Term
from spark_train.losses import (
    support_kl,
    token_nll,
    top_k,
)
from spark_train.processes import gathered
from spark_train.scores_in_training import scored
from spark_train.stream import Stream
from spark_train.task_phase import Rehearsal
from spark_train.training_rows import TrainRow, collate, padded


@dataclass(frozen=True)
class Target:
    """What a replayed row is held to, from the frozen teacher.

    Attributes
    ----------
    low
        Shape ``(T,)``, bool: R, response tokens with a Score of at most tau.
    high
        Shape ``(T,)``, bool: H, tokens with a higher one.
    support, logp
        Shape ``(|H|, K)``: the teacher's likeliest tokens and their log-probabilities,
        renormalised over them, at the temperature.
    """

    low: np.ndarray
    high: np.ndarray
    support: torch.Tensor
    logp: torch.Tensor


class Distillation(Rehearsal):
    """What SPARK's first phase asks of replayed rows (Eqs. "replay_ce" to "replay").

    ``L_replay = (|R| L_CE + |H| L_KL) / (|R| + |H|)``: cross-entropy over R, and over H
    the KL divergence from the teacher's top-K distribution, both restricted to and
    renormalised on the teacher's support. The teacher is theta_{k-1}^priv, the student
    as it stands when the task begins: it is asked once a row, then never again. Token
    counts of a task (Score_2) outlive its rows, whatever ``replay.memory`` keeps.

    That is ``replay.weighting=count``. A form of our own is ``mean``, the mean over R
    plus the mean over H.
    """

    def __init__(self, stream: Stream, k: int) -> None:
        super().__init__(stream)
        self._k = k
        self._targets: dict[str, Target] = {}

    def start(self, rows: Sequence[TrainRow], steps: int) -> None:
        """Score the rows and keep the teacher's distributions."""
        distinct = list({row.id: row for row in rows}.values())
        for row, score, hidden in scored(self.stream, self._k, distinct):
            self._targets[row.id] = self._target(row, score, hidden)
        self._targets = dict(gathered([*self._targets.items()]))
        # What a replayed response token weighs of its weight in ER, where lambda is 1.
        learned, label = self.terms(rows)["replay_ce"], self.stream.label(self._k)
        weight = learned.weight if learned.count else 0.0
        if weight <= 0.5:
            form = self.stream.settings.replay.weighting
            self.stream.note(
                f"{label}: a replayed response token weighs {weight:.2g} of its weight "
                f"in er at lambda 1 (replay.weighting={form}): {steps} steps count "
                f"like {weight * steps:.0f} of er's"
            )

    @torch.no_grad()
    def _target(self, row: TrainRow, score: np.ndarray, hidden: torch.Tensor) -> Target:
        """The teacher's answer for a row, from the hidden states ``(T - 1, H)``."""
        student, settings = self.stream.student, self.stream.settings
        # The first token has no prediction, and a Score of 0, which no tau is below.
        high = score > settings.sensitivity.tau
        low = row.response & ~high
        low[0] = False
        chosen = hidden[torch.from_numpy(high[1:])]
        tops = [
            top_k(
                student.logits(chosen[at]),
                k=settings.replay.top_k,
                temperature=settings.replay.temperature,
            )
            # One empty slice where no position is high: a support of (0, K).
            for at in student.chunks(len(chosen)) or [slice(0, 0)]
        ]
        support, logp = (torch.cat(one).cpu() for one in zip(*tops, strict=True))
        return Target(low, high, support.int(), logp)

    def end(self) -> None:
        """Let go of what the next task asks anew."""
        self._targets = {}

    def terms(self, rows: Sequence[TrainRow]) -> dict[str, Term]:
        """CE and KL, weighted by their counts."""
        replay = self.stream.settings.replay
        kept = [self._targets[row.id] for row in rows]
        low = sum(int(target.low.sum()) for target in kept)
        high = sum(int(target.high.sum()) for target in kept)
        scale = replay.temperature**2 if replay.t_squared else 1.0
        shares = (1.0, 1.0)
        if replay.weighting == "count":
            shares = (low / max(low + high, 1), high / max(low + high, 1))
        return {
            "replay_ce": Term(low, replay.lambda_ * shares[0]),
            "replay_kl": Term(high, replay.lambda_ * shares[1] * scale),
        }

    def loss(self, rows: Sequence[TrainRow]) -> Sums:
        """Sums over R and over H."""
        student, replay = self.stream.student, self.stream.settings.replay
        kept = [self._targets[row.id] for row in rows]
        batch = collate(rows, student.device)
        low, high = (
            padded([getattr(one, name) for one in kept]).to(student.device)
            for name in ("low", "high")
        )
        both = low | high
        hidden = student.hidden(batch, both)
        chosen = hidden[high[:, 1:][both[:, 1:]]]
        support = torch.cat([one.support for one in kept]).long().to(student.device)
        logp = torch.cat([one.logp for one in kept]).to(student.device)
        # The head's rows of all tokens of the supports are gathered.
        per_chunk = student.budget // max(support.shape[1] * hidden.shape[1], 1)

        def divergence(part: torch.Tensor, at: slice) -> torch.Tensor:
            logits = student.logits_at(part, support[at])
            return support_kl(logp[at], logits, temperature=replay.temperature)

        return {
            "replay_ce": student.summed(hidden, batch, both, low, token_nll),
            "replay_kl": student.total(chosen, divergence, rows=max(per_chunk, 8)),
        }
