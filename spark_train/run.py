"""``spark-train run``: a method over a stream of tasks, into a run folder."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from spark_audit.checkpoints.beside import NOISE
from spark_audit.checkpoints.detect import recipe
from spark_audit.checkpoints.offline import quiet
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.recipe import Given, Loaded
from spark_audit.checkpoints.run_folder import UNCHECKED, check_files
from spark_audit.data.examples import Example, data_files, read_examples
from spark_audit.errors import InputError
from spark_audit.files import check_writable
from spark_audit.provenance import now, seed_for, sha256_file, versions
from spark_audit.scoring.items import Prompt
from spark_train.accuracy import accuracy, answer_prompts, read_matrix, write_matrix
from spark_train.data import encode_rows
from spark_train.distributed import ElsewhereError, Processes, assemble
from spark_train.loop import Phase, State, run_phase
from spark_train.methods import METHODS, groups
from spark_train.model.lora import add_lora, load_adapter, save_adapter
from spark_train.model.student import Student
from spark_train.privacy import NONE, PRIVACY, Method, options
from spark_train.privacy import groups as privacy_groups
from spark_train.privacy.protected import Protected
from spark_train.run_folder import DATA, Folder, RunRecord
from spark_train.settings import Settings, names, parse
from spark_train.stream import Stream

ORDERS = {
    "1": ("fomc", "yelp", "agnews", "amazon", "mentill", "yahoo"),
    "2": ("yahoo", "mentill", "amazon", "agnews", "yelp", "fomc"),
    "3": ("amazon", "mentill", "fomc", "agnews", "yahoo", "yelp"),
}
"""SPARK's task orders; 1 is its primary one."""

Progress = Callable[[str, int, int], None]
Note = Callable[[str], None]


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
    *,
    method: str,
    base: str,
    data: Sequence[Path],
    order: str,
    output: Path,
    dp: str = NONE,
    settings: Sequence[str] = (),
    seed: int | None = None,
    device: str = "auto",
    dtype: str = "float32",
    gradient_checkpointing: bool = False,
    lora_targets: Sequence[str] = (),
    loading: Mapping[str, Any] | None = None,
    command: Sequence[str] = (),
    progress: Progress | None = None,
    note: Note | None = None,
) -> Outcome:
    """Train, or go on where the same run was interrupted.

    Parameters
    ----------
    method
        Name of a file of ``methods/``.
    base
        The pretrained model, theta_0.
    data
        JSON-lines files, or folders of them; train rows are trained on, test rows
        answered after each stage.
    order
        ``1``, ``2``, ``3`` (the paper's; those of its tasks that are there), or names
        with commas between them.
    dp
        ``none``, or the name of a file of ``privacy/``.
    settings
        ``NAME=VALUE`` texts; see ``spark_train.settings``.
    seed
        The setting ``seed``.
    lora_targets
        Last names of linear layers, where q, k, v and o are not found.
    loading
        ``tokenizer``, ``revision``, ``trust_remote_code`` of ``open_checkpoint``.

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

    if seed is not None:
        settings = [*settings, f"seed={seed}"]
    processes, device = assemble(device)
    folder = Folder(output)
    with contextlib.ExitStack() as held:
        with processes.together():
            if dp not in options():
                raise InputError(
                    f"{dp!r} is no privacy option",
                    where="--dp",
                    fix=f"choose one of: {', '.join(options())}",
                )
            _same_option(settings, dp)
            reads = (*groups(method), *privacy_groups(dp))
            whose = method if dp == NONE else f"{method} --dp {dp}"
            chosen = parse(settings, groups=reads, method=whose)
            # Neither names nor the order they are given in decide on the order of rows.
            files = sorted(data_files(data), key=_content)
            examples = read_examples(*files)
            tasks = _tasks(order, examples, tell)
            if processes.first:
                folder.read()  # leaves a folder of something else as it is
                held.enter_context(folder.lock())
                check_writable(output)
            old = folder.read()
            loaded = _open(base, device=device, dtype=dtype, **(loading or {}))
            record = _record(
                method,
                loaded,
                dp=dp,
                base=base,
                files=files,
                examples=examples,
                tasks=tasks,
                settings={k: v for k, v in chosen.flat().items() if k in names(reads)},
                dtype=dtype,
                lora_targets=lora_targets,
                gradient_checkpointing=gradient_checkpointing,
                command=command,
                processes=processes,
            )
            if old is not None:
                folder.check(old, record)
                for text in old.notes:
                    tell(text)
                if not old.seal:
                    tell(UNCHECKED)
                if old.status == "complete":
                    folder.check_left(old.seconds)
                    check_files(folder.path, old.files, grows=False)
                    record = old
                else:
                    record, changed = old.continued(record)
                    if changed and processes.first:
                        tell(
                            "goes on otherwise than before, so that the bytes may "
                            f"differ: {', '.join(changed)}"
                        )
            work = _Work(
                loaded=loaded,
                base=base,
                folder=folder,
                record=record,
                settings=chosen,
                processes=processes,
                tell=tell,
                progress=progress or (lambda what, done, total: None),
                notes=notes,
            )
            work.prepare(
                examples, targets=lora_targets, checkpointing=gradient_checkpointing
            )
        try:
            return work.go(METHODS.get(method), dp)
        except InputError:
            if processes.first:
                raise
            # Losses are the same in all processes: the first one tells of them.
            raise ElsewhereError from None


def _record(
    method: str,
    loaded: Loaded,
    *,
    dp: str,
    base: str,
    files: Sequence[Path],
    examples: Sequence[Example],
    tasks: Sequence[str],
    settings: dict[str, Any],
    dtype: str,
    lora_targets: Sequence[str],
    gradient_checkpointing: bool,
    command: Sequence[str],
    processes: Processes,
) -> RunRecord:
    """What ``run.json`` says of a run that begins now."""
    hashes = [sha256_file(path) for path in files]
    count = Counter((example.task, example.split) for example in examples)
    return RunRecord(
        method=method,
        tasks=list(tasks),
        settings=settings,
        identity={
            "method": method,
            "order": ",".join(tasks),
            "base": loaded.weights_sha256,
            "tokenizer": loaded.tokenizer_sha256,
            "dtype": dtype,
            "lora_targets": ",".join(lora_targets),
            DATA: hashes,
        }
        # Run folders of before privacy options say nothing of them.
        | ({} if dp == NONE else {"dp": dp}),
        base={"source": base, "weights_sha256": loaded.weights_sha256},
        data=[
            {"file": path.name, "sha256": sha256}
            for path, sha256 in zip(files, hashes, strict=True)
        ],
        rows={
            task: {split: count[task, split] for split in ("train", "test")}
            for task in tasks
        },
        processes=processes.world,
        device=loaded.device,
        threads=torch.get_num_threads(),
        gradient_checkpointing=gradient_checkpointing,
        command=list(command),
        created=now(),
        versions=versions(),
    )


def _content(path: Path) -> str:
    """A file's hash; of one that cannot be read its reader tells."""
    with contextlib.suppress(OSError):
        return sha256_file(path)
    return ""


