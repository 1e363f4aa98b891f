"""Estimates, the figures of a report, and what is concluded from them.

Figures are of single checkpoints, and against a baseline. They refuse NaN, a value
without a status, and a missing reason. Findings and guards are a key and typed facts
each; a sentence is rendered from them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    computed_field,
    model_validator,
)

from spark_audit import sentences
from spark_audit.errors import InputError, choose, visible
from spark_audit.sentences import capitalised
from spark_audit.stats.estimate import Estimate, Interval, Power, Status, side_of

if TYPE_CHECKING:
    import pandas as pd

    from spark_audit.results.evidence import Evidence

T = TypeVar("T")
HashableT = TypeVar("HashableT", bound=Hashable)
Family = Literal["primary", "exploratory"]
Over = Literal["sources", "seeds", "both"]
MIN_CLUSTERS_TO_PUBLISH = 5
"""Clusters of a figure that is shown, and of a dose that is tested by itself. Three are
the least that offices ask for; with five, four of them would have to be known to work
out the last."""
WITHHELD = f"withheld: fewer than {MIN_CLUSTERS_TO_PUBLISH} clusters (see report.json)"
WITHHELD_NOTE = "withheld: else a smaller group could be worked out (see report.json)"


Finite = Annotated[float, Field(allow_inf_nan=False)]
Number = Finite | None
AS_UNIT: dict[str, Any] = {"unit": "as the field `unit` says"}
Measured = Annotated[Number, Field(json_schema_extra=AS_UNIT)]
"""A number that may be missing, in the unit that the field ``unit`` names."""
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None
Count = Annotated[int, Field(ge=0, le=10**15)]
Text = Annotated[str, AfterValidator(visible)]
"""Text of a report: it may come from somebody else, and hides nothing."""


class Strict(BaseModel):
    """What a report file holds: it does not change, and knows all of its fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _without_rendered(cls, data: Any) -> Any:
        # Files hold sentences for their readers; the facts are what counts.
        rendered = cls.model_computed_fields
        if rendered and isinstance(data, dict):
            return {k: v for k, v in data.items() if k not in rendered}
        return data

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
        return type(self).model_validate({**vars(same), **update})


class Figure(Strict):
    """Where a figure stands, and what it is: of a row, or of what a finding claims."""

    audit: Text
    """Audit that made it."""
    checkpoint: Text
    """Checkpoint, or method with several seeds; of a finding on all of them empty."""
    metric: Text
    """What was measured; of a finding on none empty."""
    of: Text = ""
    """Variant of the metric; empty if it has one."""
    group: Text = "pooled"
    """`pooled`, or a part, as `type:SSN`, `task:T`, `split:S`."""
    value: Measured = None
    """The figure; null exactly where it is not estimable."""
    low: Measured = None
    """Lower limit of the interval that decides."""
    high: Measured = None
    """Upper limit of the interval that decides."""
    unit: Text = ""
    """Unit of value, limits, nulls and mde; empty: none."""
    null: Measured = None
    """Value of no effect."""
    mde: Measured = None
    """Smallest effect that is detected with 80% power: at the level that a claim must
    pass where a primary finding rests on this figure (0.05 divided by the primary tests
    of the report, Holm's first step; null if none can be), at 5% divided by the tests
    of the table where p is corrected over them, else by one two-sided test at 5%."""
    status: Status = "ok"
    """Whether the figure may be concluded on; `void`: a setup guard failed."""
    state: Text = ""
    """State of its checkpoint, as the report's first screen has it; empty: none."""
    voided_by: Text = ""
    """Setup guard that failed and voids it; empty: none."""
    family: Family = "exploratory"
    """`primary`: declared beforehand, and corrected over all checkpoints together."""


