"""Which figures a shared report withholds: a test for each rule, and for its limits."""

from typing import Any

import pytest
from made_reports import figure, made_report

from spark_audit.report.disclosure.shared import disclosed, rounded_for_owner
from spark_audit.results import Row
from spark_audit.results.rows import WITHHELD, WITHHELD_NOTE


def memory(group: str, clusters: int, **columns: Any) -> Row:
    place = f"matched|memory||{group}"
    row: Row = figure("a", place, -0.5, unit="nats", clusters=clusters, **columns)
    return row


def notes(*rows: Row) -> list[str]:
    """The note of each row as it is shared; empty where its figure is shown."""
    shared = disclosed(made_report("a", results=list(rows)))
    for row in shared.results:
        assert row.withheld is (row.value is None)
    return [row.note for row in shared.results]


@pytest.mark.parametrize(("clusters", "note"), [(4, WITHHELD), (5, "")])
def test_a_figure_of_fewer_than_five_clusters_is_withheld(clusters, note):
    assert notes(memory("pooled", clusters)) == [note]


def test_a_withheld_row_has_no_figure_at_all():
    report = made_report("a", results=[memory("pooled", 4, no_effect=0.0, mde=0.25)])
    (row,) = disclosed(report).results
    figures = (row.value, row.low, row.high, row.no_effect, row.mde, row.at_most)
    assert figures == (None,) * 6
    assert (row.status, row.interval_method) == ("not_estimable", "none")


@pytest.mark.parametrize(
    ("metric", "partner"),
    [("memory", "pii_change|trained"), ("kind", "specific")],
)
def test_a_figure_from_which_a_withheld_one_follows_is_withheld(metric, partner):
    """Memory is the change of trained identifiers less that of held-out ones."""
    of_many = figure("a", f"matched|{metric}", -0.5, unit="nats", clusters=40)
    of_few = figure("a", f"matched|{partner}", -0.5, unit="nats", clusters=4)
    independent = figure("a", "matched|nll_pii", 2.5, unit="nats", clusters=40)
    assert notes(of_many, of_few, independent) == [WITHHELD_NOTE, WITHHELD, ""]
    assert notes(of_many, independent) == ["", ""]


def test_with_a_withheld_group_the_smallest_other_group_is_withheld():
    """Else the pooled figure less the other groups would be that of the few."""
    rows = [
        memory("pooled", 60),
        memory("type:SSN", 4),
        memory("type:NAME", 36),
        memory("type:EMAIL", 20),
        memory("task:news", 30),
    ]
    assert notes(*rows) == ["", WITHHELD, "", WITHHELD_NOTE, ""]


def test_groups_of_another_checkpoint_or_metric_are_no_partition():
    of_other_checkpoint = figure(
        "b", "matched|memory||type:NAME", -0.5, unit="nats", clusters=36
    )
    of_other_metric = figure(
        "a", "matched|nll_pii||type:NAME", 2.5, unit="nats", clusters=36
    )
    rows = [memory("type:SSN", 4), of_other_checkpoint, of_other_metric]
    assert notes(*rows) == [WITHHELD, "", ""]


def test_a_group_without_a_figure_is_not_withheld_in_place_of_one_with_a_figure():
    not_estimable = figure(
        "a", "matched|memory||type:EMAIL", None, unit="nats", clusters=6
    )
    rows = (memory("type:SSN", 4), not_estimable, memory("type:NAME", 36))
    report = made_report("a", results=list(rows))
    few, none, many = disclosed(report).results
    assert (few.note, many.note) == (WITHHELD, WITHHELD_NOTE)
    assert none == not_estimable


def test_figures_of_planted_strings_and_of_answers_are_shown_of_any_number():
    exposure = figure("a", "canary|exposure_mean", 2.5, unit="bits", clusters=2)
    accuracy = figure("a", "utility|accuracy||task:t", 0.5, clusters=2)
    assert notes(exposure, accuracy) == ["", ""]
    # A score of a planted string is one of a text.
    score = figure("a", "canary|nll", 2.5, unit="nats", clusters=2)
    assert notes(score) == [WITHHELD]


def test_the_owner_sees_what_is_withheld_from_others():
    rows = [memory("pooled", 60), memory("type:SSN", 4), memory("type:NAME", 36)]
    report = made_report("a", results=rows)
    pooled, few, smallest = rounded_for_owner(report).results
    assert (few, smallest) == (rows[1], rows[2])
    assert pooled == disclosed(report).results[0]
