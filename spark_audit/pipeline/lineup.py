"""Which checkpoints are opened and what each of them scores, for all audits at once.

The passes of all audits are united before anything is scored. An audit that wants the
stages of a series (``stages`` is one of its parts) gets them as ``NAME@K``; the others
see a series as its last stage.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_audit.audits import Audit, SeriesAttack, Stages, Utility
from spark_audit.audits.base import Plan
from spark_audit.audits.task_accuracy import listed
from spark_audit.checkpoints.specs import trained_order
from spark_audit.errors import InputError, choose
from spark_audit.manifest.file import limited
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import example_of
from spark_audit.names import (
    BASE,
    CONTROL,
    CheckpointName,
    entry_of,
    original_of,
    seeds_of,
    series_of,
)
from spark_audit.pipeline.request import Request
from spark_audit.scoring.table import Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.specs import Spec


_ORDERED = (Stages, Utility, SeriesAttack)
"""Audits that go through the tasks in the order of training."""


@dataclass(frozen=True)
class Lineup:
    """The checkpoints of a call.

    Attributes
    ----------
    specs
        What is opened.
    stages
        Names of those that are one stage of a series, for audits of series alone.
    both
        Names of those that are a series of one stage: every audit sees them.
    """

    specs: tuple[Spec, ...]
    stages: frozenset[str]
    both: frozenset[str]

    @property
    def names(self) -> list[str]:
        """What is audited, by the names that a user knows."""
        whole = [spec.name for spec in self.specs if spec.name not in self.stages]
        return whole or sorted({self.entry(name) for name in self.stages})

    def plan(self, name: str, plans: Plans) -> Plan:
        """What one checkpoint scores; one made of another, what audits compare.

        Of the relearned base only ``matched`` reads scores.
        """
        if name in self.stages:
            return plans.stages
        if name == CONTROL:
            return {kind: keys for kind, keys in plans.whole.items() if kind == Pass()}
        if name in self.both or name == BASE:
            return union((plans.whole, plans.stages))
        return plans.whole

    def scores(self, name: str) -> bool:
        """Whether anything is scored: nothing of what is made of a stage."""
        derived = CheckpointName.parse(name).derived
        return not derived or original_of(name) not in self.stages

    def entry(self, name: str) -> str:
        """The series that a stage belongs to; any other checkpoint's own name."""
        return series_of(name) if name in self.stages else name

    def sees(self, name: str, audit: Audit) -> bool:
        """Whether an audit concludes on a checkpoint."""
        if audit.of_series:
            return name in self.stages or name in self.both or name == BASE
        return name not in self.stages and (name != CONTROL or audit.name == "matched")


@dataclass(frozen=True)
class Plans:
    """What whole checkpoints score, and what stages of a series do."""

    whole: Plan
    stages: Plan


def lineup(specs: Sequence[Spec], audits: Iterable[Audit]) -> Lineup:
    """What to open so that every audit has what it looks at.

    A list of paths is a series where only audits of series are asked for, unless each
    of them is a series itself; else it is replicates, each of which may be a series.
    """
    from spark_audit.checkpoints.specs import Spec, expand, series

    wanted = [audit.of_series for audit in audits]
    if not any(wanted):
        return Lineup(tuple(specs), frozenset(), frozenset())
    opened = [] if all(wanted) else list(specs)
    stages: list[Spec] = []
    both: set[str] = set()
    for spec in specs:
        several = len(spec.paths) > 1 and (
            not all(wanted)
            # Their last stages, one after the other, would be no series of anything.
            or (spec.stage is None and all(map(series, spec.paths)))
        )
        for number, path in enumerate(spec.paths, start=1) if several else ((0, None),):
            one = spec
            if path is not None:
                one = Spec(str(CheckpointName(spec.name, number)), (path,), spec.stage)
            found = expand(one)
            if found == (one,):
                both.add(one.name)
                if all(wanted):
                    opened.append(one)
            else:
                stages += found
    names = frozenset(spec.name for spec in stages)
    return Lineup((*opened, *stages), names, frozenset(both))