class Row(Figure):
    """One figure of a report (tidy: one row a figure)."""

    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Confidence level of the intervals, a share."""
    interval: Interval = "none"
    """How low and high were made."""
    parity_low: Measured = None
    """Lower limit by percentiles of the bootstrap."""
    parity_high: Measured = None
    """Upper limit by percentiles of the bootstrap."""
    n: Count = 0
    """How many were averaged."""
    clusters: Count = 0
    """How many independent clusters they are in."""
    null_low: Measured = None
    """Lower end of the band of no effect."""
    null_high: Measured = None
    """Upper end of the band of no effect."""
    over: Over = "sources"
    """What the intervals are over."""
    note: Text = ""
    """Why a figure is missing or void; remarks."""

    @model_validator(mode="after")
    def _consistent(self) -> Row:
        if (self.value is None) != (self.status == "not_estimable"):
            raise ValueError("value is null exactly when status is not_estimable")
        if self.status == "not_estimable" and not self.note:
            raise ValueError("a not_estimable row needs its reason in note")
        return self

    @property
    def grouping(self) -> tuple[str, str]:
        """Kind and name of the part it is of: ``("type", "SSN")``; or ``"pooled"``."""
        kind, _, name = self.group.partition(":")
        return kind, name

    @property
    def ends(self) -> tuple[float, float] | None:
        """Both ends of the interval that decides, if it has one."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def withheld(self) -> bool:
        """Whether a figure is there, but not in what can be shared."""
        return self.value is None and self.note in (WITHHELD, WITHHELD_NOTE)

    @classmethod
    def of_estimate(cls, estimate: Estimate, **columns: Any) -> Self:
        """A row with the estimate's figures and the given identifying columns."""
        notes = filter(None, (estimate.note, columns.pop("note", "")))
        columns = {**vars(estimate), **columns, "note": "; ".join(notes)}
        del columns["se"]  # rows have what follows from it
        return cls(**columns)


class Contrast(Row):
    """A paired comparison of a checkpoint with a baseline over the same manifest."""

    baseline: Text
    """What the checkpoint is held against."""
    p: Probability = None
    """Two-sided p of no difference."""
    p_adjusted: Probability = None
    """p corrected (Holm) over the checkpoints of the family."""

    @property
    def best_p(self) -> float | None:
        """The p that counts: corrected, where it is one of several."""
        return self.p if self.p_adjusted is None else self.p_adjusted

    def direction(self, *, up: str, down: str) -> str:
        """Where its interval lies: ``missing``, ``still``, or either side of 0."""
        return {None: "missing", 0: "still", 1: up, -1: down}[side_of(self)]

    @property
    def moved(self) -> bool:
        """Whether a change may be claimed: its interval and its test agree on one."""
        return bool(side_of(self)) and self.p is not None and self.p <= 1 - self.level


def grouped(
    items: Iterable[T], key: Callable[[T], HashableT]
) -> dict[HashableT, list[T]]:
    """Items by a key, in the order in which its values come first."""
    parts: dict[HashableT, list[T]] = {}
    for item in items:
        parts.setdefault(key(item), []).append(item)
    return parts


def frame(of: str, held: Any, lists: Mapping[str, type[BaseModel]]) -> pd.DataFrame:
    """One of the lists that something holds, or of its further tables, as a frame.

    Raises
    ------
    InputError
        If there is none of that name; it names those that there are.
    """
    import pandas as pd

    if of in lists:
        records = [one.model_dump() for one in getattr(held, of)]
        names = [*lists[of].model_fields, *lists[of].model_computed_fields]
        table = pd.DataFrame(records, columns=names)
        return table.drop(columns="facts", errors="ignore")
    if of in held.tables:
        return pd.DataFrame(held.tables[of])
    fix = choose(of, [*lists, *held.tables])
    raise InputError(f"there is no table {of!r}", fix=fix)


class Hits(Strict):
    """How many of so many; shared files round the count as their clusters ask for."""

    count: Count
    """How many."""
    of: Count
    """Of how many."""
    tied: Count = 0
    """How many more if ties are won."""
    rounded: bool = False
    """Whether the count is rounded."""
    vague: bool = False
    """Whether it is only some."""


def _compact(value: Any) -> Any:
    if isinstance(value, list):
        return [_compact(each) for each in value]
    if isinstance(value, Row | Hits):
        return value.model_dump(exclude_defaults=True)
    return value


Fact: TypeAlias = Annotated[
    Contrast
    | Row
    | Hits
    | bool
    | int
    | float
    | Text
    | list[Text]
    | list[list[Text]]
    | Sequence[Contrast | Row]
    | None,
    PlainSerializer(_compact),
]
"""What a sentence is rendered from: figures (with their row's names, so that they are
rounded and withheld as the row is), counts, p values, names; never a sentence."""


