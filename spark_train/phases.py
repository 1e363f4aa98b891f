"""Phases: what a method does on a task, with its rows and its losses.

**Learning**: rows are learned, and beside them what is replayed of earlier ones.

**SD-Replay**, phase 1 of SPARK: replayed rows are distilled from the student's own
past. Low-sensitivity response tokens are learned as they are; every other sensitive
position keeps the distribution that the corrected model of the previous task had there,
so that replay does not teach identifiers again.

**PTPC**, post-task privacy correction, phase 2 of SPARK: around the model that has just
learned a task, identifiers are made less likely and everything else is held where it
is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from spark_audit.errors import InputError
from spark_train.loop import (
    Phase,
    Rows,
    State,
    Step,
    StepRecord,
    Sums,
    Term,
    gathered,
    run_phase,
)
from spark_train.losses import (
    demoted_kl,
    kl,
    support_kl,
    token_nll,
    top_k,
    unlikelihood,
)
from spark_train.stream import Stream
from spark_train.student import Loss, Student
from spark_train.token_scores import scored
from spark_train.training_rows import TrainRow, collate, padded

TASK, REPLAY = "task", "replay"
"""Roles of rows: a batch's current and its replayed ones."""


# --- plain fine-tuning ----------------------------------------------------------------


def response_loss(
    student: Student, rows: Sequence[TrainRow], *, scope: str, name: str = TASK
) -> Sums:
    """The summed NLL of the tokens that a scope covers (Eq. "task")."""
    batch = collate(rows, student.device)
    mask = batch.response if scope == "response" else batch.attention
    hidden = student.hidden(batch, mask)
    return {name: student.summed(hidden, batch, mask, mask, token_nll)}


def covered(rows: Sequence[TrainRow], scope: str) -> int:
    """Tokens that :func:`response_loss` covers; a row's first is never predicted."""
    if scope == "full":
        return sum(len(row) - 1 for row in rows)
    return sum(int(row.response[1:].sum()) for row in rows)


