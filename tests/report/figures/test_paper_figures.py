"""The figures of the paper: they show the report's rows, and fit into a paper."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from drawn_texts import is_on_canvas, laid_out, shown_texts_of, texts_that_meet
from made_reports import checkpoint, figure, made_report
from matplotlib import pyplot
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from spark_audit.cli.main import run as command_line
from spark_audit.errors import InputError
from spark_audit.report.audit_report import AuditReport, read_report
from spark_audit.report.figures.figure_files import FIGURE_FORMATS
from spark_audit.report.figures.paper.drawing import (
    COLUMN_ENDING,
    PAPER_FIGURES,
    paper_figure,
)
from spark_audit.report.figures.paper.forests import (
    canary_rows,
    draw_canary,
    draw_top1,
    top1_rows,
    utility_rows,
)
from spark_audit.report.figures.paper.frames import system_rows
from spark_audit.report.figures.paper.left_out import MEASURES_OF_FIGURES
from spark_audit.report.figures.paper.likelihood import (
    draw_likelihood,
    likelihood_rows,
)
from spark_audit.report.figures.paper.noise import noise_rows
from spark_audit.report.figures.paper.sweep import draw_sweep, sweep_rows
from spark_audit.report.figures.paper.task_orders import draw_orders, orders_rows
from spark_audit.report.figures.paper.training_time import draw_time, time_rows
from spark_audit.report.figures.paper.widths import COLUMN_WIDTH, TEXT_WIDTH
from spark_audit.report.figures.styling import MUTED
from spark_audit.report.figures.view import View
from spark_audit.report.folder import what_is_not_written, write_report
from spark_audit.report.prepared import PreparedReport
from spark_audit.results import CheckpointFacts

PAPER = Path(__file__).parents[3] / "reports" / "paper"

# What fits the narrow width nearly always fits the wide one.
WIDTHS = [COLUMN_WIDTH, pytest.param(TEXT_WIDTH, marks=pytest.mark.slow)]

DEFAULTS = {"ptpc.alpha_ul": 2.0, "ptpc.steps": 200, "ptpc.ul": True, "seed": 0}


@pytest.fixture(scope="module")
def paper() -> AuditReport:
    """The figures that the paper prints, unrounded."""
    return read_report(PAPER)


def marks_of(axes: Any) -> list[tuple[float, float]]:
    """Return (x, y) of the marks of a panel that are drawn in full."""
    marks = []
    for line in axes.lines:
        # The ends of intervals are marks, too.
        if line.get_marker() not in ("None", "none", "|", "_"):
            marks += list(zip(line.get_xdata(), line.get_ydata(), strict=True))
    return [(x, y) for x, y in marks if np.isfinite(x) and np.isfinite(y)]


def intervals_of(axes: Any) -> list[tuple[float, float]]:
    """Return the ends of the horizontal intervals of a panel."""
    ends = []
    for collection in axes.collections:
        if isinstance(collection, LineCollection):
            for segment in collection.get_segments():
                ends.append((float(segment[0][0]), float(segment[1][0])))
    return ends


def trained(name: str, method: str = "spark", **changed: Any) -> CheckpointFacts:
    """A checkpoint of a run of 120 seconds, of ``er`` 50, with changed settings."""
    parts = [{"part": "task", "seconds": {"task": 50.0}}]
    if method != "er":
        seconds = {"task": 60.0, "replay": 30.0, "optimizer": 10.0}
        parts = [
            {"part": "task", "seconds": seconds},
            {"part": "priv", "seconds": {"correction": 20.0}},
        ]
    facts = {
        "method": method,
        "tasks": ["a", "b"],
        "settings": DEFAULTS | changed,
        "changed": list(changed),
        "parts": [*parts, {"part": "answers", "seconds": {"answers": 1000.0}}],
    }
    return checkpoint(name, training=facts)


def swept_report() -> AuditReport:
    """A report on runs that differ in one of two settings, or in their seed."""
    checkpoints = [
        trained("spark"),
        trained("ul-0", **{"ptpc.alpha_ul": 0.0}),
        trained("ul-3", **{"ptpc.alpha_ul": 3.0}),
        trained("steps-50", **{"ptpc.steps": 50}),
        trained("other-seed", seed=7),
        trained("er", method="er"),
    ]
    rows = []
    for place, facts in enumerate(checkpoints):
        rows.append(figure(facts.name, "utility|last", 0.1 * place))
        rows.append(figure(facts.name, "nll|nll|pii", 1.0 + place, unit="nats"))
    return made_report(checkpoints=checkpoints, results=rows)


def frames(report: AuditReport) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The frames of its results and of its checkpoints."""
    return report.to_frame(), report.to_frame("checkpoints")


