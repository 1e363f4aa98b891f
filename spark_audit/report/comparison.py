"""A report next to another one: the same figures of both, and differences.

For reports over different manifests, which nothing can be paired over, such as the one
of the SPARK paper's printed figures (``reports/paper``). Reports over one manifest are
compared by ``spark-audit compare``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spark_audit.errors import InputError, choose
from spark_audit.names import entry_of
from spark_audit.report.table_cells import Table, figure, records_table
from spark_audit.results import Report, Row
from spark_audit.sentences import render

OVER = ("both", "sources", "seeds")
"""Of a method with several seeds the first that there is is shown."""


def against(
    report: Report, other: Report, *, named: Mapping[str, str] | None = None
) -> Table:
    """Figures that both reports hold, one per line.

    Parameters
    ----------
    named
        Checkpoint here -> checkpoint there, where their names differ.

    Raises
    ------
    InputError
        If a name is unknown, or the reports share no checkpoint or no figure.
    """
    ours, theirs = _figures(report), _figures(other)
    here, there = ({key[0] for key in rows} for rows in (ours, theirs))
    for name, counterpart in (named or {}).items():
        for one, known in ((name, here), (counterpart, there)):
            if one not in known:
                where, fix = f"--named {name}={counterpart}", choose(one, sorted(known))
                raise InputError(f"no checkpoint {one!r}", where=where, fix=fix)
    counterparts = {name: (named or {}).get(name, name) for name in here}
    if not there & set(counterparts.values()):
        raise InputError(
            "no checkpoint has the same name in both reports",
            where="--against",
            fix=f"assign names with --named NAME=THEIRS; {choose('', there)}",
        )
    pairs = (
        (row, theirs.get((counterparts[key[0]], *key[1:]))) for key, row in ours.items()
    )
    records = [
        _record(row, match, report, other)
        for row, match in pairs
        if match and row.value is not None and match.value is not None
    ]
    if not records:
        raise InputError(
            "the two reports have no figure in common",
            where="--against",
            fix="run the audits that the other report holds",
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
        if key not in rows or OVER.index(row.over) < OVER.index(rows[key].over):
            rows[key] = row
    return rows


def _record(row: Row, match: Row, report: Report, other: Report) -> dict[str, str]:
    label = ".".join(part for part in (row.audit, row.metric, row.of) if part)
    label += "" if row.group == "pooled" else f" {row.group}"
    source = {one.name: one.source for one in other.checkpoints}.get(match.checkpoint)
    return {
        "checkpoint": row.checkpoint,
        "figure": label,
        "here": figure(row).text,
        "there": f"{figure(match).text} ({source or match.checkpoint})",
        render("against.differences"): "; ".join(
            _differences(row, match, report, other)
        ),
    }


def _differences(row: Row, match: Row, report: Report, other: Report) -> Iterator[str]:
    bases = _base(row, report), _base(match, other)
    if bases[0] != bases[1]:
        yield f"base {bases[0]} / {bases[1]}"
    for name in ("n", "clusters", "interval", "over"):
        here, there = getattr(row, name), getattr(match, name)
        if here != there and there != 0:
            yield f"{name} {here} / {there}"
    if match.note:
        yield match.note


def _base(row: Row, report: Report) -> str:
    bases = {entry_of(one.name): one.base for one in report.checkpoints}
    return bases.get(row.checkpoint) or str(report.settings.get("reference", "unknown"))
