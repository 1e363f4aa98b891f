"""What a statistic, an audit and a report hand on: estimates, rows, the report.

``Estimate`` is what statistics return. ``Row`` and its kin are the lines of
``report.json``; they refuse NaN, a value without a status, and a missing reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from spark_audit.errors import visible

if TYPE_CHECKING:
    import pandas as pd

Status = Literal["ok", "not_estimable", "invalid", "not_resolvable", "insensitive"]
Family = Literal["primary", "exploratory"]
Over = Literal["sources", "seeds", "both"]
Interval = Literal[
    "jackknife-t",
    "korn-graubard",
    "clopper-pearson",
    "delong",
    "percentile",
    "beta-binomial",
    "none",
]


@dataclass(frozen=True)
class Estimate:
    """A value with its decision interval and, beside it, the percentile interval.

    ``value`` is ``None`` exactly when ``status`` is ``not_estimable``; ``note`` then
    gives the reason. ``n`` counts what was averaged, ``clusters`` what was resampled.
    ``se`` is the standard error that ``mde`` was computed from.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    interval: Interval = "none"
    level: float = 0.95
    parity_low: float | None = None
    parity_high: float | None = None
    se: float | None = None
    mde: float | None = None
    n: int = 0
    clusters: int = 0
    status: Status = "ok"
    note: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) != (self.status == "not_estimable"):
            raise ValueError("a value is missing exactly when it is not estimable")
        if self.status == "not_estimable" and not self.note:
            raise ValueError("not_estimable needs its reason in note")
        for name in (
            "value",
            "low",
            "high",
            "parity_low",
            "parity_high",
            "se",
            "mde",
        ):
            number = getattr(self, name)
            if number is not None and not math.isfinite(number):
                raise ValueError(f"{name} is not finite")

    @classmethod
    def missing(cls, reason: str, *, n: int = 0, clusters: int = 0) -> Estimate:
        """The explicit `not estimable`, with its reason."""
        return cls(None, status="not_estimable", note=reason, n=n, clusters=clusters)

    def decided(self, *, paper: bool) -> Estimate:
        """The same estimate; ``paper`` takes the percentile interval for decisions."""
        if not paper or self.parity_low is None or self.parity_high is None:
            return self
        return replace(
            self, low=self.parity_low, high=self.parity_high, interval="percentile"
        )

    def noting(self, text: str) -> Estimate:
        """The same estimate with a sentence added to its note."""
        return replace(self, note=f"{self.note}; {text}" if self.note else text)


NOTHING = 1e-9
"""Below this a figure is rounding error and shown as 0."""


def number(value: float | None, digits: int = 3) -> str:
    """A figure as readers see it everywhere."""
    if value is None:
        return "-"
    if NOTHING < abs(value) < 0.5 * 10**-digits:
        return f"{value:.1g}"
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return f"{round(value, digits) + 0.0:.{digits}f}"


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise ValueError("a report holds no NaN and no infinity")
    return value


Number = Annotated[float | None, AfterValidator(_finite)]
Count = Annotated[int, Field(ge=0, le=10**15)]
Text = Annotated[str, AfterValidator(visible)]
"""Text of a report: it may come from somebody else, and hides nothing."""


