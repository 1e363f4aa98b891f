"""Train a method on a stream of tasks, into a run folder: ``spark-train run``.

``run_record.py`` defines the record of a run. ``run_folder.py`` stores its progress and
its results, from which an interrupted run resumes.

:func:`train` prepares a run (:func:`_prepared`: settings, data, base, record, adapter),
and then trains its phases one after the other (:meth:`_Run.train_stages`). All
processes of a run do the same, and only the first (rank 0) writes files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from spark_audit.checkpoints import specs
from spark_audit.checkpoints.adapters import input_noise
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.detect import read_headers
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.untrusted import quiet
from spark_audit.checkpoints.weight_files import NOISE_FILE
from spark_audit.clock import Clock
from spark_audit.errors import InputError
from spark_audit.files import check_writable, sha256_file, write_text
from spark_audit.provenance import now, seed_for, versions
from spark_audit.scoring.items import Prompt
from spark_train import loop, processes
from spark_train.adapter_folder import load_adapter, replaced, save_adapter
from spark_train.first_phase import take_first_phase
from spark_train.lora import add_lora
from spark_train.method import Method, Protected
from spark_train.privacy import PRIVACY
from spark_train.request_settings import settings_of_request
from spark_train.resumed_record import resumed_record
from spark_train.run_folder import Folder
from spark_train.run_record import PhaseSeconds, RunRecord
from spark_train.stage_accuracy import accuracy, accuracy_csv
from spark_train.stage_keys import (
    answers_key,
    ends_stage,
    finished_stage_keys,
    number_and_task,
)
from spark_train.stream import Stream
from spark_train.student import Student
from spark_train.tensor_files import read_tensors
from spark_train.trained_stage import TrainedStage
from spark_train.training_corpus import Note, TrainingCorpus
from spark_train.training_methods import METHODS
from spark_train.training_request import NO_PRIVACY, TrainRequest
from spark_train.training_settings import TrainingSettings, changed_settings

Progress = Callable[[str, int, int], None]
"""A callback with the current activity, the amount done, and the total."""


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
    with _opened_run(request, progress=progress, note=note) as run:
        if run.record.status == "running":
            for _ in run.train_stages():
                pass
        elif processes.rank() == 0:
            # A run that was killed right after its completion left these files.
            run.folder.close()
        return run.record


def train_by_stage(
    request: TrainRequest,
    *,
    progress: Progress = lambda activity, done, total: None,
    note: Note = lambda text: None,
) -> Generator[TrainedStage, None, None]:
    """Train a run as :func:`train` does, and yield each stage when it is trained.

    Stages that the folder holds already are yielded first, from their files. What the
    caller does to the trained weights, to gradients and to modes of the model is undone
    before the run goes on.

    Raises
    ------
    SparkError
        As :func:`train`, when the first stage is asked for.
    """
    with _opened_run(request, progress=progress, note=note) as run:
        if run.record.status == "running":
            yield from run.train_stages(with_finished=True)
        else:
            yield from run.finished_stages(run.record.seconds, is_noisy=False)
            if processes.rank() == 0:
                run.folder.close()


@contextmanager
def _opened_run(
    request: TrainRequest, *, progress: Progress, note: Note
) -> Iterator[_Run]:
    """Yield the run of a request, new or from its folder, which is locked meanwhile."""
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
            run = _prepared(
                request, folder, stack, notes=notes, tell=tell, progress=progress
            )
        yield run


def _prepared(
    request: TrainRequest,
    folder: Folder,
    stack: ExitStack,
    *,
    notes: list[str],
    tell: Note,
    progress: Progress,
) -> _Run:
    """Read data and base, and return the run, new or from its folder.

    Quick checks come first.

    Parameters
    ----------
    stack
        Holds the folder's lock until the run ends.
    notes
        All notes so far; it grows.
    tell
        Called with notes for readers of the run, adds them to ``notes``.
    """
    settings, settings_by_name = settings_of_request(request)
    corpus = TrainingCorpus.read(request.data, request.order, tell)

    if processes.rank() == 0:
        # Refuses another kind of folder before the lock is put into it.
        folder.read()
        stack.enter_context(folder.lock())
        check_writable(request.output)
    # Rank 0 reads again, because only what is read under its lock counts. The other
    # processes read only here.
    old_record = folder.read()

    loaded = _open(request.base, request.loading)
    record = _new_record(request, corpus, loaded, settings_by_name)
    if old_record is not None:
        record = resumed_record(folder, old_record, record, tell)

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
        method=METHODS[request.method],
        dp=request.dp,
        first_phase_of=request.first_phase_of,
        notes=notes,
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
        changed=changed_settings(settings),
        base={"source": request.base, "weights_sha256": loaded.weights_sha256},
        tokenizer_sha256=loaded.tokenizer_sha256,
        dtype=request.loading.dtype,
        lora_targets=sorted({*request.lora_targets} - {""}),
        data=files,
        clock=loop.clock_kind(loaded.device),
        starts=[start],
    )


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
    dp
        The privacy option.
    first_phase_of
        Folder of a run whose first phase this one takes, if it would train the same.
    notes
        Notes for readers of the run so far; phases add to them.
    loaded
        The base with the adapter in training on it.
    prompts
        Test prompts by task, for the accuracy after each stage.
    record
        The current ``run.json``; :meth:`_update_record` replaces and writes it.
    """

    base: str
    method: Method
    dp: str
    first_phase_of: Path | None
    notes: list[str]
    loaded: Checkpoint
    stream: Stream
    prompts: Mapping[str, Sequence[Prompt]]
    folder: Folder
    record: RunRecord
    progress: Progress

    def train_stages(self, *, with_finished: bool = False) -> Iterator[TrainedStage]:
        """Run the remaining phases, and yield each stage after its last phase.

        Parameters
        ----------
        with_finished
            Yield stages that were trained before, too, from their files.
        """
        if self.dp == NO_PRIVACY:
            # No facts for the record, no noise, and no context to train in.
            protected = Protected(self.method.phases(self.stream), {})
        else:
            protected = PRIVACY[self.dp](self.stream, self.method)
        self._check_same_noise(protected)

        phases = protected.phases
        first, state, seconds = self._restore(phases)
        self._update_record(privacy=dict(protected.facts))
        with protected.during():
            if with_finished and first:
                yield from self.finished_stages(seconds, is_noisy=True)
                # The run goes on from the weights of the phase before.
                self._load(phases[first - 1].key)

            for number, phase in enumerate(phases[first:], first):
                self._finish_phase(number, state, protected, seconds)
                state = loop.PhaseState()

                # The last stage is yielded below, when the record is complete.
                is_last_phase = number + 1 == len(phases)
                if ends_stage(number, phases) and not is_last_phase:
                    yield from self._shown_to_caller(phase.key)

            if processes.rank() == 0:
                self._update_record(status="complete", files=self.folder.files())
            # A run that was killed right before this has yielded its last stage above,
            # among those that were trained before.
            if first < len(phases):
                yield from self._shown_to_caller(phases[-1].key)

        if processes.rank() == 0:
            self.folder.close()

    def _finish_phase(
        self,
        number: int,
        state: loop.PhaseState,
        protected: Protected,
        seconds: PhaseSeconds,
    ) -> None:
        """Train a phase to its end, and write its adapter, its results and its state.

        If it ends a stage, the stage's prompts are answered, too.

        Parameters
        ----------
        number
            Number of the phase, from 0.
        state
            Where the phase stands.
        seconds
            Seconds of earlier phases and answers; those of this phase are added.
        """
        phases = protected.phases
        phase = phases[number]
        seconds[phase.key] = self._train(number, phase, state, seconds)
        if processes.rank() == 0:
            self._save_adapter(phase, protected)

        if ends_stage(number, phases):
            # All stages of the run, in order, each once.
            stages = list(dict.fromkeys(phase.stage for phase in phases))
            seconds[answers_key(phase.stage)] = self._measure_accuracy(phase, stages)
        self._update_record(seconds=dict(seconds), notes=list(self.notes))

        # A run that is killed from here on goes on with the next phase.
        if processes.rank() == 0:
            self.folder.save(number + 1, loop.PhaseState(), seconds)

    def finished_stages(
        self, seconds: PhaseSeconds, *, is_noisy: bool
    ) -> Iterator[TrainedStage]:
        """Yield stages that were trained before, with the weights of their files.

        Parameters
        ----------
        seconds
            Seconds of the finished phases and answers, in the order of the run.
        is_noisy
            Whether the frozen noise of the run is on already.
        """
        for key in finished_stage_keys(seconds):
            self._load(key)
            noise: AbstractContextManager[None] = nullcontext()
            noise_file = self.folder.stages / key / NOISE_FILE
            if not is_noisy and noise_file.exists():
                student = self.stream.student
                tensor = read_tensors(noise_file)["noise"].to(student.device)  # (V, H)
                noise = input_noise(student.model, tensor)
            with noise:
                yield from self._shown_to_caller(key)

    def _shown_to_caller(self, key: str) -> Iterator[TrainedStage]:
        """Yield the stage that a phase ends; undo what the caller does to the model.

        Parameters
        ----------
        key
            Key of the stage's last phase, such as ``2-yelp/task``. Its weights are in
            the adapter in training.
        """
        stage, _, _ = key.rpartition("/")
        number, task = number_and_task(stage)
        accuracies = self.record.accuracy[number - 1]
        student = self.stream.student
        with student.restored():
            yield TrainedStage(
                number=number,
                task=task,
                model=student.model,
                tokenizer=self.loaded.tokenizer,
                folder=self.folder.stages / key,
                accuracy=dict(zip(self.stream.tasks, accuracies, strict=True)),
            )

    def _load(self, key: str) -> None:
        """Put the weights of a finished phase into the adapter in training."""
        load_adapter(self.stream.student.model, self.folder.stages / key)

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
        """Return the number of the phase to go on with, its state, and earlier seconds.

        The weights of the previous phase are loaded into the adapter. The seconds have
        a key for each finished phase and, behind its phases, for each answered stage.
        """
        folder = self.folder
        source = self.first_phase_of
        if source is not None and folder.is_new() and processes.n_processes() == 1:
            self.record = take_first_phase(folder, self.record, phases, source)

        # Each process reads the folder itself, and all must agree.
        with processes.together():
            first, state, seconds = folder.restore()
            folder.check_adapters(seconds)
            if first:
                self._load(phases[first - 1].key)

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

        def after_probe(record: loop.StepRecord) -> None:
            """Log the terms of the rows that are set aside."""
            if processes.rank() == 0:
                folder.log(record)

        self.progress(activity, state.step, phase.steps)
        end_state = loop.run_phase(
            self.stream.student,
            phase,
            seed=settings.seed,
            clip=settings.clip,
            state=state,
            after=after,
            after_probe=after_probe,
        )
        return end_state.seconds

    def _measure_accuracy(
        self, phase: loop.Phase, stages: Sequence[str]
    ) -> dict[str, float]:
        """Write the accuracy on the tasks learned so far; return the seconds it took.

        ``accuracy.csv`` has a line per stage and a column per task.

        Parameters
        ----------
        phase
            The last phase of the stage.
        stages
            All stages of the run, in order.
        """
        tasks = self.stream.tasks
        index = stages.index(phase.stage)
        tasks_measured = phase.tasks or tasks[: index + 1]
        activity = f"{phase.stage} answers, tasks"
        clock = Clock(of=self.record.clock)

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
        matrix = [*self.record.accuracy[:index], accuracies]  # [stage][task]
        if processes.rank() == 0:
            csv = accuracy_csv(matrix, stages=stages[: index + 1], tasks=tasks)
            write_text(self.folder.accuracy, csv)
        self._update_record(accuracy=matrix)
        return dict(clock)
