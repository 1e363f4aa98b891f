"""The manifest: everything an audit needs besides the checkpoint, built once.

It is one JSON file. Its ``digest`` is the SHA-256 of its canonical JSON without
``digest`` and ``name``; a file that was changed, or that does not fit a checkpoint, is
refused with what differs. The digest is no signature: whoever writes a file can make
it, so the content is validated when a file is read, and nothing behind checks again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from spark_audit.errors import InputError, OutputError
from spark_audit.files import (
    data_bytes,
    field_path,
    parse_json,
    read_regular,
    write_atomically,
)
from spark_audit.provenance import canonical_json, sha256_json

Preset = Literal["robust", "paper"]
Split = Literal["train", "test"]
TokenRange = tuple[int, int]

MOST = 10**9
"""No count, position or dose is larger: it is beyond any text or vocabulary."""
MOST_NATS = 1e4
"""No token is this unlikely to a model whose logits are finite."""


def _plain(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("is blank or holds control characters")
    return text


def _once(values: list[str]) -> list[str]:
    if len(set(values)) < len(values):
        raise ValueError("holds something twice")
    return values


Name = Annotated[str, Field(max_length=1000), AfterValidator(_plain)]
"""What names files, rows of tables and lines of a terminal."""
Whole = Annotated[int, Field(ge=0, le=MOST)]
Nats = Annotated[float, Field(ge=0, le=MOST_NATS, allow_inf_nan=False)]
MicroNats = Annotated[int, Field(ge=0, le=round(1e6 * MOST_NATS))]
Figure = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Part(BaseModel):
    """Base of the manifest's parts: unknown fields are kept, nothing is coerced."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


def _inside(field: str, ranges: Collection[tuple[int, int]], length: int) -> None:
    for start, end in ranges:
        if not 0 <= start < end <= length:
            raise ValueError(f"{field}: {start}:{end} is empty or outside 0:{length}")


def _once_by(field: str, keys: Iterable[object]) -> None:
    known: set[object] = set()
    for i, key in enumerate(keys):
        if key in known:
            raise ValueError(f"{field}.{i} stands twice")
        known.add(key)


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
    vocab_size: Annotated[int, Field(ge=1, le=MOST)]
    usable_vocab: Whole
    max_positions: Annotated[int, Field(ge=1, le=MOST)] | None
    shape: dict[str, Whole] | None = Field(default=None, exclude_if=lambda v: v is None)


class Settings(_Part):
    """What decided the pairs; audits take their preset from here."""

    preset: Preset
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    caliper: Nats
    distance: Literal["mean", "profile"]
    buffer: Whole
    controls: Literal["any", "before"]
    exclude_template: bool
    max_length: Annotated[int, Field(ge=2, le=MOST)] | None
    tau: Share
    alpha: Share
    canary_contexts: Annotated[int, Field(ge=1, le=MOST)] | None
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


