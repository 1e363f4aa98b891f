"""``spark-train run``: a method over a stream of tasks, into a run folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from spark_audit.checkpoints.detect import read_headers
from spark_audit.checkpoints.loaded import Loaded
from spark_audit.checkpoints.offline import quiet
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.run_folder import check_files
from spark_audit.checkpoints.sidecar import NOISE
from spark_audit.checkpoints.specs import Loading
from spark_audit.errors import InputError, choose
from spark_audit.files import check_writable
from spark_audit.provenance import seed_for
from spark_audit.scoring.items import Prompt
from spark_train.accuracy import accuracy, read_matrix, write_matrix
from spark_train.corpus import Corpus, Note
from spark_train.data import TrainRow
from spark_train.distributed import Processes, assemble
from spark_train.loop import Clock, Phase, State, run_phase
from spark_train.methods import METHODS, groups
from spark_train.methods.method import Method
from spark_train.model.lora import add_lora, load_adapter, save_adapter
from spark_train.model.student import Student
from spark_train.privacy import PRIVACY
from spark_train.privacy import groups as privacy_groups
from spark_train.privacy.protected import Protected
from spark_train.request import NONE, TrainRequest
from spark_train.run_folder import Folder
from spark_train.run_record import RunRecord
from spark_train.settings import Settings, names, parse
from spark_train.stream import Stream

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Outcome:
    """What a run left.

    Attributes
    ----------
    matrix
        ``matrix[t][i]``: accuracy on task ``i`` after task ``t``; ``None``: not
        measured (later tasks, tasks without test rows).
    seconds
        By kind of work: task, replay, teacher, importance, correction, optimizer,
        answers and others.
    privacy
        What the privacy option says of itself; empty without one.
    """

    folder: Path
    tasks: tuple[str, ...]
    matrix: list[list[float | None]]
    seconds: dict[str, float]
    notes: tuple[str, ...]
    privacy: dict[str, Any]


def train(
    request: TrainRequest,
    *,
    progress: Progress | None = None,
    note: Note | None = None,
) -> Outcome:
    """Train, or go on where the same run was interrupted.

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
            if note is not None:
                note(text)

    show = progress or (lambda what, done, total: None)
    processes, device = assemble(request.loading.device)
    folder = Folder(request.output)
    with contextlib.ExitStack() as held:
        with processes.together():
            settings, read = _settings(request)
            corpus = Corpus.read(request.data, request.order, tell)
            if processes.first:
                folder.read()  # leaves a folder of something else as it is
                held.enter_context(folder.lock())
                check_writable(request.output)
            old = folder.read()
            loaded = _open(request.base, replace(request.loading, device=device))
            record = RunRecord.begun(request, corpus, loaded, read, processes)
            if old is not None:
                record = _resumed(folder, old, record, tell, processes)
            rows = corpus.rows(
                loaded, max_length=settings.max_length, note=tell, progress=show
            )
            prompts = corpus.prompts(loaded, limit=settings.eval_rows, note=tell)
            student = _student(request, loaded, settings)
            if student.note:
                tell(student.note)
            work = _Work(
                base=request.base,
                loaded=replace(loaded, model=student.model),
                student=student,
                rows=rows,
                prompts=prompts,
                folder=folder,
                record=record,
                settings=settings,
                processes=processes,
                tell=tell,
                progress=show,
                notes=notes,
            )
        with processes.alike():
            return work.go(METHODS[request.method], request.dp)


def _settings(request: TrainRequest) -> tuple[Settings, dict[str, Any]]:
    """The settings of a run, and by name those that its method and option read."""
    for value, choices, what in (
        (request.method, [*METHODS], "unknown method"),
        (request.dp, [NONE, *PRIVACY], "unknown privacy option"),
    ):
        if value not in choices:
            raise InputError(f"{what} {value!r}", fix=choose(value, choices))
    of_option = set(names(privacy_groups(request.dp)))
    given = {text.partition("=")[0].strip() for text in request.settings}
    for option in PRIVACY:
        for name in sorted(given & set(names(privacy_groups(option))) - of_option):
            raise InputError(
                f"{name!r} is a setting of --dp {option}",
                where="--set",
                fix=f"give --dp {option}, or leave the setting out",
            )
    reads = (*groups(request.method), *privacy_groups(request.dp))
    seed = () if request.seed is None else (f"seed={request.seed}",)
    settings = parse(
        (*request.settings, *seed),
        groups=reads,
        method=request.method + ("" if request.dp == NONE else f" --dp {request.dp}"),
    )
    known = names(reads)
    return settings, {k: v for k, v in settings.flat().items() if k in known}


