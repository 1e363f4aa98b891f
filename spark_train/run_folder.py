"""The folder of a training run: its record, its state, and its results.

``run.json`` records the run and its data. ``stages/1-fomc/{task,priv}`` are PEFT
adapters. ``metrics.jsonl`` has a line per step, and ``accuracy.csv`` a line per stage.
An interrupted run resumes from ``state.safetensors`` and from the files of its method
in ``carried/``. Everything is written whole or not at all, with checksums. Checksums of
growing files are in the state, and in ``run.json`` once the run is complete; all other
files have their own.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from spark_audit.checkpoints import run_record
from spark_audit.checkpoints.weight_files import check_whole
from spark_audit.errors import InputError, OutputError, at
from spark_audit.files import (
    BLANK_DIGEST,
    Fact,
    alone,
    cannot_write,
    check_links,
    fact_of,
    intact,
    parse_json,
    read_regular,
    sealed,
    sweep,
    write_atomically,
)
from spark_train import loop
from spark_train.adapter_folder import TRAINED_ON
from spark_train.run_record import PhaseSeconds, RunRecord
from spark_train.stream import CARRIED
from spark_train.tensor_files import TRAIN_AGAIN, read_tensors, write_tensors


class Folder:
    """A run folder on disk.

    A run calls :meth:`read` and :meth:`lock` at its beginning, :meth:`restore` where it
    resumes, :meth:`log` after each step, :meth:`save` after some steps, :meth:`write`
    after each phase, and :meth:`close` at its end. Only the first process writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stages = path / "stages"
        self.metrics = path / "metrics.jsonl"
        self.accuracy = path / "accuracy.csv"
        self._record = path / run_record.RECORD_FILE
        self._state = path / run_record.STATE_FILE
        # Lines of metrics.jsonl of the steps since the last saved state.
        self._lines: list[str] = []

    def read(self) -> RunRecord | None:
        """Return the record of the run in the folder, if any.

        Raises
        ------
        InputError
            If the folder holds something else.
        OutputError
            If the record cannot be read, or was changed.
        """
        if not self._record.exists():
            # Hidden files, such as the lock, do not count.
            foreign_names = sorted(path.name for path in self.path.glob("[!.]*"))
            if foreign_names:
                raise InputError(
                    f"holds {foreign_names[0]} and no {run_record.RECORD_FILE}: it is "
                    "not the folder of a run",
                    where=str(self.path),
                    fix="give another -o, or empty the folder",
                )
            return None

        try:
            data = read_regular(self._record)
            content = parse_json(data, place=str(self._record), finite=False)
            record = RunRecord.model_validate(content)
            if not intact(data):
                raise ValueError("other bytes than were written")
        except (OSError, InputError, ValueError):
            raise OutputError(
                "is damaged, or is not a readable record of a run",
                where=str(self._record),
                fix="give another -o",
            ) from None
        return record

    def is_new(self) -> bool:
        """Return whether the run has saved no state, so that it begins anew."""
        return not self._state.exists()

    def write(self, record: RunRecord) -> None:
        """Write ``run.json``, for the owner only, because it contains DP-SGD's seed."""
        # The checksum covers the record with a blank checksum in it.
        blank = record.model_copy(update={"seal": BLANK_DIGEST})
        data = sealed((blank.model_dump_json(indent=1) + "\n").encode())
        write_atomically(self._record, lambda file: file.write(data), mode=0o600)

    def files(self) -> dict[str, Fact]:
        """Return the size and SHA-256 of the growing files."""
        growing = (self.metrics, self.accuracy)
        return {path.name: fact_of(path) for path in growing if path.is_file()}

    def check_adapters(self, finished_keys: Iterable[str]) -> None:
        """Check that the adapters of finished phases are unchanged.

        Parameters
        ----------
        finished_keys
            Keys such as ``1-yelp/task`` for an adapter and ``1-yelp/answers`` for
            accuracies.

        Raises
        ------
        InputError
            If an adapter is gone.
        CheckpointError
            If a file of an adapter was changed.
        """
        for key in finished_keys:
            # Accuracies have no folder.
            if key.endswith("/answers"):
                continue

            folder = self.stages / key
            with at(str(folder)):
                if not check_whole(folder):
                    raise InputError(
                        f"stages/{key}/{TRAINED_ON} of the run is gone",
                        where=str(self.path),
                        fix=TRAIN_AGAIN,
                    )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out of the folder; a dying process releases the lock.

        Half-written files of a killed process are removed. A folder that was created
        for the lock is removed if it stays empty.

        Raises
        ------
        InputError
            If another process holds the lock, or if a link would lead writes out of the
            folder.
        OutputError
            If the folder cannot be made.
        """
        check_links(self.path, "stages", "stages/*", "stages/*/*", CARRIED)
        check_links(self.path, self.metrics.name, self.accuracy.name)

        with alone(self.path / ".lock", wait=False):
            for folder in (self.path, self.path / CARRIED):
                sweep(folder)
            yield

    def log(self, record: loop.StepRecord) -> None:
        """Hold a step's line until the state is saved."""
        self._lines.append(json.dumps(record, allow_nan=False) + "\n")

    def save(self, phase: int, state: loop.PhaseState, seconds: PhaseSeconds) -> None:
        """Write the lines that :meth:`log` held, then the state that they lead to.

        Parameters
        ----------
        phase
            Number, from 0, of the phase to which ``state`` belongs.
        seconds
            Seconds of earlier phases.

        Raises
        ------
        OutputError
            If a file cannot be written, or if somebody emptied the folder meanwhile:
            such a run could not be resumed.
        """
        if not self._record.exists():
            raise OutputError(
                "was emptied while the run was writing to it",
                where=str(self.path),
                fix="run the same command again: the run begins anew",
            )

        # Lines come first, so that a state on disk has all of its lines.
        try:
            # Losses of single steps reveal something about the rows, so only the owner
            # may read.
            with open(self.metrics, "a", opener=partial(os.open, mode=0o600)) as file:
                file.writelines(self._lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.metrics, error) from error
        self._lines = []

        description = {
            "phase": phase,
            "step": state.step,
            "files": self.files(),
            # An empty name stands for the seconds of the phase itself.
            "seconds": {**seconds, "": state.seconds},
        }
        write_tensors(
            self._state, state.tensors, mode=0o600, state=json.dumps(description)
        )

    def restore(self) -> tuple[int, loop.PhaseState, PhaseSeconds]:
        """Return the phase's number, its state, and the seconds of earlier phases.

        Lines of steps after the state are removed, because those steps are repeated.

        Raises
        ------
        OutputError
            If the state, or the lines before it, were changed.
        """
        # The run was killed before its first saved state, so it begins again.
        if self.is_new():
            self.metrics.unlink(missing_ok=True)
            return 0, loop.PhaseState(), {}

        description = run_record.read_state(self._state)
        tensors = read_tensors(self._state)
        # The growing files may have become longer since the state was saved. Their
        # further lines belong to steps that are repeated.
        run_record.check_files(self.path, description["files"], grows=True)
        try:
            n_bytes = description["files"][self.metrics.name]["bytes"]
            os.truncate(self.metrics, n_bytes)
        except OSError as error:
            raise cannot_write(self.metrics, error) from error

        # An empty name stands for the seconds of the phase itself.
        seconds = dict(description["seconds"])
        state = loop.PhaseState(
            step=description["step"], tensors=tensors, seconds=seconds.pop("")
        )
        return description["phase"], state, seconds

    def close(self) -> None:
        """Remove the files for resuming, because the run is complete."""
        shutil.rmtree(self.path / CARRIED, ignore_errors=True)
        self._state.unlink(missing_ok=True)
