"""PTPC, post-task privacy correction: phase 2 of SPARK.

Around the model that has just learned a task, identifiers are made less likely and
everything else is held where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from spark_train.data import TrainRow, collate
from spark_train.loop import Each, Phase, Step, Sums, Term
from spark_train.losses.logits import demoted_kl, kl, unlikelihood
from spark_train.model.student import targets
from spark_train.stream import Stream

ROLE = "correction"
"""Current and replayed rows are read together; a row's task tells them apart."""
TEACHER = "teacher"

PROBE = 5
"""Rows of each kind (with identifiers, any, replayed) whose terms are told before the
first step and after the last. Fewer would be too few to share their mean."""


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
    is the paper's; that it is constant is **[ours]**.
    """
    settings, student = stream.settings.ptpc, stream.student
    task, size = stream.tasks[k], settings.batch_size
    rows = stream.rows[task]
    current = _draws(stream, k)
    old: list[TrainRow] = []
    probed: list[TrainRow] = []
    if k and settings.old_anchor and settings.lambda_old:
        wanted = settings.steps * settings.old_batch_size
        old = stream.replayed(k, wanted, purpose="anchor")
        probed = stream.replayed(k, PROBE, purpose="probe")
    weights = {
        "ul": settings.ul * settings.lambda_pii * settings.alpha_ul,
        "dkl": settings.dkl * settings.lambda_pii,
        "anchor": settings.anchor * settings.lambda_anchor,
        "old": settings.old_anchor * settings.lambda_old,
    }

    def start() -> None:
        student.freeze(TEACHER)
        if not any(_identifiers(row) for row in rows):
            stream.note(
                f"{stream.label(k)}: no identifier is annotated, or found by rules, in "
                "what is left of the rows after cutting them, so that phase 2 has "
                "nothing to correct (its set P is empty)"
            )

    def choose(step: int) -> Step:
        chosen = current[step * size : (step + 1) * size]
        again = old[step * settings.old_batch_size :][: settings.old_batch_size]
        return batch_of(chosen, again)

    def batch_of(chosen: list[TrainRow], again: list[TrainRow]) -> Step:
        private = sum(map(_identifiers, chosen))
        counts = {
            "ul": private,
            "dkl": private,
            "anchor": sum(len(row) - 1 for row in chosen) - private,
            "old": sum(len(row) - 1 - _identifiers(row) for row in again),
        }
        terms = {n: Term(counts[n], w) for n, w in weights.items() if w}
        facts = {
            "rows": len(chosen),
            "rows_with_identifiers": sum(_identifiers(row) > 0 for row in chosen),
            "rows_replayed": len(again),
        }
        return Step({ROLE: [*chosen, *again]}, terms, facts)

    def own(role: str, row: TrainRow) -> dict[str, Term]:
        if row.task == task:
            return dict(batch_of([row], []).terms)
        found = batch_of([], [row]).terms["old"]
        share = size / settings.old_batch_size
        return {"old": replace(found, weight=found.weight * share)}

    def loss(role: str, some: Sequence[TrainRow]) -> Sums:
        batch = collate(some).to(student.device)
        valid = batch.attention
        with student.teacher(TEACHER):
            before = student.hidden(batch, valid)
        after = student.hidden(batch, valid)
        replayed = torch.tensor([row.task != task for row in some])
        replayed = replayed.to(student.device)[:, None].expand_as(valid)
        is_old, is_pii = replayed[:, 1:][valid[:, 1:]], batch.pii[:, 1:][valid[:, 1:]]
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

        return {name: summed(name) for name, weight in weights.items() if weight}

    return Phase(
        stage=stream.label(k),
        part="priv",
        steps=settings.steps,
        lr=settings.lr,
        cosine=False,
        choose=choose,
        loss=loss,
        start=start,
        each=Each(size, own),
        probe=batch_of(
            [
                *stream.drawn(k, _private(rows), PROBE, purpose="probe pii"),
                *stream.drawn(k, rows, PROBE, purpose="probe all"),
            ],
            probed,
        ),
    )


def _draws(stream: Stream, k: int) -> list[TrainRow]:
    """The current rows of all steps, one after the other."""
    settings, rows = stream.settings.ptpc, stream.rows[stream.tasks[k]]
    private = _private(rows)
    size = settings.steps * settings.batch_size
    every = stream.drawn(k, rows, size, purpose="all")
    chosen = stream.drawn(k, private, size, purpose="pii")
    if settings.draw != "mixed":
        return chosen if settings.draw == "pii" else every
    found: list[TrainRow] = []
    for step in range(settings.steps):
        # Half of each list, so that both are gone through row by row.
        at = step // 2 * settings.batch_size
        source = every if step % 2 else chosen
        found += source[at : at + settings.batch_size]
    return found


def _private(rows: Sequence[TrainRow]) -> Sequence[TrainRow]:
    """The rows with identifiers, or all where there are none."""
    return [row for row in rows if _identifiers(row)] or rows


def _identifiers(row: TrainRow) -> int:
    """Identifier tokens that the model is asked for."""
    return int(row.pii[1:].sum())