def _open(base: str, loading: Loading) -> Loaded:
    loaded = open_checkpoint(base, loading, name="base")
    if loaded.base is not None:
        raise InputError(
            "is an adapter, not a base model",
            where=base,
            fix="give the model it was trained on; a new adapter begins there",
        )
    if os.path.lexists(read_headers(base, loading).folder / NOISE):
        raise InputError(
            f"has frozen noise of its own ({NOISE}), which adapters on it do not carry",
            where=base,
            fix="give the model without it; --dp fn draws noise for the run",
        )
    return loaded


def _resumed(
    folder: Folder, old: RunRecord, new: RunRecord, tell: Note, processes: Processes
) -> RunRecord:
    """The record of the folder's run, with one start more where it goes on."""
    folder.check(old, new)
    for text in old.notes:
        tell(text)
    if old.status == "complete":
        folder.check_left(old.seconds)
        check_files(folder.path, old.files, grows=False)
        return old
    record, changed = old.continued(new)
    if changed and processes.first:
        tell(
            "resumes with differences, so that the bytes may "
            f"differ: {', '.join(changed)}"
        )
    return record


def _student(request: TrainRequest, loaded: Loaded, settings: Settings) -> Student:
    """The base with a fresh adapter on it."""
    with quiet():
        model = add_lora(
            loaded.model,
            r=settings.lora.r,
            alpha=settings.lora.alpha,
            seed=seed_for(settings.seed, "lora"),
            targets=request.lora_targets,
        )
    if request.gradient_checkpointing:
        # Transformers renames this; the older name warns in newer releases.
        newer = hasattr(model, "activation_checkpointing_enable")
        name = "activation" if newer else "gradient"
        getattr(model, f"{name}_checkpointing_enable")({"use_reentrant": False})
    return Student(model, tokens=settings.micro_tokens)


