"""The data of a run: its files, the tasks in their order, rows as tokens, prompts."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from spark_audit.checkpoints.loaded import Loaded
from spark_audit.data.encoding import (
    Encoding,
    kept_range,
    tokens_of_ranges,
)
from spark_audit.data.encoding import (
    encode_rows as encode_texts,
)
from spark_audit.data.examples import Example, Ranges, data_files, read_examples
from spark_audit.data.fixed_wording import template_ranges
from spark_audit.data.occurrences import identifier_ranges
from spark_audit.data.sensitivity import stop_word_ranges
from spark_audit.data.task_wording import task_templates
from spark_audit.errors import InputError, at
from spark_audit.files import sha256_file
from spark_audit.manifest.sequences import row_prompts
from spark_audit.scoring.items import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TrainRow:
    """One sequence to train on.

    All masks are aligned with ``ids``. The first token of a row has no prediction; a
    mask may be True there all the same.

    Attributes
    ----------
    id, task
        The example's.
    ids
        Shape ``(T,)``, int32: what the model reads, EOS at the end.
    response
        Shape ``(T,)``, bool: tokens of the response, EOS among them.
    pii
        Shape ``(T,)``, bool: tokens of identifiers: annotated, repeated, or found by
        rules (:func:`spark_audit.data.occurrences.identifier_ranges`).
    fixed
        Shape ``(T,)``, bool: tokens of the task's fixed wording and stop words. Where
        one is an identifier too, ``pii`` wins.
    special
        Positions of what is no text: special tokens in front, EOS.
    cut
        Whether the beginning of the prompt was left out.
    lost
        Identifiers that were left out with it.
    """

    id: str
    task: str
    ids: np.ndarray
    response: np.ndarray
    pii: np.ndarray
    fixed: np.ndarray
    special: tuple[int, ...] = ()
    cut: bool = False
    lost: int = 0

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Batch:
    """Rows padded on the right; all tensors have shape ``(B, T)``.

    ``attention`` is True on real tokens; ``response``, ``pii`` and ``attention`` are
    the masks that a loss can cover.
    """

    ids: Tensor
    attention: Tensor
    response: Tensor
    pii: Tensor


def encode_rows(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
) -> list[TrainRow]:
    """Tokenise examples for training.

    ``prompt + response`` is tokenised once, as audits do, so that training's masks and
    an audit's spans speak of the same tokens. EOS is appended to the response (an EOS
    of the tokenizer's own is not doubled: ``kept_range`` leaves it out).

    Parameters
    ----------
    examples
        Rows of any split. A task's fixed wording is what most of its prompts here
        share (:func:`spark_audit.data.task_wording.task_templates`).
    max_length
        Tokens that fit, special tokens and EOS included; the prompt is cut from its
        start, the response and whole PII spans are kept. ``None``: no limit.

    Raises
    ------
    InputError
        Naming the example, if its response is blank, or does not fit whole with some
        of its prompt: a model must not learn half a label.
    """
    templates = task_templates(examples)
    encodings = encode_texts(tokenizer, examples)
    return [
        (_row if example.training_input is None else _row_as_trained)(
            example,
            encoding,
            template_ranges(example, templates),
            eos=tokenizer.eos_token_id,
            max_length=max_length,
        )
        for example, encoding in zip(examples, encodings, strict=True)
    ]


def _row(
    example: Example,
    encoding: Encoding,
    template: Ranges,
    *,
    eos: int | None,
    max_length: int | None,
) -> TrainRow:
    border, where = len(example.prompt), f"example {example.id!r}"
    if encoding.span(border, len(example.text)) is None:
        raise InputError(
            "its response is blank: there is nothing to learn",
            where=where,
            fix="give it one, or leave the row out",
        )
    # From the first token on that reaches into the response, as generation continues:
    # an all-blank token in front of the label has to be learned, too.
    response = (encoding.end > border) & ~encoding.special
    private = identifier_ranges(example)
    places = [encoding.span(*place) for place in private]
    spans = [(span.start, span.end) for span in places if span is not None]
    with at(where):
        # Whatever counts as an identifier is kept whole or cut whole.
        kept = kept_range(
            encoding,
            max_length=None if max_length is None else max_length - (eos is not None),
            response_start=border,
            spans=spans,
        )
    first = int(np.argmax(response))
    no_prompt = kept[0] >= first > encoding.leading
    if no_prompt or kept[0] > first or kept[1] < encoding.text_end:
        raise InputError(
            f"its response takes {response.sum()} tokens, and max_length {max_length} "
            "leaves too few for it and some prompt, without cutting an identifier",
            where=where,
            fix="give a larger max_length, or leave the row out",
        )
    ids, positions = encoding.fed(kept)
    fixed_wording = [*template, *stop_word_ranges(example.text)]
    named, worded = (encoding.mask(ranges) for ranges in (private, fixed_wording))
    masks = np.stack([response, named, worded, encoding.special])[:, positions]
    if eos is not None:
        ids = np.append(ids, np.int32(eos))
        masks = np.column_stack([masks, (True, False, False, True)])
    answer, pii, fixed, special = masks
    return TrainRow(
        example.id,
        example.task,
        ids,
        answer,
        pii,
        fixed,
        tuple(np.flatnonzero(special).tolist()),
        cut=kept[0] > 0,
        lost=sum(start < kept[0] or end > kept[1] for start, end in set(spans)),
    )


def _row_as_trained(
    example: Example,
    encoding: Encoding,
    template: Ranges,
    *,
    eos: int | None,
    max_length: int | None,
) -> TrainRow:
    """A row of chat data: its ids are exactly those of its text, nothing is added.

    ``response`` are the tokens that it says had loss; what its trainer cut off is cut
    off, and where ``max_length`` is smaller, more of the same side.
    """
    training = example.training_input
    assert training is not None
    start, end = training.fed(len(encoding))
    if max_length is not None and end - start > max_length:
        if training.truncation == "end":
            end = start + max_length
        else:
            start = end - max_length
    fed = slice(start, end)
    supervised = tokens_of_ranges(encoding, training.supervised)[fed]
    if not supervised[1:].any():
        raise InputError(
            "none of the tokens that are read has loss: there is nothing to learn",
            where=f"example {example.id!r}",
            fix="give a larger max_length, or leave the row out",
        )
    private = identifier_ranges(example)
    fixed_wording = [*template, *stop_word_ranges(example.text)]
    spans = {span[:2] for span in (encoding.span(*one) for one in private) if span}
    special = encoding.special | (eos is not None) & (encoding.ids == eos)
    return TrainRow(
        example.id,
        example.task,
        encoding.ids[fed],
        supervised,
        encoding.mask(private)[fed],
        encoding.mask(fixed_wording)[fed],
        tuple(np.flatnonzero(special[fed]).tolist()),
        cut=(start, end) != (0, len(encoding)),
        lost=sum(low < start or high > end for low, high in spans),
    )


def padded(values: Sequence[np.ndarray]) -> Tensor:
    """Rows' values ``(T,)``, padded on the right with 0: ``(B, T)``, of their dtype."""
    return pad_sequence([torch.from_numpy(one) for one in values], batch_first=True)


def collate(rows: Sequence[TrainRow], device: torch.device | str = "cpu") -> Batch:
    """Pad rows on the right to the longest; padding is masked, so its id is free."""
    columns = (
        padded([row.ids for row in rows]).long(),
        padded([np.ones(len(row), dtype=np.bool_) for row in rows]),
        padded([row.response for row in rows]),
        padded([row.pii for row in rows]),
    )
    return Batch(*(column.to(device) for column in columns))


def pieces(rows: Sequence[TrainRow], tokens: int) -> Iterator[list[TrainRow]]:
    """Rows of similar length together, the longest first, padded to ``tokens``."""
    left = sorted(rows, key=len, reverse=True)
    while left:
        size = max(tokens // len(left[0]), 1)
        yield left[:size]
        left = left[size:]


# --- the data of a run ----------------------------------------------------------------

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
