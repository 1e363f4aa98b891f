"""Decide which checkpoints are opened, which audits see each, and what is scored."""

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
        The checkpoints that are opened.
    stages
        Names of checkpoints that are one stage of a series: audits of series alone see
        them.
    both
        Names of checkpoints that are a series of one stage: every audit sees them.
    """

    specs: tuple[Spec, ...]
    stages: frozenset[str] = frozenset()
    both: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """Return the names that a user knows: of checkpoints and of series.

        A series that is opened by its stages alone is named after the checkpoints.
        """
        whole = [spec.name for spec in self.specs if spec.name not in self.stages]
        series = sorted({self.entry(name) for name in self.stages})

        # `run` and `run[2]` are known already where `run` itself is opened.
        only_series = []
        for name in series:
            if name not in whole and entry_of(name) not in whole:
                only_series.append(name)
        return [*whole, *only_series]

    def scores(self, name: str) -> bool:
        """Return whether a checkpoint is scored: one made of a stage is not."""
        derived = CheckpointName.parse(name).derived
        return not derived or original_of(name) not in self.stages

    def entry(self, name: str) -> str:
        """Return the series that a stage belongs to, or any other name itself."""
        return series_of(name) if name in self.stages else name

    def sees(self, name: str, audit: Audit) -> bool:
        """Return whether an audit looks at a checkpoint.

        Few look at the relearned base.
        """
        if audit.of_series:
            return name in self.stages or name in self.both or name == BASE
        if name in self.stages:
            return False
        return name != RELEARNED_BASE or audit.sees_relearned_base


def make_lineup(specs: Sequence[Spec], audits: Iterable[Audit]) -> Lineup:
    """Return what to open so that every audit has what it looks at.

    At least one of the audits is of series. A list of paths is a series where only
    audits of series are asked for, unless each of them is a series itself; else it is
    replicates, each of which may be a series.
    """
    from spark_audit.checkpoints.task_series import expand

    only_series = all(audit.of_series for audit in audits)

    # Other audits need each checkpoint whole, beside its stages.
    opened = [] if only_series else list(specs)
    stages: list[Spec] = []
    both: set[str] = set()
    for spec in specs:
        for candidate in _candidate_series(spec, only_series=only_series):
            stages_of_candidate = expand(candidate)
            if stages_of_candidate != (candidate,):
                stages += stages_of_candidate
                continue

            # No series, or one of a single stage: every audit sees it.
            both.add(candidate.name)
            if only_series:
                opened.append(candidate)

    return Lineup(
        specs=(*opened, *stages),
        stages=frozenset(spec.name for spec in stages),
        both=frozenset(both),
    )


def _candidate_series(spec: Spec, *, only_series: bool) -> list[Spec]:
    """Return the specs that may be series: the spec itself, or each replicate of it."""
    from spark_audit.checkpoints.specs import Spec
    from spark_audit.checkpoints.task_series import series

    if len(spec.paths) == 1:
        return [spec]

    # The last stages of series, one after the other, would be no series of anything.
    each_is_series = spec.stage is None and all(series(path) for path in spec.paths)
    if only_series and not each_is_series:
        return [spec]

    replicates = []
    for number, path in enumerate(spec.paths, start=1):
        name = str(CheckpointName(spec.name, number))
        replicates.append(Spec(name, (path,), spec.stage))
    return replicates


def make_plans(
    manifest: Manifest,
    audits: Sequence[Audit],
    *,
    preset: str | None = None,
    limit: int | None = None,
) -> tuple[Manifest, list[Plan]]:
    """Return the manifest, or the part that a limit leaves, and each audit's plan."""
    paper = (preset or manifest.settings.preset) == "paper"
    plans = [audit.plan(manifest, paper=paper) for audit in audits]
    if limit is None:
        return manifest, plans

    # The limit counts rows, of which a plan may score several items.
    examples = set[str]()
    for scoring_pass, keys in union(plans).items():
        examples.update(example_of(scoring_pass, key) for key in keys)
    if len(examples) <= limit:
        return manifest, plans

    # By their hash, not in the order of rows; a larger limit only adds some.
    by_hash = sorted(examples, key=lambda key: hashlib.sha256(key.encode()).digest())
    view = limited(manifest, set(by_hash[:limit]))
    return view, [audit.plan(view, paper=paper) for audit in audits]


def union(plans: Iterable[Plan]) -> Plan:
    """Return each pass once, with every sequence that any plan asks for, once."""
    keys_by_pass: dict[Pass, set[str]] = {}
    for plan in plans:
        for scoring_pass, keys in plan.items():
            keys_by_pass.setdefault(scoring_pass, set()).update(keys)

    united = {}
    for scoring_pass in sorted(keys_by_pass):
        united[scoring_pass] = sorted(keys_by_pass[scoring_pass])
    return united


def with_order(request: Request, lineup: Lineup, manifest: Manifest) -> Request:
    """Return the request with the order in which its runs learned the tasks.

    An order that the user gave stays.

    Raises
    ------
    InputError
        If two runs went through them in different orders, a run otherwise than the
        order that was given, or a series beside a run does not say how: stages would
        be taken for those of other tasks.
    """
    orders = _learned_orders(lineup)
    first_order = next((tasks for tasks in orders.values() if tasks), ())
    requested_order = _requested_order(request)

    for name, tasks in orders.items():
        if requested_order:
            # Tasks that only one of both names do not matter.
            requested = _restrict(requested_order, tasks)
            conflicts = requested != _restrict(tasks, requested_order)
        else:
            conflicts = tasks != first_order
        if conflicts:
            learned = ", ".join(tasks) or "order unknown"
            expected = ", ".join(requested_order or first_order)
            raise InputError(
                f"{name!r} learned its tasks in another order ({learned}) than "
                f"{expected}",
                where="--order" if requested_order else "--ckpt",
                fix="audit runs of one order at a time; --order may be left out, or "
                "given where it holds for all",
            )

    # Tell the audits that ask for an order, of the tasks that the manifest has.
    known_tasks = {example.task for example in manifest.examples}
    common_order = ",".join(task for task in first_order if task in known_tasks)
    audits = []
    for audit in request.audits:
        if audit.of_series and hasattr(audit, "order"):
            order = audit.order or common_order or None
            audit = replace(audit, **{"order": order})
        audits.append(audit)
    return replace(request, audits=tuple(audits))


def _learned_orders(lineup: Lineup) -> dict[str, tuple[str, ...]]:
    """Map each series of several stages to its tasks in order, as its run says.

    The tasks are empty where there is no record of the run.
    """
    n_stages = Counter(lineup.entry(name) for name in lineup.stages)
    orders: dict[str, tuple[str, ...]] = {}
    for spec in lineup.specs:
        names = seeds_of(spec.name, len(spec.paths))
        for name, path in zip(names, spec.paths, strict=True):
            entry = lineup.entry(name)
            # A single stage is that of all tasks, whatever their order.
            if n_stages[entry] > 1 and entry not in orders:
                orders[entry] = tuple(trained_order(Path(path).expanduser()))
    return orders


def _requested_order(request: Request) -> list[str]:
    """Return the tasks of ``--order``; empty where it is not given."""
    for audit in request.audits:
        order = getattr(audit, "order", None) if audit.of_series else None
        if order is not None:
            return [task.strip() for task in order.split(",")]
    return []


def _restrict(tasks: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the tasks that are among the others, in their own order."""
    return [task for task in tasks if task in others]
