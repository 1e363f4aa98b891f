"""Memory by task and stage: figures of a series, before anything is concluded.

All changes are of summed NLL per token, in nats. Below 0, trained identifiers became
likelier than held-out ones. A *cell* is a task after a stage. It has *memory*, the
change since the reference model, and its *step*, the change by this stage alone. States
(``states.py``) and findings (``findings.py``) follow from cells.

In shapes, ``spans`` are all occurrences of identifiers, and ``used`` those of them that
are compared.

A new figure of a cell is a field of :class:`TaskCell`, computed in
:func:`_cells_of_task` and made a row in :func:`_cell`; ``audit.py`` declares its metric
and adds its row to the report. Its name stands in ``sentences/en/metrics.toml``, a line
on it in ``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.identifiers import sides_of
from spark_audit.audits.matched.units import clear_gap
from spark_audit.names import CheckpointName
from spark_audit.results import Row
from spark_audit.results.evidence import Evidence
from spark_audit.results.rows import grouped
from spark_audit.stats import memory_contrast
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.memory_contrast import Memory, Sides

NO_USABLE_IDENTIFIER = "its rows contain no identifier that occurs in this task only"

NO_PREVIOUS_STAGE = "the previous stage was not scored"

ALL_TASKS = ""
"""Name of the cells of all tasks that were trained on so far."""


@dataclass(frozen=True, eq=False)
class SeriesScores:
    """Identifiers of one series, and their NLL by stage.

    Attributes
    ----------
    name
        The method; its NLL is the mean over seeds.
    spans
        Units of the evidence (:class:`~spark_audit.audits.stages.audit.Stages`), one
        line per occurrence of an identifier, and ``trained_at``: the stage that trained
        on its task; 0: not known. ``ref_sum`` is its summed NLL by the reference model,
        nats.
    nll
        Stage -> summed NLL, shape ``(spans,)``, nats; stages in their order. Only
        stages that all seeds of the method have.
    """

    name: str
    spans: pd.DataFrame
    nll: Mapping[int, np.ndarray]


def series_scores(evidence: Evidence) -> dict[str, SeriesScores]:
    """Return the series, one per method, with the stages that all seeds reached."""
    names = [CheckpointName.parse(name) for name in evidence.checkpoints]
    sums = evidence.values["nll_sum"]  # (checkpoints, spans), nats
    training_stages = evidence.values["trained_at"]  # (checkpoints, spans)

    # Seeds of a method are one series. Checkpoints are named by their index, the first
    # axis of both arrays.
    series = dict[str, SeriesScores]()
    indices_by_method = grouped(range(len(names)), lambda i: names[i].method)
    for method, indices in indices_by_method.items():
        # Stage -> indices of its checkpoints, one for each seed. A method whose names
        # give no stage has a single one.
        seeds_by_stage = grouped(indices, lambda i: names[i].stage or 1)
        n_seeds = max(len(seeds) for seeds in seeds_by_stage.values())

        # Leave out stages with fewer seeds, whose means would not be comparable.
        nll_by_stage: dict[int, np.ndarray] = {}
        for stage in sorted(seeds_by_stage):
            seeds = seeds_by_stage[stage]
            if len(seeds) == n_seeds:
                nll_by_stage[stage] = np.mean(sums[seeds], axis=0)  # (spans,), nats

        # All checkpoints of a series have learned the tasks in the same order.
        first_stage = next(iter(nll_by_stage))
        any_checkpoint = seeds_by_stage[first_stage][0]
        trained_at = training_stages[any_checkpoint].astype(int)  # (spans,)
        series[method] = SeriesScores(
            name=method,
            spans=evidence.units.assign(trained_at=trained_at),
            nll=nll_by_stage,
        )
    return series


@dataclass(frozen=True, eq=False)
class TaskCell:
    """Memory of one task after one stage.

    Attributes
    ----------
    series
        Name of the series.
    task
        :data:`ALL_TASKS` (empty): all tasks that were trained on so far.
    stage
        From 1.
    trained_at
        The stage that trained on the task; 0: not known.
    memory, step
        Memory, and its change by the stage, nats per token; below 0: more remembered.
        The band of each reaches from ``no_effect_low`` to ``no_effect_high``, as far
        to both sides of 0 as trained and held-out identifiers differed before. A value
        within it is no evidence.
    memory_p, step_p
        Two-sided p of no memory, and of no change by the stage; ``None``: not tested.
    rise_p
        p of no rise of memory since the earlier stage at which the task was remembered
        most. It is corrected over all earlier stages that this one is chosen from. 1:
        memory did not rise, or there is no earlier stage.
    trained_step_high
        Upper limit of the change of trained identifiers alone by the stage, nats per
        token.
    """

    series: str
    task: str
    stage: int
    trained_at: int
    memory: Row
    step: Row
    memory_p: float | None
    step_p: float | None
    rise_p: float
    trained_step_high: float | None

    @property
    def is_before_training(self) -> bool:
        """True before the task is trained on."""
        return self.stage < self.trained_at

    @property
    def is_after_training(self) -> bool:
        """True after a later stage than that of the task; False if it is not known."""
        return 0 < self.trained_at < self.stage


class SidesContrast(NamedTuple):
    """Change of trained minus held-out identifiers, and their difference before.

    Attributes
    ----------
    contrast
        The mean change of each side, and their difference, nats per token.
    gap
        Size of a clear difference of the sides before the change, nats per token; 0:
        they did not clearly differ.
    """

    contrast: Memory
    gap: float

    @property
    def p(self) -> float | None:
        """Two-sided p of no change beyond the gap; ``None``: not tested."""
        # A difference of changes up to the gap is no evidence.
        return self.contrast.t_p(null=self.gap)


class UsedSpans(NamedTuple):
    """The identifiers that count in some cells, the same for all series and stages.

    Attributes
    ----------
    is_used
        Shape ``(spans,)``, bool.
    sides
        Sides of the used ones alone.
    reference_gap
        Size of a clear difference of the sides on the reference model, nats per token;
        0: they did not clearly differ.
    """

    is_used: np.ndarray
    sides: Sides
    reference_gap: float

    @classmethod
    def of(cls, spans: pd.DataFrame, is_used: np.ndarray) -> UsedSpans:
        """Return the used ones of all identifiers.

        Parameters
        ----------
        spans
            A line per identifier, as in :class:`SeriesScores`.
        is_used
            Shape ``(spans,)``, bool.
        """
        used_spans = spans[is_used]
        sides = sides_of(used_spans)
        return cls(
            is_used=is_used,
            sides=sides,
            reference_gap=_gap(sides, used_spans["ref_sum"].to_numpy()),
        )


def _used_spans(
    spans: pd.DataFrame, is_used: np.ndarray, used_by_mask: dict[bytes, UsedSpans]
) -> UsedSpans:
    """Return the used ones of all identifiers, which are divided into strata only once.

    Parameters
    ----------
    spans, is_used
        As for :meth:`UsedSpans.of`.
    used_by_mask
        Bytes of ``is_used`` -> identifiers that counted in other cells. New ones are
        added.
    """
    mask = is_used.tobytes()
    if mask not in used_by_mask:
        used_by_mask[mask] = UsedSpans.of(spans, is_used)
    return used_by_mask[mask]


def _gap(sides: Sides, nll: np.ndarray) -> float:
    """Return the size of a clear difference of the sides, nats per token; else 0.

    Parameters
    ----------
    nll
        Shape ``(used,)``: summed NLL by one model, nats.
    """
    # Applied to the NLL itself rather than to a change of it, the memory contrast gives
    # how far the sides differ.
    contrast = memory_contrast.memory(nll, sides)
    return clear_gap(contrast.difference)


def _contrast(sides: Sides, change: np.ndarray, gap: float) -> SidesContrast:
    """Return the change of trained minus held-out identifiers.

    Parameters
    ----------
    change
        Shape ``(used,)``: change of the summed NLL, nats.
    gap
        Size of a clear difference of the sides before the change, nats per token.
    """
    # Without identifiers there is nothing to compare.
    if not len(change):
        return SidesContrast(Memory.missing(NO_USABLE_IDENTIFIER), gap=0.0)
    return SidesContrast(memory_contrast.memory(change, sides), gap=gap)


def _step(
    sides: Sides, nll: np.ndarray, previous_nll: np.ndarray, memory_gap: float
) -> SidesContrast:
    """Return the change of trained minus held-out identifiers by one stage.

    Parameters
    ----------
    nll, previous_nll
        Shape ``(used,)``: summed NLL after the stage and after the one before, nats.
    memory_gap
        Size of a clear memory after the stage before, nats per token; else 0.
    """
    # Before the stage the sides can differ in two ways: in their NLL, and in what was
    # already remembered of them. The second is estimated more precisely, as a change of
    # the same tokens. The larger one counts.
    gap = max(_gap(sides, previous_nll), memory_gap)
    return _contrast(sides, nll - previous_nll, gap)


def _is_usable(spans: pd.DataFrame) -> np.ndarray:
    """Return which identifiers can be compared, shape ``(spans,)``, bool.

    Usable are trained identifiers of a single task and held-out ones. If text alone
    distinguishes the sides, neither is a control for the other.

    Parameters
    ----------
    spans
        A line per occurrence of an identifier. Columns: ``split``, ``dose``,
        ``elsewhere`` and ``stratum``.
    """
    # A string of several tasks belongs to none of them.
    is_trained = (spans["split"] == "train") & (spans["elsewhere"] == 0)
    is_held_out = (spans["split"] == "test") & (spans["dose"] == 0)
    is_comparable = spans["stratum"] >= 0
    return np.asarray((is_trained | is_held_out) & is_comparable)


def cells_of_all_series(all_series: Iterable[SeriesScores]) -> Iterator[TaskCell]:
    """Yield the cells of each series: one per task and stage, then of all tasks.

    All series are of the same identifiers, which they may have learned in different
    orders.
    """
    # The same identifiers count for most series and stages, and dividing them
    # into strata takes longest: keep them by their mask.
    used_by_mask: dict[bytes, UsedSpans] = {}

    for series in all_series:
        tasks = sorted({*series.spans["task"]})
        for task in [*tasks, ALL_TASKS]:
            yield from _cells_of_task(series, task, used_by_mask)


def _cells_of_task(
    series: SeriesScores, task: str, used_by_mask: dict[bytes, UsedSpans]
) -> Iterator[TaskCell]:
    """Yield the cells of one task, stage by stage.

    Parameters
    ----------
    task
        :data:`ALL_TASKS`: all that were trained on so far. At each stage other
        identifiers count, so these cells have memory, but neither a step nor a rise.
    used_by_mask
        As for :func:`_used_spans`.
    """
    spans = series.spans
    is_usable = _is_usable(spans)  # (spans,), bool
    is_of_task = (spans["task"] == task).to_numpy()  # (spans,), bool
    training_stages = spans["trained_at"].to_numpy()  # (spans,)
    reference = spans["ref_sum"].to_numpy()  # (spans,), nats

    is_single_task = task != ALL_TASKS
    trained_at = 0
    if is_single_task:
        trained_at = int(training_stages[is_of_task][0])

    # Stages in their order: each is compared with earlier ones.
    memory_since_training: dict[int, float] = {}  # stage -> nats per token
    memory_gap = 0.0  # size of clear memory after the previous stage, nats per token
    for stage, nll in series.nll.items():
        # A task whose stage is not known (0) counts among all tasks from the first
        # stage on.
        if is_single_task:
            is_counted = is_of_task  # (spans,), bool
        else:
            is_counted = training_stages <= stage  # (spans,), bool

        used = _used_spans(spans, is_usable & is_counted, used_by_mask)
        is_used = used.is_used  # (spans,), bool

        # Memory: what all stages so far changed.
        change = (nll - reference)[is_used]  # (used,), nats
        since_reference = _contrast(used.sides, change, used.reference_gap)

        # What this stage alone changed.
        step = SidesContrast(Memory.missing(NO_PREVIOUS_STAGE), gap=0.0)
        if is_single_task and stage - 1 in series.nll:
            previous_nll = series.nll[stage - 1]
            step = _step(used.sides, nll[is_used], previous_nll[is_used], memory_gap)
        memory_gap = clear_gap(since_reference.contrast.difference)

        # Test whether the task is less remembered than at its best earlier stage.
        memory_value = since_reference.contrast.difference.value
        rise_p = 1.0
        if memory_since_training and memory_value is not None:
            rise_p = _rise_p(series, used, nll, memory_since_training)

        # Later stages are compared with this one, too.
        is_since_training = stage >= trained_at
        if is_single_task and is_since_training and memory_value is not None:
            memory_since_training[stage] = memory_value

        yield _cell(
            series.name,
            task,
            stage,
            trained_at,
            since_reference=since_reference,
            step=step,
            rise_p=rise_p,
        )


def _cell(
    series_name: str,
    task: str,
    stage: int,
    trained_at: int,
    *,
    since_reference: SidesContrast,
    step: SidesContrast,
    rise_p: float,
) -> TaskCell:
    """Return the cell of a task and stage, with its figures as rows.

    Parameters
    ----------
    since_reference
        Change since the reference model, which is memory.
    step
        Change by the stage.
    """
    group = "pooled" if task == ALL_TASKS else f"task:{task}"
    memory_row = stage_row(
        since_reference.contrast.difference,
        "memory",
        series_name,
        variant=str(stage),
        group=group,
        band=since_reference.gap,
    )
    step_row = stage_row(
        step.contrast.difference,
        "step",
        series_name,
        variant=str(stage),
        group=group,
        band=step.gap,
    )
    return TaskCell(
        series=series_name,
        task=task,
        stage=stage,
        trained_at=trained_at,
        memory=memory_row,
        step=step_row,
        memory_p=since_reference.p,
        step_p=step.p,
        rise_p=rise_p,
        trained_step_high=step.contrast.trained.high,
    )


def _rise_p(
    series: SeriesScores,
    used: UsedSpans,
    nll: np.ndarray,
    memory_since_training: Mapping[int, float],
) -> float:
    """Return the p of no rise since the stage at which a task was remembered most.

    It is 1 if memory did not rise (it did not become less), or cannot be tested.

    Parameters
    ----------
    used
        The identifiers of the task.
    nll
        Shape ``(spans,)``: summed NLL after the stage, nats.
    memory_since_training
        Earlier stage since the training -> memory of the task, nats per token.
    """
    # Below 0 is remembered: the lowest value is that of the best stage.
    best_stage = min(
        memory_since_training, key=lambda stage: memory_since_training[stage]
    )
    rise_of_nll = nll - series.nll[best_stage]  # (spans,), nats
    rise = memory_contrast.memory(rise_of_nll[used.is_used], used.sides)
    p = rise.t_p()  # two-sided

    if p is None or (rise.difference.value or 0.0) <= 0:
        return 1.0
    # The lowest of several values is partly low by chance, so correct for their number.
    return min(1.0, len(memory_since_training) * p)


def stage_row(
    estimate: Estimate,
    metric: str,
    name: str,
    *,
    variant: str = "",
    group: str = "pooled",
    band: float | None = None,
) -> Row:
    """Return a figure of the audit of stages, in nats per token.

    Parameters
    ----------
    name
        Name of the series.
    variant
        The stage, where the figure is of one.
    band
        How far its band reaches to either side of 0: by how much the sides differed
        before. ``None``: it has no band.
    """
    return Row.of_estimate(
        estimate,
        audit="stages",
        checkpoint=name,
        metric=metric,
        variant=variant,
        group=group,
        unit="nats",
        no_effect=0.0,
        no_effect_low=None if band is None else -band,
        no_effect_high=band,
    )


class SeriesGain(NamedTuple):
    """Memory of all stages of a series compared with its last one.

    Attributes
    ----------
    best, last
        Memory at the best stage of each identifier, and at the last stage.
    gain
        Their difference: below 0 where all stages show more.
    p
        Two-sided p of no gain; ``None``: not tested.
    """

    best: Row
    last: Row
    gain: Row
    p: float | None


def gain_of_series(
    series: SeriesScores, *, without: Collection[str]
) -> SeriesGain | None:
    """Return the gain of all stages together over the last one, over all tasks.

    With all stages, an attacker sees each identifier at its best stage since its own
    task. Held-out identifiers of the task take the best of the same stages. ``None``:
    the series has a single stage, or no identifier that can be compared is of a task
    that it has reached.

    Parameters
    ----------
    without
        Tasks whose sides differed before they were trained on.
    """
    spans = series.spans
    is_trained_on = spans["trained_at"].between(1, max(series.nll))
    is_counted = is_trained_on & ~spans["task"].isin([*without])
    is_used = _is_usable(spans) & is_counted.to_numpy()  # (spans,), bool
    used_spans = spans[is_used]
    if len(series.nll) < 2 or used_spans.empty:
        return None

    # Each task is divided into strata by itself, since an earlier task has more stages
    # to choose the best from.
    stratum = used_spans.groupby(["task", "stratum"]).ngroup()
    sides = sides_of(used_spans.assign(stratum=stratum))
    reference = used_spans["ref_sum"].to_numpy()  # (used,), nats

    # Each identifier has at least one stage since its task: the last one.
    trained_at = used_spans["trained_at"].to_numpy()  # (used,)
    nll_of_used = [nll[is_used] for nll in series.nll.values()]
    nll_by_stage = np.stack(nll_of_used)  # (stages, used), nats
    stages = np.array([*series.nll])[:, None]  # (stages, 1)
    is_since_training = stages >= trained_at  # (stages, used)

    # An infinite NLL is never the best one.
    candidates = np.where(is_since_training, nll_by_stage, np.inf)  # (stages, used)
    best_nll = candidates.min(axis=0)  # (used,), nats
    last_nll = nll_by_stage[-1]  # (used,), nats

    # Memory by the last stage and by the best ones, and what the best ones add.
    last = memory_contrast.memory(last_nll - reference, sides)
    best = memory_contrast.memory(best_nll - reference, sides)
    gain = memory_contrast.memory(best_nll - last_nll, sides)

    # Both memories are changes since the reference, so they have the same gap. The gain
    # has no band, and its p is of a gain of 0.
    gap = _gap(sides, reference)
    name = series.name
    return SeriesGain(
        best=stage_row(best.difference, "memory_by_series", name, band=gap),
        last=stage_row(last.difference, "memory_by_last", name, band=gap),
        gain=stage_row(gain.difference, "memory_gain", name),
        p=gain.t_p(),
    )
