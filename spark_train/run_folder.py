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
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from torch import Tensor

from spark_audit.checkpoints.loaded import Loaded
from spark_audit.checkpoints.specs import RECORD, STATE, check_files, read_state
from spark_audit.checkpoints.weight_files import check_whole
from spark_audit.errors import InputError, OutputError, at
from spark_audit.files import (
    BLANK,
    Fact,
    alone,
    cannot_write,
    check_links,
    fact_of,
    intact,
    intact_file,
    parse_json,
    read_regular,
    sealed,
    sha256_file,
    sweep,
    write_atomically,
)
from spark_audit.provenance import now, sha256_json, versions
from spark_train.corpus import Corpus
from spark_train.distributed import rank, together, world
from spark_train.loop import State, Timed, timed
from spark_train.model.lora import TRAINED_ON
from spark_train.stream import CARRIED, Stream
from spark_train.training_request import TrainRequest
from spark_train.training_settings import shown

FREE = ("save_every",)
"""Settings that may change from one start of a run to the next: neither a weight nor an
accuracy depends on them."""

_AGAIN = "remove the run folder and train again"


class RunRecord(BaseModel):
    """``run.json``: what was asked for, on what, and what came of it.

    Attributes
    ----------
    settings
        Those that the method and the privacy option read, by name.
    base
        ``source`` as it was given, and ``weights_sha256``.
    data
        ``file`` and ``sha256`` of each data file, in the order of the hashes.
    starts
        Each start of the run: where it computed, with CPU threads of the first process.
        On another device, with another number of threads or processes, or by other
        versions of libraries the same step may round otherwise.
    privacy
        What the run's privacy option says of itself; empty without one.
    accuracy
        ``accuracy[t][i]``: on task ``i`` after stage ``t``; ``None``: not measured
        (later tasks, tasks without test rows). ``accuracy.csv`` shows it.
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
    dp: str
    tasks: list[str]
    settings: dict[str, Any]
    base: dict[str, str]
    tokenizer_sha256: str
    dtype: str
    lora_targets: list[str]
    data: list[dict[str, str]]
    starts: list[dict[str, Any]]
    privacy: dict[str, Any] = {}
    accuracy: list[list[float | None]] = []
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
    ) -> RunRecord:
        """The record of a run that begins now."""
        start = {
            "created": now(),
            "command": list(request.command),
            "processes": world(),
            "device": loaded.device,
            "threads": torch.get_num_threads(),
            "gradient_checkpointing": request.gradient_checkpointing,
            "versions": versions(),
        }
        return cls(
            method=request.method,
            dp=request.dp,
            tasks=list(corpus.tasks),
            settings=settings,
            base={"source": request.base, "weights_sha256": loaded.weights_sha256},
            tokenizer_sha256=loaded.tokenizer_sha256,
            dtype=request.loading.dtype,
            lora_targets=sorted({*request.lora_targets} - {""}),
            data=[
                {"file": path.name, "sha256": sha256_file(path)}
                for path in corpus.files
            ],
            clock=timed(loaded.device),
            starts=[start],
        )

    def identity(self) -> dict[str, Any]:
        """All that adapters depend on beside settings; ``data``: hashes of files."""
        return {
            "method": self.method,
            "order": ",".join(self.tasks),
            "base": self.base["weights_sha256"],
            "tokenizer": self.tokenizer_sha256,
            "dtype": self.dtype,
            "lora_targets": ",".join(self.lora_targets),
            "data": [file["sha256"] for file in self.data],
            "dp": self.dp,
        }

    def fingerprint(self) -> str:
        """A hash of all that a run's weights depend on; of another run, another one."""
        settings = {k: v for k, v in self.settings.items() if k not in FREE}
        return sha256_json({"identity": self.identity(), "settings": settings})


