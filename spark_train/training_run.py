"""``spark-train run``: a method over a stream of tasks, into a run folder.

``run_record.py`` says what a run is, ``run_folder.py`` where it stands and what it has
left; an interrupted run goes on from there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from spark_audit.checkpoints import run_record, specs
from spark_audit.checkpoints.detect import read_headers
from spark_audit.checkpoints.loaded import Loaded, undisturbed
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.untrusted import quiet
from spark_audit.checkpoints.weight_files import NOISE_FILE
from spark_audit.clock import Clock
from spark_audit.errors import InputError, one_of
from spark_audit.files import (
    check_writable,
    sha256_file,
    write_text,
)
from spark_audit.provenance import now, seed_for, versions
from spark_audit.scoring.items import Prompt
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass
from spark_train import loop, processes
from spark_train.adapter_folder import load_adapter, replaced, save_adapter
from spark_train.lora import add_lora
from spark_train.method import Method, Protected
from spark_train.methods import METHODS, groups
from spark_train.privacy import PRIVACY
from spark_train.privacy import groups as privacy_groups
from spark_train.run_folder import Folder
from spark_train.run_record import FREE_SETTINGS, PhaseSeconds, RunRecord
from spark_train.stream import Stream
from spark_train.student import Student
from spark_train.training_corpus import Note, TrainingCorpus
from spark_train.training_request import DP, NO_PRIVACY, TrainRequest
from spark_train.training_settings import TrainingSettings, parse, shown

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
        with processes.together():
            settings, read = _settings(request)
            corpus = TrainingCorpus.read(request.data, request.order, tell)
            if processes.rank() == 0:
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
        elif processes.rank() == 0:
            folder.close()
        return run.record


def _begun(
    request: TrainRequest,
    corpus: TrainingCorpus,
    loaded: Loaded,
    settings: dict[str, object],
) -> RunRecord:
    """The record of a run that begins now."""
    start = {
        "created": now(),
        "command": list(request.command),
        "processes": processes.world(),
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


def _settings(request: TrainRequest) -> tuple[TrainingSettings, dict[str, object]]:
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
        run_record.check_files(folder.path, old.files, grows=False)
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
        with processes.together():
            first, state, seconds = folder.restore()
            folder.check_left(seconds)
            if first:
                before_it = folder.stages / phases[first - 1].key
                load_adapter(stream.student.model, before_it)
        if len({*processes.gathered([(first, state.step)])}) > 1:
            what = "the processes differ in what they find in the run folder"
            fix = "let all of them read and write the same folders"
            raise InputError(what, where=str(folder.path), fix=fix)
        self._keep(privacy=facts)
        with protected.during():
            for number, phase in enumerate(phases[first:], first):
                seconds[phase.key] = self._train(number, phase, state, seconds)
                if processes.rank() == 0:
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
                if processes.rank() == 0:
                    folder.save(number + 1, state, seconds)
        if processes.rank() == 0:
            self._keep(status="complete", files=folder.files())
            folder.close()

    def _keep(self, **fields: object) -> None:
        self.record = self.record.model_copy(update=fields)
        if processes.rank() == 0:
            self.folder.write(self.record)

    def _train(
        self, number: int, phase: loop.Phase, state: loop.State, seconds: PhaseSeconds
    ) -> dict[str, float]:
        """Run a phase from its state; its seconds."""
        folder, settings = self.folder, self.stream.settings
        what = f"{phase.stage} {'correction' if phase.part == 'priv' else 'learning'}"

        def after(record: loop.StepRecord, snapshot: Callable[[], loop.State]) -> None:
            done = int(record["step"])
            self.progress(f"{what}, steps", done, phase.steps)
            if processes.rank() == 0:
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
        self, phase: loop.Phase, stages: Sequence[str], seconds: PhaseSeconds
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
        if processes.rank() == 0:
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
    if mine := processes.share(prompts):
        with undisturbed(loaded.model):
            table = score(loaded, mine, passes=[_ANSWERS])[_ANSWERS]
        right = table.columns["normalised"].tolist()
    return float(np.mean(processes.gathered(right)))
