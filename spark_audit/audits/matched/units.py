"""Scores of the units that the matched audit measures, and tests of memory on them.

A unit is an identifier, its control, or other text: for their roles and columns see
:meth:`~spark_audit.audits.matched.audit.Matched.evidence`. The index of every frame of
units is that of the evidence, and arrays of shape ``(units,)`` are indexed by it.

:class:`UnitScores` has the NLL of all units by each checkpoint. :class:`Occurrences`
are the trained and held-out identifiers of one group, and
:meth:`Occurrences.test_memory` tests whether the two sides changed differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from spark_audit.audits.base import Context
from spark_audit.audits.identifier_texts import MIN_CLUSTERS_FOR_CLASSIFIER
from spark_audit.audits.identifiers import REPRODUCED, comparable, sides_of
from spark_audit.audits.matched.report_rows import row_of
from spark_audit.audits.supervision import by_supervision
from spark_audit.data.occurrences import dose_group
from spark_audit.results.findings import Fact
from spark_audit.stats import memory_contrast, permutation
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.estimate import Bound, Estimate, Power, side_of

NO_CONTROL = (
    "no identifier with a control stands in trained rows",
    "no identifier with a control stands in rows never trained on",
)
"""Messages for "no trained" and "no held-out identifier has a control"."""

REFERENCE = "the checkpoint is the matching reference itself, so there is no change"


@dataclass(frozen=True, eq=False)
class UnitScores:
    """Units and their scores by checkpoint, from which all conclusions follow.

    Attributes
    ----------
    all_units
        Units of the evidence; for columns see
        :func:`~spark_audit.audits.matched.unit_records.complete`. ``ref_sum`` is the
        summed NLL on the reference, nats.
    nll
        Checkpoint -> summed NLL, shape ``(units,)``, nats.
    context
        Settings of the conclusion.
    """

    all_units: pd.DataFrame
    nll: Mapping[str, np.ndarray]
    context: Context

    @cached_property
    def units(self) -> pd.DataFrame:
        """Return the units of rows of the manifest, not of other matchings."""
        return self.all_units[self.all_units["split"] != ""]

    @cached_property
    def train(self) -> pd.DataFrame:
        """Return the units of train rows."""
        return self.units[self.units["split"] == "train"]

    @cached_property
    def changes(self) -> dict[str, np.ndarray]:
        """Return each checkpoint's change since the reference, ``(units,)``, nats."""
        reference = self.all_units["ref_sum"].to_numpy()  # (units,), nats
        return {name: sums - reference for name, sums in self.nll.items()}

    @cached_property
    def groups(self) -> list[Occurrences]:
        """Return identifiers of both sides by group: all first, highest dose last.

        If all doses are alike there are no groups of doses, and another group is last.
        """
        return [*groups_of_identifiers(self.units)]

    @property
    def pooled(self) -> Occurrences:
        """Return all trained and all held-out identifiers."""
        return self.groups[0]

    @cached_property
    def largest_changes(self) -> dict[str, float]:
        """Return each checkpoint's largest change of a unit, nats per token."""
        # The change is per token, since the sum of a long unit changes more.
        n_tokens = self.units["n_tokens"]
        largest = {}
        for name, change in self.changes.items():
            per_token = abs(change[self.units.index]) / n_tokens  # (units in rows,)
            largest[name] = float(per_token.max())
        return largest

    @cached_property
    def references(self) -> set[str]:
        """Return the checkpoints that score as the matching reference does.

        The base is one of them if the manifest was built with the same model.
        """
        return {
            name for name, size in self.largest_changes.items() if size <= REPRODUCED
        }


