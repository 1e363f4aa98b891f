"""Figures of audits that describe and do not attack: ranks, likelihood and noise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from spark_audit.names import BASE
from spark_audit.report.figures.canvas import canvas
from spark_audit.report.figures.forest import (
    MARKS_HEIGHT,
    Forest,
    ForestMarks,
    draw_forest,
    heights_of,
    rows_that_count,
)
from spark_audit.report.figures.marks import draw_legend, legend_lines, sample_of
from spark_audit.report.figures.styling import CHECKPOINT, MUTED
from spark_audit.report.figures.text_room import plain, spanned
from spark_audit.report.figures.view import DOUBT_LOOK, PLAIN_LOOK, Look, Sketch, View
from spark_audit.results import Row
from spark_audit.sentences import render

SIDES_SHOWN = {"pii_all": "identifiers", "control": "controls"}
"""Variants of ranks: all identifiers, and other text that is as hard."""

TOP_RATE = "top{rank}_rate"
"""Name of the metric of a rank: the share of tokens at this rank or above."""

TOP_RANKS_DRAWN = (1, 5, 10, 100)
"""Ranks whose shares are drawn."""

TOP_MARKERS = "o^sD"
"""A marker for each of these ranks that a report has."""

NOISE_MARKERS = "o^sDvP"
"""A marker for each size of noise, the smallest first; of more, the rest is not drawn.
"""

NLL_SIDES = {"pii": "identifiers", "low": "other"}
"""Variants of the NLL -> the panel that each has, as its title is keyed."""

NOISE_METRICS = {"dp_pii": "identifiers", "dp_nonpii": "other"}
"""Metrics of the noise audit -> the panel that each has, as its title is keyed."""

BASE_LOOK = Look("D", PLAIN_LOOK.colour, filled=False)
"""The base, where a dumbbell begins."""


def draw_rank(view: View) -> Sketch | None:
    """Draw shares at the top ranks, of identifiers and of matched text."""
    forests: dict[str, Forest] = {}
    marker_by_rank: dict[int, str] = {}
    for side, panel in SIDES_SHOWN.items():
        marks = []
        for rank, rows in top_rows(view, side).items():
            # A report may lack a rank: markers go to the ranks that it has.
            if rank not in marker_by_rank:
                marker_by_rank[rank] = TOP_MARKERS[len(marker_by_rank)]
            marks.append(described_marks(view, "rank", rows, marker_by_rank[rank]))

        if marks:
            values = joined_values(marks, scale=100, digits=1)
            forests[panel] = Forest(list(marks[0].rows), marks, values=values)
    if not forests:
        return None

    looks = {}
    for rank, marker in marker_by_rank.items():
        looks[render(f"figure.rank.top{rank}")] = Look(marker, PLAIN_LOOK.colour)
    return described_sketch("rank", forests, looks, is_share=True)


def top_rows(view: View, side: str) -> dict[int, dict[str, Row]]:
    """Return rank -> checkpoint -> share of tokens at this rank or above.

    ``side`` is the variant: identifiers or other text. Ranks without rows are left out.
    """
    rows_by_rank = {}
    for rank in TOP_RANKS_DRAWN:
        rows = view.rows("rank", TOP_RATE.format(rank=rank), variant=side)
        if rows:
            rows_by_rank[rank] = rows
    return rows_by_rank


def draw_nll(view: View) -> Sketch | None:
    """Draw dumbbells from the base to each checkpoint, of both kinds of text."""
    forests: dict[str, Forest] = {}
    for side, panel in NLL_SIDES.items():
        rows = view.rows("nll", "nll", variant=side)
        # The base has no line of its own: each dumbbell begins at it.
        base = rows.pop(BASE, None)
        if not rows:
            continue

        after = described_marks(view, "nll", rows, "o")
        values = joined_values([after], scale=1, digits=2)
        marks = [after]
        # With a base, its mark stands above that of the checkpoint.
        if base is not None:
            marks = [base_marks(base, rows), after]
        forests[panel] = Forest(list(rows), marks, values=values)
    if not forests:
        return None

    looks = {
        render("figure.nll.after"): PLAIN_LOOK,
        render("figure.nll.before"): BASE_LOOK,
    }
    return described_sketch("nll", forests, looks, is_joined=True)


def base_marks(base: Row, rows: Mapping[str, Row]) -> ForestMarks:
    """Return the base as a mark in each checkpoint's line, without its interval."""
    bare = base.model_copy(
        update={"low": None, "high": None, "interval_method": "none"}
    )
    return ForestMarks(
        rows=dict.fromkeys(rows, bare),
        looks=dict.fromkeys(rows, BASE_LOOK),
        is_reference=True,
    )


