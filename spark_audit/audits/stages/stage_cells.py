"""Memory of each task after each stage, and what holds of it once all count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd

from spark_audit.audits.claims import LEVEL
from spark_audit.audits.identifier_facts import sides_of
from spark_audit.audits.matched.changes import unequal
from spark_audit.names import CheckpointName
from spark_audit.results.evidence import Evidence
from spark_audit.stats.bootstrap import holm_by_key
from spark_audit.stats.memory_contrast import Memory, Sides, memory

State = Literal[
    "not yet trained",
    "remembered",
    "forgotten",
    "not shown",
    "less likely",
    "confounded",
    "not estimable",
]
Key: TypeAlias = tuple[str, str, int]
"""Series, task (empty: all of them) and stage."""


@dataclass(frozen=True)
class Cell:
    """One task after one stage: memory, and its change by the stage.

    ``place`` is the stage that trained the task, 0 if unknown. ``p`` and ``step_p`` are
    two-sided, of no difference beyond what the sides were apart before (``reach``,
    ``gap``, nats); ``since`` is p of no rise since the stage at which the task was
    remembered most, over all stages that could have been that.
    """

    own: Memory
    step: Memory
    place: int
    reach: float = 0.0
    gap: float = 0.0
    since: float = 1.0

    @property
    def p(self) -> float | None:
        """Of no memory."""
        return self.own.t_p(null=self.reach)

    @property
    def step_p(self) -> float | None:
        """Of no change of it by the stage."""
        return self.step.t_p(null=self.gap)

    @property
    def likelier(self) -> bool:
        """Whether the stage made trained ones likelier, by themselves and beyond."""
        fell = self.step.trained.high
        return fell is not None and fell < 0 and (self.step.difference.value or 0) < 0


@dataclass
class Found:
    """All cells of a report, with what holds once all of them count.

    ``early`` and ``late`` are p of no memory before a task was trained on and since,
    ``risen`` of no rise since its lowest, ``steps`` of no change by a later stage, each
    adjusted over its own kind; ``again`` holds what a later stage made likelier again.
    """

    cells: dict[Key, Cell] = field(default_factory=dict)
    early: dict[Key, float] = field(default_factory=dict)
    late: dict[Key, float] = field(default_factory=dict)
    risen: dict[Key, float] = field(default_factory=dict)
    steps: dict[Key, float] = field(default_factory=dict)
    states: dict[Key, State] = field(default_factory=dict)
    again: set[Key] = field(default_factory=set)

    def of(self, series: str) -> dict[Key, Cell]:
        """Cells of a series' single tasks."""
        return {k: c for k, c in self.cells.items() if k[0] == series and k[1]}

    def apart(self, series: str) -> set[str]:
        """Tasks of a series whose sides differed before they were trained on."""
        return {k[1] for k, p in self.early.items() if k[0] == series and p < LEVEL}

    def conclude(self) -> None:
        """Correct over all single tasks, and name each one's state."""
        single = {k: cell for k, cell in self.cells.items() if k[1]}
        late = {k: cell for k, cell in single.items() if k[2] >= cell.place}
        self.late = holm_by_key({k: cell.p for k, cell in late.items()})
        self.early = holm_by_key({k: c.p for k, c in single.items() if k not in late})
        self.risen = holm_by_key({k: cell.since for k, cell in late.items()})
        self.steps = holm_by_key(
            {k: c.step_p for k, c in late.items() if 0 < c.place < k[2]}
        )
        apart = {k[:2] for k, p in self.early.items() if p < LEVEL}
        seen: set[tuple[str, str]] = set()
        for key in sorted(single, key=lambda key: key[2]):
            cell, who = single[key], key[:2]
            self.states[key] = state = self._state(key, cell, who in apart, who in seen)
            if state == "remembered":
                seen.add(who)
            if self.steps.get(key, 1.0) < LEVEL and who not in apart and cell.likelier:
                self.again.add(key)

    def _state(self, key: Key, cell: Cell, apart: bool, before: bool) -> State:
        p, value = self.late.get(key), cell.own.difference.value
        if key[2] < cell.place:
            return "not yet trained"
        if p is None or value is None:
            return "not estimable"
        if apart:
            return "confounded"
        if p < LEVEL:
            return "remembered" if value < 0 else "less likely"
        return "forgotten" if before and self.risen[key] < LEVEL else "not shown"


@dataclass(frozen=True)
class Series:
    """Spans of one series, and by stage their summed NLL, nats; of seeds the mean.

    ``spans`` has the stage that trained on the span's task as ``place``.
    """

    spans: pd.DataFrame
    nll: Mapping[int, np.ndarray]


