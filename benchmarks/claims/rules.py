"""The rules: a claim, the figure it reads, and what follows from its interval."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, model_validator

from spark_audit.results import Contrast, Report, Row

RULES = Path(__file__).with_name("claims.toml")
CHANCE: Literal["chance"] = "chance"

Verdict: TypeAlias = Literal["holds", "fails", "not detectable here", "not run"]
VERDICTS: tuple[Verdict, ...] = ("holds", "fails", "not detectable here", "not run")
WIDE = "the interval is too wide; more rows or seeds would tell"
OVER = ("both", "seeds", "sources")
"""Of a system with several seeds the first that there is counts."""
CONTROL = "er-full"
CONTROLS = {"canaries": "canary", "members": "mia"}
"""What a claim needs -> the audit that must find the positive control."""


class Claim(BaseModel):
    """One claim of ``claims.toml``, which says what its fields mean."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    says: str
    table: str
    paper: float | None = None
    audit: str
    metric: str
    part: str = ""
    group: str = "pooled"
    of: str
    than: str = ""
    order: Literal[1, 2, 3, "average", "second"] = 1
    above: float | None = None
    below: float | None = None
    least: float | None = None
    within: tuple[float, float] | Literal["chance"] | None = None
    margin: float | None = None
    needs: tuple[Literal["learned", "canaries", "members", "alone"], ...] = ()

    @model_validator(mode="after")
    def _one_rule(self) -> Claim:
        given = [self.above, self.below, self.within]
        if sum(rule is not None for rule in given) != 1:
            raise ValueError(f"{self.id}: give one of above, below and within")
        if (self.within is None) != (self.least is not None):
            raise ValueError(f"{self.id}: least belongs to above and below")
        if (self.within == CHANCE) != (self.margin is not None):
            raise ValueError(f"{self.id}: margin belongs to chance")
        return self

    @property
    def systems(self) -> tuple[str, ...]:
        """Whose figures it reads, those of what it needs too."""
        more = {"learned": "er", "canaries": CONTROL, "members": CONTROL}
        needed = [more[need] for need in self.needs if need in more]
        return tuple(
            dict.fromkeys(name for name in (self.of, self.than, *needed) if name)
        )

    @property
    def rule(self) -> str:
        """Where the interval must lie for the claim to hold, and where it fails."""
        if self.within == CHANCE:
            return f"at most {self.margin:g} above chance; fails beyond"
        if self.within is not None:
            low, high = self.within
            return f"within {low:g} to {high:g}; fails outside"
        assert self.least is not None
        if self.above is not None:
            fails = f" {self.above + self.least:g}" if self.least else ""
            return f"above {self.above:g}; fails if instead below{fails}"
        assert self.below is not None
        fails = f" {self.below - self.least:g}" if self.least else ""
        return f"below {self.below:g}; fails if instead above{fails}"


@dataclass(frozen=True)
class Figure:
    """What was measured for a claim.

    Attributes
    ----------
    low, high
        95% limits over sources and seeds, or ``None`` where there are none.
    smallest
        The smallest effect that would have been seen (two-sided, power 0.8).
    by_seed
        The value of each seed.
    chance
        What it is without any effect, where the audit knows.
    over
        What the limits are over.
    missing
        Why there is no value.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    smallest: float | None = None
    by_seed: tuple[float, ...] = ()
    chance: float | None = None
    over: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Decision:
    """A claim, its figure, and what is concluded.

    Attributes
    ----------
    why
        One sentence.
    against
        The claim is not judged for want of what it needs, and its interval would fail
        it. What would let it hold is not told: where nothing was learned nothing is
        forgotten, and where nothing is found nothing leaks.
    """

    claim: Claim
    figure: Figure
    verdict: Verdict
    why: str
    against: bool = False

    @property
    def small(self) -> bool:
        """Whether it holds by less than what counts as an effect."""
        claim, value = self.claim, self.figure.value
        bound = claim.below if claim.above is None else claim.above
        if self.verdict != "holds" or value is None or bound is None:
            return False
        return abs(value - bound) < (claim.least or 0.0)


def claims() -> list[Claim]:
    """All claims, in the order of the paper's questions."""
    with RULES.open("rb") as file:
        return [Claim.model_validate(entry) for entry in tomllib.load(file)["claims"]]


