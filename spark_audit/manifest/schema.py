"""The schema of a manifest: all inputs of an audit except the checkpoint.

A manifest is one file, of JSON or Arrow. Its ``digest`` is the SHA-256 of its canonical
JSON without ``digest`` and ``name``. A changed file, or one that does not fit a
checkpoint, is refused with the difference. The digest is not a signature, because the
author of a file can compute it. So the content is validated when a file is read, and
later code does not check it again.

Its long lists are packed (:mod:`spark_audit.manifest.packed_lists`).

Texts are characters of ``prompt + response``, and tokens are those of the full
tokenisation, special tokens included. All ranges exclude their end. Character and token
numbers begin with 0.

A new field has a default and ``exclude_if``, so that manifests without it keep their
digest (see ``training_input``). The code that fills it stands in
:mod:`~spark_audit.manifest.row_slices`, :mod:`~spark_audit.manifest.canary_sets` or
:mod:`~spark_audit.manifest.build`, and a check against other parts in
:mod:`~spark_audit.manifest.content`. If it reveals text, it belongs into
:mod:`~spark_audit.manifest.redaction`, too. ``tests/manifest/test_schema.py`` says how
``schemas/manifest.json`` is made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from spark_audit.cells_html import facts_html
from spark_audit.data.training_input import (
    SpecialTokens,
    Supervision,
    Truncation,
    answer_end,
    supervision_of,
)
from spark_audit.files import without_examples
from spark_audit.manifest.examples_by_id import ById
from spark_audit.manifest.field_types import (
    MAX_INTEGER,
    Distinct,
    Figure,
    MicroNats,
    Name,
    Nats,
    Share,
    Whole,
    check_inside,
)
from spark_audit.manifest.packed_lists import WRITTEN_AS_LIST
from spark_audit.stats.matching import MICRO_NATS_PER_NAT

Preset = Literal["robust", "paper"]

Split = Literal["train", "test"]

TokenRange = tuple[int, int]
"""First token, and the token behind the last one."""


class _Part(BaseModel):
    """Base of the manifest's parts: unknown fields are kept, and nothing is coerced."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class ReferenceModel(_Part):
    """The model on which difficulty was measured: the base of audited checkpoints.

    ``usable_vocab`` counts the rows of its vocabulary that are tokens, and
    ``max_positions`` is the length of its context (null: no limit). ``shape`` holds
    sizes from its configuration, such as ``hidden_size``. ``model_id`` is a hash of
    everything that its scores depend on besides the texts.
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
    """The settings that determined the pairs; audits use their preset.

    ``caliper`` is the largest difference of mean NLL between an identifier and its
    control, in nats per token. No control has ``buffer`` tokens beside an identifier
    or, with ``exclude_template``, the tasks' fixed wording. ``canary_contexts`` is the
    number of rows, the first by id, in which a canary is ranked; null: all. For
    ``distance`` and ``controls`` see
    :class:`~spark_audit.manifest.settings.BuildSettings`. A token has low sensitivity
    if its Score is at most ``tau``, and ``alpha`` weights the terms of the Score (see
    :mod:`spark_audit.data.sensitivity`).
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


class ManifestTurn(_Part):
    """The content of one message, as characters of the row's text."""

    start: Whole
    end: Whole
    role: str


class ManifestTrainingInput(_Part):
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


class ManifestExample(_Part):
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


class PairSide(_Part):
    """One side of a matched pair: a range of tokens, and its characters.

    ``nll`` is its mean on the reference, in nats per token; null in a redacted
    manifest.
    """

    token_start: Whole
    token_end: Whole
    char_start: Whole
    char_end: Whole
    nll: Nats | None


class PiiSide(PairSide):
    """The identifier's side of a pair, with its type."""

    type: Name


class ManifestPair(_Part):
    """A PII span and its difficulty-matched control in the same example.

    Both have as many tokens. ``distance`` is the difference of their mean NLLs on the
    reference, in nats per token, without a sign; null in a redacted manifest.
    ``weight`` is the pair's weight in means over pairs; 1 if this package made it.
    """

    example: str
    pii: PiiSide
    control: PairSide
    distance: Nats | None
    weight: Annotated[float, Field(gt=0, le=MAX_INTEGER, allow_inf_nan=False)]

    @model_validator(mode="after")
    def _check_sides(self) -> ManifestPair:
        """Refuse sides that overlap or have different numbers of tokens."""
        pii = self.pii
        control = self.control
        if pii.token_start < control.token_end and control.token_start < pii.token_end:
            raise ValueError("the control overlaps the identifier")

        # Audits compare sums over both sides, so both need as many tokens.
        pii_length = pii.token_end - pii.token_start
        control_length = control.token_end - control.token_start
        if pii_length != control_length:
            raise ValueError("the control is of another length")
        return self


class CanaryContext(_Part):
    """A place of a canary or an identifier in an example."""

    example: str
    char_start: Whole
    char_end: Whole


class UnmatchedSpan(CanaryContext):
    """A PII span without a control, with the reason."""

    type: Name
    reason: str


