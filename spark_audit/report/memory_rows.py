"""Rows on memory that a checkpoint's state is shown with: its types and its sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_audit.audits import about
from spark_audit.report.tried import is_beyond_no_effect
from spark_audit.results import Finding, Report, Row

MAX_TYPES_NAMED = 3
"""Most types that are named as exposed."""


def rows_of_memory(report: Report) -> list[Row]:
    """Return the rows of the metric that the memory plot shows, of all checkpoints.

    They are over sources, as the states are. Over a few seeds an interval may be
    infinite, which would seem to contradict a detection.
    """
    rows = []
    for row in report.results:
        is_of_memory = row.metric == about(row.audit).memory_metric
        if is_of_memory and row.interval_over == "sources":
            rows.append(row)
    return rows


def sides_of_memory_test(findings: Iterable[Finding], name: str) -> tuple[int, ...]:
    """Return groups of trained and of held-out identifiers of a test of memory.

    They are two counts, or none where no test says how many there are.
    """
    for finding in findings:
        if finding.checkpoint != name or not about(finding.audit).memory_metric:
            continue

        sides = [finding.facts.get("trained"), finding.facts.get("held_out")]
        counts = [side.clusters for side in sides if isinstance(side, Row)]
        # A test may have one side only, or know no figures of its sides.
        if len(counts) == 2:
            return tuple(counts)
    return ()


def exposed_types(
    memory_rows: Iterable[Row], findings: Sequence[Finding]
) -> tuple[Row, ...]:
    """Return the types whose trained identifiers moved most, the way that was detected.

    They became likelier than never-trained ones, or less likely if that was detected
    and none is remembered.
    """
    detected_claims = {finding.claim for finding in findings if finding.detected}
    if not detected_claims:
        return ()

    # Remembered types go before less likely ones.
    became_less_likely = False
    if detected_claims.isdisjoint({"memory", "verbatim"}):
        for finding in findings:
            if finding.claim == "betrays" and about(finding.audit).memory_metric:
                became_less_likely = True

    exposed = []
    for row in memory_rows:
        is_type = row.group_kind == "type" and row.status == "ok"
        if is_type and is_beyond_no_effect(row, is_above=became_less_likely):
            exposed.append(row)
    # A change of NLL below 0 is likelier: the largest change, either way, comes first.
    exposed.sort(key=lambda row: row.value or 0.0, reverse=became_less_likely)
    return tuple(exposed[:MAX_TYPES_NAMED])
