"""The manifest: everything an audit needs besides the checkpoint, built once.

It is one JSON file. Its ``digest`` is the SHA-256 of its canonical JSON without
``digest`` and ``name``; a file that was changed, or that does not fit a checkpoint, is
refused with what differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spark_audit.errors import InputError, OutputError
from spark_audit.facts import (
    canonical_json,
    field_path,
    read_regular,
    sha256_json,
    write_atomically,
)

Preset = Literal["robust", "paper"]
Split = Literal["train", "test"]
TokenRange = tuple[int, int]


class _Part(BaseModel):
    """Base of the manifest's parts: unknown fields are kept, nothing is coerced."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class Reference(_Part):
    """The model that difficulty was measured on.

    ``shape`` holds sizes of its configuration, such as ``hidden_size``; manifests of
    earlier versions have none, and are written again as they were.
    """

    name: str
    weights_sha256: str
    tokenizer_sha256: str
    model_id: str
    architecture: str
    dtype: str
    vocab_size: int
    usable_vocab: int
    max_positions: int | None
    shape: dict[str, int] | None = Field(default=None, exclude_if=lambda v: v is None)


class Settings(_Part):
    """What decided the pairs; audits take their preset from here."""

    preset: Preset
    seed: int
    caliper: float
    distance: Literal["mean", "profile"]
    buffer: int
    controls: Literal["any", "before"]
    exclude_template: bool
    max_length: int | None
    tau: float
    alpha: float
    canary_contexts: int | None
    n_candidates: int


class ManifestSpan(_Part):
    """An annotated identifier.

    Tokens are null when it was cut off or has none of its own; ``partial``: a token at
    its edge reaches past it.
    """

    start: int
    end: int
    type: str
    origin: Literal["natural", "injected"]
    part: str | None
    token_start: int | None
    token_end: int | None
    partial: bool


class ManifestExample(_Part):
    """One example with its reference scores.

    ``reference_unll`` holds micro-nats per token of the full tokenisation, null where
    nothing was scored; ``excluded`` the token ranges that no control may touch;
    ``classes`` one letter per token (``d`` has a digit, ``A`` has a capital, ``a``
    other letters, ``-`` neither) for class-matched placebos; ``low`` the tokens of low
    sensitivity. These are empty where the manifest was redacted.
    """

    id: str
    task: str
    source_id: str
    cluster: str
    split: Split
    prompt: str = Field(repr=False)
    response: str = Field(repr=False)
    spans: list[ManifestSpan]
    canary_id: str | None
    template: list[TokenRange] = Field(repr=False)
    kept: TokenRange
    response_token: int
    reference_unll: list[int | None] = Field(repr=False)
    excluded: list[TokenRange] = Field(repr=False)
    classes: str = Field(repr=False)
    low: list[int] = Field(repr=False)

    @cached_property
    def unll(self) -> np.ndarray:
        """Shape ``(T,)`` int64 micro-nats, -1 where nothing was scored."""
        return np.array(
            [-1 if u is None else u for u in self.reference_unll], dtype=np.int64
        )

    @cached_property
    def scored(self) -> np.ndarray:
        """Shape ``(T,)`` bool: tokens that every checkpoint gives a prediction for.

        Of the kept range all but the first that is read; where a text was cut, special
        tokens stay in front and so the first kept token is scored too.
        """
        return np.asarray(self.unll >= 0)

    @cached_property
    def eligible(self) -> np.ndarray:
        """Shape ``(T,)`` bool: scored tokens that a control may use."""
        mask = self.unll >= 0
        for start, end in self.excluded:
            mask[start:end] = False
        return mask


class PairSide(_Part):
    """One side of a matched pair; ``nll`` is the reference mean over it, in nats.

    It is null where the manifest was redacted.
    """

    token_start: int
    token_end: int
    char_start: int
    char_end: int
    nll: float | None


class PiiSide(PairSide):
    """The PII side, with its type."""

    type: str


class ManifestPair(_Part):
    """A PII span and its difficulty-matched control in the same example.

    ``distance`` is null where the manifest was redacted.
    """

    example: str
    pii: PiiSide
    control: PairSide
    distance: float | None
    weight: float


class UnmatchedSpan(_Part):
    """A PII span without a control, and why."""

    example: str
    char_start: int
    char_end: int
    type: str
    reason: str


class CanaryContext(_Part):
    """Where a canary stands."""

    example: str
    char_start: int
    char_end: int


class ManifestCanary(_Part):
    """One part of a canary with its candidates (empty: not rankable, and why).

    ``n_tokens`` counts the tokens of the true string in its first context; candidates
    have as many.
    """

    canary_id: str
    part: Literal["full", "password", "ssn"]
    contexts: list[CanaryContext]
    candidates: list[str] = Field(repr=False)
    true_index: int | None
    reason: str | None
    n_tokens: int | None
    format: str
    dose: int
    held_out: bool


