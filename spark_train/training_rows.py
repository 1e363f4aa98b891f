"""Rows as training reads them: tokens, masks of what is learned, batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from spark_audit.data.encoding import (
    Encoding,
    kept_range,
    tokens_of_ranges,
)
from spark_audit.data.encoding import (
    encode_rows as encode_texts,
)
from spark_audit.data.examples import Example, Ranges
from spark_audit.data.fixed_wording import template_ranges
from spark_audit.data.occurrences import identifier_ranges
from spark_audit.data.sensitivity import stop_word_ranges
from spark_audit.data.task_wording import task_templates
from spark_audit.errors import InputError, at

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
