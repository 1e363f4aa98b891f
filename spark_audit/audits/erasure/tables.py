"""Tables of the audit of erasure: tests by part, requests, and counts of rows.

=================  =====================================================================
table              a record of it
=================  =====================================================================
erasure_margins    a checkpoint after erasure and a part: the tests of equivalence
erasure_requests   a request and a checkpoint: what remains of its rows
erasure_rows       a side and a request: how many rows and groups it has
=================  =====================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spark_audit.audits.erasure.comparison import ComparedPart, ErasureComparison
from spark_audit.audits.erasure.units import IDENTIFIERS, RETAINED, TWINS
from spark_audit.audits.erasure.verdicts import Margin
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.evidence import Evidence
from spark_audit.stats.equivalence import margin_to_expect


def margin_records(
    comparison: ErasureComparison,
    name: str,
    margin: Margin,
    p_by_part: Mapping[str, float],
) -> Iterator[TableRecord]:
    """Yield the equivalence tests of a checkpoint, a record per part."""
    for part in margin.parts:
        difference = comparison.difference(name, part).difference
        before = comparison.difference(comparison.before, part).difference
        gap = comparison.gaps[part.name]
        record: TableRecord = {
            "checkpoint": name,
            "part": part.name,
            "compared_with": comparison.stranger_of(name) or "",
            "clusters": difference.clusters,
            "remaining": difference.value,
            "low_90": None,
            "high_90": None,
            "margin": margin.value,
            "before": before.value,
            "gap": gap,
            "smallest_margin": None,
            "margin_to_expect": None,
            "p": p_by_part.get(part.name),
            "note": difference.note,
        }
        tests = comparison.equivalence(name, part, margin.value)
        if tests is not None and difference.se:
            expected = margin_to_expect(difference.se, difference.df)
            record["low_90"] = tests.low
            record["high_90"] = tests.high
            record["smallest_margin"] = tests.smallest_margin + gap
            record["margin_to_expect"] = expected + gap
        yield record


def request_records(
    comparison: ErasureComparison, names: list[str]
) -> Iterator[TableRecord]:
    """Yield the remaining difference of rows of each request and checkpoint.

    They are exploratory: p is two-sided, of one test, and not corrected.
    """
    part = comparison.part_of_rows
    requests = part.units["request"]
    named = [name for name in dict.fromkeys(requests) if name]
    if len(named) < 2:
        return

    for request in named:
        of_request = part.units[requests.isin([request, ""])]
        part_of_request = ComparedPart.of(part.name, of_request)
        forget = of_request[of_request["request"] == request]
        for name in names:
            contrast = comparison.difference(name, part_of_request)
            difference = contrast.difference
            yield {
                "checkpoint": name,
                "request": request,
                "rows": len(forget),
                "clusters": int(forget["cluster"].nunique()),
                "remaining": difference.value,
                "low": difference.low,
                "high": difference.high,
                "p": contrast.t_p(null=comparison.gaps[part.name]),
                "note": difference.note,
            }


def row_counts(evidence: Evidence) -> Iterator[TableRecord]:
    """Yield how many rows and groups each side and request has.

    Identifiers of retained rows are not compared, and not counted.
    """
    units = evidence.units
    # Twins are identifiers once more, and belong to no request.
    units = units[units["part"] != TWINS]
    by_side = units.groupby(["side", "request"], sort=True)
    for (side, request), of_side in by_side:
        n_identifiers = int((of_side["part"] == IDENTIFIERS).sum())
        yield {
            "side": side,
            "request": request,
            "rows": int(of_side["example"].nunique()),
            "clusters": int(of_side["cluster"].nunique()),
            "identifiers": None if side == RETAINED else n_identifiers,
        }
