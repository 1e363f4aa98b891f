"""SPARK's first phase with SD-Replay: replayed rows distil the student's past.

Low-sensitivity response tokens are learned as they are. Every sensitive position, also
in the prompt, keeps the distribution of the corrected model of the previous task. So
replay does not teach identifiers again.

In shapes, ``B`` is the rows of a batch, ``T`` their tokens, ``D`` the hidden size and
``K`` the kept tokens of the teacher. ``R`` and ``H`` are sets of positions, as in the
paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from spark_train.fine_tuning import REPLAY_ROLE
from spark_train.loop import Probe, Rows, Sums, Term
from spark_train.losses import outside_mass, support_kl, token_nll, top_k
from spark_train.processes import gathered
from spark_train.scores_in_training import scored_rows
from spark_train.stream import Stream
from spark_train.task_phase import Rehearsal
from spark_train.training_rows import TrainRow, collate, padded

LITTLE_WEIGHT = 0.5
"""Largest weight of a replayed response token about which a note is left. In plain
replay (er) with lambda 1 its weight is 1."""

REPLAYED_PROBE_ROWS = 5
"""Replayed rows in the probe of a phase."""

OUTSIDE = "outside"
"""What a probe records beside the terms: the student's mass outside the support."""

MIN_POSITIONS_PER_CHUNK = 8
"""Fewest positions at a time: fewer would save little memory and need many steps."""


@dataclass(frozen=True)
class Target:
    """The frozen teacher's answer for a replayed row.

    Attributes
    ----------
    low
        Shape ``(T,)``, bool: R, response tokens with a Score of at most tau.
    high
        Shape ``(T,)``, bool: H, tokens with a higher Score.
    support, logp
        Shape ``(|H|, K)``: the teacher's likeliest tokens and their log-probabilities,
        renormalised over them, at the temperature.
    """

    low: np.ndarray
    high: np.ndarray
    support: torch.Tensor
    logp: torch.Tensor


