"""Forest plot of the change of Delta_sel for every PII type."""

from __future__ import annotations

from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from spark_audit.audits.contract import BASE
from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import (
    groups_of,
    intervals_said,
    replicates_said,
    rows_of,
    statuses_said,
)
from spark_audit.report.figures.style import (
    WIDTH,
    Line,
    Mark,
    arrows_said,
    canvas,
    forest,
    grid_of,
    inches,
    line_height,
    looks,
    names_height,
    names_legend,
    notes_of,
    plain,
    reach,
    span,
    wrapped,
)
from spark_audit.report.figures.theme import MUTED, Drawing
from spark_audit.results import Report, Row

CHANGE = "change, with its interval"
REGRESSION = "regression to the mean, if all text drifted alike"
FEW = 6
"""Checkpoints up to which each line has its name."""
DENSE = 0.16
"""Inches of a line without a name."""
AXIS = "change of Δₛₑₗ, nats per token (higher = less likely than equally hard text)"


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """One forest a PII type, all on one axis."""
    types = {
        kind: _changes(report, kind) for kind in groups_of(report, "matched", "type")
    }
    types = {kind: found for kind, found in types.items() if _any(found)}
    if not types:
        return None
    names = list(dict.fromkeys(name for found in types.values() for name in found))
    look = looks(report)
    named = len(names) <= FEW and all(wrapped(name) == name for name in names)
    forests = {
        kind: [
            Line(
                name if named else "",
                look[name],
                [Mark.of(found.get(name))],
                band=reach(_band(report, kind, name)),
            )
            for name in names
        ]
        for kind, found in types.items()
    }
    rows = [row for found in types.values() for row in found.values()]
    further: list[tuple[Artist, str]] = [
        (Line2D([], [], color=MUTED, marker="o"), CHANGE),
        (Patch(color=MUTED, alpha=0.28, linewidth=0), REGRESSION),
        *notes_of(rows),
    ]
    labels = [label for _, label in further]
    shown = [] if named else [look[name] for name in names]
    first = next(iter(forests.values()))
    room = WIDTH - max(inches(line.label) for line in first)
    down, across = grid_of(len(types), most=3, width=room, least=1.6)
    height = len(names) * (line_height(first) if named else DENSE) + 0.36
    figure = canvas(down * height + 0.5 + names_height(shown, further=labels))
    grid = figure.subplots(down, across, squeeze=False)
    limits = span(list(forests.values()), zero=0.0)
    for place, (kind, lines) in enumerate(forests.items()):
        axes = grid[place // across, place % across]
        forest(axes, lines, limits=limits, named=named and place % across == 0)
        axes.set_title(kind)
        axes.tick_params(axis="x", labelbottom=place + across >= len(forests))
    for axes in grid.flat[len(forests) :]:
        axes.remove()
    names_legend(figure, shown, further=further, title=AXIS)
    few = [kind for kind, found in types.items() if _few(found)]
    return Drawing(
        name="selectivity_by_type",
        audit="matched",
        title="Selectivity by PII type",
        caption=(
            "Change of Delta_sel since the reference within each type of identifier; "
            "exploratory: among many figures some stand out by chance. "
            + intervals_said(rows)
            + (f" Fewer than 10 clusters: {', '.join(few)}." if few else "")
            + arrows_said(grid.flat[0], [x for some in forests.values() for x in some])
            + statuses_said(rows)
            + replicates_said(report)
        ),
        alt=_alt(types),
        figure=figure,
    )


def _changes(report: Report, kind: str) -> dict[str, Row]:
    found = rows_of(report, "matched", "delta_sel", of="change", group=f"type:{kind}")
    # Of the reference itself there is no change to show.
    return {
        name: row
        for name, row in found.items()
        if name != BASE or row.value is not None
    }


def _band(report: Report, kind: str, name: str) -> Row | None:
    group = f"type:{kind}"
    return rows_of(report, "matched", "rtm_bias", of="change", group=group).get(name)


def _any(found: dict[str, Row]) -> bool:
    return any(row.value is not None for row in found.values())


def _few(found: dict[str, Row]) -> bool:
    clusters = [row.clusters for row in found.values() if row.value is not None]
    return bool(clusters) and min(clusters) < 10


def _alt(types: dict[str, dict[str, Row]]) -> str:
    parts = []
    for kind, found in types.items():
        known = {n: r.value for n, r in found.items() if r.value is not None}
        least, most = (
            min(known, key=known.__getitem__),
            max(known, key=known.__getitem__),
        )
        parts.append(
            f"{kind} from {plain(known[least])} ({least}) to "
            f"{plain(known[most])} ({most})"
        )
    return (
        "Forest plots of the change of Delta_sel by PII type, in nats: "
        f"{'; '.join(parts)}."
    )
