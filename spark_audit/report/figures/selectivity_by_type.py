"""Forest plot of the change of Delta_sel for every PII type."""

from __future__ import annotations

from spark_audit.audits.contract import BASE
from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import estimable, groups_of, rows_of
from spark_audit.report.figures.forest import Forest
from spark_audit.report.figures.forest_marks import Line, Mark, Section
from spark_audit.report.figures.picture import AREA, Look, looks, spanned, wrapped
from spark_audit.report.figures.selectivity import REGRESSION
from spark_audit.results import Report, Row

FEW = 6
"""Checkpoints up to which each line has its name."""


@FIGURES.register(order=40)
def draw(report: Report) -> Forest | None:
    """One forest a PII type, all on one axis."""
    types = {
        kind: changes
        for kind in groups_of(report, "matched", "type")
        if estimable(changes := _changes(report, kind))
    }
    if not types:
        return None
    names = list(dict.fromkeys(name for rows in types.values() for name in rows))
    look = looks(report)
    named = len(names) <= FEW and all(wrapped(name) == name for name in names)
    sections = []
    for kind, changes in types.items():
        bands = rows_of(
            report, "matched", "rtm_bias", of="change", group=f"type:{kind}"
        )
        lines = [
            Line(
                name if named else "",
                look[name],
                [Mark.of(changes.get(name))],
                bands.get(name),
            )
            for name in names
        ]
        sizes = {row.clusters for row in estimable(changes).values()}
        sections.append(Section(lines, f"{kind}, n {spanned(sizes)}"))
    few = [
        kind
        for kind, rows in types.items()
        if min(row.clusters for row in estimable(rows).values()) < 10
    ]
    return Forest(
        audit="matched",
        title="Selectivity by PII type",
        caption="Change of Delta_sel since the reference within each type of "
        "identifier; exploratory: among many figures some stand out by chance. n: "
        "independent clusters of rows with such identifiers.",
        remark=f"Fewer than 10 clusters: {', '.join(few)}." if few else "",
        shows="Forest plots of the change of Delta_sel by PII type, in nats",
        sections=sections,
        most=3,
        names=[] if named else [look[name] for name in names],
        keys={"change, with its interval": Look(marker="o"), REGRESSION: AREA},
        label="change of Δₛₑₗ, nats per token (higher = less likely than equally hard "
        "text)",
    )


def _changes(report: Report, kind: str) -> dict[str, Row]:
    rows = rows_of(report, "matched", "delta_sel", of="change", group=f"type:{kind}")
    # Of the reference itself there is no change to show.
    return {n: row for n, row in rows.items() if n != BASE or row.value is not None}
