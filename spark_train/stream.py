"""The stream of a run, with which methods work: tasks in order, rows, the student.

Every draw of rows is a method here, with a generator of its own for each purpose. A new
kind of draw must have a new purpose: a shared one would draw the same numbers twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from spark_audit.provenance import seed_for
from spark_train.processes import rank, together
from spark_train.student import Student
from spark_train.tensor_files import read_tensors, write_tensors
from spark_train.training_rows import TrainRow
from spark_train.training_settings import TrainingSettings

CARRIED = "carried"
"""Subfolder of a run for tensors that its method carries from task to task."""


@dataclass(frozen=True)
class Stream:
    """The tasks of a run in order, with everything that a method works with.

    Tasks count from 0, as ``k``; the names of their stages count from 1.

    Attributes
    ----------
    student
        The model in training.
    rows
        Task -> its train rows; the tasks in the order of the stream.
    settings
        All settings of the run.
    note
        Called with a sentence that a reader of the run must know.
    folder
        The run's folder, where a phase may leave tensors for later ones
        (:meth:`save_carried`); ``None``: nowhere.
    poisson
        Whether each row enters a batch by a draw of its own, as accountants of
        differential privacy assume, instead of a pass through all rows.
    identity
        The fingerprint of the run. Poisson sampling draws from it and from the seed, so
        that no other run shows which rows this one drew.
    """

    student: Student
    rows: Mapping[str, Sequence[TrainRow]]
    settings: TrainingSettings
    note: Callable[[str], None] = lambda text: None
    folder: Path | None = None
    poisson: bool = False
    identity: str = ""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks in order."""
        return tuple(self.rows)

    def stage_name(self, k: int) -> str:
        """Return the name of the stage after task ``k``, ``2-yelp`` for ``k`` = 1."""
        return f"{k + 1}-{self.tasks[k]}"

    def replayable_rows(self, k: int) -> dict[str, list[TrainRow]]:
        """Map each task before ``k`` to its rows that may still be replayed.

        They are all rows, or ``replay.memory`` rows, evenly over those tasks. With each
        further task the share of a task gets smaller, and is a part of its last one.
        """
        rows_by_task = {task: list(self.rows[task]) for task in self.tasks[:k]}
        limit = self.settings.replay.memory
        if not limit:
            return rows_by_task

        sizes = even_shares(limit, k)
        for task, n_kept in zip(rows_by_task, sizes, strict=True):
            rows = rows_by_task[task]
            # One permutation per task: a smaller share is a part of a larger one.
            kept_indices = self._rng("memory", task).permutation(len(rows))[:n_kept]
            rows_by_task[task] = [rows[i] for i in sorted(kept_indices)]
        return rows_by_task

    def draw_replayed(self, k: int, size: int, *, purpose: str) -> list[TrainRow]:
        """Draw ``size`` earlier rows, evenly over the tasks before ``k`` **[ours]**.

        A task with fewer rows than its share repeats all of them.
        """
        # A small memory may hold no row of a task; the other tasks then get its share.
        memory = {task: rows for task, rows in self.replayable_rows(k).items() if rows}
        sizes = even_shares(size, len(memory))

        drawn: list[TrainRow] = []
        for (task, rows), n_drawn in zip(memory.items(), sizes, strict=True):
            rng = self._rng("replay", purpose, k, task)
            drawn += [rows[i] for i in cycled_indices(len(rows), n_drawn, rng)]

        # The tasks are mixed.
        order = self._rng("replay", purpose, k).permutation(len(drawn))
        return [drawn[i] for i in order]

    def epoch_order(self, k: int, epoch: int, *, size: int, purpose: str) -> np.ndarray:
        """Return an epoch's order: a permutation of row indices, ``(size,)``."""
        return self._rng("order", purpose, k, epoch).permutation(size)

    def draw_evenly(
        self, k: int, rows: Sequence[TrainRow], size: int, *, purpose: str
    ) -> list[TrainRow]:
        """Draw ``size`` of the rows, whose frequencies differ by at most one."""
        rng = self._rng("draw", purpose, k)
        return [rows[i] for i in cycled_indices(len(rows), size, rng)]

    def sample_poisson(
        self, step: int, rows: Sequence[TrainRow], rate: float, *, purpose: str
    ) -> list[TrainRow]:
        """Draw the rows of a step, each by itself with probability ``rate``."""
        rng = self._rng("poisson", self.identity, purpose, step)
        draws = rng.random(len(rows))  # (rows,)
        return [row for row, draw in zip(rows, draws, strict=True) if draw < rate]

    def save_carried(self, k: int, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Write groups of tensors that a method carries from task ``k`` to later ones.

        A group has one tensor for each weight, such as its importance. A run that is
        resumed reads them instead of computing them again, and they are removed when
        the run is complete. The file of the task before stays until the next call: a
        run that is killed now begins with the end of task ``k`` again.

        Parameters
        ----------
        groups
            Name of a group -> name of a weight -> tensor.
        """
        tensors = {}
        for group, tensors_of_group in groups.items():
            for name, value in tensors_of_group.items():
                tensors[f"{group}:{name}"] = value.detach().cpu().contiguous()

        with together():
            if rank() == 0:
                write_tensors(self._carried_file(k), tensors, mode=0o600)
                if k > 1:
                    self._carried_file(k - 2).unlink(missing_ok=True)

    def read_carried(self, k: int) -> dict[str, dict[str, Tensor]]:
        """Read what :meth:`save_carried` wrote after task ``k``, in its groups.

        The tensors are on the student's device.

        Raises
        ------
        OutputError
            If the file is gone, cannot be read, or is damaged.
        """
        groups: dict[str, dict[str, Tensor]] = {}
        tensors = read_tensors(self._carried_file(k), device=self.student.device)
        for key, value in tensors.items():
            group, _, name = key.partition(":")
            groups.setdefault(group, {})[name] = value
        return groups

    def _carried_file(self, k: int) -> Path:
        """Return the file of the tensors that are carried on after task ``k``."""
        assert self.folder is not None
        return self.folder / CARRIED / f"{self.stage_name(k)}.safetensors"

    def _rng(self, *purpose: object) -> np.random.Generator:
        """Return a generator for one purpose.

        No draw depends on other draws, so that a resumed run draws the same rows.
        """
        return np.random.default_rng(seed_for(self.settings.seed, *purpose))


def even_shares(total: int, parts: int) -> list[int]:
    """Cut ``total`` into whole parts that differ by at most 1, the larger ones first.

    >>> even_shares(8, 3)
    [3, 3, 2]
    """
    return [total // parts + (i < total % parts) for i in range(parts)]


def cycled_indices(count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw ``size`` indices below ``count``: one permutation of them after another."""
    if not count or not size:
        return np.zeros(0, dtype=np.int64)
    n_rounds = math.ceil(size / count)
    permutations = [rng.permutation(count) for _ in range(n_rounds)]
    return np.concatenate(permutations)[:size]