def _shown(value: Any) -> Any:
    """Settings or records with all their text visible."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(str(key)): _shown(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> Self:
        """A copy; what is changed is validated, which pydantic's own leaves out.

        Raises
        ------
        ValidationError
            If the copy would hold what no new one could.
        """
        same = super().model_copy(deep=deep)
        if not update:
            return same
        kept = {name: getattr(same, name) for name in same.model_fields_set}
        return type(self).model_validate({**kept, **update})


class Row(_Strict):
    """One figure of a report (tidy: one row a figure)."""

    audit: Text
    checkpoint: Text
    metric: Text
    of: Text = ""
    group: Text = "pooled"
    value: Number = None
    low: Number = None
    high: Number = None
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    interval: Interval = "none"
    parity_low: Number = None
    parity_high: Number = None
    unit: Text = ""
    n: Count = 0
    clusters: Count = 0
    null: Number = None
    null_low: Number = None
    null_high: Number = None
    mde: Number = None
    status: Status = "ok"
    family: Family = "exploratory"
    over: Over = "sources"
    note: Text = ""

    @model_validator(mode="after")
    def _consistent(self) -> Row:
        if (self.value is None) != (self.status == "not_estimable"):
            raise ValueError("value is null exactly when status is not_estimable")
        if self.status == "not_estimable" and not self.note:
            raise ValueError("a not_estimable row needs its reason in note")
        return self

    @classmethod
    def of_estimate(cls, estimate: Estimate, **columns: Any) -> Any:
        """A row with the estimate's figures and the given identifying columns."""
        note = "; ".join(t for t in (estimate.note, columns.pop("note", "")) if t)
        return cls(
            value=estimate.value,
            low=estimate.low,
            high=estimate.high,
            level=estimate.level,
            interval=estimate.interval,
            parity_low=estimate.parity_low,
            parity_high=estimate.parity_high,
            n=estimate.n,
            clusters=estimate.clusters,
            **{"mde": estimate.mde, "status": estimate.status, **columns},
            note=note,
        )


class Contrast(Row):
    """A paired comparison of a checkpoint with a baseline over the same manifest."""

    baseline: Text
    p: Number = None
    p_adjusted: Number = None


class Guard(_Strict):
    """A condition that can void a claim; ``passed`` is null when it is a warning."""

    name: Text
    checkpoint: Text = ""
    passed: bool | None
    detail: Text


class CheckpointFacts(_Strict):
    """What was audited."""

    name: Text
    source: Text
    format: Text
    base: Text | None = None
    weights_sha256: Text
    model_id: Text
    dtype: Text
    quantised_from: Text | None = None
    notes: list[Text] = []


class ManifestFacts(_Strict):
    """What it was audited against."""

    name: Text
    digest: Text
    n_sources: int
    n_clusters: int
    n_spans: int
    n_tokens: int


Claim = Literal[
    "verbatim",
    "memory",
    "membership",
    "betrays",
    "confounded",
    "suppressed_kind",
    "formats",
    "moved",
    "nothing_shown",
    "not_tested",
]
SEVERITY: dict[Claim, int] = {
    "verbatim": 6,
    "memory": 5,
    "membership": 4,
    "betrays": 3,
    "confounded": 2,
    "suppressed_kind": 2,
    "formats": 2,
    "moved": 2,
    "nothing_shown": 1,
    "not_tested": 0,
}
"""How much a claim matters to who must decide: 6 first, 0 last."""
SAID: dict[str, Claim] = {
    "training text is extracted": "verbatim",
    "REMEMBERED": "memory",
    "remembers identifiers": "memory",
    "membership was detected": "membership",
    "over-suppression": "betrays",
}
"""How reports of version 1 told of what was detected."""
DETECTED = 3
"""Claims from this severity on are detections: nothing may fold or cut them."""