@dataclass
class _Work:
    """One run on its way."""

    base: str
    loaded: Loaded
    student: Student
    rows: Mapping[str, Sequence[TrainRow]]
    prompts: Mapping[str, Sequence[Prompt]]
    folder: Folder
    record: RunRecord
    settings: Settings
    processes: Processes
    tell: Note
    progress: Progress
    notes: list[str]
    noise: Path | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks in order."""
        return tuple(self.record.tasks)

    def go(self, method: Method, dp: str) -> Outcome:
        """Run the phases that are left, under a privacy option."""
        if self.record.status == "complete":
            if self.processes.first:
                self.folder.close()
            return self._outcome(self.record.seconds)
        stream = Stream(
            student=self.student,
            rows=self.rows,
            settings=self.settings,
            processes=self.processes,
            note=self.tell,
            folder=self.folder.path,
            identity=self.record.fingerprint(),
        )
        if dp == NONE:
            protected = Protected(method.phases(stream), {})
        else:
            protected = PRIVACY[dp].protect(stream, method)
        self.noise = protected.noise
        facts = dict(protected.facts)
        began = self.record.privacy.get("noise_multiplier")
        if began is not None and began != facts.get("noise_multiplier"):
            # Found for a target epsilon, by another accountant than at first: the
            # epsilon of steps with two of them would be neither's.
            raise InputError(
                f"the noise multiplier was {began}, and is "
                f"{facts.get('noise_multiplier')} by {facts.get('accountant')}",
                where=str(self.folder.path),
                fix=f"resume with {self.record.privacy.get('accountant')}",
            )
        self.record = self.record.model_copy(update={"privacy": facts})
        with protected.during():
            return self._train(protected.phases)

    def _train(self, phases: Sequence[Phase]) -> Outcome:
        stages = list(dict.fromkeys(phase.stage for phase in phases))
        at, state, seconds = self._begin(phases)
        for number in range(at, len(phases)):
            phase = phases[number]
            state = self._phase(number, phase, state, seconds)
            seconds[phase.key] = state.seconds
            state = State()
            last = number + 1 == len(phases) or phases[number + 1].stage != phase.stage
            if last:
                self._answer(phase, stages, seconds)
            self._keep(seconds)
            if self.processes.first:
                self.folder.save(number + 1, State(), seconds)
            self.processes.wait()
        if self.processes.first:
            done = {"status": "complete", "files": self.folder.left()}
            self.record = self.record.model_copy(update=done)
            self._keep(seconds)
            self.folder.close()
        return self._outcome(seconds)

    def _outcome(self, seconds: Mapping[str, Mapping[str, float]]) -> Outcome:
        return Outcome(
            folder=self.folder.path,
            tasks=self.tasks,
            matrix=self._matrix(),
            seconds=_by_kind(seconds),
            notes=tuple(self.notes),
            privacy=self.record.privacy,
        )

    def _begin(
        self, phases: Sequence[Phase]
    ) -> tuple[int, State, dict[str, dict[str, float]]]:
        """Which phase to begin with, from where, and what was spent before."""
        with self.processes.together():
            restored = self.folder.restore()
            if restored is not None:
                self.folder.check_left(restored[2])
                if restored[0]:
                    load_adapter(
                        self.student.model, self._place(phases[restored[0] - 1])
                    )
        stands = None if restored is None else (restored[0], restored[1].step)
        self.processes.agree(stands, what="what they find in the run folder")
        if self.processes.first:
            self.folder.write(self.record)
        if restored is None:
            return 0, State(), {}
        return restored

    def _place(self, phase: Phase) -> Path:
        return self.folder.stages / phase.stage / phase.part

    def _phase(
        self, number: int, phase: Phase, state: State, seconds: dict[str, Any]
    ) -> State:
        what = f"{phase.stage} {'correction' if phase.part == 'priv' else 'learning'}"

        def after(record: dict[str, Any], snapshot: Callable[[], State]) -> None:
            if self.processes.first:
                self.folder.log(record)
            if "probe" in record:
                return
            done = record["step"]
            self.progress(f"{what}, steps", done, phase.steps)
            if not self.processes.first:
                return
            if done % self.settings.save_every == 0 or done == phase.steps:
                self.folder.save(number, snapshot(), seconds)

        self.progress(f"{what}, steps", state.step, phase.steps)
        state = run_phase(
            self.student,
            phase,
            seed=self.settings.seed,
            clip=self.settings.clip,
            processes=self.processes,
            state=state,
            after=after,
        )
        if self.processes.first:
            save_adapter(
                self.student.model,
                self._place(phase),
                base=self.base,
                base_sha256=self.loaded.weights_sha256,
                noise=self.noise,
                link_noise=True,
            )
        self.processes.wait()
        return state

    def _answer(
        self, phase: Phase, stages: Sequence[str], seconds: dict[str, Any]
    ) -> None:
        """The accuracy on the tasks learned so far, into ``accuracy.csv``.

        Parameters
        ----------
        stages
            All stages of the run; each has a line.
        """
        spent: dict[str, float] = {}
        clock = Clock(spent, self.record.clock)
        seconds[f"{phase.stage}/answers"] = spent
        stage, number = phase.stage, stages.index(phase.stage)
        asked = phase.tasks or self.tasks[: number + 1]
        row: list[float | None] = [None] * len(self.tasks)
        with clock("answers"):
            for done, task in enumerate(asked):
                self.progress(f"{stage} answers, tasks", done, len(asked))
                row[self.tasks.index(task)] = self._accuracy(self.prompts[task])
            self.progress(f"{stage} answers, tasks", len(asked), len(asked))
        if self.processes.first:
            matrix = self._matrix()[:number]
            names = [name.partition("-")[2] for name in stages]
            write_matrix(self.folder.accuracy, self.tasks, [*matrix, row], after=names)

    def _accuracy(self, prompts: Sequence[Prompt]) -> float | None:
        if not prompts:
            return None
        mine = self.processes.share(prompts)
        right = round(accuracy(self.loaded, mine) * len(mine)) if mine else 0
        total = torch.tensor([float(right)], device=self.student.device)
        return float(self.processes.sum(total)[0]) / len(prompts)

    def _matrix(self) -> list[list[float | None]]:
        if not self.folder.accuracy.exists():
            return []
        return read_matrix(self.folder.accuracy)[1]

    def _keep(self, seconds: dict[str, Any]) -> None:
        if self.processes.first:
            self.folder.check_there()
            self.record = self.record.model_copy(
                update={"seconds": dict(seconds), "notes": list(self.notes)}
            )
            self.folder.write(self.record)


def _by_kind(seconds: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Seconds by kind of work, over all phases.

    ``start`` of a phase that learns a task is asking the teacher: replay's overhead;
    its ``end`` is finding out which weights the task needs.
    """
    names = {"start": "teacher", "end": "importance"}
    by_kind: dict[str, float] = {}
    for key, spent in seconds.items():
        for kind, value in spent.items():
            name = names.get(kind, kind)
            name = "correction" if key.endswith("/priv") else name
            by_kind[name] = by_kind.get(name, 0.0) + value
    return {name: round(value, 3) for name, value in by_kind.items() if value >= 5e-4}