def all_series(evidence: Evidence) -> dict[str, Series]:
    """The series by name, each with the stages that all of its seeds have reached."""
    members: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, name in enumerate(evidence.checkpoints):
        parts = CheckpointName.parse(name)
        members[parts.method][parts.stage or 1].append(i)
    sums, places = (evidence.values[name] for name in ("nll_sum", "place"))
    series = {}
    for method, stages in members.items():
        most = max(map(len, stages.values()))
        whole = {k: at for k, at in sorted(stages.items()) if len(at) == most}
        place = places[next(iter(whole.values()))[0]].astype(int)
        series[method] = Series(
            evidence.units.assign(place=place),
            {stage: np.mean(sums[at], axis=0) for stage, at in whole.items()},
        )
    return series


def cells_of(series: Series) -> Iterator[tuple[str, int, Cell]]:
    """Task (empty: all that were trained on) and stage, with its cell."""
    spans = series.spans
    usable = _usable(spans)
    tasks, places = (spans[name].to_numpy() for name in ("task", "place"))
    for task in sorted(set(tasks)):
        chosen = usable & (tasks == task)
        held = {stage: sums[chosen] for stage, sums in series.nll.items()}
        place = int(places[tasks == task][0])
        yield from ((task, *each) for each in _course(spans[chosen], held, place))
    for stage, sums in series.nll.items():
        chosen = usable & (places <= stage)
        own, before = spans[chosen], spans["ref_sum"].to_numpy()[chosen]
        moved, apart = _contrast(_sides(own), sums[chosen], before)
        yield "", stage, Cell(moved, Memory.missing("only per task"), 0, apart)


@dataclass(frozen=True)
class BySeries:
    """Memory of all tasks by every stage at once, by the last one, and the gain.

    Who has every stage sees an identifier at the stage that knew it best since its own
    task; held-out identifiers of the task take the best of the same stages.
    """

    best: Memory
    last: Memory
    gain: Memory
    reach: float

    @classmethod
    def of(cls, series: Series, *, without: Collection[str] = ()) -> BySeries | None:
        """``None`` where no task has a place, or there is a single stage.

        Parameters
        ----------
        without
            Tasks whose sides differed before they were trained on.
        """
        spans, stages = series.spans, np.array([*series.nll])[:, None]
        trained = (spans["place"] > 0) & ~spans["task"].isin([*without])
        chosen = _usable(spans) & trained.to_numpy()
        own = spans[chosen]
        if len(stages) < 2 or own.empty:
            return None
        # More stages have seen the tasks that came first: each is compared by itself.
        strata = own.assign(stratum=own.groupby(["task", "stratum"]).ngroup())
        sides, before = _sides(strata), own["ref_sum"].to_numpy()
        sums = np.stack([nll[chosen] for nll in series.nll.values()])
        seen = np.where(stages >= own["place"].to_numpy(), sums, np.inf).min(axis=0)
        last, reach = _contrast(sides, sums[-1], before)
        best, _ = _contrast(sides, seen, before)
        return cls(best, last, _contrast(sides, seen, sums[-1])[0], reach)


def _usable(spans: pd.DataFrame) -> np.ndarray:
    """Identifiers of one task alone, trained or held out, that have a control."""
    alone = (spans["split"] == "train") & (spans["elsewhere"] == 0)
    either = alone | ((spans["split"] == "test") & (spans["dose"] == 0))
    # Where text alone tells the sides apart, one is no control for the other.
    return np.asarray(either & (spans["stratum"] >= 0))


def _sides(spans: pd.DataFrame) -> Sides | None:
    return sides_of(spans) if len(spans) else None


def _contrast(
    sides: Sides | None, sums: np.ndarray, before: np.ndarray
) -> tuple[Memory, float]:
    """Change of trained beyond never trained, and what they were clearly apart before.

    Parameters
    ----------
    sums, before
        Summed NLL of each span, nats, and the one that it is compared with.
    """
    if sides is None:
        return Memory.missing(
            "its rows contain no identifier that occurs in this task only"
        ), 0.0
    return memory(sums - before, sides), unequal(memory(before, sides).difference)


def _course(
    spans: pd.DataFrame, nll: Mapping[int, np.ndarray], place: int
) -> Iterator[tuple[int, Cell]]:
    """A task's cells, stage after stage."""
    sides, reference = _sides(spans), spans["ref_sum"].to_numpy()
    least: dict[int, float] = {}
    held = 0.0
    for stage, sums in nll.items():
        own, reach = _contrast(sides, sums, reference)
        step, gap = Memory.missing("the previous stage was not scored"), 0.0
        if (before := nll.get(stage - 1)) is not None:
            step, gap = _contrast(sides, sums, before)
            # Memory is known better than the level: what was luck is paired away.
            gap = max(gap, held)
        since = 1.0
        if least and sides is not None and own.difference.value is not None:
            peak = min(least, key=lambda one: least[one])
            rose = memory(sums - nll[peak], sides)
            # The lowest of several is low by luck too: each could have been it.
            p = rose.t_p()
            if p is not None and (rose.difference.value or 0.0) > 0:
                since = min(1.0, len(least) * p)
        yield stage, Cell(own, step, place, reach, gap, since)
        held = unequal(own.difference)
        if own.difference.value is not None and stage >= place:
            least[stage] = own.difference.value