@dataclass(frozen=True)
class MemoryTest:
    """The change of the identifiers of one group, and the test of no memory.

    All changes are of the NLL since the reference, in nats per token. Below 0,
    identifiers became likelier.

    Attributes
    ----------
    memory
        Mean change of each side, and trained minus held-out: below 0, more remembered.
        ``n`` counts the tokens of trained identifiers, ``clusters`` those of a side.
    beyond_controls
        The same for the change minus that of each identifier's control, if there is
        one. Its held-out side is the change of the kind beyond equally hard text.
    gap_before
        Difference of the sides on the reference, nats per token: see :func:`clear_gap`.
    p
        Two-sided p of no difference larger than that gap.
    power
        Inputs for the smallest detectable difference.
    bounds
        Inputs for the memory that could still be there.
    """

    memory: memory_contrast.Memory
    beyond_controls: memory_contrast.Memory
    gap_before: float = 0.0
    p: float | None = None
    power: tuple[Power, ...] = ()
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True, eq=False)
class Occurrences:
    """Trained and held-out identifiers of one group, the same for all checkpoints.

    Attributes
    ----------
    group
        Name of the group, such as ``pooled`` or ``type:NAME``.
    spans
        Units of the evidence. The column ``control`` is the index of the control in
        the evidence, NaN for those without one.
    """

    group: str
    spans: pd.DataFrame

    @cached_property
    def sides(self) -> memory_contrast.Sides:
        """Return side, tokens, cluster and strata of each occurrence."""
        return sides_of(self.spans)

    @cached_property
    def with_control(self) -> Occurrences:
        """Return the occurrences that have a control."""
        return Occurrences(self.group, self.spans.dropna(subset="control"))

    @cached_property
    def difference_before(self) -> Estimate:
        """Return trained minus held-out on the reference, nats per token."""
        reference = self.spans["ref_sum"].to_numpy()  # (occurrences,), nats
        return memory_contrast.memory(reference, self.sides).difference

    @cached_property
    def gap_before(self) -> float:
        """Return the gap of the sides on the reference, nats per token.

        Memory must be larger than this gap: see :func:`clear_gap`.
        """
        return clear_gap(self.difference_before)

    @property
    def is_told_by_text(self) -> bool:
        """Return whether texts differ by side, so that no difference can be memory.

        A negative stratum marks identifiers that the text distinguishes, or that are
        too few to tell. They are in the frame only if there are no others: see
        :func:`~spark_audit.audits.identifiers.comparable`.
        """
        return bool((self.spans["stratum"] < 0).any())

    def text_facts(self, checkpoint: str) -> dict[str, Fact]:
        """Return facts on how well texts distinguish the sides, or on too few to tell.

        Returns
        -------
        ``text_auc``; if that is not known, ``fewest``, the clusters that each side
        needs. Guards and findings match on that key.
        """
        # One stratum with distinguishing text is enough; NaN ones do not count.
        auc = self.spans["text_auc"].max()

        if np.isnan(auc):
            return {"fewest": MIN_CLUSTERS_FOR_CLASSIFIER}

        estimate = Estimate(auc, clusters=self.spans["cluster"].nunique())
        row = row_of(estimate, checkpoint=checkpoint, metric="text_auc", unit="")
        return {"text_auc": row}

    def test_memory(self, change: np.ndarray, *, seed: int | None) -> MemoryTest:
        """Return the change of the identifiers, and the test of no memory.

        Parameters
        ----------
        change
            Shape ``(units,)``: change of the NLL of all units, nats.
        seed
            Seed of the permutations; ``None``: none are made, since no claim rests on
            them.
        """
        change_of_spans = change[self.spans.index]  # (occurrences,), nats
        memory = memory_contrast.memory(change_of_spans, self.sides)
        gap = self.gap_before

        # The t test, and permutations where they are valid: then the larger p counts.
        p = memory.t_p(null=gap)
        least_p = 0.0
        if seed is not None and p is not None:
            permuted_p = self._permuted_p(change_of_spans, seed=seed)
            if permuted_p is not None:
                p = max(p, permuted_p)
                least_p = permutation.least_p(self.sides)

        # Memory is below 0: what could still be there lies at the lower end.
        bounds = t_bound(
            memory.difference.value,
            memory.difference.low,
            df=memory.freedom,
            direction=-1,
            tolerance=gap,
        )
        return MemoryTest(
            memory=memory,
            beyond_controls=self._beyond_controls(change),
            gap_before=gap,
            p=p,
            power=_power_of_memory(memory, gap=gap, least_p=least_p),
            bounds=tuple(bounds),
        )

    def _permuted_p(self, change_of_spans: np.ndarray, *, seed: int) -> float | None:
        """Return p by permutations of the sides; ``None``: they are not valid here.

        They are valid if chance dealt all identifiers to the sides, as it does injected
        ones.

        Parameters
        ----------
        change_of_spans
            Shape ``(occurrences,)``, nats.
        """
        # Annotated identifiers have form 0.
        are_all_injected = (self.spans["form"] > 0).all()
        if not are_all_injected:
            return None
        return permutation.permutation_p(change_of_spans, self.sides, seed=seed)

    def _beyond_controls(self, change: np.ndarray) -> memory_contrast.Memory:
        """Return the change of each side minus that of its controls.

        ``change`` has shape ``(units,)``, nats.
        """
        pairs = self.with_control
        controls = pairs.spans["control"].astype(int)
        beyond = change[pairs.spans.index] - change[controls]  # (pairs,), nats
        return memory_contrast.memory(beyond, pairs.sides, reasons=NO_CONTROL)


