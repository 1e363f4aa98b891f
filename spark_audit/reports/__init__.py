"""Reports: ``report.json`` is the truth, every writer renders it again.

A writer is one file that registers ``write(report, folder, *, manifest, show_text)``
and returns the files it wrote. What a person reads first, in the terminal and in
every format, are the same :class:`Block` tables, made here once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pydantic import ValidationError

from spark_audit.errors import InputError, OutputError
from spark_audit.manifest import Manifest
from spark_audit.registry import Registry
from spark_audit.results import Contrast, Report, Row, number

Writer: TypeAlias = "Callable[..., list[Path]]"
WRITERS: Registry[Writer] = Registry(
    "spark_audit.reports", kind="report format", folder=Path(__file__).parent
)

ALIASES = {
    "json": "json-file",
    "csv": "csv-tables",
    "md": "markdown",
    "latex": "latex",
    "html": "html-page",
    "figures": "figures",
}
"""Shorter names of some writers; any other goes by its file's name."""

SCOPE = (
    "Selective conditional-likelihood suppression under known prefixes is not "
    "differential privacy, not erasure from the parameters, not non-extractability and "
    "not membership protection.",
    "Intervals are over sources for one trained checkpoint each; the variation between "
    "training seeds is not in them.",
)
"""Statements that stand in every report (SPARK, Scope of the Privacy Evidence)."""

METRICS = {
    "nll_pii": "NLL of PII",
    "nll_control": "NLL of controls",
    "delta_sel": "Delta_sel",
    "delta_sel/change": "change since reference",
    "rtm_bias": "RTM alone",
    "did": "DiD",
}