class Rendered(Strict):
    """What is shown as a sentence: the key of its template, and the facts in it."""

    says: Text
    """Key of the sentence in `spark_audit/sentences`."""
    facts: Mapping[Text, Fact] = {}
    """What the sentence is rendered from."""

    @property
    def withheld(self) -> bool:
        """Whether a figure of its sentence is left out of what can be shared."""
        return any(isinstance(f, Row) and f.withheld for f in self.facts.values())


class Guard(Rendered):
    """A condition that can void a claim; ``passed`` is null when it is a warning."""

    name: Text
    """What is asked for."""
    checkpoint: Text = ""
    """Whose claim it voids; empty: all."""
    passed: bool | None
    """Null: a warning."""

    @property
    def title(self) -> str:
        """The name in the language of the report."""
        return sentences.optional(f"check.{self.name}") or self.name

    @computed_field  # type: ignore[prop-decorator]
    @property
    def detail(self) -> str:
        """What was found, in a sentence."""
        return sentences.render(self.says, **self.facts)


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
SEVERITY = dict(zip(get_args(Claim), (6, 5, 4, 3, 2, 2, 2, 2, 1, 0), strict=True))
"""How much a claim matters to who must decide: 6 first, 0 last."""
DETECTED = 3
"""Claims from this severity on are detections: nothing may fold or cut them."""
UNUSABLE: tuple[Status, ...] = ("invalid", "void")
"""Statuses of a figure on which nothing can be concluded."""
EXCESS = "_excess"
"""What the metric of a finding ends in that claims a difference of two figures."""
OF_REPORT = "report"
"""Stands for the audit of a finding on the report as a whole, which comes first."""


