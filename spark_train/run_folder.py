"""The run folder: what a run is, where it stands, and what it has left.

``run.json`` says what was trained and on what; ``stages/1-fomc/{task,priv}`` are PEFT
adapters; ``metrics.jsonl`` has a line a step, ``accuracy.csv`` a line a stage; an
interrupted run goes on from the file ``state.safetensors`` and what its method keeps in
``carried/``. Everything is written whole or not at all, with checksums: those of files
that grow stand in the state, and once the run is complete in ``run.json``; everything
else carries its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from spark_audit.checkpoints.loaded import Loaded
from spark_audit.checkpoints.run_folder import RECORD, STATE, check_files, read_state
from spark_audit.checkpoints.sidecar import check_whole
from spark_audit.checksums import BLANK, DAMAGED, Fact, fact_of, intact, sealed
from spark_audit.errors import InputError, OutputError, at
from spark_audit.files import (
    alone,
    cannot_write,
    check_links,
    parse_json,
    read_regular,
    sweep,
    write_atomically,
)
from spark_audit.provenance import now, sha256_file, sha256_json, versions
from spark_train.corpus import Corpus
from spark_train.distributed import Processes
from spark_train.loop import State, Timed, timed
from spark_train.model.lora import TRAINED_ON
from spark_train.request import NONE, TrainRequest
from spark_train.settings import difference
from spark_train.stream import CARRIED, SCORES
from spark_train.task_state import read_tensors, write_tensors

FREE = ("save_every",)
"""Settings that may change from one start of a run to the next: neither a weight nor an
accuracy depends on them."""

_DATA = "data"
_SHA256 = re.compile("[0-9a-f]{64}")
# The libraries that compute: with others of them a step may round otherwise.
_COMPUTING = ("torch", "transformers", "peft")


class Start(BaseModel):
    """One start of a run: where it computed; CPU threads of the first process."""

    model_config = ConfigDict(extra="forbid")

    created: str
    command: list[str]
    processes: int
    device: str
    threads: int
    gradient_checkpointing: bool
    versions: dict[str, str]

    def changes(self, later: Start) -> list[str]:
        """What the bytes of a later start may differ for."""
        names = ("device", "threads", "processes", "gradient_checkpointing")
        one, other = (
            {name.replace("_", " "): getattr(start, name) for name in names}
            | {name: start.versions.get(name, "none") for name in _COMPUTING}
            for start in (self, later)
        )
        return [f"{n} {one[n]} -> {other[n]}" for n in one if one[n] != other[n]]


class RunRecord(BaseModel):
    """``run.json``.

    Attributes
    ----------
    identity
        Everything the adapters depend on: a folder is gone on with only where all of
        it is the same. ``data`` are the SHA-256 of the data files, sorted.
    settings
        Those that the method and the privacy option read, by name.
    privacy
        What the run's privacy option says of itself; empty without one.
    clock, seconds
        Phase -> seconds by kind of work, on the wall or of the processor.
    files
        Size and SHA-256 of what a complete run left beside its adapters.
    seal
        Checksum of the record.
    """

    model_config = ConfigDict(extra="forbid")

    kind: Literal["spark-train-run"] = "spark-train-run"
    schema_version: Literal[1] = 1
    status: Literal["running", "complete"] = "running"
    method: str
    tasks: list[str]
    settings: dict[str, Any]
    identity: dict[str, Any]
    base: dict[str, Any]
    data: list[dict[str, str]]
    rows: dict[str, dict[str, int]]
    starts: list[Start]
    privacy: dict[str, Any] = {}
    clock: Timed = "wall"
    seconds: dict[str, dict[str, float]] = {}
    notes: list[str] = []
    files: dict[str, Fact] = {}
    seal: str = ""

    @classmethod
    def begun(
        cls,
        request: TrainRequest,
        corpus: Corpus,
        loaded: Loaded,
        settings: dict[str, Any],
        processes: Processes,
    ) -> RunRecord:
        """What ``run.json`` says of a run that begins now."""
        hashes = [sha256_file(path) for path in corpus.files]
        identity = {
            "method": request.method,
            "order": ",".join(corpus.tasks),
            "base": loaded.weights_sha256,
            "tokenizer": loaded.tokenizer_sha256,
            "dtype": request.loading.dtype,
            "lora_targets": ",".join(request.lora_targets),
            _DATA: hashes,
        }
        if request.dp != NONE:
            identity["dp"] = request.dp
        start = Start(
            created=now(),
            command=list(request.command),
            processes=processes.world,
            device=loaded.device,
            threads=torch.get_num_threads(),
            gradient_checkpointing=request.gradient_checkpointing,
            versions=versions(),
        )
        return cls(
            method=request.method,
            tasks=list(corpus.tasks),
            settings=settings,
            identity=identity,
            base={"source": request.base, "weights_sha256": loaded.weights_sha256},
            data=[
                {"file": path.name, "sha256": sha256}
                for path, sha256 in zip(corpus.files, hashes, strict=True)
            ],
            rows=corpus.counts(),
            clock=timed(loaded.device),
            starts=[start],
        )

    def fingerprint(self) -> str:
        """A hash of all that a run's weights depend on; of another run, another one."""
        settings = {k: v for k, v in self.settings.items() if k not in FREE}
        return sha256_json({"identity": self.identity, "settings": settings})


