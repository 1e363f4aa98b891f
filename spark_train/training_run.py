"""``spark-train run``: a method over a stream of tasks, into a run folder.

The folder says what a run is, where it stands, and what it has left. ``run.json`` says
what was trained and on what; ``stages/1-fomc/{task,priv}`` are PEFT adapters;
``metrics.jsonl`` has a line a step, ``accuracy.csv`` a line a stage; an interrupted run
goes on from the file ``state.safetensors`` and what its method keeps in ``carried/``.
Everything is written whole or not at all, with checksums: those of files that grow
stand in the state, and once the run is complete in ``run.json``; everything else
carries its own.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict

from spark_audit.checkpoints import specs
from spark_audit.checkpoints.detect import read_headers
from spark_audit.checkpoints.loaded import Loaded, undisturbed
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.untrusted import quiet
from spark_audit.checkpoints.weight_files import NOISE_FILE, check_whole
from spark_audit.clock import Clock
from spark_audit.errors import InputError, OutputError, at, one_of
from spark_audit.files import (
    BLANK_DIGEST,
    Fact,
    alone,
    cannot_write,
    check_links,
    check_writable,
    fact_of,
    intact,
    parse_json,
    read_regular,
    sealed,
    sha256_file,
    sweep,
    write_atomically,
    write_text,
)
from spark_audit.provenance import now, seed_for, sha256_json, versions
from spark_audit.scoring.items import Prompt
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass
from spark_train import loop
from spark_train.methods import METHODS, groups
from spark_train.model import (
    TRAINED_ON,
    Student,
    add_lora,
    load_adapter,
    replaced,
    save_adapter,
)
from spark_train.privacy import PRIVACY
from spark_train.privacy import groups as privacy_groups
from spark_train.stream import (
    CARRIED,
    TRAIN_AGAIN,
    Method,
    Protected,
    Stream,
    read_tensors,
    write_tensors,
)
from spark_train.training_request import DP, NO_PRIVACY, TrainRequest
from spark_train.training_rows import Note, TrainingCorpus
from spark_train.training_settings import TrainingSettings, parse, shown

FREE_SETTINGS = ("save_every",)
"""Settings that may change from one start of a run to the next: neither a weight nor an
accuracy depends on them."""


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
    clock: Literal["wall", "processor"] = "wall"
    seconds: dict[str, dict[str, float]] = {}
    notes: list[str] = []
    files: dict[str, Fact] = {}
    seal: str = ""

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
        settings = {k: v for k, v in self.settings.items() if k not in FREE_SETTINGS}
        return sha256_json({"identity": self.identity(), "settings": settings})


class Folder:
    """A run folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path, self.stages = path, path / "stages"
        self.metrics, self.accuracy = path / "metrics.jsonl", path / "accuracy.csv"
        self._run, self._state = path / specs.RECORD, path / specs.STATE
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
                    f"holds something else than a run ({others[0]}, no {specs.RECORD})",
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

    def write(self, record: RunRecord) -> None:
        """Write ``run.json``, for the owner only: it tells DP-SGD's seed."""
        blank = record.model_copy(update={"seal": BLANK_DIGEST})
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
        for key in (key for key in done if not key.endswith("/answers")):
            place = self.stages / key
            with at(str(place)):
                if not check_whole(place):
                    what = f"stages/{key}/{TRAINED_ON} of the run is gone"
                    raise InputError(what, where=str(self.path), fix=TRAIN_AGAIN)

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

    def save(self, phase: int, state: loop.State, seconds: dict[str, Any]) -> None:
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

    def restore(self) -> tuple[int, loop.State, dict[str, Any]]:
        """The phase, its state, and the seconds of earlier phases.

        Lines of steps behind the state are cut off: those steps will be taken again.

        Raises
        ------
        OutputError
            If the state, or lines that lead to it, are not as they were written.
        """
        if not self._state.exists():
            self.metrics.unlink(missing_ok=True)
            return 0, loop.State(), {}
        meta, tensors = specs.read_state(self._state), read_tensors(self._state)
        specs.check_files(self.path, meta["files"], grows=True)
        try:
            os.truncate(self.metrics, meta["files"][self.metrics.name]["bytes"])
        except OSError as error:
            raise cannot_write(self.metrics, error) from error
        seconds = dict(meta["seconds"])
        return (
            meta["phase"],
            loop.State(meta["step"], tensors, seconds.pop("")),
            seconds,
        )

    def close(self) -> None:
        """Remove what an interrupted run resumes from: the run is complete."""
        shutil.rmtree(self.path / CARRIED, ignore_errors=True)
        self._state.unlink(missing_ok=True)