def _same_option(settings: Sequence[str], dp: str) -> None:
    """Refuse settings of another privacy option by that option's name."""
    given = {text.partition("=")[0].strip() for text in settings}
    own = names(privacy_groups(dp))
    for option in options():
        for name in sorted(given & set(names(privacy_groups(option))) - set(own)):
            raise InputError(
                f"{name!r} is a setting of --dp {option}",
                where="--set",
                fix=f"give --dp {option}, or leave the setting out",
            )


def _tasks(order: str, examples: Sequence[Example], tell: Note) -> tuple[str, ...]:
    """The tasks to train on, by the names that the data gives them."""
    there = {e.task for e in examples if e.split == "train"}
    listed = ", ".join(sorted(there))
    if not there:
        raise InputError(
            "holds no train row", where="--data", fix="see `data import --split train`"
        )
    if order in ORDERS:
        by_name = {task.lower(): task for task in sorted(there)}
        found = tuple(by_name[name] for name in ORDERS[order] if name in by_name)
        missing = [name for name in ORDERS[order] if name not in by_name]
        if not found:
            raise InputError(
                f"has none of the tasks of order {order}; it has: {listed}",
                where="--data",
                fix="name them in order: --order t1,t2",
            )
        if missing:
            tell(f"order {order}: not in the data: {', '.join(missing)}")
    else:
        found = tuple(name.strip() for name in order.split(",") if name.strip())
        for name in found:
            if name not in there:
                raise InputError(
                    f"{name!r} is no task with train rows; there are: {listed}",
                    where="--order",
                    fix=f"name some of them, or {', '.join(ORDERS)}",
                )
        if len(set(found)) < len(found) or not found:
            raise InputError(
                "names no task, or one twice", where="--order", fix="name each once"
            )
    if left := sorted(there - set(found)):
        tell(f"not trained on, for the order does not name them: {', '.join(left)}")
    return found


def _open(base: str, **options: Any) -> Loaded:
    loaded = open_checkpoint(base, name="base", **options)
    if loaded.base is not None:
        raise InputError(
            "is an adapter, not a base model",
            where=base,
            fix="give the model it was trained on; a new adapter begins there",
        )
    folder = recipe(base, Given(where=base, **options)).folder
    if os.path.lexists(folder / NOISE):
        raise InputError(
            f"has frozen noise of its own ({NOISE}), which adapters on it do not carry",
            where=base,
            fix="give the model without it; --dp fn draws noise for the run",
        )
    return loaded


