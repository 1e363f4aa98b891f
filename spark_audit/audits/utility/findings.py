"""What the utility audit says, a sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from spark_audit.audits.utility.series import Series
from spark_audit.audits.wording import percent, points, reason, share, unseen
from spark_audit.results import Claim, Contrast, Finding, Row


def finding(name: str, series: Series, rows: Sequence[Row]) -> Finding:
    """How good a series' answers are after its last stage, and what was forgotten."""
    last = next(
        row
        for row in rows
        if (row.checkpoint, row.group, row.metric) == (name, "pooled", "last")
    )
    claim: Claim = "not_tested" if last.value is None else "moved"
    return Finding.on(last, claim, _sentence(name, series, rows))


def _sentence(name: str, series: Series, rows: Sequence[Row]) -> str:
    own = {
        row.metric: row
        for row in rows
        if row.checkpoint == name and row.group == "pooled"
    }
    last, bwt = own["last"], own["bwt"]
    if last.value is None:
        return f"{name}: accuracy over all tasks is not estimable ({last.note})."
    count = len(series.tasks)
    text = (
        f"{name}: {percent(last)} of answers are right, averaged over {count} "
        f"task{'s' if count > 1 else ''}; always giving the commonest response would "
        f"get {share(last.null or 0.0)}%."
    )
    if last.null is None or last.low is None or last.high is None:
        pass
    elif last.high < last.null:
        text += " That is worse than always giving the commonest response."
    elif last.low <= last.null:
        tail = unseen(last.mde, "differences", unit="points")
        text += f" It is not shown to be better than that{tail}."
    if bwt.value is None:
        return f"{text} What was forgotten cannot be said ({bwt.note})."
    return f"{text} {_transfer(bwt)}"


def _transfer(row: Row) -> str:
    change = f"{points(row)} points since they were learned"
    if row.low is None or row.high is None:
        return f"Earlier tasks changed by {change} ({row.note})."
    if row.low <= 0 <= row.high:
        tail = unseen(row.mde, unit="points")
        return f"Earlier tasks changed by {change}: no forgetting detected{tail}."
    word = "they were forgotten in part" if (row.value or 0) < 0 else "they gained"
    return f"Earlier tasks changed by {change}: {word}."


def contrast_line(row: Contrast) -> str:
    """How the final accuracy differs from the baseline's."""
    place = f"{row.checkpoint} against {row.baseline}: final accuracy"
    if row.value is None or row.low is None or row.high is None:
        return f"{place}: no difference can be estimated ({reason(row.note)})."
    change = f"{points(row)} points"
    if row.low <= 0 <= row.high:
        tail = unseen(row.mde, "differences", unit="points")
        return f"{place} differs by {change}: no difference detected{tail}."
    return f"{place} is {'higher' if row.value > 0 else 'lower'}, by {change}."
