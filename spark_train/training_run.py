"""Train a method on a stream of tasks, into a run folder: ``spark-train run``.

``run_record.py`` defines the record of a run. ``run_folder.py`` stores its progress and
its results, from which an interrupted run resumes.

:func:`train` prepares a run (:func:`_prepared`: settings, data, base, record, adapter),
and then trains its phases one after the other (:meth:`_Run.run_phases`). All processes
of a run do the same, and only the first (rank 0) writes files.
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
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.detect import read_headers
from spark_audit.checkpoints.in_memory import undisturbed
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.untrusted import quiet
from spark_audit.checkpoints.weight_files import NOISE_FILE
from spark_audit.clock import Clock
from spark_audit.errors import InputError, one_of
from spark_audit.files import check_writable, sha256_file, write_text
from spark_audit.provenance import now, seed_for, versions
from spark_audit.scoring.items import Prompt
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass
from spark_train import loop, processes
from spark_train.adapter_folder import load_adapter, replaced, save_adapter
from spark_train.lora import add_lora
from spark_train.method import Method, Protected
from spark_train.privacy import PRIVACY
from spark_train.privacy import groups as privacy_groups
from spark_train.run_folder import Folder
from spark_train.run_record import FREE_SETTINGS, PhaseSeconds, RunRecord
from spark_train.stream import Stream
from spark_train.student import Student
from spark_train.training_corpus import Note, TrainingCorpus
from spark_train.training_methods import METHODS, groups
from spark_train.training_request import DP, NO_PRIVACY, TrainRequest
from spark_train.training_settings import TrainingSettings, parse, shown

Progress = Callable[[str, int, int], None]
"""A callback with the current activity, the amount done, and the total."""

_ANSWERS = Pass("generate")
"""The scoring pass that answers prompts."""


def train(
    request: TrainRequest,
    *,
    progress: Progress = lambda activity, done, total: None,
    note: Note = lambda text: None,
) -> RunRecord:
    """Train a run, or resume an interrupted one; return its ``run.json``.

    Raises
    ------
    InputError
        For an unknown method, setting or task, data that cannot be trained on, or a
        folder of another run.
    CheckpointError
        If the base cannot be opened.
    OutputError
        If the folder cannot be written, or if a file in it was changed.
    """
    notes: list[str] = []

    def tell(text: str) -> None:
        """Keep a note for the record, and pass it on; each one only once."""
        if text not in notes:
            notes.append(text)
            note(text)

    folder = Folder(request.output)
    with ExitStack() as stack:
        # An error of one process ends all of them.
        with processes.together():
            run = _prepared(request, folder, stack, tell=tell, progress=progress)

        if run.record.status == "running":
            run.run_phases(METHODS[request.method], request.dp, notes)
        elif processes.rank() == 0:
            # A run that was killed right after its completion left these files.
            folder.close()
        return run.record


def _prepared(
    request: TrainRequest,
    folder: Folder,
    stack: ExitStack,
    *,
    tell: Note,
    progress: Progress,
) -> _Run:
    """Read data and base, and return the run, new or from its folder.

    Quick checks come first.

    Parameters
    ----------
    stack
        Holds the folder's lock until the run ends.
    tell
        Called with notes for readers of the run.
    """
    settings, settings_by_name = _settings(request)
    corpus = TrainingCorpus.read(request.data, request.order, tell)

    if processes.rank() == 0:
        # Before the lock is made, so that another kind of folder stays unchanged.
        folder.read()
        stack.enter_context(folder.lock())
        check_writable(request.output)
    old_record = folder.read()

    loaded = _open(request.base, request.loading)
    record = _new_record(request, corpus, loaded, settings_by_name)
    if old_record is not None:
        record = _resumed(folder, old_record, record, tell)

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
    return _Run(
        base=request.base,
        loaded=replace(loaded, model=student.model),
        stream=stream,
        prompts=prompts,
        folder=folder,
        record=record,
        progress=progress,
    )


def _new_record(
    request: TrainRequest,
    corpus: TrainingCorpus,
    loaded: Checkpoint,
    settings: dict[str, object],
) -> RunRecord:
    """Return the record of a new run."""
    start = {
        "created": now(),
        "command": list(request.command),
        "processes": processes.n_processes(),
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
        clock=loop.clock_kind(loaded.device),
        starts=[start],
    )


def _settings(request: TrainRequest) -> tuple[TrainingSettings, dict[str, object]]:
    """Return all settings of a run, and, by name, those that it reads."""
    one_of(request.method, "--method", METHODS)
    one_of(request.dp, "--dp", DP)
    groups_read = (*groups(request.method), *privacy_groups(request.dp))

    # Put first, so that another seed in --set is noticed below.
    assignments = [*request.settings]
    if request.seed is not None:
        assignments.insert(0, f"seed={request.seed}")
    method = request.method
    if request.dp != NO_PRIVACY:
        method += f" --dp {request.dp}"
    settings = parse(assignments, groups=groups_read, method=method)
    if request.seed not in (None, settings.seed):
        raise InputError(
            f"is {request.seed}, and --set gives the seed {settings.seed}",
            where="--seed",
            fix="give one of them",
        )
    return settings, settings.flat(groups_read)


def _open(base: str, loading: specs.Loading) -> Checkpoint:
    """Open the base; refuse one with frozen noise of its own."""
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
    """Return the record of the folder's run, with a new start if it continues.

    Raises
    ------
    InputError
        If the folder belongs to another run. The error lists the differences.
    """
    if old.fingerprint() != new.fingerprint():
        differences = "; ".join(_differences(old, new)) or "of another version"
        raise InputError(
            f"holds a run of other settings: {differences}",
            where=str(folder.path),
            fix="give another -o, or the same settings",
        )
    for text in old.notes:
        tell(text)

    # A complete run is only checked, and never trained again.
    if old.status == "complete":
        folder.check_adapters(old.seconds)
        run_record.check_files(folder.path, old.files, grows=False)
        return old
    return old.model_copy(update={"starts": [*old.starts, *new.starts]})


def _differences(old: RunRecord, new: RunRecord) -> list[str]:
    """Return the differences between two runs, such as ``lr 0.1 -> 0.2``.

    Settings that only one of two methods has are left out.
    """
    old_facts = old.identity() | old.settings
    new_facts = new.identity() | new.settings
    names = (old_facts.keys() & new_facts.keys()) - {*FREE_SETTINGS}

    differences = []
    for name in sorted(names):
        before = old_facts[name]
        after = new_facts[name]
        if before == after:
            continue
        # For hashes of data files, it is enough to say that they differ.
        if name == "data":
            differences.append("data: other files or contents")
        else:
            differences.append(f"{name} {shown(before):.40} -> {shown(after):.40}")
    return differences


def _student(
    request: TrainRequest,
    loaded: Checkpoint,
    settings: TrainingSettings,
    targets: Sequence[str],
) -> Student:
    """Return the base with a fresh adapter on it."""
    with quiet():
        model = add_lora(
            loaded.model,
            r=settings.lora.r,
            alpha=settings.lora.alpha,
            seed=seed_for(settings.seed, "lora"),
            targets=targets,
        )
    if request.gradient_checkpointing:
        # Transformers renamed this method; the older name gives warnings in newer
        # releases.
        if hasattr(model, "activation_checkpointing_enable"):
            enable = model.activation_checkpointing_enable
        else:
            enable = model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    return Student(model, tokens=settings.micro_tokens)


@dataclass
class _Run:
    """A run in progress.

    Attributes
    ----------
    base
        The base as the user named it.
    loaded
        The base with the adapter in training on it.
    prompts
        Test prompts by task, for the accuracy after each stage.
    record
        The current ``run.json``; :meth:`_update_record` replaces and writes it.
    """

    base: str
    loaded: Checkpoint
    stream: Stream
    prompts: Mapping[str, Sequence[Prompt]]
    folder: Folder
    record: RunRecord
    progress: Progress

    def run_phases(self, method: Method, dp: str, notes: list[str]) -> None:
        """Run the remaining phases, under a privacy option.

        Parameters
        ----------
        notes
            Notes so far, to which the phases add.
        """
        if dp == NO_PRIVACY:
            protected = Protected(method.phases(self.stream), {})
        else:
            protected = PRIVACY[dp](self.stream, method)
        self._check_same_noise(protected)

        phases = protected.phases
        # Stage -> number of its last phase, after which prompts are answered.
        last_phases = {phase.stage: number for number, phase in enumerate(phases)}

        # `seconds` has a key for each finished phase and for each answered stage.
        first, state, seconds = self._restore(phases)
        self._update_record(privacy=dict(protected.facts))
        with protected.during():
            for number, phase in enumerate(phases[first:], first):
                seconds[phase.key] = self._train(number, phase, state, seconds)
                if processes.rank() == 0:
                    self._save_adapter(phase, protected)
                if number == last_phases[phase.stage]:
                    self._measure_accuracy(phase, list(last_phases), seconds)
                self._update_record(seconds=dict(seconds), notes=list(notes))

                # The next phase begins; a run that is killed now goes on with it.
                state = loop.PhaseState()
                if processes.rank() == 0:
                    self.folder.save(number + 1, state, seconds)

        if processes.rank() == 0:
            self._update_record(status="complete", files=self.folder.files())
            self.folder.close()

    def _check_same_noise(self, protected: Protected) -> None:
        """Refuse to resume with another noise multiplier than at the start.

        It was computed for a target epsilon, and another accountant may compute another
        one. The epsilon of steps with two multipliers would be that of neither.
        """
        # Empty at the first start, and with an option without a noise multiplier.
        old_facts = self.record.privacy
        old_sigma = old_facts.get("noise_multiplier")
        sigma = protected.facts.get("noise_multiplier")
        if old_sigma not in (None, sigma):
            raise InputError(
                f"the noise multiplier was {old_sigma}, and is {sigma}",
                where=str(self.folder.path),
                fix=f"resume with {old_facts['accountant']}",
            )

    def _restore(
        self, phases: Sequence[loop.Phase]
    ) -> tuple[int, loop.PhaseState, PhaseSeconds]:
        """Return the phase to go on with, its state, and the seconds of earlier ones.

        The weights of the previous phase are loaded into the adapter.
        """
        folder = self.folder
        # Each process reads the folder itself, and all must agree.
        with processes.together():
            first, state, seconds = folder.restore()
            folder.check_adapters(seconds)
            if first:
                previous = folder.stages / phases[first - 1].key
                load_adapter(self.stream.student.model, previous)

        distinct_states = set(processes.gathered([(first, state.step)]))
        if len(distinct_states) > 1:
            raise InputError(
                "the processes read different states of the run folder",
                where=str(folder.path),
                fix="let all of them read and write the same folders",
            )
        return first, state, seconds

    def _save_adapter(self, phase: loop.Phase, protected: Protected) -> None:
        """Write the adapter after a phase."""
        with replaced(self.folder.stages / phase.key) as folder:
            save_adapter(
                self.stream.student.model,
                folder,
                base=self.base,
                base_sha256=self.loaded.weights_sha256,
                noise=protected.noise,
            )

    def _update_record(self, **fields: object) -> None:
        """Change fields of the record, and write it."""
        self.record = self.record.model_copy(update=fields)
        if processes.rank() == 0:
            self.folder.write(self.record)

    def _train(
        self,
        number: int,
        phase: loop.Phase,
        state: loop.PhaseState,
        seconds: PhaseSeconds,
    ) -> dict[str, float]:
        """Run a phase from its state to its end; return its seconds by kind of work.

        Parameters
        ----------
        number
            Number of the phase, from 0.
        seconds
            Seconds of earlier phases, which are saved with each state.
        """
        folder = self.folder
        settings = self.stream.settings
        work = "correction" if phase.part == "priv" else "learning"
        activity = f"{phase.stage} {work}, steps"

        def after(
            record: loop.StepRecord, snapshot: Callable[[], loop.PhaseState]
        ) -> None:
            """Show, log and, every some steps, save the progress after a step."""
            n_done = int(record["step"])
            self.progress(activity, n_done, phase.steps)
            # A snapshot copies all moments of the optimizer, so only the writing
            # process takes one.
            if processes.rank() == 0:
                folder.log(record)
                if n_done % settings.save_every == 0 or n_done == phase.steps:
                    folder.save(number, snapshot(), seconds)

        self.progress(activity, state.step, phase.steps)
        end_state = loop.run_phase(
            self.stream.student,
            phase,
            seed=settings.seed,
            clip=settings.clip,
            state=state,
            after=after,
        )
        return end_state.seconds

    def _measure_accuracy(
        self, phase: loop.Phase, stages: Sequence[str], seconds: PhaseSeconds
    ) -> None:
        """Write the accuracy on the tasks learned so far into ``accuracy.csv``.

        The seconds of the answers are added to ``seconds`` as ``STAGE/answers``.

        Parameters
        ----------
        phase
            The last phase of the stage.
        stages
            All stages of the run, in order; each has a line.
        """
        tasks = self.stream.tasks
        number = stages.index(phase.stage)
        tasks_measured = phase.tasks or tasks[: number + 1]
        activity = f"{phase.stage} answers, tasks"
        clock = Clock(of=self.record.clock)
        seconds[f"{phase.stage}/answers"] = clock

        # Later tasks, and tasks without test rows, stay None.
        accuracies: list[float | None] = [None] * len(tasks)
        with clock("answers"):
            for n_done, task in enumerate(tasks_measured):
                self.progress(activity, n_done, len(tasks_measured))
                prompts = self.prompts[task]
                if prompts:
                    accuracies[tasks.index(task)] = accuracy(self.loaded, prompts)
            self.progress(activity, len(tasks_measured), len(tasks_measured))

        # If a stage is answered again, its line is replaced.
        matrix = [*self.record.accuracy[:number], accuracies]  # [stage][task]
        if processes.rank() == 0:
            # The table calls the stage "2-yelp" by its task "yelp".
            names = [name.partition("-")[2] for name in stages[: number + 1]]
            table = pd.DataFrame(matrix, names, tasks, dtype=float)
            write_text(self.folder.accuracy, table.to_csv(index_label="after"))
        self._update_record(accuracy=matrix)


def accuracy(loaded: Checkpoint, prompts: Sequence[Prompt]) -> float:
    """Return the share of prompts that are answered right, by the scorer `normalised`.

    The measurement is the same as in ``spark-audit utility --data``: the same prompts,
    greedy answers and normalised exact match. Every module of the model keeps its mode,
    so that training can continue.

    Raises
    ------
    InputError
        If the model cannot read a prompt.
    CheckpointError
        If logits are NaN or infinite.
    """
    is_right: list[float] = []  # 1 or 0 for each prompt of this process
    own_prompts = processes.share(prompts)
    if own_prompts:
        with undisturbed(loaded.model):
            table = score(loaded, own_prompts, passes=[_ANSWERS])[_ANSWERS]
        is_right = table.columns["normalised"].tolist()
    return float(np.mean(processes.gathered(is_right)))