class Finding(Rendered, Figure):
    """What is claimed, of which checkpoint, on what figure.

    ``severity`` follows from ``claim``. The figures are those that it claims: of the
    row that it rests on, or what that is beyond another. What a primary finding detects
    ``alone`` is claimed only if its ``p`` holds once corrected over the primary
    findings of the whole report; else nothing is. One whose ``status`` is ``void`` or
    ``invalid`` is no detection.
    """

    checkpoint: Text = ""
    """Of whom; empty: of all of them."""
    metric: Text = ""
    """What was measured; empty: nothing. `auc_excess` and the like: what the metric has
    beyond another figure, so that `null` is 0."""
    claim: Claim
    """What is claimed."""
    alone: Claim = "nothing_shown"
    """What it claims by itself, before the correction over the report."""
    severity: int = Field(default=0, ge=0, le=6)
    """How much it matters; detections from 3 on."""
    power: list[Power] = []
    """The tests that a claim needs, to work `mde` out."""
    p: Probability = None
    """p of the test that it rests on, corrected within its audit, a probability; null:
    no test."""
    p_adjusted: Probability = None
    """p, a probability: of a primary finding corrected (Holm) over all of them, of
    others that of their contrast."""
    tests: Count = 0
    """Primary tests of the report that p is corrected over."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """What readers are told."""
        text = self.text
        return f"{self.subject}: {text}" if self.subject else capitalised(text)

    @property
    def lead(self) -> str:
        """The sentence where its checkpoint stands in front already."""
        about = f"{self.says}.subject"
        return self.sentence if sentences.knows(about) else capitalised(self.text)

    @property
    def subject(self) -> str:
        """What it is about; empty: the report as a whole."""
        key = f"{self.says}.subject"
        return self._rendered(key) if sentences.knows(key) else self.checkpoint

    @property
    def text(self) -> str:
        """The sentence without its subject."""
        says = f"{self.says}.withdrawn" if self.withdrawn else self.says
        keys = ("void", says) if self.voided_by else (says, "ending")
        return " ".join(filter(None, map(self._rendered, keys)))

    def _rendered(self, key: str) -> str:
        return sentences.render(key, **self.facts, finding=self)

    @property
    def shows_effect(self) -> bool:
        """Whether its sentence states the smallest effect: only without a claim."""
        claims = ("confounded", "not_tested")
        nothing = SEVERITY[self.claim] < DETECTED and self.claim not in claims
        return bool(self.power) and nothing and self.status not in UNUSABLE

    @property
    def why(self) -> str:
        """Why no effect can be detected; empty where one can."""
        lacking = (one.why for one in self.power if not one.of and one.mde is None)
        return next(lacking, "")

    @property
    def row_metric(self) -> str:
        """The metric of the row that it rests on, if it claims an excess of it."""
        return self.metric.removesuffix(EXCESS)

    @property
    def withdrawn(self) -> bool:
        """Whether the correction over the report took its claim away."""
        return self.claim != self.alone

    @property
    def detected(self) -> bool:
        """Whether it says that something leaks: it is never folded, cut or left out."""
        return self.severity >= DETECTED

    @model_validator(mode="before")
    @classmethod
    def _weighed(cls, data: Any) -> Any:
        claim = data.get("claim") if isinstance(data, dict) else None
        if isinstance(claim, str) and claim in SEVERITY:
            severity = SEVERITY[claim]
            if severity >= DETECTED and data.get("status") in UNUSABLE:
                severity = 0  # what is void is no detection
            return {"alone": claim, **data, "severity": severity}
        return data

    @model_validator(mode="after")
    def _reversible(self) -> Finding:
        if self.family == "primary" and SEVERITY[self.alone] >= DETECTED:
            if self.p is None:
                raise ValueError("a primary detection has its p")
        elif self.claim != self.alone:
            raise ValueError("only a primary detection can be taken away")
        return self

    @classmethod
    def not_tested(
        cls,
        audit: str,
        says: str,
        *,
        checkpoint: str = "",
        status: Status = "ok",
        **facts: Fact,
    ) -> Finding:
        """That something was not tested, and why."""
        told: dict[str, Any] = {"status": status, "facts": facts}
        where = {"audit": audit, "checkpoint": checkpoint}
        return cls.on(None, "not_tested", says, **where, **told)

    @classmethod
    def on(cls, row: Row | None, claim: Claim, says: str, **columns: Any) -> Finding:
        """A finding that rests on one row, whose figures it takes over.

        One with a p is primary, whatever the family of its row's own figure.
        """
        told: dict[str, Any] = {}
        if row is not None:
            told = row.model_dump(include={*Figure.model_fields, "p_adjusted"})
        told["family"] = "exploratory" if columns.get("p") is None else "primary"
        return cls(**{**told, **columns}, claim=claim, says=says)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The most severe first; what is equally severe stays in its order.

    What is said of the report as a whole stands before all.
    """

    def place(one: Finding) -> tuple[bool, int]:
        return one.audit != OF_REPORT or bool(one.checkpoint), -one.severity

    return sorted(findings, key=place)


REPORT_LISTS: dict[str, type[Strict]] = {
    "results": Row,
    "contrasts": Contrast,
    "guards": Guard,
    "findings": Finding,
}
"""What audits and reports hold lists of."""


@dataclass(frozen=True, repr=False)
class AuditResult:
    """What an audit concludes, before it is written anywhere.

    ``findings`` say in plain words what was found and what was not. ``tables`` are
    small further tables by name (a list of records each) that stand in the report,
    ``settings`` what was really used; ``evidence`` is what the audit concludes from,
    written to ``scores/`` and read again by comparisons, which need neither model nor
    manifest. Neither holds text or token ids.
    """

    rows: list[Row] = field(default_factory=list)
    contrasts: list[Contrast] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    evidence: Evidence | None = None

    def __repr__(self) -> str:
        return f"AuditResult({len(self.rows)} rows, {len(self.findings)} findings)"

    def to_frame(self, of: str = "results") -> pd.DataFrame:
        """The rows as a frame, a figure a line.

        Parameters
        ----------
        of
            ``results``, ``contrasts``, ``guards``, ``findings``, or a further table.
        """
        return frame(of, self, REPORT_LISTS)

    @property
    def results(self) -> list[Row]:
        """The rows, as reports call them."""
        return self.rows

    @property
    def verdict(self) -> list[str]:
        """The sentences of the findings, the most severe first."""
        return [finding.sentence for finding in by_severity(self.findings)]
