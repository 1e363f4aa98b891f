"""Ranks of canaries, and tests against chance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, product
from operator import attrgetter
from typing import TypeVar

import numpy as np
import pandas as pd
import scipy

from spark_audit.data.canaries import CANARY_FORMATS, RANKED
from spark_audit.errors import InputError
from spark_audit.names import BASE
from spark_audit.results import Row
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.findings import Fact
from spark_audit.stats import canary_ranks
from spark_audit.stats.bootstrap import holm
from spark_audit.stats.intervals import ratio_estimate

MOST_TIED = 0.9

TIED = (
    "nearly all candidates are tied: the model collapsed, or its logits have too "
    "little precision"
)


def ranked(evidence: pd.DataFrame, kind: str = "canary") -> pd.DataFrame:
    """The evidence's ranks of one kind with their exposures."""
    frame = evidence[evidence["kind"] == kind]
    size = frame["n_candidates"].to_numpy()
    if len(set(size.tolist())) > 1:
        raise InputError(
            "canaries have candidate sets of different sizes",
            fix="audit all checkpoints with the same manifest",
        )
    rank, ties = frame["rank"].to_numpy(), frame["ties"].to_numpy()
    return frame.assign(
        mid=rank + ties / 2,
        exposure=canary_ranks.exposure_bits(rank, size, ties=ties),
        lower_tail=canary_ranks.lower_tail_exposure(rank, size, ties=ties),
    )


def unresolved(frame: pd.DataFrame) -> set[tuple[str, str]]:
    """Checkpoint and part of which nothing can be ranked.

    So it is where none of the canaries is :func:`resolved`: one that is might be the
    one that was remembered.
    """
    parts = by_part(frame)
    return {(name, part) for name, part, few in parts if not resolved(few).any()}


def resolved(frame: pd.DataFrame) -> pd.Series[bool]:
    """Whether a canary is tied with fewer than :data:`MOST_TIED` of its candidates."""
    return frame["ties"] < MOST_TIED * (frame["n_candidates"] - 1)


def tied(frame: pd.DataFrame) -> int:
    """Canaries that are tied with other candidates."""
    return int(np.count_nonzero(frame["ties"]))


def trained(frame: pd.DataFrame) -> pd.DataFrame:
    """Canaries that stand in train rows."""
    return frame[(frame["dose"] > 0) & ~frame["held_out"].astype(bool)]


def held_out(frame: pd.DataFrame) -> pd.DataFrame:
    """Canaries that no model was trained on."""
    return frame[frame["held_out"].astype(bool)]


