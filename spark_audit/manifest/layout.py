"""Lay out examples as tokens, with their identifiers and their training input.

A layout is an example before it is scored; ``row_slices.example_record`` makes the
manifest's record of it. *Fed* is what a training run read of a row, if this is known,
and *kept* is what checkpoints read of it.
"""

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
    tokens_of_ranges,
    true_runs,
)
from spark_audit.data.examples import Example, Ranges, Span
from spark_audit.data.fixed_wording import template_ranges
from spark_audit.data.kept_range import kept_range
from spark_audit.data.occurrences import identifier_ranges
from spark_audit.data.task_wording import task_wordings
from spark_audit.data.tokenizer_type import Tokenizer
from spark_audit.data.training_input import TrainingInput
from spark_audit.errors import at, shown
from spark_audit.manifest.schema import ManifestSettings
from spark_audit.stats.matching import dilate

SLICE_ROWS = 512
"""Rows that are tokenised together."""


class ManifestLayout:
    """An example and its tokens.

    Attributes
    ----------
    example, encoding
        The example, and the full tokenisation of its text, T tokens.
    template
        Character ranges of the task's fixed wording.
    kept
        Range of the tokens that a model reads, end exclusive; special tokens in front
        of the text are read even if they lie outside of it.
    response_token
        First token of the response.
    spans
        The example's spans, each with its tokens; ``None`` for a blank span without
        tokens.

    Raises
    ------
    InputError
        If the example has no token, or no token fits into ``max_length``.
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

        self.response_token = encoding.first_token_past(len(example.prompt))
        # If training cut the row, only the part that it read is scored.
        fed_tokens = self._fed_when_cut(max_length)
        if fed_tokens is not None:
            self.kept = fed_tokens
        else:
            self.kept = self._kept_by_length(max_length)

    def _kept_by_length(self, max_length: int | None) -> tuple[int, int]:
        """Return the range of tokens that a model reads, by the row's length alone."""
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
        """Return the tokens that training read if it cut the row; else ``None``.

        Of these a model with a shorter context reads the side that training kept.
        """
        training = self.example.training_input
        if training is None or training.max_length is None:
            return None

        # Training did not cut a row that fitted, so the length alone decides.
        start, end = training.token_range_read(len(self.encoding))
        if (start, end) == (0, len(self.encoding)):
            return None

        # An EOS behind the text is not scored.
        end = min(end, self.encoding.text_token_end)
        n_too_many = 0 if max_length is None else max(end - start - max_length, 0)
        if training.truncation == "end":
            return start, end - n_too_many
        return start + n_too_many, end

    @property
    def training_input(self) -> TrainingInput | None:
        """Return the known facts of the row's training."""
        return self.example.training_input

    @property
    def fed_text(self) -> tuple[int, int]:
        """Return the characters that training read; all of them if it is unknown."""
        n_tokens = len(self.encoding)
        training = self.training_input
        if training is None or training.token_range_read(n_tokens) == (0, n_tokens):
            return 0, len(self.example.text)

        # The encoding keeps this if the row's training is known.
        assert self.encoding.full_offsets is not None
        start, end = training.token_range_read(n_tokens)
        characters = self.encoding.full_offsets[start:end]  # (tokens, 2): from and to
        return int(characters[:, 0].min()), int(characters[:, 1].max())

    def training_record(self) -> dict[str, object]:
        """Return the manifest's record of the row's training; empty if unknown."""
        training = self.example.training_input
        if training is None:
            return {}

        # Audits use tokens and people use characters, so both are recorded.
        is_supervised = tokens_of_ranges(self.encoding, training.supervised)
        token_ids = training.token_ids
        record = {
            "special_tokens": training.special_tokens,
            "turns": [
                {"start": turn.start, "end": turn.end, "role": turn.role}
                for turn in training.turns
            ],
            "supervised": [list(range_) for range_ in training.supervised],
            "supervised_tokens": [list(run) for run in true_runs(is_supervised)],
            "max_length": training.max_length,
            "truncation": training.truncation,
            "fed_tokens": list(training.token_range_read(len(self.encoding))),
            "fed_text": list(self.fed_text),
            "token_ids": None if token_ids is None else list(token_ids),
        }
        return {"training_input": record}

    @cached_property
    def is_pii(self) -> np.ndarray:
        """Return a mask of tokens that belong to identifiers, shape ``(T,)``, bool.

        It covers annotated identifiers, every repeat of them, and further matches of
        the rules **[ours]**: an identifier without an annotation is neither a control
        nor plain text.
        """
        return self.encoding.mask(identifier_ranges(self.example))

    @cached_property
    def is_template(self) -> np.ndarray:
        """Return a mask of template tokens, shape ``(T,)``, bool."""
        return self.encoding.mask(self.template)

    @property
    def was_cut(self) -> bool:
        """Return whether models do not read some of the text."""
        start, end = self.kept
        # Leading special tokens are always read, and an EOS behind the text never.
        return (
            self.encoding.n_leading_special < start
            or end < self.encoding.text_token_end
        )

    def keeps(self, tokens: TokenSpan | None) -> bool:
        """Return whether a span has tokens, and models read all of them."""
        start, end = self.kept
        return tokens is not None and start <= tokens.start and tokens.end <= end

    def excluded(self, settings: ManifestSettings) -> np.ndarray:
        """Return a mask of tokens that no control may use, shape ``(T,)``, bool.

        They are identifiers with ``settings.buffer`` tokens on each side, injected
        sentences (whose words stand in many rows), special tokens and, if the settings
        say so, the template.
        """
        near_pii = dilate(self.is_pii, settings.buffer)
        is_injected = self.encoding.mask(self.example.frames)
        is_excluded = near_pii | is_injected | self.encoding.is_special
        if settings.exclude_template:
            is_excluded = is_excluded | self.is_template
        return np.asarray(is_excluded)