class _Work:
    """One run on its way."""

    def __init__(
        self,
        *,
        loaded: Loaded,
        base: str,
        folder: Folder,
        record: RunRecord,
        settings: Settings,
        processes: Processes,
        tell: Note,
        progress: Progress,
        notes: list[str],
    ) -> None:
        self.loaded, self.base, self.folder = loaded, base, folder
        self.record, self.settings, self.processes = record, settings, processes
        self.tell, self.progress, self.notes = tell, progress, notes
        self.tasks = tuple(record.tasks)
        self.noise: Path | None = None

    def prepare(
        self,
        examples: Sequence[Example],
        *,
        targets: Sequence[str],
        checkpointing: bool,
    ) -> None:
        """Tokenise the data and put the adapter on the base."""
        settings, loaded = self.settings, self.loaded
        bounds = [settings.max_length or None, loaded.max_positions]
        longest = min((b for b in bounds if b is not None), default=None)
        mine = [e for e in examples if e.task in self.tasks]
        train_rows = [e for e in mine if e.split == "train"]
        self.progress("tokenising", 0, len(train_rows))
        rows = encode_rows(train_rows, loaded.tokenizer, max_length=longest)
        if loaded.tokenizer.eos_token_id is None:
            self.tell("the tokenizer has no EOS token: no response ends with one")
        self.progress("tokenising", len(train_rows), len(train_rows))
        self.rows = {
            task: [row for row in rows if row.task == task] for task in self.tasks
        }
        for task, some in self.rows.items():
            if cut := sum(row.cut for row in some):
                lost = sum(row.lost for row in some)
                self.tell(
                    f"{task}: {cut} of {len(some)} train rows were cut to {longest} "
                    f"tokens, and {lost} identifiers with what was left out"
                )
        self.prompts = self._prompts(mine)
        with quiet():
            model = add_lora(
                loaded.model,
                r=settings.lora.r,
                alpha=settings.lora.alpha,
                seed=seed_for(settings.seed, "lora"),
                targets=targets,
            )
        if checkpointing:
            # Transformers renames this; the older name warns in newer releases.
            newer = hasattr(model, "activation_checkpointing_enable")
            name = "activation" if newer else "gradient"
            enable = getattr(model, f"{name}_checkpointing_enable")
            enable({"use_reentrant": False})
        self.loaded = replace(loaded, model=model)
        self.student = Student(model, tokens=settings.micro_tokens)
        if self.student.note:
            self.tell(self.student.note)

    def _prompts(self, examples: Sequence[Example]) -> dict[str, list[Prompt]]:
        found = answer_prompts(
            examples, self.loaded.tokenizer, max_positions=self.loaded.max_positions
        )
        limit = self.settings.eval_rows
        if missing := [task for task in self.tasks if not found.get(task)]:
            self.tell(f"no test rows, so no accuracy: {', '.join(missing)}")
        # A row with a canary is another audit's; what else is not asked is told.
        unasked = {
            task: sum(
                e.task == task and e.split == "test" and e.canary is None
                for e in examples
            )
            - len(found.get(task, []))
            for task in self.tasks
        }
        if told := [f"{task} {count}" for task, count in unasked.items() if count]:
            self.tell(
                "test rows without a response, or with nothing before it, are not "
                f"answered: {', '.join(told)}"
            )
        # The first rows by id: the same of every method, whatever the file's order.
        return {
            task: sorted(found.get(task, []), key=lambda p: p.key)[: limit or None]
            for task in self.tasks
        }

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
            protected = Protected(method.run(stream), {})
        else:
            protected = PRIVACY.get(dp).run(stream, method)
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
                fix=f"go on with {self.record.privacy.get('accountant')}",
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
            found = self.folder.restore()
            if found is not None:
                self.folder.check_left(found[2])
                if found[0]:
                    load_adapter(self.student.model, self._place(phases[found[0] - 1]))
        stands = None if found is None else (found[0], found[1].step)
        self.processes.agree(stands, what="what they find in the run folder")
        if self.processes.first:
            self.folder.write(self.record)
        if found is None:
            return 0, State(), {}
        return found

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
        began = time.perf_counter()
        stage, number = phase.stage, stages.index(phase.stage)
        asked = phase.tasks or self.tasks[: number + 1]
        row: list[float | None] = [None] * len(self.tasks)
        for done, task in enumerate(asked):
            self.progress(f"{stage} answers, tasks", done, len(asked))
            row[self.tasks.index(task)] = self._accuracy(self.prompts[task])
        self.progress(f"{stage} answers, tasks", len(asked), len(asked))
        if self.processes.first:
            matrix = self._matrix()[:number]
            names = [name.partition("-")[2] for name in stages]
            write_matrix(self.folder.accuracy, self.tasks, [*matrix, row], after=names)
        seconds[f"{stage}/answers"] = {"answers": time.perf_counter() - began}

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
    found: dict[str, float] = {}
    for key, spent in seconds.items():
        for kind, value in spent.items():
            name = names.get(kind, kind)
            name = "correction" if key.endswith("/priv") else name
            found[name] = found.get(name, 0.0) + value
    return {name: round(value, 3) for name, value in found.items() if value >= 5e-4}
