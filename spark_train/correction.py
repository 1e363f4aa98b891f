"""PTPC, post-task privacy correction, phase 2 of SPARK.

Around the model that has just learned a task, identifiers are made less likely and
everything else is held where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spark_train.loop import Phase, Rows, Step, Sums, Term
from spark_train.losses import (
    demoted_kl,
    kl,
    unlikelihood,
)
from spark_train.stream import Stream
from spark_train.student import Loss
from spark_train.training_rows import TrainRow, collate

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
