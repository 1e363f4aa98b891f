"""Findings on identifiers, canaries and passages that stand in a file.

Each compares what stands in it of trained rows with what stands in it of held-out ones:
strings of the same form, canaries that were drawn alike, rows of the same task. All of
them are primary tests of the report. What is a hit there is a string of a file here, so
that rates, tests and smallest effects are those of extraction
(:mod:`spark_audit.audits.extract.rates`); a file has no base. Keys of sentences are
those of ``sentences/en/generated.toml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from spark_audit.audits.extract.canaries import canary_findings
from spark_audit.audits.extract.difference_finding import difference_finding
from spark_audit.audits.extract.rate_limits import hits_power, rates_bound
from spark_audit.audits.extract.rates import (
    comparable,
    exact_p,
    limits_p,
    split_difference,
)
from spark_audit.audits.generated.units import CANARY, IDENTIFIER, ROW
from spark_audit.results import Claim, Finding, Hits, Row
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import Fact
from spark_audit.stats.estimate import Estimate, is_significant, side_of


def generated_findings(evidence: Evidence, rows: Sequence[Row]) -> Iterator[Finding]:
    """Yield the findings on each file.

    Parameters
    ----------
    rows
        Figures of the audit.
    """
    pooled = {
        (row.checkpoint, row.metric): row
        for row in rows
        if row.group == "pooled" and row.value is not None
    }
    # Evidence of several reports has units that a file was not searched for.
    for name in evidence.checkpoints:
        units = evidence.whole(name).dropna(subset=["hit", "words"], how="all")
        rate = pooled.get((name, "identifier_rate"))
        if rate is not None:
            yield _identifier_finding(units[units["set"] == IDENTIFIER], rate)
        yield from _canary_findings(units[units["set"] == CANARY])

        rate = pooled.get((name, "passage_rate"))
        if rate is not None:
            yield _passage_finding(
                units[units["set"] == ROW],
                rate,
                pooled[name, "longest_words"],
                least_words=evidence.facts["least_words"],
                text_p=evidence.facts["text_p"],
            )


def _with_hits(units: pd.DataFrame, is_hit: pd.Series) -> pd.DataFrame:
    """Return units with the columns that rates are made of; no model, so no base."""
    return units.assign(
        greedy_sure=is_hit.astype(bool),
        greedy=is_hit.astype(bool),
        base_sure=float("nan"),
        base_won=float("nan"),
        trials=1,
    )


def _hits(units: pd.DataFrame, split: str, column: str = "greedy_sure") -> Hits:
    """Return the units of a split with a hit as a count of a total."""
    of_split = units[units["split"] == split]
    return Hits(count=int(of_split[column].sum()), of=len(of_split))


def _identifier_finding(identifiers: pd.DataFrame, rate: Row) -> Finding:
    """Return the finding on the identifiers that stand in one file.

    ==========================================  ========================================
    first match wins                            claim and sentence
    ==========================================  ========================================
    no comparable string is held out            not_tested, ``no_control``
    no side is significant                      nothing_shown, ``nothing``
    fewer trained ones                          moved, ``fewer``
    more trained ones                           verbatim, ``verbatim``
    ==========================================  ========================================
    """
    with_hits = _with_hits(identifiers, identifiers["hit"] > 0)
    compared, is_alike = comparable(with_hits[with_hits["compared"].astype(bool)])
    difference = split_difference(compared)

    # Strings that nobody is sure to own are counted, and decide nothing.
    is_compared = with_hits.index.isin(compared.index)
    is_left_out = (with_hits["split"] == "train") & ~is_compared
    n_others = int(with_hits.loc[is_left_out, "greedy_sure"].sum())
    facts: dict[str, Fact] = {
        "against": "injected" if is_alike else "natural",
        "others": Hits(count=n_others, of=int(is_left_out.sum())),
        "near": _hits(with_hits, "train", "near"),
        "near_unseen": _hits(with_hits, "test", "near"),
    }
    remarks = ["generated.others"] if n_others else []
    if with_hits["near"].any():
        remarks.append("generated.near")
    if difference.value is None:
        facts["standing"] = _hits(with_hits, "train")
        return Finding.on(
            rate, "not_tested", "generated.no_control", facts=facts, further=remarks
        )

    facts |= {"standing": _hits(compared, "train"), "unseen": _hits(compared, "test")}
    p = max(limits_p(difference), exact_p(compared))
    claim: Claim = "nothing_shown"
    says = "nothing"
    if is_significant(p) and side_of(difference) == 1:
        claim, says = "verbatim", "verbatim"
    elif is_significant(p) and side_of(difference) == -1:
        claim, says = "moved", "fewer"
    return _comparison_finding(
        rate,
        claim,
        f"generated.{says}",
        difference,
        compared,
        facts=facts,
        further=["generated.unseen", *remarks],
        p=p,
    )


def _passage_finding(
    rows_of_text: pd.DataFrame,
    rate: Row,
    longest: Row,
    *,
    least_words: int,
    text_p: float | None,
) -> Finding:
    """Return the finding on the rows of which a passage stands in one file.

    ==========================================  ========================================
    first match wins                            claim and sentence
    ==========================================  ========================================
    no held-out row can be compared             not_tested, ``no_rows``
    no side is significant                      nothing_shown, ``no_copies``
    fewer trained ones                          moved, ``fewer_copies``
    the rows alone tell their sides apart       confounded, ``copies_differ``
    more trained ones                           verbatim, ``copies``
    ==========================================  ========================================

    Parameters
    ----------
    longest
        The longest passage of a trained row.
    text_p
        p that texts alone do not tell trained from held-out rows; ``None``: not tested.
    """
    long_rows = rows_of_text[rows_of_text["n_words"] >= least_words]
    # Rows are compared within tasks.
    with_hits = _with_hits(long_rows, long_rows["words"] > 0)
    with_tasks = with_hits.assign(type=with_hits["task"], origin="row", stratum=0)
    compared, _ = comparable(with_tasks)
    difference = split_difference(compared)

    facts: dict[str, Fact] = {"least_words": least_words, "longest": longest}
    remarks = ["generated.passage"]
    if (with_hits["split"].eq("train") & with_hits["greedy_sure"]).any():
        remarks.append("generated.longest")
    if difference.value is None:
        facts["copied"] = _hits(with_hits, "train")
        return Finding.on(
            rate, "not_tested", "generated.no_rows", facts=facts, further=remarks
        )

    facts |= {"copied": _hits(compared, "train"), "unseen": _hits(compared, "test")}
    p = max(limits_p(difference), exact_p(compared))
    claim: Claim = "nothing_shown"
    says = "no_copies"
    if is_significant(p) and side_of(difference) == -1:
        claim, says = "moved", "fewer_copies"
    elif is_significant(p) and side_of(difference) == 1:
        claim, says = "verbatim", "copies"
        if is_significant(text_p):
            claim, says = "confounded", "copies_differ"
    return _comparison_finding(
        rate,
        claim,
        f"generated.{says}",
        difference,
        compared,
        facts=facts,
        further=["generated.unseen_rows", *remarks],
        p=p,
    )


def _comparison_finding(
    rate: Row,
    claim: Claim,
    says: str,
    difference: Estimate,
    compared: pd.DataFrame,
    *,
    facts: dict[str, Fact],
    further: Sequence[str],
    p: float,
) -> Finding:
    """Return the finding on a difference of the rates of both splits, in points.

    Parameters
    ----------
    rate
        The rate of trained units, as the report has it.
    compared
        The units that are compared.
    """
    with_clusters = replace(difference, clusters=rate.clusters)
    difference_row = Row.of_estimate(
        with_clusters,
        audit="generated",
        checkpoint=rate.checkpoint,
        metric=f"{rate.metric}_apart",
    )
    return difference_finding(
        rate,
        claim,
        says,
        difference,
        facts={**facts, "apart": difference_row},
        further=further,
        p=p,
        # A confounded difference has no smallest effect.
        power=[] if claim == "confounded" else [hits_power(compared)],
        bounds=rates_bound(compared),
    )


def _canary_findings(canaries: pd.DataFrame) -> Iterator[Finding]:
    """Yield the finding on the canaries that stand in one file, if any was planted."""
    with_hits = _with_hits(canaries, canaries["hit"] > 0).assign(first=True)
    for finding in canary_findings(with_hits):
        # Sentences of extraction are about a model that is asked.
        says = finding.says.replace("extract.", "generated.", 1)
        further = [key.replace("extract.", "generated.", 1) for key in finding.further]
        yield finding.model_copy(
            update={"audit": "generated", "says": says, "further": further}
        )
