"""What is shared of passages tells the run of no row to who knows all other rows."""

from typing import Any

import numpy as np
import pandas as pd
from audited import conclude
from made_reports import made_report

from spark_audit.audits.base import Context
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.results import Report
from spark_audit.results.evidence import Evidence

PASSAGE = 50
"""Tokens that a passage has at least."""

HELD_OUT = 40


def report_of(runs: np.ndarray) -> Report:
    """The report on trained rows with these longest runs, each a source of its own."""
    n = len(runs) + HELD_OUT
    units = pd.DataFrame(
        {
            "example": [f"r{i:03d}" for i in range(n)],
            "split": ["train"] * len(runs) + ["test"] * HELD_OUT,
            "task": "t",
            "type": "",
            "cluster": [f"c{i:03d}" for i in range(n)],
            "n_tokens": 120,
            "n_words": 80,
        }
    )
    of_ours = np.append(runs, np.full(HELD_OUT, 5.0))
    of_both = np.stack([np.full(n, 4.0), of_ours])
    evidence = Evidence(
        units,
        ("base", "ours"),
        {"run": of_both, "run_won": of_both},
        {"least_tokens": PASSAGE, "text_p": 0.5},
    )
    result = conclude("passages", evidence, Context(replicates=5))
    return made_report(
        *("base", "ours"), results=result.results, findings=result.findings
    )


def told_by(report: Report) -> list[Any]:
    """All figures and sentences of a report."""
    figures = [
        (row.metric, row.group, row.value, row.low, row.high) for row in report.results
    ]
    return [*figures, *(finding.sentence for finding in report.findings)]


def drawn_runs(rng: np.random.Generator, size: int) -> np.ndarray:
    """Longest runs of rows, of which about a quarter has a passage."""
    return np.asarray(rng.gamma(2.0, 17.0, size).clip(0, 119).round())


def test_the_run_of_one_row_is_not_what_the_others_leave():
    """Of guesses of a row's longest run, a tenth or more fits all that is shared."""
    fitting_exact = []
    fitting_shared = []
    for seed, size in enumerate((25, 60, 110)):
        rng = np.random.default_rng(seed)
        runs = drawn_runs(rng, size)
        # The row with the longest run is the one whose length is a figure.
        runs[0] = runs.max() + 7
        report = report_of(runs)
        shared = told_by(disclosed(report))
        for guess in runs[0] + np.array([-14, -9, -5, -3, -1, 1, 3, 5, 9, 14]):
            guessed = report_of(np.append(guess, runs[1:]))
            fitting_exact.append(told_by(guessed) == told_by(report))
            fitting_shared.append(told_by(disclosed(guessed)) == shared)
    assert not any(fitting_exact)  # the attack works
    assert np.mean(fitting_shared) >= 0.1


def test_whether_a_row_is_recited_is_not_what_two_reports_differ_by():
    """Of the same rows without one: the counts differ by it, those shared seldom."""
    rng = np.random.default_rng(3)
    right: dict[str, list[bool]] = {"exact": [], "shared": []}
    for size in (22, 31, 45, 58, 73, 90):
        runs = drawn_runs(rng, size)
        for is_recited in (True, False):
            runs[0] = 60.0 if is_recited else 20.0
            reports = [report_of(runs), report_of(runs[1:])]
            shared_reports = [disclosed(report) for report in reports]
            for form, pair in (("exact", reports), ("shared", shared_reports)):
                with_row, without_row = (recited_rows(report) for report in pair)
                is_guessed = with_row - without_row >= 0.5
                right[form].append(is_guessed == is_recited)
    assert np.mean(right["exact"]) == 1  # the attack works
    assert np.mean(right["shared"]) < 0.8


def recited_rows(report: Report) -> float:
    """How many trained rows are recited, from the rate and the number of rows."""
    (rate,) = (
        row
        for row in report.results
        if (row.checkpoint, row.metric, row.group) == ("ours", "passage_rate", "pooled")
    )
    assert rate.value is not None
    return rate.value * rate.n


def test_a_run_that_is_too_short_does_not_look_like_a_passage():
    shared = disclosed(report_of(np.append(46.0, np.full(60, 12.0))))
    lengths = {
        row.value
        for row in shared.results
        if (row.checkpoint, row.metric, row.group)
        == ("ours", "longest_tokens", "pooled")
    }
    assert lengths == {40.0}
