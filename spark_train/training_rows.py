"""Rows in the form for training: tokens, masks of learned tokens, batches.

A further mask of tokens is a field of :class:`TrainRow`, made in :func:`_row` and in
:func:`_row_as_trained`; a loss that covers it needs it in :class:`Batch`, too.

In shapes, ``T`` is the tokens of a row, or of the longest row of a batch, and ``B`` the
rows of a batch. "All tokens" are those of the whole text, before it is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from spark_audit.data.encoding import Encoding, tokens_of_ranges
from spark_audit.data.encoding import encode_rows as encode_texts
from spark_audit.data.examples import Example, Ranges
from spark_audit.data.fixed_wording import template_ranges
from spark_audit.data.kept_range import kept_range
from spark_audit.data.occurrences import identifier_ranges
from spark_audit.data.sensitivity import stop_word_ranges
from spark_audit.data.task_wording import task_wordings
from spark_audit.errors import InputError, at

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TrainRow:
    """One sequence to train on.

    All masks are aligned with ``ids``. The first token of a row has no prediction, but
    a mask may be True there.

    Attributes
    ----------
    id, task
        Id and task of the example.
    ids
        Shape ``(T,)``, int32: token ids that the model reads, with EOS at the end.
    response
        Shape ``(T,)``, bool: tokens of the response, including EOS.
    pii
        Shape ``(T,)``, bool: tokens of identifiers: annotated, repeated, or found by
        rules (:func:`spark_audit.data.occurrences.identifier_ranges`).
    fixed
        Shape ``(T,)``, bool: tokens of the task's fixed wording and stop words. Where
        one is an identifier too, ``pii`` wins.
    special
        Indices into ``ids`` of tokens that are not text: special tokens in front, and
        EOS.
    cut
        Whether the beginning of the prompt was left out.
    lost
        Number of identifiers that were left out with it.
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

    ``prompt + response`` is tokenised once, as in audits, so that training masks and
    audit spans refer to the same tokens. EOS is appended to the response (and not
    doubled, because ``kept_range`` leaves out a tokenizer's own EOS).

    Parameters
    ----------
    examples
        Rows of any split. The fixed wording of a task is what most of its prompts here
        share (:func:`spark_audit.data.task_wording.task_wordings`).
    max_length
        Most tokens, including special tokens and EOS. The prompt is cut from its start,
        while the response and whole PII spans are kept. ``None``: no limit.

    Raises
    ------
    InputError
        Names the example, if its response is blank, or does not fit together with a
        part of its prompt: a model must not learn half a label.
    """
    templates = task_wordings(examples)
    encodings = encode_texts(tokenizer, examples)

    rows = []
    for example, encoding in zip(examples, encodings, strict=True):
        # A row of chat data says itself what its trainer read and learned.
        make_row = _row
        if example.training_input is not None:
            make_row = _row_as_trained
        row = make_row(
            example,
            encoding,
            template_ranges(example, templates),
            eos=tokenizer.eos_token_id,
            max_length=max_length,
        )
        rows.append(row)
    return rows


def _row(
    example: Example,
    encoding: Encoding,
    template: Ranges,
    *,
    eos: int | None,
    max_length: int | None,
) -> TrainRow:
    """Return the row of a prompt and its response, followed by EOS.

    The parameters are those of :func:`_row_as_trained`.
    """
    border = len(example.prompt)  # characters: where the response begins
    if encoding.span(border, len(example.text)) is None:
        raise InputError(
            "its response is blank: there is nothing to learn",
            where=f"example {example.id!r}",
            fix="give it one, or leave the row out",
        )

    # The response starts at the first token that reaches into it, as in generation: a
    # blank token in front of the label must be learned, too.
    is_response = (encoding.char_end > border) & ~encoding.is_special  # (all tokens,)
    identifiers = identifier_ranges(example)
    spans = _token_spans(encoding, identifiers)
    kept_start, kept_end = _kept_tokens(
        example,
        encoding,
        spans=spans,
        is_response=is_response,
        n_eos=0 if eos is None else 1,
        max_length=max_length,
    )

    # From here on, only kept tokens are considered.
    # `positions` are their indices among all tokens.
    ids, positions = encoding.model_input((kept_start, kept_end))  # (T,)
    fixed_wording = [*template, *stop_word_ranges(example.text)]
    response = is_response[positions]  # (T,)
    pii = encoding.mask(identifiers)[positions]  # (T,)
    fixed = encoding.mask(fixed_wording)[positions]  # (T,)
    special = encoding.is_special[positions]  # (T,)

    # EOS is learned as the end of the response.
    if eos is not None:
        ids = np.append(ids, np.int32(eos))
        response = np.append(response, True)
        pii = np.append(pii, False)
        fixed = np.append(fixed, False)
        special = np.append(special, True)
    return TrainRow(
        id=example.id,
        task=example.task,
        ids=ids,
        response=response,
        pii=pii,
        fixed=fixed,
        special=tuple(np.flatnonzero(special).tolist()),
        cut=kept_start > 0,
        lost=_n_outside(spans, kept_start, kept_end),
    )


def _kept_tokens(
    example: Example,
    encoding: Encoding,
    *,
    spans: Sequence[tuple[int, int]],
    is_response: np.ndarray,
    n_eos: int,
    max_length: int | None,
) -> tuple[int, int]:
    """Return the range of tokens that fit a row, with the whole response.

    Parameters
    ----------
    spans
        Token ranges of identifiers, which are kept or cut as a whole.
    is_response
        Shape ``(all tokens,)``, bool: tokens of the response.
    n_eos
        Number of EOS tokens that are added behind the response, 0 or 1.

    Raises
    ------
    InputError
        If the response does not fit together with some of the prompt.
    """
    where = f"example {example.id!r}"
    with at(where):
        kept_start, kept_end = kept_range(
            encoding,
            max_length=None if max_length is None else max_length - n_eos,
            response_start=len(example.prompt),  # characters
            spans=spans,
        )

    # All of these are indices of tokens.
    response_start = int(np.argmax(is_response))
    has_prompt = response_start > encoding.n_leading_special
    lost_all_prompt = has_prompt and kept_start >= response_start
    cut_response = kept_start > response_start or kept_end < encoding.text_token_end
    if lost_all_prompt or cut_response:
        raise InputError(
            f"its response takes {is_response.sum()} tokens, and max_length "
            f"{max_length} leaves too few for it and some prompt, without cutting an "
            "identifier",
            where=where,
            fix="give a larger max_length, or leave the row out",
        )
    return kept_start, kept_end


def _row_as_trained(
    example: Example,
    encoding: Encoding,
    template: Ranges,
    *,
    eos: int | None,
    max_length: int | None,
) -> TrainRow:
    """Return a row of chat data, whose ids are those of its text without additions.

    ``response`` are the tokens that had loss according to the row. What its trainer cut
    off is cut off here, and with a smaller ``max_length`` more of the same side.

    Parameters
    ----------
    template
        Character ranges of the task's fixed wording in the text.
    eos
        Id of EOS; None: the tokenizer has none.
    """
    training = example.training_input
    assert training is not None

    start, end = training.token_range_read(len(encoding))
    # `truncation` is the side that was cut off.
    if max_length is not None and end - start > max_length:
        if training.truncation == "end":
            end = start + max_length
        else:
            start = end - max_length
    read_tokens = slice(start, end)  # of all tokens

    has_loss = tokens_of_ranges(encoding, training.supervised)[read_tokens]  # (T,)
    # The first token of a row has no prediction, so its loss teaches nothing.
    if not has_loss[1:].any():
        raise InputError(
            "none of the tokens that are read has loss: there is nothing to learn",
            where=f"example {example.id!r}",
            fix="give a larger max_length, or leave the row out",
        )

    identifiers = identifier_ranges(example)
    fixed_wording = [*template, *stop_word_ranges(example.text)]
    special = encoding.is_special  # (all tokens,)
    # A chat template writes EOS as text.
    if eos is not None:
        special = special | (encoding.ids == eos)
    return TrainRow(
        id=example.id,
        task=example.task,
        ids=encoding.ids[read_tokens],
        response=has_loss,
        pii=encoding.mask(identifiers)[read_tokens],
        fixed=encoding.mask(fixed_wording)[read_tokens],
        special=tuple(np.flatnonzero(special[read_tokens]).tolist()),
        cut=(start, end) != (0, len(encoding)),
        lost=_n_outside(_token_spans(encoding, identifiers), start, end),
    )


def _token_spans(
    encoding: Encoding, ranges: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the token ranges of character ranges, without empty ones."""
    spans = []
    for start, end in ranges:
        span = encoding.span(start, end)
        if span is not None:
            spans.append((span.start, span.end))
    return spans


def _n_outside(spans: Sequence[tuple[int, int]], start: int, end: int) -> int:
    """Count the distinct spans that are not wholly inside the tokens ``start:end``."""
    return sum(
        span_start < start or span_end > end for span_start, span_end in set(spans)
    )


def padded(values: Sequence[np.ndarray]) -> Tensor:
    """Pad rows' values ``(T,)`` on the right with 0: ``(B, T)``, of their dtype."""
    tensors = [torch.from_numpy(array) for array in values]
    return pad_sequence(tensors, batch_first=True)


def collate(rows: Sequence[TrainRow], device: torch.device | str = "cpu") -> Batch:
    """Pad rows on the right to the longest; padding is masked, so its id is free."""
    attention = [np.ones(len(row), dtype=np.bool_) for row in rows]
    return Batch(
        ids=padded([row.ids for row in rows]).long().to(device),
        attention=padded(attention).to(device),
        response=padded([row.response for row in rows]).to(device),
        pii=padded([row.pii for row in rows]).to(device),
    )


def pieces(rows: Sequence[TrainRow], tokens: int) -> Iterator[list[TrainRow]]:
    """Yield lists of rows with similar length, the longest first.

    Parameters
    ----------
    tokens
        Most tokens of a list with its padding; a single row may have more.
    """
    longest_first = sorted(rows, key=len, reverse=True)
    start = 0
    while start < len(longest_first):
        size = max(tokens // len(longest_first[start]), 1)
        yield longest_first[start : start + size]
        start += size
