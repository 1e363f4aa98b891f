"""The data of a run: its tasks in order, their train rows and prompts."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.data.encoding import encode_rows as encode_texts
from spark_audit.data.examples import Example, data_files, read_examples
from spark_audit.errors import InputError
from spark_audit.files import sha256_file
from spark_audit.manifest.sequences import row_prompts
from spark_audit.scoring.items import Prompt
from spark_train.training_rows import TrainRow, encode_rows

ORDERS = {
    "1": ("fomc", "yelp", "agnews", "amazon", "mentill", "yahoo"),
    "2": ("yahoo", "mentill", "amazon", "agnews", "yelp", "fomc"),
    "3": ("amazon", "mentill", "fomc", "agnews", "yahoo", "yelp"),
}
"""SPARK's task orders; 1 is its primary one."""

Note = Callable[[str], None]
"""Called with a sentence that a reader of the run must know."""


@dataclass(frozen=True)
class TrainingCorpus:
    """Examples in the order of their files, and the tasks to train on, in order."""

    files: tuple[Path, ...]
    examples: tuple[Example, ...]
    tasks: tuple[str, ...]

    @classmethod
    def read(cls, data: Sequence[Path], order: str, note: Note) -> TrainingCorpus:
        """Read the data of ``--data``, and its tasks as ``--order`` has them.

        Raises
        ------
        InputError
            If there is no train row, or no such task.
        """
        # The order of rows must not depend on the files' names or their given order.
        files = sorted(data_files(data), key=_hash_of_content)
        examples = read_examples(*files)
        return cls(
            files=tuple(files),
            examples=tuple(examples),
            tasks=_tasks(order, examples, note),
        )

    def rows(
        self,
        loaded: Checkpoint,
        *,
        max_length: int,
        note: Note,
        progress: Callable[[str, int, int], None],
    ) -> dict[str, list[TrainRow]]:
        """Return the train rows of each task as tokens.

        Parameters
        ----------
        max_length
            Most tokens of a row; 0: as many as the model's context has.
        """
        # 0 and None stand for no limit.
        limits = [limit for limit in (max_length, loaded.max_positions) if limit]
        most_tokens = min(limits, default=None)
        if loaded.tokenizer.eos_token_id is None:
            note("the tokenizer has no EOS token: no response ends with one")

        rows_by_task: dict[str, list[TrainRow]] = {}
        for n_done, task in enumerate(self.tasks):
            progress("tokenising, tasks", n_done, len(self.tasks))
            examples = [
                example
                for example in self.examples
                if example.task == task and example.split == "train"
            ]
            rows = encode_rows(examples, loaded.tokenizer, max_length=most_tokens)

            n_cut = sum(row.cut for row in rows)
            if n_cut:
                n_lost = sum(row.lost for row in rows)
                note(
                    f"{task}: {n_cut} of {len(rows)} train rows were cut to "
                    f"{most_tokens} tokens, and lost {n_lost} identifiers with the "
                    "removed text"
                )
            rows_by_task[task] = rows

        progress("tokenising, tasks", len(self.tasks), len(self.tasks))
        return rows_by_task

    def prompts(
        self, loaded: Checkpoint, *, limit: int, note: Note
    ) -> dict[str, list[Prompt]]:
        """Return the prompts of each task's test rows, as the utility audit asks them.

        Rows with a canary, without a response or without text before it are left out.

        Parameters
        ----------
        limit
            Most prompts of a task, the first by id, so that all methods and orders of
            files have the same prompts; 0: all.

        Raises
        ------
        InputError
            If the tokenizer gives no offsets, or if a prompt and its answer do not fit
            the context.
        """
        examples = [example for example in self.examples if example.task in self.tasks]
        encodings = encode_texts(loaded.tokenizer, examples)
        # All rows, because the longest response of a task limits its answers.
        rows = list(zip(examples, encodings, strict=True))

        # Choose the test rows by id.
        ids_by_task: dict[str, list[str]] = {task: [] for task in self.tasks}
        n_unanswered: Counter[str] = Counter()  # by task
        for example, encoding in rows:
            # A row with a canary belongs to another audit.
            if example.split != "test" or example.canary is not None:
                continue
            n_prompt_tokens = encoding.first_token_past(len(example.prompt))
            if example.response.strip() and n_prompt_tokens > 0:
                ids_by_task[example.task].append(example.id)
            else:
                n_unanswered[example.task] += 1

        tasks_without = [task for task, ids in ids_by_task.items() if not ids]
        if tasks_without:
            note(f"no test rows, so no accuracy: {', '.join(tasks_without)}")
        if n_unanswered:
            counts = ", ".join(
                f"{task} {count}" for task, count in n_unanswered.items()
            )
            note(
                "test rows without a response, or with nothing before it, are not "
                f"answered: {counts}"
            )

        prompts = {}
        for task, ids in ids_by_task.items():
            first_ids = sorted(ids)[: limit or None]
            prompts[task] = row_prompts(rows, first_ids, limit=loaded.max_positions)
        return prompts


def _hash_of_content(path: Path) -> str:
    """Return a file's hash; empty if it cannot be read, which its reader reports."""
    with contextlib.suppress(OSError):
        return sha256_file(path)
    return ""


def _tasks(order: str, examples: Sequence[Example], note: Note) -> tuple[str, ...]:
    """Return the tasks to train on, in order, with their names in the data.

    Parameters
    ----------
    order
        ``--order``: the number of an order of the paper, or tasks with commas between
        them; empty: the data's only task.
    """
    known_tasks = sorted(
        {example.task for example in examples if example.split == "train"}
    )
    if not known_tasks:
        raise InputError(
            "holds no train row", where="--data", fix="see `data import --split train`"
        )

    if order in ORDERS:
        tasks = _tasks_of_paper(order, known_tasks, note)
    elif not order and len(known_tasks) == 1:
        tasks = known_tasks
    else:
        names = [name.strip() for name in order.split(",")]
        tasks = [name for name in names if name]
    _check_tasks(tasks, known_tasks)

    left_out = [task for task in known_tasks if task not in tasks]
    if left_out:
        note(f"the order leaves out tasks of the data: {', '.join(left_out)}")
    return tuple(tasks)


def _tasks_of_paper(order: str, known_tasks: Sequence[str], note: Note) -> list[str]:
    """Return the tasks of one of the paper's orders that are in the data.

    The data's names may have capitals.
    """
    task_by_name = {task.lower(): task for task in known_tasks}
    missing = [name for name in ORDERS[order] if name not in task_by_name]
    if missing:
        note(f"order {order}: not in the data: {', '.join(missing)}")
    return [task_by_name[name] for name in ORDERS[order] if name in task_by_name]


def _check_tasks(tasks: Sequence[str], known_tasks: Sequence[str]) -> None:
    """Refuse an order without a task, with an unknown one, or with one twice."""
    unknown = [name for name in tasks if name not in known_tasks]
    if unknown:
        problem = f"no train row is of the task {unknown[0]!r}"
    elif not tasks:
        problem = "names no task of the data"
    elif len(set(tasks)) < len(tasks):
        problem = "names a task twice"
    else:
        return
    raise InputError(
        f"{problem}; there are: {', '.join(known_tasks)}",
        where="--order",
        fix=f"name each once, in order (t1,t2,...), or give {', '.join(ORDERS)}",
    )