# --- a run ----------------------------------------------------------------------------

Progress = Callable[[str, int, int], None]
_ANSWERS = Pass("generate")


def train(
    request: TrainRequest,
    *,
    progress: Progress = lambda what, done, total: None,
    note: Note = lambda text: None,
) -> RunRecord:
    """Train, or go on where the same run was interrupted; give its ``run.json``.

    Raises
    ------
    InputError
        For an unknown method, setting or task, data that cannot be trained on, or a
        folder of another run.
    CheckpointError
        If the base cannot be opened.
    OutputError
        If the folder cannot be written, or a file in it is not as it was written.
    """
    notes: list[str] = []

    def tell(text: str) -> None:
        if text not in notes:
            notes.append(text)
            note(text)

    folder = Folder(request.output)
    with ExitStack() as held:
        with loop.together():
            settings, read = _settings(request)
            corpus = TrainingCorpus.read(request.data, request.order, tell)
            if loop.rank() == 0:
                folder.read()  # leaves a folder of something else as it is
                held.enter_context(folder.lock())
                check_writable(request.output)
            old = folder.read()
            loaded = _open(request.base, request.loading)
            record = _begun(request, corpus, loaded, read)
            if old is not None:
                record = _resumed(folder, old, record, tell)
            rows = corpus.rows(
                loaded, max_length=settings.max_length, note=tell, progress=progress
            )
            prompts = corpus.prompts(loaded, limit=settings.eval_rows, note=tell)
            student = _student(request, loaded, settings, record.lora_targets)
            if student.note:
                tell(student.note)
            stream = Stream(
                student=student,
                rows=rows,
                settings=settings,
                note=tell,
                folder=folder.path,
                identity=record.fingerprint(),
            )
            loaded = replace(loaded, model=student.model)
            run = _Run(request.base, loaded, stream, prompts, folder, record, progress)
        if record.status == "running":
            run.go(METHODS[request.method], request.dp, notes)
        elif loop.rank() == 0:
            folder.close()
        return run.record


def _begun(
    request: TrainRequest,
    corpus: TrainingCorpus,
    loaded: Loaded,
    settings: dict[str, Any],
) -> RunRecord:
    """The record of a run that begins now."""
    start = {
        "created": now(),
        "command": list(request.command),
        "processes": loop.world(),
        "device": loaded.device,
        "threads": torch.get_num_threads(),
        "gradient_checkpointing": request.gradient_checkpointing,
        "versions": versions(),
    }
    files = [{"file": path.name, "sha256": sha256_file(path)} for path in corpus.files]
    return RunRecord(
        method=request.method,
        dp=request.dp,
        tasks=list(corpus.tasks),
        settings=settings,
        base={"source": request.base, "weights_sha256": loaded.weights_sha256},
        tokenizer_sha256=loaded.tokenizer_sha256,
        dtype=request.loading.dtype,
        lora_targets=sorted({*request.lora_targets} - {""}),
        data=files,
        clock=loop.timed(loaded.device),
        starts=[start],
    )


def _settings(request: TrainRequest) -> tuple[TrainingSettings, dict[str, Any]]:
    """The settings of a run, and by name those that its method and option read."""
    one_of(request.method, "--method", METHODS)
    one_of(request.dp, "--dp", DP)
    read = (*groups(request.method), *privacy_groups(request.dp))
    seed = () if request.seed is None else (f"seed={request.seed}",)
    settings = parse(
        (*seed, *request.settings),
        groups=read,
        method=f"{request.method} --dp {request.dp}",
    )
    if request.seed not in (None, settings.seed):
        what = f"is {request.seed}, and --set gives the seed {settings.seed}"
        raise InputError(what, where="--seed", fix="give one of them")
    return settings, settings.flat(read)


