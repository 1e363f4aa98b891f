"""What a person reads of a report first: the same tables in every format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spark_audit.audits import AUDITS
from spark_audit.audits.contract import ANY, carriers
from spark_audit.names import entry_of
from spark_audit.report.disclosure import withheld
from spark_audit.report.figures.entries import palette
from spark_audit.results import Contrast, Report, Row, number

METHODS = {
    "jackknife-t": "the cluster jackknife with t quantiles",
    "percentile": "percentiles of the cluster bootstrap",
    "korn-graubard": "Korn and Graubard's exact limits",
    "clopper-pearson": "Clopper and Pearson's exact limits",
    "delong": "DeLong's variance",
    "beta-binomial": "the exact beta-binomial distribution",
}
"""What readers see for the method of an interval."""


DRAWN = (
    "rank_distribution",
    "mia_roc",
    "pair_shares",
    "run_settings",
    "run_time",
    "run_losses",
)
"""Further tables that are there to be drawn: no reader is shown them as tables."""


PRIVATE = (
    "As private as the data are `scores/` (with the base model, a text can be read "
    "from its tokens' scores), the manifest, and whatever shows words of examples; "
    "`report.json` tells the seeds and losses of runs. All of these are for their "
    "owner only. Tables, figures, and pages without words hold no figure of a single "
    "token or span: those of few clusters are withheld, all others rounded."
)
"""Which files of a report can be shared; stands in every format for people."""


@dataclass(frozen=True)
class Block:
    """One table for a reader: a title, a header, rows of text, and remarks.

    ``lead`` stands above it.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...] = ()
    lead: str = ""


def figure(row: Row) -> str:
    """Value and decision interval of a row, or why there is none."""
    if row.status == "not_estimable":
        return "withheld" if withheld(row) else "not estimable"
    text = _number(row.value)
    if row.low is not None or row.high is not None:
        text += f" [{_number(row.low)}, {_number(row.high)}]"
    if row.status != "ok":
        text += f" {row.status.replace('_', ' ').upper()}"
    return text


def entries(report: Report) -> dict[str, int]:
    """What was audited, in order, and how many replicates each has.

    A series counts once: its stages have no figures but in the series' own.
    """
    found: dict[str, int] = {}
    for name in palette(report):
        entry = entry_of(name)
        found[entry] = found.get(entry, 0) + (entry != name)
    return found


NO_VERDICT = "No audit came to a verdict."


HUGE = 1e6
"""Values from which powers of ten are shown."""


def _number(value: float | None) -> str:
    if value is not None and abs(value) >= HUGE:
        return f"{value:.1e}"
    return number(value)


def blocks(report: Report, *, brief: bool = False) -> list[Block]:
    """The tables that a person reads, in order.

    Parameters
    ----------
    brief
        Only pooled figures: what a terminal shows of many audits.
    """
    found: list[Block] = []
    for audit in dict.fromkeys(row.audit for row in report.results):
        rows = [row for row in report.results if row.audit == audit]
        layout = _wide if AUDITS.about(audit).wide else _long
        found += layout(audit, rows, brief=brief)
    for audit in dict.fromkeys(row.audit for row in report.contrasts):
        contrasts = [row for row in report.contrasts if row.audit == audit]
        if brief:
            contrasts = [row for row in contrasts if row.group == "pooled"]
        if contrasts:
            found.append(_contrasts(audit, contrasts))
    matching = report.tables.get("matching_by_type")
    if matching and not brief:
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


def glance(report: Report) -> Block | None:
    """One line a checkpoint, one figure an audit; ``None`` where there is none.

    Figures are chosen beforehand, never by what came out; of several scores it is the
    one that the verdict rests on, where it rests on none the loss.
    """
    rows = [r for r in (*report.results, *report.contrasts) if r.group == "pooled"]
    columns: dict[str, dict[str, str]] = {}
    chance: dict[str, str] = {}
    first = [
        (audit, metric.name, of, title)
        for audit in AUDITS.in_order({row.audit for row in rows})
        for metric in AUDITS.metrics(audit)
        for of, title in metric.glance.items()
    ]
    for audit, metric, of, title in first:
        mine = [r for r in rows if (r.audit, r.metric) == (audit, metric)]
        if of == ANY:
            resting = carriers(report.findings, audit)
            mine = [
                row
                for row in mine
                if not isinstance(row, Contrast)
                and row.of == resting.get(entry_of(row.checkpoint), "loss")
            ]
        else:
            mine = [row for row in mine if row.of == of]
        cells: dict[str, str] = {}
        for row in mine:
            named = f"{row.of} " if of == ANY else ""
            cells.setdefault(_who(row), named + figure(row))
        if cells:
            columns[title] = cells
            own = [row for row in mine if not isinstance(row, Contrast)]
            chance[title] = _chance(own) if AUDITS.about(audit).chance else ""
    several = {r.checkpoint for r in rows if r.over == "both"}
    shown = [r for r in rows if entry_of(r.checkpoint) not in several]
    # Of several seeds one line stands for all, with the widest interval there is.
    shown += [r for r in rows if r.checkpoint in several and r.over == "both"]
    names = list(dict.fromkeys(map(_who, shown)))
    names = [n for n in names if any(n in cells for cells in columns.values())]
    if not columns or not names:
        return None
    lines = [(n, *(c.get(n, "-") for c in columns.values())) for n in names]
    if any(chance.values()):
        lines.append(("chance", *(chance[title] or "-" for title in columns)))
    return Block(
        title="At a glance: one figure an audit",
        header=("checkpoint", *columns),
        rows=tuple(lines),
        remarks=(
            "One figure an audit, chosen beforehand, but of membership, where it is "
            "the score that the verdict rests on; the verdict reads all of an audit's "
            "figures, and each against what it would be without an effect.",
        ),
    )


