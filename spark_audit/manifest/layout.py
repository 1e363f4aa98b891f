"""One example as tokens: where its identifiers stand and what no control may touch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

from spark_audit.data.encoding import Encoding, TokenSpan, encode, kept_range
from spark_audit.data.examples import Example, Ranges
from spark_audit.data.occurrences import identifier_ranges
from spark_audit.data.templates import task_templates, template_ranges
from spark_audit.errors import InputError
from spark_audit.manifest.packed_lists import Indexed, Scratch
from spark_audit.scoring.table import COLUMNS, TokenTable
from spark_audit.stats.matching import dilate

NAMES = ("nll", "mean_logp", "rank_lo")
"""What matching and its balance ask for; a token that was not scored has no NLL."""
ROW = np.dtype([(name, COLUMNS[name]) for name in NAMES])


class Reference:
    """Scores of the tokens of some rows.

    Parameters
    ----------
    ids
        The rows' ids, rising.
    lengths
        Tokens of each row, shape ``(n,)``.
    """

    def __init__(self, ids: Sequence[str], lengths: np.ndarray) -> None:
        self._ids = ids
        self._first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._file = Scratch()

    def put(self, row: int, table: TokenTable, key: str) -> None:
        """Take the scores of a row, which a table has under a key."""
        found = np.zeros(int(self._first[row + 1] - self._first[row]), ROW)
        found["nll"] = np.nan
        own = table.rows(key)
        for name in NAMES:
            found[name][table.position[own]] = table.columns[name][own]
        self._file.write(int(self._first[row]) * ROW.itemsize, found.tobytes())

    def table(self, low: int, high: int) -> TokenTable:
        """The scores of the rows ``low:high``."""
        start, end = self._first[[low, high]].tolist()
        size = ROW.itemsize
        raw = self._file.read(start * size, (end - start) * size)
        rows = np.frombuffer(raw, ROW)
        scored = ~np.isnan(rows["nll"])
        edges = self._first[low : high + 1] - start
        offsets = np.concatenate([[0], np.cumsum(scored)])[edges]
        position = np.arange(end - start) - np.repeat(edges[:-1], np.diff(edges))
        return TokenTable(
            tuple(self._ids[low:high]),
            offsets,
            position[scored].astype(np.int32),
            {name: rows[name][scored] for name in NAMES},
        )


SLICE_ROWS = 512
"""Rows that are laid out together."""


@dataclass(frozen=True)
class Outline:
    """An example before it is tokenised.

    Attributes
    ----------
    template
        Character ranges of the task's fixed wording.
    """

    example: Example
    template: Ranges


@dataclass(frozen=True)
class Layout(Outline):
    """An example and its tokens.

    Attributes
    ----------
    kept
        Tokens that are scored, end exclusive.
    response_token
        First token of the response.
    spans
        Tokens of each of the example's spans; ``None`` for one without any (blank).
    """

    encoding: Encoding
    kept: tuple[int, int]
    response_token: int
    spans: tuple[TokenSpan | None, ...]

    @cached_property
    def pii(self) -> np.ndarray:
        """Shape ``(T,)``, bool: all annotated identifiers, every repeat of them.

        And what the rules find beside them **[ours]**: an identifier that nobody
        annotated is neither a control nor plain text.
        """
        return self.encoding.mask(identifier_ranges(self.example))

    @cached_property
    def fixed(self) -> np.ndarray:
        """Shape ``(T,)``, bool: template tokens."""
        return self.encoding.mask(self.template)

    @property
    def was_cut(self) -> bool:
        """Whether text was left out."""
        text = np.flatnonzero(~self.encoding.special)
        return bool(len(text)) and not (
            self.kept[0] <= text[0] and text[-1] < self.kept[1]
        )

    def within(self, span: TokenSpan) -> bool:
        """Whether all of a span is kept."""
        return self.kept[0] <= span.start and span.end <= self.kept[1]

    def excluded(self, *, buffer: int, exclude_template: bool) -> np.ndarray:
        """Shape ``(T,)``, bool: tokens that no control may touch.

        Identifiers with ``buffer`` tokens on either side, injected sentences, whose
        words stand in many rows, special tokens and, if asked, the template.
        """
        frames = self.encoding.mask(self.example.frames)
        mask = dilate(self.pii, buffer) | frames | self.encoding.special
        return np.asarray(mask | self.fixed if exclude_template else mask)


class Outlines(Indexed[Outline]):
    """Examples with their templates, made when they are asked for."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples
        self._templates = task_templates(examples)

    def _at(self, at: int) -> Outline:
        return self._outline(self._examples[at])

    def __iter__(self) -> Iterator[Outline]:
        return map(self._outline, self._examples)

    def __len__(self) -> int:
        return len(self._examples)

    def _outline(self, example: Example) -> Outline:
        return Outline(example, template_ranges(example, self._templates))


class Rows(Sequence[Layout]):
    """Examples as tokens, made when they are asked for: each takes 4 KB.

    Parameters
    ----------
    max_length
        Tokens that the model can read; ``None``: no limit.

    Raises
    ------
    InputError
        When rows are asked for: if the tokenizer gives no offsets, or an example has
        no token or no room.
    """

    def __init__(
        self, examples: Sequence[Example], tokenizer: Any, *, max_length: int | None
    ) -> None:
        self.outlines = Outlines(examples)
        self._tokenizer, self._max_length = tokenizer, max_length

    @overload
    def __getitem__(self, at: int) -> Layout: ...
    @overload
    def __getitem__(self, at: slice) -> list[Layout]: ...
    def __getitem__(self, at: int | slice) -> Layout | list[Layout]:
        if not isinstance(at, slice):
            (one,) = self._laid([self.outlines[at]])
            return one
        return self._laid(self.outlines[at])

    def __len__(self) -> int:
        return len(self.outlines)

    def __iter__(self) -> Iterator[Layout]:
        for _, part in self.slices():
            yield from part

    def slices(self) -> Iterator[tuple[int, list[Layout]]]:
        """Rows one behind the other, and which is the first of them."""
        for low in range(0, len(self), SLICE_ROWS):
            yield low, self[low : low + SLICE_ROWS]

    def _laid(self, rows: list[Outline]) -> list[Layout]:
        encodings = encode(self._tokenizer, [row.example.text for row in rows])
        return [
            _layout(row, encoding, self._max_length)
            for row, encoding in zip(rows, encodings, strict=True)
        ]


def layouts(
    examples: Sequence[Example], tokenizer: Any, *, max_length: int | None
) -> list[Layout]:
    """All of :class:`Rows` at once."""
    return Rows(examples, tokenizer, max_length=max_length)[:]


def _layout(row: Outline, encoding: Encoding, max_length: int | None) -> Layout:
    example = row.example
    spans = tuple(encoding.span(span.start, span.end) for span in example.spans)
    border = len(example.prompt)
    answer = np.flatnonzero((encoding.end > border) & ~encoding.special)
    try:
        kept = kept_range(
            encoding,
            max_length=max_length,
            response_start=border,
            spans=[(span.start, span.end) for span in spans if span is not None],
        )
    except InputError as error:
        raise InputError(
            error.what, where=f"example {example.id!r}", fix=error.fix
        ) from error
    return Layout(
        example=example,
        encoding=encoding,
        kept=kept,
        response_token=int(answer[0]) if len(answer) else kept[1],
        spans=spans,
        template=row.template,
    )
