"""What to change before a training, in sentences.

The words are the templates ``plan.advice.*``. A further piece of advice is a template
and a line of :func:`advice`, in the order in which readers see them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from spark_audit.planning.loss import LossCounts
from spark_audit.planning.plan import TrainingPlan
from spark_audit.planning.repeats import Repeats
from spark_audit.sentences import render

MIN_SHARE = 0.05
"""Smaller shares of copies, or of identifiers that are cut off, are no advice."""

LARGE_MEMORY = math.log(1.25)
"""Nats per token: if only more memory is detected, more rows are advised."""


def advice(plan: TrainingPlan) -> list[str]:
    """Return what to change before a training; empty: nothing."""
    return [
        *_missing_sides(plan),
        *_copies(plan),
        *_leftovers(plan),
        *_loss(plan.loss),
        *_doses(plan.repeats),
        *_canaries(plan),
        *_power(plan),
    ]


def _missing_sides(plan: TrainingPlan) -> Iterator[str]:
    """Yield what is missing for a comparison of trained and held-out identifiers."""
    memory = plan.effect("memory")
    if memory is None:
        return
    if not memory.n_trained:
        yield render("plan.advice.no_identifier")
    elif not memory.n_held_out:
        yield render("plan.advice.no_held_out")


def _copies(plan: TrainingPlan) -> Iterator[str]:
    """Yield advice on rows and identifiers of both sides."""
    repeats = plan.repeats
    if repeats.n_copied_rows:
        yield render(
            "plan.advice.copied_rows",
            count=repeats.n_copied_rows,
            of=repeats.n_held_out_rows,
        )
    elif plan.n_near_copies > MIN_SHARE * plan.n_rows:
        yield render("plan.advice.near_copies", count=plan.n_near_copies)

    n_held_out = sum(repeats.held_out_by_type.values()) + repeats.n_shared_identifiers
    if repeats.n_shared_identifiers > MIN_SHARE * n_held_out:
        yield render(
            "plan.advice.shared_identifiers",
            count=repeats.n_shared_identifiers,
            of=n_held_out,
        )


def _leftovers(plan: TrainingPlan) -> Iterator[str]:
    """Yield advice on what a redaction left over, and would leave over."""
    left = plan.leftovers
    if left is not None and left.n_left:
        parts = []
        counts = {
            "still_held": left.n_still_held,
            "masked": left.n_masked,
            "rests": left.n_rests,
            "fragments": left.n_fragments,
        }
        for name, count in counts.items():
            if count:
                parts.append(
                    render(f"plan.left.{name}", count=count, row=left.first_rows[name])
                )
        yield render("plan.advice.leftovers", parts=parts)
    if plan.repeats.n_unannotated:
        yield render("plan.advice.unannotated", count=plan.repeats.n_unannotated)


def _loss(loss: LossCounts) -> Iterator[str]:
    """Yield advice on identifiers that the loss does not see."""
    n_identifiers = loss.n_identifiers
    n_read_only = loss.total("read only")
    if n_identifiers and not loss.total("in the loss"):
        yield render("plan.advice.none_in_loss", of=n_identifiers)
    elif n_read_only > n_identifiers / 2:
        yield render(
            "plan.advice.read_only",
            count=n_read_only,
            of=n_identifiers,
            roles=roles_read_only(loss),
        )

    n_cut_off = loss.total("cut off")
    if n_cut_off and n_cut_off >= MIN_SHARE * n_identifiers:
        yield render("plan.advice.cut_off", count=n_cut_off, of=n_identifiers)


def roles_read_only(loss: LossCounts) -> list[str]:
    """Return the roles of messages with read-only identifiers, with their counts."""
    counts = []
    for role, states in loss.by_role.items():
        count = states.get("read only", 0)
        if count:
            counts.append((count, role or render("plan.no_role")))
    counts.sort(key=lambda pair: -pair[0])
    return [f"{role} {count}" for count, role in counts]


def _doses(repeats: Repeats) -> Iterator[str]:
    """Yield advice on texts and identifiers that stand in many trained rows."""
    if repeats.highest:
        highest = repeats.highest[0]
        yield render(
            "plan.advice.high_dose",
            count=repeats.identifiers.many,
            type=highest.type,
            dose=highest.dose,
            row=highest.first_row,
        )

    texts = repeats.texts
    if texts is not None:
        n_repeated = texts.few + texts.many
        if texts.many or n_repeated > MIN_SHARE * texts.total:
            yield render("plan.advice.repeated_rows", count=n_repeated, most=texts.most)


def _canaries(plan: TrainingPlan) -> Iterator[str]:
    """Yield advice on canaries, which can be planted before a training only."""
    if not plan.n_canaries:
        by_pairs = plan.epsilons[0]
        yield render("plan.advice.no_canaries", pairs=by_pairs.needed[1.0])
        return

    if plan.n_canaries_unranked:
        yield render(
            "plan.advice.unranked",
            count=plan.n_canaries_unranked,
            of=plan.n_canaries,
        )
    if plan.loss.n_canaries_without_loss:
        yield render(
            "plan.advice.canaries_without_loss",
            count=plan.loss.n_canaries_without_loss,
            of=plan.loss.n_canaries,
        )


def _power(plan: TrainingPlan) -> Iterator[str]:
    """Yield advice if only a large memory of identifiers would be detected."""
    memory = plan.effect("memory")
    if memory is None or not (memory.n_trained and memory.n_held_out):
        return
    is_weak = memory.effect is None or memory.effect > LARGE_MEMORY
    if is_weak and memory.needed is not None:
        n_trained, n_held_out = memory.needed
        yield render(
            "plan.advice.few_groups",
            trained=n_trained,
            held_out=n_held_out,
            has_trained=memory.n_trained,
            has_held_out=memory.n_held_out,
        )
