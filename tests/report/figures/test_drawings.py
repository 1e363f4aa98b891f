"""What is drawn is what the report says; nothing overlaps, is cut off, or is empty."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from made_reports import made_report
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from spark_audit.report.figures import FIGURES
from spark_audit.report.figures.entries import palette
from spark_audit.report.figures.gallery import drawings
from spark_audit.report.figures.svg import inline_svg, picture
from spark_audit.report.figures.theme import (
    CHECKPOINT,
    DARK,
    GLYPHS,
    INK,
    LIGHT,
    MUTED,
    PAPER,
    Drawing,
)
from spark_audit.results import Report, Row

Made = Callable[..., tuple[Report, dict[str, Drawing]]]
ALL = {name.replace("-", "_") for name in FIGURES.names()}
SIZES = [(1, False), (8, False), (14, True)]
SVG = "{http://www.w3.org/2000/svg}"


# ------------------------------------------------------------------ reading back


def owned(axes: Axes, name: str) -> list[Line2D]:
    return [line for line in axes.lines if line.get_gid() == CHECKPOINT + name]


def marks(axes: Axes, name: str) -> list[tuple[float, float, Line2D]]:
    """Points drawn alone: x, y and the artist."""
    return [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]), line)
        for line in owned(axes, name)
        if len(line.get_xdata()) == 1
    ]


def bars(axes: Axes, name: str, *, along: str = "x") -> list[tuple[float, float]]:
    """Ends of the intervals along an axis."""
    found = []
    for line in owned(axes, name):
        x, y = (np.asarray(d, float) for d in (line.get_xdata(), line.get_ydata()))
        here, still = (x, y) if along == "x" else (y, x)
        if len(here) == 2 and still[0] == still[1]:
            found.append((float(here[0]), float(here[1])))
    return found


def row(
    report: Report, audit: str, metric: str, name: str, of: str = "", group: str = ""
) -> Row | None:
    """The row that must be shown of an entry: over both, if it has replicates."""
    for over in ("both", "sources"):
        for found in report.results:
            key = (found.audit, found.metric, found.of, found.checkpoint, found.over)
            if key == (audit, metric, of, name, over) and found.group == (
                group or "pooled"
            ):
                return found
    return None


def entries(report: Report) -> list[str]:
    names = [facts.name.partition("[")[0] for facts in report.checkpoints]
    return list(dict.fromkeys(names))


def table(report: Report, name: str, **equal: Any) -> list[dict[str, Any]]:
    return [
        record
        for record in report.tables[name]
        if all(record[key] == value for key, value in equal.items())
    ]


def close(one: Any, other: Any) -> bool:
    return np.shape(one) == np.shape(other) and bool(np.allclose(one, other))


def members(report: Report, name: str) -> list[str]:
    names = [facts.name for facts in report.checkpoints]
    return [n for n in names if n == name or n.startswith(f"{name}[")]


# ------------------------------------------------------------------ what is shown


def test_a_full_report_has_every_figure_in_order(made: Made) -> None:
    _, found = made(4)
    assert set(found) == ALL
    assert list(found)[:2] == ["balance", "selectivity"]
    for name, drawing in found.items():
        assert drawing.name == name
        assert drawing.alt.endswith(".")
        assert drawing.caption.endswith(".")
        assert "nan" not in drawing.alt + drawing.caption
        assert 3.0 <= drawing.figure.get_figwidth() <= 7.0


def test_forest_shows_change_itself_interval_and_what_regression_gives(
    made: Made,
) -> None:
    report, found = made(8)
    top, bottom = found["selectivity"].figure.axes[:2]
    for place, name in enumerate(entries(report)):
        change = row(report, "matched", "delta_sel", name, of="change")
        itself = row(report, "matched", "delta_sel", name)
        assert change is not None
        assert itself is not None
        wanted = [r.value for r in (change, itself) if r.value is not None]
        assert close(sorted(x for x, _, _ in marks(top, name)), sorted(wanted))
        ends = [(r.low, r.high) for r in (change, itself) if r.low is not None]
        assert close(sorted(bars(top, name)), sorted(ends))
        bands = [p for p in top.patches if p.get_gid() == CHECKPOINT + name]
        if change.value is None:
            assert not bands
        else:
            (band,) = bands
            mechanism = row(report, "matched", "rtm_bias", name, of="change")
            assert mechanism is not None
            ends = [band.get_x(), band.get_x() + band.get_width()]
            assert close(ends, [mechanism.low, mechanism.high])
            # Below the name, within its line.
            middle = band.get_y() + band.get_height() / 2
            assert place < middle < place + 0.5
        large = [line for _, _, line in marks(top, name) if line.get_markersize() > 5]
        for line in large:
            hollow = line.get_markerfacecolor() == PAPER
            assert hollow == (change.status != "ok")
    for contrast in report.contrasts:
        if contrast.metric == "did":
            name = contrast.checkpoint
            assert close([x for x, _, _ in marks(bottom, name)], [contrast.value])
            assert close(bars(bottom, name), [(contrast.low, contrast.high)])


def test_selectivity_fits_a_phone_at_the_size_of_the_pages_letters(made: Made) -> None:
    for count, long in SIZES[1:]:
        (drawing,) = drawings(made(count, long)[0], only=["selectivity"])
        # What the page makes of a figure's points: no wider than a screen of 390 px.
        assert picture(drawing).width <= 358
        letters = min(text.get_fontsize() for text in texts_of(drawing.figure))
        assert (
            letters * picture(drawing).width / (72 * drawing.figure.get_figwidth()) > 12
        )


def test_roc_curves_are_logarithmic_and_leave_out_rates_of_zero(made: Made) -> None:
    report, found = made(4)
    panels = found["roc"].figure.axes
    assert len(panels) == len(entries(report))
    for axes, name in zip(panels, entries(report), strict=True):
        assert axes.get_title(loc="left").startswith(f"{name}: \nloss, n 100")
        assert axes.get_xscale() == axes.get_yscale() == "log"
        curves = iter(owned(axes, name))
        # In grey what no finding rests on, in front what is named above the panel.
        for score in ("response", "mink10", "minkpp10", "zlib", "reference", "loss"):
            for member in members(report, name):
                curve = next(curves)
                points = table(report, "mia_roc", checkpoint=member, of=score)
                points = [r for r in points if r["tpr"] > 0]
                assert close(curve.get_xdata(), [r["fpr"] for r in points])
                assert close(curve.get_ydata(), [r["tpr"] for r in points])
                own = LIGHT[palette(report)[name][0]]
                assert curve.get_color() == (own if score == "loss" else MUTED)
        assert next(curves, None) is None


# ------------------------------------------------------------------ nothing to show


def test_without_its_table_a_figure_is_not_there(made: Made) -> None:
    report, _ = made(4)
    needs = {
        "balance": "balance",
        "mia_roc": "roc",
        "canary_by_dose": "exposure",
        "accuracy_matrix": "accuracy",
        "stages_states": "stages",
    }
    for table_name, figure in needs.items():
        for tables in (
            {k: v for k, v in report.tables.items() if k != table_name},
            report.tables | {table_name: []},
        ):
            bare = report.model_copy(update={"tables": tables})
            assert drawings(bare, only=[figure]) == []


def test_an_empty_report_and_one_with_nothing_estimable_have_no_figure(
    made: Made,
) -> None:
    report, _ = made(4)
    empty = report.model_copy(update={"results": [], "contrasts": [], "tables": {}})
    assert drawings(empty) == []
    gone = {"value": None, "low": None, "high": None, "status": "not_estimable"}
    nothing = [
        row.model_copy(update=gone | {"note": "it is not"}) for row in report.results
    ]
    assert drawings(empty.model_copy(update={"results": nothing})) == []


@pytest.mark.parametrize(("count", "long"), SIZES)
def test_no_axis_is_empty(made: Made, count: int, long: bool) -> None:
    for drawing in made(count, long)[1].values():
        assert drawing.figure.axes
        for axes in drawing.figure.axes:
            assert axes.lines or axes.patches, drawing.name


# ------------------------------------------------------------------ quality


def texts_of(figure: Figure) -> Iterator[Text]:
    """Every text that is drawn."""
    for legend in figure.legends:
        yield from legend.get_texts()
        yield legend.get_title()
    yield from figure.texts
    for axes in figure.axes:
        yield from (axes.title, axes._left_title, axes._right_title)  # type: ignore[attr-defined]
        yield from axes.texts
        for axis in (axes.xaxis, axes.yaxis):
            yield axis.label
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                if tick.label1.get_visible() and low <= tick.get_loc() <= high:
                    yield tick.label1


@pytest.mark.parametrize(("count", "long"), SIZES)
def test_texts_stay_on_the_canvas_and_apart(made: Made, count: int, long: bool) -> None:
    for name, drawing in made(count, long)[1].items():
        figure = drawing.figure
        renderer = FigureCanvasAgg(figure).get_renderer()
        shown = [
            t for t in texts_of(figure) if t.get_visible() and t.get_text().strip()
        ]
        assert shown
        assert min(t.get_fontsize() for t in shown) >= 8
        boxes = np.array([t.get_window_extent(renderer).extents for t in shown])
        width, height = figure.bbox.size
        low, high = boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)
        assert np.all(low >= 0), name
        assert np.all(high <= [width, height]), name
        # Slanted labels are apart although their boxes are not.
        slanted = np.array([t.get_rotation() % 90 != 0 for t in shown])
        x0, y0, x1, y1 = boxes.T
        across = np.minimum.outer(x1, x1) - np.maximum.outer(x0, x0)
        along = np.minimum.outer(y1, y1) - np.maximum.outer(y0, y0)
        meet = (across > 0.5) & (along > 0.5) & ~np.logical_and.outer(slanted, slanted)
        np.fill_diagonal(meet, False)
        pairs = [
            (shown[i].get_text(), shown[j].get_text()) for i, j in np.argwhere(meet)
        ]
        assert not pairs, (name, pairs[:3])


@pytest.mark.parametrize(("count", "long"), SIZES)
def test_legends_and_panels_stay_apart(made: Made, count: int, long: bool) -> None:
    for name, drawing in made(count, long)[1].items():
        figure = drawing.figure
        renderer = FigureCanvasAgg(figure).get_renderer()
        panels = [axes.get_tightbbox(renderer) for axes in figure.axes]
        legends = [legend.get_window_extent(renderer) for legend in figure.legends]
        for legend in legends:
            assert not any(legend.overlaps(panel) for panel in panels), name
            assert min(legend.x0, legend.y0) >= 0, name
            assert legend.x1 <= figure.bbox.width, name
        for axes in figure.axes:
            assert np.all(axes.get_window_extent(renderer).size > [70, 10]), name


XYZ = np.array(
    [
        [0.4124, 0.3576, 0.1805],
        [0.2126, 0.7152, 0.0722],
        [0.0193, 0.1192, 0.9505],
    ]
)
"""Of linear sRGB (IEC 61966-2-1)."""
DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)
"""Of linear sRGB; Machado, Oliveira, Fernandes 2009, severity 1."""


def linear(colour: str) -> np.ndarray:
    rgb = np.asarray(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """CIELAB of linear sRGB, white D65."""
    t = XYZ @ np.clip(light, 0, 1) / XYZ.sum(axis=1)
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def lightness(colour: str) -> float:
    return float(lab(linear(colour))[0])


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's ratio of two colours."""
    dark, light = sorted(float(XYZ[1] @ linear(colour)) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("colours", "ground"), [(LIGHT, PAPER), (DARK, "#15181b")])
