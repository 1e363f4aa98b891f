"""Extraction from both sides: what comes out at least, and what can at most.

Random draws after the true prefix give each identifier with some chance, which depends
on the decoder. From below it is bounded by the decoders whose chances every pass
scores: the best of them for each identifier. From above it is bounded by the ranks of
its tokens, for every decoder that keeps the order of tokens
(:mod:`spark_audit.stats.extraction_bound`). Each bound is stated for 1, 1,000 and
1,000,000 draws of each identifier, as a mean share of identifiers; times their number
it is the expected number that comes out. Nothing is claimed: both bounds describe.

The bits of single identifiers are a column of the evidence, which only its owner can
read. Their quantiles are figures: no identifier but a few is easier than the lowest.

A further number of draws is an item of :data:`DRAWS`, a further quantile a line of
:data:`SHARE_BELOW`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from spark_audit.audits import ratio_rows
from spark_audit.audits.base import Audit, Context, Metric
from spark_audit.audits.extract.prompts import ALL_SAMPLERS
from spark_audit.results import Row
from spark_audit.results.evidence import Evidence
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.extraction_bound import bits_of_logp, chance_within
from spark_audit.stats.quantiles import quantile_estimate

DRAWS = (1, 1_000, 1_000_000)
"""Numbers of draws of each identifier."""

MOST_DRAWS = str(DRAWS[-1])
"""Variant of the largest number of draws, which sentences state."""

SHARE_BELOW = {"p05": 0.05, "p25": 0.25, "p50": 0.5}
"""Variant of the quantile of bits -> share of identifiers that are at least as easy."""

NEGLIGIBLE_SHARE = 1e-9
"""A lower limit of a share below this stands for 0: exact limits reach 1e-308."""

STEP_OF_BITS = 4.0
"""Least rounding step of a quantile of bits in shared files.