class ManifestExample(_Part):
    """One example with its reference scores.

    ``reference_unll`` holds micro-nats per token of the full tokenisation, null where
    nothing was scored; ``excluded`` the token ranges that no control may touch;
    ``classes`` one letter per token (``d`` has a digit, ``A`` has a capital, ``a``
    other letters, ``-`` neither) for class-matched placebos; ``low`` the tokens of low
    sensitivity. These are empty where the manifest was redacted.
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

    @model_validator(mode="after")
    def _fitting(self) -> ManifestExample:
        """Every place lies in the text, and its tokens in the tokenisation.

        A redacted manifest has neither; the whole says when that may be.
        """
        text = len(self.text) or MOST
        tokens = len(self.reference_unll) or MOST
        if len(self.classes) != len(self.reference_unll):
            raise ValueError("classes and reference_unll are of different lengths")
        if self.response_token > tokens:
            raise ValueError("response_token lies outside of the tokens")
        if any(at >= tokens for at in self.low) or len(set(self.low)) < len(self.low):
            raise ValueError("low holds a token twice, or one outside of the tokens")
        _inside("kept", [self.kept], tokens)
        _inside("excluded", self.excluded, tokens)
        _inside("template", self.template, text)
        _inside("spans", [(span.start, span.end) for span in self.spans], text)
        ordered = sorted((span.start, span.end) for span in self.spans)
        if any(low[1] > high[0] for low, high in pairwise(ordered)):
            raise ValueError("spans overlap")
        own = [span.tokens for span in self.spans if span.tokens is not None]
        _inside("spans, tokens", own, tokens)
        return self

    @property
    def text(self) -> str:
        """Prompt and response, as they were tokenised."""
        return self.prompt + self.response

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

    @cached_property
    def identifiers(self) -> list[tuple[ManifestSpan, TokenRange]]:
        """The annotated spans all of whose tokens were scored, with their tokens."""
        return [
            (span, tokens)
            for span in self.spans
            if (tokens := span.tokens) is not None and self.scored[slice(*tokens)].all()
        ]

    def identifier_tokens(self, kind: str | None = None) -> np.ndarray:
        """Positions of the tokens of :attr:`identifiers`, of one type or of all."""
        mask = np.zeros(len(self.unll), dtype=bool)
        for span, tokens in self.identifiers:
            if kind in (None, span.type):
                mask[slice(*tokens)] = True
        return np.flatnonzero(mask)


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
    weight: Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False)]

    @model_validator(mode="after")
    def _apart(self) -> ManifestPair:
        pii, control = self.pii, self.control
        if pii.token_start < control.token_end and control.token_start < pii.token_end:
            raise ValueError("the control stands on the identifier")
        if pii.token_end - pii.token_start != control.token_end - control.token_start:
            raise ValueError("the control is of another length")
        return self


class UnmatchedSpan(_Part):
    """A PII span without a control, and why."""

    example: str
    char_start: Whole
    char_end: Whole
    type: Name
    reason: str


class CanaryContext(_Part):
    """Where a canary stands."""

    example: str
    char_start: Whole
    char_end: Whole


class ManifestCanary(_Part):
    """One part of a canary with its candidates (empty: not rankable, and why).

    ``n_tokens`` counts the tokens of the true string in its first context; candidates
    have as many.
    """

    canary_id: Name
    part: Literal["full", "password", "ssn"]
    contexts: list[CanaryContext]
    candidates: Annotated[list[str], AfterValidator(_once)] = Field(repr=False)
    true_index: Whole | None
    reason: str | None
    n_tokens: Annotated[int, Field(ge=0, le=MOST)] | None
    format: Name
    dose: Whole
    held_out: bool

    @model_validator(mode="after")
    def _ranked(self) -> ManifestCanary:
        if (self.true_index is not None) != bool(self.candidates):
            raise ValueError("candidates and true_index stand together or not at all")
        if self.true_index is not None and self.true_index >= len(self.candidates):
            raise ValueError("true_index is none of the candidates")
        if self.candidates and not (self.contexts and self.n_tokens):
            raise ValueError("it has candidates, but no contexts or no tokens")
        return self


class Membership(_Part):
    """Rows for membership inference."""

    members: list[str]
    non_members: list[str]

    @model_validator(mode="after")
    def _apart(self) -> Membership:
        _once([*self.members, *self.non_members])
        return self


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
    reference: Reference
    settings: Settings
    versions: dict[str, str]
    data: list[dict[str, Any]]
    counts: dict[str, Whole]
    examples: list[ManifestExample]
    pairs: list[ManifestPair]
    unmatched: list[UnmatchedSpan]
    canaries: list[ManifestCanary]
    membership: Membership
    balance: list[BalanceRow]
    notes: list[str]

    @model_validator(mode="after")
    def _joined(self) -> Manifest:
        """What names an example names one that is here, and a place in it."""
        _once_by("examples", (example.id for example in self.examples))
        _once_by("canaries", ((c.canary_id, c.part) for c in self.canaries))
        sides = ((p.example, p.pii.token_start, p.pii.token_end) for p in self.pairs)
        _once_by("pairs", sides)
        whole = self.redacted_from is None
        for i, example in enumerate(self.examples):
            if whole and not (example.text and example.classes):
                raise ValueError(f"examples.{i} has no text or no tokens")
        self._check_places(whole)
        listed = {"members": "train", "non_members": "test"}
        for field, split in listed.items():
            for key in getattr(self.membership, field):
                if key not in self.by_id or self.by_id[key].split != split:
                    raise ValueError(f"membership.{field} holds no {split} row's id")
        return self

    def _check_places(self, whole: bool) -> None:
        places = [
            (f"unmatched.{i}", one.example, (one.char_start, one.char_end))
            for i, one in enumerate(self.unmatched)
        ]
        for i, canary in enumerate(self.canaries):
            field = f"canaries.{i}.contexts"
            for one in canary.contexts:
                places.append((field, one.example, (one.char_start, one.char_end)))
        for i, pair in enumerate(self.pairs):
            field, example = f"pairs.{i}", self.by_id.get(pair.example)
            tokens = len(example.reference_unll) if example else 0
            for side in (pair.pii, pair.control):
                places.append((field, pair.example, (side.char_start, side.char_end)))
                _inside(field, [(side.token_start, side.token_end)], tokens or MOST)
                if whole and (side.nll is None or pair.distance is None):
                    raise ValueError(f"{field} has no nll or no distance")
        for field, key, at in places:
            if key not in self.by_id:
                raise ValueError(f"{field} names an example that is not here")
            _inside(field, [at], len(self.by_id[key].text) or MOST)

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
        "redacted: prompts, responses, canary candidates, the scores of tokens and "
        "spans, and checksums of data files were left out"
    )
    note = [] if told in manifest.notes else [told]
    return seal(
        {
            **manifest.model_dump(mode="json"),
            "redacted_from": manifest.redacted_from or manifest.digest,
            # With a pair or two their mean is a span's score.
            "balance": [],
            # Of few rows a guess could be held against their checksum.
            "data": [
                {k: v for k, v in e.items() if k != "sha256"} for e in manifest.data
            ],
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


def load_manifest(path: str | Path) -> Manifest:
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
        raw = read_regular(path, follow=True, most=data_bytes())
    except OSError as error:
        raise OutputError(
            f"cannot be read ({error.strerror or error})", where=str(path)
        ) from error
    content = parse_json(raw, place=str(path))
    if not isinstance(content, dict) or content.get("kind") != "spark-audit-manifest":
        raise InputError(
            "is no SPARK Audit manifest",
            where=str(path),
            fix="give a file of `spark-audit manifest build`",
        )
    version = content.get("schema_version")
    if version != 1:
        known = isinstance(version, int) and abs(version) < MOST
        raise InputError(
            f"has schema version {version if known else 'unknown'}, not 1",
            where=str(path),
            fix="build it again with this version of SPARK Audit",
        )
    try:
        found = digest(content)
    except (ValueError, RecursionError) as error:
        raise InputError(
            "holds half a surrogate pair or too deep a nesting",
            where=str(path),
            fix="build it again, or get the original file",
        ) from error
    if content.get("digest") != found:
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
        # Whatever a check of ours says stands behind "Value error, ".
        said = first["msg"].lower().removeprefix("value error, ")
        raise InputError(
            f"field {field}: {said}" if field else said,
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
