"""Love plot: how alike identifiers and controls are, before and after matching."""

from __future__ import annotations

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.forest import Forest, Line, Mark, Section
from spark_audit.report.figures.picture import DASHED, MISSING, Look, plain
from spark_audit.report.figures.theme import LIGHT
from spark_audit.results import Report

ENOUGH = 0.1
"""|SMD| below which a covariate counts as balanced (Austin, Stat. Med. 28, 2009)."""
FAR = 2.0
"""|SMD| beyond which a covariate stands at the edge, so that the rest is readable."""
SIDES = {
    "smd_before": Look("", LIGHT[1], "o", "none", hollow=True),
    "smd_after": Look("", LIGHT[2], "D", "none"),
}


@FIGURES.register(order=10)
def draw(report: Report) -> Forest | None:
    """|SMD| of every covariate, sorted by what it was before matching."""
    table = report.tables.get("balance", [])
    records = [r for r in table if any(r.get(side) is not None for side in SIDES)]
    if not records:
        return None
    records.sort(key=lambda r: -abs(r.get("smd_before") or 0.0))
    values = [abs(r[s]) for r in records for s in SIDES if r.get(s) is not None]
    end = min(FAR, max(*values, ENOUGH)) * 1.04
    lines = []
    for record in records:
        smds = {side: record.get(side) for side in SIDES}
        words = (MISSING if v is None else plain(v, 2) for v in smds.values())
        marks = [
            Mark(None if smd is None else abs(smd), look=SIDES[side])
            for side, smd in smds.items()
        ]
        name = record["covariate"].replace("_", " ")
        lines.append(Line(name, Look(), marks, text=" → ".join(words), joined=True))
    section = Section(
        lines,
        label="|standardised mean difference| (lower = more alike)",
        limits=(-0.02 * end, end),
        references={ENOUGH: DASHED},
    )
    missing = [r["covariate"] for r in table if r not in records]
    return Forest(
        audit="manifest",
        title="Balance of the matching",
        caption="Standardised mean differences between identifiers and other text, "
        "before matching (all eligible windows) and after it (the controls); at the "
        "right with their sign.",
        remark=(f"Beyond {FAR:g}, marks stand at the edge. " * (max(values) > FAR))
        + (f"Without an SMD: {', '.join(missing)}." if missing else ""),
        shows="Love plot of standardised mean differences before → after matching, "
        f"where at most {ENOUGH:g} counts as balanced",
        sections=[section],
        keys={
            "before matching": SIDES["smd_before"],
            "after matching": SIDES["smd_after"],
            f"|SMD| {ENOUGH:g}": DASHED,
        },
        width=5.4,
    )
