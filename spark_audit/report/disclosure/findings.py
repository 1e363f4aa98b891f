"""Findings and guards as shared files hold them: the same claims, rounded figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spark_audit.report.disclosure.rounding import (
    count_step,
    is_p,
    rounded,
    rounded_p,
    rounded_up,
    step_of,
    with_digits,
)
from spark_audit.report.disclosure.rows import (
    MEANT,
    PS,
    Place,
    RowKey,
    row_key,
    shown_row,
    withheld_rows,
)
from spark_audit.results import Finding, Hits, Report, Row
from spark_audit.results.findings import Fact
from spark_audit.results.rows import WITHHELD
from spark_audit.stats.estimate import Power

DIFFERENCES = ("AUC", "points", "clusters")
"""Units of what a finding claims beyond its row: none is a score of a text."""


def shown_named_fact(
    name: str,
    fact: Fact,
    shown: Mapping[RowKey, Row],
    n_clusters: int,
    *,
    is_withheld: bool = False,
) -> Fact:
    """Return a fact as :func:`_shown_fact` has it, and a p as tables have it."""
    if isinstance(fact, float) and is_p(name):
        return rounded_p(fact)
    return _shown_fact(fact, shown, n_clusters, is_withheld=is_withheld)


def _shown_fact(
    fact: Fact,
    shown: Mapping[RowKey, Row],
    n_clusters: int,
    *,
    is_withheld: bool,
) -> Fact:
    """Return a fact, rounded or withheld as the row is that it was taken from.

    Parameters
    ----------
    n_clusters
        Of the figures that the sentence is on.
    is_withheld
        Whether the figure of the finding is, so that every row is withheld.
    """
    if isinstance(fact, list):
        facts = [
            _shown_fact(item, shown, n_clusters, is_withheld=is_withheld)
            for item in fact
        ]
        return facts  # type: ignore[return-value]
    if isinstance(fact, Hits):
        return _shown_hits(fact, n_clusters)
    if not isinstance(fact, Row):
        return fact

    row = shown.get(row_key(fact))
    if row is None:
        shown_fact = shown_row(fact, withheld_rows([fact]).get(id(fact)))
    else:
        # It may be told with another reason, or a contrast's without its baseline.
        names = {*type(fact).model_fields} & {*type(row).model_fields} - {"baseline"}
        figures = {name: getattr(row, name) for name in names}
        shown_fact = fact.model_copy(update=figures)
    return shown_row(shown_fact, WITHHELD) if is_withheld else shown_fact


def _shown_hits(hits: Hits, n_clusters: int) -> Hits:
    """Return a count as finely as so many clusters allow.

    A count before and after a row was removed would tell of the row.
    """
    if not hits.count:
        return hits.model_copy(update={"tied": 0})
    step = count_step(hits.of, n_clusters)
    return Hits(
        count=round(min(rounded(hits.count, step), hits.of)),
        of=hits.of,
        rounded=True,
        vague=2 * step > hits.of,
    )


def figure_place(source: Row | Finding) -> Place:
    """Return the place of a row's figure, or of the row that a finding rests on."""
    metric = source.metric
    if isinstance(source, Finding):
        metric = source.row_metric
    return Place(
        audit=source.audit,
        checkpoint=source.checkpoint,
        group=source.group,
        metric=metric,
        of=source.of,
    )


def _is_same(figure: float | None, other: float | None) -> bool:
    """Return whether two figures are one: sums in another order differ at the end."""
    if figure is None or other is None:
        return figure is other
    return math.isclose(figure, other, rel_tol=1e-9, abs_tol=1e-12)


