"""Ranks of canaries, and tests against chance.

Frames of this folder have one row per checkpoint, canary and part, or per context of
these. :func:`ranked` gives them these columns:

===================  ================================================================
column               meaning
===================  ================================================================
checkpoint           name of the checkpoint
canary_id, part      the canary, and ``full``, ``password`` or ``ssn`` of it
format               format that the canary was drawn in
dose                 train rows that hold the canary; 0 for a held-out one
held_out             whether no model was trained on the canary
n_candidates         candidates that the canary is ranked among, itself included
rank                 its rank, 1 is the likeliest; ties count behind
ties                 candidates with exactly its NLL
mid                  mean rank over random orders of the ties
exposure             bits, ``log2(n_candidates) - log2(rank)``
lower_tail           bits, the same counted from the last rank
===================  ================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd
import scipy

from spark_audit.data.canaries import CANARY_FORMATS, RANKED
from spark_audit.errors import InputError
from spark_audit.names import BASE
from spark_audit.results import Row
from spark_audit.results.findings import Fact
from spark_audit.stats import canary_ranks
from spark_audit.stats.multiple_tests import holm

CONFIDENCE = 0.95

KS = (1, 10)
"""Numbers of guesses for bounds of epsilon, fixed here before any result."""

BY_CONTEXT = "annotation"
"""Ends the variant ``PART/annotation`` of a figure: ranks in each context, averaged."""

MOST_TIED = 0.9
"""A canary that is tied with at least this share of the candidates has no rank."""

TIED = (
    "nearly all candidates are tied: the model collapsed, or its logits have too "
    "little precision"
)


def ranked(evidence: pd.DataFrame, kind: str = "canary") -> pd.DataFrame:
    """Return the ranks of one kind of unit, with the columns that this module lists.

    Parameters
    ----------
    evidence
        One row per checkpoint and unit, with columns ``kind``, ``n_candidates``,
        ``rank`` and ``ties``.
    kind
        ``canary``: one rank per canary and part. ``context``: one per context too.

    Raises
    ------
    InputError
        If canaries have different numbers of candidates.
    """
    frame = evidence[evidence["kind"] == kind]

    # One null distribution fits all canaries only if they have equally many candidates.
    n_candidates = frame["n_candidates"].to_numpy()  # (units,)
    if len(set(n_candidates.tolist())) > 1:
        raise InputError(
            "canaries have candidate sets of different sizes",
            fix="audit all checkpoints with the same manifest",
        )

    rank = frame["rank"].to_numpy()  # (units,), 1 is the likeliest
    ties = frame["ties"].to_numpy()  # (units,)
    return frame.assign(
        mid=rank + ties / 2,
        exposure=canary_ranks.exposure_bits(rank, n_candidates, ties=ties),
        lower_tail=canary_ranks.lower_tail_exposure(rank, n_candidates, ties=ties),
    )


def unresolved_parts(frame: pd.DataFrame) -> set[tuple[str, str]]:
    """Return checkpoint and part wherever no canary is :func:`resolved`.

    A single resolved canary might be the remembered one, so a part counts as unresolved
    only if no canary is resolved.

    Parameters
    ----------
    frame
        From :func:`ranked`.
    """
    return {
        (checkpoint, part)
        for checkpoint, part, canaries in by_part(frame)
        if not resolved(canaries).any()
    }


def resolved(frame: pd.DataFrame) -> pd.Series[bool]:
    """Return a mask of the canaries that are tied with few of their candidates.

    Few means fewer than the share :data:`MOST_TIED`.

    Parameters
    ----------
    frame
        Columns ``ties`` and ``n_candidates``.
    """
    return frame["ties"] < MOST_TIED * (frame["n_candidates"] - 1)


def n_tied(frame: pd.DataFrame) -> int:
    """Return how many canaries are tied with other candidates (column ``ties``)."""
    return int(np.count_nonzero(frame["ties"]))


def trained_canaries(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of canaries in train rows, by columns ``dose``, ``held_out``."""
    is_held_out = frame["held_out"].astype(bool)
    return frame[(frame["dose"] > 0) & ~is_held_out]


