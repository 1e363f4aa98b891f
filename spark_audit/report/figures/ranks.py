"""Distribution of the ranks of identifier and control tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from spark_audit.audits.contract import BASE
from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.curves import Axis, Curve, Curves, Panel, first, powers
from spark_audit.report.figures.entries import known, means, records_of
from spark_audit.report.figures.picture import WIDTH, Look, looks, wrapped
from spark_audit.results import Report

TOGETHER = 4
"""Checkpoints up to which one axis holds all curves."""
SIDES = {
    "pii": ("identifiers", Look()),
    "control": ("equally hard other text (control)", Look(dashes=(0, (3, 1.2)))),
}
THIN = Look(width=0.8)

Shares = dict[int, float]


@FIGURES.register(order=70)
def draw(report: Report) -> Curves | None:
    """Share of tokens with at most a given rank, identifiers solid, controls dashed."""
    shares = {
        name: {side: _shares(list(members.values()), side) for side in SIDES}
        for name, members in records_of(report, "rank_distribution").items()
    }
    shares = {name: sides for name, sides in shares.items() if sides["pii"]}
    if not shares:
        return None
    look = looks(report, dashes="-", size=4.0)
    longest = max(r for sides in shares.values() for s in sides.values() for r in s)
    x = Axis(scale="log", limits=(0.75, longest * 1.4), ticks=powers(longest))
    y = Axis(limits=(-0.03, 1.06))

    def curves(place: int, name: str) -> list[Curve]:
        return [
            Curve(
                replace(look[name], dashes=style.dashes),
                list(shares[name][side]),
                list(shares[name][side].values()),
                label=f"{name}, {label}" if together else label,
                every=slice(place % 2, None, 2),
            )
            for side, (label, style) in SIDES.items()
            if shares[name][side]
        ]

    together = len(shares) <= TOGETHER
    drawn = {name: curves(place, name) for place, name in enumerate(shares)}
    keys = dict(SIDES.values())
    if together:
        panels = [Panel([c for some in drawn.values() for c in some], x=x, y=y)]
    else:
        base = shares.get(BASE, {}).get("pii", {})
        keys |= {"identifiers on the base": THIN} if base else {}
        behind = Curve(THIN, list(base), list(base.values()))
        panels = [
            Panel(
                [*([behind] if base and name != BASE else []), *some],
                wrapped(name, width=24),
                look[name],
                x,
                y,
            )
            for name, some in drawn.items()
        ]
    return Curves(
        audit="rank",
        title="Distribution of ranks",
        caption="Share of tokens whose rank in the whole vocabulary, after their true "
        "prefix, is at most the given one; matched train rows. A curve that lies lower "
        "is of tokens harder to guess.",
        shows="Curves of the share of tokens by rank; at the lowest rank",
        tells=first,
        panels=panels,
        share="all",
        tall=2.7 if together else 1.4,
        names=[look[name] for name in shares] if together else [],
        keys=keys,
        label="rank of the true token (lower = more likely)",
        side="share of tokens with at most this rank",
        width=5.2 if together else WIDTH,
    )


def _shares(members: list[list[dict[str, float]]], side: str) -> Shares:
    """Rank -> share, the mean over replicates where all of them have it."""
    records = known((r for some in members for r in some), "rank", "share")
    pairs = [(int(r["rank"]), r["share"]) for r in records if r.get("of") == side]
    counts = Counter(rank for rank, _ in pairs)
    most = max(counts.values(), default=0)
    return means(pair for pair in sorted(pairs) if counts[pair[0]] == most)