def _open(base: str, loading: specs.Loading) -> Loaded:
    loaded = open_checkpoint(base, loading, name="base")
    if os.path.lexists(read_headers(base, loading).folder / NOISE_FILE):
        raise InputError(
            f"has frozen noise of its own ({NOISE_FILE}), "
            "which adapters on it do not carry",
            where=base,
            fix="give the model without it; --dp fn draws noise for the run",
        )
    return loaded


def _resumed(folder: Folder, old: RunRecord, new: RunRecord, tell: Note) -> RunRecord:
    """The record of the folder's run, with one start more where it goes on.

    Another run's folder is refused, with the differences.
    """
    if old.fingerprint() != new.fingerprint():
        one, other = (run.identity() | run.settings for run in (old, new))
        # Settings that only one of the methods has say nothing more, and of hashes it
        # is enough to see that they differ.
        told = "; ".join(
            "data: other files or contents"
            if name == "data"
            else f"{name} {shown(one[name]):.40} -> {shown(other[name]):.40}"
            for name in sorted((one.keys() & other.keys()) - {*FREE_SETTINGS})
            if one[name] != other[name]
        )
        raise InputError(
            f"holds a run of other settings: {told or 'of another version'}",
            where=str(folder.path),
            fix="give another -o, or the same settings",
        )
    for text in old.notes:
        tell(text)
    if old.status == "complete":
        folder.check_left(old.seconds)
        specs.check_files(folder.path, old.files, grows=False)
        return old
    return old.model_copy(update={"starts": [*old.starts, *new.starts]})


def _student(
    request: TrainRequest,
    loaded: Loaded,
    settings: TrainingSettings,
    targets: Sequence[str],
) -> Student:
    """The base with a fresh adapter on it."""
    with quiet():
        model = add_lora(
            loaded.model,
            r=settings.lora.r,
            alpha=settings.lora.alpha,
            seed=seed_for(settings.seed, "lora"),
            targets=targets,
        )
    if request.gradient_checkpointing:
        # Transformers renames this; the older name warns in newer releases.
        newer = hasattr(model, "activation_checkpointing_enable")
        name = "activation" if newer else "gradient"
        getattr(model, f"{name}_checkpointing_enable")({"use_reentrant": False})
    return Student(model, tokens=settings.micro_tokens)