# ------------------------------------------------------------------ what is shown


def test_top1_shows_the_papers_table_with_its_intervals(paper):
    drawn = draw_top1(paper.to_frame())
    assert drawn is not None
    (axes,) = drawn.axes
    # tab:pii_rank_full of the paper.
    expected = {
        "base": (47.13, 39.93, 53.36),
        "er": (41.00, 34.58, 46.46),
        "pecl": (40.23, 32.84, 46.78),
        "spark": (23.75, 16.06, 31.51),
        "sd-replay": (44.44, 37.29, 50.74),
        "spark-no-ul": (45.21, 38.19, 51.75),
        "spark-no-dkl": (1.53, 0.00, 3.75),
        "er-ptpc": (37.55, 31.20, 42.57),
    }
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert set(names) == set(expected)
    assert {names[round(y)]: x for x, y in marks_of(axes)} == pytest.approx(
        {name: value for name, (value, _, _) in expected.items()}
    )
    expected_ends = sorted((low, high) for _, low, high in expected.values())
    assert np.array(sorted(intervals_of(axes))) == pytest.approx(
        np.array(expected_ends)
    )


def test_the_base_is_the_first_line(paper):
    assert top1_rows(paper.to_frame())["system"].iloc[0] == "base"


def test_likelihoods_have_a_panel_for_each_base_model(paper):
    rows = likelihood_rows(paper.to_frame(), paper.to_frame("checkpoints"))
    by_system = rows.set_index("system")
    # tab:ptpc_internal_ablation and tab:qwen of the paper.
    assert by_system.loc["spark", ["value", "value_low"]].tolist() == [4.2028, 2.9031]
    assert by_system.loc["spark-qwen", ["value", "value_low"]].tolist() == [
        4.5651,
        2.0303,
    ]
    assert by_system.loc["spark", "base"] != by_system.loc["spark-qwen", "base"]
    drawn = draw_likelihood(paper.to_frame(), paper.to_frame("checkpoints"))
    assert drawn is not None
    assert len(drawn.axes) == rows["base"].nunique() == 2

    points = []
    for axes in drawn.axes:
        for collection in axes.collections:
            points += collection.get_offsets().tolist()
    expected = rows[["value_low", "value"]].to_numpy().tolist()
    assert sorted(points) == pytest.approx(np.array(sorted(expected)))


def test_systems_of_other_orders_stand_in_their_own_figure_alone(paper):
    results = paper.to_frame()
    rows = orders_rows(results)
    assert set(rows["system"]) == {"er", "pecl", "er-dpsgd", "spark"}
    assert set(rows["order"]) == {"1", "2", "3"}
    at = rows.set_index(["panel", "system", "order"])["value"]
    # tab:reorder_full of the paper.
    assert at["last", "spark", "2"] == 0.819
    assert at["bwt", "pecl", "3"] == -0.145
    assert at["canary", "er", "3"] == 3.665
    for other_rows in (utility_rows(results), likelihood_rows(results)):
        assert not other_rows["system"].str.contains("-order").any()