GROUPS = (("type", "by PII type"), ("task", "by task"), ("split", "on test rows"))


def _long(audit: str, rows: Sequence[Row], *, brief: bool) -> list[Block]:
    """One line a checkpoint and variant, one column a metric."""
    parts = [("", [row for row in rows if row.group == "pooled"])]
    if not brief:
        parts += [
            (title, [row for row in rows if row.group.startswith(f"{prefix}:")])
            for prefix, title in GROUPS
        ]
    return [_by_variant(audit, title, part) for title, part in parts if part]


def _by_variant(audit: str, title: str, rows: Sequence[Row]) -> Block:
    metrics = list(dict.fromkeys(row.metric for row in rows))
    cells = {(r.group, r.of, r.checkpoint, r.over, r.metric): r for r in rows}
    lines: list[tuple[str, ...]] = []
    for group, of in dict.fromkeys((row.group, row.of) for row in rows):
        mine = [row for row in rows if (row.group, row.of) == (group, of)]
        place = (group.partition(":")[2], of) if title else (of,)
        for checkpoint, over in dict.fromkeys((r.checkpoint, r.over) for r in mine):
            line = [cells.get((group, of, checkpoint, over, m)) for m in metrics]
            first = next(row for row in line if row is not None)
            lines.append(
                (
                    _who(first),
                    *place,
                    *("-" if row is None else figure(row) for row in line),
                    str(max(row.n for row in line if row is not None)),
                    str(max(row.clusters for row in line if row is not None)),
                )
            )
        chance = [_chance([row for row in mine if row.metric == m]) for m in metrics]
        if AUDITS.about(audit).chance and any(chance):
            lines.append(("chance", *place, *(c or "-" for c in chance), "-", "-"))
    units = sorted({row.unit for row in rows if row.unit})
    return Block(
        title=f"{audit}: {title or AUDITS.about(audit).over}"
        + (f", in {', '.join(units)}" if units else "")
        + " (exploratory)",
        header=(
            "checkpoint",
            *(("group", "of") if title else ("of",)),
            *(AUDITS.metric(audit, metric).label_of() for metric in metrics),
            "n",
            "clusters",
        ),
        rows=tuple(lines),
        remarks=_remarks(rows),
    )


def _who(row: Row) -> str:
    return row.checkpoint if row.over == "sources" else f"{row.checkpoint}, {row.over}"


def _chance(rows: Sequence[Row]) -> str:
    """The null value and its band where all checkpoints have the same; else empty."""
    known = [row for row in rows if row.value is not None]
    places = {(row.null, row.null_low, row.null_high) for row in known}
    if len(places) != 1:
        return ""
    null, low, high = places.pop()
    if null is None:
        return ""
    band = "" if low is None or high is None else f" [{number(low)}, {number(high)}]"
    return number(null) + band


def _wide(audit: str, rows: Sequence[Row], *, brief: bool) -> list[Block]:
    """One line a checkpoint, one column a metric and variant."""
    panels: dict[str, list[Row]] = {"": []}
    for row in rows:
        panels.setdefault(AUDITS.metric(audit, row.metric).panel, []).append(row)
    found = [_pooled(audit, part, title=title) for title, part in panels.items()]
    if brief:
        return found
    for prefix, title in GROUPS:
        grouped = [row for row in rows if row.group.startswith(f"{prefix}:")]
        if grouped:
            found.append(_grouped(audit, title, grouped))
    return found


Column: TypeAlias = tuple[str, str]
"""Metric and variant."""


def _column(row: Row) -> Column:
    return row.metric, row.of


