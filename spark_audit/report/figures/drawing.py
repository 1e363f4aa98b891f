"""Figures: which a report has, how they look, and their files.

Colour is never alone: each checkpoint has a marker and dashes of its own, so that a
print in grey and a colour-blind eye read the same.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pandas as pd
from markupsafe import Markup, escape

from spark_audit.errors import InputError, choose
from spark_audit.names import BASE, entry_of, series_of
from spark_audit.results import Report, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURE_NEEDS = {
    "memory": "",
    "selectivity": "matched",
    "stages": "stages_states",
    "series": "series_stages",
    "exposure": "canary_by_dose",
    "roc": "mia_roc",
    "accuracy": "utility",
}
"""Functions of ``plots.py`` in the order of reading, and the audit or table that each
shows: what the report does not have is not drawn."""

MARKERS = "os^DvPX<>ph*d8"
"""Matplotlib's markers in the order in which checkpoints take them."""

LIGHT = tuple("#595959 #cb8201 #1b6aa6 #c26cac #00552c #079dd5 #a53e02 #bc8757".split())
"""Series on white, grey first, for the reference: seaborn's "colorblind", moved until
each has a contrast of 3 to white (WCAG 2.2, 1.4.11), neighbours differ in lightness and
any two can be told apart with deuteranopia (Machado et al. 2009)."""

DARK = tuple("#b3b3b3 #f9b136 #4ea3de #bc8bba #86f3c1 #9bd3f5 #ec7c3a #ddb890".split())
"""The same series on a dark page, for ``--c0`` to ``--c7``."""

INK, MUTED, GRID, PAPER = "#222222", "#666666", "#d9d9d9", "#ffffff"
"""Colours of text and axes, of remarks and references, of grids, and of the ground."""

ALARM, WARN = "#9c1c1c", "#7a4b00"
"""Colours of what was found; both differ from ink in lightness, and signs go with
them."""

CHECKPOINT = "checkpoint:"
"""What the gid of an artist begins with that belongs to a checkpoint."""


def _matplotlib() -> None:
    """Import matplotlib with the settings that it brings.

    It reads a ``matplotlibrc`` of the working directory first, which may be somebody
    else's: LaTeX with a preamble, a backend to import. In its own folder that is its
    own file.
    """
    if "matplotlib" not in sys.modules:
        found = importlib.util.find_spec("matplotlib")
        folder = Path(str(found.origin)).parent / "mpl-data" if found else Path()
        with contextlib.suppress(FileNotFoundError), contextlib.chdir(folder):
            importlib.import_module("matplotlib")


@contextlib.contextmanager
def styled(**settings: Any) -> Iterator[None]:
    """Matplotlib's settings while a figure is drawn or written; global ones stay."""
    _matplotlib()
    import seaborn
    from matplotlib import style

    look = {
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "grid.color": GRID,
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 8,
        "axes.titlesize": 8.5,
        "axes.linewidth": 0.8,
        "axes.titlelocation": "left",
        "xtick.major.size": 3,
        "ytick.major.size": 3,
        "axes.formatter.useoffset": False,
        # Names may have dollar signs, and no label has a formula.
        "text.parse_math": False,
        "svg.hashsalt": "spark-audit",
        "pdf.fonttype": 42,
    }
    # Its own defaults first, whatever was read before we were called.
    ticks = seaborn.axes_style("ticks")
    with style.context(["default", ticks | look | settings]):
        yield


@dataclass(frozen=True)
class Drawing:
    """A figure with what must stand beside it.

    ``audit`` is an audit's name, ``manifest`` or ``training``; ``alt`` says in a
    sentence what the figure shows, for who cannot see it.
    """

    name: str
    audit: str
    title: str
    caption: str
    alt: str
    figure: Figure


Drawn: TypeAlias = Callable[[], Sequence[Drawing]]
"""Gives all drawings of a report, drawn when they are first asked for."""


