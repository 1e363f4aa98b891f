"""Findings and guards as shared files hold them: the same claims, rounded figures.

``shared.py`` calls :func:`shown_finding` and :func:`shown_guard`. Rows are rounded or
withheld before; a finding takes the figures of its row, so that both show the same. A
further figure of findings is a column of ``CLAIMED_COLUMNS`` (``rows.py``) and an
argument in :func:`_claimed_row`; a further type of fact is a branch of
:func:`_shown_fact`, which returns facts of other types unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from spark_audit.report.disclosure.figure_place import Place, PlacedValue
from spark_audit.report.disclosure.rounding import (
    is_p,
    rounded,
    rounded_away,
    rounded_p,
    rounded_up,
    rounding_clusters,
    step_of,
    step_of_hits,
    with_digits,
)
from spark_audit.report.disclosure.rows import CLAIMED_COLUMNS, P_COLUMNS, shown_row
from spark_audit.report.disclosure.withholding import reasons_to_withhold
from spark_audit.results import Finding, Guard, Hits, Report, Row
from spark_audit.results.findings import Fact
from spark_audit.results.rows import WITHHELD
from spark_audit.stats.estimate import Power

DIFFERENCES = ("AUC", "points", "clusters")
"""Units in which a finding may claim a figure that no row has.