class Rows:
    """Examples as tokens, tokenised on demand, because each takes 4 KB.

    Parameters
    ----------
    max_length
        Tokens that the model can read; ``None``: no limit.

    Attributes
    ----------
    templates
        The fixed wording of each task.
    notes
        A note for readers if texts begin with the BOS that the tokenizer adds.

    Raises
    ------
    InputError
        If a row with a known training input begins with the BOS that its tokenizer
        adds. When rows are requested: if the tokenizer gives no offsets, or an example
        has no token or no room.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        *,
        max_length: int | None,
    ) -> None:
        # A known training cannot have read a second BOS; for plain rows this is
        # unknown.
        for example in examples:
            training = example.training_input
            if training is not None and training.special_tokens == "added":
                with at(f"example {example.id!r}"):
                    check_one_bos(tokenizer, [example.text])
        self.notes = _notes_on_bos(tokenizer, examples)

        self.examples = examples
        self.templates = task_wordings(examples)
        self._tokenizer = tokenizer
        self._max_length = max_length

    def __getitem__(self, number: int) -> ManifestLayout:
        return self._lay_out([self.examples[number]])[0]

    def __iter__(self) -> Iterator[ManifestLayout]:
        for _, rows in self.slices():
            yield from rows

    def slices(self) -> Iterator[tuple[int, list[ManifestLayout]]]:
        """Yield slices of :data:`SLICE_ROWS` rows, each with its first row's number."""
        for first in range(0, len(self.examples), SLICE_ROWS):
            examples = self.examples[first : first + SLICE_ROWS]
            yield first, self._lay_out(examples)

    def _lay_out(self, examples: Sequence[Example]) -> list[ManifestLayout]:
        """Return examples with their tokens, tokenised together."""
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
    """Return a note on plain rows that begin with the BOS that the tokenizer adds.

    A plain row is one whose training input is unknown.
    """
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