def by_part(frame: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Checkpoint, part and rows, in the order of the evidence."""
    parts = dict(iter(frame.groupby(["checkpoint", "part"], sort=False)))
    for name, part in product(dict.fromkeys(frame["checkpoint"]), RANKED):
        if (name, part) in parts:
            yield str(name), part, parts[name, part]


def size_of(frame: pd.DataFrame) -> int:
    """Candidates of each canary: sets of different sizes are refused."""
    return int(frame["n_candidates"].iloc[0])


def rises(part: pd.DataFrame, name: str) -> np.ndarray:
    """Changes of exposure since the base, of canaries of one part that both have."""
    ours, base = (part[part["checkpoint"] == one] for one in (name, BASE))
    both = ours.merge(base, on="canary_id", suffixes=("", "_base"))
    return (both["exposure"] - both["exposure_base"]).to_numpy(np.float64)


def hits_of(frame: pd.DataFrame, *, k: int) -> canary_ranks.TopK:
    """Canaries among the first k, compared with chance."""
    size, ties = size_of(frame), frame["ties"]
    return canary_ranks.top_k(frame["rank"], k=k, n_candidates=size, ties=ties)


CONFIDENCE = 0.95


def row_of(
    name: str,
    part: str,
    metric: str,
    n: int,
    *,
    value: float,
    low: float | None = None,
    high: float | None = None,
    unit: str = "",
    null: float | None = None,
    null_low: float | None = None,
    null_high: float | None = None,
) -> Row:
    """Return a figure of n canaries that only a finding shows."""
    return Row(
        audit="canary",
        checkpoint=name,
        metric=metric,
        of=part,
        value=value,
        low=low,
        high=high,
        unit=unit,
        null=null,
        null_low=null_low,
        null_high=null_high,
        n=n,
        clusters=n,
    )


def p_by_chance(frame: pd.DataFrame, column: str) -> float:
    """Chance of a mean ``exposure`` or ``lower_tail`` as high under uniform ranks."""
    # The mirrored rank is uniform too: one distribution serves both ends.
    null = canary_ranks.null_mean(frame["n_candidates"])
    return null.above(float(frame[column].mean()))


def p_risen(rises: np.ndarray) -> float:
    """Wilcoxon's one-sided p value that exposures rose; 1 where none moved."""
    if not rises.any():
        return 1.0
    return float(scipy.stats.wilcoxon(rises, alternative="greater").pvalue)


@dataclass(frozen=True)
class CanaryTest:
    """Adjusted one-sided p value of one test, with what it was taken on."""

    checkpoint: str
    part: str
    n: int
    value: float
    p: float
    over: int = 1
    """Tests that the p value is adjusted over."""

    @property
    def detected(self) -> bool:
        """Whether it is significant."""
        return self.p <= 1 - CONFIDENCE

    def row(
        self,
        metric: str,
        *,
        unit: str = "bits",
        null: float | None = None,
        null_low: float | None = None,
        null_high: float | None = None,
    ) -> Row:
        """Return its figure as a row."""
        return row_of(
            self.checkpoint,
            self.part,
            metric,
            self.n,
            value=self.value,
            unit=unit,
            null=null,
            null_low=null_low,
            null_high=null_high,
        )

    def facts(
        self, metric: str, *, unit: str = "bits", null: float | None = None
    ) -> dict[str, Fact]:
        """Return its figure by the metric's name, p, and over how many tests it is."""
        row = self.row(metric, unit=unit, null=null)
        return {metric: row, "p": self.p, "over": self.over}


TestedT = TypeVar("TestedT", bound=CanaryTest)


def adjusted(tests: Sequence[TestedT]) -> list[TestedT]:
    """The tests with Holm's correction, in their order."""
    ps = holm([test.p for test in tests]).tolist()
    return [replace(t, p=p, over=len(ps)) for t, p in zip(tests, ps, strict=True)]


def tests_of(
    frame: pd.DataFrame, column: str, p_of: Callable[[pd.DataFrame], float]
) -> list[CanaryTest]:
    """A test of each checkpoint and part, on the mean of a column."""
    return [
        CanaryTest(name, part, len(chosen), float(chosen[column].mean()), p_of(chosen))
        for name, part, chosen in by_part(frame)
    ]


def uniform_tests(frame: pd.DataFrame) -> list[CanaryTest]:
    """Tests that ranks are uniform, over all parts by Holm, smallest p value first.

    Parts in which nothing is ranked (:func:`unresolved`) are not tested.
    """

    def p(chosen: pd.DataFrame) -> float:
        rank, size, ties = (chosen[k] for k in ("rank", "n_candidates", "ties"))
        return canary_ranks.uniformity_p(rank, size, ties=ties)

    lost, tests = unresolved(frame), tests_of(frame, "mid", p)
    known = [one for one in tests if (one.checkpoint, one.part) not in lost]
    return sorted(adjusted(known), key=attrgetter("p"))


def two_ended(
    frame: pd.DataFrame, parts: Collection[str]
) -> tuple[CanaryTest, CanaryTest]:
    """The clearest tests of one checkpoint's trained canaries, of some of its parts.

    That of the remembered end, and that of the suppressed one. By Holm over both ends
    of all parts, those that are left out afterwards too.
    """
    ends = ("exposure", "lower_tail")
    by_end = [tests_of(frame, end, partial(p_by_chance, column=end)) for end in ends]
    tests, half = adjusted([*chain(*by_end)]), len(by_end[0])
    first, last = (
        min((test for test in end if test.part in parts), key=attrgetter("p", "part"))
        for end in (tests[:half], tests[half:])
    )
    return first, last


@dataclass(frozen=True, eq=False)
class Judged:
    """All ranked canaries, and what holds before any checkpoint is spoken of."""

    frame: pd.DataFrame

    @cached_property
    def base(self) -> list[CanaryTest]:
        """Tests of the base's ranks: it saw none of the canaries, held out or not."""
        return uniform_tests(self.frame[self.frame["checkpoint"] == BASE])

    @property
    def uniform(self) -> bool:
        """Whether nothing speaks against chance as the null."""
        return not (self.base and self.base[0].detected)

    @cached_property
    def tied(self) -> set[tuple[str, str]]:
        """Checkpoint and part of which nothing can be ranked."""
        return unresolved(trained(self.frame))

    @cached_property
    def kinds(self) -> dict[str, set[str]]:
        """Checkpoint -> ``ahead``, ``behind``: where its held-out canaries left chance.

        By :func:`uniform_tests`, over a checkpoint's parts by Holm. No model was
        trained on them, so that strings of their kind moved, and chance is no null.
        """
        middle = (size_of(self.frame) + 1) / 2
        return {
            str(name): {
                "ahead" if test.value < middle else "behind"
                for test in uniform_tests(held_out(own))
                if test.detected
            }
            for name, own in self.frame.groupby("checkpoint")
        }

    @cached_property
    def control(self) -> list[CanaryTest]:
        """Whether canaries of the highest dose were found, in any checkpoint and part.

        Corrected by Holm over checkpoints and parts, since one success is enough for a
        part (and for that part alone). Where the base's own ranks are not uniform, the
        rise since the base is tested instead, of so many doses, the highest first, that
        it could be significant: of n canaries that all rise p is 2^-n. A part that the
        base was not scored on has no rise: its p is 1.
        """
        most = whole = trained(self.frame)
        for least in sorted({*whole["dose"]}, reverse=True):
            most = whole[whole["dose"] >= least]
            sizes = [len(own) for name, _, own in by_part(most) if name != BASE]
            if self.uniform or sum(0.5**n for n in sizes) <= 1 - CONFIDENCE:
                break

        def p(chosen: pd.DataFrame) -> float:
            if self.uniform:
                return p_by_chance(chosen, "exposure")
            name, part = chosen[["checkpoint", "part"]].iloc[0]
            return p_risen(rises(most[most["part"] == part], name))

        tests = tests_of(most[most["checkpoint"] != BASE], "exposure", p)
        return sorted(adjusted(tests), key=attrgetter("p"))

    @property
    def sensitive(self) -> set[str]:
        """Parts whose positive control was found in some checkpoint."""
        return {test.part for test in self.control if test.detected}

    @property
    def lost(self) -> list[str]:
        """Parts whose positive control was found in none."""
        missed = {test.part for test in self.control} - self.sensitive
        return [part for part in RANKED if part in missed]

    @property
    def supposed(self) -> bool:
        """Whether neither the base nor a draw of ours tells that chance is uniform."""
        drawn = set(trained(self.frame)["format"]) <= set(CANARY_FORMATS)
        return not self.base and not drawn


KS = (1, 10)
"""Numbers of guesses that epsilon is bounded from: fixed here, before any result."""


def dose_table(frame: pd.DataFrame) -> Iterator[TableRecord]:
    """Each dose compared with chance; dose 0 are the held-out canaries."""
    for name, part, whole in by_part(frame):
        doses = whole["dose"].where(~whole["held_out"].astype(bool), 0)
        for dose, chosen in whole.groupby(doses):
            n, most = len(chosen), float(np.log2(size_of(chosen)))
            mean = ratio_estimate(chosen["exposure"], np.ones(n), bounds=(0.0, most))
            low, high = canary_ranks.null_mean(chosen["n_candidates"]).band(CONFIDENCE)
            # Where nothing is ranked there is no test.
            able = bool(resolved(chosen).any())
            yield {
                "checkpoint": name,
                "part": part,
                "dose": int(dose),
                "held_out": bool(chosen["held_out"].iloc[0]),
                "canaries": n,
                "tied": tied(chosen),
                "exposure_mean": float(chosen["exposure"].mean()),
                "exposure_low": mean.low,
                "exposure_high": mean.high,
                "exposure_most": most,
                "chance_exposure_low": low,
                "chance_exposure_high": high,
                "p_remembered": p_by_chance(chosen, "exposure") if able else None,
                "p_suppressed": p_by_chance(chosen, "lower_tail") if able else None,
                "status": "ok" if able else "not_resolvable",
            }
