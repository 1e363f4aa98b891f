"""Decide which checkpoints are opened and scored, and which audits see each."""

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
        The checkpoints to open.
    stages
        Names of checkpoints that are stages of a series, which only audits of series
        see.
    both
        Names of checkpoints without stages, or with a single one, which every audit
        sees.
    """

    specs: tuple[Spec, ...]
    stages: frozenset[str] = frozenset()
    both: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """Return the names that a user knows, of checkpoints and of series.

        A series of which only the stages are opened has the name of its checkpoints.
        """
        whole = [spec.name for spec in self.specs if spec.name not in self.stages]
        series = sorted({self.entry(name) for name in self.stages})

        # If `run` itself is opened, `run` and `run[2]` are already in the list.
        only_series = []
        for name in series:
            if name not in whole and entry_of(name) not in whole:
                only_series.append(name)
        return [*whole, *only_series]

    def scores(self, name: str) -> bool:
        """Return whether a checkpoint is scored; those derived from a stage are not."""
        derived = CheckpointName.parse(name).derived
        return not derived or original_of(name) not in self.stages

    def entry(self, name: str) -> str:
        """Return the series of a stage; any other name is returned unchanged."""
        return series_of(name) if name in self.stages else name

    def sees(self, name: str, audit: Audit) -> bool:
        """Return whether an audit looks at a checkpoint.

        Few audits look at the relearned base.
        """
        if audit.of_series:
            return name in self.stages or name in self.both or name == BASE
        if name in self.stages:
            return False
        return name != RELEARNED_BASE or audit.sees_relearned_base


def make_lineup(specs: Sequence[Spec], audits: Iterable[Audit]) -> Lineup:
    """Return the checkpoints to open, so that every audit has those that it needs.

    At least one audit is about series. If all audits are about series, a list of paths
    is one series, unless each path is itself a series. Otherwise the paths are
    replicates, and each may be a series.
    """
    from spark_audit.checkpoints.task_series import expand

    only_series = all(audit.of_series for audit in audits)

    # Other audits need each checkpoint as a whole, besides its stages.
    opened = [] if only_series else list(specs)
    stages: list[Spec] = []
    both: set[str] = set()
    for spec in specs:
        for candidate in _candidate_series(spec, only_series=only_series):
            stages_of_candidate = expand(candidate)
            if stages_of_candidate != (candidate,):
                stages += stages_of_candidate
                continue

            # Every audit sees a checkpoint without stages, or with a single one.
            both.add(candidate.name)
            if only_series:
                opened.append(candidate)

    return Lineup(
        specs=(*opened, *stages),
        stages=frozenset(spec.name for spec in stages),
        both=frozenset(both),
    )


def _candidate_series(spec: Spec, *, only_series: bool) -> list[Spec]:
    """Return the specs that may be series: the spec itself, or its replicates."""
    from spark_audit.checkpoints.specs import Spec
    from spark_audit.checkpoints.task_series import series

    if len(spec.paths) == 1:
        return [spec]

    # A list of the last stages of several series would not be a series.
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
    """Return each audit's plan, and the manifest or its part under a limit."""
    paper = (preset or manifest.settings.preset) == "paper"
    plans = [audit.plan(manifest, paper=paper) for audit in audits]
    if limit is None:
        return manifest, plans

    # The limit counts rows, and a plan may score several items of a row.
    examples = set[str]()
    for scoring_pass, keys in union(plans).items():
        examples.update(example_of(scoring_pass, key) for key in keys)
    if len(examples) <= limit:
        return manifest, plans

    # The order is by hash, so that a larger limit only adds rows.
    by_hash = sorted(examples, key=lambda key: hashlib.sha256(key.encode()).digest())
    view = limited(manifest, set(by_hash[:limit]))
    return view, [audit.plan(view, paper=paper) for audit in audits]


def union(plans: Iterable[Plan]) -> Plan:
    """Unite plans: each pass once, with every requested sequence once."""
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

    An order from the user stays.

    Raises
    ------
    InputError
        If two runs have different orders, if a run contradicts the given order, or if a
        series beside a run does not record its order. Stages would then be assigned to
        the wrong tasks.
    """
    orders = _learned_orders(lineup)
    first_order = next((tasks for tasks in orders.values() if tasks), ())
    requested_order = _requested_order(request)

    for name, tasks in orders.items():
        if requested_order:
            # Only tasks in both orders matter.
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

    # Pass the order to audits that need it, restricted to tasks of the manifest.
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
    """Return the learned tasks, in order, of each series with several stages.

    The tasks are empty if the run has no record.
    """
    n_stages = Counter(lineup.entry(name) for name in lineup.stages)
    orders: dict[str, tuple[str, ...]] = {}
    for spec in lineup.specs:
        names = seeds_of(spec.name, len(spec.paths))
        for name, path in zip(names, spec.paths, strict=True):
            entry = lineup.entry(name)
            # A single stage covers all tasks, whatever their order.
            if n_stages[entry] > 1 and entry not in orders:
                orders[entry] = tuple(trained_order(Path(path).expanduser()))
    return orders


def _requested_order(request: Request) -> list[str]:
    """Return the tasks of ``--order``; empty without this option."""
    for audit in request.audits:
        order = getattr(audit, "order", None) if audit.of_series else None
        if order is not None:
            return [task.strip() for task in order.split(",")]
    return []


def _restrict(tasks: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the tasks that are also in the others, in their own order."""
    return [task for task in tasks if task in others]