class _Ranked(_Part):
    """A string in some rows, with the strings among which it is ranked.

    ``contexts`` are the rows in which it is ranked, ``true_index`` is its own index
    among ``candidates``, and ``dose`` counts the train rows that hold it.
    """

    contexts: list[CanaryContext]
    candidates: Distinct = Field(repr=False)
    true_index: Whole | None
    dose: Whole

    @model_validator(mode="after")
    def _check_candidates(self) -> Self:
        """Refuse candidates without the index of the true one, or the reverse."""
        if (self.true_index is not None) != bool(self.candidates):
            raise ValueError("candidates and true_index must both be set, or neither")
        if self.true_index is not None and self.true_index >= len(self.candidates):
            raise ValueError("true_index is not the number of a candidate")
        return self


class ManifestCanary(_Ranked):
    """One part of a canary with its candidates; without any, it has a reason.

    ``n_tokens`` is the number of tokens of the true string in its first context, and of
    each candidate. ``part`` is ``full`` for the whole sentence. ``pair`` names the coin
    that decided whether this canary or another one was planted; null: no coin did.
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
        """Return two neighbouring candidates, and which one is true: 0 or 1.

        Candidates 0 and 1 are neighbours, 2 and 3, and so on. ``None``: the canary has
        no candidates, or the true one is the last of an odd number.
        """
        true_index = self.true_index or 0
        index_in_pair = true_index % 2
        first = true_index - index_in_pair
        neighbours = self.candidates[first : first + 2]
        return (neighbours, index_in_pair) if len(neighbours) == 2 else None

    @model_validator(mode="after")
    def _check_contexts(self) -> Self:
        """Refuse candidates that could not be read anywhere."""
        if self.candidates and not (self.contexts and self.n_tokens):
            raise ValueError("it has candidates, but no contexts or no tokens")
        return self


class ManifestTwins(_Ranked):
    """An identifier that nobody planted, among fresh strings of its form.

    ``dose`` counts the train rows that hold it; 0: it is held out.
    """

    id: Name
    type: Name
    contexts: list[CanaryContext] = Field(min_length=1)
    candidates: Distinct = Field(repr=False, min_length=2)
    true_index: Whole


class MembershipRows(_Part):
    """Ids of train rows and of test rows for membership inference."""

    members: list[str]
    non_members: list[str]


class BalanceRow(_Part):
    """One covariate before and after matching (data of a Love plot).

    :func:`spark_audit.stats.balance.balance_rows` explains the figures. Null: not
    estimable.
    """

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
    """A whole manifest (see ``schemas/manifest.json`` for the file's schema).

    ``data`` holds the name and SHA-256 of each data file. ``redacted_from`` is null
    unless it is a redacted copy (:mod:`spark_audit.manifest.redaction`).

    Examples
    --------
    >>> manifest = sa.read_manifest("m.json")
    >>> isinstance(manifest, sa.Manifest), len(manifest.examples) == len(rows)
    (True, True)
    """

    model_config = ConfigDict(json_schema_extra=without_examples)

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
    examples: Annotated[list[ManifestExample], WRITTEN_AS_LIST]
    pairs: Annotated[list[ManifestPair], WRITTEN_AS_LIST]
    unmatched: Annotated[list[UnmatchedSpan], WRITTEN_AS_LIST]
    canaries: Annotated[list[ManifestCanary], WRITTEN_AS_LIST]
    twins: Annotated[list[ManifestTwins], WRITTEN_AS_LIST]
    membership: MembershipRows
    balance: list[BalanceRow]
    notes: list[str]

    def with_parts(self, **parts: Any) -> Manifest:
        """Return the manifest with some fields replaced; new values are unchecked."""
        changed = self.model_copy(update=parts)
        # A copy also has the cached values of the original.
        for name in ("by_id", "lengths"):
            changed.__dict__.pop(name, None)
        return changed

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        """Yield name, digest and sizes, because a notebook prints the last value."""
        yield "name", self.name
        yield "digest", self.digest[:12]
        for part in ("examples", "pairs", "unmatched", "canaries"):
            yield part, len(getattr(self, part))

    def _repr_html_(self) -> str:
        """Return its sizes as a notebook shows them; no text stands in them."""
        facts = {
            "reference model": self.reference.architecture,
            "examples": len(self.examples),
            "identifiers with a control": len(self.pairs),
            "identifiers without": len(self.unmatched),
            "canaries": len({canary.canary_id for canary in self.canaries}),
            "twins": len(self.twins),
            "rows trained on": len(self.membership.members),
            "rows held out": len(self.membership.non_members),
            "notes": len(self.notes),
            "digest": self.digest[:12],
        }
        return facts_html(f"Manifest {self.name}", facts)

    @cached_property
    def by_id(self) -> ById[ManifestExample]:
        """Return the examples by id, in their order."""
        return ById(self.examples, (example.id for example in self.examples))

    @cached_property
    def lengths(self) -> np.ndarray:
        """Return each example's number of tokens, shape ``(examples,)``, in order."""
        return np.array([len(row.reference_unll) for row in self.examples], np.int64)
