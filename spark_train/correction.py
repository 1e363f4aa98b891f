"""SPARK's second phase: post-task privacy correction (PTPC).

Starting from the model that has just learned a task, identifiers become less likely,
while everything else is held in place.

A further term of the loss is an entry in ``parts`` of :func:`_sums`, in
:func:`_counts` and in :func:`_weights`, by one name, which is also its name in
``metrics.jsonl``. What is only recorded is an entry of the first two, and in
:data:`RECORDED`.

In shapes, ``B`` is the rows of a batch, ``T`` their tokens, ``n`` all tokens but the
first of each row, ``H`` the hidden size and ``V`` the vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from spark_train.loop import Phase, Probe, Rows, Step, Sums, Term
from spark_train.losses import demoted_kl, kl, token_nll, unlikelihood
from spark_train.stream import Stream
from spark_train.student import Loss
from spark_train.training_rows import TrainRow, collate
from spark_train.training_settings import Ptpc

ROLE = "correction"
"""The only role of rows in a batch: current and replayed rows are read together, and a
row's task tells them apart."""

TEACHER = "teacher"
"""Name of the frozen copy that the student is anchored to."""

PROBE_ROWS_OF_EACH_KIND = 3
"""Rows of each kind in the probe: with identifiers, any of the task, and replayed."""

RECORDED = ("pii_nll", "other_nll")
"""What a probe records beside the terms: the NLL over P and over Q."""


def correction_phase(stream: Stream, k: int) -> Phase:
    """Return the phase that follows the learning of task ``k`` (SPARK, Eq. "privacy").

    The student starts from theta_k^task and is anchored to a frozen copy of it. All
    positions of a text count, including those of the prompt. P are identifiers: those
    that rules find, as in the paper, and also annotated ones, such as names **[ours]**.
    Q are the other positions of current rows, and Q_old those of replayed rows (from
    the second task on):

    ``lambda_pii (L_dKL + alpha_UL L_UL) + lambda_anchor L_anchor + lambda_old L_old``

    A term with an empty set is 0. Current rows are drawn alternately from those with
    identifiers and from all rows, so that P is rarely empty **[ours]**. The learning
    rate is the paper's; it is constant by default **[ours]**.
    """
    student = stream.student
    settings = stream.settings.ptpc
    task = stream.tasks[k]
    label = stream.stage_name(k)
    size = settings.batch_size
    old_size = settings.old_batch_size

    current_rows = _current_rows(stream, k)
    old_rows: list[TrainRow] = []
    if k and settings.old_anchor and settings.lambda_old:
        old_rows = stream.draw_replayed(k, settings.steps * old_size, purpose="anchor")
    probe_rows = _probe_rows(stream, k, has_old=bool(old_rows))

    weights = _weights(settings)  # name of a term that is on -> its weight

    def start() -> None:
        """Freeze the teacher; leave a note if there is nothing to correct."""
        # The weights right after the task: theta_k^task.
        student.freeze(TEACHER)
        if not any(_n_identifier_tokens(row) for row in stream.rows[task]):
            stream.note(
                f"{label}: no identifier is annotated, or found by rules, in what is "
                "left of the rows after cutting them, so that phase 2 has nothing to "
                "correct (its set P is empty)"
            )

    def choose(step: int) -> Step:
        """Return the rows of a step, and how many there are of each kind."""
        # All rows were drawn above, and a step takes a slice, so that a run can resume.
        new = current_rows[step * size :][:size]
        old = old_rows[step * old_size :][:old_size]
        facts = {
            "rows": len(new),
            "rows_with_identifiers": sum(_n_identifier_tokens(row) > 0 for row in new),
            "rows_replayed": len(old),
        }
        return Step({ROLE: [*new, *old]}, facts)

    def probe_terms(rows: Rows) -> dict[str, Term]:
        """Return the terms that are on, and those that are only recorded."""
        counts = _counts(rows[ROLE], task)
        recorded = {name: Term(counts[name], weight=0.0) for name in RECORDED}
        return {**terms(rows), **recorded}

    def probe_loss(role: str, rows: Sequence[TrainRow]) -> Sums:
        return _sums(stream, rows, task, terms_on=[*weights, *RECORDED])

    def terms(rows: Rows) -> dict[str, Term]:
        counts = _counts(rows[ROLE], task)
        return {name: Term(counts[name], weight) for name, weight in weights.items()}

    def loss(role: str, rows: Sequence[TrainRow]) -> Sums:
        return _sums(stream, rows, task, terms_on=weights)

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
        expected_rows=size,
        weight_ratios={"old": (size, old_size)},
        probe=Probe({ROLE: probe_rows}, probe_terms, probe_loss),
    )


