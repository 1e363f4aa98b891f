"""How alike the pairs are: distribution of their distance, with the caliper."""

from __future__ import annotations

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.curves import Axis, Curve, Curves, Panel, half
from spark_audit.report.figures.entries import known
from spark_audit.report.figures.picture import DASHED, DASHES, WIDTH, Look, plain
from spark_audit.report.figures.theme import INK
from spark_audit.results import Report

DISTANCE = Look("", INK, width=1.8)
SIDES = {
    "nll_pii": ("identifiers", Look("", INK, width=1.8)),
    "nll_control": ("controls", Look(dashes=DASHES[1], width=1.8)),
}


@FIGURES.register(order=20)
def draw(report: Report) -> Curves | None:
    """ECDF of the distances, and of the mean NLL of both sides of the pairs."""
    records = known(report.tables.get("pair_shares", []), "of", "nats", "share")
    records.sort(key=lambda r: r["nats"])
    apart = [r for r in records if r["of"] == "distance"]
    if not apart:
        return None

    def curve(of: str, label: str, look: Look) -> Curve:
        mine = [r for r in records if r["of"] == of]
        return Curve(look, [r["nats"] for r in mine], [r["share"] for r in mine], label)

    sides = {s: v for s, v in SIDES.items() if any(r["of"] == s for r in records)}
    calipers = [r["caliper_nats"] for r in known(apart, "caliper_nats")][:1]
    shares = Axis("share of pairs", limits=(0.0, 1.02))
    panels = [
        Panel(
            [curve("distance", "distance", DISTANCE)],
            "(a) distance" if sides else "",
            x=Axis(
                "|difference of mean NLL| of a pair, nats per token", limits=(0, None)
            ),
            y=shares,
            references=[("x", caliper, DASHED) for caliper in calipers],
        )
    ]
    if sides:
        both = [curve(side, *SIDES[side]) for side in sides]
        mean = Axis("mean NLL on the reference, nats per token")
        level = Axis(limits=shares.limits)
        panels.append(Panel(both, "(b) difficulty of both sides", x=mean, y=level))
    return Curves(
        audit="manifest",
        title="Distances of the pairs",
        caption="Distances of matched pairs of train rows on the reference model: the "
        "absolute difference of the mean NLL of identifier and control, counted in "
        "steps.",
        remark="".join(
            f"No pair may differ by more than the caliper, {plain(caliper)} nats."
            for caliper in calipers
        ),
        shows="Cumulative distributions over pairs; their medians, in nats",
        tells=half,
        panels=panels,
        share="row",
        tall=2.1,
        keys=dict(sides.values()) | dict.fromkeys(["caliper"] * len(calipers), DASHED),
        width=WIDTH if sides else 3.6,
    )
