"""Forest plot of Delta_sel per checkpoint and of DiD per contrast."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from spark_audit.audits.contract import BASE
from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import (
    contrasts_of,
    intervals_said,
    replicates_said,
    rows_of,
    statuses_said,
)
from spark_audit.report.figures.style import (
    Line,
    Look,
    Mark,
    arrows_said,
    canvas,
    forest,
    legend,
    legend_height,
    line_height,
    looks,
    notes_of,
    reach,
    said,
    wrapped,
)
from spark_audit.report.figures.theme import MUTED, Drawing
from spark_audit.results import Contrast, Report, Row, number

CHANGE = "change since the reference"
ITSELF = "Δₛₑₗ itself"
REGRESSION = "regression to the mean, if all text drifted alike"
AXIS = "Δₛₑₗ, nats per token (higher = identifiers less likely than equally hard text)"
DID = "DiD, nats per token (higher = less likely than with the baseline)"


@FIGURES.register()
def draw(report: Report) -> Drawing | None:
    """Delta_sel and its change with intervals, and contrasts between checkpoints."""
    changes = rows_of(report, "matched", "delta_sel", of="change")
    plain = rows_of(report, "matched", "delta_sel")
    contrasts = contrasts_of(report, "matched", "did")
    bands = rows_of(report, "matched", "rtm_bias", of="change")
    behind = contrasts_of(report, "matched", "rtm_bias")
    if not _known([*changes.values(), *plain.values()]):
        return None
    if not _known(contrasts.values()):
        contrasts = {}
    look = looks(report)
    panels = [_checkpoints(changes, plain, bands, look)]
    if contrasts:
        panels.append(_contrasts(contrasts, behind, look))
    rows = [*changes.values(), *plain.values(), *contrasts.values()]
    entries = _entries(_known(changes.values()) or bool(contrasts), rows)
    labels = [label for _, label in entries]
    sizes = [len(lines) * line_height(lines) for lines in panels]
    figure = canvas(sum(sizes) + 0.72 * len(panels) + legend_height(labels))
    grid = figure.subplots(
        len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": sizes}
    )[:, 0]
    titles = ["(a) selectivity against the reference", _title(contrasts)]
    arrows = ""
    for axes, lines, label, title in zip(
        grid, panels, (AXIS, DID), titles, strict=False
    ):
        forest(axes, lines)
        axes.set_xlabel(label)
        axes.set_title(title)
        arrows = arrows or arrows_said(axes, lines)
    legend(figure, [handle for handle, _ in entries], labels)
    missing = [row for row in changes.values() if row.checkpoint != BASE]
    return Drawing(
        name="selectivity",
        audit="matched",
        title="Selectivity",
        caption=(
            "Delta_sel = NLL of identifiers minus NLL of equally hard other text, its "
            "change since the reference (large marks) and itself (small marks); DiD "
            "compares two checkpoints over the same spans. The grey band is the "
            "interval of what one mechanism would give, regression to the mean if all "
            "text drifted alike: other drift gives other values, beyond the band too. "
            "Ordinary fine-tuning moves these figures; they show no memory. "
            + intervals_said(rows)
            + statuses_said([*missing, *contrasts.values()])
            + arrows
            + replicates_said(report)
        ),
        alt=_alt(changes, plain),
        figure=figure,
    )


def _known(rows: Iterable[Row]) -> bool:
    return any(row.value is not None for row in rows)


def _checkpoints(
    changes: dict[str, Row],
    plain: dict[str, Row],
    bands: dict[str, Row],
    look: dict[str, Look],
) -> list[Line]:
    return [
        Line(
            wrapped(name),
            look[name],
            [Mark.of(changes.get(name)), Mark.of(plain.get(name), light=True)],
            band=reach(bands.get(name)),
            text=_text(name, changes.get(name)),
        )
        for name in dict.fromkeys([*plain, *changes])
    ]


def _contrasts(
    contrasts: dict[tuple[str, str], Contrast],
    behind: dict[tuple[str, str], Contrast],
    look: dict[str, Look],
) -> list[Line]:
    one = len({baseline for _, baseline in contrasts}) == 1
    return [
        Line(
            wrapped(name) if one else f"{wrapped(name)}\nvs {wrapped(baseline)}",
            look[name],
            [Mark.of(row)],
            band=reach(behind.get((name, baseline))),
            text=said(row),
        )
        for (name, baseline), row in contrasts.items()
    ]


def _title(contrasts: dict[tuple[str, str], Contrast]) -> str:
    baselines = {baseline for _, baseline in contrasts}
    if len(baselines) == 1:
        return wrapped(f"(b) paired contrasts with {baselines.pop()}", width=60)
    return "(b) paired contrasts between checkpoints"


def _entries(changed: bool, rows: list[Row]) -> list[tuple[Artist, str]]:
    """The legend, without what is not drawn."""
    small: dict[str, Any] = {"markersize": 3.6, "alpha": 0.55, "linewidth": 1}
    itself = Line2D([], [], color=MUTED, marker="o", **small)
    if not changed:
        return [(itself, ITSELF), *notes_of(rows)]
    return [
        (Line2D([], [], color=MUTED, marker="o"), CHANGE),
        (itself, ITSELF),
        (Patch(color=MUTED, alpha=0.28, linewidth=0), REGRESSION),
        *notes_of(rows),
    ]


def _text(name: str, row: Row | None) -> str:
    if name == BASE and (row is None or row.value is None):
        return "reference"
    return said(row)


def _alt(changes: dict[str, Row], plain: dict[str, Row]) -> str:
    changed = _known(changes.values())
    found = [
        f"{name} {number(row.value)}"
        + ("" if row.low is None else f" [{number(row.low)}, {number(row.high)}]")
        for name, row in (changes if changed else plain).items()
        if row.value is not None
    ]
    what = "the change of Delta_sel since the reference" if changed else "Delta_sel"
    return f"Forest plot of {what}, in nats: {'; '.join(found)}."
