"""SD-Replay: replayed rows are distilled from the student's own past.

Phase 1 of SPARK. Low-sensitivity response tokens are learned as they are; every other
sensitive position keeps the distribution that the corrected model of the previous task
had there, so that replay does not teach identifiers again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from spark_train.loop import Sums, Term
from spark_train.losses import support_kl, token_nll, top_k
from spark_train.model.student import targets
from spark_train.phases.task import Rehearsal
from spark_train.stream import Stream
from spark_train.token_scores import Scored, keep_scores, scored
from spark_train.training_rows import TrainRow, collate, padded

CPU_GATHERED, GPU_GATHERED = 2**22, 2**27
"""Head weights gathered at a time for the support of some positions, by device."""


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

    @property
    def size(self) -> int:
        """Positions that are replayed."""
        return int(self.low.sum()) + int(self.high.sum())


class Distillation(Rehearsal):
    """What SPARK's first phase asks of replayed rows (Eqs. "replay_ce" to "replay").

    ``L_replay = (|R| L_CE + |H| L_KL) / (|R| + |H|)``: cross-entropy over R, and over H
    the KL divergence from the teacher's top-K distribution, both restricted to and
    renormalised on the teacher's support. The teacher is theta_{k-1}^priv, the student
    as it stands when the task begins: it is asked once a row, then never again. Token
    counts of a task (Score_2) outlive its rows, whatever ``replay.memory`` keeps.

    That is ``replay.weighting=count``. Two forms of our own: ``sequence``, the mean
    over rows of each row's mean over R and H together, and ``mean``, the mean over R
    plus the mean over H.
    """

    def __init__(self, stream: Stream, k: int) -> None:
        super().__init__(stream)
        self._k = k
        self._targets: dict[str, Target] = {}

    def start(self, rows: Sequence[TrainRow], steps: int) -> None:
        """Score the rows and keep the teacher's distributions."""
        stream = self.stream
        distinct = list({row.id: row for row in rows}.values())
        answers: dict[str, tuple[Target, np.ndarray]] = {}
        for part in scored(stream, self._k, distinct):
            answers |= self._ask(part)
        answers = stream.processes.collect(answers)
        self._targets = {key: target for key, (target, _) in answers.items()}
        scores = {key: score for key, (_, score) in answers.items()}
        keep_scores(stream, self._k, distinct, scores)
        self._note([self._targets[row.id] for row in rows], steps)

    @torch.no_grad()
    def _ask(self, part: list[Scored]) -> dict[str, tuple[Target, np.ndarray]]:
        """The teacher's answer for a few rows, which were read together."""
        student, settings = self.stream.student, self.stream.settings
        # The first token has no prediction, and a Score of 0, which no tau is below.
        high = [score > settings.sensitivity.tau for _, score, _ in part]
        chosen = torch.cat(
            [
                hidden[torch.from_numpy(one[1:])]
                for one, (*_, hidden) in zip(high, part, strict=True)
            ]
        )
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
        sizes = [int(one.sum()) for one in high]
        answers = {}
        parts = torch.split(support.int(), sizes), torch.split(logp, sizes)
        for (row, score, _), one, tokens, values in zip(
            part, high, *parts, strict=True
        ):
            low = row.response & ~one
            low[0] = False
            # Copies: a part would keep the whole batch's in memory.
            answers[row.id] = Target(low, one, tokens.clone(), values.clone()), score
        return answers

    def _note(self, kept: Sequence[Target], steps: int) -> None:
        """What a reader must know of how replay weighs; nothing where it is as in ER.

        That is what a replayed response token weighs of its weight in experience
        replay, where lambda is 1, over all rows that are replayed.
        """
        replay, label = self.stream.settings.replay, self.stream.label(self._k)
        low = np.array([target.low.sum() for target in kept], dtype=np.float64)
        size = np.array([target.size for target in kept], dtype=np.float64)
        if not low.sum():
            what = "replay learns no response: all its positions are distilled"
            return self.stream.note(f"{label}: {what}")
        share = {
            "mean": 1.0,
            "count": low.sum() / size.sum(),
            "sequence": (low / size.clip(min=1)).sum() / np.count_nonzero(size),
        }[replay.weighting]
        if (weight := replay.lambda_ * float(share)) <= 0.5:
            self.stream.note(
                f"{label}: a replayed response token weighs {weight:.2g} of its weight "
                f"in er at lambda 1 (replay.weighting={replay.weighting}): {steps} "
                f"steps count like {max(round(weight * steps), 1)} of er's"
            )

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
        # What each sum of `loss` is divided by: positions, or rows that have any.
        sizes, shares = (low, high), (1.0, 1.0)
        if replay.weighting == "count":
            shares = (low / max(low + high, 1), high / max(low + high, 1))
        elif replay.weighting == "sequence":
            sizes = (sum(target.size > 0 for target in kept),) * 2
        return {
            "replay_ce": Term(sizes[0], replay.lambda_ * shares[0]),
            "replay_kl": Term(sizes[1], replay.lambda_ * shares[1] * scale),
        }

    def loss(self, rows: Sequence[TrainRow]) -> Sums:
        """Sums over R and over H."""
        student, replay = self.stream.student, self.stream.settings.replay
        kept = [self._targets[row.id] for row in rows]
        batch = collate(rows).to(student.device)
        low, high = (
            padded([getattr(one, name) for one in kept]).to(student.device)
            for name in ("low", "high")
        )
        both = low | high
        hidden = student.hidden(batch, both)
        is_high = high[:, 1:][both[:, 1:]]
        ids = targets(batch, both)[~is_high]
        support = torch.cat([one.support for one in kept]).long().to(student.device)
        logp = torch.cat([one.logp for one in kept]).to(student.device)
        # What each replayed position counts: all alike, or alike within their rows.
        sizes = torch.tensor([target.size for target in kept])
        shares = (
            1.0 / sizes if replay.weighting == "sequence" else torch.ones(len(kept))
        )
        weight = torch.repeat_interleave(shares, sizes).to(student.device)
        of_low, of_high = weight[~is_high], weight[is_high]
        gathered = CPU_GATHERED if student.device.type == "cpu" else GPU_GATHERED
        per_chunk = gathered // max(support.shape[1] * hidden.shape[1], 1)

        def nll(part: torch.Tensor, at: slice) -> torch.Tensor:
            return of_low[at] * token_nll(student.logits(part), ids[at])

        def divergence(part: torch.Tensor, at: slice) -> torch.Tensor:
            logits = student.logits_at(part, support[at])
            temperature = replay.temperature
            return of_high[at] * support_kl(logp[at], logits, temperature=temperature)

        return {
            "replay_ce": student.total(hidden[~is_high], nll),
            "replay_kl": student.total(
                hidden[is_high], divergence, rows=max(per_chunk, 8)
            ),
        }