class Folder:
    """A run folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path, self.stages = path, path / "stages"
        self.metrics, self.accuracy = path / "metrics.jsonl", path / "accuracy.csv"
        self._run, self._state = path / RECORD, path / STATE
        self._lines: list[str] = []

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
            told = parse_json(data, place=str(self._run), finite=False)
            record = RunRecord.model_validate(told)
            if not intact(data):
                raise ValueError("other bytes than were written")
        except (OSError, InputError, ValueError) as error:
            what = "is damaged, or no record of a run that can be read"
            fix = "give another -o"
            raise OutputError(what, where=str(self._run), fix=fix) from error
        return record

    def check(self, old: RunRecord, new: RunRecord) -> None:
        """Refuse to resume another run's folder, with the differences."""
        if old.fingerprint() == new.fingerprint():
            return
        one, other = (run.identity() | run.settings for run in (old, new))
        # Settings that only one of the methods has say nothing more.
        differences = [
            f"{name} {_brief(one[name])} -> {_brief(other[name])}"
            for name in sorted(one.keys() & other.keys())
            if one[name] != other[name] and name not in (*FREE, "data")
        ]
        if one["data"] != other["data"]:
            differences.append("data: other files or contents")
        told = "; ".join(differences) or "of another version"
        raise InputError(
            f"holds a run of other settings: {told}",
            where=str(self.path),
            fix="give another -o, or the same settings",
        )

    def write(self, record: RunRecord) -> None:
        """Write ``run.json``, for the owner only: it tells DP-SGD's seed."""
        blank = record.model_copy(update={"seal": BLANK})
        data = sealed((blank.model_dump_json(indent=1) + "\n").encode())
        write_atomically(self._run, lambda file: file.write(data), mode=0o600)

    def files(self) -> dict[str, Fact]:
        """Size and SHA-256 of the files that grow."""
        grown = (self.metrics, self.accuracy)
        return {path.name: fact_of(path) for path in grown if path.is_file()}

    def check_left(self, done: Iterable[str]) -> None:
        """Make sure that the adapters of finished phases are as they were written.

        Parameters
        ----------
        done
            ``1-yelp/task`` for an adapter, ``1-yelp/answers`` for accuracies.

        Raises
        ------
        InputError
            If one is gone.
        CheckpointError
            If a file of an adapter is not as it was written.
        """
        for key in done:
            place = self.stages / key
            if key.endswith("/answers"):
                continue
            with at(str(place)):
                if not check_whole(place):
                    what = f"stages/{key}/{TRAINED_ON} of the run is gone"
                    raise InputError(what, where=str(self.path), fix=_AGAIN)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out; a process that dies lets go.

        What a killed process left half-written is swept away. A folder that was made
        for this and stayed empty is removed.

        Raises
        ------
        InputError
            If another process holds it, or a folder or file in it that is written to
            in place is a link out of it.
        OutputError
            If the folder cannot be made.
        """
        check_links(self.path, "stages", "stages/*", "stages/*/*", CARRIED)
        check_links(self.path, self.metrics.name, self.accuracy.name)
        with alone(self.path / ".lock", wait=False):
            for folder in (self.path, self.path / CARRIED):
                sweep(folder)
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

        Raises
        ------
        OutputError
            If a file cannot be written, or somebody has emptied the folder meanwhile:
            what is left of the run could not be resumed.
        """
        if not self._run.exists():
            raise OutputError(
                "was emptied while the run was writing to it",
                where=str(self.path),
                fix="run the same command again: it starts again",
            )
        try:
            # Losses of single steps are the rows' own: for their owner only.
            with open(self.metrics, "a", opener=partial(os.open, mode=0o600)) as file:
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
        write_tensors(self._state, state.tensors, mode=0o600, state=json.dumps(meta))

    def restore(self) -> tuple[int, State, dict[str, Any]]:
        """The phase, its state, and the seconds of earlier phases.

        Lines of steps behind the state are cut off: those steps will be taken again.

        Raises
        ------
        OutputError
            If the state, or lines that lead to it, are not as they were written.
        """
        if not self._state.exists():
            self.metrics.unlink(missing_ok=True)
            return 0, State(), {}
        meta, tensors = read_state(self._state), read_tensors(self._state)
        check_files(self.path, meta["files"], grows=True)
        try:
            os.truncate(self.metrics, meta["files"][self.metrics.name]["bytes"])
        except OSError as error:
            raise cannot_write(self.metrics, error) from error
        seconds = dict(meta["seconds"])
        return meta["phase"], State(meta["step"], tensors, seconds.pop("")), seconds

    def close(self) -> None:
        """Remove what an interrupted run resumes from: the run is complete."""
        shutil.rmtree(self.path / CARRIED, ignore_errors=True)
        self._state.unlink(missing_ok=True)


def _brief(value: Any) -> str:
    """A value in a message; of a hash the beginning, enough to see that two differ."""
    return shown(value[:16] if len(str(value)) == 64 else value)


# --- tensors --------------------------------------------------------------------------


def keep(stream: Stream, k: int, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Keep groups of tensors, one tensor for each weight, after task ``k``.

    Importances and the like follow from rows and weights, but computing them again on
    resume would cost what they cost the first time: they are kept until the run ends.
    The file of the task before stays until the next one: a run that is killed now
    begins with the end of task ``k`` again.
    """
    tensors = {
        f"{group}:{name}": value.detach().cpu().contiguous()
        for group, some in groups.items()
        for name, value in some.items()
    }
    with together():
        if rank() == 0:
            write_tensors(_carried(stream, k), tensors, mode=0o600)
            if k > 1:
                _carried(stream, k - 2).unlink(missing_ok=True)


def kept(stream: Stream, k: int) -> dict[str, dict[str, Tensor]]:
    """What was kept after task ``k``, on the student's device.

    Raises
    ------
    OutputError
        If the file is gone, cannot be read, or is damaged.
    """
    tensors = read_tensors(_carried(stream, k), device=stream.student.device)
    groups: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        group, _, name = key.partition(":")
        groups.setdefault(group, {})[name] = value
    return groups


def _carried(stream: Stream, k: int) -> Path:
    assert stream.folder is not None
    return stream.folder / CARRIED / f"{stream.label(k)}.safetensors"


def write_tensors(
    path: Path, tensors: dict[str, Tensor], *, mode: int = 0o644, **about: str
) -> None:
    """Write tensors, and texts about them, whole or not at all, with a checksum.

    Raises
    ------
    OutputError
        If they cannot be written.
    """
    data = sealed(save_tensors(tensors, metadata={**about, "seal": BLANK}))
    write_atomically(path, lambda file: file.write(data), mode=mode)


def read_tensors(
    path: Path, *, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Tensors of :func:`write_tensors`, on a device.

    Raises
    ------
    OutputError
        If the file is gone, cannot be read, or is damaged.
    """
    try:
        if not intact_file(path):
            raise ValueError("other bytes than were written")
        return dict(load_file(path, device=str(device)))
    except (OSError, SafetensorError, ValueError) as error:
        raise OutputError("is gone or damaged", where=str(path), fix=_AGAIN) from error
