"""Further tables as shared files hold them, without figures of few clusters."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from spark_audit.audits import all_audits
from spark_audit.report.disclosure.rounding import (
    MIN_STEP_TIMES_CLUSTERS,
    is_p,
    rounded,
    rounded_count,
    rounded_p,
    rounding_clusters,
    step_above,
    step_of_hits,
    with_digits,
)
from spark_audit.results import Report
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH, WITHHELD

if TYPE_CHECKING:
    from spark_audit.audits.base import TableRule

MATCHING_TABLE = "matching_by_type"
"""Name in a report of the table on identifiers with a control, a record per type."""

IDENTIFYING_COLUMNS = (
    "nats",
    "caliper_nats",
    "sigma",
    "relative",
    "rank",
    "fpr",
    "margin",
    "stage",
    "trained_at",
    "tasks",
)
"""Columns that identify a record, or were chosen, and contain no result."""

COUNT_COLUMNS = ("clusters", "spans", "pairs", "draws", "tokens", "n")
"""Columns with sizes of a record."""

ROUNDED_COUNT_COLUMNS = ("tokens", "n")
"""Size columns that are rounded."""

POINTS = 100
"""Points of a whole share."""

_LENGTH = re.compile(r" of length \d+")
"""The length of an identifier in the reason why it has no control."""

Record = dict[str, Any]


def shown_table(name: str, records: list[Record], report: Report) -> list[Record]:
    """Return the records of a table as shared files hold them.

    The rule of the table (:data:`spark_audit.audits.base.TableRule`) says how:

    ============  ===============================================================
    Rule          Records of few clusters, and figures of the others
    ============  ===============================================================
    ``digits``    All are shown, with so many digits.
    ``dropped``   Left out; figures are rounded as those of rows.
    ``points``    Emptied; figures are rounded, in points of a share.
    none          Emptied; figures are rounded as those of rows.
    ============  ===============================================================
    """
    if name == MATCHING_TABLE:
        return [_without_lengths(record) for record in records]

    rule = _rule_of(name)
    if rule == "digits":
        return [_with_digits(record) for record in records]

    # A table may have thousands of records, and the report thousands of rows.
    fewest_by_group = _fewest_clusters_by_group(report.origins.get(name, ""), report)
    shown_records = []
    for record in records:
        n_clusters = _clusters_of(record, fewest_by_group, report)
        shown = _shown_record(record, n_clusters, rule)
        if shown is not None:
            shown_records.append(_with_digits(shown))
    return shown_records


def _rule_of(name: str) -> TableRule | None:
    """Return the rule of a table, from the audit that makes one of its name.

    The report also names the audit of a table, but it may come from somebody else. It
    is not trusted, since the rule decides what is withheld.
    """
    for audit in all_audits().values():
        if name in audit.table_rules:
            return audit.table_rules[name]
    return None


def _without_lengths(record: Record) -> Record:
    """Return a record of :data:`MATCHING_TABLE` without lengths in its reasons.

    The reason of a single identifier would reveal its number of tokens. Reasons that
    differ by a length alone are counted together.
    """
    # "3 no window of length 12; 1 no window of length 7" -> "4 no window"
    count_by_reason = Counter[str]()
    for counted_reason in record["reasons"].split("; "):
        if not counted_reason:
            continue
        count, _, reason = counted_reason.partition(" ")
        if count.isdigit():
            count_by_reason[_LENGTH.sub("", reason)] += int(count)
        else:
            # The report came from somebody else.
            count_by_reason[_LENGTH.sub("", reason)] += 0

    reasons = []
    for reason in sorted(count_by_reason):
        reasons.append(f"{count_by_reason[reason]} {reason}")
    return record | {"reasons": "; ".join(reasons)}


def _with_digits(record: Record) -> Record:
    """Return a record with rounded p and few digits in all numbers."""
    shown = dict(record)
    for column, value in record.items():
        if not isinstance(value, float):
            continue
        shown[column] = rounded_p(value) if is_p(column) else with_digits(value)
    return shown


def _fewest_clusters_by_group(audit: str, report: Report) -> dict[str, int]:
    """Map each group of an audit's rows to the clusters of its smallest figure."""
    fewest: dict[str, int] = {}
    for row in report.results:
        if row.audit == audit and row.clusters:
            n_clusters = rounding_clusters(row)
            fewest[row.group] = min(n_clusters, fewest.get(row.group, n_clusters))
    return fewest


def _clusters_of(
    record: Record, fewest_by_group: dict[str, int], report: Report
) -> int:
    """Return the number of clusters of a record.

    A record without that number has at least the clusters of the smallest figure of its
    audit, or of its task if it names one.
    """
    for column in ("clusters", "spans"):
        if column in record:
            # A value that is no number may come from somebody else, so withhold the
            # record.
            n_clusters = record[column]
            return n_clusters if isinstance(n_clusters, int) else 0

    # The record is on all rows, or on those of its task.
    groups = {"pooled"}
    if isinstance(record.get("task"), str):
        groups.add(f"task:{record['task']}")
    known_clusters = [
        fewest_by_group[group] for group in groups if group in fewest_by_group
    ]
    return min(known_clusters, default=report.manifest.n_clusters)


def _shown_record(
    record: Record, n_clusters: int, rule: TableRule | None
) -> Record | None:
    """Return a record with rounded figures, or without those of few clusters.

    None: nothing is left of it.
    """
    figure_columns = [name for name in record if _is_figure(name, record[name])]
    if n_clusters == 0 and not figure_columns:
        # It only says that nothing was measured, and why.
        return record

    # Identifying columns, words and truth values stay unchanged.
    shown = dict(record)
    if n_clusters < MIN_CLUSTERS_TO_PUBLISH:
        for column in figure_columns:
            shown[column] = None
        shown["note"] = WITHHELD
        return None if rule == "dropped" else shown

    for column in figure_columns:
        shown[column] = _shown_figure(column, record, n_clusters, rule)
    for column in ROUNDED_COUNT_COLUMNS:
        if record.get(column) is not None:
            shown[column] = rounded_count(record[column], n_clusters)
    return shown


def _is_figure(column: str, value: object) -> bool:
    """Return whether a value of a record is a result."""
    if (
        column in IDENTIFYING_COLUMNS
        or column in COUNT_COLUMNS
        or isinstance(value, bool)
    ):
        return False
    return isinstance(value, int | float)


def _shown_figure(
    column: str, record: Record, n_clusters: int, rule: TableRule | None
) -> float:
    """Return a figure of a record, rounded as its clusters require."""
    value: float = record[column]
    if is_p(column):
        return rounded_p(value)

    if isinstance(value, float):
        step = step_above(MIN_STEP_TIMES_CLUSTERS / n_clusters)
        if rule == "points":
            step *= POINTS
        return rounded(value, step)

    if rule == "points":
        # A cluster has several identifiers with several parts each.
        n_tried = max(n_clusters, record.get("spans") or 0, record.get("tried") or 0)
        return round(rounded(value, step_of_hits(n_tried, n_clusters)))
    return value