A quantile is the figure of a single identifier. A step of 4 bits is a factor of 16 in
the number of draws; numbers of tries are rounded to a factor of 10.
"""

WHAT_IS_BOUNDED = (
    "after this prompt, in this tokenisation, by any decoder that keeps the order of "
    "tokens; not by beam search, logit bias or constrained decoding"
)
"""Note on each upper bound."""

BEST_SCORED = (
    "by the best of greedy decoding, temperature 1 and top-k or top-p sampling"
)
"""Note on each lower bound."""

PANEL = "both_sides"
"""Key of their table."""

METRICS = (
    Metric(
        "drawn_at_most",
        rate=True,
        learned=1,
        variants=tuple(str(draws) for draws in DRAWS),
        alone=True,
        note=WHAT_IS_BOUNDED,
        rounds="up",
        panel=PANEL,
    ),
    Metric(
        "drawn_at_least",
        rate=True,
        learned=1,
        variants=tuple(str(draws) for draws in DRAWS),
        alone=True,
        note=BEST_SCORED,
        rounds="down",
        panel=PANEL,
    ),
    Metric(
        "bits_bound",
        "bits",
        bounds=(0.0, np.inf),
        learned=-1,
        variants=tuple(SHARE_BELOW),
        alone=True,
        note=WHAT_IS_BOUNDED,
        rounds="down",
        panel=PANEL,
        least_step=STEP_OF_BITS,
    ),
)


def figures_of_both_sides(
    groups: Sequence[ratio_rows.UnitGroup],
    evidence: Evidence,
    context: Context,
    *,
    audit: type[Audit],
) -> list[Row]:
    """Return both bounds and the quantiles of bits of each group of identifiers.

    There are none of evidence that an earlier version collected, which has no bits.

    Parameters
    ----------
    groups
        Identifiers after their true prefix, by group of the report.
    audit
        The class of this audit.
    """
    shares, _ = ratio_rows.ratio_figures(
        _cells_by_group(groups, evidence), context, audit
    )
    rows = [_without_negligible_limit(row) for row in shares]
    for group in groups:
        rows += _quantiles(group, evidence, audit=audit)
    return rows


def _cells_by_group(
    groups: Iterable[ratio_rows.UnitGroup], evidence: Evidence
) -> Iterator[ratio_rows.GroupWithCells]:
    """Yield the cells of both bounds, group by group."""
    for group in groups:
        yield group, _cells(group, evidence)


def _cells(
    group: ratio_rows.UnitGroup, evidence: Evidence
) -> Iterator[ratio_rows.RatioCell]:
    """Yield the cells of both bounds, by checkpoint and number of draws."""
    n_identifiers = len(group.positions)
    for checkpoint in evidence.checkpoints:
        upper = evidence.row(checkpoint, "bits")[group.positions]  # (identifiers,)
        lower = lower_bits(evidence, checkpoint)[group.positions]  # (identifiers,)
        sides = {"drawn_at_most": upper, "drawn_at_least": lower}
        for metric, bits in sides.items():
            for draws in DRAWS:
                yield ratio_rows.RatioCell(
                    key=ratio_rows.RatioKey(checkpoint, metric, str(draws)),
                    numerators=chance_within(bits, draws),
                    denominators=np.ones(n_identifiers),
                )


def lower_bits(evidence: Evidence, checkpoint: str) -> np.ndarray:
    """Return bits of the best scored decoder for each unit, shape ``(units,)``.

    NaN: the unit was not scored, or no bound from above is known of it.
    """
    # Greedy decoding gives the same answer in every draw; ties are lost.
    is_written = evidence.row(checkpoint, "greedy_sure") == 1  # (units,), bool
    best_logp = np.where(is_written, 0.0, -np.inf)  # (units,), nats
    for sampler in ALL_SAMPLERS:
        # A sampler that was not scored has NaN, which `fmax` leaves out.
        best_logp = np.fmax(best_logp, evidence.row(checkpoint, f"logp_{sampler}"))

    # Scores are rounded to 32 bits: the chance of a tied token may exceed 1 / rank by
    # their last digit. NaN of a unit that was not scored stays NaN.
    upper = evidence.row(checkpoint, "bits")
    return np.asarray(np.maximum(bits_of_logp(best_logp), upper))


def _without_negligible_limit(row: Row) -> Row:
    """Return a share whose lower limit is 0 if it is too small to be read."""
    if row.low is not None and row.low < NEGLIGIBLE_SHARE:
        return row.model_copy(update={"low": 0.0})
    return row


def _quantiles(
    group: ratio_rows.UnitGroup, evidence: Evidence, *, audit: type[Audit]
) -> Iterator[Row]:
    """Yield the quantiles of the bits of a group's identifiers, by checkpoint.

    A quantile of few clusters would be the figure of one of the easiest identifiers. It
    has a reason in the row of all identifiers, and no row in a smaller group.
    """
    for checkpoint in evidence.checkpoints:
        bits = evidence.row(checkpoint, "bits")[group.positions]  # (identifiers,)
        if np.isnan(bits).any():
            continue

        for variant, share in SHARE_BELOW.items():
            has_enough = group.n_clusters * share >= MIN_CLUSTERS_TO_PUBLISH
            if has_enough:
                estimate = quantile_estimate(bits, group.codes, share=share)
                estimate = estimate.noting(WHAT_IS_BOUNDED)
            elif group.name == "pooled":
                estimate = Estimate.missing(
                    f"fewer than {MIN_CLUSTERS_TO_PUBLISH} clusters are below it",
                    n=len(bits),
                    clusters=group.n_clusters,
                )
            else:
                continue
            yield audit.row(
                estimate, checkpoint, "bits_bound", variant, group=group.name
            )


def facts_of_both_sides(
    pooled_figures: Mapping[tuple[str, str, str], Row], checkpoint: str
) -> dict[str, Row]:
    """Return both bounds of a checkpoint for the most draws; empty: it has none.

    Parameters
    ----------
    pooled_figures
        Checkpoint, metric and variant -> its figure over all tasks.
    """
    at_least = pooled_figures.get((checkpoint, "drawn_at_least", MOST_DRAWS))
    at_most = pooled_figures.get((checkpoint, "drawn_at_most", MOST_DRAWS))
    if at_least is None or at_most is None:
        return {}
    return {"at_least": at_least, "at_most": at_most}
