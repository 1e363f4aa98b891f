"""Mistakes of the setup of an audit of erasure, each with its guard.

====================  ==================================================================
guard                 mistake
====================  ==================================================================
erasure_before        the model before erasure does not remember the forget rows: it was
                      not trained on them, or it was swapped with the one after erasure
erasure_retrained     the retrained model remembers the forget rows: it has read them
erasure_margin        the margin is as wide as what was remembered, so that it shows
                      nothing (a warning)
erasure_unchanged     the model after erasure scores as the one before (a warning)
erasure_shared        forget rows share sources or identifiers with retained rows, from
                      which what remains may come (a warning)
====================  ==================================================================

A mistake of the first two kinds leaves no verdict on any checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spark_audit.audits.claims import ALPHA
from spark_audit.audits.erasure.comparison import ErasureComparison, MemoryTestResult
from spark_audit.audits.erasure.verdicts import Margin
from spark_audit.audits.identifiers import REPRODUCED
from spark_audit.audits.setup_faults import ALARM
from spark_audit.results import Guard, Row
from spark_audit.results.guards import guard

BEFORE_GUARD = "erasure_before"
RETRAINED_GUARD = "erasure_retrained"
MARGIN_GUARD = "erasure_margin"
UNCHANGED_GUARD = "erasure_unchanged"
SHARED_GUARD = "erasure_shared"

MIN_SHARE_OF_BEFORE = 0.5
"""Share of what the model before erasure remembers from which on a retrained one is
taken to have read the rows. Less may be that forget rows are easier for anybody."""


class SetupResult(NamedTuple):
    """The guards of a setup, and the key of the mistake that voids all verdicts.

    ``mistake`` is a key of a sentence without ``erasure.``; empty: there is none.
    """

    guards: list[Guard]
    mistake: str


def setup_result(
    comparison: ErasureComparison,
    after: Sequence[str],
    remaining: Mapping[str, Row],
    margin: Margin,
    margin_row: Row | None,
    *,
    n_shared: int,
    n_forget: int,
) -> SetupResult:
    """Return the guards of the setup, and whether a mistake leaves no verdict.

    Parameters
    ----------
    after
        Checkpoints that get a verdict.
    remaining
        Checkpoint -> its remaining difference of rows.
    margin, margin_row
        The margin, and its figure; None: there is no margin.
    n_shared, n_forget
        Forget rows that share something with retained rows, and all forget rows.
    """
    guards: list[Guard] = []
    mistake = ""

    # A retrained model must not have read the forget rows. If it has, a comparison with
    # it shows no memory of any other model, which says nothing about these.
    retrained = comparison.retrained
    if retrained:
        is_as_strong = _share_of_before(comparison, retrained) >= MIN_SHARE_OF_BEFORE
        has_read = is_as_strong and _remembers(comparison.tests(retrained), level=ALARM)
        if has_read:
            mistake = "retrained_read"
        retrained_guard = guard(
            RETRAINED_GUARD,
            "erasure_retrained_read" if has_read else "erasure_retrained",
            {"retrained": remaining[retrained]},
            passed=not has_read,
            checkpoint=retrained,
        )
        guards.append(retrained_guard)

    if not mistake and comparison.tests(comparison.before):
        mistake = _mistake_of_before(comparison, after)
        guards.append(_guard_of_before(comparison, after, remaining, mistake))

    if not mistake and margin.is_too_wide:
        guards.append(
            guard(
                MARGIN_GUARD,
                "erasure_margin",
                {"margin": margin_row, "before": remaining[comparison.before]},
                checkpoint=comparison.before,
            )
        )
    guards += _warnings(comparison, after, n_shared=n_shared, n_forget=n_forget)
    return SetupResult(guards, mistake)


def _mistake_of_before(comparison: ErasureComparison, after: Sequence[str]) -> str:
    """Return what is wrong if the model before erasure remembers nothing.

    Empty: it remembers the forget rows, or that could not be tested: then the findings
    say why.
    """
    tests = comparison.tests(comparison.before)
    if not tests or _remembers(tests, level=ALPHA):
        return ""
    is_swapped = any(_remembers(comparison.tests(name), level=ALPHA) for name in after)
    return "swapped" if is_swapped else "not_trained"


def _guard_of_before(
    comparison: ErasureComparison,
    after: Sequence[str],
    remaining: Mapping[str, Row],
    mistake: str,
) -> Guard:
    """Return the guard that the model before erasure remembers the forget rows."""
    before = comparison.before
    says = f"erasure_{mistake}" if mistake else "erasure_before"
    # With few rows there is no figure, only ranks.
    if mistake and remaining[before].value is None:
        says = f"{says}_by_ranks"

    remembering = []
    if mistake:
        for name in after:
            if _remembers(comparison.tests(name), level=ALPHA):
                remembering.append(name)
    return guard(
        BEFORE_GUARD,
        says,
        {"before": remaining[before], "names": remembering},
        passed=not mistake,
        checkpoint=before,
    )


def _share_of_before(comparison: ErasureComparison, name: str) -> float:
    """Return what a model remembers of rows as a share of that before erasure.

    Both since the base. Without a figure of either it is 1.
    """
    since_base = ErasureComparison(comparison.evidence, before=comparison.before)
    part = since_base.part_of_rows
    before = since_base.difference(comparison.before, part).difference.value
    of_name = since_base.difference(name, part).difference.value
    if not before or of_name is None:
        return 1.0
    return of_name / before


def _remembers(tests: Sequence[MemoryTestResult], level: float) -> bool:
    """Return whether any test shows memory, corrected over all of them."""
    return any(test.direction > 0 and len(tests) * test.p < level for test in tests)


def _warnings(
    comparison: ErasureComparison, after: Sequence[str], *, n_shared: int, n_forget: int
) -> list[Guard]:
    """Return the warnings, which leave verdicts as they are."""
    guards = []
    before = comparison.nll(comparison.before)
    n_tokens = comparison.evidence.units["n_tokens"].to_numpy()
    for name in after:
        difference = np.abs(comparison.nll(name) - before) / n_tokens  # (units,), nats
        if np.nanmax(difference, initial=0.0) <= REPRODUCED:
            guards.append(
                guard(
                    UNCHANGED_GUARD,
                    "erasure_unchanged",
                    {"name": name, "before": comparison.before},
                    checkpoint=name,
                )
            )
    if n_shared and not comparison.retrained:
        guards.append(
            guard(
                SHARED_GUARD,
                "erasure_shared",
                {"shared": n_shared, "rows": n_forget},
            )
        )
    return guards
