"""Which checkpoints are opened, and what each of them scores."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.audits.base import Audit, Plan
from spark_audit.checkpoints.run_record import trained_order
from spark_audit.errors import InputError
from spark_audit.manifest.encodings import example_of
from spark_audit.manifest.file import limited
from spark_audit.manifest.schema import Manifest
from spark_audit.names import (
    BASE,
    RELEARNED_BASE,
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
    stages: frozenset[str] = frozenset()
    both: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """Return what is audited, by the names that a user knows.

        A series that is opened by its stages alone is named after the checkpoints.
        """
        whole = [spec.name for spec in self.specs if spec.name not in self.stages]
        series = sorted({self.entry(name) for name in self.stages})

        # `run` and `run[2]` are known already where `run` itself is opened.
        only_series = [
            name for name in series if name not in whole and entry_of(name) not in whole
        ]
        return [*whole, *only_series]

    def scores(self, name: str) -> bool:
        """Whether anything is scored: nothing of what is made of a stage."""
        derived = CheckpointName.parse(name).derived
        return not derived or original_of(name) not in self.stages

    def entry(self, name: str) -> str:
        """The series that a stage belongs to; any other checkpoint's own name."""
        return series_of(name) if name in self.stages else name

    def sees(self, name: str, audit: Audit) -> bool:
        """Whether an audit looks at a checkpoint; at the relearned base one does."""
        if audit.of_series:
            return name in self.stages or name in self.both or name == BASE
        return name not in self.stages and (
            name != RELEARNED_BASE or audit.sees_relearned_base
        )


def lineup(specs: Sequence[Spec], audits: Iterable[Audit]) -> Lineup:
    """What to open so that every audit has what it looks at, one at least of series.

    A list of paths is a series where only audits of series are asked for, unless each
    of them is a series itself; else it is replicates, each of which may be a series.
    """
    from spark_audit.checkpoints.specs import Spec
    from spark_audit.checkpoints.task_series import expand, series

    wanted = [audit.of_series for audit in audits]
    opened = [] if all(wanted) else list(specs)
    stages: list[Spec] = []
    both: set[str] = set()
    for spec in specs:
        several = len(spec.paths) > 1 and (
            not all(wanted)
            # Their last stages, one after the other, would be no series of anything.
            or (spec.stage is None and all(map(series, spec.paths)))
        )
        alone = [
            Spec(str(CheckpointName(spec.name, number)), (path,), spec.stage)
            for number, path in enumerate(spec.paths, start=1)
        ]
        for one in alone if several else [spec]:
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
) -> tuple[Manifest, list[Plan]]:
    """The manifest, or the part that a limit leaves, with each audit's plan for it."""
    paper = (preset or manifest.settings.preset) == "paper"
    plans = [audit.plan(manifest, paper=paper) for audit in audits]
    if limit is None:
        return manifest, plans
    everything = union(plans).items()
    wanted = {example_of(one, key) for one, keys in everything for key in keys}
    if len(wanted) <= limit:
        return manifest, plans
    by_hash = sorted(wanted, key=lambda key: hashlib.sha256(key.encode()).digest())
    view = limited(manifest, set(by_hash[:limit]))
    return view, [audit.plan(view, paper=paper) for audit in audits]


def union(plans: Iterable[Plan]) -> Plan:
    """Each pass once, with every sequence that anybody asked for once."""
    found: dict[Pass, set[str]] = {}
    for plan in plans:
        for wanted, keys in plan.items():
            found.setdefault(wanted, set()).update(keys)
    return {wanted: sorted(keys) for wanted, keys in sorted(found.items())}


def with_order(request: Request, order: Lineup, manifest: Manifest) -> Request:
    """The request, with the order in which its runs learned the tasks, unless given.

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
    first = next(filter(None, learned.values()), ())
    orders = (getattr(one, "order", None) for one in request.audits if one.of_series)
    given = next((order for order in orders if order is not None), None)
    asked = [] if given is None else [task.strip() for task in given.split(",")]
    for name, tasks in learned.items():
        common = [[t for t in asked if t in tasks], [t for t in tasks if t in asked]]
        if common[0] != common[1] if asked else tasks != first:
            here = ", ".join(tasks) or "it does not tell which"
            raise InputError(
                f"{name!r} learned its tasks in another order ({here}) than "
                f"{', '.join(asked or first)}",
                where="--order" if asked else "--ckpt",
                fix="audit runs of one order at a time; --order may be left out, or "
                "given where it holds for all",
            )
    known = {example.task for example in manifest.examples}
    common_order = ",".join(task for task in first if task in known)
    audits = tuple(
        replace(audit, **{"order": audit.order or common_order or None})
        if audit.of_series and hasattr(audit, "order")
        else audit
        for audit in request.audits
    )
    return replace(request, audits=audits)
