"""Findings of the extraction audit: conclusions from reproduced identifiers.

Each checkpoint has a finding with its rate (``counts``), one that compares this rate
with that of held-out identifiers or of the base
(:mod:`~spark_audit.audits.extract.comparison`), and one on ties where they matter. Each
change from a baseline has one, too. Keys of sentences are those of
``sentences/en/extract.toml``.

A *span* is an identifier in a row of text. A *hit* is a span of a trained row that a
checkpoint reproduces word for word: a sure one, or a tied one, which counts only if
ties for the first place are won.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from spark_audit.audits.extract.both_sides import facts_of_both_sides
from spark_audit.audits.extract.comparison import comparison_finding
from spark_audit.audits.extract.comparison_facts import reproduced_hits
from spark_audit.audits.extract.prompts import SAMPLERS
from spark_audit.audits.extract.rates import Facts, by_checkpoint, row_of
from spark_audit.results import Claim, Contrast, Finding, Row
from spark_audit.stats.estimate import Estimate, is_significant

NO_TRAINED_IDENTIFIER = "no identifier of a trained row was scored"

TIES_MATTER = 0.005
"""A finding states how ties change the greedy rate if that is more than this."""


def findings(
    spans: pd.DataFrame, rows: Sequence[Row], *, seed: int
) -> Iterator[Finding]:
    """Yield the findings on the spans that each checkpoint reproduces.

    Parameters
    ----------
    spans
        Those after their true prefix, of all checkpoints: one line per checkpoint and
        span, with the columns of :mod:`~spark_audit.audits.extract.rates`.
    rows
        Figures of the report: its pooled rates and numbers of tries are used.
    """
    pooled_figures = {
        (row.checkpoint, row.metric, row.variant): row
        for row in rows
        if row.group == "pooled"
    }
    for name, spans_of_checkpoint in by_checkpoint(spans).items():
        yield from _findings_on(name, spans_of_checkpoint, pooled_figures, seed=seed)


def _findings_on(
    name: str,
    spans: pd.DataFrame,
    pooled_figures: Mapping[tuple[str, str, str], Row],
    *,
    seed: int,
) -> Iterator[Finding]:
    """Yield the findings on one checkpoint: its rate, a comparison, and its ties.

    Parameters
    ----------
    spans
        Of the checkpoint, from :func:`spark_audit.audits.extract.rates.by_checkpoint`.
    pooled_figures
        Checkpoint, metric and variant -> its figure over all tasks. The variant "" is
        the main one; of the numbers of tries it is the name of a sampler. A checkpoint
        with a rate has a figure of each sampler, since every pass scores them all
        (median_tries.py).
    """
    rate = pooled_figures.get((name, "greedy_rate", ""))
    hits = reproduced_hits(spans)
    has_sure_hit = hits.count > 0  # `count` is without ties
    has_tied_hit = hits.tied > 0

    # If there are hits there is a finding even if the rate is not estimable.
    has_hit = has_sure_hit or has_tied_hit
    if rate is None or (rate.value is None and not has_hit):
        reason = NO_TRAINED_IDENTIFIER if rate is None else rate.note
        yield Finding.not_tested(
            "extract", "extract.missing", checkpoint=name, reason=reason
        )
        return

    # Facts have the names by which sentences read them. `back`: how many spans came
    # back, as in "{{ back }} of {{ back.of }}"; a sampler: its median number of tries.
    facts: Facts = {"rate": rate, "back": hits}
    for sampler in SAMPLERS:
        facts[sampler] = pooled_figures[name, "n50_median", sampler]
    bounds = facts_of_both_sides(pooled_figures, name)
    facts |= bounds

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

        # A rate by itself is no leak: "moved" is the neutral claim. A leak is claimed
        # once, by the comparison.
        has_no_hit_and_no_test = not has_hit and comparison.claim == "not_tested"
        shows_nothing = comparison.claim == "nothing_shown" or has_no_hit_and_no_test
        claim: Claim = "nothing_shown" if shows_nothing else "moved"
        yield Finding.on(
            rate,
            claim,
            "extract.counts",
            facts=facts,
            further=["extract.both_sides"] if bounds else [],
            status="ok",
        )
        yield comparison

    # With many ties the precision of the scores decides the rate. The finding describes
    # this, and tests nothing.
    tied_share = hits.tied / hits.of  # of the spans of trained rows
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
        is_shown_without_interval = contrast.ends is None and is_significant(
            contrast.p, level=contrast.interval_level
        )

        claim: Claim = "nothing_shown"
        says = "change_none"
        if contrast.value is None:
            claim = "not_tested"
            says = "change_missing"
        elif contrast.moved or is_shown_without_interval:
            claim = "moved"
            says = "change_up" if contrast.value > 0 else "change_down"

        yield Finding.on(contrast, claim, f"extract.{says}", facts={"change": contrast})
