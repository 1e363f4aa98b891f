"""Tables of records as shared files hold them: without figures of few clusters."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from spark_audit.audits import all_audits
from spark_audit.report.disclosure.rounding import (
    MIN_STEP_TIMES_CLUSTERS,
    count_of,
    count_step,
    is_p,
    rounded,
    rounded_p,
    step_above,
    with_digits,
)
from spark_audit.results import Report
from spark_audit.results.rows import MIN_CLUSTERS_TO_PUBLISH, WITHHELD

if TYPE_CHECKING:
    from spark_audit.audits.base import TableRule

MATCHING_TABLE = "matching_by_type"
"""The table of how many identifiers have a control."""

PLACE_COLUMNS = (
    *("nats", "caliper_nats", "sigma", "relative", "rank", "fpr"),
    *("stage", "trained_at", "tasks"),
)
"""Columns that say where a record stands, not what was found."""

COUNT_COLUMNS = ("clusters", "spans", "pairs", "draws", "tokens", "n")

POINTS = 100
"""A whole share, in points."""

Record = dict[str, Any]


def shown_table(name: str, records: list[Record], report: Report) -> list[Record]:
    """Return the records of a table as shared files hold them."""
    if name == MATCHING_TABLE:
        return [_matching(record) for record in records]
    audit = report.origins.get(name, "")
    rule = _rule_of(name)
    if rule == "digits":
        return [_with_digits(record) for record in records]
    shown_records = []
    for record in records:
        shown_record = _record(record, _clusters_of(record, audit, report), rule)
        if shown_record is not None:
            shown_records.append(_with_digits(shown_record))
    return shown_records


def _rule_of(name: str) -> TableRule | None:
    """Return how a table is held, as the audit says that makes one of its name.

    A report says by itself which audit made a table; it is not asked, because it may
    come from somebody else.
    """
    for audit in all_audits().values():
        if name in audit.table_rules:
            return audit.table_rules[name]
    return None


_LENGTH = re.compile(r" of length \d+")


def _matching(record: Record) -> Record:
    """Return how many identifiers of a type have no control, without their lengths.

    Of one alone the reason would tell how many tokens it has.
    """
    counts = Counter[str]()
    for part in filter(None, record["reasons"].split("; ")):
        count, _, reason = part.partition(" ")
        counts[_LENGTH.sub("", reason)] += int(count) if count.isdigit() else 0
    reasons = "; ".join(f"{counts[reason]} {reason}" for reason in sorted(counts))
    return record | {"reasons": reasons}


def _with_digits(record: Record) -> Record:
    """Return a record whose p are rounded, and no number has more than its digits."""
    told = dict(record)
    for column, value in record.items():
        if isinstance(value, float):
            told[column] = rounded_p(value) if is_p(column) else with_digits(value)
    return told


def _clusters_of(record: Record, audit: str, report: Report) -> int:
    """Return of how many clusters a record is, or at least its audit's smallest figure.

    A record of a task says so, and has those of its task.
    """
    for column in ("clusters", "spans"):
        if column in record:
            size = record[column]
            return size if isinstance(size, int) else 0
    groups = {"pooled"}
    if isinstance(record.get("task"), str):
        groups.add(f"task:{record['task']}")
    rows = [r for r in report.results if r.audit == audit and r.group in groups]
    sizes = [row.clusters for row in rows if row.clusters]
    return min(sizes, default=report.manifest.n_clusters)


def _record(record: Record, size: int, rule: TableRule | None) -> Record | None:
    """Return a record without figures of few; None where nothing is left of it."""
    figures = {
        key: value
        for key, value in record.items()
        if key not in (*PLACE_COLUMNS, *COUNT_COLUMNS)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    }
    if size == 0 and not figures:
        return record  # of nothing, and why
    if size < MIN_CLUSTERS_TO_PUBLISH:
        empty = dict.fromkeys(figures) | {"note": WITHHELD}
        return None if rule == "dropped" else record | empty
    step = step_above(MIN_STEP_TIMES_CLUSTERS / size)
    if rule == "points":
        step *= POINTS
    told = dict(record)
    for key, value in record.items():
        if key in ("tokens", "n"):
            told[key] = count_of(value, size)
        elif key in figures and is_p(key):
            told[key] = rounded_p(value)
        elif key in figures and isinstance(value, float):
            told[key] = rounded(value, step)
        elif key in figures and rule == "points":
            # A cluster has several identifiers, and each of them several parts.
            tried = max(size, record.get("spans") or 0, record.get("tried") or 0)
            told[key] = round(rounded(value, count_step(tried, size)))
    return told