@dataclass(frozen=True)
class Block:
    """One table for a reader: a title, a header, rows of text, and remarks."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...] = ()


def figure(row: Row) -> str:
    """Value and decision interval of a row, or why there is none."""
    if row.status == "not_estimable":
        return "not estimable"
    text = number(row.value)
    if row.low is not None or row.high is not None:
        text += f" [{number(row.low)}, {number(row.high)}]"
    if row.status != "ok":
        text += f" {row.status.replace('_', ' ').upper()}"
    return text


def blocks(report: Report) -> list[Block]:
    """The tables that a person reads, in order."""
    found: list[Block] = []
    for audit in dict.fromkeys(row.audit for row in report.results):
        rows = [row for row in report.results if row.audit == audit]
        found.append(_pooled(audit, rows))
        for prefix, title in (
            ("type", "by PII type"),
            ("task", "by task"),
            ("split", "on test rows"),
        ):
            grouped = [row for row in rows if row.group.startswith(f"{prefix}:")]
            if grouped:
                found.append(_grouped(audit, title, grouped))
    if report.contrasts:
        found.append(_contrasts(report.contrasts))
    matching = report.tables.get("matching_by_type")
    if matching:
        found.append(
            Block(
                title="matching, both splits: spans with and without a control",
                header=("type", "matched", "unmatched", "why"),
                rows=tuple(
                    (
                        record["type"],
                        str(record["matched"]),
                        str(record["unmatched"]),
                        record["reasons"],
                    )
                    for record in matching
                ),
            )
        )
    return found


SHOWN = ("", "change")
"""Variants (``of``) that have a column of their own; the others stand in the CSV."""


def _wide(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.of in SHOWN]


def _column(row: Row) -> str:
    return f"{row.metric}/{row.of}" if row.of else row.metric


def _pooled(audit: str, rows: Sequence[Row]) -> Block:
    pooled = _wide([row for row in rows if row.group == "pooled"])
    metrics = list(dict.fromkeys(_column(row) for row in pooled))
    cells = {(row.checkpoint, _column(row)): row for row in pooled}
    lines = []
    for checkpoint in dict.fromkeys(row.checkpoint for row in pooled):
        line = [cells.get((checkpoint, metric)) for metric in metrics]
        first = next(row for row in line if row is not None)
        main = cells.get((checkpoint, "delta_sel"), first)
        lines.append(
            (
                checkpoint,
                *("-" if row is None else figure(row) for row in line),
                number(main.mde),
                str(main.n),
                str(main.clusters),
            )
        )
    units = sorted({row.unit for row in pooled if row.unit})
    return Block(
        title=f"{audit}: pooled over training rows"
        + (f", in {', '.join(units)}" if units else ""),
        header=(
            "checkpoint",
            *(METRICS.get(metric, metric) for metric in metrics),
            "MDE",
            "tokens",
            "clusters",
        ),
        rows=tuple(lines),
        remarks=_remarks(pooled),
    )


def _grouped(audit: str, title: str, rows: Sequence[Row]) -> Block:
    rows = _wide(rows)
    metrics = list(dict.fromkeys(_column(row) for row in rows))
    cells = {(row.group, row.checkpoint, _column(row)): row for row in rows}
    lines = []
    for group, checkpoint in dict.fromkeys((r.group, r.checkpoint) for r in rows):
        line = [cells.get((group, checkpoint, metric)) for metric in metrics]
        first = next(row for row in line if row is not None)
        lines.append(
            (
                group.partition(":")[2],
                checkpoint,
                *("-" if row is None else figure(row) for row in line),
                str(first.n),
                str(first.clusters),
            )
        )
    return Block(
        title=f"{audit}: {title}",
        header=(
            "group",
            "checkpoint",
            *(METRICS.get(metric, metric) for metric in metrics),
            "tokens",
            "clusters",
        ),
        rows=tuple(lines),
        remarks=_remarks(rows),
    )


def _contrasts(contrasts: Sequence[Contrast]) -> Block:
    metrics = list(dict.fromkeys(row.metric for row in contrasts if not row.of))
    lines: dict[tuple[str, str, str], dict[str, Contrast]] = {}
    for row in contrasts:
        if not row.of:
            key = (row.group, row.checkpoint, row.baseline)
            lines.setdefault(key, {})[row.metric] = row
    rows = []
    for (group, checkpoint, baseline), cells in lines.items():
        first = next(iter(cells.values()))
        rows.append(
            (
                checkpoint,
                baseline,
                group,
                *("-" if m not in cells else figure(cells[m]) for m in metrics),
                number(first.p, 4),
                number(first.p_adjusted, 4),
                number(first.mde),
                str(first.clusters),
            )
        )
    return Block(
        title="contrasts with the baseline, paired over the same spans",
        header=(
            "checkpoint",
            "baseline",
            "group",
            *(METRICS.get(metric, metric) for metric in metrics),
            "p",
            "p adjusted",
            "MDE",
            "clusters",
        ),
        rows=tuple(rows),
    )


FEW = 10
"""Clusters below which an interval rests on little, and readers are told."""


def _remarks(rows: Sequence[Row]) -> tuple[str, ...]:
    """Why figures are missing, each reason once, and which rest on little."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.status == "not_estimable":
            place = row.group.partition(":")[2] or row.checkpoint
            reasons.setdefault(row.note, []).append(place)
    few = {
        row.group.partition(":")[2] or row.checkpoint
        for row in rows
        if row.status == "ok" and row.metric == "delta_sel" and row.clusters < FEW
    }
    found = [
        f"not estimable for {', '.join(dict.fromkeys(places))}: {reason}"
        for reason, places in reasons.items()
    ]
    if few:
        found.append(
            f"fewer than {FEW} clusters, too few for a conclusion of their own: "
            + ", ".join(sorted(few))
        )
    return tuple(found)


def read_report(folder: Path) -> Report:
    """Read ``report.json`` of a report folder.

    Raises
    ------
    InputError
        If the folder holds no report, or one that this version cannot read.
    """
    path = folder / "report.json"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(
            "holds no report.json", where=str(folder), fix="give a report folder"
        ) from error
    except OSError as error:
        raise OutputError(
            f"cannot be read ({error.strerror or error})", where=str(path)
        ) from error
    try:
        return Report.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"field {field}: {first['msg']}",
            where=str(path),
            fix="run the audit again with this version",
        ) from error


def write_report(
    report: Report,
    folder: Path,
    *,
    formats: Sequence[str] | None = None,
    manifest: Manifest | None = None,
    show_text: bool = False,
) -> list[Path]:
    """Write a report in the given formats (default: all there are)."""
    long = {name: short for short, name in ALIASES.items()}
    known = {long.get(name, name): name for name in WRITERS.names()}
    for name in formats or ():
        if name not in known:
            raise InputError(
                f"unknown report format {name!r}",
                where="--format",
                fix=f"choose one of: {', '.join(known)}",
            )
    entries = [WRITERS.get(known[name]) for name in formats or known]
    written: list[Path] = []
    for entry in entries:
        written += entry.run(report, folder, manifest=manifest, show_text=show_text)
    return written
