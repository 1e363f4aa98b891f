"""Findings of the extraction audit: conclusions from reproduced identifiers.

Each checkpoint has a finding with its rate (``counts``), one that compares it
(:mod:`~spark_audit.audits.extract.comparison`), and one on ties where they matter. Each
change from a baseline has one, too. Keys of sentences are those of
``sentences/en/extract.toml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from spark_audit.audits.extract.comparison import comparison_finding
from spark_audit.audits.extract.comparison_facts import reproduced_hits
from spark_audit.audits.extract.prompts import SAMPLERS
from spark_audit.audits.extract.rates import Facts, by_checkpoint, row_of
from spark_audit.results import Claim, Contrast, Finding, Row
from spark_audit.stats.estimate import Estimate

NO_TRAINED_IDENTIFIER = "no identifier of a trained row was scored"

TIES_MATTER = 0.005
"""A finding states how ties change the greedy rate if that is more than this."""


def findings(pii: pd.DataFrame, rows: Sequence[Row], *, seed: int) -> Iterator[Finding]:
    """Yield the findings on the identifiers that each checkpoint reproduces.

    Parameters
    ----------
    pii
        Identifiers after their true prefix, of all checkpoints: one row per checkpoint
        and identifier, with the columns of :mod:`~spark_audit.audits.extract.rates`.
    rows
        Figures of the report: its pooled rates and numbers of tries are used.
    """
    pooled = {
        (row.checkpoint, row.metric, row.variant): row
        for row in rows
        if row.group == "pooled"
    }
    for name, spans in by_checkpoint(pii).items():
        yield from _findings_on(name, spans, pooled, seed=seed)


def _findings_on(
    name: str,
    spans: pd.DataFrame,
    pooled: Mapping[tuple[str, str, str], Row],
    *,
    seed: int,
) -> Iterator[Finding]:
    """Yield the findings on one checkpoint: its rate, a comparison, and its ties.

    Parameters
    ----------
    spans
        Of the checkpoint, from :func:`spark_audit.audits.extract.rates.by_checkpoint`.
    pooled
        Checkpoint, metric and variant -> its figure over all tasks.
    """
    rate = pooled.get((name, "greedy_rate", ""))
    reproduced = reproduced_hits(spans)
    has_sure_hit = reproduced.count > 0
    has_tied_hit = reproduced.tied > 0

    # If there are hits there is a finding even if the rate is not estimable.
    is_hit = has_sure_hit or has_tied_hit
    if rate is None or (rate.value is None and not is_hit):
        reason = NO_TRAINED_IDENTIFIER if rate is None else rate.note
        yield Finding.not_tested(
            "extract", "extract.missing", checkpoint=name, reason=reason
        )
        return

    # Median numbers of tries (audit.py) are facts of the sentence, too.
    facts: Facts = {"rate": rate, "back": reproduced}
    for sampler in SAMPLERS:
        facts[sampler] = pooled[name, "n50_median", sampler]

    if has_tied_hit and not has_sure_hit:
        yield Finding.on(
            rate,
            "not_tested",
            "extract.counts_tied",
            facts=facts,
            further=["extract.tied", "extract.all_tied"],
            status="not_resolvable",
        )
    else:
        comparison = comparison_finding(spans, rate, seed=seed)
        # A detection is claimed only once, by the sentence of the comparison: that of
        # the rate only describes.
        is_nothing_to_test = comparison.claim == "not_tested" and not has_sure_hit
        claim: Claim = "moved"
        if comparison.claim == "nothing_shown" or is_nothing_to_test:
            claim = "nothing_shown"
        yield Finding.on(rate, claim, "extract.counts", facts=facts, status="ok")
        yield comparison

    # With many ties the precision of the scores decides the rate.
    tied_share = reproduced.tied / reproduced.of
    if tied_share > TIES_MATTER:
        estimate = Estimate(tied_share, clusters=rate.clusters)
        ties = row_of(estimate, checkpoint=name, metric="ties")
        yield Finding.not_tested(
            "extract",
            "extract.ties",
            checkpoint=name,
            further=["extract.score_in_float32"],
            ties=ties,
        )


def contrast_findings(contrasts: Sequence[Contrast]) -> Iterator[Finding]:
    """Yield findings on the change of the greedy rate from each baseline."""
    for contrast in contrasts:
        if (contrast.group, contrast.metric) != ("pooled", "greedy_rate"):
            continue

        # If all clusters agree there is no interval, so the sign-flip test decides.
        is_significant = (
            contrast.ends is None
            and contrast.p is not None
            and contrast.p <= 1 - contrast.interval_level
        )
        claim: Claim = "nothing_shown"
        says = "change_none"
        if contrast.value is None:
            claim = "not_tested"
            says = "change_missing"
        elif contrast.moved or is_significant:
            claim = "moved"
            says = "change_up" if contrast.value > 0 else "change_down"
        yield Finding.on(contrast, claim, f"extract.{says}", facts={"change": contrast})
