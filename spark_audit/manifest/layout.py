"""Examples as tokens, each with its identifiers and what training read of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

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
from spark_audit.data.examples import Example, Ranges, Span
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
        self.example = example
        self.encoding = encoding
        self.template = template
        self.spans: list[tuple[Span, TokenSpan | None]] = []
        for span in example.spans:
            self.spans.append((span, encoding.span(span.start, span.end)))

        self.response_token = encoding.reaching(len(example.prompt))
        # Where training cut the row, what it read is known, and nothing else is scored.
        fed_tokens = self._fed_when_cut(max_length)
        self.kept = fed_tokens or self._kept_by_length(max_length)

    def _kept_by_length(self, max_length: int | None) -> tuple[int, int]:
        """Return the tokens that a model reads of the row, by its length alone."""
        token_ranges = []
        for _, tokens in self.spans:
            if tokens is not None:
                token_ranges.append((tokens.start, tokens.end))
        with at(f"example {self.example.id!r}"):
            return kept_range(
                self.encoding,
                max_length=max_length,
                response_start=len(self.example.prompt),
                spans=token_ranges,
            )

    def _fed_when_cut(self, max_length: int | None) -> tuple[int, int] | None:
        """Return the tokens that training read, if it cut the row; else ``None``.

        Of these a model with a shorter context reads the side that training kept.
        """
        training = self.example.training_input
        if training is None or training.max_length is None:
            return None

        # A row that fitted was not cut: then its length alone decides.
        start, end = training.fed(len(self.encoding))
        if (start, end) == (0, len(self.encoding)):
            return None

        # An EOS behind the text is not scored.
        end = min(end, self.encoding.text_end)
        n_too_many = 0 if max_length is None else max(end - start - max_length, 0)
        if training.truncation == "end":
            return start, end - n_too_many
        return start + n_too_many, end

    @property
    def training_input(self) -> TrainingInput | None:
        """Return what is known of the row's training."""
        return self.example.training_input

    @property
    def fed_text(self) -> tuple[int, int]:
        """Return the characters that training read; all where nothing is known."""
        n_tokens = len(self.encoding)
        training = self.training_input
        if training is None or training.fed(n_tokens) == (0, n_tokens):
            return 0, len(self.example.text)

        # It is kept of all rows whose training is known.
        assert self.encoding.written is not None
        start, end = training.fed(n_tokens)
        characters = self.encoding.written[start:end]  # (tokens, 2): from and to
        return int(characters[:, 0].min()), int(characters[:, 1].max())

    def training_record(self) -> dict[str, object]:
        """Return what a manifest says of the row's training; empty: not known."""
        training = self.example.training_input
        if training is None:
            return {}

        # Audits ask by token, and people by character: both are recorded.
        is_supervised = tokens_of_ranges(self.encoding, training.supervised)
        token_ids = training.token_ids
        record = {
            "special_tokens": training.special_tokens,
            "turns": [
                {"start": turn.start, "end": turn.end, "role": turn.role}
                for turn in training.turns
            ],
            "supervised": [list(range_) for range_ in training.supervised],
            "supervised_tokens": [list(run) for run in runs(is_supervised)],
            "max_length": training.max_length,
            "truncation": training.truncation,
            "fed_tokens": list(training.fed(len(self.encoding))),
            "fed_text": list(self.fed_text),
            "token_ids": None if token_ids is None else list(token_ids),
        }
        return {"training_input": record}

    @cached_property
    def pii(self) -> np.ndarray:
        """Tokens of annotated identifiers and of every repeat of them: ``(T,)``, bool.

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
        """Return whether text was left out."""
        start, end = self.kept
        # Leading special tokens are read in any case, an EOS behind the text never.
        return self.encoding.leading < start or end < self.encoding.text_end

    def within(self, tokens: TokenSpan | None) -> bool:
        """Return whether a span has tokens, and all of them are kept."""
        start, end = self.kept
        return tokens is not None and start <= tokens.start and tokens.end <= end

    def excluded(self, settings: ManifestSettings) -> np.ndarray:
        """Return tokens that no control may touch, shape ``(T,)``, bool.

        Identifiers with ``settings.buffer`` tokens on either side, injected sentences,
        whose words stand in many rows, special tokens and, if asked, the template.
        """
        near_pii = dilate(self.pii, settings.buffer)
        is_injected = self.encoding.mask(self.example.frames)
        is_excluded = near_pii | is_injected | self.encoding.special
        if settings.exclude_template:
            is_excluded = is_excluded | self.fixed
        return np.asarray(is_excluded)


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
        # A second BOS cannot be what a known training read; of plain rows nobody knows.
        for example in examples:
            training = example.training_input
            if training is not None and training.special_tokens == "added":
                with at(f"example {example.id!r}"):
                    check_one_bos(tokenizer, [example.text])
        self.notes = _notes_on_bos(tokenizer, examples)

        self.examples = examples
        self.templates = task_templates(examples)
        self._tokenizer = tokenizer
        self._max_length = max_length

    def __getitem__(self, number: int) -> ManifestLayout:
        return self._lay_out([self.examples[number]])[0]

    def __iter__(self) -> Iterator[ManifestLayout]:
        for _, rows in self.slices():
            yield from rows

    def slices(self) -> Iterator[tuple[int, list[ManifestLayout]]]:
        """Yield slices of rows, each behind the number of its first row."""
        for first in range(0, len(self.examples), SLICE_ROWS):
            examples = self.examples[first : first + SLICE_ROWS]
            yield first, self._lay_out(examples)

    def _lay_out(self, examples: Sequence[Example]) -> list[ManifestLayout]:
        """Return examples with their tokens, which are made together."""
        encodings = encode_rows(self._tokenizer, examples)
        layouts = []
        for example, encoding in zip(examples, encodings, strict=True):
            layout = ManifestLayout(
                example,
                encoding,
                template=template_ranges(example, self.templates),
                max_length=self._max_length,
            )
            layouts.append(layout)
        return layouts


def _notes_on_bos(tokenizer: Tokenizer, examples: Sequence[Example]) -> list[str]:
    """Return a note on plain rows that begin with the BOS that the tokenizer adds."""
    bos = added_bos(tokenizer)
    if bos is None:
        return []

    n_rows = 0
    for example in examples:
        is_plain = example.training_input is None
        n_rows += is_plain and example.text.startswith(bos)
    if not n_rows:
        return []
    return [
        f"{n_rows} of {len(examples)} rows begin with {shown(bos)}, which the "
        "tokenizer adds, too: the model reads two, as in a training that tokenised "
        "these texts with special tokens; if the training read one, take it out of "
        "the rows"
    ]