def make_plans(
    manifest: Manifest,
    audits: Sequence[Audit],
    *,
    preset: str | None = None,
    limit: int | None = None,
) -> tuple[Manifest, Plans]:
    """The manifest, or the part that a limit leaves, with what to score of it."""
    paper = (preset or manifest.settings.preset) == "paper"

    def plans(view: Manifest) -> Plans:
        of = (
            union(a.plan(view, paper=paper) for a in audits if a.of_series is series)
            for series in (False, True)
        )
        return Plans(*of)

    found = plans(manifest)
    if limit is None:
        return manifest, found
    everything = union((found.whole, found.stages))
    wanted = {example_of(one, key) for one, keys in everything.items() for key in keys}
    if len(wanted) <= limit:
        return manifest, found
    by_hash = sorted(wanted, key=lambda key: hashlib.sha256(key.encode()).digest())
    view = limited(manifest, set(by_hash[:limit]))
    return view, plans(view)


def union(plans: Iterable[Plan]) -> Plan:
    """Each pass once, with every sequence that anybody asked for once."""
    found: dict[Any, set[str]] = {}
    for plan in plans:
        for wanted, keys in plan.items():
            found.setdefault(wanted, set()).update(keys)
    return {wanted: sorted(keys) for wanted, keys in sorted(found.items())}


def check_baseline(baseline: str | None, names: Sequence[str]) -> None:
    """Refuse a baseline that is none of the checkpoints, nor one with several seeds."""
    # Adapters bring their base along under this name; it is known after loading.
    known = dict.fromkeys([*names, *map(entry_of, names), "base"])
    if baseline is not None and baseline not in known:
        raise InputError(
            f"{baseline!r} is none of the checkpoints",
            where="--baseline",
            fix=choose(baseline, list(known)),
        )


def learned_order(order: Lineup, request: Request) -> tuple[str, ...]:
    """The tasks as the runs among the series learned them; nothing without a run.

    Raises
    ------
    InputError
        If two runs went through them in different orders, a run otherwise than the
        order that was given, or a series beside a run does not say how: stages would
        be taken for those of other tasks.
    """
    counts = Counter(order.entry(name) for name in order.stages)
    learned: dict[str, tuple[str, ...]] = {}
    for spec in order.specs:
        names = seeds_of(spec.name, len(spec.paths))
        for name, path in zip(map(order.entry, names), spec.paths, strict=True):
            # A single stage is that of all tasks, whatever their order.
            if counts[name] > 1 and name not in learned:
                learned[name] = tuple(trained_order(Path(path).expanduser()))
    learned = {name: tasks for name, tasks in learned.items() if tasks}
    fix = "audit runs of one order at a time; --order may be left out"
    orders = (one.order for one in request.audits if isinstance(one, _ORDERED))
    asked = next((tuple(listed(order)) for order in orders if order is not None), ())
    for name, tasks in learned.items():
        if [t for t in asked if t in tasks] != [t for t in tasks if t in asked]:
            raise InputError(
                f"{name!r} learned its tasks in another order: {', '.join(tasks)}",
                where="--order",
                fix=fix,
            )
    first = next(iter(learned), "")
    for name in (name for name, n in counts.items() if n > 1):
        told = learned.get(name)
        if learned and not asked and told != learned[first]:
            here = ", ".join(told) if told else "an order that it does not tell"
            raise InputError(
                f"{first!r} learned its tasks in another order than {name!r}: "
                f"{', '.join(learned[first])}; {here}",
                where="--ckpt",
                fix="audit them apart, or give --order t1,t2,... if it holds for both",
            )
    return learned.get(first, ())


def with_order(request: Request, learned: Sequence[str], manifest: Manifest) -> Request:
    """The request, with the runs' own order where none was given."""
    known = {example.task for example in manifest.examples}
    tasks = [task for task in learned if task in known]
    if not tasks:
        return request
    order = ",".join(tasks)
    audits = tuple(
        replace(audit, order=audit.order or order)
        if isinstance(audit, _ORDERED)
        else audit
        for audit in request.audits
    )
    return replace(request, audits=audits)
