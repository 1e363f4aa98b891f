"""Every figure of a report comes as axes, by its name."""

import pytest
from matplotlib.axes import Axes

from spark_audit.errors import InputError
from spark_audit.report.figures.drawing import FIGURE_NEEDS


@pytest.mark.parametrize("name", list(FIGURE_NEEDS))
def test_every_figure_can_be_plotted(made, name):
    report, drawings = made(4)
    axes = report.plot(name)
    assert isinstance(axes, Axes)
    drawn = drawings[name.replace("-", "_")].figure
    assert [one.get_title() for one in axes.figure.axes] == [
        one.get_title() for one in drawn.axes
    ]
    assert axes is axes.figure.axes[0]


def test_a_figure_that_is_none_or_empty_is_said_in_a_line(made):
    report, _ = made(1)
    with pytest.raises(InputError, match="unknown figure 'rok'") as caught:
        report.plot("rok")
    assert "roc" in str(caught.value)
    empty = report.model_copy(update={"results": [], "tables": {}, "contrasts": []})
    with pytest.raises(InputError, match="holds nothing for the figure roc"):
        empty.plot("roc")
