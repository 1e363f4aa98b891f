"""The run folder: what a run is, where it stands, and what it has left.

``run.json`` says what was trained and on what; ``stages/1-fomc/{task,priv}`` are PEFT
adapters; ``metrics.jsonl`` has a line a step, ``accuracy.csv`` a line a stage; the file
``state.safetensors`` is what an interrupted run goes on from. Everything is written
whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from spark_audit.errors import InputError, OutputError
from spark_audit.facts import write_atomically, write_text
from spark_train.loop import State
from spark_train.settings import difference

FREE = ("save_every",)
"""Settings that may change from one start of a run to the next: neither a weight nor an
accuracy depends on them."""

_SHA256 = re.compile("[0-9a-f]{64}")


class RunRecord(BaseModel):
    """``run.json``.

    Attributes
    ----------
    identity
        Everything the adapters depend on: a folder is gone on with only where all of
        it is the same.
    seconds
        Phase -> seconds by kind of work.
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
    processes: int
    command: list[str]
    created: str
    versions: dict[str, str]
    seconds: dict[str, dict[str, float]] = {}
    notes: list[str] = []


class Folder:
    """A run folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stages = path / "stages"
        self.metrics = path / "metrics.jsonl"
        self.accuracy = path / "accuracy.csv"
        self._run, self._state = path / "run.json", path / "state.safetensors"
        self._lines: list[str] = []

    # --- what the run is ------------------------------------------------------------

    def read(self) -> RunRecord | None:
        """The record of the run that the folder holds, if any.

        Raises
        ------
        InputError
            If the folder holds something else.
        """
        if not self._run.exists():
            inside = self.path.iterdir() if self.path.is_dir() else ()
            others = [p.name for p in inside if p.name[0] != "."]
            if others:
                raise InputError(
                    f"holds something else than a run ({sorted(others)[0]})",
                    where=str(self.path),
                    fix="give another -o",
                )
            return None
        try:
            return RunRecord.model_validate_json(self._run.read_bytes())
        except (OSError, ValidationError) as error:
            raise InputError(
                "is no record of a run that can be read",
                where=str(self._run),
                fix="give another -o",
            ) from error

    def check(self, old: RunRecord, new: RunRecord) -> None:
        """Refuse to go on with another run's folder, with what differs."""
        pair = [{**one.identity, **one.settings} for one in (old, new)]
        if old.method != new.method:
            # Settings that only one of the methods has say nothing more.
            common = pair[0].keys() & pair[1].keys()
            pair = [{k: v for k, v in one.items() if k in common} for one in pair]
        if found := difference(
            *({k: _brief(v) for k, v in one.items() if k not in FREE} for one in pair)
        ):
            raise InputError(
                f"holds a run of other settings: {'; '.join(found)}",
                where=str(self.path),
                fix="give another -o, or the same settings",
            )

    def write(self, record: RunRecord) -> None:
        """Write ``run.json``."""
        write_text(self._run, record.model_dump_json(indent=1) + "\n")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out; a process that dies lets go."""
        import fcntl

        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(
                    "another process is writing to it",
                    where=str(self.path),
                    fix="wait for it, or give another -o",
                ) from error
            yield

    # --- where it stands ------------------------------------------------------------

    def log(self, record: dict[str, Any]) -> None:
        """Keep a step's line until the state is saved."""
        self._lines.append(json.dumps(record, allow_nan=False) + "\n")

    def save(self, phase: int, state: State, seconds: dict[str, Any]) -> None:
        """Write the lines kept, then the state that they lead to.

        Parameters
        ----------
        phase
            Number of the phase that ``state`` is of, from 0.
        seconds
            What earlier phases took.
        """
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.writelines(self._lines)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
        except OSError as error:
            raise OutputError(
                f"cannot be written ({error.strerror or error})",
                where=str(self.metrics),
                fix="check free space, then run again: it goes on from here",
            ) from error
        self._lines = []
        meta = {
            "phase": phase,
            "step": state.step,
            "metrics_bytes": size,
            "seconds": {**seconds, "": state.seconds},
        }
        tensors = {f"weight:{n}": w for n, w in (state.weights or {}).items()}
        tensors |= {f"moment:{n}": w for n, w in (state.moments or {}).items()}
        data = save(tensors, metadata={"state": json.dumps(meta)})
        write_atomically(self._state, lambda file: file.write(data), mode=0o600)

    def restore(self) -> tuple[int, State, dict[str, Any]] | None:
        """The phase, its state, and the seconds of earlier ones; ``None``: none yet.

        Lines of steps behind the state are cut off: they will be taken again.
        """
        if not self._state.exists():
            self.metrics.unlink(missing_ok=True)
            return None
        try:
            with safe_open(self._state, framework="pt") as file:
                meta = json.loads(file.metadata()["state"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            os.truncate(self.metrics, meta["metrics_bytes"])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InputError(
                "cannot be read",
                where=str(self._state),
                fix="remove the run folder and train again",
            ) from error
        seconds = dict(meta["seconds"])
        state = State(
            step=meta["step"],
            weights=_part(tensors, "weight:"),
            moments=_part(tensors, "moment:"),
            seconds=seconds.pop(""),
        )
        return meta["phase"], state, seconds

    def close(self) -> None:
        """The run is complete: there is nothing to go on from."""
        self._state.unlink(missing_ok=True)


def _brief(value: Any) -> Any:
    """The beginning of a hash, which is enough to see that two differ."""
    is_hash = isinstance(value, str) and _SHA256.fullmatch(value)
    return value[:16] if is_hash else value


def _part(
    tensors: dict[str, torch.Tensor], prefix: str
) -> dict[str, torch.Tensor] | None:
    found = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    return found or None


def data_files(given: Sequence[Path]) -> list[Path]:
    """JSON-lines files: those given, and those in folders given.

    Raises
    ------
    InputError
        If a folder holds none.
    """
    found: list[Path] = []
    for path in given:
        inside = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise InputError(
                "holds no .jsonl file", where=str(path), fix="see `data import`"
            )
        found += inside
    return found
