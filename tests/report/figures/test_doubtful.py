"""A figure from which nothing can be concluded is marked in every drawing."""

import pytest
from made_reports import figure, made_report, said
from matplotlib.colors import to_hex

from spark_audit.report.figures.drawing import drawings
from spark_audit.report.figures.styling import CHECKPOINT, MUTED


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