def _power_of_memory(
    memory: memory_contrast.Memory, *, gap: float, least_p: float
) -> tuple[Power, ...]:
    """Return the inputs for the smallest detectable memory; without a spread none.

    Parameters
    ----------
    gap
        Nats per token that memory must be larger than.
    least_p
        The smallest p that permutations can give; 0: there are none.
    """
    se = memory.difference.se
    if not se:
        return ()
    return (Power(test="t", se=se, df=memory.freedom, tolerance=gap, least_p=least_p),)


def clear_gap(difference: Estimate) -> float:
    """Return the size of a difference, or 0 if its interval contains 0.

    It is the gap, in nats per token, by which one side was harder before training.
    Without an interval the whole difference counts.
    """
    if side_of(difference) == 0:
        return 0.0
    return abs(difference.value or 0.0)


def groups_of_identifiers(units: pd.DataFrame) -> Iterator[Occurrences]:
    """Yield all identifiers, then those of each supervision, type and dose.

    A group has identifiers of trained rows, and identifiers that no trained row
    contains. A single type or dose makes no group of its own. Groups by supervision (in
    the loss, or only read) and by dose have all held-out identifiers; a group by type
    has those of its type. Doses ascend, and the highest comes last: others rely on it.

    Parameters
    ----------
    units
        Units of rows of the manifest, both splits.
    """
    is_identifier = units["role"].isin(["pii", "unmatched"])
    is_on_a_side = (units["split"] == "train") | (units["dose"] == 0)
    spans, _ = comparable(units[is_identifier & is_on_a_side])

    # Add the index of its control to each identifier; those without one have pair -1,
    # which no control has.
    control = units[units["role"] == "control"]
    control_of_pair = pd.Series(control.index, control["pair"])
    spans = spans.assign(control=spans["pair"].map(control_of_pair))

    yield Occurrences("pooled", spans)

    is_trained = spans["split"] == "train"
    held_out = spans[~is_trained]
    for group, trained in by_supervision(spans[is_trained]):
        yield Occurrences(group, pd.concat([trained, held_out]).sort_index())

    types = sorted({*spans["type"][is_trained]})
    if len(types) > 1:
        for name in types:
            yield Occurrences(f"type:{name}", spans[spans["type"] == name])

    # Doses by ranges of numbers, such as `2-3`, which begin at 1: held-out ones have 0.
    doses = spans["dose"].clip(lower=1)
    dose_groups = doses.map(dose_group)
    ascending = doses[is_trained].sort_values().map(dose_group).unique()
    if len(ascending) > 1:
        for name in ascending:
            is_of_dose = is_trained & (dose_groups == name)
            yield Occurrences(f"dose:{name}", spans[is_of_dose | ~is_trained])
