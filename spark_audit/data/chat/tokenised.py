"""Read rows that are already tokenised: the exact ids that a training run read.

``datasets.save_to_disk`` of a prepared data set, axolotl's prepared folder and
LLaMA-Factory's ``tokenized_path`` hold ``input_ids`` with ``labels`` or a mask, often
several documents packed into a row. Their text is decoded from the ids.

``T`` is the number of tokens of a row, and of a document in :func:`_document` and
below. A further mask column is added to :data:`MASK_COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from spark_audit.data.chat.preparation import Prepared, char_ranges
from spark_audit.data.encoding import encode, offsets_of_ids
from spark_audit.data.examples import Ranges, bad_field
from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.data.training_input import TrainingInput
from spark_audit.json_values import JsonObject

IGNORED = -100
"""The label of a token without loss."""
MASK_COLUMNS = ("completion_mask", "assistant_masks", "loss_mask")
"""Columns of 0 and 1 that mark tokens with loss, for rows without labels."""

_NUMBERS_FIX = "give one number per token, as the trainer read them"


class TokenisedDocument(NamedTuple):
    """A document of a row that is already tokenised.

    ``is_exact``: the character ranges with loss give the tokens with loss again. They
    do not where loss begins or ends between two tokens that share a character.
    """

    prepared: Prepared
    is_exact: bool


def documents_of(row: JsonObject, tokenizer: Tokenizer) -> Iterator[TokenisedDocument]:
    """Yield the documents that are packed into a row, in order.

    Raises
    ------
    InputError
        Names the field that does not fit the others.
    """
    ids = _numbers(row, "input_ids")  # (T,)
    had_loss = _had_loss(row, ids)  # (T,), bool

    # Padding belongs to no document.
    is_real = np.ones(len(ids), dtype=bool)
    if row.get("attention_mask") is not None:
        is_real = _numbers(row, "attention_mask", len(ids)) != 0

    for start, end in _document_ranges(row, len(ids)):
        tokens = start + np.flatnonzero(is_real[start:end])  # indices in the row
        if len(tokens):
            yield _document(ids[tokens], had_loss[tokens], tokenizer)


def _had_loss(row: JsonObject, ids: np.ndarray) -> np.ndarray:
    """Return which tokens of a row had loss, shape ``(T,)``, bool.

    With ``labels`` these decide alone. Without labels it is the tokens that every mask
    column of the row marks, and all tokens if the row has no such column.
    """
    if row.get("labels") is not None:
        labels = _numbers(row, "labels", len(ids))
        had_loss = np.asarray(labels != IGNORED)
        # A model shifts labels itself, so the label of a token is its own id. Labels
        # that are shifted already would mark each token's neighbour.
        if ((labels != ids) & had_loss).any():
            raise bad_field(
                "labels",
                "hold other tokens than `input_ids`",
                fix="give labels that are not shifted",
            )
        return had_loss

    had_loss = np.ones(len(ids), dtype=bool)
    for column in MASK_COLUMNS:
        if row.get(column) is not None:
            had_loss &= _numbers(row, column, len(ids)) != 0
    return had_loss


def _document_ranges(row: JsonObject, n_tokens: int) -> list[tuple[int, int]]:
    """Return the token range of each document of a packed row, end exclusive.

    A row that does not say how it was packed is one document.
    """
    if row.get("seq_lengths") is not None:
        lengths = _numbers(row, "seq_lengths")
        if (lengths < 1).any() or lengths.sum() != n_tokens:
            raise bad_field(
                "seq_lengths",
                "do not add up to the tokens",
                fix="give the tokens of each document, or leave the column out",
            )
        ends = np.cumsum(lengths)
    elif row.get("position_ids") is not None:
        # Positions start again at 0 in each document.
        positions = _numbers(row, "position_ids", n_tokens)
        first_tokens = np.flatnonzero(positions == 0)
        ends = np.append(first_tokens[first_tokens > 0], n_tokens)
    else:
        ends = np.array([n_tokens])

    starts = np.concatenate([[0], ends[:-1]])
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _document(
    ids: np.ndarray, had_loss: np.ndarray, tokenizer: Tokenizer
) -> TokenisedDocument:
    """Return a document's text and training input, from its ids and their loss.

    Parameters
    ----------
    ids, had_loss
        The document's tokens, shape ``(T,)`` each.
    """
    text, offset_pairs = offsets_of_ids(tokenizer, ids.tolist())
    offsets = np.asarray(offset_pairs)  # (T, 2), characters
    supervised = char_ranges(had_loss, offsets)

    # Audits tokenise the text. Only if that gives other ids, the row's own are kept,
    # and audits map characters by them.
    (encoding,) = encode(
        tokenizer, [text], special_tokens=False, keep_full_offsets=True
    )
    gives_same_ids = encoding.ids.tolist() == ids.tolist()
    audit_offsets = offsets  # (T, 2), characters with white space
    if gives_same_ids:
        assert encoding.full_offsets is not None
        audit_offsets = encoding.full_offsets

    # The response is the last stretch with loss and what follows it; without loss it
    # is empty.
    response_start = supervised[-1][0] if supervised else len(text)  # characters
    training = TrainingInput(
        special_tokens="in_text",
        supervised=supervised,
        token_ids=None if gives_same_ids else tuple(ids.tolist()),
    )
    prepared = Prepared(
        prompt=text[:response_start],
        response=text[response_start:],
        training_input=training,
    )
    return TokenisedDocument(
        prepared=prepared,
        is_exact=_is_exact(supervised, audit_offsets, had_loss),
    )


def _is_exact(supervised: Ranges, offsets: np.ndarray, had_loss: np.ndarray) -> bool:
    """Return whether mapping ``supervised`` back to tokens gives ``had_loss`` again.

    Parameters
    ----------
    supervised
        Character ranges with loss.
    offsets
        Shape ``(T, 2)``: characters of each token.
    had_loss
        Shape ``(T,)``, bool. The first token has no prediction and is left out.
    """
    is_supervised = np.zeros(len(had_loss), dtype=bool)
    for start, end in supervised:
        is_supervised |= (offsets[:, 0] < end) & (offsets[:, 1] > start)
    return bool((is_supervised == had_loss)[1:].all())


def _numbers(row: JsonObject, column: str, length: int | None = None) -> np.ndarray:
    """Return a column of whole numbers; refuse any length but ``length``, if given."""
    value = row.get(column)
    if not isinstance(value, list) or not value:
        raise bad_field(column, "is not a list of whole numbers", fix=_NUMBERS_FIX)
    if not all(type(number) in (int, bool) for number in value):
        raise bad_field(column, "is not a list of whole numbers", fix=_NUMBERS_FIX)
    if length is not None and len(value) != length:
        raise bad_field(column, "does not have one number per token", fix=_NUMBERS_FIX)
    return np.asarray(value, np.int64)