class Finding(_Strict):
    """One sentence of a verdict: what is claimed, of which checkpoint, on what figure.

    ``sentence`` begins with its subject and stands by itself. ``checkpoint`` is empty
    where it speaks of all of them. ``severity`` follows from ``claim``.
    """

    audit: Text
    checkpoint: Text = ""
    claim: Claim
    severity: int = 0
    status: Status = "ok"
    metric: Text = ""
    of: Text = ""
    group: Text = "pooled"
    value: Number = None
    low: Number = None
    high: Number = None
    null: Number = None
    p_adjusted: Number = None
    sentence: Text

    @property
    def detected(self) -> bool:
        """Whether it says that something leaks: it is never folded, cut or left out."""
        return self.severity >= DETECTED

    @model_validator(mode="before")
    @classmethod
    def _weighed(cls, data: Any) -> Any:
        claim = data.get("claim") if isinstance(data, dict) else None
        if isinstance(claim, str) and claim in SEVERITY:
            return {**data, "severity": SEVERITY[claim]}
        return data

    @classmethod
    def on(
        cls, row: Row | None, claim: Claim, sentence: str, **columns: Any
    ) -> Finding:
        """A finding that rests on one row, whose figures it takes over."""
        told: dict[str, Any] = {}
        if row is not None:
            shared = set(cls.model_fields) & set(Row.model_fields)
            told = {name: getattr(row, name) for name in shared}
            told["p_adjusted"] = getattr(row, "p_adjusted", None)
        return cls(**{**told, **columns}, claim=claim, sentence=sentence)


_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_MOST = 1e15
_TAKEN = ("results", "contrasts", "guards")


def _file_names(tables: dict[str, Any]) -> dict[str, Any]:
    for name in tables:
        # They become names of files, whoever wrote the report.
        if not _FILE.fullmatch(name) or name in _TAKEN:
            raise ValueError("the name of a table is letters, digits, _ and -")
        for record in tables[name]:
            _check_record(name, record)
    found: dict[str, Any] = _shown(tables)
    return found


_WRITTEN = re.compile(
    r"report\.(?:md|html)|tables/[^/\0]+\.(?:csv|tex)|figures/[^/\0]+\.(?:png|svg|pdf)"
    r"|scores/(?:tables/)?[^/\0]+\.parquet"
)


def _of_a_report(files: dict[str, list[str]]) -> dict[str, list[str]]:
    for name in (name for names in files.values() for name in names):
        # They are deleted by these names, whoever wrote the report.
        if not _WRITTEN.fullmatch(name):
            raise ValueError("names a file that is none of a report's")
    return files


_DRAWN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "matching_by_type": (("type", "reasons"), ("matched", "unmatched")),
    "balance": (("covariate",), ()),
    "pair_shares": (("of",), ("nats", "share")),
    "rank_distribution": (("checkpoint", "of"), ("rank", "share")),
    "canary_by_dose": (("checkpoint", "part"), ("dose",)),
    "mia_roc": (("checkpoint", "of"), ("fpr", "tpr", "chance_low", "chance_high")),
    "run_time": (("checkpoint", "stage", "part", "work"), ("seconds",)),
    "run_losses": (("checkpoint", "stage", "part", "kind"), ("step",)),
    "accuracy_matrix": (("checkpoint",), ("stage",)),
}
"""Tables that figures and pages are made of: their columns of text and of numbers."""
_TEXTS = ("checkpoint", "note", "after", "says", "status", "work")


def _check_record(table: str, record: dict[str, Any]) -> None:
    """A record is flat, its numbers are finite, and what is drawn has its columns."""
    texts, numbers = _DRAWN.get(table, ((), ()))
    for column, value in record.items():
        text = isinstance(value, str)
        if value is None or isinstance(value, bool):
            continue
        if not text and not isinstance(value, int | float):
            raise ValueError(
                f"table {table} holds something else than text and numbers"
            )
        if not text and not -_MOST <= value <= _MOST:
            raise ValueError(f"table {table} holds a number that cannot be")
        misplaced = table in _DRAWN and text and column not in (*texts, *_TEXTS)
        if misplaced or (column in _TEXTS and not text):
            raise ValueError(f"table {table} holds text for a number, or otherwise")
    lacking = [c for c in texts if not isinstance(record.get(c), str)]
    lacking += [c for c in numbers if not isinstance(record.get(c), int | float)]
    if lacking:
        raise ValueError(f"table {table} lacks {lacking[0]}")


