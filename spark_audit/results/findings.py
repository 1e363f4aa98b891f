"""Findings and guards: the conclusions from the figures of a report.

Each consists of keys and typed facts (:mod:`~spark_audit.results.facts`), from which
its sentences are rendered: ``says`` is the key of a template in
``spark_audit/sentences/en/``, ``further`` those of the sentences after it, and
``facts`` what the templates show. Docstrings of fields and of classes here are part of
the report's JSON schema.

Audits make findings (:meth:`Finding.on`, :meth:`Finding.not_tested`), and the report
corrects them over all primary tests. A new claim is a word of :data:`Claim` with its
place in :data:`SEVERITY`; a new sentence is a template, and a key given by the audit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Literal, TypeVar

from pydantic import Field, computed_field, model_validator

from spark_audit import sentences
from spark_audit.cells_html import facts_html, short_repr
from spark_audit.names import is_untrained
from spark_audit.results.facts import Fact as Fact
from spark_audit.results.facts import Hits as Hits
from spark_audit.results.facts import Rendered as Rendered
from spark_audit.results.rows import (
    ROW_GROUP,
    Contrast,
    Count,
    Family,
    Figure,
    Probability,
    Row,
    Text,
)
from spark_audit.sentences import capitalised
from spark_audit.stats.estimate import Bound, Power, Status

T = TypeVar("T")

Claim = Literal[
    "verbatim",
    "memory",
    "membership",
    "suppressed",
    "betrays",
    "confounded",
    "suppressed_kind",
    "formats",
    "moved",
    "erased",
    "nothing_shown",
    "not_tested",
]
"""What a finding claims of a checkpoint.

