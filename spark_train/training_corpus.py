"""The data of a run: its tasks in order, their train rows and prompts."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.checkpoints.loaded import Loaded
from spark_audit.data.encoding import (
    encode_rows as encode_texts,
)
from spark_audit.data.examples import Example, data_files, read_examples
from spark_audit.errors import InputError
from spark_audit.files import sha256_file
from spark_audit.manifest.sequences import row_prompts
from spark_audit.scoring.items import Prompt

if TYPE_CHECKING:
    pass
from spark_train.training_rows import TrainRow, encode_rows

ORDERS = {
    "1": ("fomc", "yelp", "agnews", "amazon", "mentill", "yahoo"),
    "2": ("yahoo", "mentill", "amazon", "agnews", "yelp", "fomc"),
    "3": ("amazon", "mentill", "fomc", "agnews", "yahoo", "yelp"),
}
"""SPARK's task orders; 1 is its primary one."""

Note = Callable[[str], None]


@dataclass(frozen=True)
class TrainingCorpus:
    """Examples in the order of their files, and the tasks to train on, in theirs."""

    files: tuple[Path, ...]
    examples: tuple[Example, ...]
    tasks: tuple[str, ...]

    @classmethod
    def read(cls, data: Sequence[Path], order: str, note: Note) -> TrainingCorpus:
        """The data of ``--data``, and its tasks as ``--order`` has them.

        Raises
        ------
        InputError
            If there is no train row, or no such task.
        """
        # Neither names nor the order they are given in decide on the order of rows.
        files = sorted(data_files(data), key=_content)
        examples = read_examples(*files)
        return cls(tuple(files), tuple(examples), _tasks(order, examples, note))

    def rows(
        self,
        loaded: Loaded,
        *,
        max_length: int,
        note: Note,
        progress: Callable[[str, int, int], None],
    ) -> dict[str, list[TrainRow]]:
        """Task -> its train rows as tokens; ``max_length`` 0: the model's context."""
        longest = min(filter(None, (max_length, loaded.max_positions)), default=None)
        if loaded.tokenizer.eos_token_id is None:
            note("the tokenizer has no EOS token: no response ends with one")
        by_task: dict[str, list[TrainRow]] = {}
        for done, task in enumerate(self.tasks):
            progress("tokenising, tasks", done, len(self.tasks))
            some = [e for e in self.examples if e.task == task and e.split == "train"]
            rows = encode_rows(some, loaded.tokenizer, max_length=longest)
            if cut := sum(row.cut for row in rows):
                lost = sum(row.lost for row in rows)
                note(
                    f"{task}: {cut} of {len(rows)} train rows were cut to {longest} "
                    f"tokens, and {lost} identifiers with the removed text"
                )
            by_task[task] = rows
        progress("tokenising, tasks", len(self.tasks), len(self.tasks))
        return by_task

    def prompts(
        self, loaded: Loaded, *, limit: int, note: Note
    ) -> dict[str, list[Prompt]]:
        """Task -> the prompts of its test rows, as the utility audit asks them.

        Rows with a canary, without a response or with nothing before it are not asked.

        Parameters
        ----------
        limit
            Prompts of a task, the first by id: the same of every method, whatever the
            files' order; 0: all.

        Raises
        ------
        InputError
            If the tokenizer gives no offsets, or a prompt does not fit the context with
            its answer.
        """
        examples = [one for one in self.examples if one.task in self.tasks]
        texts = encode_texts(loaded.tokenizer, examples)
        # All rows: an answer may be longer than its task's longest response, by four.
        rows = [*zip(examples, texts, strict=True)]
        asked: dict[str, list[str]] = {task: [] for task in self.tasks}
        unasked: Counter[str] = Counter()
        for example, encoding in rows:
            # A row with a canary is another audit's.
            if example.split == "test" and example.canary is None:
                before = encoding.reaching(len(example.prompt))
                if example.response.strip() and before > 0:
                    asked[example.task].append(example.id)
                else:
                    unasked[example.task] += 1
        if missing := [task for task, keys in asked.items() if not keys]:
            note(f"no test rows, so no accuracy: {', '.join(missing)}")
        if unasked:
            told = ", ".join(f"{task} {count}" for task, count in unasked.items())
            note(
                "test rows without a response, or with nothing before it, are not "
                f"answered: {told}"
            )
        return {
            task: row_prompts(
                rows, sorted(keys)[: limit or None], limit=loaded.max_positions
            )
            for task, keys in asked.items()
        }


def _content(path: Path) -> str:
    """A file's hash; of one that cannot be read its reader tells."""
    with contextlib.suppress(OSError):
        return sha256_file(path)
    return ""


def _tasks(order: str, examples: Sequence[Example], note: Note) -> tuple[str, ...]:
    """The tasks to train on, by the names that the data gives them."""
    there = sorted({e.task for e in examples if e.split == "train"})
    if not there:
        what, fix = "holds no train row", "see `data import --split train`"
        raise InputError(what, where="--data", fix=fix)
    if order in ORDERS:
        by_name = {task.lower(): task for task in there}
        tasks = [by_name[name] for name in ORDERS[order] if name in by_name]
        if missing := [name for name in ORDERS[order] if name not in by_name]:
            note(f"order {order}: not in the data: {', '.join(missing)}")
    else:
        named = list(filter(None, map(str.strip, order.split(","))))
        tasks = named if order or len(there) > 1 else there
    if unknown := [name for name in tasks if name not in there]:
        what = f"{unknown[0]!r} is no task with train rows"
    else:
        what = "names no task of the data, or one twice"
    if unknown or not tasks or len({*tasks}) < len(tasks):
        fix = f"name each once, in order (t1,t2,...), or give {', '.join(ORDERS)}"
        what = f"{what}; there are: {', '.join(there)}"
        raise InputError(what, where="--order", fix=fix)
    if left := [task for task in there if task not in tasks]:
        note(f"not trained on, for the order does not name them: {', '.join(left)}")
    return tuple(tasks)
