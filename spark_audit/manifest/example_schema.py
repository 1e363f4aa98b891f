"""The schema of a row of text in a manifest, with its identifiers and its training.

:mod:`spark_audit.manifest.schema` has the other parts of a manifest, and says what
characters, tokens and ranges are, and where a new field goes.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from spark_audit.data.training_input import (
    SpecialTokens,
    Supervision,
    Truncation,
    answer_end,
    supervision_of,
)
from spark_audit.manifest.field_types import (
    MAX_INTEGER,
    MicroNats,
    Name,
    Whole,
    check_inside,
)
from spark_audit.stats.matching import MICRO_NATS_PER_NAT

Split = Literal["train", "test"]

TokenRange = tuple[int, int]
"""First token, and the token behind the last one."""


class ManifestPart(BaseModel):
    """Base of the manifest's parts: unknown fields are kept, and nothing is coerced.

    Its errors do not show their input, which may be text of a row.
    """

    model_config = ConfigDict(
        frozen=True, extra="allow", strict=True, hide_input_in_errors=True
    )


class ManifestSpan(ManifestPart):
    """An annotated identifier.

    ``start`` and ``end`` are characters of the row's text. Tokens are null if the
    identifier was cut off or has no token of its own. ``partial`` says that a token at
    its edge reaches beyond it. ``part`` names the part of a canary; null: the
    identifier does not belong to one.
    """

    start: Whole
    end: Whole
    type: Name
    origin: Literal["natural", "injected"]
    part: str | None
    token_start: Whole | None
    token_end: Whole | None
    partial: bool

    @model_validator(mode="after")
    def _check_tokens(self) -> ManifestSpan:
        if (self.token_start is None) != (self.token_end is None):
            raise ValueError("has one end of its tokens without the other")
        return self

    @property
    def tokens(self) -> TokenRange | None:
        """Return its tokens; ``None`` if it was cut off or has no token of its own."""
        # Either both are set, or neither.
        if self.token_start is None or self.token_end is None:
            return None
        return self.token_start, self.token_end


class ManifestTurn(ManifestPart):
    """The content of one message, as characters of the row's text."""

    start: Whole
    end: Whole
    role: str


class ManifestTrainingInput(ManifestPart):
    """The part of an example that a training run read, and the part with loss.

    ``supervised`` are character ranges, and ``supervised_tokens`` token ranges of the
    whole row. ``fed_tokens`` is the range that the trainer read, and ``fed_text`` its
    characters. ``token_ids`` are set only if the tokenizer would give others for the
    text.
    """

    special_tokens: SpecialTokens
    turns: list[ManifestTurn]
    supervised: list[tuple[Whole, Whole]]
    supervised_tokens: list[TokenRange]
    max_length: Whole | None
    truncation: Truncation
    fed_tokens: TokenRange
    fed_text: tuple[Whole, Whole]
    token_ids: list[Whole] | None = Field(repr=False)

    def token_range_read(self, n_tokens: int) -> TokenRange:
        """Return the tokens that the trainer read."""
        return self.fed_tokens


