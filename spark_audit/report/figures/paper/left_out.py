"""Why a report draws one of the paper's figures not at all, or only in part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from spark_audit.names import series_of
from spark_audit.report.figures.paper.measures import (
    CANARY_MEASURES,
    LIKELIHOOD_MEASURES,
    NOISE_MEASURES,
    ORDERS_MEASURES,
    SELECTIVITY_MEASURES,
    SWEEP_MEASURES,
    TOP1_MEASURES,
    UTILITY_MEASURES,
    Measure,
    Measures,
)
from spark_audit.sentences import render

if TYPE_CHECKING:
    import pandas as pd

MEASURES_OF_FIGURES: Mapping[str, Measures] = {
    "paper-selectivity": SELECTIVITY_MEASURES,
    "paper-top1": TOP1_MEASURES,
    "paper-likelihood": LIKELIHOOD_MEASURES,
    "paper-utility": UTILITY_MEASURES,
    "paper-orders": ORDERS_MEASURES,
    "paper-sweep": SWEEP_MEASURES,
    "paper-canary": CANARY_MEASURES,
    "paper-noise": NOISE_MEASURES,
}
"""Figure -> what its panels show. The figure of times shows no rows of results."""

FIGURES_OF_TWO_AXES = ("paper-likelihood",)
"""Figures whose measures are all needed for a mark; of others each is a panel."""

PANEL_COLUMNS = ("panel", "measure", "metric")
"""Columns of the rows of a figure that may name its panels."""

MAX_NOTES = 2
"""Most notes in a reason; the tables have all."""

TIME = "paper-time"
"""The figure of times, which needs no rows of results."""

SubjectCheck: TypeAlias = Callable[["pd.DataFrame", "pd.DataFrame"], bool]
"""Tells from the results and the checkpoints whether a figure has what it is of."""


def reason_against(name: str, results: pd.DataFrame, checkpoints: pd.DataFrame) -> str:
    """Return why a report does not hold a figure, as the end of a sentence.

    Parameters
    ----------
    name
        Name of a figure without rows.
    results, checkpoints
        The report's frames, with all figures.
    """
    needs = render(f"figure.{name}.needs")
    missing = render("figure.paper.because.missing", needs=needs)
    has_subject = SUBJECT_CHECKS.get(name)
    if has_subject is not None and not has_subject(results, checkpoints):
        return missing
    if name == TIME:
        return render("figure.paper.because.untimed")

    measures = MEASURES_OF_FIGURES[name]
    rows = {panel: rows_of_measure(results, shown) for panel, shown in measures.items()}
    if name in FIGURES_OF_TWO_AXES:
        # The first one without a value is what keeps the others from being drawn.
        for rows_of_panel in rows.values():
            if rows_of_panel["value"].notna().any():
                continue
            return _reason_of_rows(rows_of_panel) or missing

    import pandas as pd

    return _reason_of_rows(pd.concat([*rows.values()])) or missing


def rows_of_measure(results: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Return the pooled rows of a measure, those without a value, too."""
    is_wanted = (
        (results["audit"] == measure.audit)
        & (results["metric"] == measure.metric)
        & (results["group_kind"] == "pooled")
    )
    if measure.variants:
        is_wanted &= results["variant"].isin(measure.variants)
    return results[is_wanted]


def _reason_of_rows(rows: pd.DataFrame) -> str:
    """Return why nothing of some rows is drawn; empty: there are none."""
    if rows.empty:
        return ""

    valued = rows[rows["value"].notna()]
    if valued.empty:
        audits = list(dict.fromkeys(rows["audit"]))
        return render(
            "figure.paper.because.not_estimable", audits=audits, notes=_notes_of(rows)
        )

    audits = list(dict.fromkeys(valued["audit"]))
    names = {*valued["checkpoint"]}
    if all(series_of(name) != name for name in names):
        return render("figure.paper.because.stages", audits=audits)
    return render("figure.paper.because.no_place", audits=audits)


def _notes_of(rows: pd.DataFrame) -> list[str]:
    """Return the most frequent notes of rows without a value."""
    notes = rows.loc[rows["value"].isna(), "note"].dropna()
    counts = notes[notes != ""].value_counts()
    return [str(note) for note in counts.index[:MAX_NOTES]]


def parts_left_out(
    name: str,
    shared_rows: pd.DataFrame,
    exact_rows: pd.DataFrame,
    exact_results: pd.DataFrame,
) -> Iterator[str]:
    """Yield a line for the panels and the systems that a drawn figure lacks.

    Parameters
    ----------
    shared_rows, exact_rows
        Rows of the figure, as it is drawn and with all figures.
    exact_results
        The report's frame with all figures.
    """
    column = next((name for name in PANEL_COLUMNS if name in exact_rows), None)
    withheld_panels: list[str] = []
    if column is not None:
        withheld_panels = _missing(exact_rows[column], shared_rows[column])
    titles = [_panel_title(name, panel) for panel in withheld_panels]
    systems = _missing(exact_rows["system"], shared_rows["system"])
    for parts in (titles, systems):
        if parts:
            yield render("figure.paper.part_withheld", name=name, parts=parts)

    if column is None or name not in MEASURES_OF_FIGURES:
        return
    for panel, measure in MEASURES_OF_FIGURES[name].items():
        rows = rows_of_measure(exact_results, measure)
        if panel in {*exact_rows[column]} or rows.empty:
            continue
        yield render(
            "figure.paper.part_not_drawn",
            name=name,
            parts=[_panel_title(name, panel)],
            reason=_reason_of_rows(rows),
        )


def _missing(exact: pd.Series[str], shared: pd.Series[str]) -> list[str]:
    """Return the names that only the exact rows have, in their order."""
    return [name for name in dict.fromkeys(exact) if name not in {*shared}]


def _panel_title(name: str, panel: str) -> str:
    """Return what a panel of a figure is called."""
    return render(f"figure.{name}.{panel}")


def _has_several_orders(results: pd.DataFrame, checkpoints: pd.DataFrame) -> bool:
    """Return whether any system of a report was trained in several task orders."""
    from spark_audit.report.figures.paper.task_orders import order_of, without_order

    orders_by_system: dict[str, set[str]] = {}
    for name in results["checkpoint"]:
        whole_run = series_of(name)
        system = without_order(whole_run)
        orders_by_system.setdefault(system, set()).add(order_of(whole_run))
    return any(len(orders) > 1 for orders in orders_by_system.values())


def _has_swept_runs(results: pd.DataFrame, checkpoints: pd.DataFrame) -> bool:
    """Return whether runs of one method differ in a setting alone."""
    from spark_audit.report.figures.paper.sweep import sweeps_of

    return bool(sweeps_of(checkpoints))


def _has_trained_runs(results: pd.DataFrame, checkpoints: pd.DataFrame) -> bool:
    """Return whether anything is known of the training of a checkpoint."""
    from spark_audit.report.figures.paper.trainings import trainings_of

    return bool(trainings_of(checkpoints))


SUBJECT_CHECKS: Mapping[str, SubjectCheck] = {
    "paper-orders": _has_several_orders,
    "paper-sweep": _has_swept_runs,
    TIME: _has_trained_runs,
}
"""Figure -> whether the report has the checkpoints that it is of."""