def figure_of(report: Report, claim: Claim) -> Figure:
    """The claim's figure in a report of its order (and baseline)."""
    rows = list(_rows(report, claim))
    own = [row for row in rows if row.checkpoint == claim.of]
    own.sort(key=lambda row: OVER.index(row.interval_over))
    if not own:
        return Figure(None, missing="no such figure in the report")
    row = own[0]
    if row.value is None:
        return Figure(None, missing=row.note)
    if row.status != "ok":
        # What the audit itself concludes nothing from.
        what = f"the audit calls it {row.status.replace('_', ' ')}"
        return Figure(None, missing=f"{what}: {row.note}" if row.note else what)
    each = [r.value for r in rows if r.checkpoint.startswith(f"{claim.of}[")]
    return Figure(
        row.value,
        row.low,
        row.high,
        row.mde,
        by_seed=tuple(value for value in each if value is not None) or (row.value,),
        chance=row.no_effect,
        over={"both": "sources and seeds"}.get(row.interval_over, row.interval_over),
    )


def _rows(report: Report, claim: Claim) -> Iterator[Row | Contrast]:
    rows: Sequence[Row | Contrast] = report.contrasts if claim.than else report.results
    for row in rows:
        at = (row.audit, row.metric, row.variant, row.group)
        if at != (claim.audit, claim.metric, claim.part, claim.group):
            continue
        beside = getattr(row, "baseline", "").partition("[")[0]
        if row.checkpoint.partition("[")[0] == claim.of and beside == claim.than:
            yield row


def decide(claim: Claim, figure: Figure, *, unmet: str = "") -> Decision:
    """What the claim's rule says of a figure.

    Parameters
    ----------
    unmet
        Why something that the claim needs is not there; then nothing is told.
    """
    low, high = figure.low, figure.high
    if figure.value is None:
        return Decision(claim, figure, "not detectable here", figure.missing)
    if unmet:
        against = decide(claim, figure).verdict == "fails"
        return Decision(claim, figure, "not detectable here", unmet, against)
    if low is None or high is None:
        return Decision(claim, figure, "not detectable here", "it has no interval")
    if figure.over == "sources":
        # Contrasts of single seeds were seen to hold and to fail by turns.
        return Decision(claim, figure, "not detectable here", "it is of one seed")
    if claim.within is not None:
        return _within(claim, figure, low, high)
    if claim.below is not None:
        bound, far, near = -claim.below, -low, -high
    else:
        assert claim.above is not None
        bound, far, near = claim.above, high, low
    assert claim.least is not None
    if near > bound:
        return Decision(claim, figure, "holds", "the interval lies beyond the bound")
    if far < bound + claim.least:
        why = "the interval lies short of the bound"
        if claim.least and far >= bound:
            why = f"an effect of {claim.least:g} is excluded"
        return Decision(claim, figure, "fails", why)
    return Decision(claim, figure, "not detectable here", WIDE)


def _within(claim: Claim, figure: Figure, low: float, high: float) -> Decision:
    if claim.within == CHANCE:
        assert claim.margin is not None
        if figure.chance is None:
            why = "the audit does not know chance"
            return Decision(claim, figure, "not detectable here", why)
        least, most = -math.inf, figure.chance + claim.margin
    else:
        assert isinstance(claim.within, tuple)
        least, most = claim.within
    if least <= low and high <= most:
        return Decision(claim, figure, "holds", "the interval lies within the bounds")
    if high < least or low > most:
        return Decision(claim, figure, "fails", "the interval lies outside the bounds")
    return Decision(claim, figure, "not detectable here", WIDE)
