"""Tests of the ranks of canaries: against chance, and for a rise since the base.

Frames are those of :mod:`~spark_audit.audits.canary.ranks`. A test is of one checkpoint
and part. Tests that only count together are corrected together (Holm,
:func:`adjusted`); :mod:`~spark_audit.audits.canary.ranked_canaries` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.canary.canary_finding import finding_row
from spark_audit.audits.canary.ranks import CONFIDENCE, by_part, unresolved_parts
from spark_audit.results import Row
from spark_audit.results.findings import Fact
from spark_audit.stats import canary_ranks
from spark_audit.stats.multiple_tests import holm


@dataclass(frozen=True, kw_only=True)
class CanaryTest:
    """A test of the canaries of one checkpoint and part.

    Attributes
    ----------
    n
        Number of canaries.
    value
        Mean of the column that is tested: of exposures (bits), or of ranks. A
        subclass may test another figure.
    p
        p, corrected over ``n_tests`` tests.
    n_tests
        Tests that p is corrected over, this one included.
    """

    checkpoint: str
    part: str
    n: int
    value: float
    p: float
    n_tests: int = 1

    @property
    def is_significant(self) -> bool:
        """Return whether p is at most 0.05."""
        return self.p <= 1 - CONFIDENCE

    def row(
        self,
        metric: str,
        *,
        unit: str = "bits",
        no_effect: float | None = None,
        no_effect_low: float | None = None,
        no_effect_high: float | None = None,
    ) -> Row:
        """Return its figure as a row.

        Parameters
        ----------
        metric, unit
            What ``value`` is a mean of.
        no_effect, no_effect_low, no_effect_high
            Its value by chance, and the band around it.
        """
        return finding_row(
            checkpoint=self.checkpoint,
            part=self.part,
            metric=metric,
            n_canaries=self.n,
            value=self.value,
            unit=unit,
            no_effect=no_effect,
            no_effect_low=no_effect_low,
            no_effect_high=no_effect_high,
        )

    def facts(
        self, metric: str, *, unit: str = "bits", no_effect: float | None = None
    ) -> dict[str, Fact]:
        """Return facts of a sentence: its row by the metric's name, p and ``over``.

        ``over`` is the number of tests that p is corrected over.
        """
        row = self.row(metric, unit=unit, no_effect=no_effect)
        return {metric: row, "p": self.p, "over": self.n_tests}


def p_by_chance(frame: pd.DataFrame, column: str) -> float:
    """Return the one-sided p of uniform ranks: the chance of a mean at least as high.

    Parameters
    ----------
    frame
        Canaries, from :func:`~spark_audit.audits.canary.ranks.ranked`.
    column
        ``exposure``: the mean is high if canaries rank ahead. ``lower_tail``: it is
        high if they rank behind.
    """
    # A rank counted from the end is uniform, too, so one distribution serves both.
    null = canary_ranks.null_mean(frame["n_candidates"])
    return null.above(float(frame[column].mean()))


def p_risen(rises: np.ndarray) -> float:
    """Return Wilcoxon's one-sided p of no rise of exposures; 1 where none moved.

    Parameters
    ----------
    rises
        Shape ``(canaries,)``, bits, from
        :func:`~spark_audit.audits.canary.ranks.exposure_rises`.
    """
    # The test is not defined for differences that are all 0.
    if not rises.any():
        return 1.0
    return float(scipy.stats.wilcoxon(rises, alternative="greater").pvalue)


TestT = TypeVar("TestT", bound=CanaryTest)


def adjusted(tests: Sequence[TestT]) -> list[TestT]:
    """Return the tests with p corrected over all of them (Holm), in their order."""
    adjusted_ps = holm([test.p for test in tests]).tolist()
    return [
        replace(test, p=p, n_tests=len(tests))
        for test, p in zip(tests, adjusted_ps, strict=True)
    ]


def tests_of(
    frame: pd.DataFrame, column: str, p_of: Callable[[pd.DataFrame], float]
) -> list[CanaryTest]:
    """Return an uncorrected test of each checkpoint and part.

    Parameters
    ----------
    frame
        Canaries, from :func:`~spark_audit.audits.canary.ranks.ranked`.
    column
        The column whose mean is tested.
    p_of
        Returns p from the lines of one checkpoint and part.
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
    """Return two-sided tests that ranks are uniform, the smallest p first.

    ``value`` is the mean rank. p is corrected over all checkpoints and parts (Holm).
    Parts of which all canaries are tied are not tested.

    Parameters
    ----------
    frame
        Canaries, from :func:`~spark_audit.audits.canary.ranks.ranked`.
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
        for test in tests_of(frame, "mid_rank", p_of_uniform_ranks)
        if (test.checkpoint, test.part) not in unresolved
    ]
    return sorted(adjusted(tests), key=lambda test: test.p)


class TwoEnds(NamedTuple):
    """The clearest tests of both ends of the ranks, each significant or not.

    Attributes
    ----------
    remembered
        Whether canaries rank ahead of chance; ``value`` is the mean exposure.
    suppressed
        Whether they rank behind it; ``value`` is the mean exposure from the last rank.
    """

    remembered: CanaryTest
    suppressed: CanaryTest


def clearest_ends(frame: pd.DataFrame, parts: Collection[str]) -> TwoEnds:
    """Return the clearest test of each end among some parts.

    Both p are corrected (Holm) over both ends of all parts, including parts that are
    not in ``parts``.

    Parameters
    ----------
    frame
        Trained canaries of one checkpoint, from
        :func:`~spark_audit.audits.canary.ranks.ranked`.
    parts
        The parts to choose from.
    """
    tests_of_top = tests_of(
        frame, "exposure", lambda canaries: p_by_chance(canaries, "exposure")
    )
    tests_of_bottom = tests_of(
        frame, "lower_tail", lambda canaries: p_by_chance(canaries, "lower_tail")
    )

    # Correct p over both ends, since both are tested. The order stays.
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