class Membership(_Part):
    """Rows for membership inference."""

    members: list[str]
    non_members: list[str]


class BalanceRow(_Part):
    """One covariate before and after matching (Love-plot data)."""

    covariate: str
    mean_pii: float | None
    mean_pool: float | None
    mean_control: float | None
    smd_before: float | None
    smd_after: float | None
    variance_ratio_before: float | None
    variance_ratio_after: float | None
    ecdf_max_before: float | None
    ecdf_max_after: float | None
    ecdf_mean_before: float | None
    ecdf_mean_after: float | None
    note: str


class Manifest(_Part):
    """A whole manifest (see ``schemas/manifest.json`` for the file's schema)."""

    kind: Literal["spark-audit-manifest"]
    schema_version: Literal[1]
    name: str
    digest: str
    redacted_from: str | None
    reference: Reference
    settings: Settings
    versions: dict[str, str]
    data: list[dict[str, Any]]
    counts: dict[str, int]
    examples: list[ManifestExample]
    pairs: list[ManifestPair]
    unmatched: list[UnmatchedSpan]
    canaries: list[ManifestCanary]
    membership: Membership
    balance: list[BalanceRow]
    notes: list[str]

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What it is and how much it holds: a notebook prints the last value."""
        yield "name", self.name
        yield "digest", self.digest[:12]
        for part in ("examples", "pairs", "unmatched", "canaries"):
            yield part, len(getattr(self, part))

    @cached_property
    def by_id(self) -> dict[str, ManifestExample]:
        """Examples by id."""
        return {example.id: example for example in self.examples}


def digest(content: dict[str, Any]) -> str:
    """SHA-256 of canonical JSON without ``digest`` and ``name``, in hex."""
    return sha256_json(
        {k: v for k, v in content.items() if k not in ("digest", "name")}
    )


def seal(content: dict[str, Any]) -> Manifest:
    """Validate a manifest's content and give it its digest."""
    # JSON mode: tuples may come as lists, as they do from a file.
    draft = _validated(canonical_json({**content, "digest": ""}), where="manifest")
    # What is written is hashed, not what was given: 1 and 1.0 differ in JSON.
    found = digest(draft.model_dump(mode="json"))
    return draft.model_copy(update={"digest": found})


def redact(manifest: Manifest) -> Manifest:
    """The manifest without text: it can be read and shown, but not audited with.

    Prompts, responses, candidates and what is said of single tokens and spans are left
    out, and so is the balance: with the reference model, scores are as good as text.
    Ids, offsets and token counts stay. ``redacted_from`` holds the digest of the
    original.
    """
    blank = {"prompt": "", "response": "", "reference_unll": [], "classes": ""}
    unscored = {"nll": None}
    told = (
        "redacted: prompts, responses, canary candidates and the scores of tokens and "
        "spans were left out"
    )
    note = [] if told in manifest.notes else [told]
    return seal(
        {
            **manifest.model_dump(mode="json"),
            "redacted_from": manifest.redacted_from or manifest.digest,
            # With a pair or two their mean is a span's score.
            "balance": [],
            "examples": [
                {**e.model_dump(mode="json"), **blank, "low": []}
                for e in manifest.examples
            ],
            "pairs": [
                {
                    **p.model_dump(mode="json"),
                    "pii": {**p.pii.model_dump(mode="json"), **unscored},
                    "control": {**p.control.model_dump(mode="json"), **unscored},
                    "distance": None,
                }
                for p in manifest.pairs
            ],
            "canaries": [
                {
                    **c.model_dump(mode="json"),
                    "candidates": [],
                    "true_index": None,
                    "reason": c.reason or "redacted",
                }
                for c in manifest.canaries
            ],
            "notes": [*manifest.notes, *note],
        }
    )


def original(manifest: Manifest) -> Manifest:
    """The manifest, if it is one that can be audited with.

    Raises
    ------
    InputError
        If it was redacted.
    """
    if manifest.redacted_from is not None:
        raise InputError(
            "was redacted: it has no text and no scores to audit with",
            where=f"manifest {manifest.name!r}",
            fix="give the original, whose digest begins with "
            f"{manifest.redacted_from[:12]}",
        )
    return manifest


def json_schema() -> dict[str, Any]:
    """JSON Schema of a manifest file; shipped as ``schemas/manifest.json``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Manifest.model_json_schema(),
    }


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write canonical JSON, whole or not at all, readable by the owner only."""
    data = canonical_json(manifest.model_dump(mode="json")) + b"\n"
    write_atomically(path, lambda file: file.write(data), mode=0o600)


