"""What is drawn is what the report says; nothing overlaps, is cut off, or is empty."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from drawn_texts import (
    is_on_canvas,
    laid_out,
    shown_texts_of,
    texts_of,
    texts_that_meet,
)
from made_reports import made_report
from matplotlib import pyplot

from spark_audit.report.figures.canvas import PANEL_WIDTH
from spark_audit.report.figures.drawing import FIGURE_NEEDS, drawings
from spark_audit.report.figures.figure_files import inline_svg, panel_boxes
from spark_audit.report.figures.styling import CHECKPOINT, DARK, LIGHT, MARKERS, palette
from spark_audit.report.figures.view import View
from spark_audit.results import Report

ALL = set(FIGURE_NEEDS)
SIZES = [(1, False), (14, True)]
SVG = "{http://www.w3.org/2000/svg}"


# ------------------------------------------------------------------ reading back


def entries(report: Report) -> list[str]:
    names = [facts.name.partition("[")[0] for facts in report.checkpoints]
    return list(dict.fromkeys(names))


# ------------------------------------------------------------------ what is shown


def test_a_full_report_has_every_figure_in_order(drawn_report):
    _, drawings_by_name = drawn_report(4)
    assert set(drawings_by_name) == ALL
    assert list(drawings_by_name) == list(FIGURE_NEEDS)
    for name, drawing in drawings_by_name.items():
        assert drawing.name == name
        assert drawing.alt.endswith(".")
        assert drawing.caption.endswith(".")
        assert "nan" not in drawing.alt + drawing.caption
        assert drawing.figure.get_figwidth() <= 2 * PANEL_WIDTH


def test_panels_fit_a_phone_with_letters_of_eleven_pixels(drawn_report):
    for count, long in SIZES:
        for name, drawing in drawn_report(count, long)[1].items():
            letters = min(text.get_fontsize() for text in texts_of(drawing.figure))
            for _, box in panel_boxes(drawing.figure):
                # A screen of 390 px has 350 beside the page's margins.
                zoom = min(1.5, 350 / box.width)
                assert letters * zoom >= 11, name


# ------------------------------------------------------------------ nothing to show


def test_without_its_table_a_figure_is_not_there(drawn_report):
    report, _ = drawn_report(4)
    needs = {
        "mia_roc": "mia",
        "canary_by_dose": "canary",
        "extract_prompts": "extract",
        "balance": "manifest",
        "stages_states": "stages",
        "series_stages": "series",
    }
    for table_name, figure in needs.items():
        for tables in (
            {k: v for k, v in report.tables.items() if k != table_name},
            report.tables | {table_name: []},
        ):
            bare = report.model_copy(update={"tables": tables})
            assert drawings(bare, only=[figure]) == []


def test_an_empty_report_and_one_with_nothing_estimable_have_no_figure(drawn_report):
    report, _ = drawn_report(4)
    empty = report.model_copy(update={"results": [], "contrasts": [], "tables": {}})
    assert drawings(empty) == []
    gone = {"value": None, "low": None, "high": None, "status": "not_estimable"}
    nothing = [
        row.model_copy(update=gone | {"note": "it is not"}) for row in report.results
    ]
    assert drawings(empty.model_copy(update={"results": nothing})) == []


def test_a_stage_that_one_way_of_sharing_has_no_figure_of_is_left_out(drawn_report):
    report, drawings_by_name = drawn_report(4)
    records = [dict(record) for record in report.tables["series_stages"]]
    records[-1] |= {"last_value": None, "last_low": None, "last_high": None}
    tables = report.tables | {"series_stages": records}
    (drawing,) = drawings(report.model_copy(update={"tables": tables}), only=["series"])

    def points(one):
        return sum(
            len(line.get_xdata()) for axes in one.figure.axes for line in axes.lines
        )

    # The point, and both ends of its interval.
    assert points(drawings_by_name["series"]) - points(drawing) == 3


@pytest.mark.parametrize(("count", "long"), SIZES)
def test_no_axis_is_empty(drawn_report, count, long):
    for drawing in drawn_report(count, long)[1].values():
        assert drawing.figure.axes
        for axes in drawing.figure.axes:
            assert axes.lines or axes.patches or axes.collections, drawing.name


# ------------------------------------------------------------------ quality


@pytest.mark.parametrize(("count", "long"), SIZES)
def test_texts_legends_and_panels_stay_on_the_canvas_and_apart(
    drawn_report, count, long
):
    for name, drawing in drawn_report(count, long)[1].items():
        figure = drawing.figure
        shown_texts = shown_texts_of(figure)
        assert shown_texts
        assert min(text.get_fontsize() for text in shown_texts) >= 8

        renderer = laid_out(figure)
        assert is_on_canvas(figure, renderer), name
        pairs = texts_that_meet(figure, renderer)
        assert not pairs, (name, pairs[:3])

        panels = [axes.get_tightbbox(renderer) for axes in figure.axes]
        legends = [legend.get_window_extent(renderer) for legend in figure.legends]
        for legend in legends:
            assert not any(legend.overlaps(panel) for panel in panels), name
            assert min(legend.x0, legend.y0) >= 0, name
            assert legend.x1 <= figure.bbox.width, name
        for axes in figure.axes:
            assert np.all(axes.get_window_extent(renderer).size > [60, 10]), name


def test_checkpoints_differ_without_colour(drawn_report):
    report, _ = drawn_report(14, True)
    view = View.of_report(report.model_copy(update={"findings": [], "results": []}))
    looks = {name: view.own_look(name) for name in palette(report)}
    assert list(looks) == entries(report)
    assert {look.marker for look in looks.values()} == set(MARKERS)
    assert len(MARKERS) == len(looks) == 14
    for colours in (LIGHT, DARK):
        assert len(set(colours)) == 8


def test_drawing_leaves_no_global_state():
    before = dict(matplotlib.rcParams)
    roc_point = {"fpr": 0.5, "tpr": 0.6, "chance_low": 0.4, "chance_high": 0.7}
    report = made_report(
        tables={"mia_roc": [{"checkpoint": "x", "variant": "loss"} | roc_point]}
    )
    (drawing,) = drawings(report)
    assert drawing.alt.endswith("above 0: x 0.600.")
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


# ------------------------------------------------------------------ for a page


def test_inline_svg_is_themable_and_its_parts_are_named(drawn_report):
    report, drawings_by_name = drawn_report(4)
    for name, drawing in drawings_by_name.items():
        text = inline_svg(drawing)
        root = ElementTree.fromstring(text)
        assert root.get("role") == "img"
        assert drawing.title in root.get("aria-label", "")
        assert drawing.alt in root.get("aria-label", "")
        shelf, *panels = root
        assert len(panels) == len(drawing.figure.axes) + len(drawing.figure.legends)
        for panel in panels:
            assert len(panel.get("viewBox", "").split()) == 4
            assert not {"width", "height"} & set(panel.attrib)
        assert shelf.get("class") == "shelf"
        tags = {element.tag for element in root.iter()}
        assert not tags & {"style", "image", "metadata"}
        ids = [e.get("id") for e in root.iter() if e.get("id")]
        assert len(ids) == len(set(ids))
        assert all(i.startswith(f"{name}-") for i in ids if i is not None)
        linked = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
        assert linked <= set(ids)
        assert not re.search(r"#[0-9a-fA-F]{6}\b|#[0-9a-fA-F]{3}\b(?![^<]*>)", text)
        assert "var(--ink)" in text
        assert "DejaVu" not in text
        assert "http:" not in text
        words = " ".join(t for e in root.iter("text") for t in e.itertext())
        assert words.strip()
        owners = {
            e.get("data-checkpoint") for e in root.iter() if e.get("data-checkpoint")
        }
        drawn = {
            str(artist.get_gid()).removeprefix(CHECKPOINT)
            for artist in drawing.figure.findobj(include_self=False)
            if str(artist.get_gid()).startswith(CHECKPOINT) and artist.get_visible()
        }
        assert owners == drawn
        assert owners <= set(entries(report))
        assert owners or name == "manifest"


def test_a_matplotlibrc_beside_the_data_is_not_read(tmp_path):
    # Whoever opens a FIFO waits for ever.
    os.mkfifo(tmp_path / "matplotlibrc")
    code = (
        "from spark_audit.report.figures.drawing import styled\n"
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