Such a figure is a difference or a count of clusters: it is no score of a text, and may
be shown without a row.
"""


def shown_finding(
    finding: Finding,
    report: Report,
    shown_rows: Mapping[PlacedValue, Row],
    rows_by_place: Mapping[Place, Sequence[Row]],
) -> Finding:
    """Return the same claim, its figures rounded or withheld as those of its rows.

    Parameters
    ----------
    shown_rows
        Key of an exact row of the report -> the row as it is shared.
    rows_by_place
        The exact rows by ``Place.without_comparison``.
    """
    rows_at_place = rows_by_place.get(Place.of_finding(finding), [])
    own_rows = _rows_of_finding(finding, rows_at_place)
    # No row holds a difference of two figures, so withhold it with any row of its
    # place.
    rows = own_rows or rows_at_place
    is_withheld = any(shown_rows[PlacedValue.of_row(row)].withheld for row in rows)

    # The smallest number of clusters decides the rounding: the fewer, the coarser.
    known_clusters = [rounding_clusters(row) for row in rows if row.clusters]
    n_clusters = min(known_clusters, default=report.manifest.n_clusters)
    claimed_row = shown_row(_claimed_row(finding, n_clusters))

    own_row = shown_rows[PlacedValue.of_row(own_rows[0])] if own_rows else None
    figures = _shown_figures(finding, own_row, claimed_row, is_withheld=is_withheld)
    power = [] if is_withheld else _shown_power(finding, claimed_row)
    facts = {
        name: _shown_named_fact(
            name, fact, shown_rows, n_clusters, is_withheld=is_withheld
        )
        for name, fact in finding.facts.items()
    }
    # Bounds hold the exact figure and its standard error.
    return finding.model_copy(
        update={**figures, "facts": facts, "power": power, "bounds": []}
    )


def shown_guard(
    guard: Guard, report: Report, shown_rows: Mapping[PlacedValue, Row]
) -> Guard:
    """Return a guard whose facts are rounded or withheld as the rows are.

    Parameters
    ----------
    shown_rows
        As in :func:`shown_finding`.
    """
    n_clusters = report.manifest.n_clusters
    facts = {
        name: _shown_named_fact(name, fact, shown_rows, n_clusters)
        for name, fact in guard.facts.items()
    }
    return guard.model_copy(update={"facts": facts})


def _rows_of_finding(finding: Finding, rows: Sequence[Row]) -> list[Row]:
    """Return those rows of a place that have the figure of a finding.

    Rows over seeds and over sources have the same value, but other intervals. The row
    with the interval of the finding comes first.
    """
    with_interval = []
    with_value_only = []
    for row in rows:
        # A finding without a unit fits rows of any unit.
        is_unit = not finding.unit or row.unit == finding.unit
        if not is_unit or not _is_same(row.value, finding.value):
            continue

        if _is_same(row.low, finding.low) and _is_same(row.high, finding.high):
            with_interval.append(row)
        else:
            with_value_only.append(row)
    return with_interval + with_value_only


def _is_same(figure: float | None, other: float | None) -> bool:
    """Return whether two figures are equal up to rounding of sums."""
    if figure is None or other is None:
        return figure is other
    return math.isclose(figure, other, rel_tol=1e-9, abs_tol=1e-12)


def _shown_figures(
    finding: Finding,
    own_row: Row | None,
    claimed_row: Row,
    *,
    is_withheld: bool,
) -> dict[str, float | None]:
    """Return the figures of a finding as they are shared, by field.

    They are those of its row. Without a row, only figures in :data:`DIFFERENCES` are
    shown.

    Parameters
    ----------
    own_row
        The row that has the finding's figure, as it is shared; None: no row has it.
    claimed_row
        The claim of the finding as a row, from :func:`_claimed_row`, rounded.
    is_withheld
        Whether the figure is withheld.
    """
    figures: dict[str, float | None] = dict.fromkeys(CLAIMED_COLUMNS)
    if own_row is not None:
        figures |= _figures_of_row(own_row, scale=1)
    elif finding.unit in DIFFERENCES and not is_withheld:
        figures |= _figures_of_row(claimed_row, scale=_scale(finding))

    # A finding may have an effect and a limit of its own, at the level of its claim.
    if figures["mde"] is None and not is_withheld:
        figures["mde"] = _shown_effect(finding.mde, claimed_row)
    if figures["at_most"] is None and not is_withheld:
        figures["at_most"] = _shown_limit(finding, claimed_row)

    # A p stays even if the figure is withheld, since the claim follows from it.
    for column in P_COLUMNS:
        p = getattr(finding, column)
        if p is not None:
            figures[column] = rounded_p(p)
    return figures


def _claimed_row(finding: Finding, n_clusters: int) -> Row:
    """Return the claim of a finding as a row with exact figures, points as shares.

    The figures may differ from those of the row that the finding rests on, which has
    no difference of two figures.
    """
    scale = _scale(finding)
    shares: dict[str, float] = {}
    for column in CLAIMED_COLUMNS:
        figure = getattr(finding, column)
        if figure is not None:
            shares[column] = figure / scale

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
        no_effect=shares.get("no_effect"),
        mde=shares.get("mde"),
        at_most=shares.get("at_most"),
    )


def _scale(finding: Finding) -> int:
    """Return the value of a whole share in the unit of a finding."""
    return 100 if finding.unit == "points" else 1


def _figures_of_row(row: Row, *, scale: int) -> dict[str, float]:
    """Return the figures of a row by column, in the unit of its finding."""
    figures = {}
    for column in CLAIMED_COLUMNS:
        figure = getattr(row, column)
        if figure is not None:
            figures[column] = with_digits(figure * scale)
    return figures


def _shown_limit(finding: Finding, claimed_row: Row) -> float | None:
    """Return the limit, rounded away from no effect by the step of the claim."""
    if finding.at_most is None:
        return None

    scale = _scale(finding)
    if claimed_row.value is not None and claimed_row.at_most is not None:
        return with_digits(claimed_row.at_most * scale)

    # A finding without a figure may have a limit; its row was not rounded.
    step = step_of(claimed_row)
    if step is None:
        return with_digits(finding.at_most)
    return rounded_away(finding.at_most, finding.no_effect or 0.0, scale * step)


def _shown_effect(effect: float | None, claimed_row: Row) -> float | None:
    """Return a smallest effect, rounded as the claimed figure is."""
    if effect is None:
        return None

    step = step_of(claimed_row)
    return effect if step is None else rounded_up(effect, step)


def _shown_power(finding: Finding, claimed_row: Row) -> list[Power]:
    """Return the power of a finding's tests, without their standard errors.

    The reason why a test can detect nothing is kept.
    """
    shown = []
    for test in finding.power:
        effect = _shown_effect(test.mde, claimed_row)
        shown.append(Power(test=test.test, why=test.why, group=test.group, mde=effect))
    return shown


def _shown_named_fact(
    name: str,
    fact: Fact,
    shown_rows: Mapping[PlacedValue, Row],
    n_clusters: int,
    *,
    is_withheld: bool = False,
) -> Fact:
    """Return a fact of a sentence, rounded or withheld; a p by its name.

    Parameters
    ----------
    n_clusters
        Clusters of the figures of the sentence.
    is_withheld
        Whether the finding's figure is withheld, and every row with it.
    """
    if isinstance(fact, float) and is_p(name):
        return rounded_p(fact)
    return _shown_fact(fact, shown_rows, n_clusters, is_withheld=is_withheld)


def _shown_fact(
    fact: Fact,
    shown_rows: Mapping[PlacedValue, Row],
    n_clusters: int,
    *,
    is_withheld: bool,
) -> Fact:
    """Return a fact whose rows and counts are rounded or withheld."""
    if isinstance(fact, list):
        facts = [
            _shown_fact(item, shown_rows, n_clusters, is_withheld=is_withheld)
            for item in fact
        ]
        return facts  # type: ignore[return-value]  # of the kind that the list was
    if isinstance(fact, Hits):
        return _shown_hits(fact, n_clusters)
    if isinstance(fact, Row):
        return _shown_row_of_fact(fact, shown_rows, is_withheld=is_withheld)
    return fact


def _shown_row_of_fact(
    fact: Row, shown_rows: Mapping[PlacedValue, Row], *, is_withheld: bool
) -> Row:
    """Return a row among the facts, rounded or withheld as the report's row is."""
    row = shown_rows.get(PlacedValue.of_row(fact))
    if row is None:
        # The report has no such row, so apply the rules to this one alone.
        (why_withheld,) = reasons_to_withhold([fact])
        shown = shown_row(fact, why_withheld)
    else:
        # The fact may be a plain row where the report has a contrast, or the reverse:
        # only columns that both have can be taken over.
        columns = set(type(fact).model_fields) & set(type(row).model_fields)
        columns.discard("baseline")
        shown = fact.model_copy(
            update={column: getattr(row, column) for column in columns}
        )

    return shown_row(shown, WITHHELD) if is_withheld else shown


def _shown_hits(hits: Hits, n_clusters: int) -> Hits:
    """Return a count out of ``hits.of``, rounded as its number of clusters requires.

    Exact counts before and after the removal of a row would reveal the row. A ``vague``
    count is shown as "some".
    """
    if not hits.count:
        # A count of 0 is shown, but not its number of ties.
        return hits.model_copy(update={"tied": 0})

    # If a step is more than half of the total, only "some" can be said.
    step = step_of_hits(hits.of, n_clusters)
    return Hits(
        count=round(min(rounded(hits.count, step), hits.of)),
        of=hits.of,
        rounded=True,
        vague=2 * step > hits.of,
    )