def shown_finding(
    finding: Finding,
    report: Report,
    shown: Mapping[RowKey, Row],
    rows_by_place: Mapping[Place, Sequence[Row]],
) -> Finding:
    """Return the same claim, its figures rounded or withheld as those of its rows."""
    rows_at_place = rows_by_place.get(figure_place(finding), [])
    own_rows = _rows_of_finding(finding, rows_at_place)
    rows = own_rows or rows_at_place
    is_withheld = any(shown[row_key(row)].withheld for row in rows)
    known_clusters = [row.clusters for row in rows if row.clusters]
    n_clusters = min(known_clusters, default=report.manifest.n_clusters)

    claimed = shown_row(_claimed_row(finding, n_clusters))
    figures: dict[str, Any] = dict.fromkeys(MEANT)
    if own_rows:
        figures |= _figures_of(shown[row_key(own_rows[0])], scale=1)
    elif finding.unit in DIFFERENCES and not is_withheld:
        figures |= _figures_of(claimed, scale=_scale(finding))

    if figures["mde"] is None and not is_withheld:
        figures["mde"] = _effect(finding.mde, claimed)
    if figures["at_most"] is None and not is_withheld:
        figures["at_most"] = _end(finding, claimed)
    for name in PS:
        p = getattr(finding, name)
        if p is not None:
            figures[name] = rounded_p(p)

    facts = {
        name: shown_named_fact(name, fact, shown, n_clusters, is_withheld=is_withheld)
        for name, fact in finding.facts.items()
    }
    # Standard errors stay here; why nothing can be detected does not.
    power = [
        Power(
            test=test.test,
            why=test.why,
            of=test.of,
            mde=_effect(test.mde, claimed),
        )
        for test in finding.power
    ]
    # Bounds hold the figure as it is, and its standard error.
    return finding.model_copy(
        update={
            **figures,
            "facts": facts,
            "power": [] if is_withheld else power,
            "bounds": [],
        }
    )


def _rows_of_finding(finding: Finding, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a place that have the figure of a finding.

    Over sources and over seeds the value is the same, and the interval is not: the row
    with its interval stands first.
    """
    units = {finding.unit} if finding.unit else {row.unit for row in rows}
    same = [
        row for row in rows if _is_same(row.value, finding.value) and row.unit in units
    ]

    def has_other_interval(row: Row) -> bool:
        is_same = _is_same(row.low, finding.low) and _is_same(row.high, finding.high)
        return not is_same

    return sorted(same, key=has_other_interval)


def _scale(finding: Finding) -> int:
    """Return how many units of a finding a whole share has."""
    return 100 if finding.unit == "points" else 1


def _claimed_row(finding: Finding, n_clusters: int) -> Row:
    """Return what a finding claims as a row, its figures exact.

    The row that it rests on may have other figures. Points are shares.
    """
    scale = _scale(finding)
    shares = {}
    for name in MEANT:
        figure = getattr(finding, name)
        if figure is not None:
            shares[name] = figure / scale
    return Row(
        audit=finding.audit,
        checkpoint=finding.checkpoint,
        metric=finding.metric,
        unit="" if finding.unit in ("AUC", "points") else finding.unit,
        clusters=n_clusters,
        status="not_estimable" if finding.value is None else "ok",
        note="none",
        value=shares.get("value"),
        low=shares.get("low"),
        high=shares.get("high"),
        null=shares.get("null"),
        mde=shares.get("mde"),
        at_most=shares.get("at_most"),
    )


def _figures_of(row: Row, *, scale: int) -> dict[str, float]:
    """Return the figures of a row in the unit of its finding, by column."""
    figures = {}
    for name in MEANT:
        figure = getattr(row, name)
        if figure is not None:
            figures[name] = with_digits(figure * scale)
    return figures


def _end(finding: Finding, claimed: Row) -> float | None:
    """Return what could still be there, as finely as the figure that is claimed."""
    if finding.at_most is None:
        return None
    step = step_of(claimed)
    if step is None:
        return with_digits(finding.at_most)
    return rounded(finding.at_most, _scale(finding) * step)


def _effect(mde: float | None, claimed: Row) -> float | None:
    """Return a smallest effect, as finely as the figure that is claimed."""
    step = None if mde is None else step_of(claimed)
    return mde if step is None or mde is None else rounded_up(mde, step)
