"""The data of a run: its files, the tasks in their order, rows, prompts and answers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spark_audit.checkpoints.loaded import Loaded, undisturbed
from spark_audit.data.encoding import encode
from spark_audit.data.examples import Example, data_files, read_examples
from spark_audit.errors import InputError
from spark_audit.files import sha256_file
from spark_audit.manifest.sequences import row_prompts
from spark_audit.scoring.items import Prompt
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass
from spark_train.distributed import gathered, share
from spark_train.training_rows import TrainRow, encode_rows

_ANSWERS = Pass("generate")
ORDERS = {
    "1": ("fomc", "yelp", "agnews", "amazon", "mentill", "yahoo"),
    "2": ("yahoo", "mentill", "amazon", "agnews", "yelp", "fomc"),
    "3": ("amazon", "mentill", "fomc", "agnews", "yahoo", "yelp"),
}
"""SPARK's task orders; 1 is its primary one."""

Note = Callable[[str], None]


@dataclass(frozen=True)
class Corpus:
    """Examples in the order of their files, and the tasks to train on, in theirs."""

    files: tuple[Path, ...]
    examples: tuple[Example, ...]
    tasks: tuple[str, ...]

    @classmethod
    def read(cls, data: Sequence[Path], order: str, note: Note) -> Corpus:
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
        texts = encode(loaded.tokenizer, [example.text for example in examples])
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
    listed = ", ".join(there)
    if order in ORDERS:
        by_name = {task.lower(): task for task in there}
        tasks = tuple(by_name[name] for name in ORDERS[order] if name in by_name)
        if not tasks:
            raise InputError(
                f"has none of the tasks of order {order}; it has: {listed}",
                where="--data",
                fix="name them in order: --order t1,t2",
            )
        if missing := [name for name in ORDERS[order] if name not in by_name]:
            note(f"order {order}: not in the data: {', '.join(missing)}")
    elif not order and len(there) == 1:
        tasks = (there[0],)
    else:
        tasks = tuple(filter(None, map(str.strip, order.split(","))))
        if unknown := [name for name in tasks if name not in there]:
            what = f"{unknown[0]!r} is no task with train rows; there are: {listed}"
            fix = f"name some of them, or {', '.join(ORDERS)}"
            raise InputError(what, where="--order", fix=fix)
        if len(set(tasks)) < len(tasks) or not tasks:
            what = f"names no task, or one twice; there are: {listed}"
            raise InputError(what, where="--order", fix="name each once, in order")
    if left := [task for task in there if task not in tasks]:
        note(f"not trained on, for the order does not name them: {', '.join(left)}")
    return tasks


# --- answers --------------------------------------------------------------------------


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
    if mine := share(prompts):
        with undisturbed(loaded.model):
            table = score(loaded, mine, passes=[_ANSWERS])[_ANSWERS]
        right = table.columns["normalised"].tolist()
    return float(np.mean(gathered(right)))