def test_any_two_colours_differ_for_deuteranopes_and_all_stand_out_from_the_ground(
    colours: tuple[str, ...], ground: str
) -> None:
    for sight in (np.eye(3), DEUTERANOPIA):
        seen = [lab(sight @ linear(colour)) for colour in colours]
        apart = [
            float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)
        ]
        # A difference of 2.3 is just seen side by side.
        assert min(apart) > 15
    assert min(contrast(colour, ground) for colour in colours) >= 3
    if ground == PAPER:
        assert min(contrast(colour, ground) for colour in (INK, MUTED)) >= 4.5


def test_checkpoints_differ_without_colour(made: Made) -> None:
    report, _ = made(14, True)
    looks = palette(report)
    assert list(looks) == entries(report)
    assert len(set(looks.values())) == 14
    assert len({marker for _, marker in looks.values()}) == 14
    assert set(GLYPHS) == {marker for _, marker in looks.values()}
    for colours in (LIGHT, DARK):
        assert len(set(colours)) == 8
    steps = np.abs(np.diff([lightness(colour) for colour in LIGHT]))
    assert steps.min() > 12
    # On white and on a dark page every colour can be seen.
    assert max(map(lightness, LIGHT)) < 72
    assert min(map(lightness, DARK)) > 60


def test_drawing_leaves_no_global_state() -> None:
    before = dict(matplotlib.rcParams)
    report = made_report(tables={"balance": [{"covariate": "a", "smd_before": 1.0}]})
    (drawing,) = drawings(report)
    assert drawing.alt == (
        "Love plot of standardised mean differences before → after matching, where at "
        "most 0.1 counts as balanced; beyond 0.1: 1 of 1 before matching: a 1.00 → not "
        "estimable."
    )
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


