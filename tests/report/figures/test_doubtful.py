"""A figure from which nothing can be concluded is marked in every drawing."""

import pytest
from made_reports import figure, guard, made_report, said
from matplotlib.colors import to_hex

from spark_audit.report.figures.drawing import drawings
from spark_audit.report.figures.styling import CHECKPOINT, MUTED
from spark_audit.report.void_rows import with_states
from spark_audit.sentences import render


def colours(drawing, name):
    """Colours of the lines that belong to a checkpoint."""
    axes = drawing.figure.axes
    lines = [line for axis in axes for line in axis.lines]
    own_lines = [line for line in lines if line.get_gid() == CHECKPOINT + name]
    return {to_hex(line.get_color()) for line in own_lines}


@pytest.mark.parametrize("drawn", ["matched", "selectivity"])
@pytest.mark.parametrize("claim", ["confounded", "nothing_shown"])
def test_a_confounded_figure_is_grey_and_says_so(drawn, claim):
    """Another attack was tested, so that the state is no sign of it."""
    rows = [figure("a", "matched|memory", -0.2)]
    rows += [figure("a", f"matched|delta_sel|{of}", 0.2) for of in ("", "change")]
    rows.append(figure("a", "twins|exposure_mean", 1.0))
    test = {"p": 0.5, "family": "primary"} if claim == "nothing_shown" else {}
    findings = [
        said("matched", "a", claim, **test),
        said("twins", "a", "nothing_shown", p=0.6, family="primary"),
    ]
    report = made_report("base", "a", results=rows, findings=findings)
    assert [state.state for state in report.states] == ["NO LEAK FOUND"]

    (drawing,) = drawings(report, only=[drawn])
    texts = [text.get_text() for axis in drawing.figure.axes for text in axis.texts]
    is_marked = any("CONFOUNDED" in text for text in texts)
    assert is_marked == (claim == "confounded")
    assert (colours(drawing, "a") == {MUTED}) == (claim == "confounded")


DRAWN = ("selectivity", "twins", "canary", "extract", "noise", "rank")
"""Figures with a mark for each checkpoint; that of memory has none where the setup is
at fault."""


def markers_of(drawing, name):
    """Markers and colours of a checkpoint's points, without arrows and intervals."""
    markers = set()
    for axes in drawing.figure.axes:
        for line in axes.lines:
            is_own = line.get_gid() == CHECKPOINT + name
            if is_own and line.get_marker() not in ("None", "none", "<", ">"):
                markers.add((line.get_marker(), to_hex(line.get_color())))
    return markers


def voided(sound, name, audits):
    """Return a report in which a guard voids all rows of a checkpoint."""
    findings = [finding for finding in sound.findings if finding.checkpoint != name]
    findings += [said(audit, name, "not_tested", status="void") for audit in audits]
    results = []
    for row in sound.results:
        is_void = row.checkpoint == name and row.value is not None
        changed = row.model_copy(update={"status": "void"}) if is_void else row
        results.append(changed)
    broken = guard("broken_model", "it is broken", of=name)
    columns = {"results": results, "guards": [broken], "findings": findings}
    return with_states(sound.model_copy(update=columns))


@pytest.mark.parametrize("drawn", DRAWN)
def test_what_a_guard_voids_is_a_grey_cross(drawn_report, drawn):
    sound, _ = drawn_report(4)
    audits = ("matched", "canary", "twins", "mia", "extract", "series")
    report = voided(sound, "spark", audits)
    (drawing,) = drawings(report, only=[drawn])
    assert ("x", MUTED) in markers_of(drawing, "spark")
    sound_marks = markers_of(drawing, "sd-replay")
    assert sound_marks
    assert ("x", MUTED) not in sound_marks
    assert "VOID" in drawing.caption or drawn in ("canary", "extract")


@pytest.mark.parametrize("drawn", ["mia", "series"])
def test_a_void_panel_is_crossed_and_says_so(drawn_report, drawn):
    sound, _ = drawn_report(4)
    report = voided(sound, "spark", ("mia", "series"))
    (drawing,) = drawings(report, only=[drawn])
    for axes in drawing.figure.axes:
        crosses = [line for line in axes.lines if line.get_marker() == "x"]
        is_void = axes.get_gid() == f"{CHECKPOINT}spark"
        assert ("VOID" in axes.get_title(loc="left")) == is_void
        assert bool(crosses) == is_void


def test_a_void_stage_is_grey_and_not_framed(drawn_report):
    sound, _ = drawn_report(4)
    report = voided(sound, "er", ())
    (drawing,) = drawings(report, only=["stages"])
    axes = drawing.figure.axes[0]
    own_collections = [
        collection
        for collection in axes.collections
        if collection.get_gid() == f"{CHECKPOINT}er"
    ]
    colours_drawn = {
        to_hex(colour)
        for collection in own_collections
        for colour in collection.get_facecolors()
    }
    assert colours_drawn == {MUTED}
    assert len(own_collections) == 1


def all_void(sound):
    """Return a report in which nothing can be concluded of any checkpoint."""
    results = []
    for row in sound.results:
        status = row.status if row.value is None else "void"
        results.append(row.model_copy(update={"status": status}))
    findings = [
        finding.model_copy(update={"status": "void"}) for finding in sound.findings
    ]
    return sound.model_copy(update={"results": results, "findings": findings})


def legend_of(drawing):
    """Return the labels of a legend, without their line breaks."""
    (legend,) = drawing.figure.legends
    return {" ".join(text.get_text().split()) for text in legend.get_texts()}


@pytest.mark.parametrize("drawn", ["nll", "rank", "noise"])
def test_where_all_is_void_marks_lie_on_the_axis_beside_the_base(drawn_report, drawn):
    sound, _ = drawn_report(4)
    (drawing,) = drawings(all_void(sound), only=[drawn])
    markers = [line.get_marker() for axis in drawing.figure.axes for line in axis.lines]
    assert "x" in markers
    assert not {"<", ">"} & set(markers)


@pytest.mark.parametrize("drawn", ["stages", "rank", "noise", "series"])
def test_a_legend_names_only_looks_that_are_drawn(drawn_report, drawn):
    sound, _ = drawn_report(4)
    (of_sound,) = drawings(sound, only=[drawn])
    (of_void,) = drawings(all_void(sound), only=[drawn])
    doubt = render("figure.key.doubt")
    assert doubt not in legend_of(of_sound)
    assert doubt in legend_of(of_void)
    # Chance of a series is drawn in both.
    assert len(legend_of(of_void) & legend_of(of_sound)) == (drawn == "series")


def test_nothing_found_is_said_only_where_no_checkpoint_among_the_rest_leaks(
    drawn_report,
):
    sound, drawn = drawn_report(14, True)
    rest = render("figure.canary.rest")
    further = render("figure.canary.further")
    assert rest in legend_of(drawn["canary"])

    names = [checkpoint.name for checkpoint in sound.checkpoints]
    test = {"p": 0.0001, "family": "primary"}
    findings = [said("canary", name, "memory", **test) for name in names]
    leaking = sound.model_copy(update={"findings": findings})
    (drawing,) = drawings(leaking, only=["canary"])
    assert rest not in legend_of(drawing)
    assert further in legend_of(drawing)
