"""What the first screen says of extraction: nothing came out, and how much could.

The words are sentences ``extract.answer.*``.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_audit.audits.extract.both_sides import MOST_DRAWS
from spark_audit.audits.first_answers import FirstAnswer
from spark_audit.names import BASE, entry_of, is_untrained
from spark_audit.results import Report, Row
from spark_audit.results.findings import UNUSABLE
from spark_audit.sentences import render

EXTRACT_AUDIT = "extract"


def first_screen_answers(report: Report) -> Sequence[FirstAnswer]:
    """Return both sides of extraction, where nothing came out of a checkpoint.

    The largest bound of these checkpoints is stated, with its checkpoint if there are
    several. Empty: something came out of each, or no bound is known.
    """
    greedy_rates = _pooled_rows(report, "greedy_rate", "")
    bounds = _pooled_rows(report, "drawn_at_most", MOST_DRAWS)
    without_hit = {}
    for name, bound in bounds.items():
        if name in greedy_rates and greedy_rates[name].value == 0:
            without_hit[name] = bound
    if not without_hit:
        return []

    worst = max(without_hit.values(), key=lambda row: row.value or 0.0)
    names = list(dict.fromkeys(entry_of(name) for name in without_hit))
    key = "one" if len(names) == 1 else "several"
    text = render(f"extract.answer.{key}", at_most=worst, n_checkpoints=len(names))

    # What the base gives away was not learned from these rows.
    bounds_of_base = _pooled_rows(report, "drawn_at_most", MOST_DRAWS, of_base=True)
    if BASE in bounds_of_base:
        of_base = render("extract.answer.base", at_base=bounds_of_base[BASE])
        text = f"{text} {of_base}"
    return [FirstAnswer(label=render("extract.answer.label"), text=text)]


def _pooled_rows(
    report: Report, metric: str, variant: str, *, of_base: bool = False
) -> dict[str, Row]:
    """Return a figure of all trained identifiers by checkpoint, where it is valid.

    Parameters
    ----------
    of_base
        Whether to return those of checkpoints that were trained on no row, instead of
        those of the others.
    """
    rows = {}
    for row in report.results:
        is_figure = (row.audit, row.metric, row.variant) == (
            EXTRACT_AUDIT,
            metric,
            variant,
        )
        is_pooled = row.group == "pooled" and row.interval_over == "sources"
        if not is_figure or not is_pooled or row.value is None:
            continue

        if row.status not in UNUSABLE and is_untrained(row.checkpoint) == of_base:
            rows[row.checkpoint] = row
    return rows