def test_reports_of_several_orders_are_put_together_by_a_column(paper):
    results = paper.to_frame()
    by_name = orders_rows(results)
    frames = []
    for order in ("1", "2", "3"):
        ending = "" if order == "1" else f"-order-{order}"
        names = [f"{name}{ending}" for name in ("er", "pecl", "er-dpsgd", "spark")]
        frame = results[results["checkpoint"].isin(names)]
        plain_names = (
            frame["checkpoint"].str.removesuffix(ending)
            if ending
            else frame["checkpoint"]
        )
        frames.append(frame.assign(checkpoint=plain_names, order=order))
    by_column = orders_rows(pd.concat(frames))
    places = ["panel", "system", "order"]
    left = by_name.sort_values(places)[[*places, "value"]].reset_index(drop=True)
    right = by_column.sort_values(places)[[*places, "value"]].reset_index(drop=True)
    pd.testing.assert_frame_equal(left, right)


@pytest.mark.parametrize("name", ["orders.pdf", "orders-column.png"])
def test_reports_of_several_orders_are_drawn_as_one_figure(tmp_path, name):
    folders = []
    for order in ("1", "2"):
        rows = [figure("er", "utility|last", 0.5), figure("base", "utility|last", 0.5)]
        report = made_report(
            "er", "base", results=rows, settings={"utility.order": order}
        )
        folder = tmp_path / f"order-{order}"
        write_report(report, folder, formats=["json"])
        folders.append(str(folder))

    output = tmp_path / name
    first, *others = folders
    call = ["report", first, "--beside", *others, "-o", str(output)]
    assert command_line(call) == 0
    assert output.read_bytes()[1:4] in (b"PDF", b"PNG")
    assert {path.name for path in (tmp_path / "order-1").iterdir()} == {"report.json"}


def test_reports_without_a_common_system_are_refused(tmp_path, capsys):
    folders = []
    for name in ("er", "spark"):
        report = made_report(name, results=[figure(name, "utility|last", 0.5)])
        write_report(report, tmp_path / name, formats=["json"])
        folders.append(str(tmp_path / name))
    output = tmp_path / "orders.svg"
    assert (
        command_line(["report", folders[0], "--beside", folders[1], "-o", str(output)])
        == 2
    )
    assert "--beside" in capsys.readouterr().err
    assert not output.exists()


def test_one_order_alone_is_no_figure(paper):
    results = paper.to_frame()
    first_order = results[~results["checkpoint"].str.contains("-order-")]
    assert orders_rows(first_order).empty
    assert draw_orders(first_order) is None


def test_canaries_and_noise_show_the_papers_tables(paper):
    rows = canary_rows(paper.to_frame()).set_index(["panel", "system"])
    assert rows.loc[("ssn", "spark"), ["value", "low", "high"]].tolist() == [
        3.6541,
        3.6311,
        3.678,
    ]
    noise = noise_rows(paper.to_frame()).set_index(["metric", "sigma"])["value"]
    assert noise.to_dict() == {
        ("dp_pii", 0.01): -4.01,
        ("dp_pii", 0.05): -96.27,
        ("dp_pii", 0.1): -99.64,
        ("dp_pii", 0.5): -99.66,
        ("dp_nonpii", 0.01): -3.72,
        ("dp_nonpii", 0.05): -86.06,
        ("dp_nonpii", 0.1): -99.65,
        ("dp_nonpii", 0.5): -99.74,
    }


