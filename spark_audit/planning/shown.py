"""A plan as readers see it: an answer, what to change, and tables.

The command line prints what :func:`shown_plan` returns, and writes it as Markdown. The
words are the templates ``plan.*``. A further table is one of :func:`shown_plan`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_audit.audits.planned_effects import PlannedEffect
from spark_audit.planning.advice import advice, roles_read_only
from spark_audit.planning.epsilon import EpsilonPlan
from spark_audit.planning.loss import STATES
from spark_audit.planning.plan import TrainingPlan
from spark_audit.planning.repeats import DoseCounts
from spark_audit.report.cells import ReportTable, records_table
from spark_audit.sentences import render
from spark_audit.sentences.effects import signed_effect

TableRecords = list[dict[str, object]]
"""Records with equal fields, which are a table's columns."""


@dataclass(frozen=True, kw_only=True)
class ShownPlan:
    """The parts of a plan in the order in which they are read.

    Attributes
    ----------
    headline
        The answer: ready, or how many things to change.
    changes
        What to change before the training.
    remarks
        Sentences on what is as it is.
    tables
        The tables that everybody needs.
    details
        Further tables.
    """

    headline: str
    changes: Sequence[str]
    remarks: Sequence[str]
    tables: Sequence[ReportTable]
    details: Sequence[ReportTable]


def shown_plan(plan: TrainingPlan) -> ShownPlan:
    """Return a plan in sentences and tables."""
    changes = advice(plan)
    return ShownPlan(
        headline=_headline(plan, len(changes)),
        changes=changes,
        remarks=[*_remarks(plan)],
        tables=[_effects_table(plan), _doses_table(plan)],
        details=[table for table in _details(plan) if table.rows],
    )


def _headline(plan: TrainingPlan, n_changes: int) -> str:
    """Return the answer in one line."""
    if not plan.has_text:
        return render("plan.no_text", name=plan.name)
    if not n_changes:
        return render("plan.ready", name=plan.name)
    key = "change_one" if n_changes == 1 else "change"
    return render(f"plan.{key}", name=plan.name, count=n_changes)


def _remarks(plan: TrainingPlan) -> Iterator[str]:
    """Yield sentences on the loss, on copies and on redacted rows."""
    loss = plan.loss
    if loss.is_known and loss.n_identifiers:
        yield render(
            "plan.remark.loss",
            in_loss=loss.total("in the loss"),
            of=loss.n_identifiers,
            tokens=loss.n_tokens_with_loss,
            of_tokens=loss.n_tokens,
            cut_off=loss.total("cut off"),
        )
        roles = roles_read_only(loss)
        if roles:
            yield render("plan.remark.read_only", roles=roles)

    repeats = plan.repeats
    if not plan.has_text:
        yield render("plan.remark.groups", groups=repeats.n_shared_groups)
        return
    yield render(
        "plan.remark.copies",
        copied=repeats.n_copied_rows,
        near=plan.n_near_copies,
        shared=repeats.n_shared_identifiers,
        groups=repeats.n_shared_groups,
    )
    if plan.leftovers is not None and not plan.leftovers.n_left:
        yield render("plan.remark.redacted", rows=plan.leftovers.n_redacted_rows)


def _effects_table(plan: TrainingPlan) -> ReportTable:
    """Return the table of what each audit could detect, and of claims of epsilon."""
    records = [_effect_record(effect) for effect in plan.effects]
    records += [_epsilon_record(epsilon) for epsilon in plan.epsilons]
    remarks = [render("plan.legend")]
    memory = plan.effect("memory")
    if memory is not None:
        remarks.append(render("plan.assumes", sd=memory.assumed_sd))
    return records_table(
        _titled(records), title=render("plan.effects"), remarks=tuple(remarks)
    )


def _titled(records: TableRecords) -> TableRecords:
    """Return records with the words of their columns as keys."""
    titled = []
    for record in records:
        titled.append(
            {render(f"plan.column.{name}"): value for name, value in record.items()}
        )
    return titled