def drawings(report: Report, *, only: Collection[str] = FIGURE_NEEDS) -> list[Drawing]:
    """The figures that a report has data for, in the order of reading.

    Parameters
    ----------
    only
        Names of the figures wanted.
    """
    drawn = []
    there = {"", *report.tables, *(row.audit for row in report.results)}
    with styled():
        for name, shown in FIGURE_NEEDS.items():
            if name not in only or shown not in there:
                continue
            draw = resolve_name(f"spark_audit.report.figures.plots:{name}")
            if (picture := draw(report)) is not None:
                drawing = picture.drawing(name, report)
                # Once is enough: the layout is the same in every format.
                drawing.figure.draw_without_rendering()
                drawing.figure.set_layout_engine("none")
                drawn.append(drawing)
    return drawn


def plot(report: Report, name: str) -> Axes:
    """Draw a figure; see :meth:`spark_audit.results.Report.plot`."""
    if name not in FIGURE_NEEDS:
        raise InputError(
            f"unknown figure {name!r}", fix=choose(name, list(FIGURE_NEEDS))
        )
    drawn = drawings(report, only=[name])
    if not drawn:
        raise InputError(f"the report holds nothing for the figure {name}")
    return drawn[0].figure.axes[0]


# --- files ----------------------------------------------------------------------------

DPI = 200
FIGURE_FORMATS = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "ModDate": None},
}
"""Formats of files, and what of each is left out: else no two would be alike."""
_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    ALARM: "alarm",
    WARN: "warn",
    **{colour: f"c{i}" for i, colour in enumerate(LIGHT)},
}
_COLOUR = re.compile("|".join(map(re.escape, _VARIABLES)), re.IGNORECASE)
_DEFINED = re.compile(r"<defs>(.*?)</defs>", re.DOTALL)
_UNSEEN = re.compile(r"<style.*?</style>|<metadata>.*?</metadata>", re.DOTALL)
_PLACED = re.compile(r'\b(?:d|x|y|width|height|transform|points)="[^"]*"')
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")


def rendered(drawing: Drawing, form: str, *, text: bool = False) -> bytes:
    """The bytes of a file; with ``text``, an SVG keeps its letters as text."""
    kind = {"svg.fonttype": "none"} if text else {}
    file = io.BytesIO()
    with styled(**kind):
        drawing.figure.savefig(
            file, format=form, dpi=DPI, metadata=FIGURE_FORMATS[form]
        )
    return file.getvalue()


def inline_svg(drawing: Drawing) -> Markup:
    """The figure as ``<svg>`` for a page, in the page's colours and font.

    Ink, grid, paper, muted text and series are ``var(--ink)``, ``var(--grid)``,
    ``var(--paper)``, ``var(--muted)`` and ``var(--c0)`` ... ``var(--c7)``. What belongs
    to a checkpoint has ``data-checkpoint``. Ids begin with the drawing's name.
    """
    name = drawing.name
    whole = rendered(drawing, "svg", text=True).decode()
    box = re.search(r'viewBox="[^"]*"', whole)
    body = _UNSEEN.sub("", whole[whole.index(">", whole.index("<svg")) + 1 :])
    # In one place: a part that the page hides takes no other's definitions along.
    shelf, body = "".join(_DEFINED.findall(body)), _DEFINED.sub("", body)
    body = f"<defs>{shelf}</defs>{body}"
    body = re.sub(r"<[^>]*>", lambda tag: _themed(tag[0], name), body)
    # Matplotlib sets these for every element of the page it stands in.
    style = "stroke-linejoin:round;stroke-linecap:butt"
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}-svg" {box and box[0]} '
        f'role="img" aria-labelledby="{name}-title {name}-desc" style="{style}">'
        f'<title id="{name}-title">{escape(drawing.title)}</title>'
        f'<desc id="{name}-desc">{escape(drawing.alt)}</desc>'
        + re.sub(r">\s+<", "><", body.strip())
    )


