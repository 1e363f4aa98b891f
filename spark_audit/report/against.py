"""Figures of two reports side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_audit.errors import InputError, choose
from spark_audit.names import entry_of
from spark_audit.results import Report, Row
from spark_audit.sentences import render

if TYPE_CHECKING:
    pass
from spark_audit.report.cells import ReportTable, figure, records_table

OVER_ORDER = ("both", "sources", "seeds")
"""Of a method with several seeds the first that there is is shown."""


def against(report: Report, other: Report) -> ReportTable:
    """Figures that both reports hold of checkpoints of one name, one per line.

    Raises
    ------
    InputError
        If the reports share no checkpoint or no figure.
    """
    ours, theirs = _figures(report), _figures(other)
    records = [
        _record(row, theirs[key], report, other)
        for key, row in ours.items()
        if key in theirs and None not in (row.value, theirs[key].value)
    ]
    if not records:
        names = choose("", dict.fromkeys(key[0] for key in theirs))
        raise InputError(
            "the two reports have no figure of a checkpoint of one name in common",
            where="--against",
            fix=f"run the other's audits with --ckpt NAME=PATH; {names}",
        )
    title = render("against.title", name=other.manifest.name)
    return records_table(records, title=title, remarks=tuple(other.caveats))


def _figures(report: Report) -> dict[tuple[str, ...], Row]:
    """Rows by checkpoint, audit, metric, variant and group; seeds by their method."""
    names = {row.checkpoint for row in report.results}
    rows: dict[tuple[str, ...], Row] = {}
    for row in report.results:
        method = entry_of(row.checkpoint)
        if method != row.checkpoint and method in names:
            continue
        key = (row.checkpoint, row.audit, row.metric, row.of, row.group.casefold())
        if key not in rows or OVER_ORDER.index(row.over) < OVER_ORDER.index(
            rows[key].over
        ):
            rows[key] = row
    return rows


def _record(row: Row, match: Row, report: Report, other: Report) -> dict[str, str]:
    label = ".".join(part for part in (row.audit, row.metric, row.of) if part)
    label += "" if row.group == "pooled" else f" {row.group}"
    pairs: dict[str, Any] = {"base": (_base(row, report), _base(match, other))}
    for name in ("n", "clusters", "interval", "over"):
        pairs[name] = getattr(row, name), getattr(match, name)
    apart = [f"{k} {a} / {b}" for k, (a, b) in pairs.items() if a != b and b != 0]
    apart.append(match.note)
    source = {one.name: one.source for one in other.checkpoints}.get(match.checkpoint)
    return {
        "checkpoint": row.checkpoint,
        "figure": label,
        "here": figure(row).text,
        "there": f"{figure(match).text} ({source or match.checkpoint})",
        render("against.differences"): "; ".join(filter(None, apart)),
    }


def _base(row: Row, report: Report) -> str:
    bases = {entry_of(one.name): one.base for one in report.checkpoints}
    return bases.get(row.checkpoint) or str(report.settings.get("reference", "unknown"))
