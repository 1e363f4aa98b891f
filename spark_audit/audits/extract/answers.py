"""What the first screen says of extraction: no identifier came out, and how many could.

The words are sentences ``extract.answer.*``.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_audit.audits.extract.both_sides import MOST_DRAWS
from spark_audit.audits.first_answers import FirstAnswer
from spark_audit.names import BASE, CheckpointName, entry_of, is_untrained, series_of
from spark_audit.results import Report, Row
from spark_audit.results.findings import UNUSABLE
from spark_audit.sentences import render

EXTRACT_AUDIT = "extract"

TIED_HITS = "extract.counts_tied"
"""Key of a finding on identifiers that come out only if ties are won."""


def first_screen_answers(report: Report) -> Sequence[FirstAnswer]:
    """Return both sides of extraction, where no identifier came out of a checkpoint.

    The largest bound of these checkpoints is stated, with its checkpoint if the report
    has several. Rounded and relearned copies are left out: they stand behind the
    checkpoints that they were made of. Empty: something came out of each, or no bound
    is known.
    """
    bounds = _pooled_rows(report, "drawn_at_most", MOST_DRAWS)
    entries_with_hit = _entries_with_hit(report)
    without_hit: dict[str, Row] = {}
    for name, bound in bounds.items():
        if _is_audited(name) and entry_of(name) not in entries_with_hit:
            without_hit[name] = bound
    if not without_hit:
        return []

    worst = max(without_hit.values(), key=lambda row: row.value or 0.0)
    n_without_hit = len({entry_of(name) for name in without_hit})
    text = render(
        f"extract.answer.{_which(report, n_without_hit)}",
        at_most=worst,
        n_checkpoints=n_without_hit,
    )

    # What the base gives away was not learned from these rows.
    if BASE in bounds:
        of_base = render("extract.answer.base", at_base=bounds[BASE])
        text = f"{text} {of_base}"
    return [FirstAnswer(label=render("extract.answer.label"), text=text)]


def _which(report: Report, n_without_hit: int) -> str:
    """Return the key of the sentence: on the only checkpoint, on one, or on several."""
    if n_without_hit > 1:
        return "several"
    # Stages of a series are no checkpoints of their own here.
    entries = set()
    for checkpoint in report.checkpoints:
        if _is_audited(checkpoint.name):
            entries.add(entry_of(series_of(checkpoint.name)))
    return "only" if len(entries) == 1 else "one"


def _is_audited(name: str) -> bool:
    """Return whether a checkpoint was trained on rows and is no copy of another."""
    return not is_untrained(name) and not CheckpointName.parse(name).derived


def _entries_with_hit(report: Report) -> set[str]:
    """Return the checkpoints of which it is not shown that no identifier came out.

    A method of several seeds is one of them if any of its seeds is. So is a checkpoint
    whose rate is missing, or whose identifiers come out only if ties are won.
    """
    rates = _pooled_rows(report, "greedy_rate")
    entries = set()
    for checkpoint in report.checkpoints:
        rate = rates.get(checkpoint.name)
        if rate is None or rate.value != 0:
            entries.add(entry_of(checkpoint.name))
    for finding in report.findings:
        if finding.says == TIED_HITS:
            entries.add(entry_of(finding.checkpoint))
    return entries


def _pooled_rows(report: Report, metric: str, variant: str = "") -> dict[str, Row]:
    """Return a figure of all trained identifiers by checkpoint, where it is valid."""
    rows = {}
    for row in report.results:
        is_figure = (row.audit, row.metric, row.variant) == (
            EXTRACT_AUDIT,
            metric,
            variant,
        )
        is_pooled = row.group == "pooled" and row.interval_over == "sources"
        is_valid = row.value is not None and row.status not in UNUSABLE
        if is_figure and is_pooled and is_valid:
            rows[row.checkpoint] = row
    return rows