def test_a_sweep_joins_runs_that_differ_in_one_setting():
    rows = sweep_rows(*frames(swept_report()))
    shown = {
        (record["setting"], record["measure"]): (record["at"], record["system"])
        for record in rows.to_dict("records")
        if not record["is_default"]
    }
    assert set(shown) == {
        (setting, measure)
        for setting in ("ptpc.alpha_ul", "ptpc.steps")
        for measure in ("last", "pii")
    }
    weights = rows.query("setting == 'ptpc.alpha_ul' and measure == 'pii'")
    assert weights["at"].tolist() == [0.0, 2.0, 2.0, 3.0]
    assert weights["system"].tolist()[0] == "ul-0"
    assert weights["value"].tolist()[0] == 2.0
    # Seeds are luck, and a method of another name has no such setting swept.
    assert "er" not in set(rows["system"])
    assert set(rows.loc[rows["is_default"], "at"]) == {2.0, 200.0}
    # A run with nothing changed has all defaults, one that does not say has none.
    assert "spark" in set(rows.loc[rows["is_default"], "system"])


def test_a_record_that_does_not_say_its_defaults_marks_none():
    report = swept_report()
    checkpoints = [
        facts.model_copy(
            update={"training": facts.training.model_copy(update={"changed": None})}
        )
        for facts in report.checkpoints
    ]
    unsaid = made_report(checkpoints=checkpoints, results=report.results)
    assert not sweep_rows(*frames(unsaid))["is_default"].any()


def test_a_sweep_has_a_panel_for_each_setting_and_measure():
    results, checkpoints = frames(swept_report())
    for width in (TEXT_WIDTH, COLUMN_WIDTH):
        drawn = draw_sweep(results, checkpoints, width=width)
        assert drawn is not None
        assert len(drawn.axes) == 4
        labels = {axes.get_xlabel() for axes in drawn.axes}
        assert labels == {"ptpc.alpha_ul", "ptpc.steps"}


def default_marks_of(axes: Any) -> list[tuple[float, float]]:
    """Return the marks of default values, which stand on the horizontal axis."""
    marks = []
    for line in axes.lines:
        if line.get_transform() == axes.get_xaxis_transform():
            marks += list(zip(line.get_xdata(), line.get_ydata(), strict=True))
    return marks


def test_the_default_of_a_sweep_is_marked_on_the_axis_and_in_the_legend():
    drawn = draw_sweep(*frames(swept_report()))
    assert drawn is not None
    assert len(drawn.legends) == 1
    for axes in drawn.axes:
        default = DEFAULTS[axes.get_xlabel()]
        # No line of reference goes through the interval of the default's run.
        assert default_marks_of(axes) == [(default, 0.0)]


def test_runs_of_one_setting_are_no_sweep():
    results, checkpoints = frames(swept_report())
    same = checkpoints[checkpoints["name"].isin(["spark", "other-seed", "er"])]
    assert sweep_rows(results, same).empty
    assert draw_sweep(results, same) is None


def test_time_is_told_by_part_without_the_answers():
    runs = [trained("er", method="er"), trained("spark[1]"), trained("spark[2]")]
    checkpoints = made_report(checkpoints=runs).to_frame("checkpoints")
    rows = time_rows(checkpoints).set_index(["system", "part"])["seconds"]
    assert rows.to_dict() == {
        ("er", "learning"): 50.0,
        ("er", "replay"): 0.0,
        ("er", "correction"): 0.0,
        ("spark", "learning"): 70.0,
        ("spark", "replay"): 30.0,
        ("spark", "correction"): 20.0,
    }
    drawn = draw_time(checkpoints)
    assert drawn is not None
    (axes,) = drawn.axes
    # The longest bar is two minutes long, in minutes. The parts end where the next
    # ones begin.
    ends = {round(60 * patch.get_width(), 6) for patch in axes.patches}
    assert ends == {50.0, 70.0, 100.0, 120.0}
    assert any("2.40" in text.get_text() for text in axes.texts)


def test_the_papers_time_is_a_fifth_more_than_that_of_er(paper):
    rows = time_rows(paper.to_frame("checkpoints"))
    seconds = rows.groupby("system")["seconds"].sum()
    assert seconds["spark"] / 60 == pytest.approx(200, abs=0.01)
    assert seconds["spark"] / seconds["er"] == pytest.approx(1.203, abs=1e-4)
    correction = rows.set_index(["system", "part"])["seconds"]["spark", "correction"]
    assert correction / 60 == pytest.approx(7.98)
    assert correction / seconds["spark"] == pytest.approx(0.040, abs=0.0005)


