"""Whether the texts of a file are nearer to trained rows than to held-out ones.

The test is made with the evidence
(:mod:`spark_audit.stats.nearest_sides`). Here its result becomes figures and a finding:
the mean similarity of a text to its nearest trained row, less that to its nearest
held-out row, less what the numbers of rows alone make of it. Texts whose nearest row is
of the same cluster count as one unit of the interval.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from spark_audit.audits.base import Audit
from spark_audit.audits.extract.rates import limits_p
from spark_audit.audits.generated.units import FILE_TEXT
from spark_audit.names import is_untrained
from spark_audit.results import Claim, Finding, Row
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import Fact
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.bootstrap import cluster_sums
from spark_audit.stats.estimate import Estimate, Power, is_significant, side_of
from spark_audit.stats.intervals import rate_estimate, ratio_estimate
from spark_audit.stats.nearest_sides import LEAST_P
from spark_audit.stats.power import with_mde

SIMILARITY_OF_COPY = 1.0
"""Largest similarity of two texts."""


class NearestResult(NamedTuple):
    """The figures of the nearest rows of one file, and the finding on them."""

    nearer: Row
    closer: Row
    finding: Finding


def nearest_results(evidence: Evidence, audit: type[Audit]) -> Iterator[NearestResult]:
    """Yield figures and finding of each file whose texts could be compared.

    Parameters
    ----------
    audit
        The class of this audit.
    """
    for name in evidence.checkpoints:
        is_text_of_file = (evidence.units["set"] == FILE_TEXT) & (
            evidence.units["example"] == name
        )
        if name in evidence.facts["nearest_p"] and is_text_of_file.any():
            yield _nearest_result(evidence, name, is_text_of_file.to_numpy(), audit)


def _nearest_result(
    evidence: Evidence, name: str, is_text_of_file: np.ndarray, audit: type[Audit]
) -> NearestResult:
    """Return figures and finding of one file.

    Parameters
    ----------
    is_text_of_file
        Which units are its texts, ``(units,)`` bool.
    """
    trained = evidence.row(name, "trained")[is_text_of_file]  # (texts,)
    held_out = evidence.row(name, "held_out")[is_text_of_file]
    difference = trained - held_out
    is_nearer = (np.sign(difference) + 1) / 2

    codes = np.unique(evidence.units["cluster"][is_text_of_file], return_inverse=True)[
        1
    ]
    terms = np.stack([difference, is_nearer, np.ones(len(difference))], axis=1)
    differences, n_nearer, n_texts = cluster_sums(terms, codes).T  # (clusters,) each

    share = rate_estimate(n_nearer, n_texts)
    nearer = audit.row(
        share,
        name,
        "nearer_rate",
        no_effect=evidence.facts["expected_nearer"][name],
    )
    mean = ratio_estimate(differences, n_texts)
    estimate = _beyond(mean, evidence.facts["expected"][name])
    closer = audit.row(estimate, name, "closer")
    finding = _finding_on(
        estimate,
        closer,
        nearer,
        p=evidence.facts["nearest_p"][name],
        text_p=evidence.facts["text_p"],
    )
    return NearestResult(nearer, closer, finding)


def _beyond(estimate: Estimate, expected: float) -> Estimate:
    """Return what an estimate has beyond a number, with its smallest effect."""
    if estimate.value is None:
        return estimate

    def less(limit: float | None) -> float | None:
        """Return a limit less the number; a missing one stays missing."""
        return None if limit is None else limit - expected

    return with_mde(
        replace(
            estimate,
            value=estimate.value - expected,
            low=less(estimate.low),
            high=less(estimate.high),
        )
    )


def _finding_on(
    estimate: Estimate, closer: Row, nearer: Row, *, p: float, text_p: float | None
) -> Finding:
    """Return the finding on how near the texts of a file are to trained rows.

    ==========================================  ========================================
    first match wins                            claim and sentence
    ==========================================  ========================================
    there is no interval                        not_tested, ``few_texts``
    no side is significant                      nothing_shown, ``not_closer``
    farther from trained rows                   moved, ``farther``
    the rows alone tell their sides apart       confounded, ``topics_differ``
    closer to trained rows                      memory, ``closer``
    ==========================================  ========================================

    Parameters
    ----------
    estimate, closer
        By how much texts are closer, and its row.
    p
        That of the deals; the interval must agree, so that the larger p counts.
    text_p
        p that texts alone do not tell trained from held-out rows; ``None``: not tested.
    """
    facts: dict[str, Fact] = {
        "nearer": nearer,
        "closer": closer,
        "expected": nearer.no_effect,
    }
    side = side_of(estimate)
    if side is None:
        return Finding.on(closer, "not_tested", "generated.few_texts", facts=facts)

    p = max(p, limits_p(estimate))
    claim: Claim = "nothing_shown"
    says = "not_closer"
    if side and is_significant(p):
        claim, says = _claimed(side, text_p)

    # A confounded difference has no smallest effect.
    power = []
    if claim != "confounded" and not is_untrained(closer.checkpoint):
        power = [Power(test="t", se=estimate.se, df=estimate.df, least_p=LEAST_P)]
    return Finding.on(
        closer,
        claim,
        f"generated.{says}",
        facts=facts,
        further=["generated.nearer"],
        p=p,
        family="primary",
        power=power,
        bounds=t_bound(
            estimate.value,
            estimate.high,
            df=estimate.df,
            worst_value=SIMILARITY_OF_COPY,
        ),
    )


def _claimed(side: int, text_p: float | None) -> tuple[Claim, str]:
    """Return claim and sentence of a significant difference."""
    if side < 0:
        return "moved", "farther"
    if is_significant(text_p):
        return "confounded", "topics_differ"
    return "memory", "closer"
