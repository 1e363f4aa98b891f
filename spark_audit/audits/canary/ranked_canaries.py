"""All ranked canaries, and the tests that come before any checkpoint is judged.

Two questions are answered once per report, of all checkpoints together: whether chance
is a valid null (the base and held-out canaries), and for which parts memory could be
found at all (the positive control).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from spark_audit.audits.canary.chance_tests import (
    CanaryTest,
    adjusted,
    p_by_chance,
    p_risen,
    tests_of,
    uniform_tests,
)
from spark_audit.audits.canary.ranks import (
    CONFIDENCE,
    by_part,
    exposure_rises,
    held_out_canaries,
    n_candidates_of,
    trained_canaries,
    unresolved_parts,
)
from spark_audit.data.canaries import CANARY_FORMATS, RANKED
from spark_audit.names import BASE


@dataclass(frozen=True, eq=False)
class RankedCanaries:
    """Canaries of all checkpoints, and conclusions that hold for all of them.

    Attributes
    ----------
    frame
        Canaries, trained or not, from
        :func:`~spark_audit.audits.canary.ranks.ranked`; at least one.
    """

    frame: pd.DataFrame

    @cached_property
    def base_tests(self) -> list[CanaryTest]:
        """Return tests that the base's ranks are uniform, the smallest p first.

        The base model saw none of the canaries, so all of them are tested. The list is
        empty if the base was not scored, or if all of its canaries are tied.
        """
        return uniform_tests(self.frame[self.frame["checkpoint"] == BASE])

    @property
    def is_base_uniform(self) -> bool:
        """Return whether no test of the base speaks against chance as the null.

        Without a test of the base this is true, too: see :attr:`is_draw_assumed`.
        """
        return not (self.base_tests and self.base_tests[0].is_significant)

    @cached_property
    def unresolved(self) -> set[tuple[str, str]]:
        """Return (checkpoint, part) wherever no trained canary can be ranked."""
        return unresolved_parts(trained_canaries(self.frame))

    @cached_property
    def shifts_of_kind(self) -> dict[str, set[str]]:
        """Return the directions in which held-out canaries left chance, by checkpoint.

        A direction is ``ahead`` or ``behind``; the set is empty if they did not, or if
        there are none. p is corrected (Holm) over the parts of a checkpoint. No model
        was trained on these canaries: if they left chance, all strings of their kind
        moved and chance is no valid null.
        """
        # The mean of a uniform rank; a smaller mean rank is ahead of chance.
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

        A model that was trained on planted canaries should remember those that it saw
        most often. If no test shows that, ranks cannot show memory of other canaries
        either. There is a test of each fine-tuned checkpoint and part, the smallest p
        first. p is corrected (Holm) over all of them, since one success is enough for
        its part.

        Exposures are tested against chance. If the base's ranks are not uniform, their
        rise since the base is tested instead: a part without scores of the base has no
        rise, and p is 1.
        """
        canaries = self.control_canaries

        def p_of_control(tested: pd.DataFrame) -> float:
            """Return p of the lines of one checkpoint and part (all columns)."""
            if self.is_base_uniform:
                return p_by_chance(tested, "exposure")

            # A rise needs the lines of the base, too.
            checkpoint, part = tested[["checkpoint", "part"]].iloc[0]
            of_part = canaries[canaries["part"] == part]
            return p_risen(exposure_rises(of_part, checkpoint))

        # The base was trained on no canary and cannot be a control.
        fine_tuned = canaries[canaries["checkpoint"] != BASE]
        tests = tests_of(fine_tuned, "exposure", p_of_control)
        return sorted(adjusted(tests), key=lambda test: test.p)

    @cached_property
    def control_canaries(self) -> pd.DataFrame:
        """Return trained canaries of enough of the highest doses for a small p.

        The doses are the same for all checkpoints and parts.

        The highest dose is enough for a test against chance. A rise is tested by signs:
        if all n canaries of a part rise, p is 2^-n, and Holm sums over the parts.
        """
        canaries = trained_canaries(self.frame)
        if self.is_base_uniform:
            highest_dose = canaries["dose"].max()
            of_highest_dose: pd.DataFrame = canaries[canaries["dose"] == highest_dose]
            return of_highest_dose

        # Add doses from the highest down until there are enough canaries, or all.
        in_most_rows = canaries
        for least_dose in sorted(set(canaries["dose"]), reverse=True):
            in_most_rows = canaries[canaries["dose"] >= least_dose]
            least_ps = [
                0.5 ** len(of_part)
                for checkpoint, _, of_part in by_part(in_most_rows)
                if checkpoint != BASE
            ]
            if sum(least_ps) <= 1 - CONFIDENCE:
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

        It is assumed if no test of the base shows it, and a canary has a format that
        this package does not draw.
        """
        formats = set(trained_canaries(self.frame)["format"])
        is_drawn_here = formats <= set(CANARY_FORMATS)
        return not self.base_tests and not is_drawn_here
