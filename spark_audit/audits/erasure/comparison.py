"""Comparisons of forget rows with held-out rows, and the tests on them.

What is compared is the *remaining difference*: the change of the NLL of forget rows
minus that of held-out rows, nats per token. Below 0, forget rows are still likelier.
The change is taken since a model that never read the forget rows:

==========================  ============================================================
compared with               of which checkpoints
==========================  ============================================================
the retrained model         all, if ``--retrained`` names one: it learned all else that
                            the others learned
the base                    all, without a retrained model
their relearned copies      copies after a short training on other rows (``+relearn``)
==========================  ============================================================

So an unequal difficulty of the two sides, and what a short training does to any model,
are no memory. Without a retrained model, a difference counts only beyond the gap that
the sides have on the base already (``gap``).

Tests: the difference of each part (:mod:`~spark_audit.audits.erasure.units`), the share
of identifiers that are written out, and membership of rows. All are over clusters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.erasure.units import (
    FORGET,
    HELD_OUT,
    IDENTIFIERS,
    RESPONSE,
    ROW,
    TWINS,
)
from spark_audit.audits.identifiers import TOLD_APART, comparable, sides_of
from spark_audit.names import (
    BASE,
    RELEARN,
    RELEARNED_BASE,
    CheckpointName,
    original_of,
)
from spark_audit.results.evidence import Evidence
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH
from spark_audit.stats.clustered_roc import Design, auc_estimate
from spark_audit.stats.equivalence import Equivalence, two_one_sided_tests
from spark_audit.stats.estimate import Estimate, side_of
from spark_audit.stats.memory_contrast import Memory, Sides, memory

VERBATIM = "verbatim"
MEMBERSHIP = "membership"
"""Kinds of tests beside those of parts: of identifiers that are written out, and of
rows as wholes."""

MIN_HITS = 2
"""Fewest clusters of forget rows with an identifier that is written out: a single one
may be a coincidence."""

TOO_FEW = f"fewer than {MIN_CLUSTERS_TO_PUBLISH} independent groups on one of the sides"

NO_UNITS = "no such text on both sides"

NO_REFERENCE = "there is no copy of a model that never read the rows to compare it with"


class MemoryTestResult(NamedTuple):
    """One test of whether forget rows stand out.

    Attributes
    ----------
    kind
        A part (of text, or ``twins``), :data:`VERBATIM` or :data:`MEMBERSHIP`.
    p
        Two-sided p of no difference.
    direction
        1: forget rows stand out as remembered; -1: they are less likely; 0: neither.
    """

    kind: str
    p: float
    direction: int


class WrittenOut(NamedTuple):
    """Groups of rows with an identifier, and how many have one that is written out."""

    n_forget: int
    n_forget_groups: int
    n_held_out: int
    n_held_out_groups: int


@dataclass(frozen=True, eq=False)
class ComparedPart:
    """One part of forget and held-out rows, the same for all checkpoints.

    Attributes
    ----------
    name
        Of :mod:`~spark_audit.audits.erasure.units`.
    units
        Its units on the two sides; the index is that of the evidence.
    reason
        Why it cannot be tested; empty: it can.
    """

    name: str
    units: pd.DataFrame
    reason: str = ""

    @classmethod
    def of(cls, name: str, units: pd.DataFrame) -> ComparedPart:
        """Return a part of the units of the evidence.

        Parameters
        ----------
        name
            One of the parts of :mod:`~spark_audit.audits.erasure.units`.
        units
            All units, with the columns of ``ERASURE_COLUMNS`` there.
        """
        is_compared = units["side"].isin([FORGET, HELD_OUT])
        of_part = units[(units["part"] == name) & is_compared]
        if of_part.empty or of_part["side"].nunique() < 2:
            return cls(name, of_part, NO_UNITS)

        if name == IDENTIFIERS:
            spans, is_told_by_text = comparable(of_part)
            if is_told_by_text:
                return cls(name, spans, TOLD_APART)
            of_part = spans
        elif name != TWINS:
            # Rows are compared within their task.
            with_forget = of_part["task"][of_part["side"] == FORGET].unique()
            with_held_out = of_part["task"][of_part["side"] == HELD_OUT].unique()
            on_both_sides = {*with_forget} & {*with_held_out}
            of_part = of_part[of_part["task"].isin(on_both_sides)]
            if of_part.empty:
                return cls(name, of_part, NO_UNITS)

        n_clusters = of_part.groupby("side")["cluster"].nunique()
        is_few = n_clusters.min() < MIN_CLUSTERS_TO_PUBLISH
        return cls(name, of_part, TOO_FEW if is_few else "")

    @cached_property
    def sides(self) -> Sides:
        """Return side, tokens, cluster and strata of each unit."""
        if self.name in (IDENTIFIERS, TWINS):
            return sides_of(self.units)
        return Sides.of(
            trained=self.units["side"] == FORGET,
            clusters=self.units["cluster"],
            strata=[pd.factorize(self.units["task"])[0]],
            tokens=self.units["n_tokens"],
        )

    def n_clusters(self, side: str) -> int:
        """Return the number of independent groups of a side."""
        return int(self.units["cluster"][self.units["side"] == side].nunique())

    def difference(self, change: np.ndarray) -> Memory:
        """Return the mean change of both sides and their difference.

        Parameters
        ----------
        change
            Shape ``(units of the evidence,)``, nats.
        """
        if self.reason:
            return Memory.missing(self.reason)
        change_of_units = change[self.units.index]  # (units,), nats
        is_scored = ~np.isnan(change_of_units)
        if is_scored.all():
            return memory(change_of_units, self.sides)

        scored_part = ComparedPart.of(self.name, self.units[is_scored])
        if scored_part.reason:
            return Memory.missing(scored_part.reason)
        return memory(change[scored_part.units.index], scored_part.sides)


@dataclass(frozen=True, eq=False)
class ErasureComparison:
    """The evidence of all checkpoints, and the models that they are compared with.

    Attributes
    ----------
    evidence
        Units and scores.
    before, retrained
        Names of the model before erasure, and of one that was trained again without the
        forget rows; empty: there is none.
    """

    evidence: Evidence
    before: str
    retrained: str = ""
    # (Checkpoint, part) -> difference; checkpoint -> tests and membership. Findings,
    # guards and tables ask for them again.
    _differences: dict[tuple[str, ComparedPart], Memory] = field(
        default_factory=dict, init=False, repr=False
    )
    _tests: dict[str, list[MemoryTestResult]] = field(
        default_factory=dict, init=False, repr=False
    )
    _memberships: dict[tuple[str, float], tuple[Estimate, float | None]] = field(
        default_factory=dict, init=False, repr=False
    )

    @cached_property
    def part_of_rows(self) -> ComparedPart:
        """Return the part of rows that is compared: all text, or the response.

        It is the one that the model before erasure remembers more surely, so that it is
        chosen without a look at any other checkpoint.
        """
        candidates = [ComparedPart.of(ROW, self.evidence.units)]
        candidates.append(ComparedPart.of(RESPONSE, self.evidence.units))

        change = self.change(self.before)
        t_values = {}
        for part in candidates:
            t_values[part.name] = 0.0
            difference = part.difference(change).difference
            if difference.value is not None and difference.se:
                t_values[part.name] = difference.value / difference.se
        return min(candidates, key=lambda part: t_values[part.name])

    @cached_property
    def parts(self) -> list[ComparedPart]:
        """Return the parts that are compared: of rows, and identifiers."""
        return [self.part_of_rows, self.part_of_identifiers]

    @cached_property
    def part_of_identifiers(self) -> ComparedPart:
        """Return the identifiers that are compared; there may be none."""
        return ComparedPart.of(IDENTIFIERS, self.evidence.units)

    @cached_property
    def part_of_twins(self) -> ComparedPart:
        """Return the identifiers that were ranked among twins; there may be none."""
        return ComparedPart.of(TWINS, self.evidence.units)

    @cached_property
    def gaps(self) -> Mapping[str, float]:
        """Return, by part, the gap of the sides that memory must exceed.

        It is the difference on the base, nats per token, where that is clear; 0 where a
        retrained model shows what difference there is without memory.
        """
        gaps = {}
        reference = self.evidence.units["ref_sum"].to_numpy(np.float64)
        for part in self.parts:
            difference = part.difference(reference).difference
            is_clear = side_of(difference) not in (0, None)
            gaps[part.name] = 0.0
            if is_clear and not self.retrained:
                gaps[part.name] = abs(difference.value or 0.0)
        return gaps

    def nll(self, name: str) -> np.ndarray:
        """Return the summed NLL of all units by a checkpoint, ``(units,)``, nats."""
        return self.evidence.row(name, "nll_sum")

    def stranger_of(self, name: str) -> str | None:
        """Return the model without the forget rows that a checkpoint is compared with.

        Returns
        -------
        A name. For the base, the reference scores of the manifest are taken, whether it
        was scored or not. ``None``: the model was not scored.
        """
        derived = CheckpointName.parse(name).derived
        scored = self.evidence.checkpoints
        if self.retrained and original_of(name) != self.retrained:
            copy = f"{self.retrained}+{derived}" if derived else self.retrained
            return copy if copy in scored else None
        if derived == RELEARN:
            return RELEARNED_BASE if RELEARNED_BASE in scored else None
        return BASE

    def change(self, name: str) -> np.ndarray:
        """Return the change of all units since a model without the forget rows, nats.

        Shape ``(units,)``; NaN where there is no such model.
        """
        stranger = self.stranger_of(name)
        if stranger is None:
            return np.full(len(self.evidence.units), np.nan)
        if stranger == BASE:
            reference = self.evidence.units["ref_sum"].to_numpy(np.float64)
            return np.asarray(self.nll(name) - reference)
        return np.asarray(self.nll(name) - self.nll(stranger))

    def difference(self, name: str, part: ComparedPart) -> Memory:
        """Return the remaining difference of a part, with both of its sides."""
        if self.stranger_of(name) is None:
            return Memory.missing(NO_REFERENCE)

        key = (name, part)
        if key not in self._differences:
            self._differences[key] = part.difference(self.change(name))
        return self._differences[key]

    def tests(self, name: str) -> list[MemoryTestResult]:
        """Return the tests of whether forget rows stand out on a checkpoint."""
        if self.stranger_of(name) is None:
            return []
        if name not in self._tests:
            self._tests[name] = self._tests_of(name)
        return self._tests[name]

    def _tests_of(self, name: str) -> list[MemoryTestResult]:
        """Return the tests of a checkpoint that can be compared."""
        tests = [*self._tests_of_parts(name)]
        for test in (
            self._twins_test(name),
            self._verbatim_test(name),
            self._membership_test(name),
        ):
            if test is not None:
                tests.append(test)
        return tests

    def _tests_of_parts(self, name: str) -> Iterator[MemoryTestResult]:
        """Yield Student's t test of each part that has one.

        Its null is the gap that the sides have on the base already, either way.
        """
        for part in self.parts:
            contrast = self.difference(name, part)
            p = contrast.t_p(null=self.gaps[part.name])
            value = contrast.difference.value
            if p is not None and value is not None:
                # A lower NLL is remembered.
                yield MemoryTestResult(part.name, p, direction=-int(np.sign(value)))

    def rise(self, name: str) -> Memory:
        """Return by how much forgotten identifiers rose beyond held-out ones, bits.

        The rise is that among their twins since a model without the forget rows. Above
        0 they are remembered.
        """
        stranger = self.stranger_of(name)
        if stranger is None:
            return Memory.missing(NO_REFERENCE)
        exposure = self.evidence.row(name, "exposure")  # (units,), bits
        exposure_of_stranger = self.evidence.row(stranger, "exposure")
        return self.part_of_twins.difference(exposure - exposure_of_stranger)

    def _twins_test(self, name: str) -> MemoryTestResult | None:
        """Return Student's t test of the rise among twins, if these were scored."""
        contrast = self.rise(name)
        p = contrast.t_p()
        value = contrast.difference.value
        if p is None or value is None:
            return None
        # A higher exposure is remembered.
        return MemoryTestResult(TWINS, p, direction=int(np.sign(value)))

    def written(self, name: str) -> WrittenOut | None:
        """Return how many groups of identifiers a checkpoint writes out, by side.

        Identifiers that a model without the forget rows writes, too, are left out.
        ``None``: there are no identifiers, or no ranks.
        """
        part = self.part_of_identifiers
        # Tokens of each identifier that are the first guess, (identifiers,).
        first = self.evidence.row(name, "first")[part.units.index]
        if part.reason == NO_UNITS or np.isnan(first).any():
            return None

        is_written = first == part.units["n_tokens"].to_numpy()
        stranger = self.stranger_of(name)
        first_of_stranger = self.evidence.row(stranger or BASE, "first")
        known = first_of_stranger[part.units.index]  # (identifiers,)
        is_known = known == part.units["n_tokens"].to_numpy()
        units = part.units[~is_known].assign(is_written=is_written[~is_known])

        counts = {}
        for side in (FORGET, HELD_OUT):
            of_side = units[units["side"] == side]
            hits = of_side.groupby("cluster")["is_written"].any()
            counts[side] = (int(hits.sum()), len(hits))
        return WrittenOut(
            n_forget=counts[FORGET][0],
            n_forget_groups=counts[FORGET][1],
            n_held_out=counts[HELD_OUT][0],
            n_held_out_groups=counts[HELD_OUT][1],
        )

    def _verbatim_test(self, name: str) -> MemoryTestResult | None:
        """Return Fisher's exact test of identifiers that are written out, by group."""
        written = self.written(name)
        if written is None or written.n_forget < MIN_HITS:
            return None

        table = np.array(
            [
                [written.n_forget, written.n_forget_groups - written.n_forget],
                [written.n_held_out, written.n_held_out_groups - written.n_held_out],
            ]
        )  # (sides, hits and others)
        one_sided = scipy.stats.fisher_exact(table, alternative="greater").pvalue
        p = min(1.0, 2 * float(one_sided))
        return MemoryTestResult(VERBATIM, p, direction=1)

    def membership(
        self, name: str, *, handicap: float = 0.0
    ) -> tuple[Estimate, float | None]:
        """Return the AUC of forget rows against held-out rows, and its two-sided p.

        See :meth:`_membership_of`.
        """
        key = (name, handicap)
        if key not in self._memberships:
            self._memberships[key] = self._membership_of(name, handicap)
        return self._memberships[key]

    def _membership_of(
        self, name: str, handicap: float
    ) -> tuple[Estimate, float | None]:
        """Return the AUC of forget rows against held-out rows, and its two-sided p.

        The score of a row is how much likelier it is per token than for a model without
        the forget rows. With few groups on a side, p is that of the exact test of Mann
        and Whitney on the means of groups, and the AUC has no interval.

        Parameters
        ----------
        handicap
            Nats per token that are added to the score of forget rows: with it, an AUC
            below 0.5 shows that they are less likely by more than that.
        """
        part = self.part_of_rows
        units = part.units
        score = -self.change(name)[units.index] / units["n_tokens"]  # (rows,), nats
        is_scored = ~np.isnan(score)
        if part.reason not in ("", TOO_FEW) or not is_scored.any():
            return Estimate.missing(part.reason or NO_REFERENCE), None

        units = units[is_scored].assign(score=score[is_scored])
        is_forget = units["side"] == FORGET
        units["score"] += handicap * is_forget
        if not part.reason:
            design = Design.of(is_forget, units["cluster"], units["task"])
            return auc_estimate(design, units["score"])

        # Tasks move differently, so take off what their held-out rows moved.
        of_task = units[~is_forget].groupby("task")["score"].mean()
        units["score"] -= units["task"].map(of_task)
        means = units.groupby(["side", "cluster"])["score"].mean()
        forget = means.get(FORGET)
        held_out = means.get(HELD_OUT)
        if forget is None or held_out is None:
            return Estimate.missing(NO_UNITS), None
        test = scipy.stats.mannwhitneyu(forget, held_out, method="exact")
        auc = float(test.statistic) / (len(forget) * len(held_out))
        n_groups = len(forget) + len(held_out)
        return Estimate(auc, n=len(units), clusters=n_groups), float(test.pvalue)

    def _membership_test(self, name: str) -> MemoryTestResult | None:
        """Return the test of membership of rows, if there is one."""
        auc, p = self.membership(name)
        if auc.value is None or p is None:
            return None
        direction = int(np.sign(auc.value - 0.5))
        return MemoryTestResult(MEMBERSHIP, p, direction=direction)

    def less_likely_tests(self, name: str, *, least: float) -> list[MemoryTestResult]:
        """Return the tests of whether forget rows are less likely than held-out ones.

        They are the tests of parts and of membership again (:meth:`tests`), with
        another null: that forget rows are less likely by ``least`` or less. p is
        two-sided, so that the correction over all tests of the checkpoint covers both.

        Parameters
        ----------
        least
            Nats per token, 0 or more, by which forget rows may be less likely.
        """
        if self.stranger_of(name) is None:
            return []

        tests = []
        for part in self.parts:
            contrast = self.difference(name, part)
            p = contrast.t_p(null=self.gaps[part.name] + least)
            value = contrast.difference.value
            if p is not None and value is not None and value > 0:
                tests.append(MemoryTestResult(part.name, p, direction=-1))

        auc, p = self.membership(name, handicap=least)
        if auc.value is not None and p is not None and auc.value < 0.5:
            tests.append(MemoryTestResult(MEMBERSHIP, p, direction=-1))
        return tests

    def equivalence(
        self, name: str, part: ComparedPart, margin: float
    ) -> Equivalence | None:
        """Return the tests that the remaining difference lies within a margin.

        The gap that the sides have on the base is taken from the margin: a difference
        of that size may be there although none is seen. ``None``: the difference has no
        value or no standard error.
        """
        difference = self.difference(name, part).difference
        # Without room there is a test of 0, which shows nothing.
        room = max(margin - self.gaps[part.name], 0.0)
        return two_one_sided_tests(difference, low=-room, high=room)
