"""Love plot: how alike identifiers and controls are, before and after matching."""

from __future__ import annotations

from spark_audit.report.figures.forest import MISSING, Line, Section, forest
from spark_audit.report.figures.panel import DASHED, Axis, Look, plain, wrapped
from spark_audit.report.figures.picture import Picture
from spark_audit.report.figures.theme import INK
from spark_audit.results import Report
from spark_audit.sentences import render

ENOUGH = 0.1
"""|SMD| up to which a covariate counts as balanced (Austin, Stat. Med. 28, 2009)."""
TICKS = (0.0, ENOUGH, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
SIDES = {
    "before": Look(marker="o", dashes="none", hollow=True),
    "after": Look("", INK, "D", "none"),
}


def draw(report: Report) -> Picture | None:
    """|SMD| of every covariate, sorted by what it was before matching."""
    table = report.tables.get("balance", [])
    smds = {r["covariate"]: [r.get(f"smd_{side}") for side in SIDES] for r in table}
    known = {name: both for name, both in smds.items() if both != [None, None]}
    if not known:
        return None
    lines = []
    for name in sorted(known, key=lambda name: -abs(known[name][0] or 0.0)):
        words = [MISSING if smd is None else plain(smd, 2) for smd in known[name]]
        marks = [None if smd is None else abs(smd) for smd in known[name]]
        label = name.replace("_", " ")
        looks = [*SIDES.values()]
        lines.append(Line(label, Look(), marks, " → ".join(words), joined=looks))
    columns = zip(SIDES, zip(*known.values(), strict=True), strict=True)
    sizes = {k: [abs(smd) for smd in each if smd is not None] for k, each in columns}
    end = max(*sizes["before"], *sizes["after"], ENOUGH) * 1.25
    facts = {
        "enough": f"{ENOUGH:g}",
        "missing": [name for name in smds if name not in known],
        "counts": {
            side: (sum(v > ENOUGH for v in values), len(values))
            for side, values in sizes.items()
        },
    }
    axis = Axis(
        wrapped(render("figure.balance.axis", **facts), width=42),
        "symlog",
        limits=(-0.01, end),
        ticks={at: f"{at:g}" for at in TICKS if at <= end},
        options={"linthresh": ENOUGH},
    )
    title = wrapped(render("figure.balance.beyond", **facts), width=40)
    keys = {render(f"figure.balance.{side}"): look for side, look in SIDES.items()}
    return forest(
        [Section(lines, title, axis, {ENOUGH: DASHED})],
        audit="manifest",
        facts=facts,
        keys=keys | {f"|SMD| {ENOUGH:g}": DASHED},
    )
