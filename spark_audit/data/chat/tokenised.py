"""Rows that were tokenised before: what a training run read, to the last id.

``datasets.save_to_disk`` of a prepared data set, axolotl's prepared folder and
LLaMA-Factory's ``tokenized_path`` hold ``input_ids`` with ``labels`` or a mask, often
several documents packed into a row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spark_audit.data.chat.preparation import Prepared, char_ranges
from spark_audit.data.encoding import encode, offsets_of_ids
from spark_audit.data.examples import bad_field
from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.data.training_input import TrainingInput
from spark_audit.json_values import JsonObject

IGNORED = -100
"""The label of a token without loss."""
MASK_COLUMNS = ("completion_mask", "assistant_masks", "loss_mask")


def documents_of(
    row: JsonObject, tokenizer: Tokenizer
) -> Iterator[tuple[Prepared, bool]]:
    """Yield the documents that are packed into a row, in their order.

    The second value says whether the edges of what had loss are exact: an edge inside
    of a character's bytes is not.

    Raises
    ------
    InputError
        Naming the field that does not fit the others.
    """
    ids = _numbers(row, "input_ids")
    had_loss = _had_loss(row, ids)
    is_real = np.ones(len(ids), dtype=bool)
    if row.get("attention_mask") is not None:
        is_real = _numbers(row, "attention_mask", len(ids)) != 0
    for start, end in _documents(row, len(ids)):
        chosen = np.flatnonzero(is_real[start:end]) + start
        if len(chosen):
            yield _document(ids[chosen], had_loss[chosen], tokenizer)


def _had_loss(row: JsonObject, ids: np.ndarray) -> np.ndarray:
    """Shape ``(T,)``, bool."""
    if row.get("labels") is not None:
        labels = _numbers(row, "labels", len(ids))
        if ((labels != ids) & (labels != IGNORED)).any():
            what = "hold other tokens than `input_ids`"
            raise bad_field("labels", what, fix="give labels that are not shifted")
        return np.asarray(labels != IGNORED)
    had_loss = np.ones(len(ids), dtype=bool)
    for column in MASK_COLUMNS:
        if row.get(column) is not None:
            had_loss &= _numbers(row, column, len(ids)) != 0
    return had_loss


def _documents(row: JsonObject, n_tokens: int) -> list[tuple[int, int]]:
    """Where the documents of a packed row begin and end."""
    if row.get("seq_lengths") is not None:
        lengths = _numbers(row, "seq_lengths")
        if (lengths < 1).any() or lengths.sum() != n_tokens:
            raise bad_field("seq_lengths", "do not add up to the tokens")
        ends = np.cumsum(lengths)
    elif row.get("position_ids") is not None:
        positions = _numbers(row, "position_ids", n_tokens)
        starts = np.flatnonzero(positions == 0)
        ends = np.append(starts[starts > 0], n_tokens)
    else:
        ends = np.array([n_tokens])
    starts = np.concatenate([[0], ends[:-1]])
    return [*zip(starts.tolist(), ends.tolist(), strict=True)]


def _document(
    ids: np.ndarray, had_loss: np.ndarray, tokenizer: Tokenizer
) -> tuple[Prepared, bool]:
    text, offsets = offsets_of_ids(tokenizer, ids.tolist())
    supervised = char_ranges(had_loss, np.asarray(offsets))
    (encoding,) = encode(tokenizer, [text], special_tokens=False, written=True)
    is_same = encoding.ids.tolist() == ids.tolist()
    # The answer: from the last stretch with loss on.
    border = supervised[-1][0] if supervised else len(text)
    training = TrainingInput(
        "in_text",
        supervised=supervised,
        token_ids=None if is_same else tuple(ids.tolist()),
    )
    again = np.zeros(len(ids), dtype=bool)
    places = encoding.written if is_same else np.asarray(offsets)
    assert places is not None
    for low, high in supervised:
        again |= (places[:, 0] < high) & (places[:, 1] > low)
    is_exact = bool((again == had_loss)[1:].all())
    return Prepared(text[:border], text[border:], training), is_exact


def _numbers(row: JsonObject, column: str, length: int | None = None) -> np.ndarray:
    """A column of whole numbers, as many as there are tokens."""
    value = row.get(column)
    if not isinstance(value, list) or not value:
        raise bad_field(column, "is no list of whole numbers")
    if not all(type(number) in (int, bool) for number in value):
        raise bad_field(column, "is no list of whole numbers")
    if length is not None and len(value) != length:
        raise bad_field(column, "has not one number a token")
    return np.asarray(value, np.int64)
