"""Findings on methods with several seeds: claims of their headline figures.

The rows are those that :mod:`spark_audit.audits.seeds` makes of the replicates' rows,
here only those whose interval is over sources and seeds together (``both``). Their
words are the sentences ``seeds.KEY``. A further conclusion is a line of the table in
:func:`_conclusion`, at its place in the order, and a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import scipy

from spark_audit.audits import metric_of
from spark_audit.audits.identifiers import memory_claim
from spark_audit.results import Claim, Contrast, Finding, Row
from spark_audit.stats.at_most import t_bound
from spark_audit.stats.estimate import Bound, Power
from spark_audit.stats.selectivity import unlike_drift

UPPER_TAIL = 0.975
"""Probability below the upper limit of a 95% interval."""


class SeedsMemoryTest(NamedTuple):
    """Two-sided p of no memory beyond the null band, and inputs of its power."""

    p: float
    power: list[Power]


class Conclusion(NamedTuple):
    """The claim of a headline, and the keys of its sentences (without ``seeds.``)."""

    claim: Claim
    says: str
    further: tuple[str, ...] = ()


def findings_of_methods(
    rows: Sequence[Row], n_seeds: Mapping[str, int]
) -> Iterator[Finding]:
    """Yield the findings on the headline figures of methods, over sources and seeds.

    A method has one finding for each headline figure of its audit, and one for each
    DiD: the metric ``did`` of the matched audit, the change of identifiers minus that
    of their controls. Only memory has a p (:func:`_memory_test`).

    Parameters
    ----------
    rows
        Rows and contrasts of methods.
    n_seeds
        Method -> number of its replicates.
    """
    rows_over_both = [row for row in rows if row.interval_over == "both"]

    # There is one `low_change` for each method and baseline.
    drifts: dict[tuple[str, str], Contrast] = {}
    for row in rows_over_both:
        if isinstance(row, Contrast) and row.metric == "low_change":
            drifts[row.checkpoint, row.baseline] = row

    for row in rows_over_both:
        if not _is_headline(row):
            continue
        drift = None
        if isinstance(row, Contrast):
            drift = drifts.get((row.checkpoint, row.baseline))
        # Only a DiD can be of a single seed (with several of its baseline), and it is
        # not tested here.
        df = max(n_seeds[row.checkpoint] - 1, 1)
        yield _headline_finding(row, drift, df=df)


def _is_headline(row: Row) -> bool:
    """Return whether a row is a headline figure: a metric declares which variants are.

    Of contrasts only a DiD is one.
    """
    headline_variants = metric_of(row.audit, row.metric).headline
    if row.group != "pooled" or row.variant not in headline_variants:
        return False
    return not isinstance(row, Contrast) or row.metric == "did"


def _headline_finding(row: Row, drift: Contrast | None, *, df: int) -> Finding:
    """Return the finding on one headline figure over sources and seeds.

    Parameters
    ----------
    drift
        As for :func:`_conclusion`.
    df
        Degrees of freedom: the number of seeds minus one.
    """
    conclusion = _conclusion(row, drift)
    further = [f"seeds.{key}" for key in conclusion.further]
    if row.value is not None and row.ends is None:
        further.append("seeds.no_interval")
    if row.status not in ("ok", "not_estimable"):
        further.append("seeds.status")

    p: float | None = None
    power: list[Power] = []
    bounds: list[Bound] = []
    if row.metric == "memory" and row.value is not None and row.ends is not None:
        # A row without a band around 0 has one from 0 to 0.
        null_band = (row.no_effect_low or 0.0, row.no_effect_high or 0.0)
        test = _memory_test(row.value, row.ends, null_band, df=df)
        p = test.p
        power = test.power

        # Memory is below 0: the memory that could still be there is the lower limit, as
        # far as it lies beyond the null band.
        bounds = t_bound(
            row.value,
            row.low,
            df=df,
            direction=-1,
            tolerance=abs(null_band[0]),
        )

    return Finding.on(
        row,
        conclusion.claim,
        f"seeds.{conclusion.says}",
        facts={"figure": row, "drift": drift},
        further=further,
        p=p,
        power=power,
        bounds=bounds,
    )


def _conclusion(row: Row, drift: Contrast | None) -> Conclusion:
    """Return the conclusion of a headline over sources and seeds; first match wins.

    =====================================  ===============  =======================
    row                                    claim            sentence
    =====================================  ===============  =======================
    no value                               not_tested       missing, of a contrast
                                                            missing_change
    no contrast, metric ``memory``         that of          memory
                                           ``memory_claim``
    no contrast, of another metric         moved            headline
    contrast without an interval           nothing_shown    headline_change
    contrast whose interval contains 0     nothing_shown    did_still
    drift of other text is not known       nothing_shown    did_drift_unknown
    drift of other text is unequal, or     nothing_shown    did_drift_unequal
    too uncertain
    contrast above 0: less likely          moved            did_less
    contrast below 0: likelier             moved            did_more
    =====================================  ===============  =======================

    Parameters
    ----------
    drift
        Change of low-sensitivity text from the baseline of the contrast, nats per
        token; ``None``: there is no such contrast.
    """
    is_contrast = isinstance(row, Contrast)
    if row.value is None:
        return Conclusion("not_tested", "missing_change" if is_contrast else "missing")

    if not is_contrast:
        if row.metric == "memory":
            return Conclusion(memory_claim(row), "memory")
        return Conclusion("moved", "headline")

    if row.ends is None:
        return Conclusion("nothing_shown", "headline_change")
    if row.ends[0] <= 0 <= row.ends[1]:
        return Conclusion("nothing_shown", "did_still", ("mean",))
    if drift is None or drift.value is None:
        return Conclusion("nothing_shown", "did_drift_unknown", ("mean",))
    is_drift_unequal = unlike_drift(row.value, drift.value, drift.low, drift.high)
    if is_drift_unequal:
        further = ("drift_causes", "mean")
        return Conclusion("nothing_shown", "did_drift_unequal", further)

    says = "did_less" if row.ends[0] > 0 else "did_more"
    return Conclusion("moved", says, ("drift_equal", "mean"))


def _memory_test(
    value: float,
    interval: tuple[float, float],
    null_band: tuple[float, float],
    *,
    df: int,
) -> SeedsMemoryTest:
    """Return the test that memory over sources and seeds is within its null band.

    The interval is read as one of Student's t over seeds. The real spread also has a
    part of sources, with more degrees of freedom, so p is nearly exact only if the
    spread over seeds dominates. Without a band, p is 0.05 if a limit of the interval
    lies on 0, whatever the degrees of freedom; a smaller p is larger than the true one.

    Parameters
    ----------
    value
        Memory, nats per token; below 0: trained identifiers became likelier.
    interval
        Its lower and upper limit.
    null_band
        Both ends of the values that are possible without memory (see ``memory_claim``
        in ``identifiers``).
    df
        Degrees of freedom: the number of seeds minus one.
    """
    # The half-width towards 0, and how far the band reaches on the side of the value.
    low, high = interval
    band_low, band_high = null_band
    if value < 0:
        half_width = abs(value - high)
        band = abs(band_low)
    else:
        half_width = abs(value - low)
        band = abs(band_high)

    # If the limit equals the value, nothing can be detected.
    if half_width == 0:
        return SeedsMemoryTest(p=1.0, power=[])

    # The half-width is a quantile times the standard error.
    quantile = float(scipy.special.stdtrit(df, UPPER_TAIL))
    se = half_width / quantile
    beyond_band = max(abs(value) - band, 0.0)
    t = quantile * beyond_band / half_width
    p = float(2 * scipy.special.stdtr(df, -t))
    power = Power(test="t", se=se, df=df, tolerance=band)
    return SeedsMemoryTest(p=p, power=[power])
