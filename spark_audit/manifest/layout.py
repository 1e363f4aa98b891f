"""One example as tokens: where its identifiers stand and what no control may touch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from spark_audit.data.encoding import Encoding, TokenSpan, encode, kept_range
from spark_audit.data.examples import Example, Ranges, task_templates, template_ranges
from spark_audit.data.occurrences import identifier_ranges
from spark_audit.errors import at
from spark_audit.manifest.schema import Settings
from spark_audit.stats.matching import dilate

SLICE_ROWS = 512
"""Rows that are laid out together."""


class Layout:
    """An example and its tokens.

    Attributes
    ----------
    template
        Character ranges of the task's fixed wording.
    kept
        Tokens that are scored, end exclusive.
    response_token
        First token of the response.
    spans
        The example's spans, each with its tokens; ``None`` for one without any (blank).

    Raises
    ------
    InputError
        If it has no token, or a model that reads ``max_length`` tokens no room for it.
    """

    def __init__(
        self,
        example: Example,
        encoding: Encoding,
        *,
        template: Ranges,
        max_length: int | None,
    ) -> None:
        self.example, self.encoding, self.template = example, encoding, template
        self.spans = [(s, encoding.span(s.start, s.end)) for s in example.spans]
        border = len(example.prompt)
        with at(f"example {example.id!r}"):
            self.kept = kept_range(
                encoding,
                max_length=max_length,
                response_start=border,
                spans=[(at.start, at.end) for _, at in self.spans if at],
            )
        self.response_token = encoding.reaching(border)

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
        first, end = self.encoding.leading, self.encoding.text_end
        return first < self.kept[0] or self.kept[1] < end

    def within(self, tokens: TokenSpan | None) -> bool:
        """Whether a span has tokens, and all of them are kept."""
        low, high = self.kept
        return tokens is not None and low <= tokens.start and tokens.end <= high

    def excluded(self, settings: Settings) -> np.ndarray:
        """Shape ``(T,)``, bool: tokens that no control may touch.

        Identifiers with ``settings.buffer`` tokens on either side, injected sentences,
        whose words stand in many rows, special tokens and, if asked, the template.
        """
        frames = self.encoding.mask(self.example.frames)
        mask = dilate(self.pii, settings.buffer) | frames | self.encoding.special
        return np.asarray(mask | self.fixed if settings.exclude_template else mask)


class Rows:
    """Examples as tokens, made when they are asked for: each takes 4 KB.

    Parameters
    ----------
    max_length
        Tokens that the model can read; ``None``: no limit.

    Attributes
    ----------
    templates
        The fixed wording of each task.

    Raises
    ------
    InputError
        When rows are asked for: if the tokenizer gives no offsets, or an example has
        no token or no room.
    """

    def __init__(
        self, examples: Sequence[Example], tokenizer: Any, *, max_length: int | None
    ) -> None:
        self.examples, self.templates = examples, task_templates(examples)
        self._tokenizer, self._max_length = tokenizer, max_length

    def __getitem__(self, at: int) -> Layout:
        return self._laid([self.examples[at]])[0]

    def __iter__(self) -> Iterator[Layout]:
        for _, part in self.slices():
            yield from part

    def slices(self) -> Iterator[tuple[int, list[Layout]]]:
        """Rows one behind the other, and which is the first of them."""
        for low in range(0, len(self.examples), SLICE_ROWS):
            yield low, self._laid(self.examples[low : low + SLICE_ROWS])

    def _laid(self, examples: Sequence[Example]) -> list[Layout]:
        encodings = encode(self._tokenizer, [example.text for example in examples])
        return [
            Layout(
                example,
                encoding,
                template=template_ranges(example, self.templates),
                max_length=self._max_length,
            )
            for example, encoding in zip(examples, encodings, strict=True)
        ]