def _themed(tag: str, name: str) -> str:
    """A tag in the page's colours and font, with ids of the drawing's own.

    Hundredths of a point are half as many bytes.
    """
    tag = tag.replace(f'<g id="{CHECKPOINT}', '<g data-checkpoint="')
    tag = re.sub(r'<g id="[^"]*"', "<g", tag).replace("xlink:href", "href")
    tag = re.sub(r'(?<= )id="|url\(#|href="#', rf"\g<0>{name}-", tag)
    tag = re.sub(r"font-family:[^;\"]*", "font-family: inherit", tag)
    tag = _COLOUR.sub(lambda m: f"var(--{_VARIABLES[m[0].lower()]})", tag)
    short = partial(_LONG_NUMBER.sub, lambda m: f"{round(float(m[0]), 2):g}")
    return _PLACED.sub(lambda m: short(m[0]), tag)


RowT = TypeVar("RowT", bound=Row)


def rows_of(
    report: Report, audit: str, metric: str, *, of: str = "", group: str = "pooled"
) -> dict[str, Row]:
    """Checkpoint -> its row; one row an entry, with the widest interval there is."""
    chosen = chosen_of(report, report.results, audit, metric, of, group)
    return {name: row for (name, _), row in chosen.items()}


def chosen_of(
    report: Report, rows: Sequence[RowT], *wanted: str
) -> dict[tuple[str, str], RowT]:
    """(checkpoint, baseline) -> its row of an audit, metric, variant and group."""
    best: dict[tuple[str, str], tuple[tuple[bool, bool, float], RowT]] = {}
    for row in rows:
        if (row.audit, row.metric, row.of, row.group) == wanted:
            low, high = row.ends or (0.0, -1.0)
            both = row.over == "both" and high > low
            rank = row.value is not None, both, high - low
            key = row.checkpoint, getattr(row, "baseline", "")
            if key not in best or rank > best[key][0]:
                best[key] = rank, row
    places, names = palette(report) | {"": 0}, {name for name, _ in best}
    # Of a method that has a row of its own, its replicates' are left out.
    kept = [key for key in best if entry_of(key[0]) not in names - {key[0]}]
    kept.sort(key=lambda key: (places[key[0]], places[key[1]]))
    return {key: best[key][1] for key in kept}


def frame_of(
    report: Report, table: str, *columns: str, also: Sequence[str] = ()
) -> pd.DataFrame:
    """Records of a table that lack none of the columns, with the ``entry`` of each.

    They stand in the order of checkpoints; ``also`` are columns that may be missing.
    """
    needed = ["checkpoint", *columns]
    frame = pd.DataFrame(report.tables.get(table, []), columns=[*needed, *also])
    frame = frame.dropna(subset=needed)
    frame["entry"] = frame["checkpoint"].map(entry_of)
    places = palette(report)
    return frame.sort_values("checkpoint", key=lambda at: at.map(places), kind="stable")


def palette(report: Report) -> dict[str, int]:
    """The place of each checkpoint that a report tells of, the reference first.

    Its colour, marker and dashes are those of its place; replicates share that of their
    entry. From the ninth on, colours come again with another marker, from the
    fifteenth, markers with another colour. Stages of a series, of which nothing is told
    but in the series' own rows, have none.
    """
    names = [f.name for f in report.checkpoints if series_of(f.name) == f.name]
    names += [row.checkpoint for row in report.results]
    for row in report.contrasts:
        names += row.checkpoint, row.baseline
    for records in report.tables.values():
        names += [r["checkpoint"] for r in records if r.get("checkpoint")]
    places: dict[str, int] = {}
    entries: dict[str, int] = {}
    for name in sorted(dict.fromkeys(names), key=BASE.__ne__):
        place = entries.setdefault(entry_of(name), len(entries))
        places |= {name: place, entry_of(name): place}
    return places