def _sums(
    stream: Stream, rows: Sequence[TrainRow], task: str, *, terms_on: Collection[str]
) -> Sums:
    """Return the sums of the terms that are on, over their positions in some rows.

    Parameters
    ----------
    task
        The current task, which tells current rows from replayed ones.
    terms_on
        Names of the terms that are on.
    """
    student = stream.student
    batch = collate(rows, student.device)
    is_token = batch.attention  # (B, T)

    # Both models read all tokens once, and each term takes its positions of these.
    with student.teacher(TEACHER):
        teacher_hidden = student.hidden(batch, is_token)  # (n, H)
    hidden = student.hidden(batch, is_token)  # (n, H)

    is_current = torch.tensor(
        [[row.task == task] for row in rows], device=student.device
    )  # (B, 1)
    in_p = batch.pii & is_current  # (B, T)
    in_q = ~batch.pii & is_current  # (B, T)
    in_q_old = ~batch.pii & ~is_current  # (B, T)

    # Name of a term -> its positions, its loss, and the teacher for comparison.
    parts: dict[str, tuple[torch.Tensor, Loss, torch.Tensor | None]] = {
        "ul": (in_p, unlikelihood, None),
        "dkl": (in_p, demoted_kl, teacher_hidden),
        "anchor": (in_q, _anchor_loss, teacher_hidden),
        "old": (in_q_old, _anchor_loss, teacher_hidden),
        "pii_nll": (in_p, token_nll, None),
        "other_nll": (in_q, token_nll, None),
    }

    sums = {}
    for name, (mask, loss_of_logits, teacher) in parts.items():
        if name in terms_on:
            sums[name] = student.loss_sum(
                hidden, batch, is_token, mask, loss_of_logits, teacher=teacher
            )
    return sums


def _counts(rows: Sequence[TrainRow], task: str) -> dict[str, int]:
    """Count the positions of each term of the loss, by its name in the record."""
    n_p = 0  # |P|: identifiers of current rows
    n_q = 0  # |Q|: other tokens of current rows
    n_q_old = 0  # |Q_old|: other tokens of replayed rows
    for row in rows:
        n_identifiers = _n_identifier_tokens(row)
        n_others = len(row) - 1 - n_identifiers
        if row.task == task:
            n_p += n_identifiers
            n_q += n_others
        else:
            # Identifiers of replayed rows were already corrected, so they are left
            # alone.
            n_q_old += n_others
    return {
        "ul": n_p,
        "dkl": n_p,
        "anchor": n_q,
        "old": n_q_old,
        "pii_nll": n_p,
        "other_nll": n_q,
    }


def _weights(settings: Ptpc) -> dict[str, float]:
    """Return the weight of each term that is on, by its name in the record."""
    # `ul`, `dkl`, `anchor` and `old_anchor` are switches: False is a weight of 0.
    weights = {
        "ul": settings.ul * settings.lambda_pii * settings.alpha_ul,
        "dkl": settings.dkl * settings.lambda_pii,
        "anchor": settings.anchor * settings.lambda_anchor,
        "old": settings.old_anchor * settings.lambda_old,
    }
    return {name: weight for name, weight in weights.items() if weight}


def _anchor_loss(
    teacher_logits: torch.Tensor, logits: torch.Tensor, _: object
) -> torch.Tensor:
    """Return the divergence from the teacher ``(n,)`` for logits ``(n, V)``."""
    return kl(teacher_logits, logits)


def _current_rows(stream: Stream, k: int) -> list[TrainRow]:
    """Return the current rows of all steps, in order of the steps."""
    settings = stream.settings.ptpc
    size = settings.batch_size
    rows = stream.rows[stream.tasks[k]]
    with_identifiers = _rows_with_identifiers(rows)

    n_drawn = settings.steps * size
    # By the values of `ptpc.draw`; `mixed` takes from both.
    draws = {
        "pii": stream.draw_evenly(k, with_identifiers, n_drawn, purpose="pii"),
        "all": stream.draw_evenly(k, rows, n_drawn, purpose="all"),
    }
    if settings.draw in draws:
        return draws[settings.draw]

    # The two draws alternate. Half of each is used, so that both go through their rows.
    current_rows: list[TrainRow] = []
    for step in range(settings.steps):
        draw = draws["all" if step % 2 else "pii"]
        current_rows += draw[step // 2 * size :][:size]
    return current_rows


def _probe_rows(stream: Stream, k: int, *, has_old: bool) -> list[TrainRow]:
    """Return the rows whose terms are recorded now and then.

    Parameters
    ----------
    has_old
        Whether steps read replayed rows; the probe then has some, too.
    """
    rows = stream.rows[stream.tasks[k]]
    with_identifiers = _rows_with_identifiers(rows)

    probe_rows = [
        *stream.draw_evenly(
            k, with_identifiers, PROBE_ROWS_OF_EACH_KIND, purpose="probe pii"
        ),
        *stream.draw_evenly(k, rows, PROBE_ROWS_OF_EACH_KIND, purpose="probe all"),
    ]
    if has_old:
        probe_rows += stream.draw_replayed(
            k, PROBE_ROWS_OF_EACH_KIND, purpose="probe old"
        )
    return probe_rows


def _rows_with_identifiers(rows: Sequence[TrainRow]) -> Sequence[TrainRow]:
    """Return the rows that have identifiers; all rows if none has any."""
    return [row for row in rows if _n_identifier_tokens(row)] or rows


def _n_identifier_tokens(row: TrainRow) -> int:
    """Return how many identifier tokens the model must predict: never the first one."""
    return int(row.pii[1:].sum())
