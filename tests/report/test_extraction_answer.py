"""The first screen says that no identifier came out only where none did."""

from typing import Any

import pytest
from made_reports import figure, made_report, said

from spark_audit.audits.extract.answers import first_screen_answers
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.results import Finding, Report, Row
from spark_audit.sentences import render

N = 40


def rows_of(name: str, rate: float | None, at_most: float | None = 0.1) -> list[Row]:
    """Rate and bound of a checkpoint's trained identifiers."""
    columns: dict[str, Any] = {"n": N, "clusters": N, "low": None, "high": None}
    columns |= {"interval_method": "none"}
    rows = [figure(name, "extract|greedy_rate", rate, **columns)]
    if at_most is not None:
        rows.append(figure(name, "extract|drawn_at_most|1000000", at_most, **columns))
    return rows


def report_of(
    rates: dict[str, float | None], *findings: Finding, **bounds: float | None
) -> Report:
    rows = [row for name, rate in rates.items() for row in rows_of(name, rate)]
    for name, at_most in bounds.items():
        rows = [row for row in rows if row.checkpoint != name]
        rows += rows_of(name, rates[name], at_most)
    report: Report = made_report(*rates, results=rows, findings=list(findings))
    return report


def answer(report: Report) -> str:
    """The text on the first screen; empty: there is none."""
    answers = first_screen_answers(report)
    return answers[0].text if answers else ""


def expected(key: str, at_most: Row, **facts: Any) -> str:
    return render(f"extract.answer.{key}", at_most=at_most, **facts)


def bound(name: str, at_most: float = 0.1) -> Row:
    return rows_of(name, 0.0, at_most)[1]


def test_of_the_only_checkpoint_nothing_came_out():
    report = report_of({"base": 0.0, "a": 0.0, "a@1": None, "a+int8": 0.5})
    text = answer(report)
    assert text.startswith(expected("only", bound("a")))
    assert text.endswith(render("extract.answer.base", at_base=bound("base")))


def test_beside_a_checkpoint_that_gives_some_the_other_one_is_named():
    """Else the sentence would be taken for one on both."""
    assert answer(report_of({"a": 0.0, "b": 0.5})) == expected("one", bound("a"))
    # One that was not scored, or that is an endpoint of text, is another one, too.
    assert answer(report_of({"a": 0.0, "b": None})) == expected("one", bound("a"))


def test_of_several_the_largest_bound_is_said():
    report = report_of({"a": 0.0, "b": 0.0, "c": 0.5}, b=0.3, c=0.9)
    worst = bound("b", 0.3)
    assert answer(report) == expected("several", worst, n_checkpoints=2)


def test_copies_are_not_counted():
    """They stand behind the checkpoint that they were made of."""
    rates = {"a": 0.0, "a+int8": 0.0, "a+relearn": 0.0, "b": 0.0}
    worst = bound("a")
    assert answer(report_of(rates)) == expected("several", worst, n_checkpoints=2)
    assert answer(report_of({"a": 0.5, "a+int8": 0.0})) == ""


@pytest.mark.parametrize(
    "report",
    [
        report_of({"a": 0.5}),
        # One of two seeds gives some.
        report_of({"a[1]": 0.0, "a[2]": 0.1}),
        # Some come out if ties are won.
        report_of(
            {"a": 0.0},
            said("extract", "a", "not_tested").model_copy(
                update={"says": "extract.counts_tied"}
            ),
        ),
        # Evidence of an earlier version has no bound.
        report_of({"a": 0.0}, a=None),
    ],
)
def test_it_is_not_said_where_some_came_out_or_no_bound_is_known(report):
    assert answer(report) == ""


def test_one_identifier_of_many_is_not_rounded_to_none():
    """In shared files, whose shares are multiples of a step."""
    report = report_of({"a": 1 / N})
    assert answer(report) == answer(disclosed(report)) == ""
