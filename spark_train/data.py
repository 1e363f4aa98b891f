"""Examples to token rows: one joint tokenisation, the response mask, EOS, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spark_audit.examples import Example
from spark_audit.tokens import encode, kept_range


@dataclass(frozen=True)
class TrainRow:
    """One sequence to train on.

    Attributes
    ----------
    id
        The example's id.
    ids
        Shape ``(T,)``, int32: what the model reads, EOS at the end.
    response
        Shape ``(T,)``, bool: tokens of the response, EOS among them.
    """

    id: str
    ids: np.ndarray
    response: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Batch:
    """Rows padded on the right; all tensors have shape ``(B, T)``.

    ``attention`` is True on real tokens; ``response`` and ``attention`` are the two
    masks that a loss can cover (``scope``).
    """

    ids: Tensor
    attention: Tensor
    response: Tensor

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return Batch(
            self.ids.to(device), self.attention.to(device), self.response.to(device)
        )


def encode_rows(
    examples: Sequence[Example], tokenizer: Any, *, max_length: int | None = None
) -> list[TrainRow]:
    """Tokenise examples for training.

    ``prompt + response`` is tokenised once, as audits do, so that the response mask
    and an audit's spans speak of the same tokens. EOS is appended to the response
    (an EOS of the tokenizer's own is not doubled: ``kept_range`` leaves it out),
    unless the response was cut: a cut text does not end.

    Parameters
    ----------
    max_length
        Tokens that fit, EOS included; the prompt is cut from its start, the response
        and whole PII spans are kept. ``None``: no limit.
    """
    eos = tokenizer.eos_token_id
    room = None if max_length is None else max_length - (eos is not None)
    rows = []
    encodings = encode(tokenizer, [example.text for example in examples])
    for example, encoding in zip(examples, encodings, strict=True):
        spans = [encoding.span(span.start, span.end) for span in example.spans]
        kept = kept_range(
            encoding,
            max_length=room,
            response_start=len(example.prompt),
            spans=[(span.start, span.end) for span in spans if span is not None],
        )
        ids, positions = encoding.fed(kept)
        answer = encoding.mask([(len(example.prompt), len(example.text))])[positions]
        whole = bool(encoding.special[kept[1] :].all())
        if whole and eos is not None:
            ids, answer = np.append(ids, np.int32(eos)), np.append(answer, True)
        rows.append(TrainRow(example.id, ids, answer))
    return rows


def collate(rows: Sequence[TrainRow]) -> Batch:
    """Pad rows on the right to the longest; padding is masked, so its id is free."""
    shape = (len(rows), max(len(row) for row in rows))
    ids = torch.zeros(shape, dtype=torch.int64)
    attention = torch.zeros(shape, dtype=torch.bool)
    response = torch.zeros(shape, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.from_numpy(row.ids)
        attention[i, : len(row)] = True
        response[i, : len(row)] = torch.from_numpy(row.response)
    return Batch(ids, attention, response)