def read_manifest(path: str | Path) -> Manifest:
    """Read and verify a manifest.

    Raises
    ------
    OutputError
        If the file cannot be read.
    InputError
        If it is no manifest, of another schema version, malformed, or was changed.
    """
    path = Path(path)
    try:
        raw = read_regular(path, follow=True)
    except OSError as error:
        raise OutputError(
            f"cannot be read ({error.strerror or error})", where=str(path)
        ) from error
    try:
        content = json.loads(raw)
    except ValueError as error:
        raise InputError(
            "is not JSON", where=str(path), fix="give a file of `manifest build`"
        ) from error
    if not isinstance(content, dict) or content.get("kind") != "spark-audit-manifest":
        raise InputError(
            "is no SPARK Audit manifest",
            where=str(path),
            fix="give a file of `spark-audit manifest build`",
        )
    if content.get("schema_version") != 1:
        raise InputError(
            f"has schema version {content.get('schema_version')!r}, not 1",
            where=str(path),
            fix="build it again with this version of SPARK Audit",
        )
    if content.get("digest") != digest(content):
        raise InputError(
            "was changed after it was built: its digest does not fit its content",
            where=str(path),
            fix="build it again, or get the original file",
        )
    return _validated(raw, where=str(path))


def _validated(raw: bytes, *, where: str) -> Manifest:
    try:
        return Manifest.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = field_path(first["loc"], Manifest.model_json_schema())
        raise InputError(
            f"field {field}: {first['msg'].lower()}",
            where=where,
            fix="build the manifest again with this version of SPARK Audit",
        ) from error


def check_fit(
    manifest: Manifest,
    *,
    name: str,
    tokenizer_sha256: str,
    architecture: str,
    vocab_size: int,
    base_sha256: str | None,
    shape: Mapping[str, int] | None = None,
) -> list[str]:
    """Refuse a checkpoint that the manifest was not made for.

    Parameters
    ----------
    base_sha256
        Hash of the base's weights; ``None`` for full weights, whose base cannot be
        verified: architecture, vocabulary and shape are compared instead.
    shape
        Sizes that its configuration states, by their names there.

    Returns
    -------
    list
        Notes for the report, such as ``base not verifiable``.

    Raises
    ------
    InputError
        With what differs.
    """
    reference = manifest.reference
    shape, known = shape or {}, reference.shape or {}
    differs = [
        f"{what} ({_short(theirs)} here, {_short(ours)} in the manifest)"
        for what, theirs, ours in (
            ("tokenizer", tokenizer_sha256, reference.tokenizer_sha256),
            ("base weights", base_sha256, reference.weights_sha256),
            ("architecture", architecture, reference.architecture),
            ("vocabulary", vocab_size, reference.vocab_size),
            *((k, shape[k], known[k]) for k in sorted(shape.keys() & known.keys())),
        )
        if theirs is not None and theirs != ours
    ]
    if differs:
        raise InputError(
            f"manifest {manifest.name!r} was made for another model: "
            + ", ".join(differs),
            where=f"checkpoint {name!r}",
            fix="build a manifest from this checkpoint's base",
        )
    notes = units_of(manifest)
    if base_sha256 is None:
        notes.append("base not verifiable: full weights name no base")
        if not shape.keys() & known.keys():
            notes.append("shapes not compared: the manifest does not hold its base's")
    return notes


def units_of(manifest: Manifest) -> list[str]:
    """A note on a manifest whose clusters an earlier version made; else nothing."""
    if "joined_by_string" in manifest.counts or not manifest.counts.get("clusters"):
        return []
    return [
        "the manifest is of an earlier version, to which rows that share an identifier "
        "were not one cluster: intervals may be too narrow, build it again"
    ]


def _short(value: object) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else text


def limited(manifest: Manifest, ids: set[str]) -> Manifest:
    """The part of a manifest that concerns some examples; the digest stays."""
    part = manifest.model_copy(
        update={
            "examples": [e for e in manifest.examples if e.id in ids],
            "pairs": [p for p in manifest.pairs if p.example in ids],
            "unmatched": [u for u in manifest.unmatched if u.example in ids],
            "canaries": [
                canary
                for canary in manifest.canaries
                if canary.contexts
                and all(context.example in ids for context in canary.contexts)
            ],
            "membership": Membership(
                members=[i for i in manifest.membership.members if i in ids],
                non_members=[i for i in manifest.membership.non_members if i in ids],
            ),
        }
    )
    # A copy takes along what was cached of the whole.
    part.__dict__.pop("by_id", None)
    return part