def test_a_report_of_no_run_has_no_time():
    checkpoints = made_report("x").to_frame("checkpoints")
    assert time_rows(checkpoints).empty
    assert draw_time(checkpoints) is None


# ------------------------------------------------------------------ which rows


def test_a_method_stands_for_its_seeds_and_a_stage_is_left_out():
    rows = [
        figure("m[1]", "nll|nll|pii", 1.0),
        figure("m[2]", "nll|nll|pii", 3.0),
        figure("m", "nll|nll|pii", 2.0, interval_over="sources"),
        figure("m", "nll|nll|pii", 2.0, interval_over="both", low=0.0, high=9.0),
        figure("s@1", "nll|nll|pii", 7.0),
        figure("base", "nll|nll|pii", 5.0),
    ]
    tidy = system_rows(
        made_report(results=rows).to_frame(), audit="nll", metric="nll", variant="pii"
    )
    assert tidy[["system", "value", "high"]].to_numpy().tolist() == [
        ["base", 5.0, 5.25],
        ["m", 2.0, 9.0],
    ]


def test_what_is_void_is_hollow_and_grey():
    rows = [
        figure("fine", "rank|top1_rate|pii", 0.5),
        figure("void", "rank|top1_rate|pii", 0.9, status="invalid"),
    ]
    drawn = draw_top1(made_report(results=rows).to_frame())
    assert drawn is not None
    (axes,) = drawn.axes
    hollow = [
        line
        for line in axes.lines
        if line.get_color() == MUTED and line.get_marker() == "o"
    ]
    assert [list(line.get_xdata()) for line in hollow] == [[90.0]]
    assert len(drawn.legends) == 1


def test_a_report_of_void_figures_alone_is_drawn_hollow():
    report = swept_report()
    void_rows = [
        figure(name, place, 0.5, status="invalid")
        for name in ("spark", "spark-order-2", "ul-0", "ul-3")
        for place in ("utility|last", "nll|nll|pii", "nll|nll|low", "noise|dp_pii|0.1")
    ]
    void = made_report(checkpoints=report.checkpoints, results=void_rows)
    drawn_names = set()
    for name in PAPER_FIGURES.keys() - {"paper-time"}:
        drawn = paper_figure(PreparedReport(void), name, COLUMN_WIDTH)
        if drawn is not None:
            drawn_names.add(name)
            for axes in drawn.axes:
                colours = {
                    line.get_color() for line in axes.lines if len(marks_of(axes))
                }
                assert MUTED in colours
    assert drawn_names == {
        *("paper-utility", "paper-likelihood", "paper-orders"),
        *("paper-sweep", "paper-noise"),
    }


@pytest.mark.parametrize("name", [*PAPER_FIGURES])
def test_numbers_that_no_axis_has_are_cut(name):
    settings = {"ptpc.alpha_ul": 1e300, "ptpc.lr": -1e300}
    checkpoints = [trained("$x$", **settings), trained("y\n", **{"ptpc.alpha_ul": 1.0})]
    rows = [
        figure(facts.name, f"{place}|{variant}", 1e300 * sign, low=-1e305, high=1e305)
        for facts, sign in zip(checkpoints, (-1, 1), strict=True)
        for place, variant in (
            *(("utility|last", ""), ("utility|bwt", ""), ("matched|delta_sel", "")),
            *(("nll|nll", "pii"), ("nll|nll", "low"), ("rank|top1_rate", "pii")),
            *(
                ("canary|nll", "full"),
                ("noise|dp_pii", "wide"),
                ("noise|dp_pii", "nan"),
            ),
            *(("noise|dp_pii", "1e308"), ("noise|dp_nonpii", "0.1")),
        )
    ]
    report = made_report(checkpoints=checkpoints, results=rows)
    drawn = paper_figure(PreparedReport(report), name, COLUMN_WIDTH)
    assert (drawn is None) == (name in ("paper-orders", "paper-sweep"))


