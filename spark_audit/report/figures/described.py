"""Figures of audits that describe and do not attack: ranks, likelihood and noise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from spark_audit.names import BASE
from spark_audit.report.figures import parts
from spark_audit.report.figures.styling import CHECKPOINT, MUTED
from spark_audit.report.figures.text_room import plain, spanned
from spark_audit.report.figures.view import DOUBT_LOOK, PLAIN_LOOK, Look, Sketch, View
from spark_audit.results import Row
from spark_audit.sentences import render

SIDES_SHOWN = {"pii_all": "identifiers", "control": "controls"}
"""Variants of ranks: all identifiers, and other text that is as hard."""

TOP_RATE = "top{rank}_rate"

TOP_RANKS_DRAWN = (1, 5, 10, 100)

TOP_MARKERS = "o^sD"

NOISE_MARKERS = "o^sDvP"

NLL_SIDES = {"pii": "identifiers", "low": "other"}

NOISE_METRICS = {"dp_pii": "identifiers", "dp_nonpii": "other"}

BASE_LOOK = Look("D", PLAIN_LOOK.colour, filled=False)


def draw_rank(view: View) -> Sketch | None:
    """Draw shares at the top ranks, of identifiers and of matched text."""
    forests: dict[str, parts.Forest] = {}
    ranks: dict[int, str] = {}
    for side, key in SIDES_SHOWN.items():
        marks = []
        for rank in TOP_RANKS_DRAWN:
            rows = view.rows("rank", TOP_RATE.format(rank=rank), of=side)
            if rows:
                ranks.setdefault(rank, TOP_MARKERS[len(ranks)])
                marks.append(described_marks(view, "rank", rows, ranks[rank]))
        if marks:
            values = joined_values(marks, scale=100, digits=1)
            forests[key] = parts.Forest(list(marks[0].rows), marks, values=values)
    if not forests:
        return None
    looks = {
        f"figure.rank.top{rank}": Look(marker, PLAIN_LOOK.colour)
        for rank, marker in ranks.items()
    }
    keys = {render(key): look for key, look in looks.items()}
    return described_sketch("rank", forests, keys, is_share=True)


def draw_nll(view: View) -> Sketch | None:
    """Draw dumbbells from the base to each checkpoint, of both kinds of text."""
    forests: dict[str, parts.Forest] = {}
    for side, key in NLL_SIDES.items():
        rows = view.rows("nll", "nll", of=side)
        base = rows.pop(BASE, None)
        if not rows:
            continue
        marks = [described_marks(view, "nll", rows, "o")]
        values = joined_values(marks, scale=1, digits=2)
        if base is not None:
            before = dict.fromkeys(
                rows,
                base.model_copy(update={"low": None, "high": None, "interval": "none"}),
            )
            looks = dict.fromkeys(rows, BASE_LOOK)
            marks.insert(0, parts.ForestMarks(before, looks, is_reference=True))
        forests[key] = parts.Forest(list(rows), marks, values=values)
    if not forests:
        return None
    keys = {
        render("figure.nll.after"): PLAIN_LOOK,
        render("figure.nll.before"): BASE_LOOK,
    }
    return described_sketch("nll", forests, keys, is_joined=True)


def draw_noise(view: View) -> Sketch | None:
    """Draw what noise in the weights changes, of identifiers and of matched text."""
    forests: dict[str, parts.Forest] = {}
    sigmas = sorted(
        {row.of for row in view.report.results if row.metric in NOISE_METRICS},
        key=float,
    )[: len(NOISE_MARKERS)]
    for metric, key in NOISE_METRICS.items():
        marks = []
        for sigma, marker in zip(sigmas, NOISE_MARKERS, strict=False):
            rows = view.rows("noise", metric, of=sigma)
            if rows:
                marks.append(described_marks(view, "noise", rows, marker))
        if marks:
            forests[key] = parts.Forest(list(marks[0].rows), marks)
    if not forests:
        return None
    keys = {
        render("figure.noise.sigma", sigma=sigma): Look(marker, PLAIN_LOOK.colour)
        for sigma, marker in zip(sigmas, NOISE_MARKERS, strict=False)
    }
    return described_sketch("noise", forests, keys)


def described_marks(
    view: View, audit: str, rows: Mapping[str, Row], marker: str
) -> parts.ForestMarks:
    """Return marks of one shape; those of void checkpoints are grey crosses."""
    looks = {}
    for name, row in rows.items():
        is_void = bool(view.doubt(name, audit, row))
        looks[name] = DOUBT_LOOK if is_void else Look(marker, PLAIN_LOOK.colour)
    return parts.ForestMarks(rows, looks)


def joined_values(
    marks: Sequence[parts.ForestMarks], *, scale: float, digits: int
) -> dict[str, str]:
    """Return what stands at the right of each line: the values of its marks."""
    values: dict[str, list[str]] = {}
    for one in marks:
        for name, row in one.rows.items():
            values.setdefault(name, []).append(
                plain(scale * (row.value or 0.0), digits)
            )
    return {name: " | ".join(texts) for name, texts in values.items()}


def described_sketch(
    audit: str,
    forests: Mapping[str, parts.Forest],
    keys: Mapping[str, Look],
    *,
    is_share: bool = False,
    is_joined: bool = False,
) -> Sketch:
    """Draw forests on one scale side by side, with a legend of the looks in them."""
    drawn: set[Look] = set()
    for forest in forests.values():
        for marks in forest.marks:
            drawn.update(marks.looks.values())
    keys = {**keys, render("figure.key.doubt"): DOUBT_LOOK}
    samples: dict[str, Artist] = {
        label: parts.sample_of(look) for label, look in keys.items() if look in drawn
    }
    figure, panels = parts.canvas(
        parts.heights_of(forests.values()), legend_lines=parts.legend_lines(samples)
    )
    limits = described_limits(forests.values())
    for axes, (key, forest) in zip(panels, forests.items(), strict=True):
        sizes = [row.n for row in forest.marks[-1].rows.values()]
        title = render(f"figure.{audit}.{key}", n=spanned(sizes))
        axis = render(f"figure.{audit}.axis")
        parts.draw_forest(
            axes, forest, title=title, label=axis, limits=limits, labelled_lines=0
        )
        if is_joined and len(forest.marks) > 1:
            join_marks(axes, forest)
        if is_share:
            ticks = [
                tick for tick in axes.get_xticks() if limits[0] <= tick <= limits[1]
            ]
            axes.set_xticks(ticks, [f"{100 * tick:g}%" for tick in ticks])
    parts.draw_legend(figure, samples)
    first = next(iter(forests.values()))
    return Sketch(
        figure=figure,
        rows=[row for one in forests.values() for row in one.marks[-1].rows.values()],
        values=[f"{name} {text}" for name, text in first.values.items()],
    )


def described_limits(forests: Iterable[parts.Forest]) -> tuple[float, float]:
    """Return the ends of one axis for all panels, which need not begin at 0."""
    values = []
    for forest in forests:
        for row in parts.rows_that_count(forest):
            values += [row.value or 0.0, *(row.ends or ())]
    room = 0.06 * (max(values) - min(values)) or 0.05
    return min(values) - room, max(values) + room


def join_marks(axes: Axes, forest: parts.Forest) -> None:
    """Join both marks of each line, as a dumbbell does."""
    before, after = forest.marks
    for place, name in enumerate(forest.lines):
        if name not in before.rows or name not in after.rows:
            continue
        x = [before.rows[name].value or 0.0, after.rows[name].value or 0.0]
        axes.plot(
            x,
            [place - 0.15, place + 0.15],
            color=MUTED,
            linewidth=1.0,
            zorder=1.8,
            gid=CHECKPOINT + name,
        )