class Folder:
    """A run folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stages = path / "stages"
        self.metrics = path / "metrics.jsonl"
        self.accuracy = path / "accuracy.csv"
        self._run, self._state = path / RECORD, path / STATE
        self._lines: list[bytes] = []

    # --- what the run is ------------------------------------------------------------

    def read(self) -> RunRecord | None:
        """The record of the run that the folder holds, if any.

        Raises
        ------
        InputError
            If the folder holds something else.
        OutputError
            If the record cannot be read, or is not as it was written.
        """
        if not self._run.exists():
            if others := sorted(path.name for path in self.path.glob("[!.]*")):
                raise InputError(
                    f"holds something else than a run ({others[0]}, no {RECORD})",
                    where=str(self.path),
                    fix="give another -o, or empty the folder",
                )
            return None
        try:
            data = read_regular(self._run)
            parse_json(data, place=str(self._run), finite=False)
            record = RunRecord.model_validate_json(data)
        except (OSError, InputError, ValidationError) as error:
            raise OutputError(
                "is no record of a run that can be read",
                where=str(self._run),
                fix="give another -o",
            ) from error
        if not intact(data):
            raise OutputError(DAMAGED, where=str(self._run), fix="give another -o")
        return record

    def check(self, old: RunRecord, new: RunRecord) -> None:
        """Refuse to go on with another run's folder, with what differs."""
        one, other = ({**run.identity, **run.settings} for run in (old, new))
        if old.method != new.method:
            # Settings that only one of the methods has say nothing more.
            one = {name: one[name] for name in one if name in other}
            other = {name: other[name] for name in one}
        files = one.pop(_DATA, None) != other.pop(_DATA, None)
        briefs = [
            {k: _brief(v) for k, v in run.items() if k not in FREE}
            for run in (one, other)
        ]
        differences = difference(*briefs)
        if files:
            differences.append(f"{_DATA}: other files or contents")
        if differences:
            raise InputError(
                f"holds a run of other settings: {'; '.join(differences)}",
                where=str(self.path),
                fix="give another -o, or the same settings",
            )

    def write(self, record: RunRecord) -> None:
        """Write ``run.json``, for the owner only: it tells DP-SGD's seed."""
        blank = record.model_copy(update={"seal": BLANK})
        data = sealed((blank.model_dump_json(indent=1) + "\n").encode())
        write_atomically(self._run, lambda file: file.write(data), mode=0o600)

    def check_there(self) -> None:
        """Refuse to go on where somebody has emptied the folder meanwhile.

        Raises
        ------
        OutputError
            If so: what is left of the run could not be resumed.
        """
        if not self._run.exists():
            raise OutputError(
                "was emptied while the run was writing to it",
                where=str(self.path),
                fix="run the same command again: it starts again",
            )

    def files(self, *more: Path) -> dict[str, Fact]:
        """Size and SHA-256 of the files that grow, and of some more."""
        return {
            str(path.relative_to(self.path)): fact_of(path)
            for path in (self.metrics, self.accuracy, *more)
            if path.is_file()
        }

    def check_left(self, done: Iterable[str]) -> None:
        """Make sure that the adapters of finished phases are as they were written.

        Parameters
        ----------
        done
            ``1-yelp/task`` for an adapter, ``1-yelp/answers`` for accuracies.

        Raises
        ------
        InputError
            Naming what is gone.
        CheckpointError
            Naming what of an adapter is not as it was written.
        """
        for key in done:
            place = self.stages / key
            if key.endswith("/answers"):
                continue
            if not (place / TRAINED_ON).is_file():
                raise InputError(
                    f"stages/{key}/{TRAINED_ON} of the run is gone",
                    where=str(self.path),
                    fix="remove the run folder and train again",
                )
            with at(str(place)):
                check_whole(place)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out; a process that dies lets go.

        What a killed process left half-written is swept away. Nothing is left of a
        folder that was made for this and stayed empty.

        Raises
        ------
        InputError
            If another process holds it, or a folder or file in it that is written to
            in place is a link out of it.
        OutputError
            If the folder cannot be made.
        """
        check_links(self.path, "stages", "stages/*", "stages/*/*", SCORES, CARRIED)
        check_links(self.path, self.metrics.name, self.accuracy.name)
        with alone(self.path / ".lock", wait=False):
            try:
                self._sweep()
                yield
            finally:
                self._sweep()

    def _sweep(self) -> None:
        for folder in (self.path, self.path / SCORES, self.path / CARRIED):
            sweep(folder)

    # --- where it stands ------------------------------------------------------------

    def log(self, record: dict[str, Any]) -> None:
        """Keep a step's line until the state is saved."""
        self._lines.append(json.dumps(record, allow_nan=False).encode() + b"\n")

    def save(self, phase: int, state: State, seconds: dict[str, Any]) -> None:
        """Write the lines kept, then the state that they lead to.

        Parameters
        ----------
        phase
            Number of the phase that ``state`` is of, from 0.
        seconds
            What earlier phases took.
        """
        self.check_there()
        try:
            # Losses of single steps are the rows' own: for their owner only.
            with open(self.metrics, "ab", opener=partial(os.open, mode=0o600)) as file:
                file.writelines(self._lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.metrics, error) from error
        self._lines = []
        meta = {
            "phase": phase,
            "step": state.step,
            "files": self.files(),
            "seconds": {**seconds, "": state.seconds},
        }
        tensors = {f"weight:{n}": w for n, w in (state.weights or {}).items()}
        tensors |= {f"moment:{n}": w for n, w in (state.moments or {}).items()}
        write_tensors(self._state, tensors, mode=0o600, state=json.dumps(meta))

    def restore(self) -> tuple[int, State, dict[str, Any]] | None:
        """The phase, its state, and the seconds of earlier ones; ``None``: none yet.

        Lines of steps and stages behind the state are cut off: they will be taken
        again.

        Raises
        ------
        OutputError
            If the state, or lines that lead to it, are not as they were written.
        """
        if not self._state.exists():
            self.metrics.unlink(missing_ok=True)
            return None
        meta = read_state(self._state)
        tensors = read_tensors(self._state)
        files = meta["files"]
        check_files(self.path, files, grows=True)
        for path in (self.metrics, self.accuracy):
            if path.name not in files:
                path.unlink(missing_ok=True)
            elif path.stat().st_size > files[path.name]["bytes"]:
                try:
                    os.truncate(path, files[path.name]["bytes"])
                except OSError as error:
                    raise cannot_write(path, error) from error
        seconds = dict(meta["seconds"])
        weights, moments = (
            {
                name.removeprefix(prefix): tensor
                for name, tensor in tensors.items()
                if name.startswith(prefix)
            }
            for prefix in ("weight:", "moment:")
        )
        state = State(meta["step"], weights or None, moments or None, seconds.pop(""))
        return meta["phase"], state, seconds

    def close(self) -> None:
        """The run is complete: there is nothing to go on from."""
        shutil.rmtree(self.path / CARRIED, ignore_errors=True)
        self._state.unlink(missing_ok=True)


def _brief(value: Any) -> Any:
    """The beginning of a hash, which is enough to see that two differ."""
    is_hash = isinstance(value, str) and _SHA256.fullmatch(value)
    return value[:16] if is_hash else value
