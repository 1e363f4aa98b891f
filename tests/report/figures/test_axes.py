"""What is drawn is what the rows say, and every figure comes as axes by its name."""

import math

import numpy as np
import pytest
from made_reports import figure, made_report
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from spark_audit.errors import InputError
from spark_audit.report.disclosure.shared import rounded_for_owner
from spark_audit.report.figures.drawing import FIGURE_NEEDS, FORMER_NAMES, drawings
from spark_audit.report.figures.paper.drawing import PAPER_FIGURES
from spark_audit.report.figures.styling import ALARM, CHECKPOINT, INK


def points_of(axes, name):
    """Return (x, y) of the marks of a checkpoint, without arrows and intervals."""
    points = []
    for line in axes.lines:
        is_own = line.get_gid() == CHECKPOINT + name
        if is_own and line.get_marker() not in ("None", "none", "<", ">"):
            points += list(zip(line.get_xdata(), line.get_ydata(), strict=True))
    return points


def rows_of(report, audit, metric, of=""):
    """Return checkpoint -> pooled row over sources."""
    wanted = (audit, metric, of, "pooled", "sources")
    return {
        row.checkpoint: row
        for row in report.results
        if (row.audit, row.metric, row.variant, row.group, row.interval_over) == wanted
    }


@pytest.fixture(scope="module")
def rounded(drawn_report):
    """The report of four checkpoints, rounded as its plots are."""
    report, _ = drawn_report(4)
    return rounded_for_owner(report)


@pytest.mark.parametrize("name", [*FIGURE_NEEDS, *FORMER_NAMES])
def test_every_figure_can_be_plotted_by_its_name_and_its_former_one(
    drawn_report, rounded, name
):
    report, _ = drawn_report(4)
    plotted = report.plot(name)
    assert all(isinstance(axes, Axes) for axes in plotted.axes)
    present_name = FORMER_NAMES.get(name, name)
    (drawn,) = drawings(rounded, only=[present_name])
    titles = [panel.get_title(loc="left") for panel in drawn.figure.axes]
    assert [panel.get_title(loc="left") for panel in plotted.axes] == titles
    assert plotted.axes == plotted.figure.axes
    assert plotted.name == present_name


def test_the_list_of_plots_names_every_figure(drawn_report):
    report, drawings_by_name = drawn_report(4)
    of_pages = {*report.plots} - {*PAPER_FIGURES}
    assert of_pages == {*drawings_by_name} == {*FIGURE_NEEDS}


def test_a_figure_that_is_none_or_empty_is_said_in_a_line(drawn_report):
    report, _ = drawn_report(1)
    with pytest.raises(InputError, match="'mio'.*'mia'") as caught:
        report.plot("mio")
    assert "mia" in str(caught.value)
    empty = report.model_copy(update={"results": [], "tables": {}, "contrasts": []})
    with pytest.raises(InputError, match=r"\bmia\b"):
        empty.plot("roc")


def test_memory_is_drawn_turned_with_its_null_and_the_strongest_leak(drawn_report):
    report, drawings = drawn_report(14, True)
    axes = drawings["matched"].figure.axes[0]
    rows = rows_of(report, "matched", "memory")
    drawn = 0
    for name, row in rows.items():
        points = points_of(axes, name)
        if row.value is None:
            assert points == []
        elif points:
            ((x, _),) = points
            assert x == pytest.approx(-row.value)
            drawn += 1
    assert drawn > 5
    upright = {
        (round(line.get_xdata()[0], 9), to_hex(line.get_color()))
        for line in axes.lines
        if len(line.get_xdata()) == 2 and line.get_xdata()[0] == line.get_xdata()[1]
    }
    assert (0.0, INK) in upright
    texts = {text.get_text() for text in axes.texts}
    assert "no memory" in texts


def test_the_strongest_leak_is_a_line_through_all_rows(drawn_report):
    report, drawings = drawn_report(4)
    leaking = next(state.name for state in report.states if state.state == "LEAKS")
    axes = drawings["matched"].figure.axes[0]
    gain = -rows_of(report, "matched", "memory")[leaking].value
    lines = [line for line in axes.lines if to_hex(line.get_color()) == ALARM]
    full = [line for line in lines if list(line.get_ydata()) == [0, 1]]
    assert (gain > 0) == bool(full)
    for line in full:
        assert line.get_xdata()[0] == pytest.approx(gain)


