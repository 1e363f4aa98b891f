"""Estimates of statistics, and the figures of a report that are made of them.

Figures are of single checkpoints, and against a baseline. They refuse NaN, a value
without a status, and a missing reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)

from spark_audit.errors import InputError, choose, visible

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Status = Literal["ok", "not_estimable", "invalid", "not_resolvable", "insensitive"]
Interval = Literal[
    "jackknife-t",
    "korn-graubard",
    "clopper-pearson",
    "delong",
    "percentile",
    "beta-binomial",
    "none",
]
Family = Literal["primary", "exploratory"]
Over = Literal["sources", "seeds", "both"]
FEWEST = 5
"""Clusters of a figure that is shown. Three are the least that offices ask for; with
five, four of them would have to be known to work out the last."""
WITHHELD = f"withheld: fewer than {FEWEST} clusters (see report.json)"
BESIDE = "withheld: else a smaller group could be worked out (see report.json)"


Finite = Annotated[float, Field(allow_inf_nan=False)]
Number = Finite | None
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None
Count = Annotated[int, Field(ge=0, le=10**15)]
Text = Annotated[str, AfterValidator(visible)]
"""Text of a report: it may come from somebody else, and hides nothing."""


@dataclass(frozen=True)
class Estimate:
    """A value with its decision interval and its percentile interval.

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
        for name, number in vars(self).items():
            if isinstance(number, float) and not math.isfinite(number):
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

    def between(self, low: float, high: float) -> Estimate:
        """The same estimate with a percentile interval, which decides too."""
        return replace(
            self,
            low=low,
            high=high,
            interval="percentile",
            parity_low=low,
            parity_high=high,
        )

    def noting(self, text: str) -> Estimate:
        """The same estimate with a sentence added to its note."""
        return replace(self, note=f"{self.note}; {text}" if self.note else text)


def measured(description: str) -> Any:
    """A number that may be missing, in the unit that the field ``unit`` names."""
    return Field(
        default=None,
        description=description,
        json_schema_extra={"unit": "as the field `unit` says"},
    )


class Strict(BaseModel):
    """What a report file holds: it does not change, and knows all of its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        kept = {name: getattr(same, name) for name in same.model_fields_set}
        return type(self).model_validate({**kept, **update})


class Figure(Strict):
    """Where a figure stands, and what it is: of a row, or of what a finding claims."""

    audit: Text = Field(description="Audit that made it.")
    checkpoint: Text = Field(
        description="Checkpoint, or method with several seeds; of a finding on all of "
        "them empty."
    )
    metric: Text = Field(description="What was measured; of a finding on none empty.")
    of: Text = Field(
        default="", description="Variant of the metric; empty if it has one."
    )
    group: Text = Field(
        default="pooled",
        description="`pooled`, or a part, as `type:SSN`, `task:T`, `split:S`.",
    )
    value: Number = measured("The figure; null exactly where it is not estimable.")
    low: Number = measured("Lower limit of the interval that decides.")
    high: Number = measured("Upper limit of the interval that decides.")
    unit: Text = Field(
        default="", description="Unit of value, limits, nulls and mde; empty: none."
    )
    null: Number = measured("Value of no effect.")
    mde: Number = measured(
        "Smallest effect that is detected with 80% power: at the level that a claim "
        "must pass where a primary finding rests on this figure (0.05 divided by the "
        "primary tests of the report, Holm's first step; null if none can be), at 5% "
        "divided by the tests of the table where p is corrected over them, else by one "
        "two-sided test at 5%."
    )
    status: Status = Field(
        default="ok", description="Whether the figure may be concluded on."
    )
    family: Family = Field(
        default="exploratory",
        description="`primary`: declared beforehand, and corrected over all "
        "checkpoints together.",
    )


class Row(Figure):
    """One figure of a report (tidy: one row a figure)."""

    level: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.95, description="Confidence level of the intervals, a share."
    )
    interval: Interval = Field(
        default="none", description="How low and high were made."
    )
    parity_low: Number = measured("Lower limit by percentiles of the bootstrap.")
    parity_high: Number = measured("Upper limit by percentiles of the bootstrap.")
    n: Count = Field(default=0, description="How many were averaged.")
    clusters: Count = Field(
        default=0, description="How many independent clusters they are in."
    )
    null_low: Number = measured("Lower end of the band of no effect.")
    null_high: Number = measured("Upper end of the band of no effect.")
    over: Over = Field(default="sources", description="What the intervals are over.")
    note: Text = Field(
        default="", description="Why a figure is missing or void; remarks."
    )

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
        return self.value is None and self.note in (WITHHELD, BESIDE)

    @classmethod
    def of_estimate(cls, estimate: Estimate, **columns: Any) -> Self:
        """A row with the estimate's figures and the given identifying columns."""
        note = "; ".join(t for t in (estimate.note, columns.pop("note", "")) if t)
        shared = {k: v for k, v in vars(estimate).items() if k in cls.model_fields}
        return cls(**{**shared, **columns, "note": note})


def side_of(figure: Estimate | Row, null: float = 0.0) -> int | None:
    """1, -1: its interval is above, below a value; 0: around it; None: it has none."""
    if figure.low is None or figure.high is None:
        return None
    return int(figure.low > null) - int(figure.high < null)


class Contrast(Row):
    """A paired comparison of a checkpoint with a baseline over the same manifest."""

    baseline: Text = Field(description="What the checkpoint is held against.")
    p: Probability = Field(default=None, description="Two-sided p of no difference.")
    p_adjusted: Probability = Field(
        default=None,
        description="p corrected (Holm) over the checkpoints of the family.",
    )

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


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by a key, in the order in which its values come first."""
    parts: dict[K, list[T]] = {}
    for item in items:
        parts.setdefault(key(item), []).append(item)
    return parts


def frame(
    of: str,
    lists: Mapping[str, tuple[type[BaseModel], Sequence[BaseModel]]],
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
) -> pd.DataFrame:
    """One of some lists, or of the further tables, as a frame.

    Raises
    ------
    InputError
        If there is none of that name; it names those that there are.
    """
    import pandas as pd

    if of in lists:
        kind, rows = lists[of]
        records = [one.model_dump() for one in rows]
        names = [*kind.model_fields, *kind.model_computed_fields]
        return pd.DataFrame(records, columns=[n for n in names if n != "facts"])
    if of in tables:
        return pd.DataFrame(tables[of])
    fix = choose(of, [*lists, *tables])
    raise InputError(f"there is no table {of!r}", fix=fix)