@dataclass
class _Run:
    """One run on its way."""

    base: str
    loaded: Loaded
    stream: Stream
    prompts: Mapping[str, Sequence[Prompt]]
    folder: Folder
    record: RunRecord
    progress: Progress

    def go(self, method: Method, dp: str, notes: list[str]) -> None:
        """Run the phases that are left, under a privacy option."""
        stream, folder = self.stream, self.folder
        if dp == NO_PRIVACY:
            protected = Protected(method.phases(stream), {})
        else:
            protected = PRIVACY[dp](stream, method)
        facts, before = dict(protected.facts), self.record.privacy
        sigma, was = (told.get("noise_multiplier") for told in (facts, before))
        if was not in (None, sigma):
            # Found for a target epsilon, by another accountant than at first: the
            # epsilon of steps with two of them would be neither's.
            what = f"the noise multiplier was {was}, and is {sigma}"
            fix = f"resume with {before['accountant']}"
            raise InputError(what, where=str(folder.path), fix=fix)
        phases = protected.phases
        last = {phase.stage: number for number, phase in enumerate(phases)}
        with loop.together():
            first, state, seconds = folder.restore()
            folder.check_left(seconds)
            if first:
                before_it = folder.stages / phases[first - 1].key
                load_adapter(stream.student.model, before_it)
        if len({*loop.gathered([(first, state.step)])}) > 1:
            what = "the processes differ in what they find in the run folder"
            fix = "let all of them read and write the same folders"
            raise InputError(what, where=str(folder.path), fix=fix)
        self._keep(privacy=facts)
        with protected.during():
            for number, phase in enumerate(phases[first:], first):
                seconds[phase.key] = self._train(number, phase, state, seconds)
                if loop.rank() == 0:
                    with replaced(folder.stages / phase.key) as part:
                        save_adapter(
                            stream.student.model,
                            part,
                            base=self.base,
                            base_sha256=self.loaded.weights_sha256,
                            noise=protected.noise,
                        )
                if number == last[phase.stage]:
                    self._answer(phase, list(last), seconds)
                self._keep(seconds=dict(seconds), notes=list(notes))
                state = loop.State()
                if loop.rank() == 0:
                    folder.save(number + 1, state, seconds)
        if loop.rank() == 0:
            self._keep(status="complete", files=folder.files())
            folder.close()

    def _keep(self, **fields: object) -> None:
        self.record = self.record.model_copy(update=fields)
        if loop.rank() == 0:
            self.folder.write(self.record)

    def _train(
        self, number: int, phase: loop.Phase, state: loop.State, seconds: dict[str, Any]
    ) -> dict[str, float]:
        """Run a phase from its state; its seconds."""
        folder, settings = self.folder, self.stream.settings
        what = f"{phase.stage} {'correction' if phase.part == 'priv' else 'learning'}"

        def after(record: dict[str, Any], snapshot: Callable[[], loop.State]) -> None:
            done = record["step"]
            self.progress(f"{what}, steps", done, phase.steps)
            if loop.rank() == 0:
                folder.log(record)
                if done % settings.save_every == 0 or done == phase.steps:
                    folder.save(number, snapshot(), seconds)

        self.progress(f"{what}, steps", state.step, phase.steps)
        left = loop.run_phase(
            self.stream.student,
            phase,
            seed=settings.seed,
            clip=settings.clip,
            state=state,
            after=after,
        )
        return left.seconds

    def _answer(
        self, phase: loop.Phase, stages: Sequence[str], seconds: dict[str, Any]
    ) -> None:
        """The accuracy on the tasks learned so far, into ``accuracy.csv``.

        Parameters
        ----------
        stages
            All stages of the run; each has a line.
        """
        stage, number = phase.stage, stages.index(phase.stage)
        tasks = self.stream.tasks
        asked = phase.tasks or tasks[: number + 1]
        row: list[float | None] = [None] * len(tasks)
        seconds[f"{stage}/answers"] = clock = Clock(of=self.record.clock)
        with clock("answers"):
            for done, task in enumerate(asked):
                self.progress(f"{stage} answers, tasks", done, len(asked))
                if prompts := self.prompts[task]:
                    row[tasks.index(task)] = accuracy(self.loaded, prompts)
            self.progress(f"{stage} answers, tasks", len(asked), len(asked))
        matrix = [*self.record.accuracy[:number], row]
        if loop.rank() == 0:
            names = [name.partition("-")[2] for name in stages[: number + 1]]
            table = pd.DataFrame(matrix, names, tasks, dtype=float)
            write_text(self.folder.accuracy, table.to_csv(index_label="after"))
        self._keep(accuracy=matrix)


def accuracy(loaded: Loaded, prompts: Sequence[Prompt]) -> float:
    """Share of prompts of a task that are answered right, by the scorer `normalised`.

    Measured while training exactly as ``spark-audit utility --data`` measures it
    afterwards: the same prompts, greedy answers, normalised exact match. The model is
    left as it was found: every module in its own mode, so that training can go on.

    Raises
    ------
    InputError
        If the model cannot read a prompt.
    CheckpointError
        If logits are NaN or infinite.
    """
    right: list[float] = []
    if mine := loop.share(prompts):
        with undisturbed(loaded.model):
            table = score(loaded, mine, passes=[_ANSWERS])[_ANSWERS]
        right = table.columns["normalised"].tolist()
    return float(np.mean(loop.gathered(right)))