def _labels(audit: str, columns: Iterable[Column]) -> list[str]:
    return [AUDITS.metric(audit, name).label_of(of) for name, of in columns]


def _shown(rows: Sequence[Row]) -> list[Row]:
    """The rows whose variants do not stand in the CSV alone."""
    return [
        row for row in rows if row.of not in AUDITS.metric(row.audit, row.metric).hidden
    ]


def _pooled(audit: str, rows: Sequence[Row], *, title: str = "") -> Block:
    pooled = [row for row in _shown(rows) if row.group == "pooled"]
    # The column that counts and the smallest effect are of.
    main, words = next(
        ((metric.name, of), called)
        for metric in AUDITS.metrics(audit)
        if metric.panel == title
        for of, called in metric.counted.items()
    )
    metrics = list(dict.fromkeys(_column(row) for row in pooled))
    cells = {(_who(row), _column(row)): row for row in pooled}
    lines = []
    for checkpoint in dict.fromkeys(map(_who, pooled)):
        line = [cells.get((checkpoint, metric)) for metric in metrics]
        first = next(row for row in line if row is not None)
        seen = cells.get((checkpoint, main), first)
        counted = first if seen.value is None else seen
        lines.append(
            (
                checkpoint,
                *("-" if row is None else figure(row) for row in line),
                number(seen.mde),
                str(counted.n),
                str(counted.clusters),
            )
        )
    units = sorted({row.unit for row in pooled if row.unit})
    return Block(
        title=f"{audit}: {title or AUDITS.about(audit).over}"
        + (f", in {', '.join(units)}" if units else ""),
        header=(
            "checkpoint",
            *_labels(audit, metrics),
            f"MDE of the {words}",
            "tokens",
            "clusters",
        ),
        rows=tuple(lines),
        remarks=_remarks(pooled),
    )


def _grouped(audit: str, title: str, rows: Sequence[Row]) -> Block:
    rows = _shown(rows)
    metrics = list(dict.fromkeys(_column(row) for row in rows))
    cells = {(row.group, _who(row), _column(row)): row for row in rows}
    lines = []
    for group, checkpoint in dict.fromkeys((r.group, _who(r)) for r in rows):
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
            *_labels(audit, metrics),
            "tokens",
            "clusters",
        ),
        rows=tuple(lines),
        remarks=_remarks(rows),
    )


def _contrasts(audit: str, contrasts: Sequence[Contrast]) -> Block:
    """Paired changes; p and the smallest effect to be seen stand in each cell."""
    metrics = list(dict.fromkeys(row.metric for row in contrasts))
    lines: dict[tuple[str, ...], dict[str, Contrast]] = {}
    for row in contrasts:
        key = (_who(row), row.baseline, row.group, row.of)
        lines.setdefault(key, {})[row.metric] = row
    variants = any(of for *_, of in lines)
    primary = any(row.family == "primary" for row in contrasts)
    return Block(
        title=f"{audit}: change against the baseline, paired"
        + ("" if primary else " (exploratory)"),
        header=(
            "checkpoint",
            "baseline",
            "group",
            *(("of",) if variants else ()),
            *(AUDITS.metric(audit, metric).label_of() for metric in metrics),
            "clusters",
        ),
        rows=tuple(
            (
                *(key if variants else key[:3]),
                *("-" if m not in cells else _change(cells[m]) for m in metrics),
                str(next(iter(cells.values())).clusters),
            )
            for key, cells in lines.items()
        ),
    )


def _change(row: Contrast) -> str:
    text = figure(row)
    p = row.p if row.p_adjusted is None else row.p_adjusted
    if p is not None:
        adjusted = "" if row.p_adjusted is None else " (primary) adjusted"
        text += f", p{adjusted} {number(p, 4)}"
    return text if row.mde is None else f"{text}, MDE {number(row.mde)}"


FEW = 10
"""Clusters below which an interval rests on little, and readers are told."""


def _remarks(rows: Sequence[Row]) -> tuple[str, ...]:
    """Why figures are missing, each reason once, and which rest on little."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.status == "not_estimable":
            place = row.group.partition(":")[2] or row.checkpoint
            # A reason to withhold says so itself.
            lead = "" if withheld(row) else "not estimable for "
            reasons.setdefault(f"{lead}{{}}: {row.note}", []).append(place)
    few = {
        row.group.partition(":")[2] or row.checkpoint
        for row in rows
        if row.status == "ok" and row.metric == "delta_sel" and row.clusters < FEW
    }
    found = [
        reason.replace("{}", ", ".join(dict.fromkeys(places)), 1)
        for reason, places in reasons.items()
    ]
    if few:
        found.append(
            f"fewer than {FEW} clusters, too few for a conclusion of their own: "
            + ", ".join(sorted(few))
        )
    return tuple(found)
