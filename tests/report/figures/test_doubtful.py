"""A figure from which nothing can be concluded is marked in every drawing."""

import pytest
from made_reports import figure, guard, made_report, said
from matplotlib.colors import to_hex

from spark_audit.report.figures.drawing import drawings
from spark_audit.report.figures.styling import CHECKPOINT, MUTED
from spark_audit.report.void_rows import with_states


def colours(drawing, name):
    """Colours of the lines that belong to a checkpoint."""
    axes = drawing.figure.axes
    lines = [line for one in axes for line in one.lines]
    own = [line for line in lines if line.get_gid() == CHECKPOINT + name]
    return {to_hex(line.get_color()) for line in own}


@pytest.mark.parametrize("drawn", ["memory", "selectivity"])
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
    assert [one.state for one in report.standings] == ["NO LEAK FOUND"]

    (drawing,) = drawings(report, only=[drawn])
    texts = [text.get_text() for one in drawing.figure.axes for text in one.texts]
    is_marked = any("CONFOUNDED" in text for text in texts)
    assert is_marked == (claim == "confounded")
    assert (colours(drawing, "a") == {MUTED}) == (claim == "confounded")


DRAWN = ("selectivity", "stages", "series", "exposure", "roc", "accuracy")
"""All figures but that of memory, which shows no figure where the setup is at fault."""


def markers_of(drawing, name):
    """Markers and colours of a checkpoint's points, without arrows and intervals."""
    found = set()
    for axes in drawing.figure.axes:
        for line in axes.lines:
            is_own = line.get_gid() == CHECKPOINT + name
            if is_own and line.get_marker() not in ("None", "none", "<", ">"):
                found.add((line.get_marker(), to_hex(line.get_color())))
    return found


@pytest.mark.parametrize("drawn", DRAWN)
def test_what_a_guard_voids_is_a_grey_cross_in_every_figure(made, drawn):
    sound, _ = made(4)
    results = [*sound.results]
    for name in ("sd-replay", "spark"):
        results.append(figure(name, "canary|exposure_mean|full"))
        results.append(figure(name, "series|auc"))
    audits = {row.audit for row in results}
    findings = []
    for audit in sorted(audits):
        findings.append(said(audit, "spark", "not_tested", status="void"))
        sound_test = {"p": 0.5, "family": "primary"}
        findings.append(said(audit, "sd-replay", "nothing_shown", **sound_test))
    broken = guard("broken_model", "it is broken", of="spark")
    parts = {"results": results, "guards": [broken], "findings": findings}
    report = with_states(sound.model_copy(update=parts))
    (drawing,) = drawings(report, only=[drawn])

    voided, other = markers_of(drawing, "spark"), markers_of(drawing, "sd-replay")
    # Answers are right or wrong whatever the setup is.
    assert (("x", MUTED) in voided) == (drawn != "accuracy")
    assert other
    assert ("x", MUTED) not in other


@pytest.mark.parametrize("drawn", ["stages", "accuracy"])
def test_a_void_figure_of_one_stage_is_a_grey_cross_among_the_others(made, drawn):
    sound, _ = made(4)
    audit = {"stages": "stages", "accuracy": "utility"}[drawn]
    place = (audit, "er", "2", "task:fomc")
    results = []
    for row in sound.results:
        is_voided = (row.audit, row.checkpoint, row.of, row.group) == place
        results.append(row.model_copy(update={"status": "void"}) if is_voided else row)
    (drawing,) = drawings(sound.model_copy(update={"results": results}), only=[drawn])

    crosses = markers_of(drawing, "er")
    assert ("x", MUTED) in crosses
    assert len(crosses) > 1
    assert "Grey crosses: void." in drawing.caption
