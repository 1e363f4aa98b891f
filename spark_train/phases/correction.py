"""PTPC, post-task privacy correction: phase 2 of SPARK.

Around the model that has just learned a task, identifiers are made less likely and
everything else is held where it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from spark_train.loop import Phase, Step, Sums, Term
from spark_train.losses import demoted_kl, kl, unlikelihood
from spark_train.model.student import targets
from spark_train.stream import Stream
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
    settings, at_work = stream.settings.ptpc, _Correction(stream, k)
    return Phase(
        stage=stream.label(k),
        part="priv",
        steps=settings.steps,
        lr=settings.lr,
        cosine=settings.schedule == "cosine",
        choose=at_work.choose,
        loss=at_work.loss,
        start=at_work.start,
        of_row=at_work.of_row,
        size=settings.batch_size,
    )


class _Correction:
    """The rows, terms and losses of one task's correction."""

    def __init__(self, stream: Stream, k: int) -> None:
        self.stream, self.k, self.student = stream, k, stream.student
        self.settings = settings = stream.settings.ptpc
        self.task = stream.tasks[k]
        self.rows = stream.rows[self.task]
        self.current = _draws(stream, k)
        self.old: list[TrainRow] = []
        if k and settings.old_anchor and settings.lambda_old:
            wanted = settings.steps * settings.old_batch_size
            self.old = stream.replayed(k, wanted, purpose="anchor")
        weights = {
            "ul": settings.ul * settings.lambda_pii * settings.alpha_ul,
            "dkl": settings.dkl * settings.lambda_pii,
            "anchor": settings.anchor * settings.lambda_anchor,
            "old": settings.old_anchor * settings.lambda_old,
        }
        self.weights = {name: weight for name, weight in weights.items() if weight}

    def start(self) -> None:
        """Freeze the teacher."""
        self.student.freeze(TEACHER)
        if not any(_identifiers(row) for row in self.rows):
            self.stream.note(
                f"{self.stream.label(self.k)}: no identifier is annotated, or found by "
                "rules, in what is left of the rows after cutting them, so that phase "
                "2 has nothing to correct (its set P is empty)"
            )

    def choose(self, step: int) -> Step:
        """The rows of a step."""
        size, old_size = self.settings.batch_size, self.settings.old_batch_size
        again = self.old[step * old_size :][:old_size]
        return self.batch(self.current[step * size : (step + 1) * size], again)

    def batch(self, chosen: list[TrainRow], again: list[TrainRow]) -> Step:
        """Current and replayed rows as a step."""
        private = sum(map(_identifiers, chosen))
        counts = {
            "ul": private,
            "dkl": private,
            "anchor": sum(len(row) - 1 for row in chosen) - private,
            "old": sum(len(row) - 1 - _identifiers(row) for row in again),
        }
        terms = {n: Term(counts[n], weight) for n, weight in self.weights.items()}
        facts = {
            "rows": len(chosen),
            "rows_with_identifiers": sum(_identifiers(row) > 0 for row in chosen),
            "rows_replayed": len(again),
        }
        return Step({ROLE: [*chosen, *again]}, terms, facts)

    def of_row(self, role: str, row: TrainRow) -> Mapping[str, Term]:
        """The terms of one row's own loss."""
        if row.task == self.task:
            return self.batch([row], []).terms
        old = self.batch([], [row]).terms["old"]
        share = self.settings.batch_size / self.settings.old_batch_size
        return {"old": replace(old, weight=old.weight * share)}

    def loss(self, role: str, some: Sequence[TrainRow]) -> Sums:
        """Sums over P, Q and Q_old."""
        student = self.student
        batch = collate(some, student.device)
        valid = batch.attention
        with student.teacher(TEACHER):
            before = student.hidden(batch, valid)
        after = student.hidden(batch, valid)
        old = torch.tensor([row.task != self.task for row in some], device=valid.device)
        is_old = (old[:, None] & valid)[:, 1:][valid[:, 1:]]
        is_pii = batch.pii[:, 1:][valid[:, 1:]]
        sets = {
            "ul": is_pii & ~is_old,
            "dkl": is_pii & ~is_old,
            "anchor": ~is_pii & ~is_old,
            "old": ~is_pii & is_old,
        }
        ids = targets(batch, valid)

        def summed(name: str) -> torch.Tensor:
            chosen = sets[name]
            was, goal = before[chosen], ids[chosen]

            def value(part: torch.Tensor, at: slice) -> torch.Tensor:
                logits = student.logits(part)
                if name == "ul":
                    return unlikelihood(logits, goal[at])
                if name == "dkl":
                    return demoted_kl(student.logits(was[at]), logits, goal[at])
                return kl(student.logits(was[at]), logits)

            return student.total(after[chosen], value)

        return {name: summed(name) for name in self.weights}


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
