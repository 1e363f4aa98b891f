"""One example as tokens: where its identifiers stand and what no control may touch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_audit.data.encoding import Encoding, TokenSpan, encode, kept_range
from spark_audit.data.examples import Example, Ranges
from spark_audit.data.occurrences import identifier_ranges
from spark_audit.data.templates import task_templates, template_ranges
from spark_audit.errors import InputError
from spark_audit.stats.matching import dilate


@dataclass(frozen=True)
class Layout:
    """An example and its tokens.

    Attributes
    ----------
    kept
        Tokens that are scored, end exclusive.
    response_token
        First token of the response.
    spans
        Tokens of each of the example's spans; ``None`` for one without any (blank).
    template
        Character ranges of the task's fixed wording.
    pii
        Shape ``(T,)``, bool: all annotated identifiers, every repeat of them, and what
        the rules find beside them **[ours]**: an identifier that nobody annotated is
        neither a control nor plain text.
    fixed
        Shape ``(T,)``, bool: template tokens.
    """

    example: Example
    encoding: Encoding
    kept: tuple[int, int]
    response_token: int
    spans: tuple[TokenSpan | None, ...]
    template: Ranges
    pii: np.ndarray
    fixed: np.ndarray

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


def layouts(
    examples: Sequence[Example], tokenizer: Any, *, max_length: int | None
) -> list[Layout]:
    """Tokenise examples and map their spans and templates.

    Parameters
    ----------
    max_length
        Tokens that the model can read; ``None``: no limit.

    Raises
    ------
    InputError
        If the tokenizer gives no offsets, or an example has no token or no room.
    """
    templates = task_templates(examples)
    encodings = encode(tokenizer, [example.text for example in examples])
    return [
        _layout(example, encoding, template_ranges(example, templates), max_length)
        for example, encoding in zip(examples, encodings, strict=True)
    ]


def _layout(
    example: Example, encoding: Encoding, template: Ranges, max_length: int | None
) -> Layout:
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
        template=template,
        pii=encoding.mask(identifier_ranges(example)),
        fixed=encoding.mask(template),
    )
