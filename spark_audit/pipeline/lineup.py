"""Decide which checkpoints are opened and scored, and which audits see each.

``job.py`` calls :func:`make_lineup` and :func:`with_order` when it checks a request,
and :func:`make_plans` once the manifest is known. A spec is what the user gave as one
checkpoint: ``NAME=PATH``, or several paths of one name (see ``checkpoints/specs.py``).
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.audits.base import Audit, Plan
from spark_audit.checkpoints.run_record import trained_order
from spark_audit.errors import InputError
from spark_audit.manifest.encodings import example_of
from spark_audit.manifest.file import restricted_to
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
    """The checkpoints of a call, and which audits look at each.

    A series is a run with a saved checkpoint (stage) after each task.

    Attributes
    ----------
    specs
        What is opened: the checkpoints that the user gave, as far as an audit looks at
        them whole, and then the stages of series, each as a spec of its own.
    stages
        Names of the specs that are one stage of a series: only audits of series look
        at them.
    both
        Names of the specs that are a series of one stage: every audit looks at them.
    opened
        Names of the checkpoints that were given open.
    """

    specs: tuple[Spec, ...]
    stages: frozenset[str] = frozenset()
    both: frozenset[str] = frozenset()
    opened: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Return the names that a user knows: of whole checkpoints, then of series.

        A series is listed by itself only if no whole checkpoint has its name.
        """
        whole = [spec.name for spec in self.specs if spec.name not in self.stages]
        whole += self.opened
        series = sorted({self.entry(name) for name in self.stages})

        # Where `run` is opened whole, `run` and `run[2]` are known by it.
        only_series = []
        for name in series:
            if name not in whole and entry_of(name) not in whole:
                only_series.append(name)
        return [*whole, *only_series]

    def scores(self, name: str) -> bool:
        """Return whether a checkpoint is scored: all but those derived from a stage."""
        derived = CheckpointName.parse(name).derived
        return not derived or original_of(name) not in self.stages

    def entry(self, name: str) -> str:
        """Return the series of a stage; any other name is returned unchanged."""
        return series_of(name) if name in self.stages else name

    def sees(self, name: str, audit: Audit) -> bool:
        """Return whether an audit looks at a checkpoint, by its name."""
        if audit.of_series:
            if name == BASE:
                return audit.sees_base
            return name in self.stages or name in self.both
        if name in self.stages:
            return False
        return name != RELEARNED_BASE or audit.sees_relearned_base


def make_lineup(specs: Sequence[Spec], audits: Iterable[Audit]) -> Lineup:
    """Return the checkpoints to open, so that every audit has those that it needs.

    It is called if at least one audit is of series. A spec of several paths is a series
    of stages if all audits are of series, unless each path is a series itself. In any
    other case its paths are replicates, each of which may be a series.
    """
    from spark_audit.checkpoints.task_series import expand

    only_series = all(audit.of_series for audit in audits)

    # Audits that are not of series need each checkpoint whole, beside its stages.
    whole = [] if only_series else list(specs)
    stages: list[Spec] = []
    both: set[str] = set()
    for spec in specs:
        for candidate in _candidate_series(spec, only_series=only_series):
            stages_of_candidate = expand(candidate)
            if stages_of_candidate != (candidate,):
                stages += stages_of_candidate
                continue

            # It is no series, or one of a single stage: every audit looks at it.
            both.add(candidate.name)
            if only_series:
                whole.append(candidate)

    return Lineup(
        specs=(*whole, *stages),
        stages=frozenset(spec.name for spec in stages),
        both=frozenset(both),
    )


def _candidate_series(spec: Spec, *, only_series: bool) -> list[Spec]:
    """Return the specs that may be series: the spec itself, or its replicates."""
    from spark_audit.checkpoints.specs import Spec
    from spark_audit.checkpoints.task_series import series

    if len(spec.paths) == 1:
        return [spec]

    # If each path is a series, their last stages make no series together.
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
    """Return each audit's plan, and the manifest or its part under a limit.

    Parameters
    ----------
    preset
        ``None``: that of the manifest.
    limit
        Most rows that are scored; ``None``: all.

    Returns
    -------
    view
        The manifest, restricted to the rows that are scored.
    plans
        In the order of ``audits``; pass -> keys of its items.
    """
    is_paper = (preset or manifest.settings.preset) == "paper"
    for audit in audits:
        audit.check_manifest(manifest)
    plans = [audit.plan(manifest, paper=is_paper) for audit in audits]
    if limit is None:
        return manifest, plans

    # The limit counts rows, and a plan may score several items of a row.
    row_ids = set[str]()
    for scoring_pass, keys in union(plans).items():
        row_ids.update(example_of(scoring_pass, key) for key in keys)
    if len(row_ids) <= limit:
        return manifest, plans

    # Choose by hash, not by the order of rows: a larger limit then only adds rows.
    by_hash = sorted(
        row_ids, key=lambda row_id: hashlib.sha256(row_id.encode()).digest()
    )
    view = restricted_to(manifest, set(by_hash[:limit]))
    return view, [audit.plan(view, paper=is_paper) for audit in audits]


def union(plans: Iterable[Plan]) -> Plan:
    """Return one plan of all passes, each with the item keys of all plans, sorted."""
    keys_by_pass: dict[Pass, set[str]] = {}
    for plan in plans:
        for scoring_pass, keys in plan.items():
            keys_by_pass.setdefault(scoring_pass, set()).update(keys)

    united = {}
    for scoring_pass in sorted(keys_by_pass):
        united[scoring_pass] = sorted(keys_by_pass[scoring_pass])
    return united


def with_order(request: Request, lineup: Lineup, manifest: Manifest) -> Request:
    """Return the request with the order of tasks set in its audits of series.

    It is the order in which the runs learned their tasks; an order that the user gave
    stays.

    Raises
    ------
    InputError
        If two runs learned their tasks in different orders, or in another order than
        the user gave, or if one of them has no record of its order: stages would be
        taken for those of other tasks.
    """
    orders = _learned_orders(lineup)
    first_order = next((tasks for tasks in orders.values() if tasks), ())
    requested_order = _requested_order(request)

    for name, tasks in orders.items():
        if requested_order:
            # Compare the order of those tasks that both of them name.
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

    # Set the order of the manifest's tasks in the audits that have none.
    known_tasks = {example.task for example in manifest.examples}
    common_order = ",".join(task for task in first_order if task in known_tasks)
    audits = []
    for audit in request.audits:
        # An audit that is of no series may ask for the task of a stage, too.
        if hasattr(audit, "order"):
            order = audit.order or common_order or None
            audit = replace(audit, **{"order": order})
        audits.append(audit)
    return replace(request, audits=tuple(audits))


def _learned_orders(lineup: Lineup) -> dict[str, tuple[str, ...]]:
    """Map each series of several stages to its tasks in the order of its run record.

    The tasks are empty if there is no such record.
    """
    n_stages = Counter(lineup.entry(name) for name in lineup.stages)
    orders: dict[str, tuple[str, ...]] = {}
    for spec in lineup.specs:
        names = seeds_of(spec.name, len(spec.paths))
        for name, path in zip(names, spec.paths, strict=True):
            entry = lineup.entry(name)
            # A single stage is that of all tasks, so that their order does not matter.
            if n_stages[entry] > 1 and entry not in orders:
                orders[entry] = tuple(trained_order(Path(os.path.expanduser(path))))
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