def draw_noise(view: View) -> Sketch | None:
    """Draw what noise in the weights changes, of identifiers and of matched text."""
    sigmas = {row.variant for row in view.report.results if row.metric in NOISE_METRICS}
    marker_by_sigma = dict(zip(sorted(sigmas, key=float), NOISE_MARKERS, strict=False))

    forests: dict[str, Forest] = {}
    for metric, panel in NOISE_METRICS.items():
        marks = []
        for sigma, marker in marker_by_sigma.items():
            rows = view.rows("noise", metric, variant=sigma)
            if rows:
                marks.append(described_marks(view, "noise", rows, marker))

        # No numbers stand beside the lines: there are as many as sizes of noise.
        if marks:
            forests[panel] = Forest(list(marks[0].rows), marks)
    if not forests:
        return None

    looks = {}
    for sigma, marker in marker_by_sigma.items():
        label = render("figure.noise.sigma", sigma=sigma)
        looks[label] = Look(marker, PLAIN_LOOK.colour)
    return described_sketch("noise", forests, looks)


def described_marks(
    view: View, audit: str, rows: Mapping[str, Row], marker: str
) -> ForestMarks:
    """Return marks of one shape; those of void checkpoints are grey crosses."""
    looks = {}
    for name, row in rows.items():
        is_void = bool(view.doubt(name, audit, row))
        looks[name] = DOUBT_LOOK if is_void else Look(marker, PLAIN_LOOK.colour)
    return ForestMarks(rows, looks)


def joined_values(
    marks: Sequence[ForestMarks], *, scale: float, digits: int
) -> dict[str, str]:
    """Return what stands at the right of each line: the values of its marks."""
    values: dict[str, list[str]] = {}
    for marks_of_shape in marks:
        for name, row in marks_of_shape.rows.items():
            value = plain(scale * (row.value or 0.0), digits)
            values.setdefault(name, []).append(value)
    return {name: " | ".join(texts) for name, texts in values.items()}


def described_sketch(
    audit: str,
    forests: Mapping[str, Forest],
    looks: Mapping[str, Look],
    *,
    is_share: bool = False,
    is_joined: bool = False,
) -> Sketch:
    """Draw forests on one scale side by side, with a legend of the looks in them.

    Parameters
    ----------
    forests
        Panel, as its title is keyed -> its forest.
    looks
        Label of the legend -> look.
    is_share
        Whether the axis is labelled in per cent.
    is_joined
        Whether both marks of a line are joined, as a dumbbell's.
    """
    samples = described_samples(forests.values(), looks)
    heights = heights_of(forests.values())
    figure, panels = canvas(heights, legend_lines=legend_lines(samples))

    limits = described_limits(forests.values())
    for axes, (panel, forest) in zip(panels, forests.items(), strict=True):
        # The last marks are the checkpoints' own: the first may be the base's.
        sizes = [row.n for row in forest.marks[-1].rows.values()]
        draw_forest(
            axes,
            forest,
            title=render(f"figure.{audit}.{panel}", n=spanned(sizes)),
            label=render(f"figure.{audit}.axis"),
            limits=limits,
            labelled_lines=0,
        )

        if is_joined and len(forest.marks) > 1:
            join_marks(axes, forest)
        if is_share:
            low, high = limits
            ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
            axes.set_xticks(ticks, [f"{100 * tick:g}%" for tick in ticks])

    draw_legend(figure, samples)

    drawn_rows: list[Row] = []
    for forest in forests.values():
        drawn_rows += forest.marks[-1].rows.values()

    first = next(iter(forests.values()))
    return Sketch(
        figure=figure,
        rows=drawn_rows,
        values=[f"{name} {text}" for name, text in first.values.items()],
    )


def described_samples(
    forests: Iterable[Forest], looks: Mapping[str, Look]
) -> dict[str, Artist]:
    """Return the legend of those looks that the forests have, and of void marks."""
    looks_drawn: set[Look] = set()
    for forest in forests:
        for marks in forest.marks:
            looks_drawn.update(marks.looks.values())

    samples: dict[str, Artist] = {}
    for label, look in {**looks, render("figure.key.doubt"): DOUBT_LOOK}.items():
        if look in looks_drawn:
            samples[label] = sample_of(look)
    return samples


def described_limits(forests: Iterable[Forest]) -> tuple[float, float]:
    """Return the ends of one axis for all panels, which need not begin at 0."""
    values: list[float] = []
    for forest in forests:
        for row in rows_that_count(forest):
            values += [row.value or 0.0, *(row.ends or ())]

    # Where all values are equal, the axis has some length all the same.
    room = 0.06 * (max(values) - min(values)) or 0.05
    return min(values) - room, max(values) + room


def join_marks(axes: Axes, forest: Forest) -> None:
    """Join both marks of each line, as a dumbbell does."""
    before, after = forest.marks
    for height, name in enumerate(forest.lines):
        if name not in before.rows or name not in after.rows:
            continue

        # Two marks stand a quarter of their room above and below the line's middle.
        shift = MARKS_HEIGHT / 4
        axes.plot(
            [before.rows[name].value or 0.0, after.rows[name].value or 0.0],
            [height - shift, height + shift],
            color=MUTED,
            linewidth=1.0,
            zorder=1.8,
            gid=CHECKPOINT + name,
        )
