"""Findings of the audit of passages: trained rows next to held-out ones.

The share of trained rows with a passage is compared with that of held-out rows of the
same tasks, less the same difference at the base, as extraction compares identifiers
(:mod:`spark_audit.audits.extract.rates`). Keys of sentences are those of
``sentences/en/passages.toml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from spark_audit.audits.extract.comparison_facts import reproduced_hits
from spark_audit.audits.extract.difference_finding import difference_finding
from spark_audit.audits.extract.rate_limits import hits_power, rates_bound
from spark_audit.audits.extract.rates import (
    base_difference,
    by_checkpoint,
    comparable,
    comparison_p,
    is_scored_beside_base,
    rate_difference,
    split_difference,
)
from spark_audit.names import is_untrained
from spark_audit.results import Claim, Finding, Hits, Row
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import Fact
from spark_audit.stats.estimate import (
    Bound,
    Estimate,
    Power,
    is_significant,
    side_of,
)


class PassageVerdict(NamedTuple):
    """What is claimed of a checkpoint, and the key of its sentence."""

    claim: Claim
    says: str


def passage_findings(
    evidence: Evidence,
    rows: Sequence[Row],
    *,
    n_tokens: int,
    text_p: float | None,
) -> Iterator[Finding]:
    """Yield one finding on each checkpoint.

    Parameters
    ----------
    rows
        Figures of the audit.
    n_tokens
        Tokens that a passage has at least.
    text_p
        p that the texts alone do not tell trained from held-out rows; ``None``: it was
        not tested.
    """
    pooled_figures = {
        (row.checkpoint, row.metric): row for row in rows if row.group == "pooled"
    }
    rows_by_checkpoint = by_checkpoint(_compared_rows(evidence, n_tokens=n_tokens))
    for name, rows_of_text in rows_by_checkpoint.items():
        rate = pooled_figures.get((name, "passage_rate"))
        if rate is not None and rate.value is not None:
            figures = {
                metric: pooled_figures[name, metric]
                for metric in ("longest_tokens", "longest_words")
                if (name, metric) in pooled_figures
            }
            yield _finding_on(
                rows_of_text, rate, figures, n_tokens=n_tokens, text_p=text_p
            )


def _compared_rows(evidence: Evidence, *, n_tokens: int) -> pd.DataFrame:
    """Return the rows that are long enough, with the columns that rates are made of.

    They are those of :mod:`spark_audit.audits.extract.rates`, which compares spans
    within their type: here a row of text is a span and its task the type. A row is a
    hit if it has a passage; ``greedy_sure`` loses ties for the first guess, ``greedy``
    wins them.
    """
    frame = evidence.frame()
    frame = frame[frame["n_tokens"] >= n_tokens]
    return frame.assign(
        span=frame["example"],
        origin="row",
        type=frame["task"],
        stratum=0,
        trials=1,
        greedy_sure=frame["run"] >= n_tokens,
        greedy=frame["run_won"] >= n_tokens,
    )


class RecitedRows(NamedTuple):
    """Trained next to held-out rows of one checkpoint.

    Attributes
    ----------
    rows
        The rows of tasks with both splits, which alone are compared.
    at_base
        Difference of the same rows at the base; 0 if it was not scored.
    difference
        Share of trained rows with a passage minus that of held-out rows, beyond
        ``at_base``; missing if too few rows can be compared.
    has_base
        Whether the base was scored on these rows.
    """

    rows: pd.DataFrame
    at_base: Estimate
    difference: Estimate
    has_base: bool

    @classmethod
    def of(cls, rows_of_text: pd.DataFrame) -> RecitedRows:
        """Return the comparison of a checkpoint's rows."""
        compared, _ = comparable(rows_of_text)
        at_base = base_difference(compared)
        return cls(
            rows=compared,
            at_base=at_base,
            difference=rate_difference(split_difference(compared), at_base),
            has_base=is_scored_beside_base(compared),
        )

    def of_split(self, split: str) -> pd.DataFrame:
        """Return the compared rows of ``train`` or ``test``."""
        return self.rows[self.rows["split"] == split]