``verbatim``: it gives identifiers back word by word. ``memory``: trained identifiers or
canaries are likelier than held-out ones. ``membership``: trained rows can be told from
held-out ones. ``suppressed``: rows that should be forgotten cannot be told any more,
but a short training on other rows, or rounding, brings them back. ``betrays``: trained
identifiers are less likely than held-out ones, which tells whose they are.
``confounded``: the difference may have another cause than training.
``suppressed_kind``, ``formats``: identifiers as a kind became less likely, or likelier,
but no memory is shown. ``moved``: a figure changed, which alone is no leak.
``erased``: what remains of rows that should be forgotten lies within a declared margin.
``nothing_shown``: the test detects nothing. ``not_tested``: there was no test.
"""

SEVERITY: Mapping[str, int] = {
    "verbatim": 6,
    "memory": 5,
    "membership": 4,
    "suppressed": 4,
    "betrays": 3,
    "confounded": 2,
    "suppressed_kind": 2,
    "formats": 2,
    "moved": 2,
    "erased": 1,
    "nothing_shown": 1,
    "not_tested": 0,
}
"""Claim -> how much it matters for a decision: 6 most, 0 least."""

ALPHA = 0.05
"""Level of a claim, after correction for all tests of a report."""

DETECTED = 3
"""Claims of at least this severity are detections, which no output may leave out."""

SHOWN_BY_TEST = ("erased",)
"""Claims that are no detections, but need a p that holds once corrected, too: they say
that something is shown to be absent."""

UNUSABLE: tuple[Status, ...] = ("invalid", "void")
"""Statuses of figures that allow no conclusion: a finding on them has severity 0."""

EXCESS = "_excess"
"""Ending of the metric of a finding that claims a difference of two figures."""

ANSWERS_EACH = "answers_each"
"""Fact that only findings on an endpoint have that gives nothing but text: the number
of answers to each prompt."""

UNBOUNDED = "unbounded"
"""Fact of a finding whose tests have no interval: the reason."""

REMARKS_ON_CLAIM = ("groups.stands_out", "groups.not_apart", "groups.others")
"""Keys of remarks that go with a claim, where the correction takes it away."""

OF_REPORT = "report"
"""Stands for the audit of a finding on the report as a whole, which comes first."""


class OfRow(Enum):
    """Default of an argument: take the figure of the row. None means no figure."""

    TAKEN = "taken"


OF_ROW = OfRow.TAKEN


def _given_or(argument: T | OfRow, of_row: T) -> T:
    """Return an argument if it was given, else the value of the row.

    ``None`` is a given argument, too: it says that there is no figure.
    """
    if isinstance(argument, OfRow):
        return of_row
    return argument


class Finding(Rendered, Figure):
    """A claim on a checkpoint, and the figure that it rests on.

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
    beyond another figure, so that `no_effect` is 0."""
    claim: Claim
    """What is claimed."""
    alone: Claim = "nothing_shown"
    """What it claims by itself, before the correction over the report."""
    severity: int = Field(default=0, ge=0, le=6)
    """How much it matters; detections from 3 on."""
    power: list[Power] = []
    """The tests that a claim needs, to work `mde` out."""
    bounds: list[Bound] = []
    """What `at_most` is worked out from, and of groups that have a row of their own."""
    p: Probability = None
    """p of the test that it rests on, corrected within its audit, a probability; null:
    no test."""
    p_adjusted: Probability = None
    """p, a probability: of a primary finding corrected (Holm) over all of them, of
    others that of their contrast."""
    tests: Count = 0
    """Primary tests of the report that p is corrected over."""
    verdict: Text = ""
    """The word of its audit for what it concludes of the checkpoint, as `REMEMBERED`;
    empty: its audit has none. It is worked out again whenever a report is read."""
    figures: Text = ""
    """Its figures in one line, for readers, as they stand here: estimate and interval,
    the value without a leak, p, sizes, and what could still be there. It is worked out
    again whenever a report is read."""

    def __repr__(self) -> str:
        return short_repr(
            self,
            self.claim,
            audit=self.audit,
            checkpoint=self.checkpoint,
            metric=self.metric,
            status=self.status,
        )

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        """Return its claim as a notebook shows it, without figures."""
        facts = {
            "claim": self.claim,
            "checkpoint": self.checkpoint,
            "audit": self.audit,
            "metric": self.metric,
            "group": self.group,
            "status": self.status,
        }
        return facts_html("Finding", facts, note="Sentences: sentence; line: figures.")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """All that readers are told: the subject, the text and its remarks."""
        text_and_remarks = " ".join([self.text, *self.remarks])
        if not self.subject:
            return capitalised(text_and_remarks)
        return f"{self.subject}: {text_and_remarks}"

    @property
    def lead(self) -> str:
        """The sentence where its checkpoint stands in front already."""
        # The name of the checkpoint does not replace a subject that the template names.
        if sentences.knows(f"{self.says}.subject"):
            return self.sentence

        return capitalised(" ".join([self.text, *self.remarks]))

    @property
    def subject(self) -> str:
        """The subject of its sentences; empty: the report as a whole."""
        key = f"{self.says}.subject"
        if sentences.knows(key):
            return self._rendered(key)
        return self.checkpoint

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """The claim in one sentence, without subject, figures and remarks."""
        says = self.says
        if self.withdrawn:
            says = f"{self.says}.withdrawn"
        text = self._rendered(says)

        if self.voided_by:
            return f"{self._rendered('void')} {text}"
        return text

    @property
    def remarks(self) -> list[str]:
        """The sentences that follow the text, each whole."""
        keys = [*self.further]
        if self.withdrawn:
            keys = [key for key in keys if key not in REMARKS_ON_CLAIM]
        # A void finding has one closing remark: the fault of its setup.
        if not self.voided_by:
            keys += self._closing_keys()

        remarks = [self._rendered(key) for key in keys]
        return [remark for remark in remarks if remark]

    def _closing_keys(self) -> list[str]:
        """Return the keys of the sentences that follow from its figures.

        They are chosen at rendering, because the correction over the report and the
        rounding of shared files happen after the finding is made.
        """
        keys = []
        # Say why a finding that is close to a claim makes none.
        if self.withdrawn and is_untrained(self.checkpoint):
            keys.append("ending.untrained")
        elif self.is_lost_to_correction:
            keys.append("ending.withdrawn")
        if self._excludes_null_uncorrected():
            keys += self._keys_of_excluded_null()

        # State the smallest effect that the test could have detected.
        if self.shows_effect:
            keys += self._keys_of_effect()
        return keys

    def _keys_of_excluded_null(self) -> list[str]:
        """Return the keys that say why an interval without the null is no claim."""
        # Say among how many scores the finding's score was chosen.
        n_scores = self.facts.get("scores")
        is_chosen = isinstance(n_scores, int) and n_scores > 1
        key = "ending.excludes_of_scores" if is_chosen else "ending.excludes"
        return [key, "ending.unclear"]

    def _keys_of_effect(self) -> list[str]:
        """Return the keys that state the smallest effect, or that there is none."""
        keys = []
        if self.mde is None:
            keys.append("ending.never")
        elif self.no_effect:
            keys.append("ending.effect_above_chance")
        else:
            keys.append("ending.effect")

        if self.power_by_dose:
            keys.append("ending.doses")
        if self._effects_of_groups:
            keys.append("groups.effects")
        return keys

    @property
    def is_lost_to_correction(self) -> bool:
        """True if it would be a claim as the only test of the report."""
        is_corrected = self.withdrawn and self.p_adjusted is not None
        return is_corrected and self.p is not None and self.p < ALPHA

    def _excludes_null_uncorrected(self) -> bool:
        """Return whether the interval excludes the null, but the corrected p does not.

        Readers would otherwise take such an interval for a claim.
        """
        # A single test is not corrected, so its p and interval agree.
        if self.claim != "nothing_shown" or self.tests <= 1:
            return False
        if self.p_adjusted is None or self.p_adjusted < ALPHA:
            return False
        if self.low is None or self.high is None:
            return False

        null = self.no_effect or 0.0
        # An exposure below chance does not hint at a leak.
        if self.metric == "exposure_mean" and self.high < null:
            return False
        return not self.low <= null <= self.high

    @property
    def power_by_dose(self) -> list[Power]:
        """The tests of doses that could detect an effect.

        A test with ``group`` is one of a group; without it, it is the finding's own.
        """
        return [
            test
            for test in self.power
            if test.group.startswith("dose:") and test.mde is not None
        ]

    @property
    def least_of_groups(self) -> float:
        """The smallest effect that is detected in any group of rows, in ``unit``."""
        return min(self._effects_of_groups)

    @property
    def most_of_groups(self) -> float:
        """The largest of the smallest effects by group of rows, in ``unit``."""
        return max(self._effects_of_groups)

    @property
    def _effects_of_groups(self) -> list[float]:
        """The smallest effect of each group of rows, the finding's own among them.

        It is empty for a finding on anything but a group of rows, and where no other
        group could detect any effect.
        """
        effects = []
        for test in self.power:
            if test.group.startswith(f"{ROW_GROUP}:") and test.mde is not None:
                effects.append(test.mde)
        if effects and self.mde is not None:
            effects.append(self.mde)
        return effects

    def _rendered(self, key: str) -> str:
        """Return a sentence, rendered from the facts and the finding itself."""
        return sentences.render(key, **self.facts, finding=self)

    @property
    def shows_effect(self) -> bool:
        """True if its sentence states the smallest effect: only without a claim."""
        is_without_claim = SEVERITY[self.claim] < DETECTED
        # What is shown to be absent up to a margin is claimed by that margin.
        is_tested = self.claim not in ("confounded", "not_tested", *SHOWN_BY_TEST)
        is_usable = self.status not in UNUSABLE
        return bool(self.power) and is_without_claim and is_tested and is_usable

    @property
    def why(self) -> str:
        """Why no effect can be detected; empty where one can.

        It is the end of a key: templates include ``ending.why_`` and this.
        """
        for test in self.power:
            # Only the tests of the whole decide, not those of groups.
            if not test.group and test.mde is None:
                return test.why
        return ""

    @property
    def row_metric(self) -> str:
        """The metric of the row that it rests on: without the ending of an excess."""
        return self.metric.removesuffix(EXCESS)

    @property
    def withdrawn(self) -> bool:
        """True if the correction over the report took its claim away."""
        return self.claim != self.alone

    @property
    def can_only_claim(self) -> bool:
        """True if it can show a leak, and never that there is none.

        So it is with an endpoint that gives only text, and with tests that bound
        nothing where they show nothing: without a claim nothing was tested.
        """
        return ANSWERS_EACH in self.facts or UNBOUNDED in self.facts

    @property
    def detected(self) -> bool:
        """True if it claims a leak, so that no output may fold, cut or omit it."""
        return self.severity >= DETECTED

    @model_validator(mode="before")
    @classmethod
    def _with_severity(cls, data: object) -> object:
        """Add the severity of the claim to the fields, and ``alone`` if it is missing.

        A severity that the fields contain is replaced, so that it always follows from
        the claim.
        """
        if not isinstance(data, dict):
            return data
        claim = data.get("claim")
        severity = SEVERITY.get(claim) if isinstance(claim, str) else None
        # An unknown claim has no severity; the check of the field refuses it later.
        if severity is None:
            return data

        # A void or invalid finding claims nothing.
        if severity >= DETECTED and data.get("status") in UNUSABLE:
            severity = 0
        return {"alone": claim, **data, "severity": severity}

    @model_validator(mode="after")
    def _check_correction(self) -> Finding:
        """Refuse a finding that the correction over a report cannot have made.

        The correction needs the p of each primary detection, and withdraws detections
        only.
        """
        is_detection = SEVERITY[self.alone] >= DETECTED
        is_primary_detection = is_detection and self.family == "primary"
        if is_primary_detection and self.p is None:
            raise ValueError("a primary detection has its p")
        is_shown_by_test = is_detection or self.alone in SHOWN_BY_TEST
        if not is_shown_by_test and self.claim != self.alone:
            raise ValueError("only what a test shows can be taken away")
        return self

    @classmethod
    def not_tested(
        cls,
        audit: str,
        says: str,
        *,
        checkpoint: str = "",
        status: Status = "ok",
        further: Sequence[str] = (),
        **facts: Fact,
    ) -> Finding:
        """Return a finding that says what was not tested, and why.

        Parameters
        ----------
        says, further
            Keys of its sentence and of those that follow it.
        checkpoint
            Empty: it is on all of them.
        facts
            What the sentences are rendered from, by name.
        """
        return cls(
            audit=audit,
            checkpoint=checkpoint,
            claim="not_tested",
            says=says,
            further=list(further),
            status=status,
            facts=facts,
        )

    @classmethod
    def on(
        cls,
        row: Row,
        claim: Claim,
        says: str,
        *,
        facts: Mapping[str, Fact],
        further: Sequence[str] = (),
        metric: str | OfRow = OF_ROW,
        value: float | None | OfRow = OF_ROW,
        low: float | None | OfRow = OF_ROW,
        high: float | None | OfRow = OF_ROW,
        unit: str | OfRow = OF_ROW,
        no_effect: float | None | OfRow = OF_ROW,
        mde: float | None | OfRow = OF_ROW,
        status: Status | OfRow = OF_ROW,
        family: Family | None = None,
        power: Sequence[Power] = (),
        bounds: Sequence[Bound] = (),
        p: float | None = None,
        p_adjusted: float | None | OfRow = OF_ROW,
    ) -> Finding:
        """Return a finding that rests on one row, whose figures it takes over.

        Parameters
        ----------
        claim, says, facts, further
            As in the class.
        metric, value, low, high, unit, no_effect, mde, status, p_adjusted
            By default those of the row. ``None`` is no default: the finding then has no
            such figure.
        family
            By default a finding with a p is primary, whatever the family of its row.
        power, bounds
            Inputs of the smallest effect and of what could still be there.
        p
            p of the test that the claim rests on, corrected within the audit.
        """
        if family is None:
            family = "exploratory" if p is None else "primary"

        # A row has no corrected p; a contrast has one.
        row_p_adjusted: float | None = None
        if isinstance(row, Contrast):
            row_p_adjusted = row.p_adjusted

        return cls(
            audit=row.audit,
            checkpoint=row.checkpoint,
            metric=_given_or(metric, row.metric),
            variant=row.variant,
            group_kind=row.group_kind,
            group_value=row.group_value,
            value=_given_or(value, row.value),
            low=_given_or(low, row.low),
            high=_given_or(high, row.high),
            unit=_given_or(unit, row.unit),
            no_effect=_given_or(no_effect, row.no_effect),
            mde=_given_or(mde, row.mde),
            status=_given_or(status, row.status),
            state=row.state,
            voided_by=row.voided_by,
            family=family,
            claim=claim,
            says=says,
            further=list(further),
            facts=facts,
            power=list(power),
            bounds=list(bounds),
            p=p,
            p_adjusted=_given_or(p_adjusted, row_p_adjusted),
        )


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, the most severe first.

    The sort is stable. Findings on the report as a whole come before all others.
    """

    def sort_key(finding: Finding) -> tuple[bool, int]:
        """Return the sort key of a finding; False sorts before True."""
        is_on_report = finding.audit == OF_REPORT and not finding.checkpoint
        return not is_on_report, -finding.severity

    return sorted(findings, key=sort_key)
