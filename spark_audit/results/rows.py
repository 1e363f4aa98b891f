"""Rows and contrasts: the figures of a report, of single checkpoints and paired.

A :class:`Row` is one figure, and no row of text: those are examples of a manifest. A
:class:`Contrast` is a row with a baseline and a p; a ``Finding``
(:mod:`spark_audit.results.findings`) has the fields of :class:`Figure`, too. All refuse
NaN, a value without a status, and a missing reason.

Audits make rows with :meth:`Row.of_estimate`. Docstrings of fields and of classes here
are part of the report's JSON schema. A new column is a field of :class:`Row`, an
argument of ``of_estimate`` of both classes, and an entry of ``schemas/report.json``
(``tests/report/test_writers.py`` says how it is written).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from spark_audit.cells_html import short_repr
from spark_audit.errors import visible
from spark_audit.stats.estimate import (
    Estimate,
    Interval,
    Status,
    is_significant,
    side_of,
)

T = TypeVar("T")

HashableT = TypeVar("HashableT", bound=Hashable)

Family = Literal["primary", "exploratory"]
"""Whether a figure was declared beforehand, and is corrected with all that were."""

Over = Literal["sources", "seeds", "both"]
"""What the interval of a figure is over: clusters of sources, training runs of one
method with several seeds, or both."""

MIN_CLUSTERS_TO_PUBLISH = 5
"""Clusters of a figure that is shown, and of a dose that is tested by itself.
Statistical offices ask for at least three. With five, somebody must know four of them
to work out the last.
"""

WITHHELD = f"withheld: fewer than {MIN_CLUSTERS_TO_PUBLISH} clusters (see report.json)"
"""Note of a figure that shared files leave out, as its own group is too small."""

WITHHELD_NOTE = "withheld: else a smaller group could be worked out (see report.json)"
"""Note of a figure that is left out because of another group."""

Finite = Annotated[float, Field(allow_inf_nan=False)]

Number = Finite | None

AS_UNIT: dict[str, Any] = {"unit": "as the field `unit` says"}
"""Addition to the JSON schema of a figure's numbers."""

Measured = Annotated[Number, Field(json_schema_extra=AS_UNIT)]
"""A number that may be missing, in the unit that the field ``unit`` names."""

SMALLEST_P = 1e-300
"""Smallest p of a report. No test shows a p of 0: permutations show at least
``1 / (1 + draws)``, and formulas far below this underflow to 0."""


def resolvable_p(p: float) -> float:
    """Return a p value that is no smaller than what a formula can show.

    >>> resolvable_p(0.0), resolvable_p(0.03)
    (1e-300, 0.03)
    """
    return max(p, SMALLEST_P)


Probability = (
    Annotated[
        float,
        Field(ge=0, le=1, allow_inf_nan=False),
        AfterValidator(resolvable_p),
    ]
    | None
)
"""A p value; one that underflowed to 0 is stored as ``SMALLEST_P``."""

Count = Annotated[int, Field(ge=0, le=10**15)]

Text = Annotated[str, AfterValidator(visible)]
"""Text of a report with its invisible characters written out, whoever wrote it."""


POOLED = "pooled"
"""Group kind of a figure over all rows."""

ROW_GROUP = "group"
"""Group kind of a figure over the rows that share a value of a field (``--by``)."""


def group_parts(group: str) -> tuple[str, str]:
    """Split a group's text into its kind and value, at the first colon.

    >>> group_parts("type:SSN"), group_parts("pooled")
    (('type', 'SSN'), ('pooled', ''))
    """
    kind, _, value = group.partition(":")
    return kind, value


