"""Which epsilon the canaries of a manifest could refute, and how many it takes.

The test is that of ``spark-audit epsilon`` (:mod:`spark_audit.report.receipt`): at 95%,
for a row that is added or removed. With a delta it is the coins of pairs, without one
the ranks among candidates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_audit.manifest.schema import Manifest, ManifestCanary
from spark_audit.planning.canaries import candidates_of, ranked_canaries
from spark_audit.report.receipt import (
    SIGNIFICANCE,
    WHOLE_CANARY,
    Claim,
    GuessedBy,
    canaries_needed,
)
from spark_audit.stats.epsilon_bounds import declared_guesses

PLANNED_DELTA = 1e-5
"""Delta of the claims that pairs are planned for."""

ASKED_EPSILONS = (0.5, 1.0, 2.0)
"""Claims of which the plan says how many canaries could refute them."""


@dataclass(frozen=True, kw_only=True)
class EpsilonPlan:
    """What canaries could say of a claim of differential privacy.

    Attributes
    ----------
    by
        ``coins`` of pairs, or ranks among ``candidates``.
    delta
        Delta of the claims.
    n
        Pairs of canaries, or planted canaries.
    rows_per_canary
        Trained rows that hold each of them.
    largest
        The largest epsilon that is refuted if all guesses are right; 0: none.
    needed
        Epsilon -> canaries (pairs), each in one row, that could refute a claim of it;
        ``None``: no number could.
    """

    by: GuessedBy
    delta: float
    n: int
    rows_per_canary: int
    largest: float
    needed: Mapping[float, int | None]


def epsilon_plans(manifest: Manifest) -> list[EpsilonPlan]:
    """Return what the canaries could say of claims with a delta, and without one."""
    ranked = [
        canary for canary in ranked_canaries(manifest) if canary.part == WHOLE_CANARY
    ]
    planted = [canary for canary in ranked if not canary.held_out]
    n_candidates = candidates_of(manifest, ranked)
    # No canary stands in more rows than there are.
    n_rows = len(manifest.examples)
    pairs = _paired(ranked)
    return [
        _plan("coins", pairs, delta=PLANNED_DELTA, n_candidates=0, n_rows=n_rows),
        _plan(
            "candidates", planted, delta=0.0, n_candidates=n_candidates, n_rows=n_rows
        ),
    ]


def _paired(ranked: Sequence[ManifestCanary]) -> list[ManifestCanary]:
    """Return the planted canaries of the pairs of which both canaries are ranked."""
    n_of_pair: dict[str, int] = defaultdict(int)
    for canary in ranked:
        if canary.pair is not None:
            n_of_pair[canary.pair] += 1
    return [
        canary
        for canary in ranked
        if canary.pair is not None
        and not canary.held_out
        and n_of_pair[canary.pair] == 2
    ]


def _plan(
    by: GuessedBy,
    planted: Sequence[ManifestCanary],
    *,
    delta: float,
    n_candidates: int,
    n_rows: int,
) -> EpsilonPlan:
    """Return what canaries of the lowest dose could say of claims.

    Parameters
    ----------
    n_candidates
        Candidates of each canary; 0: coins.
    n_rows
        Rows of the manifest.
    """
    lowest_dose = min((canary.dose for canary in planted), default=1)
    rows_per_canary = max(1, min(lowest_dose, n_rows))
    n = sum(canary.dose == lowest_dose for canary in planted)

    largest = 0.0
    if n:
        claim = Claim(epsilon=0.0, delta=delta)
        largest = claim.bound(
            n if n_candidates else declared_guesses(n),
            n,
            rows=rows_per_canary,
            level=SIGNIFICANCE,
            candidates=n_candidates,
        )

    needed: dict[float, int | None] = {}
    for epsilon in ASKED_EPSILONS:
        claim = Claim(epsilon=epsilon, delta=delta)
        needed[epsilon] = canaries_needed(claim, candidates=n_candidates)
    return EpsilonPlan(
        by=by,
        delta=delta,
        n=n,
        rows_per_canary=rows_per_canary,
        largest=largest,
        needed=needed,
    )