def _sides(n_trained: int, n_held_out: int | None) -> str:
    """Return numbers of trained and held-out units as a cell."""
    if n_held_out is None:
        return str(n_trained)
    return f"{n_trained} / {n_held_out}"


def _effect_record(effect: PlannedEffect) -> dict[str, object]:
    """Return the line of a planned effect."""
    smallest = render("plan.unresolved")
    if effect.effect is not None:
        smallest = _size(effect, effect.effect)

    needed = render("plan.enough") if effect.is_enough else render("plan.unresolved")
    if effect.needed is not None:
        target = _size(effect, effect.target)
        needed = f"{target}: {_sides(*effect.needed)}"
    return {
        "attack": render(f"plan.figure.{effect.figure}"),
        "units": _sides(effect.n_trained, effect.n_held_out),
        "smallest": smallest,
        "needed": needed,
    }


def _size(effect: PlannedEffect, size: float) -> str:
    """Return the size of an effect on the scale of its attack."""
    return render(
        f"plan.size.{effect.figure}",
        signed=signed_effect(size, effect.unit),
        size=size,
        of_100=50 + 100 * size,
    )


def _epsilon_record(epsilon: EpsilonPlan) -> dict[str, object]:
    """Return the line of the claims that canaries could refute."""
    largest = render("plan.refutes_none")
    if epsilon.largest:
        largest = render("plan.size.epsilon", largest=epsilon.largest)

    needed = []
    for claim, count in epsilon.needed.items():
        if count is not None and claim >= epsilon.largest:
            needed.append(f"{claim:g}: {count}")
    units = "0"
    if epsilon.n:
        units = render(
            "plan.units_of_epsilon", count=epsilon.n, rows=epsilon.rows_per_canary
        )
    return {
        "attack": render(f"plan.figure.epsilon_{epsilon.by}"),
        "units": units,
        "smallest": largest,
        "needed": ", ".join(needed) or render("plan.enough"),
    }


def _doses_table(plan: TrainingPlan) -> ReportTable:
    """Return the table of doses: texts, groups, and identifiers by type."""
    repeats = plan.repeats
    records: TableRecords = []
    if repeats.texts is not None:
        texts = render("plan.texts")
        records.append(_dose_record(texts, repeats.texts, held_out=None))
    groups = render("plan.groups")
    records.append(_dose_record(groups, repeats.groups, held_out=None))

    nothing = DoseCounts.of([])
    for type in sorted({*repeats.by_type, *repeats.held_out_by_type}):
        counts = repeats.by_type.get(type, nothing)
        held_out = repeats.held_out_by_type.get(type, 0)
        records.append(_dose_record(type, counts, held_out=held_out))
    return records_table(_titled(records), title=render("plan.doses"))


def _dose_record(
    name: str, counts: DoseCounts, *, held_out: int | None
) -> dict[str, object]:
    """Return the line of doses of one kind of things."""
    return {
        "what": name,
        "once": counts.once,
        "few": counts.few,
        "many": counts.many,
        "most": counts.most,
        "held_out": held_out,
    }


def _details(plan: TrainingPlan) -> Iterator[ReportTable]:
    """Yield further tables: highest doses, the loss, and placeholders."""
    highest: TableRecords = []
    for identifier in plan.repeats.highest:
        highest.append(
            {
                "type": identifier.type,
                "most": identifier.dose,
                "first_row": identifier.first_row,
            }
        )
    yield records_table(_titled(highest), title=render("plan.highest"))

    for title, counts in (
        ("by_type", plan.loss.by_type),
        ("by_role", plan.loss.by_role),
    ):
        records: TableRecords = []
        for name, states in counts.items():
            record: dict[str, object] = {"what": name or render("plan.no_role")}
            for state in STATES:
                record[state.replace(" ", "_")] = states.get(state, 0)
            records.append(record)
        yield records_table(_titled(records), title=render(f"plan.loss_{title}"))

    placeholders: TableRecords = []
    if plan.leftovers is not None:
        for kind, count in plan.leftovers.placeholders.items():
            placeholders.append({"what": kind, "count": count})
    yield records_table(_titled(placeholders), title=render("plan.placeholders"))