def test_the_grey_band_ends_where_nothing_more_could_be_there(drawn_report):
    report, drawings = drawn_report(14, True)
    axes = drawings["matched"].figure.axes[0]
    rows = rows_of(report, "matched", "memory")
    bands = {
        str(patch.get_gid()).removeprefix(CHECKPOINT): patch.get_x() + patch.get_width()
        for patch in axes.patches
    }
    assert bands
    for name, end in bands.items():
        assert end == pytest.approx(-rows[name].at_most)


def test_ranks_of_canaries_are_what_their_exposures_mean(drawn_report):
    report, drawings = drawn_report(4)
    (axes, *_) = drawings["canary"].figure.axes
    own_records = [
        record
        for record in report.tables["canary_by_dose"]
        if (record["checkpoint"], record["part"]) == ("base", "full")
    ]
    ranks = sorted(2 ** (7.0 - record["exposure_mean"]) for record in own_records)
    drawn = sorted(y for _, y in points_of(axes, "base"))
    assert drawn == pytest.approx(ranks, rel=1e-5)
    assert axes.get_yscale() == "log"
    # Rank 1 stands on top.
    low, high = axes.get_ylim()
    assert low > 128 * 0.99 > 1 > high


def test_shares_that_came_out_are_counts_with_exact_intervals(drawn_report):
    report, drawings = drawn_report(4)
    axes = drawings["extract"].figure.axes[0]
    for record in report.tables["extract_prompts"]:
        if record["prompt"] != "full" or "[" in record["checkpoint"]:
            continue
        shares = sorted(x for x, _ in points_of(axes, record["checkpoint"]))
        assert shares == pytest.approx([0.0, record["found"] / 60])
    assert any(text.get_text().startswith("0 of 60") for text in axes.texts)


def test_cells_say_memory_in_per_cent_and_frame_what_is_remembered(drawn_report):
    report, drawings = drawn_report(4)
    axes = drawings["stages"].figure.axes[0]
    numbers = [text.get_text() for text in axes.texts]
    # A gain of one nat: 2.7 times as likely.
    assert f"×{math.exp(1.0):.2g}" in numbers
    frames = [
        path
        for collection in axes.collections
        if not len(collection.get_facecolors())
        for path in collection.get_paths()
    ]
    remembered = [
        record
        for record in report.tables["stages_states"]
        if record["state"] == "remembered"
    ]
    # One stage of one task has no value.
    missing = {record["checkpoint"] for record in remembered}
    assert 0 < len(frames) <= len(remembered)
    assert missing


def test_the_love_plot_shows_absolute_differences_and_its_limits(drawn_report):
    report, drawings = drawn_report(4)
    axes = drawings["manifest"].figure.axes[0]
    marks = sorted(
        line.get_xdata()[0]
        for line in axes.lines
        if line.get_marker() in ("o",) and len(line.get_xdata()) == 1
    )
    values = []
    for record in report.tables["balance"]:
        values += [abs(record["smd_before"]), abs(record["smd_after"])]
    inside = sorted(value for value in values if value <= axes.get_xlim()[1])
    assert marks == pytest.approx(inside)
    assert {text.get_text() for text in axes.texts} >= {"0.1", "0.25"}


def test_a_dumbbell_joins_the_base_with_each_checkpoint(drawn_report):
    report, drawings = drawn_report(4)
    axes = drawings["nll"].figure.axes[0]
    rows = rows_of(report, "nll", "nll", of="pii")
    joined = [line for line in axes.lines if to_hex(line.get_color()) == "#666666"]
    joined = [line for line in joined if len(line.get_xdata()) == 2]
    assert joined
    for line in joined:
        assert np.isclose(line.get_xdata()[0], rows["base"].value)


def test_each_of_four_top_ranks_has_a_marker_of_its_own():
    rows = []
    for side in ("pii_all", "control"):
        for rank in (1, 5, 10, 100):
            rows.append(figure("a", f"rank|top{rank}_rate|{side}", 0.5))
    (drawing,) = drawings(made_report("base", "a", results=rows), only=["rank"])
    for axes in drawing.figure.axes:
        markers = {line.get_marker() for line in axes.lines} - {"None", "none"}
        assert len(markers) == 4
