"""Love plot: how alike identifiers and controls are, before and after matching."""

from __future__ import annotations

from spark_audit.report.figures.forest import Forest
from spark_audit.report.figures.forest_marks import Line, Mark, Section
from spark_audit.report.figures.picture import DASHED, MISSING, Look, plain
from spark_audit.report.figures.theme import INK
from spark_audit.results import Report

ENOUGH = 0.1
"""|SMD| up to which a covariate counts as balanced (Austin, Stat. Med. 28, 2009)."""
TICKS = (0.0, ENOUGH, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
SIDES = {
    "smd_before": Look(marker="o", dashes="none", hollow=True),
    "smd_after": Look("", INK, "D", "none"),
}


def draw(report: Report) -> Forest | None:
    """|SMD| of every covariate, sorted by what it was before matching."""
    table = report.tables.get("balance", [])
    records = [r for r in table if any(r.get(side) is not None for side in SIDES)]
    if not records:
        return None
    records.sort(key=lambda r: -abs(r.get("smd_before") or 0.0))
    sizes = {s: [abs(r[s]) for r in records if r.get(s) is not None] for s in SIDES}
    end = max(*sizes["smd_before"], *sizes["smd_after"], ENOUGH) * 1.25
    beyond = ", ".join(
        f"{sum(v > ENOUGH for v in sizes[side])} of {len(sizes[side])} {when} matching"
        for side, when in (("smd_before", "before"), ("smd_after", "after"))
        if sizes[side]
    )
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
        f"beyond {ENOUGH:g}: {beyond}",
        f"|standardised mean difference| (lower = more alike), log from {ENOUGH:g} on",
        limits=(-0.01, end),
        ticks=[at for at in TICKS if at <= end],
        linear=ENOUGH,
        references={ENOUGH: DASHED},
    )
    missing = [r["covariate"] for r in table if r not in records]
    return Forest(
        audit="manifest",
        title="Balance of the matching",
        caption="Standardised mean differences between identifiers and other text, "
        "before matching (all eligible windows) and after it (the controls); at the "
        f"right with their sign. At most {ENOUGH:g} counts as balanced.",
        remark=f"Without an SMD: {', '.join(missing)}." if missing else "",
        shows="Love plot of standardised mean differences before → after matching, "
        f"where at most {ENOUGH:g} counts as balanced; {section.title}",
        sections=[section],
        keys={
            "before matching": SIDES["smd_before"],
            "after matching": SIDES["smd_after"],
            f"|SMD| {ENOUGH:g}": DASHED,
        },
        width=5.4,
    )