# ------------------------------------------------------------------ for a paper


def is_fit_for_a_paper(drawn: Figure, width: float) -> bool:
    """Whether all is on the canvas and apart, in letters as large as a caption's."""
    assert drawn.get_figwidth() == width
    assert min(text.get_fontsize() for text in shown_texts_of(drawn)) >= 8
    renderer = laid_out(drawn)
    assert texts_that_meet(drawn, renderer) == []
    return is_on_canvas(drawn, renderer)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["paper-likelihood", "paper-utility", "paper-noise"])
def test_figures_with_long_names_fit_a_column_and_a_text(drawn_report, name, width):
    # Noise has a panel for each checkpoint, so that few of them will do.
    count = 4 if name == "paper-noise" else 14
    report, _ = drawn_report(count, True)
    drawn = paper_figure(PreparedReport(report), name, width)
    assert drawn is not None
    assert is_fit_for_a_paper(drawn.figure, width)
    assert "nan" not in drawn.alt


@pytest.mark.parametrize("width", WIDTHS)
def test_orders_and_canaries_of_the_paper_fit_a_column_and_a_text(paper, width):
    for draw in (draw_orders, draw_canary):
        drawn = draw(paper.to_frame(), width=width)
        assert drawn is not None
        assert is_fit_for_a_paper(drawn, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_figures_of_runs_fit_a_column_and_a_text(width):
    results, checkpoints = frames(swept_report())
    for drawn in (
        draw_sweep(results, checkpoints, width=width),
        draw_time(checkpoints, width=width),
    ):
        assert drawn is not None
        assert is_fit_for_a_paper(drawn, width)


def looks_in_legend(drawn: Figure) -> dict[str, tuple[str, str]]:
    """Return the colour and the marker of each name in the legend."""
    (legend,) = drawn.legends
    looks = {}
    for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
        looks[text.get_text()] = (handle.get_color(), handle.get_marker())
    return looks


def test_a_name_has_one_colour_and_one_mark_in_all_figures_of_a_report():
    names = ["base", "first", "er", "spark", "er-order-2", "spark-order-2"]
    rows = []
    for name in names:
        rows += [figure(name, f"nll|nll|{part}", 1.0) for part in ("pii", "low")]
    # The names of figures begin later in the report, or in another order.
    report = made_report("spark", *names, results=rows[::-1])
    view = View.of_report(report)
    drawn_looks = []
    for name in ("paper-likelihood", "paper-orders"):
        looks = looks_in_legend(report.plot(name).figure)
        for system, look in looks.items():
            own_look = view.own_look(system)
            assert look == (own_look.colour, own_look.marker)
        drawn_looks.append(looks)
    likelihood, orders = drawn_looks
    assert set(orders) == {"er", "spark"} < set(likelihood)

    # Frames alone, too, give a name one look in both figures.
    results = report.to_frame()
    for drawn in (draw_likelihood(results), draw_orders(results)):
        assert drawn is not None
        looks = looks_in_legend(drawn)
        drawn_looks.append({name: looks[name] for name in ("er", "spark")})
    assert drawn_looks[-1] == drawn_looks[-2]


def labels_of_ticks(axes: Any) -> list[str]:
    """Return the labels of the ticks within a horizontal axis; none may be hidden."""
    left, right = axes.get_xlim()
    # Labels that are hidden are not among those of an axis.
    pairs = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    return [label.get_text() for tick, label in pairs if left <= tick <= right]


@pytest.mark.parametrize("width", [COLUMN_WIDTH, TEXT_WIDTH])
def test_every_tick_has_its_label_and_a_wide_panel_has_three(width):
    sigmas = ["0.01", "0.05", "0.1", "0.5"]
    rows = []
    for place, name in enumerate("abcdef"):
        rows += [figure(name, f"noise|dp_pii|{sigma}", -9.0) for sigma in sigmas]
        for metric, share in (("last", 0.45), ("avg", 0.4), ("bwt", -0.05)):
            value = share + 0.1 * place
            rows.append(figure(name, f"utility|{metric}", value, low=value, high=value))
    report = made_report(results=rows)
    for axes in report.plot("paper-noise", width=width).figure.axes:
        assert labels_of_ticks(axes) == sigmas
    for axes in report.plot("paper-utility", width=width).figure.axes:
        assert len(labels_of_ticks(axes)) >= (3 if width == TEXT_WIDTH else 2)


def test_close_values_of_a_sweep_all_have_labels():
    rates = [0.0005, 0.0007, 0.001, 0.004]
    checkpoints = [trained(f"r{rate}", lr=rate) for rate in rates]
    rows = [figure(facts.name, "utility|last", 0.5) for facts in checkpoints]
    report = made_report(checkpoints=checkpoints, results=rows)
    (axes,) = report.plot("paper-sweep").figure.axes
    assert labels_of_ticks(axes) == [f"{rate:g}" for rate in rates]


def test_drawing_leaves_no_global_state(paper):
    before = dict(matplotlib.rcParams)
    paper.plot("paper-orders")
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


# ------------------------------------------------------------------ files and names


def test_files_come_in_two_widths_and_are_the_same_every_time(tmp_path):
    report = made_report(results=[figure("x", "rank|top1_rate|pii", 0.5)])
    for folder in ("a", "b"):
        paths = write_report(report, tmp_path / folder, formats=["figures"])
        assert {path.name for path in paths if path.name.startswith("paper-")} == {
            f"paper-top1{ending}.{form}"
            for ending in ("", COLUMN_ENDING)
            for form in FIGURE_FORMATS
        }
    for path in (tmp_path / "a" / "figures").iterdir():
        assert (
            path.read_bytes() == (tmp_path / "b" / "figures" / path.name).read_bytes()
        )


def test_each_figure_that_is_not_drawn_is_named_with_what_it_needs():
    report = made_report(results=[figure("x", "rank|top1_rate|pii", 0.5)])
    lines = what_is_not_written(report, ["figures"])
    assert [line.split()[0] for line in lines] == [
        name for name in PAPER_FIGURES if name != "paper-top1"
    ]
    assert what_is_not_written(report, ["html"]) == []


def test_the_command_names_what_is_not_written(tmp_path, capsys):
    report = made_report(results=[figure("x", "rank|top1_rate|pii", 0.5)])
    write_report(report, tmp_path, formats=["json"])
    assert command_line(["report", str(tmp_path), "--format", "figures"]) == 0
    output = capsys.readouterr()
    names = [line.split()[0] for line in output.err.splitlines()]
    assert set(names) == PAPER_FIGURES.keys() - {"paper-top1"}
    assert all((tmp_path / path).exists() for path in output.out.split())


def test_withheld_figures_are_named_as_such():
    few = figure("x", "rank|top1_rate|pii", 0.5, clusters=2)
    report = made_report(results=[few])
    missing = what_is_not_written(made_report(), ["figures"])
    withheld = what_is_not_written(report, ["figures"])
    (line,) = set(withheld) - set(missing)
    assert line.startswith("paper-top1 ")


def two_orders_and_a_sweep() -> list[CheckpointFacts]:
    """Checkpoints of which there are several task orders, and a sweep."""
    names = ("spark", "spark-order-2")
    return [trained("ul-0", **{"ptpc.alpha_ul": 0.0}), *map(trained, names)]


def lines_by_figure(report: AuditReport) -> dict[str, list[str]]:
    """The lines on what is not written, by the figure that they begin with."""
    lines: dict[str, list[str]] = {}
    for line in what_is_not_written(report, ["figures"]):
        lines.setdefault(line.split()[0], []).append(line)
    return lines


@pytest.mark.parametrize("name", [*MEASURES_OF_FIGURES])
def test_what_could_not_be_estimated_is_not_said_to_be_missing(name):
    checkpoints = two_orders_and_a_sweep()
    rows = [
        figure(facts.name, "|".join((*measure[:2], variant)), None, note="too little")
        for facts in checkpoints
        for measure in MEASURES_OF_FIGURES[name].values()
        for variant in measure.variants or ["0.1"]
    ]
    without_rows = lines_by_figure(made_report(checkpoints=checkpoints))
    report = made_report(checkpoints=checkpoints, results=rows)
    (line,) = lines_by_figure(report)[name]
    assert line not in without_rows[name]
    assert "too little" in line
    with pytest.raises(InputError, match="too little"):
        report.plot(name)


def test_a_figure_of_two_axes_names_what_the_missing_axis_lacks():
    rows = [
        figure("er", "nll|nll|pii", 1.0),
        figure("er", "nll|nll|low", None, note="too little"),
    ]
    (line,) = lines_by_figure(made_report(results=rows))["paper-likelihood"]
    assert "too little" in line


def test_audits_of_stages_alone_and_runs_without_times_are_not_missing():
    untimed = trained("er@1")
    untimed = untimed.model_copy(
        update={"training": untimed.training.model_copy(update={"parts": []})}
    )
    rows = [figure("er@1", "utility|last", 0.5)]
    report = made_report(checkpoints=[untimed], results=rows)
    without_any = lines_by_figure(made_report())
    for name in ("paper-utility", "paper-time"):
        assert lines_by_figure(report)[name] != without_any[name]


def test_a_panel_and_a_system_that_are_withheld_are_named():
    report = swept_report()
    few = [
        row.model_copy(update={"clusters": 2}) if row.audit == "nll" else row
        for row in report.results
    ]
    few.append(figure("fine", "rank|top1_rate|pii", 0.5))
    few.append(figure("alone", "rank|top1_rate|pii", 0.5, clusters=2))
    lines = lines_by_figure(made_report(checkpoints=report.checkpoints, results=few))
    # The sweep has no panel of likelihoods, and another figure a system less.
    assert len(lines["paper-sweep"]) == 1
    (line,) = lines["paper-top1"]
    assert "alone" in line
    assert "fine" not in line
    assert "paper-sweep" not in lines_by_figure(report)


def test_a_panel_without_a_value_is_named_with_the_reason():
    rows = [
        figure("er", "utility|last", 0.5),
        figure("er", "utility|bwt", None, note="one task"),
    ]
    (line,) = lines_by_figure(made_report(results=rows))["paper-utility"]
    assert "one task" in line


def test_a_figure_is_plotted_by_its_name_in_a_width(paper):
    plots = paper.plots
    assert {"paper-top1", "paper-orders"} < set(plots)
    assert "paper-sweep" not in plots
    assert paper.plot("paper-time").figure.get_figwidth() == TEXT_WIDTH
    narrow = paper.plot("paper-time", width=3.5)
    assert narrow.figure.get_figwidth() == 3.5
    assert narrow.title == plots["paper-time"]


@pytest.mark.parametrize(
    ("name", "width", "message"),
    [
        ("paper-top1", 12.0, "^width: "),
        ("matched", 3.3, "^width: .*matched"),
        ("paper-sweep", None, "paper-sweep"),
        ("paper-top2", None, "'paper-top2'.*'paper-top1'"),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_refused_in_a_line(
    paper, name, width, message
):
    with pytest.raises(InputError, match=message) as caught:
        paper.plot(name, width=width)
    assert "\n" not in str(caught.value)
