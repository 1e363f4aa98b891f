"""The manifest: everything an audit needs besides the checkpoint, built once.

It is one JSON file. Its ``digest`` is the SHA-256 of its canonical JSON without
``digest`` and ``name``; a file that was changed, or that does not fit a checkpoint, is
refused with what differs. The digest is no signature: whoever writes a file can make
it, so the content is validated when a file is read, and nothing behind checks again.

Its long lists are packed (:mod:`spark_audit.manifest.packed_lists`).
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)

from spark_audit.data.training_input import (
    SpecialTokens,
    Supervision,
    Truncation,
    answer_end,
    supervision_of,
)
from spark_audit.manifest.packed_lists import Packed

Preset = Literal["robust", "paper"]

Split = Literal["train", "test"]

TokenRange = tuple[int, int]


def _plain(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("is blank or holds control characters")
    return text


def _once(values: list[str]) -> list[str]:
    if len(set(values)) < len(values):
        raise ValueError("holds something twice")
    return values


MAX_INTEGER = 10**9
"""No count, position or dose is larger: it is beyond any text or vocabulary."""

Name = Annotated[str, Field(max_length=1000), AfterValidator(_plain)]
"""What names files, rows of tables and lines of a terminal."""

Distinct = Annotated[list[str], AfterValidator(_once)]

MOST_NATS = 1e4
"""No token is this unlikely to a model whose logits are finite."""

Whole = Annotated[int, Field(ge=0, le=MAX_INTEGER)]

Nats = Annotated[float, Field(ge=0, le=MOST_NATS, allow_inf_nan=False)]

MicroNats = Annotated[int, Field(ge=0, le=round(1e6 * MOST_NATS))]

Figure = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def check_inside(field: str, ranges: Collection[tuple[int, int]], length: int) -> None:
    """Refuse a range that is empty, or outside of what is that long."""
    for start, end in ranges:
        if not 0 <= start < end <= length:
            raise ValueError(f"{field}: {start}:{end} is empty or outside 0:{length}")


class _Part(BaseModel):
    """Base of the manifest's parts: unknown fields are kept, nothing is coerced."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class ReferenceModel(_Part):
    """The model that difficulty was measured on.

    ``shape`` holds sizes of its configuration, such as ``hidden_size``.
    """

    name: str
    weights_sha256: str
    tokenizer_sha256: str
    model_id: str
    architecture: str
    dtype: str
    vocab_size: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    usable_vocab: Whole
    max_positions: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None
    shape: dict[str, Whole] | None = Field(default=None, exclude_if=lambda v: v is None)


class ManifestSettings(_Part):
    """What decided the pairs; audits take their preset from here.

    ``buffer`` tokens beside an identifier are no part of a control, and with
    ``exclude_template`` the tasks' fixed wording is not. ``canary_contexts`` rows, the
    first by id, are what a canary is ranked in; null: all. A token is of low
    sensitivity up to the Score ``tau``, and ``alpha`` weights its two terms (see
    :mod:`spark_audit.data.occurrences`).
    """

    preset: Preset
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    caliper: Nats
    distance: Literal["mean", "profile"]
    buffer: Whole
    controls: Literal["any", "before"]
    exclude_template: bool
    max_length: Annotated[int, Field(ge=2, le=MAX_INTEGER)] | None
    tau: Share
    alpha: Share
    canary_contexts: Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None
    n_candidates: Whole


class ManifestSpan(_Part):
    """An annotated identifier.

    Tokens are null when it was cut off or has none of its own; ``partial``: a token at
    its edge reaches past it.
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
    def _whole(self) -> ManifestSpan:
        if (self.token_start is None) != (self.token_end is None):
            raise ValueError("has one end of its tokens without the other")
        return self

    @property
    def tokens(self) -> TokenRange | None:
        """Its tokens; ``None`` when it was cut off or has none of its own."""
        if self.token_start is None or self.token_end is None:
            return None
        return self.token_start, self.token_end


class ManifestTurn(_Part):
    """The content of one message: characters of the row's text."""

    start: Whole
    end: Whole
    role: str