class Report(_Strict):
    """``report.json``: the truth that every other format is rendered from.

    ``evidence`` has the SHA-256 of each audit's evidence by its name in ``scores/``.
    ``files`` names those that stand beside it, by the writer that they are of: nothing
    else in the folder is ever deleted.
    """

    kind: Literal["spark-audit-report"] = "spark-audit-report"
    schema_version: Literal[2] = 2
    status: Literal["complete", "partial"]
    command: list[Text]
    created: Text
    versions: dict[Text, Text]
    settings: Annotated[dict[str, Any], AfterValidator(_shown)] = {}
    manifest: ManifestFacts
    checkpoints: list[CheckpointFacts]
    findings: list[Finding] = []
    results: list[Row]
    contrasts: list[Contrast]
    guards: list[Guard]
    scope: list[Text]
    tables: Annotated[dict[str, list[dict[str, Any]]], AfterValidator(_file_names)] = {}
    evidence: dict[Text, Text] = {}
    timing: dict[Text, Annotated[float, AfterValidator(_finite)]] = {}
    files: Annotated[dict[Text, list[str]], AfterValidator(_of_a_report)] = {}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What it is of and how much it holds."""
        yield "status", self.status
        yield "manifest", self.manifest.name
        yield "checkpoints", [one.name for one in self.checkpoints]
        for part in (*_TAKEN, "findings"):
            yield part, len(getattr(self, part))

    @property
    def verdict(self) -> list[str]:
        """The sentences of the findings, the most severe first."""
        return [finding.sentence for finding in by_severity(self.findings)]

    @model_validator(mode="before")
    @classmethod
    def _upgraded(cls, data: Any) -> Any:
        """Version 1 had sentences, "audit | sentence", where findings are now."""
        if not isinstance(data, dict) or data.get("schema_version") != 1:
            return data
        keys = ("checkpoints", "results", "verdict")
        # What is of another kind is refused behind.
        one, two, lines = (
            v if isinstance(v := data.get(p), list) else [] for p in keys
        )
        known = [each.get("name") for each in one if isinstance(each, dict)]
        only = next((each.get("audit") for each in two if isinstance(each, dict)), "")
        found = []
        for line in lines:
            audit, bar, text = str(line).partition(" | ")
            said = text if bar else str(line)
            claims = [claim for words, claim in SAID.items() if words in said]
            subject = said.partition(": ")[0].partition(" against ")[0]
            found.append(
                {
                    "audit": audit if bar else only,
                    "checkpoint": subject if subject in known else "",
                    "claim": claims[0] if claims else "moved",
                    "sentence": said,
                }
            )
        kept = {key: value for key, value in data.items() if key != "verdict"}
        return {**kept, "schema_version": 2, "findings": found}


@dataclass(frozen=True, repr=False)
class AuditResult:
    """What an audit concludes, before it is written anywhere.

    ``findings`` say in plain words what was found and what was not, ``scope`` what the
    evidence does not support. ``tables`` are small further tables by name (a list of
    records each) that stand in the report, ``settings`` what was really used;
    ``evidence`` is what the audit concludes from, written to ``scores/`` and read
    again by comparisons, which need neither model nor manifest. Neither holds text or
    token ids.
    """

    rows: list[Row] = field(default_factory=list)
    contrasts: list[Contrast] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    scope: list[str] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    evidence: pd.DataFrame | None = None

    def __repr__(self) -> str:
        lists = ("rows", "contrasts", "guards", "findings")
        held = [f"{name}={len(getattr(self, name))}" for name in lists]
        evidence = "None" if self.evidence is None else f"{len(self.evidence)} rows"
        told = ", ".join([*held, f"tables={list(self.tables)}", f"evidence={evidence}"])
        return f"AuditResult({told})"

    @property
    def verdict(self) -> list[str]:
        """The sentences of the findings, the most severe first."""
        return [finding.sentence for finding in by_severity(self.findings)]


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The most severe first; what is equally severe stays in its order."""
    return sorted(findings, key=lambda finding: -finding.severity)