class ManifestExample(ManifestPart):
    """An example with its reference scores.

    ``cluster`` names the rows that count as one unit in intervals
    (:mod:`spark_audit.manifest.clusters`). ``kept`` is the range of tokens that every
    checkpoint reads, and ``response_token`` the first token of the response.
    ``template`` holds the character ranges of the task's fixed wording.

    ``reference_unll`` holds micro-nats per token of the full tokenisation, and null for
    tokens without a score. ``excluded`` holds the token ranges that no control may use.
    ``classes`` has one letter per token, for text of similar form (see
    :func:`~spark_audit.manifest.token_corpus.token_classes`). ``low`` holds the
    tokens of low sensitivity. All of these are empty in a redacted manifest.
    ``training_input`` is known for chat data and for rows that were already tokenised.
    """

    id: Name
    task: Name
    source_id: Name
    cluster: Name
    split: Split
    prompt: str = Field(repr=False)
    response: str = Field(repr=False)
    spans: list[ManifestSpan]
    canary_id: Name | None
    template: list[TokenRange] = Field(repr=False)
    kept: TokenRange
    response_token: Whole
    reference_unll: list[MicroNats | None] = Field(repr=False)
    excluded: list[TokenRange] = Field(repr=False)
    classes: str = Field(repr=False)
    low: list[Whole] = Field(repr=False)
    training_input: ManifestTrainingInput | None = Field(
        default=None, repr=False, exclude_if=lambda v: v is None
    )

    @model_validator(mode="after")
    def _check_ranges(self) -> ManifestExample:
        """Refuse a range outside of the text or of the tokenisation."""
        # A redacted manifest has neither text nor scores, so no range can be refused.
        # The check of the whole manifest decides whether they may be missing (see
        # check_joined).
        n_characters = len(self.text) or MAX_INTEGER
        n_tokens = len(self.reference_unll) or MAX_INTEGER

        if len(self.classes) != len(self.reference_unll):
            raise ValueError("classes and reference_unll are of different lengths")
        if self.response_token > n_tokens:
            raise ValueError("response_token lies outside of the tokens")
        if max(self.low, default=0) >= n_tokens or len(set(self.low)) < len(self.low):
            raise ValueError("low holds a token twice, or one outside of the tokens")
        check_inside("kept", [self.kept], n_tokens)
        check_inside("excluded", self.excluded, n_tokens)
        check_inside("template", self.template, n_characters)

        self._check_spans(n_characters, n_tokens)
        if self.training_input is not None:
            self._check_training_input(self.training_input, n_characters, n_tokens)
        return self

    def _check_spans(self, n_characters: int, n_tokens: int) -> None:
        """Refuse spans that overlap or lie outside of the text."""
        ordered = sorted((span.start, span.end) for span in self.spans)
        check_inside("spans", ordered, n_characters)
        for (_, end), (next_start, _) in pairwise(ordered):
            if end > next_start:
                raise ValueError("spans overlap")

        tokens = [span.tokens for span in self.spans if span.tokens is not None]
        check_inside("spans, tokens", tokens, n_tokens)

    def _check_training_input(
        self, training: ManifestTrainingInput, n_characters: int, n_tokens: int
    ) -> None:
        """Refuse a training input that cannot belong to the text."""
        turns = [(turn.start, turn.end) for turn in training.turns]
        check_inside("training_input.turns", turns, n_characters)
        check_inside("training_input.supervised", training.supervised, n_characters)
        check_inside(
            "training_input.supervised_tokens", training.supervised_tokens, n_tokens
        )
        check_inside("training_input.fed_tokens", [training.fed_tokens], n_tokens)
        if training.token_ids is not None and len(training.token_ids) != n_tokens:
            raise ValueError("training_input.token_ids: not one id per token")

    @property
    def answer(self) -> str:
        """Return the response without text that a chat template writes behind it."""
        turns: list[tuple[int, int]] = []
        if self.training_input is not None:
            turns = [(turn.start, turn.end) for turn in self.training_input.turns]
        response_start = len(self.prompt)
        response_end = answer_end(turns, response_start, len(self.text))
        return self.text[response_start:response_end]

    def supervision_of(self, start: int, end: int) -> Supervision | None:
        """Return how training used characters ``start:end``; ``None`` if unknown.

        See :func:`spark_audit.data.training_input.supervision_of`.
        """
        training = self.training_input
        if training is None:
            return None
        return supervision_of(
            start, end, supervised=training.supervised, fed_text=training.fed_text
        )

    @property
    def had_loss(self) -> np.ndarray | None:
        """Return a mask of tokens with loss, shape ``(T,)`` bool; ``None`` if unknown.

        These tokens are supervised and were not cut off. The first token that training
        read may be True, although it has no prediction.
        """
        if self.training_input is None:
            return None

        has_loss = np.zeros(len(self.reference_unll), dtype=bool)
        for start, end in self.training_input.supervised_tokens:
            has_loss[start:end] = True

        # Tokens that were cut off were not read, even if they are supervised.
        fed_start, fed_end = self.training_input.fed_tokens
        has_loss[:fed_start] = False
        has_loss[fed_end:] = False
        return has_loss

    @property
    def text(self) -> str:
        """Return prompt and response as one text, in the form that was tokenised."""
        return self.prompt + self.response

    @cached_property
    def reference_micronats(self) -> np.ndarray:
        """Return ``reference_unll`` as an array, shape ``(T,)`` int64, read-only.

        -1: the token has no score.
        """
        with_nan = np.array(self.reference_unll, np.float64)  # NaN for null
        micronats = np.nan_to_num(with_nan, nan=-1).astype(np.int64)
        # All callers share the array, so nobody may change it.
        micronats.flags.writeable = False
        return micronats

    @property
    def reference_nll(self) -> np.ndarray:
        """Return the NLL by the reference model, shape ``(T,)`` float64, in nats.

        It is 0 where nothing was scored, so that sums over tokens leave these out.
        """
        return np.asarray(np.maximum(self.reference_micronats, 0) / MICRO_NATS_PER_NAT)

    @property
    def scored(self) -> np.ndarray:
        """Return a mask of tokens that every checkpoint predicts, shape ``(T,)`` bool.

        It covers the kept range without the first token that a model reads. If a text
        was cut, special tokens stay in front of it, so the first kept token is scored,
        too.
        """
        return np.asarray(self.reference_micronats >= 0)

    @property
    def eligible(self) -> np.ndarray:
        """Return a mask of scored tokens that a control may use, ``(T,)`` bool."""
        is_eligible = self.reference_micronats >= 0
        for start, end in self.excluded:
            is_eligible[start:end] = False
        return is_eligible

    @cached_property
    def identifiers(self) -> list[tuple[ManifestSpan, TokenRange]]:
        """Return the annotated spans whose tokens were all scored, with their tokens.

        Parts of canaries are among them.
        """
        # A span that was cut in part has no score of its own.
        is_scored = self.scored
        identifiers = []
        for span in self.spans:
            if span.tokens is None:
                continue
            start, end = span.tokens
            if is_scored[start:end].all():
                identifiers.append((span, span.tokens))
        return identifiers

    def identifier_tokens(self, kind: str | None = None) -> np.ndarray:
        """Return the tokens of :attr:`identifiers`, shape ``(n,)``, rising, each once.

        Parameters
        ----------
        kind
            Type of the identifiers; ``None``: all types.
        """
        is_identifier = np.zeros(len(self.reference_micronats), dtype=bool)
        for span, (start, end) in self.identifiers:
            if kind in (None, span.type):
                is_identifier[start:end] = True
        return np.flatnonzero(is_identifier)
