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
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from spark_audit.cells_html import facts_html
from spark_audit.files import without_examples
from spark_audit.manifest.example_schema import (
    ManifestExample,
    ManifestPart,
)
from spark_audit.manifest.examples_by_id import ById
from spark_audit.manifest.field_types import (
    MAX_INTEGER,
    Distinct,
    Figure,
    Name,
    Nats,
    Share,
    Whole,
)
from spark_audit.manifest.packed_lists import WRITTEN_AS_LIST

Preset = Literal["robust", "paper"]


class ReferenceModel(ManifestPart):
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


class ManifestSettings(ManifestPart):
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


class PairSide(ManifestPart):
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


class ManifestPair(ManifestPart):
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


class CanaryContext(ManifestPart):
    """A place of a canary or an identifier in an example."""

    example: str
    char_start: Whole
    char_end: Whole


class UnmatchedSpan(CanaryContext):
    """A PII span without a control, with the reason."""

    type: Name
    reason: str


class _Ranked(ManifestPart):
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


class MembershipRows(ManifestPart):
    """Ids of train rows and of test rows for membership inference."""

    members: list[str]
    non_members: list[str]


class BalanceRow(ManifestPart):
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


class Manifest(ManifestPart):
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
        """Yield name and sizes, because a notebook prints the last value.

        Not the digest: texts could be tried out against it.
        """
        yield "name", self.name
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
