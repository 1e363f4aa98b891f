"""The run folder: what a run is, where it stands, and what it has left.

``run.json`` says what was trained and on what; ``stages/1-fomc/{task,priv}`` are PEFT
adapters; ``metrics.jsonl`` has a line a step, ``accuracy.csv`` a line a stage; an
interrupted run goes on from the file ``state.safetensors`` and what its method keeps in
``carried/``. Everything is written whole or not at all, with checksums: those of files
that grow stand in the state, and once the run is complete in ``run.json``; everything
else carries its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from spark_audit.checkpoints.run_folder import RECORD, STATE, check_files, read_state
from spark_audit.checkpoints.sidecar import NOISE, check_whole
from spark_audit.checksums import BLANK, DAMAGED, Fact, fact_of, intact, sealed
from spark_audit.errors import InputError, OutputError, at
from spark_audit.files import (
    TEMPORARY,
    alone,
    cannot_write,
    check_links,
    check_regular,
    parse_json,
    read_regular,
    sweep,
    write_atomically,
)
from spark_train.loop import State
from spark_train.model.lora import CONFIG, WEIGHTS
from spark_train.run_record import DATA, FREE, RunRecord
from spark_train.settings import difference
from spark_train.stream import CARRIED, SCORES

_SHA256 = re.compile("[0-9a-f]{64}")


class Folder:
    """A run folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stages = path / "stages"
        self.metrics = path / "metrics.jsonl"
        self.accuracy = path / "accuracy.csv"
        self._run, self._state = path / RECORD, path / STATE
        self._lock = path / ".lock"
        self._lines: list[bytes] = []
        self._hashed = hashlib.sha256()  # of all lines that were written

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
            inside = self.path.iterdir() if self.path.is_dir() else ()
            others = [p.name for p in inside if p.name[0] != "." and not _unborn(p)]
            ours = {self.stages.name, self.metrics.name, self.accuracy.name}
            if {*others} - {*ours, STATE, SCORES, CARRIED}:
                raise InputError(
                    f"holds something else than a run ({sorted(others)[0]})",
                    where=str(self.path),
                    fix="give another -o",
                )
            if others:
                raise InputError(
                    f"holds files of a run ({sorted(others)[0]}) without its {RECORD}",
                    where=str(self.path),
                    fix="empty the folder and run again, or give another -o",
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
        pair = [{**one.identity, **one.settings} for one in (old, new)]
        if old.method != new.method:
            # Settings that only one of the methods has say nothing more.
            common = pair[0].keys() & pair[1].keys()
            pair = [{k: v for k, v in one.items() if k in common} for one in pair]
        files = [one.pop(DATA, None) for one in pair]
        differences = difference(
            *({k: _brief(v) for k, v in one.items() if k not in FREE} for one in pair)
        )
        if files[0] != files[1]:
            differences.append(f"{DATA}: other files or contents")
        if differences:
            raise InputError(
                f"holds a run of other settings: {'; '.join(differences)}",
                where=str(self.path),
                fix="give another -o, or the same settings",
            )

    def write(self, record: RunRecord) -> None:
        """Write ``run.json``, for the owner only: it tells DP-SGD's seed."""
        open_ = record.model_copy(update={"seal": BLANK})
        data = sealed((open_.model_dump_json(indent=1) + "\n").encode())
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

    def left(self) -> dict[str, Fact]:
        """Size and SHA-256 of what a run leaves beside its adapters."""
        scores = sorted((self.path / SCORES).glob("*.parquet"))
        return {
            str(path.relative_to(self.path)): fact_of(path)
            for path in (self.metrics, self.accuracy, *scores)
            if path.is_file()
        }

    def check_left(self, done: Iterable[str]) -> None:
        """Make sure that what finished phases left is there, as it was written.

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
            if key.endswith("/answers"):
                needed = [self.accuracy]
            else:
                needed = [self.stages / key / name for name in (CONFIG, WEIGHTS)]
            for path in needed:
                if not path.is_file():
                    raise InputError(
                        f"{path.relative_to(self.path)} of the run is gone",
                        where=str(self.path),
                        fix="remove the run folder and train again",
                    )
            if not key.endswith("/answers"):
                with at(str(self.stages / key)):
                    check_whole(self.stages / key)

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
        with alone(self._lock, wait=False):
            try:
                self._sweep()
                yield
            finally:
                self._sweep()

    def _sweep(self) -> None:
        """Remove what a process that was killed left half-written.

        What a run carries belongs to no run before there is a record of one: the next
        may have another seed.
        """
        if not self._run.exists() and _unborn(self.path / CARRIED):
            shutil.rmtree(self.path / CARRIED, ignore_errors=True)
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
                size = file.tell()
        except OSError as error:
            raise OutputError(
                f"cannot be written ({error.strerror or error})",
                where=str(self.metrics),
                fix="check free space, then run again: it resumes here",
            ) from error
        self._hashed.update(b"".join(self._lines))
        self._lines = []
        lines: Fact = {"bytes": size, "sha256": self._hashed.hexdigest()}
        files = {self.metrics.name: lines}
        if self.accuracy.exists():
            files[self.accuracy.name] = fact_of(self.accuracy)
        meta = {
            "phase": phase,
            "step": state.step,
            "files": files,
            "seconds": {**seconds, "": state.seconds},
        }
        tensors = {f"weight:{n}": w for n, w in (state.weights or {}).items()}
        tensors |= {f"moment:{n}": w for n, w in (state.moments or {}).items()}
        about = {"state": json.dumps(meta), "seal": BLANK}
        data = sealed(save(tensors, metadata=about))
        write_atomically(self._state, lambda file: file.write(data), mode=0o600)

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
        try:
            check_regular(self._state)
            with safe_open(self._state, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}
        except (OSError, SafetensorError) as error:
            raise OutputError(
                "cannot be read",
                where=str(self._state),
                fix="remove the run folder and train again",
            ) from error
        files = meta["files"]
        check_files(self.path, files, grows=True)
        for path in (self.metrics, self.accuracy):
            if path.name in files:
                self._cut(path, files[path.name]["bytes"])
            else:
                path.unlink(missing_ok=True)
        with self.metrics.open("rb") as lines:
            self._hashed = hashlib.file_digest(lines, "sha256")
        seconds = dict(meta["seconds"])
        state = State(
            step=meta["step"],
            weights=_part(tensors, "weight:"),
            moments=_part(tensors, "moment:"),
            seconds=seconds.pop(""),
        )
        return meta["phase"], state, seconds

    def _cut(self, path: Path, size: int) -> None:
        """Cut a file off that is known to be as long, or longer."""
        try:
            if path.exists() and path.stat().st_size > size:
                os.truncate(path, size)
        except OSError as error:
            raise cannot_write(path, error) from error

    def close(self) -> None:
        """The run is complete: there is nothing to go on from."""
        shutil.rmtree(self.path / CARRIED, ignore_errors=True)
        self._state.unlink(missing_ok=True)


def _unborn(path: Path) -> bool:
    """Whether it is all that a run has before its record: frozen noise, or a part."""
    if path.name != CARRIED or path.is_symlink():
        return False
    try:
        inside = [entry.name for entry in path.iterdir()]
    except FileNotFoundError:  # the first process has just removed it
        return True
    except OSError:
        return False
    return all(name == NOISE or TEMPORARY.fullmatch(name) for name in inside)


def _brief(value: Any) -> Any:
    """The beginning of a hash, which is enough to see that two differ."""
    is_hash = isinstance(value, str) and _SHA256.fullmatch(value)
    return value[:16] if is_hash else value


def _part(
    tensors: dict[str, torch.Tensor], prefix: str
) -> dict[str, torch.Tensor] | None:
    named = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    return named or None