def held_out_canaries(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of canaries that no model saw, by column ``held_out``."""
    return frame[frame["held_out"].astype(bool)]


def by_part(frame: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield checkpoint, part and its rows, in the order of the evidence.

    Parameters
    ----------
    frame
        Columns ``checkpoint`` and ``part``.
    """
    groups = dict(iter(frame.groupby(["checkpoint", "part"], sort=False)))
    for checkpoint in dict.fromkeys(frame["checkpoint"]):
        for part in RANKED:
            if (checkpoint, part) in groups:
                yield str(checkpoint), part, groups[checkpoint, part]


def n_candidates_of(frame: pd.DataFrame) -> int:
    """Return the candidates of each canary (column ``n_candidates``).

    All rows have the same number, since :func:`ranked` refuses different ones.
    """
    return int(frame["n_candidates"].iloc[0])


def exposure_rises(canaries: pd.DataFrame, checkpoint: str) -> np.ndarray:
    """Return changes of exposure since the base model, in bits.

    The shape is ``(canaries,)``, for canaries that both checkpoints have. Above 0 a
    canary is more exposed.

    Parameters
    ----------
    canaries
        Canaries of one part and all checkpoints, from :func:`ranked`.
    """
    # Pair by canary, so that its exposure at the base cancels.
    after = canaries[canaries["checkpoint"] == checkpoint]
    before = canaries[canaries["checkpoint"] == BASE]
    paired = after.merge(before, on="canary_id", suffixes=("", "_base"))
    return (paired["exposure"] - paired["exposure_base"]).to_numpy(np.float64)


def variant_by_context(part: str) -> str:
    """Return the variant of figures of a part that are averaged over contexts."""
    return f"{part}/{BY_CONTEXT}"


def part_of(variant: str) -> str:
    """Return the part of a variant, whether it is averaged over contexts or not."""
    return variant.partition("/")[0]


def is_by_context(variant: str) -> bool:
    """Return whether figures of a variant are averaged over contexts."""
    return variant != part_of(variant)


def hits_of(frame: pd.DataFrame, *, k: int) -> canary_ranks.TopK:
    """Return the number of canaries among the first k, compared with chance.

    Parameters
    ----------
    frame
        Columns ``rank``, ``ties`` and ``n_candidates``.
    """
    return canary_ranks.top_k(
        frame["rank"], k=k, n_candidates=n_candidates_of(frame), ties=frame["ties"]
    )


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
    """Return the chance of a mean as high under uniform ranks, one-sided.

    Parameters
    ----------
    frame
        Canaries, from :func:`ranked`.
    column
        ``exposure`` or ``lower_tail``.
    """
    # The mirrored rank is uniform, too, so one distribution serves both ends.
    null = canary_ranks.null_mean(frame["n_candidates"])
    return null.above(float(frame[column].mean()))


def p_risen(rises: np.ndarray) -> float:
    """Return Wilcoxon's one-sided p value that exposures rose; 1 where none moved.

    Parameters
    ----------
    rises
        Shape ``(canaries,)``, bits, from :func:`exposure_rises`.
    """
    # The test is not defined for differences that are all 0.
    if not rises.any():
        return 1.0
    return float(scipy.stats.wilcoxon(rises, alternative="greater").pvalue)


@dataclass(frozen=True, kw_only=True)
class CanaryTest:
    """A test of the canaries of one checkpoint and part.

    Attributes
    ----------
    n
        Number of canaries.
    value
        The tested figure: a mean exposure (bits) or rank.
    p
        p, corrected over ``over`` tests.
    """

    checkpoint: str
    part: str
    n: int
    value: float
    p: float
    over: int = 1

    @property
    def is_significant(self) -> bool:
        """Return whether p is at most 0.05."""
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
        """Return its figure by the metric's name, p, and the number of tests of p."""
        row = self.row(metric, unit=unit, null=null)
        return {metric: row, "p": self.p, "over": self.over}


TestT = TypeVar("TestT", bound=CanaryTest)


def adjusted(tests: Sequence[TestT]) -> list[TestT]:
    """Return the tests with Holm's correction over all of them, in their order."""
    adjusted_ps = holm([test.p for test in tests]).tolist()
    return [
        replace(test, p=p, over=len(tests))
        for test, p in zip(tests, adjusted_ps, strict=True)
    ]


def tests_of(
    frame: pd.DataFrame, column: str, p_of: Callable[[pd.DataFrame], float]
) -> list[CanaryTest]:
    """Return an uncorrected test of each checkpoint and part.

    Parameters
    ----------
    frame
        Canaries, from :func:`ranked`.
    column
        The column whose mean is tested.
    p_of
        Returns p from the rows of one checkpoint and part.
    """
    tests = []
    for checkpoint, part, canaries in by_part(frame):
        test = CanaryTest(
            checkpoint=checkpoint,
            part=part,
            n=len(canaries),
            value=float(canaries[column].mean()),
            p=p_of(canaries),
        )
        tests.append(test)
    return tests


def uniform_tests(frame: pd.DataFrame) -> list[CanaryTest]:
    """Return tests that ranks are uniform, the smallest p value first.

    p is corrected over all parts (Holm). Unresolved parts (:func:`unresolved_parts`)
    are not tested.

    Parameters
    ----------
    frame
        Canaries, from :func:`ranked`.
    """

    def p_of_uniform_ranks(canaries: pd.DataFrame) -> float:
        """Return p by the columns ``rank``, ``n_candidates`` and ``ties``."""
        return canary_ranks.uniformity_p(
            canaries["rank"], canaries["n_candidates"], ties=canaries["ties"]
        )

    # An unresolved part could show nothing but would count in the correction.
    unresolved = unresolved_parts(frame)
    tests = [
        test
        for test in tests_of(frame, "mid", p_of_uniform_ranks)
        if (test.checkpoint, test.part) not in unresolved
    ]
    return sorted(adjusted(tests), key=lambda test: test.p)


class TwoEnds(NamedTuple):
    """The tests that canaries rank ahead of chance, and that they rank behind it."""

    remembered: CanaryTest
    suppressed: CanaryTest


def two_ended(frame: pd.DataFrame, parts: Collection[str]) -> TwoEnds:
    """Return the clearest test of each end: remembered, and suppressed canaries.

    Both p are corrected (Holm) over both ends of all parts, including parts that are
    not in ``parts``.

    Parameters
    ----------
    frame
        Trained canaries of one checkpoint, from :func:`ranked`.
    parts
        The parts to choose from.
    """
    tests_of_top = tests_of(
        frame, "exposure", lambda canaries: p_by_chance(canaries, "exposure")
    )
    tests_of_bottom = tests_of(
        frame, "lower_tail", lambda canaries: p_by_chance(canaries, "lower_tail")
    )

    # Correct p over both ends, since both are tested.
    corrected = adjusted([*tests_of_top, *tests_of_bottom])
    n_parts = len(tests_of_top)
    return TwoEnds(
        remembered=_clearest(corrected[:n_parts], parts),
        suppressed=_clearest(corrected[n_parts:], parts),
    )


def _clearest(tests: Sequence[CanaryTest], parts: Collection[str]) -> CanaryTest:
    """Return the test of the given parts with the smallest p; ties go by part."""
    of_parts = [test for test in tests if test.part in parts]
    return min(of_parts, key=lambda test: (test.p, test.part))


@dataclass(frozen=True, eq=False)
class RankedCanaries:
    """All ranked canaries, and the tests that come before any checkpoint is judged.

    The tests of the base show whether chance is a valid null. The positive control
    shows for which parts memory could be found.

    Attributes
    ----------
    frame
        Canaries of all checkpoints, from :func:`ranked`.
    """

    frame: pd.DataFrame

    @cached_property
    def base_tests(self) -> list[CanaryTest]:
        """Return tests that the base's ranks are uniform, the smallest p first.

        The base model saw none of the canaries, held out or not.
        """
        return uniform_tests(self.frame[self.frame["checkpoint"] == BASE])

    @property
    def is_uniform(self) -> bool:
        """Return whether no test of the base speaks against chance as the null."""
        return not (self.base_tests and self.base_tests[0].is_significant)

    @cached_property
    def unresolved(self) -> set[tuple[str, str]]:
        """Return checkpoint and part wherever no trained canary can be ranked."""
        return unresolved_parts(trained_canaries(self.frame))

    @cached_property
    def shifts_of_kind(self) -> dict[str, set[str]]:
        """Return the directions in which held-out canaries left chance, by checkpoint.

        A side is ``ahead`` or ``behind``. Tests are :func:`uniform_tests`, corrected
        (Holm) over the parts of a checkpoint. No model was trained on these canaries:
        if they left chance, all strings of their kind moved and chance is no valid
        null.
        """
        # The mean of a uniform rank: smaller means ahead of chance.
        middle_rank = (n_candidates_of(self.frame) + 1) / 2
        shifts: dict[str, set[str]] = {}
        for checkpoint, canaries in self.frame.groupby("checkpoint"):
            tests = uniform_tests(held_out_canaries(canaries))
            shifts[str(checkpoint)] = {
                "ahead" if test.value < middle_rank else "behind"
                for test in tests
                if test.is_significant
            }
        return shifts

    @cached_property
    def control_tests(self) -> list[CanaryTest]:
        """Return the positive control: tests of canaries of the highest doses.

        The smallest p comes first. A model that was trained on planted canaries should
        remember those that it saw most often. If no test shows that, ranks cannot show
        memory of other canaries either. p is corrected (Holm) over checkpoints and
        parts, since one success is enough for its part. If the base's ranks are not
        uniform, the rise since the base is tested instead. A part without scores of the
        base has no rise, and p is 1.
        """
        canaries = self._control_canaries()

        def p_of_control(tested: pd.DataFrame) -> float:
            """Return p by the columns of one checkpoint and part."""
            if self.is_uniform:
                return p_by_chance(tested, "exposure")

            # All rows are of the same checkpoint and part.
            checkpoint, part = tested[["checkpoint", "part"]].iloc[0]
            of_part = canaries[canaries["part"] == part]
            return p_risen(exposure_rises(of_part, checkpoint))

        # The base was trained on no canary and cannot be a control.
        fine_tuned = canaries[canaries["checkpoint"] != BASE]
        tests = tests_of(fine_tuned, "exposure", p_of_control)
        return sorted(adjusted(tests), key=lambda test: test.p)

    def _control_canaries(self) -> pd.DataFrame:
        """Return trained canaries of enough of the highest doses for a small p.

        The highest dose is enough for a test against chance. A rise is tested by signs:
        if all n canaries of a part rise, p is 2^-n, and Holm sums over the parts.
        """
        canaries = trained_canaries(self.frame)
        in_most_rows = canaries

        # Add doses from the highest down until there are enough canaries.
        for least_dose in sorted(set(canaries["dose"]), reverse=True):
            in_most_rows = canaries[canaries["dose"] >= least_dose]
            least_ps = [
                0.5 ** len(of_part)
                for checkpoint, _, of_part in by_part(in_most_rows)
                if checkpoint != BASE
            ]
            if self.is_uniform or sum(least_ps) <= 1 - CONFIDENCE:
                break
        return in_most_rows

    @property
    def sensitive_parts(self) -> set[str]:
        """Return the parts whose positive control was found in some checkpoint."""
        return {test.part for test in self.control_tests if test.is_significant}

    @property
    def insensitive_parts(self) -> list[str]:
        """Return the parts whose positive control was found in no checkpoint."""
        missed = {test.part for test in self.control_tests} - self.sensitive_parts
        return [part for part in RANKED if part in missed]

    @property
    def is_draw_assumed(self) -> bool:
        """Return whether the uniform draw of the canaries is only assumed.

        It is if there is no test of the base, and the formats are not drawn by this
        package.
        """
        formats = set(trained_canaries(self.frame)["format"])
        is_drawn_here = formats <= set(CANARY_FORMATS)
        return not self.base_tests and not is_drawn_here
