"""Rows as shared files hold them, with rounded or removed figures.

Whether a row is withheld is decided in ``withholding.py``, and how finely it is rounded
in ``rounding.py``. A further column of figures in rows MUST be listed in
:data:`FIGURE_COLUMNS`: any other column is shown exactly.
"""

from __future__ import annotations

from typing import TypeVar

from spark_audit.audits import about
from spark_audit.report.disclosure.rounding import (
    rounded,
    rounded_away,
    rounded_count,
    rounded_down,
    rounded_p,
    rounded_up,
    step_of,
    to_power_of_ten,
    with_digits,
)
from spark_audit.results import Row
from spark_audit.results.findings import EXCESS

RowT = TypeVar("RowT", bound=Row)

CLAIMED_COLUMNS = ("value", "low", "high", "no_effect", "mde", "at_most")
"""Columns of figures that a finding has, too."""

P_COLUMNS = ("p", "p_adjusted")
"""Columns that are rounded as p, and stay in findings whose figure is withheld."""

FIGURE_COLUMNS = (
    *CLAIMED_COLUMNS,
    "parity_low",
    "parity_high",
    "no_effect_low",
    "no_effect_high",
    *P_COLUMNS,
)
"""All columns of a row or contrast that are emptied or rounded."""

UPPER_COLUMNS = ("value", "high", "parity_high", "no_effect", "no_effect_high")
"""Columns that are rounded up, of a bound from above. The null is that of the base,
whose row is rounded up, too: two roundings of one figure would say more of it."""

LOWER_COLUMNS = ("value", "low", "parity_low", "no_effect", "no_effect_low")
"""Columns that are rounded down, of a bound from below."""

CHANCE_AUC = 0.5
"""An AUC without an effect."""

ABOVE_CHANCE_METRICS = (f"auc{EXCESS}", "beyond_texts")
"""Metrics of an AUC minus chance, or minus a guess that is better than chance."""


def shown_row(row: RowT, why_withheld: str | None = None) -> RowT:
    """Return a row with rounded figures, or without figures and with the reason.

    Parameters
    ----------
    why_withheld
        From :func:`spark_audit.report.disclosure.withholding.reasons_to_withhold`;
        None: the row is shown.
    """
    if row.value is None:
        return row

    # Only contrasts have columns of p.
    fields = vars(row)
    figures: dict[str, float] = {}
    for column in FIGURE_COLUMNS:
        figure = fields.get(column)
        if figure is not None:
            figures[column] = figure

    # Nothing is checked again: a rounded figure is as valid as the exact one.
    if why_withheld is not None:
        return row.copy_unchecked(
            **dict.fromkeys(figures),
            status="not_estimable",
            interval_method="none",
            note=why_withheld,
        )

    step = step_of(row)
    rounded_figures = {}
    for column, figure in figures.items():
        rounded_figures[column] = _shown_figure(figure, column, row, step)
    return row.copy_unchecked(
        **rounded_figures,
        n=rounded_count(row.n, row.clusters),
        interval_level=with_digits(row.interval_level),
    )


def _shown_figure(figure: float, column: str, row: Row, step: float | None) -> float:
    """Return a figure, rounded as the clusters of its row require.

    Parameters
    ----------
    column
        The column of the row in which the figure stands.
    step
        Rounding step of the row's figures; None: they are not rounded to a step.
    """
    if column in P_COLUMNS:
        return rounded_p(figure)
    if row.unit == "tries":
        return to_power_of_ten(figure)
    if step is None:
        return with_digits(figure)

    # A bound stays one, and within its intervals.
    rounds = about(row.audit).metric(row.metric).rounds
    goes_up = rounds == "up" and column in UPPER_COLUMNS
    goes_down = rounds == "down" and column in LOWER_COLUMNS
    # Count steps from the null of an AUC. A limit then stays on its side of the null,
    # and the claim also follows from the rounded figures.
    is_auc = row.metric == "auc" and row.no_effect == CHANCE_AUC
    null = CHANCE_AUC if is_auc else 0.0
    if column == "mde" or goes_up:
        near = rounded_up(figure, step)
    elif goes_down:
        near = rounded_down(figure, step)
    elif column == "at_most":
        no_effect = (row.no_effect or 0.0) - null
        near = round(null + rounded_away(figure - null, no_effect, step), 12)
    else:
        near = round(null + rounded(figure - null, step), 12)

    # The nearest step may exceed a whole share, or all that an AUC can be above chance.
    most = 1 - CHANCE_AUC if row.metric in ABOVE_CHANCE_METRICS else 1.0
    is_share = row.unit == "" and abs(figure) <= most
    if is_share:
        return max(-most, min(most, near))
    return near