def fit(
    student: Student,
    rows: Sequence[TrainRow],
    order: np.ndarray,
    *,
    name: str,
    batch_size: int,
    lr: float,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[float]:
    """Learn whole rows and nothing else; the loss of each step, nats per token.

    A fresh AdamW without weight decay; any dropout follows ``seed`` alone, so that a
    run on one machine repeats to the bit.

    Parameters
    ----------
    order
        Shape ``(n,)``: indices of the rows as they are read, ``batch_size`` in each
        step.
    lr
        Falls by half a cosine to 0.
    progress
        Called after each step with the steps done and all steps.

    Raises
    ------
    InputError
        If a loss is not finite.
    """
    losses: list[float] = []
    steps = math.ceil(len(order) / batch_size)

    def choose(step: int) -> Step:
        chosen = [rows[i] for i in order[step * batch_size :][:batch_size]]
        return Step({TASK: chosen})

    def after(record: StepRecord, state: Callable[[], State]) -> None:
        losses.append(float(record["loss"]))
        progress(len(losses), steps)

    phase = Phase(
        stage=name,
        part=TASK,
        steps=steps,
        lr=lr,
        choose=choose,
        terms=lambda rows: {TASK: Term(covered(rows[TASK], "full"))},
        loss=lambda role, some: response_loss(student, some, scope="full"),
    )
    run_phase(student, phase, seed=seed, after=after)
    return losses


# --- a task of a stream ---------------------------------------------------------------


class Rehearsal:
    """Experience replay: replayed rows are learned as current ones are."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def start(self, rows: Sequence[TrainRow], steps: int) -> None:
        """Called before the first of the steps, with all rows that will be replayed."""

    def end(self) -> None:
        """Called after the last step."""

    def terms(self, rows: Sequence[TrainRow]) -> dict[str, Term]:
        """The terms of a batch's replayed rows: here the mean over their responses."""
        settings = self.stream.settings
        count = covered(rows, settings.loss.scope)
        return {REPLAY: Term(count, settings.replay.lambda_)}

    def loss(self, rows: Sequence[TrainRow]) -> Sums:
        """Their sums over some of these rows."""
        scope = self.stream.settings.loss.scope
        return response_loss(self.stream.student, rows, scope=scope, name=REPLAY)


def learning(
    stream: Stream, k: int, *, recall: Rehearsal | None = None, purpose: str = TASK
) -> Phase:
    """The phase in which task ``k`` is learned.

    ``L_train = L_task + lambda_replay L_replay`` (SPARK, Eq. "train"): the mean NLL of
    the current rows' responses, and what ``recall`` asks of the replayed rows. Each
    current row is seen once an epoch. Of earlier tasks a list as long as the task's own
    rows is drawn once, evenly over them, and reshuffled each epoch **[ours]**.

    Where the stream samples by Poisson, each row comes into a step's batch by a draw of
    its own, at rates that give as many rows as expected: the current ones alike, the
    replayed ones evenly over earlier tasks, out of all that is kept of them.

    Parameters
    ----------
    k
        The task, from 0.
    recall
        What replayed rows are for; ``None``, or the first task: no replay.
    purpose
        Of the order of rows, for its seed.

    Raises
    ------
    InputError
        If a batch is too small to hold a replayed row, too.
    """
    settings, task, label = stream.settings, stream.tasks[k], stream.label(k)
    rows, scope, size = stream.rows[task], settings.loss.scope, settings.batch_size
    memory: dict[str, list[TrainRow]] = {}
    if recall is not None and k and settings.replay.enabled:
        memory = {name: some for name, some in stream.earlier(k).items() if some}
    old = [row for some in memory.values() for row in some]
    if old and not stream.poisson:
        old = stream.replayed(k, len(rows), purpose="list")
    # Asked only where rows are replayed.
    replay = recall if recall is not None and old else Rehearsal(stream)
    if old and size < 2:
        raise InputError(
            "batch_size 1 has no room for a replayed row next to the current one",
            where="--set",
            fix="give 2 or more",
        )
    n_old = min(max(round(size * settings.replay.ratio), 1), size - 1) if old else 0
    n_new = size - n_old
    an_epoch = math.ceil(len(rows) / n_new)
    steps, expected = settings.epochs * an_epoch, min(n_new, len(rows))
    rates = {task: min(n_new / len(rows), 1.0)}
    for name, some in memory.items():
        rates[name] = min(n_old / len(memory) / len(some), 1.0)
    replayed = sum(rates[name] * len(some) for name, some in memory.items())

    def choose(step: int) -> Step:
        """The rows of a step, each current one once an epoch."""
        epoch, at = divmod(step, an_epoch)
        order = stream.order(k, epoch, size=len(rows), purpose=purpose)
        current = [rows[i] for i in order[at * n_new : (at + 1) * n_new]]
        if not old:
            return Step({TASK: current})
        order = stream.order(k, epoch, size=len(old), purpose=REPLAY)
        # The last batch of an epoch is smaller, in both parts alike.
        end = at * n_old + math.ceil(n_old * len(current) / n_new)
        again = [old[i] for i in order.take(range(at * n_old, end), mode="wrap")]
        return Step({TASK: current, REPLAY: again})

    def sample(step: int) -> Step:
        """The rows of a step by Poisson sampling."""
        current, *earlier = (
            stream.sampled(step, some, rates[name], purpose=f"{label} {name}")
            for name, some in ((task, rows), *memory.items())
        )
        again = {REPLAY: [row for some in earlier for row in some]} if old else {}
        return Step({TASK: current, **again})

    def terms(batch: Rows) -> dict[str, Term]:
        found = {TASK: Term(covered(batch[TASK], scope))} if TASK in batch else {}
        return found | (replay.terms(batch[REPLAY]) if REPLAY in batch else {})

    def loss(role: str, some: Sequence[TrainRow]) -> Sums:
        if role == REPLAY:
            return replay.loss(some)
        return response_loss(stream.student, some, scope=scope)

    return Phase(
        stage=label,
        part=TASK,
        steps=steps,
        lr=settings.lr,
        choose=sample if stream.poisson else choose,
        terms=terms,
        loss=loss,
        start=lambda: replay.start(old, steps),
        end=replay.end,
        size=expected,
        shares=dict.fromkeys(replay.terms([]), (expected, replayed)),
        rates=rates if stream.poisson else None,
    )


# --- replay of distilled rows ---------------------------------------------------------


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


# --- correction -----------------------------------------------------------------------

ROLE = "correction"
"""Current and replayed rows are read together; a row's task tells them apart."""
TEACHER = "teacher"


def correction(stream: Stream, k: int) -> Phase:
    """The phase that follows the learning of task ``k`` (SPARK, Eq. "privacy").

    The student starts from theta_k^task and is anchored to a frozen copy of it. All
    positions of a text count, the prompt's too. P are identifiers: those that rules
    find, as the paper has them, and beside them annotated ones, such as names
    **[ours]**. Q are the other positions of current rows, Q_old those of replayed rows
    (from the second task on):

    ``lambda_pii (L_dKL + alpha_UL L_UL) + lambda_anchor L_anchor + lambda_old L_old``

    A term whose set is empty is 0. Current rows are drawn from those with identifiers
    and from all rows in turns, so that P is rarely empty **[ours]**. The learning rate
    is the paper's; that it is constant by default is **[ours]**.
    """
    student, settings = stream.student, stream.settings.ptpc
    task, label = stream.tasks[k], stream.label(k)
    size, old_size = settings.batch_size, settings.old_batch_size
    current = _draws(stream, k)
    old: list[TrainRow] = []
    if k and settings.old_anchor and settings.lambda_old:
        old = stream.replayed(k, settings.steps * old_size, purpose="anchor")
    every = {
        "ul": settings.ul * settings.lambda_pii * settings.alpha_ul,
        "dkl": settings.dkl * settings.lambda_pii,
        "anchor": settings.anchor * settings.lambda_anchor,
        "old": settings.old_anchor * settings.lambda_old,
    }
    weights = {name: weight for name, weight in every.items() if weight}

    def start() -> None:
        student.freeze(TEACHER)
        if not any(map(_identifiers, stream.rows[task])):
            stream.note(
                f"{label}: no identifier is annotated, or found by rules, in what is "
                "left of the rows after cutting them, so that phase 2 has nothing to "
                "correct (its set P is empty)"
            )

    def choose(step: int) -> Step:
        chosen = current[step * size :][:size]
        again = old[step * old_size :][:old_size]
        facts = {
            "rows": len(chosen),
            "rows_with_identifiers": sum(_identifiers(row) > 0 for row in chosen),
            "rows_replayed": len(again),
        }
        return Step({ROLE: [*chosen, *again]}, facts)

    def terms(rows: Rows) -> dict[str, Term]:
        private = other = earlier = 0
        for row in rows[ROLE]:
            named = _identifiers(row)
            if row.task == task:
                private, other = private + named, other + len(row) - 1 - named
            else:
                earlier += len(row) - 1 - named
        counts = {"ul": private, "dkl": private, "anchor": other, "old": earlier}
        return {name: Term(counts[name], weight) for name, weight in weights.items()}

    def loss(role: str, some: Sequence[TrainRow]) -> Sums:
        batch = collate(some, student.device)
        every = batch.attention
        with student.teacher(TEACHER):
            before = student.hidden(batch, every)
        after = student.hidden(batch, every)
        own = torch.tensor([[row.task == task] for row in some], device=student.device)
        named, other = batch.pii & own, ~batch.pii
        parts: dict[str, tuple[torch.Tensor, Loss, torch.Tensor | None]] = {
            "ul": (named, unlikelihood, None),
            "dkl": (named, demoted_kl, before),
            "anchor": (other & own, _anchored, before),
            "old": (other & ~own, _anchored, before),
        }
        return {
            name: student.summed(after, batch, every, part, value, teacher=known)
            for name, (part, value, known) in parts.items()
            if name in weights
        }

    return Phase(
        stage=label,
        part="priv",
        steps=settings.steps,
        lr=settings.lr,
        cosine=settings.schedule == "cosine",
        choose=choose,
        terms=terms,
        loss=loss,
        start=start,
        size=size,
        shares={"old": (size, old_size)},
    )


def _anchored(was: torch.Tensor, logits: torch.Tensor, _: object) -> torch.Tensor:
    return kl(was, logits)


def _draws(stream: Stream, k: int) -> list[TrainRow]:
    """The current rows of all steps, one after the other."""
    settings, rows = stream.settings.ptpc, stream.rows[stream.tasks[k]]
    size = settings.batch_size
    private = [row for row in rows if _identifiers(row)] or rows
    lists = {
        draw: stream.drawn(k, some, settings.steps * size, purpose=draw)
        for draw, some in (("pii", private), ("all", rows))
    }
    if settings.draw in lists:
        return lists[settings.draw]
    # Half of each list, so that both are gone through row by row.
    turns = [lists["all" if step % 2 else "pii"] for step in range(settings.steps)]
    return [row for i, some in enumerate(turns) for row in some[i // 2 * size :][:size]]


def _identifiers(row: TrainRow) -> int:
    """Identifier tokens that the model is asked for."""
    return int(row.pii[1:].sum())