def test_the_command_line_starts_without_matplotlib() -> None:
    code = (
        "import sys, spark_audit.cli.main, spark_audit.report.figures\n"
        "import spark_audit.report.writers\n"
        "from spark_audit.report.figures import FIGURES\n"
        "assert FIGURES.names() and FIGURES.summary('roc')\n"
        "assert not {'matplotlib', 'seaborn'} & set(sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


# ------------------------------------------------------------------ for a page


def test_inline_svg_is_themable_and_its_parts_are_named(made: Made) -> None:
    report, found = made(4)
    for name, drawing in found.items():
        text = inline_svg(drawing)
        root = ElementTree.fromstring(text)
        assert root.tag == f"{SVG}svg"
        assert root.get("role") == "img"
        assert root.get("viewBox", "").startswith("0 0 ")
        assert not {"width", "height"} & set(root.attrib)
        assert root[0].tag == f"{SVG}title"
        assert root[0].text == drawing.title
        assert root[1].tag == f"{SVG}desc"
        assert root[1].text == drawing.alt
        assert not list(root.iter(f"{SVG}style"))
        assert not list(root.iter(f"{SVG}image"))
        ids = [e.get("id") for e in root.iter() if e.get("id")]
        assert len(ids) == len(set(ids))
        assert all(i.startswith(f"{name}-") for i in ids if i is not None)
        linked = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
        assert linked <= set(ids)
        assert not re.search(r"#[0-9a-fA-F]{6}\b|#[0-9a-fA-F]{3}\b(?![^<]*>)", text)
        assert "var(--ink)" in text
        assert "DejaVu" not in text
        assert "http:" not in (text.replace("http://www.w3.org/", ""))
        words = " ".join(t for e in root.iter(f"{SVG}text") for t in e.itertext())
        assert words.strip()
        owners = {
            e.get("data-checkpoint") for e in root.iter() if e.get("data-checkpoint")
        }
        drawn = {
            str(artist.get_gid()).removeprefix(CHECKPOINT)
            for artist in drawing.figure.findobj(include_self=False)
            if str(artist.get_gid()).startswith(CHECKPOINT)
        }
        assert owners == drawn
        if name != "balance":
            assert owners <= set(entries(report))
            assert owners


def test_every_checkpoint_can_be_switched_off_with_its_label(made: Made) -> None:
    report, found = made(4)
    for name in ("selectivity", "exposure", "roc", "utility"):
        root = ElementTree.fromstring(inline_svg(found[name]))
        for entry in entries(report):
            mine = [e for e in root.iter() if e.get("data-checkpoint") == entry]
            said = {
                str(t.text).rstrip(": ") for e in mine for t in e.iter(f"{SVG}text")
            }
            assert entry in said, (name, entry)


def test_a_matplotlibrc_beside_the_data_is_not_read(tmp_path: Path) -> None:
    # Whoever opens a FIFO waits for ever.
    os.mkfifo(tmp_path / "matplotlibrc")
    code = (
        "from spark_audit.report.figures.theme import styled\n"
        "with styled():\n"
        "    import matplotlib, os\n"
        "assert matplotlib.matplotlib_fname() == 'matplotlibrc'\n"
        f"assert os.getcwd() == {str(tmp_path.resolve())!r}\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (run.returncode, run.stderr) == (0, "")