class ManifestTrainingInput(_Part):
    """What a training run read of an example, and which part of it had loss.

    ``supervised`` are characters, ``supervised_tokens`` tokens of the whole row;
    ``fed_tokens`` are those that the trainer read, ``fed_text`` their characters.
    ``token_ids`` are set where the text would be tokenised otherwise.
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

    def fed(self, n_tokens: int) -> TokenRange:
        """Return the tokens that the trainer read."""
        return self.fed_tokens


class ManifestExample(_Part):
    """One example with its reference scores.

    ``reference_unll`` holds micro-nats per token of the full tokenisation, null where
    nothing was scored; ``excluded`` the token ranges that no control may touch;
    ``classes`` one letter per token (``d`` has a digit, ``A`` has a capital, ``a``
    other letters, ``-`` neither) for text of similar form; ``low`` the tokens of low
    sensitivity. These are empty where the manifest was redacted. ``training_input`` is
    known of chat data and of rows that were tokenised before.
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
    def _fitting(self) -> ManifestExample:
        """Every place lies in the text, and its tokens in the tokenisation.

        A redacted manifest has neither; the whole says when that may be.
        """
        text = len(self.text) or MAX_INTEGER
        tokens = len(self.reference_unll) or MAX_INTEGER
        if len(self.classes) != len(self.reference_unll):
            raise ValueError("classes and reference_unll are of different lengths")
        if self.response_token > tokens:
            raise ValueError("response_token lies outside of the tokens")
        if max(self.low, default=0) >= tokens or len(set(self.low)) < len(self.low):
            raise ValueError("low holds a token twice, or one outside of the tokens")
        check_inside("kept", [self.kept], tokens)
        check_inside("excluded", self.excluded, tokens)
        check_inside("template", self.template, text)
        ordered = sorted((span.start, span.end) for span in self.spans)
        check_inside("spans", ordered, text)
        if any(low[1] > high[0] for low, high in pairwise(ordered)):
            raise ValueError("spans overlap")
        own = [span.tokens for span in self.spans if span.tokens is not None]
        check_inside("spans, tokens", own, tokens)
        if self.training_input is not None:
            self._check_training_input(self.training_input, text, tokens)
        return self

    def _check_training_input(
        self, training: ManifestTrainingInput, text: int, tokens: int
    ) -> None:
        turns = [(turn.start, turn.end) for turn in training.turns]
        check_inside("training_input.turns", turns, text)
        check_inside("training_input.supervised", training.supervised, text)
        check_inside(
            "training_input.supervised_tokens", training.supervised_tokens, tokens
        )
        check_inside("training_input.fed_tokens", [training.fed_tokens], tokens)
        if training.token_ids is not None and len(training.token_ids) != tokens:
            raise ValueError("training_input.token_ids: not one id a token")

    @property
    def answer(self) -> str:
        """The response without what a chat template writes behind it."""
        turns: list[tuple[int, int]] = []
        if self.training_input is not None:
            turns = [(turn.start, turn.end) for turn in self.training_input.turns]
        border = len(self.prompt)
        return self.text[border : answer_end(turns, border, len(self.text))]

    def supervision_of(self, start: int, end: int) -> Supervision | None:
        """What training did with characters ``start:end``; ``None``: it is not known.

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
        """Shape ``(T,)`` bool: tokens that training had loss on; ``None``: not known.

        They are supervised and were not cut off. The first token that training read
        has no prediction; it may be True all the same.
        """
        if self.training_input is None:
            return None
        mask = np.zeros(len(self.reference_unll), dtype=bool)
        for start, end in self.training_input.supervised_tokens:
            mask[start:end] = True
        low, high = self.training_input.fed_tokens
        mask[:low] = False
        mask[high:] = False
        return mask

    @property
    def text(self) -> str:
        """Prompt and response, as they were tokenised."""
        return self.prompt + self.response

    @cached_property
    def unll(self) -> np.ndarray:
        """Shape ``(T,)`` int64 micro-nats, -1 where nothing was scored; read-only."""
        known = np.array(self.reference_unll, np.float64)  # NaN for null
        values = np.nan_to_num(known, nan=-1).astype(np.int64)
        values.flags.writeable = False
        return values

    @property
    def scored(self) -> np.ndarray:
        """Shape ``(T,)`` bool: tokens that every checkpoint gives a prediction for.

        Of the kept range all but the first that is read; where a text was cut, special
        tokens stay in front and so the first kept token is scored too.
        """
        return np.asarray(self.unll >= 0)

    @property
    def eligible(self) -> np.ndarray:
        """Shape ``(T,)`` bool: scored tokens that a control may use."""
        mask = self.unll >= 0
        for start, end in self.excluded:
            mask[start:end] = False
        return mask

    @cached_property
    def identifiers(self) -> list[tuple[ManifestSpan, TokenRange]]:
        """The annotated spans all of whose tokens were scored, with their tokens."""
        found, scored = list[tuple[ManifestSpan, TokenRange]](), self.scored
        for span in self.spans:
            if (tokens := span.tokens) is not None and scored[slice(*tokens)].all():
                found.append((span, tokens))
        return found

    def identifier_tokens(self, kind: str | None = None) -> np.ndarray:
        """Positions of the tokens of :attr:`identifiers`, of one type or of all."""
        mask = np.zeros(len(self.unll), dtype=bool)
        for span, tokens in self.identifiers:
            if kind in (None, span.type):
                mask[slice(*tokens)] = True
        return np.flatnonzero(mask)


class ById(UserDict[str, Any]):
    """Examples by id, each made when it is asked for; ``data`` holds their place."""

    def __init__(self, examples: Sequence[ManifestExample], ids: Iterable[str]) -> None:
        self._examples = examples
        self.data = {key: at for at, key in enumerate(ids)}

    def __getitem__(self, key: str) -> ManifestExample:
        example: ManifestExample = self._examples[self.data[key]]
        return example


class PairSide(_Part):
    """One side of a matched pair; ``nll`` is the reference mean over it, in nats.

    It is null where the manifest was redacted.
    """

    token_start: Whole
    token_end: Whole
    char_start: Whole
    char_end: Whole
    nll: Nats | None


class PiiSide(PairSide):
    """The PII side, with its type."""

    type: Name


class ManifestPair(_Part):
    """A PII span and its difficulty-matched control in the same example.

    ``distance`` is null where the manifest was redacted.
    """

    example: str
    pii: PiiSide
    control: PairSide
    distance: Nats | None
    weight: Annotated[float, Field(gt=0, le=MAX_INTEGER, allow_inf_nan=False)]

    @model_validator(mode="after")
    def _apart(self) -> ManifestPair:
        pii, control = self.pii, self.control
        if pii.token_start < control.token_end and control.token_start < pii.token_end:
            raise ValueError("the control overlaps the identifier")
        if pii.token_end - pii.token_start != control.token_end - control.token_start:
            raise ValueError("the control is of another length")
        return self


class CanaryContext(_Part):
    """Where a canary stands."""

    example: str
    char_start: Whole
    char_end: Whole


class UnmatchedSpan(CanaryContext):
    """A PII span without a control, and why."""

    type: Name
    reason: str


class _Ranked(_Part):
    """A string that stands in some rows, among others that it could have been."""

    contexts: list[CanaryContext]
    candidates: Distinct = Field(repr=False)
    true_index: Whole | None
    dose: Whole

    @model_validator(mode="after")
    def _among(self) -> Self:
        if (self.true_index is not None) != bool(self.candidates):
            raise ValueError("candidates and true_index must both be set, or neither")
        if self.true_index is not None and self.true_index >= len(self.candidates):
            raise ValueError("true_index is none of the candidates")
        return self


class ManifestCanary(_Ranked):
    """One part of a canary with its candidates (empty: not rankable, and why).

    ``n_tokens`` are the true string's in its first context, and each candidate's.
    """

    canary_id: Name
    part: Literal["full", "password", "ssn"]
    reason: str | None
    n_tokens: Annotated[int, Field(ge=0, le=MAX_INTEGER)] | None
    format: Name
    held_out: bool
    pair: Name | None = Field(default=None, exclude_if=lambda v: v is None)

    @property
    def coin(self) -> tuple[list[str], int] | None:
        """The pair of neighbours among its candidates, and which is the true one."""
        first = (self.true_index or 0) & ~1
        both = self.candidates[first : first + 2]
        return (both, (self.true_index or 0) & 1) if len(both) == 2 else None

    @model_validator(mode="after")
    def _placed(self) -> Self:
        if self.candidates and not (self.contexts and self.n_tokens):
            raise ValueError("it has candidates, but no contexts or no tokens")
        return self


class ManifestTwins(_Ranked):
    """An identifier that nobody planted among fresh strings of its kind.

    ``dose`` counts the train rows that it stands in; 0: it is held out.
    """

    id: Name
    type: Name
    contexts: list[CanaryContext] = Field(min_length=1)
    candidates: Distinct = Field(repr=False, min_length=2)
    true_index: Whole


class MembershipRows(_Part):
    """Rows for membership inference."""

    members: list[str]
    non_members: list[str]


class BalanceRow(_Part):
    """One covariate before and after matching (Love-plot data)."""

    covariate: Name
    mean_pii: Figure | None
    mean_pool: Figure | None
    mean_control: Figure | None
    smd_before: Figure | None
    smd_after: Figure | None
    variance_ratio_before: Figure | None
    variance_ratio_after: Figure | None
    ecdf_max_before: Figure | None
    ecdf_max_after: Figure | None
    ecdf_mean_before: Figure | None
    ecdf_mean_after: Figure | None
    note: str


class Manifest(_Part):
    """A whole manifest (see ``schemas/manifest.json`` for the file's schema)."""

    kind: Literal["spark-audit-manifest"]
    schema_version: Literal[1]
    name: str
    digest: str
    redacted_from: str | None
    reference: ReferenceModel
    settings: ManifestSettings
    versions: dict[str, str]
    data: list[dict[str, Any]]
    counts: dict[str, Whole]
    examples: Annotated[list[ManifestExample], Packed]
    pairs: Annotated[list[ManifestPair], Packed]
    unmatched: Annotated[list[UnmatchedSpan], Packed]
    canaries: Annotated[list[ManifestCanary], Packed]
    twins: Annotated[list[ManifestTwins], Packed]
    membership: MembershipRows
    balance: list[BalanceRow]
    notes: list[str]

    def having(self, **parts: Any) -> Manifest:
        """The manifest with some of its parts replaced; they are not checked."""
        found = self.model_copy(update=parts)
        # A copy takes along what was cached of the whole.
        for name in ("by_id", "lengths"):
            found.__dict__.pop(name, None)
        return found

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What it is and how much it holds: a notebook prints the last value."""
        yield "name", self.name
        yield "digest", self.digest[:12]
        for part in ("examples", "pairs", "unmatched", "canaries"):
            yield part, len(getattr(self, part))

    @cached_property
    def by_id(self) -> ById:
        """Examples by id, in their order."""
        return ById(self.examples, (example.id for example in self.examples))

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, in their order."""
        return np.array([len(row.reference_unll) for row in self.examples], np.int64)
