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

from spark_train.data import TrainRow, collate, padded
from spark_train.loop import Sums, Term, pieces
from spark_train.losses.logits import outside_mass, support_kl, token_nll, top_k
from spark_train.model.student import targets
from spark_train.stream import Stream
from spark_train.token_scores.student import batch_scores, keep_scores, seen_counts

WATCHED = 4
"""Distilled positions of a row at which the mass outside the support is watched."""

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

    @property
    def watched(self) -> np.ndarray:
        """Which of H are watched, spread evenly: indices into the support's rows."""
        size = len(self.support)
        return np.unique(np.linspace(0, size - 1, min(size, WATCHED)).astype(np.int64))


class Distillation:
    """What SPARK's first phase asks of replayed rows (Eqs. "replay_ce" to "replay").

    ``L_replay = (|R| L_CE + |H| L_KL) / (|R| + |H|)``: cross-entropy over R, and over H
    the KL divergence from the teacher's top-K distribution, both restricted to and
    renormalised on the teacher's support. The teacher is theta_{k-1}^priv, the student
    as it stands when the task begins: it is asked once a row, then never again. Token
    counts of a task (Score_2) outlive its rows, whatever ``replay.memory`` keeps.

    That is ``replay.weighting=count``. Two forms of our own: ``sequence``, the mean
    over rows of each row's mean over R and H together, and ``mean``, the mean over R
    plus the mean over H.

    The student's mass outside the support is watched at a sample: at most
    :data:`WATCHED` positions of a row.
    """

    def __init__(self, stream: Stream, k: int) -> None:
        self._stream, self._k = stream, k
        self._targets: dict[str, Target] = {}
        self._weight: float | None = 1.0

    def start(self, rows: Sequence[TrainRow]) -> None:
        """Score the rows and keep the teacher's distributions."""
        stream, processes = self._stream, self._stream.processes
        counts = seen_counts(stream, self._k)
        distinct = list({row.id: row for row in rows}.values())
        kept: dict[str, Target] = {}
        scores: dict[str, np.ndarray] = {}
        with torch.no_grad(), stream.student.still():
            for part in pieces(processes.share(distinct), stream.student.tokens):
                self._ask(part, counts, kept, scores)
        self._targets = processes.collect(kept)
        self._weight = self._of_a_response([self._targets[row.id] for row in rows])
        scores = processes.collect(scores)
        keep_scores(stream, self._k, distinct, scores)

    def _ask(
        self,
        rows: list[TrainRow],
        counts: dict[str, np.ndarray],
        kept: dict[str, Target],
        scores: dict[str, np.ndarray],
    ) -> None:
        """The teacher's answer for a few rows, which are read together."""
        student, settings = self._stream.student, self._stream.settings
        batch = collate(rows).to(student.device)
        mask = batch.attention
        hidden, ids = student.hidden(batch, mask), targets(batch, mask)
        scored = batch_scores(self._stream, rows, hidden, ids, counts)
        # The first token has no prediction.
        high = [score > settings.sensitivity.tau for score in scored]
        for one in high:
            one[0] = False
        chosen = hidden[torch.from_numpy(np.concatenate([h[1:] for h in high]))]
        tops = [
            top_k(
                student.logits(chosen[at]),
                k=settings.replay.top_k,
                temperature=settings.replay.temperature,
            )
            # One empty slice where no position is high: a support of (0, K).
            for at in student.chunks(len(chosen)) or [slice(0, 0)]
        ]
        counts_high = [int(one.sum()) for one in high]
        support, logp = (torch.cat(parts).cpu() for parts in zip(*tops, strict=True))
        parts = zip(
            torch.split(support.int(), counts_high),
            torch.split(logp, counts_high),
            strict=True,
        )
        for row, score, one, (ids, share) in zip(
            rows, scored, high, parts, strict=True
        ):
            low = row.response & ~one
            low[0] = False
            # A copy: a part would keep the whole batch's in memory.
            kept[row.id] = Target(low, one, ids.clone(), share.clone())
            scores[row.id] = score

    def _of_a_response(self, kept: Sequence[Target]) -> float | None:
        """What a replayed response token weighs, of its weight in experience replay.

        There lambda is 1. Over all rows that are replayed; ``None`` where no response
        is learned.
        """
        replay = self._stream.settings.replay
        form = replay.weighting
        sizes = np.array([[int(t.low.sum()), t.size] for t in kept], dtype=np.float64)
        low, size = sizes.sum(0)
        if not low:
            return None
        if form == "mean":
            return replay.lambda_
        if form == "count":
            return replay.lambda_ * float(low / size)
        shares = sizes[:, 0] / np.maximum(sizes[:, 1], 1)
        return replay.lambda_ * float(shares.sum() / np.count_nonzero(sizes[:, 1]))

    def told(self, steps: int) -> str:
        """What a reader must know of how it weighs; nothing where it is as in ER."""
        weight, form = self._weight, self._stream.settings.replay.weighting
        if weight is None:
            return "replay learns no response: all its positions are distilled"
        if weight > 0.5:
            return ""
        return (
            f"a replayed response token weighs {weight:.2g} of its weight in er at "
            f"lambda 1 (replay.weighting={form}): {steps} steps count like "
            f"{max(round(weight * steps), 1)} of er's"
        )

    def end(self) -> None:
        """Let go of what the next task asks anew."""
        self._targets = {}

    def terms(self, rows: Sequence[TrainRow]) -> dict[str, Term]:
        """CE and KL, weighted by their counts, and the watched mass."""
        replay = self._stream.settings.replay
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
            "outside": Term(sum(len(target.watched) for target in kept), 0.0),
        }

    def loss(self, rows: Sequence[TrainRow]) -> Sums:
        """Sums over R and over H, and the student's mass outside the support."""
        student, replay = self._stream.student, self._stream.settings.replay
        kept = [self._targets[row.id] for row in rows]
        batch = collate(rows).to(student.device)
        low, high = (
            padded([getattr(target, name) for target in kept], batch.ids.shape)
            for name in ("low", "high")
        )
        both = (low | high).to(student.device)
        hidden = student.hidden(batch, both)
        is_high = high[:, 1:][(low | high)[:, 1:]].to(student.device)
        ids = targets(batch, both)[~is_high]
        support = torch.cat([target.support for target in kept]).long()
        support = support.to(student.device)
        logp = torch.cat([target.logp for target in kept]).to(student.device)
        weight = self._weights(kept).to(student.device)
        of_low, of_high = weight[~is_high], weight[is_high]
        at_high = hidden[is_high]
        on_cpu = student.device.type == "cpu"
        gathered = CPU_GATHERED if on_cpu else GPU_GATHERED
        per_chunk = gathered // max(support.shape[1] * hidden.shape[1], 1)
        sums = {
            "replay_ce": student.total(
                hidden[~is_high],
                lambda part, at: of_low[at] * token_nll(student.logits(part), ids[at]),
            ),
            "replay_kl": student.total(
                at_high,
                lambda part, at: (
                    of_high[at]
                    * support_kl(
                        logp[at],
                        student.logits_at(part, support[at]),
                        temperature=replay.temperature,
                    )
                ),
                rows=max(per_chunk, 8),
            ),
        }
        sizes = np.cumsum([0, *(len(target.support) for target in kept)])
        watched = torch.from_numpy(
            np.concatenate(
                [
                    first + target.watched
                    for first, target in zip(sizes[:-1], kept, strict=True)
                ]
            )
        ).to(student.device)
        with torch.no_grad():
            seen, support = at_high.detach()[watched], support[watched]
            sums["outside"] = student.total(
                seen,
                lambda part, at: outside_mass(student.logits(part), support[at]),
            )
        return sums

    def _weights(self, kept: Sequence[Target]) -> torch.Tensor:
        """What each replayed position counts in the sums: ``(n,)``, row by row."""
        sizes = torch.tensor([target.size for target in kept])
        if self._stream.settings.replay.weighting != "sequence":
            return torch.ones(int(sizes.sum()))
        return torch.repeat_interleave(1.0 / sizes, sizes)
