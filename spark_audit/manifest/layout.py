"""Examples as tokens, each with its identifiers and what training read of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from spark_audit.data.encoding import (
    Encoding,
    TokenSpan,
    added_bos,
    check_one_bos,
    encode_rows,
    kept_range,
    runs,
    tokens_of_ranges,
)
from spark_audit.data.examples import Example, Ranges
from spark_audit.data.fixed_wording import template_ranges
from spark_audit.data.occurrences import identifier_ranges
from spark_audit.data.task_wording import task_templates
from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.data.training_input import TrainingInput
from spark_audit.errors import at, shown
from spark_audit.manifest.schema import ManifestSettings
from spark_audit.stats.matching import dilate

SLICE_ROWS = 512
"""Rows that are laid out together."""


class ManifestLayout:
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
        fed = self._fed_when_cut(max_length)
        if fed is not None:
            self.kept = fed
        else:
            with at(f"example {example.id!r}"):
                self.kept = kept_range(
                    encoding,
                    max_length=max_length,
                    response_start=border,
                    spans=[(at.start, at.end) for _, at in self.spans if at],
                )
        self.response_token = encoding.reaching(border)

    def _fed_when_cut(self, max_length: int | None) -> tuple[int, int] | None:
        """The tokens that training read, if it cut the row; ``None`` if it did not.

        Of these a model with a shorter context reads the side that training kept.
        """
        training = self.example.training_input
        if training is None or training.max_length is None:
            return None
        start, end = training.fed(len(self.encoding))
        if (start, end) == (0, len(self.encoding)):
            return None
        end = min(end, self.encoding.text_end)
        too_many = 0 if max_length is None else max(end - start - max_length, 0)
        if training.truncation == "end":
            return start, end - too_many
        return start + too_many, end

    @property
    def training_input(self) -> TrainingInput | None:
        """What is known of the row's training."""
        return self.example.training_input

    @property
    def fed_text(self) -> tuple[int, int]:
        """The characters that training read; all where nothing is known of it."""
        training, written = self.training_input, self.encoding.written
        whole = (0, len(self.encoding))
        if training is None or training.fed(len(self.encoding)) == whole:
            return 0, len(self.example.text)
        assert written is not None
        fed = written[slice(*training.fed(len(self.encoding)))]
        return int(fed[:, 0].min()), int(fed[:, 1].max())

    def training_record(self) -> dict[str, Any]:
        """What a manifest says of the row's training; empty where it is not known."""
        training = self.example.training_input
        if training is None:
            return {}
        fed = training.fed(len(self.encoding))
        supervised = tokens_of_ranges(self.encoding, training.supervised)
        ids = training.token_ids
        record = {
            "special_tokens": training.special_tokens,
            "turns": [
                {"start": turn.start, "end": turn.end, "role": turn.role}
                for turn in training.turns
            ],
            "supervised": [list(place) for place in training.supervised],
            "supervised_tokens": [list(place) for place in runs(supervised)],
            "max_length": training.max_length,
            "truncation": training.truncation,
            "fed_tokens": list(fed),
            "fed_text": list(self.fed_text),
            "token_ids": None if ids is None else list(ids),
        }
        return {"training_input": record}

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

    def excluded(self, settings: ManifestSettings) -> np.ndarray:
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
    notes
        That texts begin with the BOS that the tokenizer adds, if any does.

    Raises
    ------
    InputError
        If a row of a known training input begins with the BOS that its tokenizer adds.
        When rows are asked for: if the tokenizer gives no offsets, or an example has no
        token or no room.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        *,
        max_length: int | None,
    ) -> None:
        for example in examples:
            training = example.training_input
            if training is not None and training.special_tokens == "added":
                with at(f"example {example.id!r}"):
                    check_one_bos(tokenizer, [example.text])
        self.notes = _notes_on_bos(tokenizer, examples)
        self.examples, self.templates = examples, task_templates(examples)
        self._tokenizer, self._max_length = tokenizer, max_length

    def __getitem__(self, at: int) -> ManifestLayout:
        return self._laid([self.examples[at]])[0]

    def __iter__(self) -> Iterator[ManifestLayout]:
        for _, part in self.slices():
            yield from part

    def slices(self) -> Iterator[tuple[int, list[ManifestLayout]]]:
        """Rows one behind the other, and which is the first of them."""
        for low in range(0, len(self.examples), SLICE_ROWS):
            yield low, self._laid(self.examples[low : low + SLICE_ROWS])

    def _laid(self, examples: Sequence[Example]) -> list[ManifestLayout]:
        encodings = encode_rows(self._tokenizer, examples)
        return [
            ManifestLayout(
                example,
                encoding,
                template=template_ranges(example, self.templates),
                max_length=self._max_length,
            )
            for example, encoding in zip(examples, encodings, strict=True)
        ]


def _notes_on_bos(tokenizer: Tokenizer, examples: Sequence[Example]) -> list[str]:
    """Return a note on plain rows that begin with the BOS that the tokenizer adds."""
    bos = added_bos(tokenizer)
    if bos is None:
        return []
    plain = [example for example in examples if example.training_input is None]
    n_rows = sum(example.text.startswith(bos) for example in plain)
    if not n_rows:
        return []
    return [
        f"{n_rows} of {len(examples)} rows begin with {shown(bos)}, which the "
        "tokenizer adds, too: the model reads two, as in a training that tokenised "
        "these texts with special tokens; if the training read one, take it out of "
        "the rows"
    ]