def _finding_on(
    rows_of_text: pd.DataFrame,
    rate: Row,
    figures: Mapping[str, Row],
    *,
    n_tokens: int,
    text_p: float | None,
) -> Finding:
    """Return the finding on one checkpoint.

    Parameters
    ----------
    rows_of_text
        Its rows, from :func:`spark_audit.audits.extract.rates.by_checkpoint`.
    rate
        Its share of trained rows with a passage.
    figures
        Its longest run, by metric.
    """
    comparison = RecitedRows.of(rows_of_text)
    difference = comparison.difference
    facts = {**_counts(comparison), "passage": n_tokens, **figures}
    remarks_on_length = ["passages.passage"]
    if _has_passage(figures, n_tokens):
        remarks_on_length.append("passages.longest")

    # Without a comparison all trained rows are counted, not those compared.
    if difference.value is None:
        return Finding.on(
            rate,
            "not_tested",
            "passages.no_comparison",
            facts={**facts, "recited": reproduced_hits(rows_of_text)},
            further=remarks_on_length,
        )

    # The base was not trained on these rows, so its output proves no memory.
    p: float | None = None
    power: list[Power] = []
    bounds: list[Bound] = []
    if not is_untrained(rate.checkpoint):
        p = comparison_p(difference, comparison.rows)
        power = [hits_power(comparison.rows, comparison.at_base)]
        bounds = rates_bound(comparison.rows)

    verdict = _verdict(
        rate.checkpoint,
        difference,
        p,
        text_p,
        has_base=comparison.has_base,
    )
    # No number of rows could make a claim of what has another possible cause.
    if verdict.claim == "confounded":
        power = []

    facts["apart"] = _row_of_difference(difference, rate)
    remarks = ["passages.unseen"]
    if comparison.has_base:
        remarks.append("passages.beyond_base")
    return difference_finding(
        rate,
        verdict.claim,
        f"passages.{verdict.says}",
        difference,
        facts=facts,
        further=[*remarks, *remarks_on_length],
        p=p,
        power=power,
        bounds=bounds,
    )


def _counts(comparison: RecitedRows) -> dict[str, Fact]:
    """Return how many compared rows have a passage, by split, and at the base."""
    train = comparison.of_split("train")
    held_out = comparison.of_split("test")
    counts: dict[str, Fact] = {
        "recited": reproduced_hits(train),
        "unseen": _hits_of(held_out, "greedy_sure"),
    }
    if comparison.has_base:
        counts["before"] = _hits_of(train, "base_sure")
        counts["before_unseen"] = _hits_of(held_out, "base_sure")
    return counts


def _row_of_difference(difference: Estimate, rate: Row) -> Row:
    """Return the difference of trained and held-out rows as a fact of a sentence."""
    with_clusters = replace(difference, clusters=rate.clusters)
    return Row.of_estimate(
        with_clusters, audit="passages", checkpoint=rate.checkpoint, metric="apart"
    )


def _hits_of(rows_of_split: pd.DataFrame, hit_column: str) -> Hits:
    """Return the rows of a split with a passage as a count of a total.

    Parameters
    ----------
    hit_column
        ``greedy_sure`` (this checkpoint) or ``base_sure`` (the base): 1 for a row with
        a passage, else 0; NaN where the checkpoint was not scored.
    """
    hits = rows_of_split[hit_column].dropna()
    return Hits(count=int(hits.sum()), of=len(hits))


def _has_passage(figures: Mapping[str, Row], n_tokens: int) -> bool:
    """Return whether the longest run of a checkpoint in trained rows is a passage."""
    longest = figures.get("longest_tokens")
    return longest is not None and (longest.value or 0) >= n_tokens


def _verdict(
    name: str,
    difference: Estimate,
    p: float | None,
    text_p: float | None,
    *,
    has_base: bool,
) -> PassageVerdict:
    """Return the verdict on trained next to held-out rows.

    =============================================  ==================================
    first match wins                               claim and sentence
    =============================================  ==================================
    no side is significant                         nothing_shown, ``nothing``
    the base, or what was derived from it          confounded, ``splits_differ``
    fewer trained rows                             moved, ``fewer``
    the texts alone tell the sides apart, or       confounded, ``texts_differ``
    there is no base that shows what they give
    more trained rows                              verbatim, ``recites``
    =============================================  ==================================
    """
    side = side_of(difference)
    is_shown = side in (-1, 1) and (p is None or is_significant(p))
    if not is_shown:
        return PassageVerdict("nothing_shown", "nothing")
    if is_untrained(name):
        return PassageVerdict("confounded", "splits_differ")
    if side == -1:
        return PassageVerdict("moved", "fewer")

    are_texts_alike = text_p is None or not is_significant(text_p)
    if not are_texts_alike or not has_base:
        return PassageVerdict("confounded", "texts_differ")
    return PassageVerdict("verbatim", "recites")