class Distillation(Rehearsal):
    """The replay loss of SPARK's first phase (Eqs. "replay_ce" to "replay").

    ``L_replay = (|R| L_CE + |H| L_KL) / (|R| + |H|)``: cross-entropy over R, and over H
    the KL divergence from the teacher's top-K distribution. Both distributions are
    restricted to the teacher's support and renormalised. The teacher is
    theta_{k-1}^priv, the student at the beginning of the task. It is asked once per
    row.

    This is ``replay.weighting=count``. Our own form ``mean`` is the mean over R plus
    the mean over H.
    """

    def __init__(self, stream: Stream, task_index: int) -> None:
        super().__init__(stream)
        self._task_index = task_index
        self._targets: dict[str, Target] = {}

    def start(self, rows: Sequence[TrainRow], steps: int) -> None:
        """Score the rows and keep the teacher's distributions."""
        distinct_rows = list({row.id: row for row in rows}.values())

        # Each process asks the teacher about its share, and all processes need all
        # answers.
        own_targets = {}
        for row, score, hidden in scored_rows(
            self.stream, self._task_index, distinct_rows
        ):
            own_targets[row.id] = self._target(row, score, hidden)
        self._targets = dict(gathered([*own_targets.items()]))
        self._note_weight(rows, steps)

    def _note_weight(self, rows: Sequence[TrainRow], steps: int) -> None:
        """Leave a note if a replayed response token weighs much less than in er.

        The note is kept with the run's notes and printed once on stderr.
        """
        cross_entropy = self.terms(rows)["replay_ce"]
        # The weight is relative to plain replay (er) with lambda 1. Rows without a low
        # token have none.
        weight = cross_entropy.weight if cross_entropy.count else 0.0
        if weight <= LITTLE_WEIGHT:
            weighting = self.stream.settings.replay.weighting
            label = self.stream.stage_name(self._task_index)
            self.stream.note(
                f"{label}: a replayed response token weighs "
                f"{weight:.2g} of its weight in er at lambda 1 "
                f"(replay.weighting={weighting}): {steps} steps count "
                f"like {weight * steps:.0f} of er's"
            )

    @torch.no_grad()
    def _target(self, row: TrainRow, score: np.ndarray, hidden: torch.Tensor) -> Target:
        """Return the teacher's answer for a row.

        Parameters
        ----------
        score
            Shape ``(T,)``: sensitivity of each token.
        hidden
            Shape ``(T - 1, D)``: the teacher's hidden states before each token but the
            first.
        """
        student = self.stream.student
        settings = self.stream.settings
        # The first token has no prediction. Its Score is 0 <= tau, so it would count as
        # low.
        high = score > settings.sensitivity.tau  # (T,)
        low = row.response & ~high  # (T,)
        low[0] = False

        high_hidden = hidden[torch.from_numpy(high[1:])]  # (|H|, D)
        chunks = student.chunks(len(high_hidden))
        if not chunks:
            # Without a high position, one empty slice gives a support of shape (0, K).
            chunks = [slice(0, 0)]
        supports: list[torch.Tensor] = []
        logps: list[torch.Tensor] = []
        for chunk in chunks:
            support, logp = top_k(
                student.logits(high_hidden[chunk]),
                k=settings.replay.top_k,
                temperature=settings.replay.temperature,
            )
            supports.append(support)
            logps.append(logp)
        return Target(
            low=low,
            high=high,
            support=torch.cat(supports).cpu().int(),
            logp=torch.cat(logps).cpu(),
        )

    def end(self) -> None:
        """Free what is computed anew for the next task."""
        self._targets = {}

    def terms(self, rows: Sequence[TrainRow]) -> dict[str, Term]:
        """Return the terms of CE and KL, weighted by their counts."""
        replay = self.stream.settings.replay
        targets = [self._targets[row.id] for row in rows]
        n_low = sum(int(target.low.sum()) for target in targets)
        n_high = sum(int(target.high.sum()) for target in targets)

        share_low = 1.0
        share_high = 1.0
        if replay.weighting == "count":
            share_low = n_low / max(n_low + n_high, 1)
            share_high = n_high / max(n_low + n_high, 1)
        scale = replay.temperature**2 if replay.t_squared else 1.0
        return {
            "replay_ce": Term(n_low, replay.lambda_ * share_low),
            "replay_kl": Term(n_high, replay.lambda_ * share_high * scale),
        }

    def loss(self, rows: Sequence[TrainRow]) -> Sums:
        """Return the sums over R and over H."""
        return self._sums(rows)

    def probe(self, rows: Sequence[TrainRow]) -> Probe:
        """Return a probe of some of the rows, with the mass outside the support.

        Both distributions of the KL are renormalised over the teacher's support, which
        hides what the student moves out of it. The mass is the student's probability
        outside the support, over H, at temperature 1; before the first step it is the
        teacher's own.
        """
        probe_rows = self.stream.draw_evenly(
            self._task_index, rows, REPLAYED_PROBE_ROWS, purpose="probe replay"
        )

        def terms(rows_by_role: Rows) -> dict[str, Term]:
            """Return the terms of the phase, and the mass, which is only recorded."""
            terms_of_phase = self.terms(rows_by_role[REPLAY_ROLE])
            n_high = terms_of_phase["replay_kl"].count
            return {**terms_of_phase, OUTSIDE: Term(n_high, weight=0.0)}

        def loss(role: str, rows_of_role: Sequence[TrainRow]) -> Sums:
            return self._sums(rows_of_role, with_outside=True)

        return Probe({REPLAY_ROLE: probe_rows}, terms, loss)

    def _sums(self, rows: Sequence[TrainRow], *, with_outside: bool = False) -> Sums:
        """Return the sums over R and over H.

        Parameters
        ----------
        with_outside
            Add the sum over H of the student's mass outside the support. It takes all
            logits of these positions, so that steps do without.
        """
        student = self.stream.student
        temperature = self.stream.settings.replay.temperature
        device = student.device
        targets = [self._targets[row.id] for row in rows]
        batch = collate(rows, device)

        low = padded([target.low for target in targets]).to(device)  # (B, T)
        high = padded([target.high for target in targets]).to(device)  # (B, T)
        is_replayed = low | high  # (B, T)
        hidden = student.hidden(batch, is_replayed)  # (|R| + |H|, D)

        # Which of these positions belong to H, row after row, in the order of the
        # targets.
        is_high = high[:, 1:][is_replayed[:, 1:]]  # (|R| + |H|,)
        high_hidden = hidden[is_high]  # (|H|, D)
        support = torch.cat([target.support for target in targets]).long()
        support = support.to(device)  # (|H|, K)
        logp = torch.cat([target.logp for target in targets]).to(device)  # (|H|, K)

        def divergence(hidden_of_chunk: torch.Tensor, chunk: slice) -> torch.Tensor:
            """Return KL of a chunk's positions on the teacher's support, ``(m,)``."""
            logits = student.logits_at(hidden_of_chunk, support[chunk])
            return support_kl(logp[chunk], logits, temperature=temperature)

        def mass(hidden_of_chunk: torch.Tensor, chunk: slice) -> torch.Tensor:
            """Return the mass outside the support of a chunk's positions, ``(m,)``."""
            return outside_mass(student.logits(hidden_of_chunk), support[chunk])

        # logits_at gathers weight[ids], (m, K, D): so many positions fit max_logits
        # numbers.
        numbers_per_position = support.shape[1] * hidden.shape[1]
        n_that_fit = student.max_logits // max(numbers_per_position, 1)
        n_per_chunk = max(n_that_fit, MIN_POSITIONS_PER_CHUNK)
        sums = {
            "replay_ce": student.loss_sum(hidden, batch, is_replayed, low, token_nll),
            "replay_kl": student.sum_in_chunks(
                high_hidden, divergence, rows=n_per_chunk
            ),
        }
        if with_outside:
            sums[OUTSIDE] = student.sum_in_chunks(high_hidden, mass)
        return sums