class Strict(BaseModel):
    """A record of a report file: immutable, and without unknown fields.

    Its errors do not show their input, which may be text of a row.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _without_rendered(cls, data: object) -> object:
        """Return the fields without those that are computed from others.

        It runs before a record is read. Files hold rendered sentences for human
        readers; a record is read from its facts.
        """
        computed = {
            field.alias or name for name, field in cls.model_computed_fields.items()
        }
        if not computed or not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if name not in computed}

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> Self:
        """Return a copy with changed fields, validated, unlike the method of pydantic.

        Raises
        ------
        ValidationError
            If the copy would hold what no new one could.
        """
        unchanged = super().model_copy(deep=deep)
        if not update:
            return unchanged

        # Validate the whole record: a changed field must fit the unchanged ones.
        return type(self).model_validate({**vars(unchanged), **update})

    def copy_unchecked(self, **changed: Any) -> Self:
        """Return a copy with changed fields that the caller knows to be valid.

        They follow from fields of valid records. Checking thousands of rows again would
        take longer than changing them; see :meth:`model_copy` for all other changes.
        """
        return super().model_copy(update=changed)


class Figure(Strict):
    """Where a figure stands, and what it is: of a row, or of what a finding claims."""

    audit: Text
    """Audit that made it."""
    checkpoint: Text
    """Checkpoint, or method with several seeds; of a finding on all of them empty."""
    metric: Text
    """What was measured; of a finding on none empty."""
    variant: Text = ""
    """Variant of the metric; empty if it has one."""
    group_kind: Text = POOLED
    """What the rows of its group share, as `type`, `task` or `split`; `pooled`: it is
    over all rows."""
    group_value: Text = ""
    """Which type, task or split; empty of `pooled`."""
    value: Measured = None
    """The figure; null exactly where it is not estimable."""
    low: Measured = None
    """Lower limit of the interval that decides."""
    high: Measured = None
    """Upper limit of the interval that decides."""
    unit: Text = ""
    """Unit of value, limits, nulls, mde and at_most; empty: none."""
    no_effect: Measured = None
    """Value of no effect."""
    mde: Measured = None
    """Smallest effect that is detected with 80% power: at the level that a claim must
    pass where a primary finding rests on this figure (0.05 divided by the primary tests
    of the report, Holm's first step; null if none can be), at 5% divided by the tests
    of the table where p is corrected over them, else by one two-sided test at 5%."""
    at_most: Measured = None
    """What could still be there: the end, in the direction of a leak, of the interval
    at the level that a claim must pass (that of `mde`); a value as `value` is, not a
    distance from `no_effect`. Null where nothing was tested or the setup is void, and
    of figures that no claim rests on."""
    status: Status = "ok"
    """Whether the figure may be concluded on; `void`: a setup guard failed."""
    state: Text = ""
    """State of its checkpoint, as the report's first screen has it; empty: none."""
    voided_by: Text = ""
    """Setup guard that failed and voids it; empty: none."""
    family: Family = "exploratory"
    """`primary`: declared beforehand, and corrected over all checkpoints together."""

    @property
    def group(self) -> str:
        """Its group as one text, as ``type:SSN``; or ``pooled``."""
        if not self.group_value:
            return self.group_kind
        return f"{self.group_kind}:{self.group_value}"


class Row(Figure):
    """One figure of a report (tidy: one row a figure)."""

    interval_level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Confidence level of the intervals, a share."""
    interval_method: Interval = "none"
    """How low and high were made."""
    parity_low: Measured = None
    """Lower limit by percentiles of the bootstrap."""
    parity_high: Measured = None
    """Upper limit by percentiles of the bootstrap."""
    n: Count = 0
    """How many tokens, identifiers, rows of text or answers were averaged: which of
    these, the audit says."""
    clusters: Count = 0
    """How many independent clusters they are in."""
    side_clusters: Count = 0
    """Of a figure that compares two sides by pairs, such as an AUC: clusters of the
    smallest side, times the tasks that it is averaged over; 0 of all other figures."""
    no_effect_low: Measured = None
    """Lower end of the band of no effect."""
    no_effect_high: Measured = None
    """Upper end of the band of no effect."""
    interval_over: Over = "sources"
    """What the intervals are over."""
    note: Text = ""
    """Why a figure is missing or void; remarks."""

    @model_validator(mode="after")
    def _check_value_and_status(self) -> Row:
        """Refuse a missing value without a reason, and a value that must be missing."""
        if (self.value is None) != (self.status == "not_estimable"):
            raise ValueError("value is null exactly when status is not_estimable")
        if self.status == "not_estimable" and not self.note:
            raise ValueError("a not_estimable row needs its reason in note")

        return self

    def __repr__(self) -> str:
        return short_repr(
            self,
            audit=self.audit,
            checkpoint=self.checkpoint,
            metric=self.metric,
            variant=self.variant,
            group=self.group,
            status=self.status,
        )

    def __str__(self) -> str:
        return repr(self)

    @property
    def ends(self) -> tuple[float, float] | None:
        """Both ends of the interval that decides, if it has one."""
        if self.low is None or self.high is None:
            return None
        return self.low, self.high

    @property
    def withheld(self) -> bool:
        """True if the figure exists but shared files leave it out."""
        return self.value is None and self.note in (WITHHELD, WITHHELD_NOTE)

    @classmethod
    def of_estimate(
        cls,
        estimate: Estimate,
        *,
        audit: str,
        checkpoint: str,
        metric: str,
        variant: str = "",
        group: str = "pooled",
        unit: str = "",
        no_effect: float | None = None,
        no_effect_low: float | None = None,
        no_effect_high: float | None = None,
        status: Status | None = None,
        family: Family = "exploratory",
        interval_over: Over = "sources",
        note: str = "",
    ) -> Row:
        """Return a row with an estimate's figures and the given columns.

        Parameters
        ----------
        group
            Its kind and value as one text, as ``type:SSN``; or ``pooled``.
        status
            Default: that of the estimate.
        note
            Text that is appended to the note of the estimate.
        """
        group_kind, group_value = group_parts(group)

        # Rows have no standard error, only the limits that follow from it.
        return Row(
            audit=audit,
            checkpoint=checkpoint,
            metric=metric,
            variant=variant,
            group_kind=group_kind,
            group_value=group_value,
            value=estimate.value,
            low=estimate.low,
            high=estimate.high,
            unit=unit,
            no_effect=no_effect,
            mde=estimate.mde,
            status=estimate.status if status is None else status,
            family=family,
            interval_level=estimate.level,
            interval_method=estimate.interval,
            parity_low=estimate.parity_low,
            parity_high=estimate.parity_high,
            n=estimate.n,
            clusters=estimate.clusters,
            side_clusters=estimate.side_clusters,
            no_effect_low=no_effect_low,
            no_effect_high=no_effect_high,
            interval_over=interval_over,
            note=_joined(estimate.note, note),
        )


class Contrast(Row):
    """A paired comparison of a checkpoint with a baseline over the same manifest."""

    baseline: Text
    """What the checkpoint is held against."""
    p: Probability = None
    """Two-sided p of no difference."""
    p_adjusted: Probability = None
    """p corrected (Holm) over the checkpoints of the family."""

    @classmethod
    def of_estimate(  # type: ignore[override]  # a contrast needs its baseline
        cls,
        estimate: Estimate,
        *,
        audit: str,
        checkpoint: str,
        baseline: str,
        metric: str,
        variant: str = "",
        group: str = "pooled",
        unit: str = "",
        no_effect: float | None = None,
        no_effect_low: float | None = None,
        no_effect_high: float | None = None,
        mde: float | None = None,
        status: Status | None = None,
        family: Family = "exploratory",
        interval_over: Over = "sources",
        note: str = "",
        p: float | None = None,
        p_adjusted: float | None = None,
    ) -> Contrast:
        """Return a contrast with an estimate's figures, as :meth:`Row.of_estimate`.

        Parameters
        ----------
        estimate
            The difference: checkpoint minus baseline.
        mde
            Default: the value of the estimate, which holds for a single test.
        """
        group_kind, group_value = group_parts(group)

        return Contrast(
            audit=audit,
            checkpoint=checkpoint,
            baseline=baseline,
            metric=metric,
            variant=variant,
            group_kind=group_kind,
            group_value=group_value,
            value=estimate.value,
            low=estimate.low,
            high=estimate.high,
            unit=unit,
            no_effect=no_effect,
            mde=estimate.mde if mde is None else mde,
            status=estimate.status if status is None else status,
            family=family,
            interval_level=estimate.level,
            interval_method=estimate.interval,
            parity_low=estimate.parity_low,
            parity_high=estimate.parity_high,
            n=estimate.n,
            clusters=estimate.clusters,
            side_clusters=estimate.side_clusters,
            no_effect_low=no_effect_low,
            no_effect_high=no_effect_high,
            interval_over=interval_over,
            note=_joined(estimate.note, note),
            p=p,
            p_adjusted=p_adjusted,
        )

    @property
    def best_p(self) -> float | None:
        """The corrected p if there is one, else the p of the single test."""
        return self.p if self.p_adjusted is None else self.p_adjusted

    def direction(self, *, up: str, down: str) -> str:
        """Return where its interval lies, as a part of the key of a sentence.

        Parameters
        ----------
        up, down
            Returned if it lies above 0, or below.

        Returns
        -------
        ``missing`` without an interval, ``still`` where it contains 0, else one of the
        arguments.
        """
        side = side_of(self)
        if side is None:
            return "missing"
        if side == 0:
            return "still"

        # The caller names both directions: which of them is good depends on the metric.
        return up if side > 0 else down

    @property
    def moved(self) -> bool:
        """True if a change may be claimed: interval and test both show it.

        The interval must lie above or below 0, and p, not corrected, must be at most 1
        minus its level.
        """
        is_beside_0 = bool(side_of(self))
        return is_beside_0 and is_significant(self.p, level=self.interval_level)


def _joined(*notes: str) -> str:
    """Join the notes that are not empty."""
    return "; ".join(note for note in notes if note)


def grouped(
    items: Iterable[T], key: Callable[[T], HashableT]
) -> dict[HashableT, list[T]]:
    """Group items by a key; groups stand in the order of their first items."""
    groups: dict[HashableT, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
