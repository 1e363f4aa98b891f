"""Love plot: how alike identifiers and controls are, before and after matching."""

from __future__ import annotations

from spark_audit.report.figures.forest import Forest, Line, Mark, Section
from spark_audit.report.figures.picture import DASHED, MISSING, Look, plain, wrapped
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


def draw(report: Report) -> Forest | None:
    """|SMD| of every covariate, sorted by what it was before matching."""
    table = report.tables.get("balance", [])
    smds = {r["covariate"]: [r.get(f"smd_{side}") for side in SIDES] for r in table}
    known = {name: both for name, both in smds.items() if both != [None, None]}
    if not known:
        return None
    lines, sizes = [], {side: list[float]() for side in SIDES}
    for name in sorted(known, key=lambda name: -abs(known[name][0] or 0.0)):
        words, marks = [], []
        for (side, look), smd in zip(SIDES.items(), known[name], strict=True):
            sizes[side] += [] if smd is None else [abs(smd)]
            words.append(MISSING if smd is None else plain(smd, 2))
            marks.append(Mark(None if smd is None else abs(smd), look=look))
        label = name.replace("_", " ")
        lines.append(Line(label, Look(), marks, " → ".join(words), joined=True))
    end = max(*sizes["before"], *sizes["after"], ENOUGH) * 1.25
    facts = {
        "enough": f"{ENOUGH:g}",
        "missing": [name for name in smds if name not in known],
        "counts": {
            side: (sum(v > ENOUGH for v in values), len(values))
            for side, values in sizes.items()
        },
    }
    section = Section(
        lines,
        wrapped(render("figure.balance.beyond", **facts), width=40),
        wrapped(render("figure.balance.axis", **facts), width=42),
        limits=(-0.01, end),
        ticks=[at for at in TICKS if at <= end],
        linear=ENOUGH,
        references={ENOUGH: DASHED},
    )
    keys = {render(f"figure.balance.{side}"): look for side, look in SIDES.items()}
    return Forest(
        audit="manifest",
        facts=facts,
        sections=[section],
        keys=keys | {f"|SMD| {ENOUGH:g}": DASHED},
    )
