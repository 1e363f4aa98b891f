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
    shown: Mapping[Any, Row],
    clusters: int,
    *,
    gone: bool = False,
) -> Fact:
    """A fact as :func:`_fact` has it, and a p as tables have it."""
    if isinstance(fact, float) and is_p(name):
        return rounded_p(fact)
    return _fact(fact, shown, clusters, gone=gone)


def _fact(
    fact: Fact, shown: Mapping[Any, Row], clusters: int, *, gone: bool = False
) -> Fact:
    """A fact, rounded or withheld as the row is that it was taken from.

    ``gone``: so is the figure of its finding, and every row is withheld.
    """
    if isinstance(fact, list):
        return [_fact(one, shown, clusters, gone=gone) for one in fact]  # type: ignore[return-value]
    if isinstance(fact, Hits):
        # A count before and after a row was removed tells of the row.
        if not fact.count:
            return fact.model_copy(update={"tied": 0})
        step = count_step(fact.of, clusters)
        near = round(min(rounded(fact.count, step), fact.of))
        return Hits(count=near, of=fact.of, rounded=True, vague=2 * step > fact.of)
    if not isinstance(fact, Row):
        return fact
    if (row := shown.get(row_key(fact))) is None:
        made = shown_row(fact, withheld_rows([fact]).get(id(fact)))
    else:
        # It may be told with another reason, or a contrast's without its baseline.
        names = {*type(fact).model_fields} & {*type(row).model_fields} - {"baseline"}
        made = fact.model_copy(update={name: getattr(row, name) for name in names})
    return shown_row(made, WITHHELD) if gone else made


def figure_place(one: Row | Finding) -> tuple[str, ...]:
    """Return audit, checkpoint, metric, variant and group of a figure."""
    metric = one.row_metric if isinstance(one, Finding) else one.metric
    return (one.audit, one.checkpoint, metric, one.of, one.group)


def _is_same(figure: float | None, other: float | None) -> bool:
    """Return whether two figures are one: sums in another order differ at the end."""
    if figure is None or other is None:
        return figure is other
    return math.isclose(figure, other, rel_tol=1e-9, abs_tol=1e-12)


def shown_finding(
    finding: Finding,
    report: Report,
    shown: Mapping[Any, Row],
    by_place: Mapping[tuple[str, ...], Sequence[Row]],
) -> Finding:
    """The same claim, its figures rounded or withheld as those of its rows."""
    alike = by_place.get(figure_place(finding), [])
    units = {finding.unit} if finding.unit else {row.unit for row in alike}
    own = [r for r in alike if _is_same(r.value, finding.value) and r.unit in units]
    # Over sources and over seeds the value is the same, and the interval is not.
    own.sort(
        key=lambda r: (
            not _is_same(r.low, finding.low) or not _is_same(r.high, finding.high)
        )
    )
    gone = any(shown[row_key(row)].withheld for row in own or alike)
    sizes = filter(None, (row.clusters for row in own or alike))
    clusters = min(sizes, default=report.manifest.n_clusters)
    scale = 100 if finding.unit == "points" else 1
    shares = {k: v / scale for k in MEANT if (v := getattr(finding, k)) is not None}
    # What it claims, as a row: the row that it rests on may have other figures.
    whole = Row(
        audit=finding.audit,
        checkpoint=finding.checkpoint,
        metric=finding.metric,
        unit="" if finding.unit in ("AUC", "points") else finding.unit,
        clusters=clusters,
        status="not_estimable" if finding.value is None else "ok",
        note="none",
        **shares,
    )
    claimed, source = shown_row(whole), None
    if own:
        source, scale = shown[row_key(own[0])], 1
    elif finding.unit in DIFFERENCES and not gone:
        source = claimed
    figures: dict[str, Any] = dict.fromkeys(MEANT)
    for name in MEANT:
        if (value := getattr(source, name, None)) is not None:
            figures[name] = with_digits(value * scale)
    if figures["mde"] is None and not gone:
        figures["mde"] = _effect(finding.mde, claimed)
    if figures["at_most"] is None and not gone:
        figures["at_most"] = _end(finding, claimed)
    for name in PS:
        if (p := getattr(finding, name)) is not None:
            figures[name] = rounded_p(p)
    facts = {
        name: shown_named_fact(name, fact, shown, clusters, gone=gone)
        for name, fact in finding.facts.items()
    }
    # Standard errors stay here; why nothing can be detected does not.
    power = [
        Power(test=one.test, why=one.why, of=one.of, mde=_effect(one.mde, claimed))
        for one in finding.power
        if not gone
    ]
    # Bounds hold the figure as it is, and its standard error.
    return finding.model_copy(
        update={**figures, "facts": facts, "power": power, "bounds": []}
    )


def _end(finding: Finding, claimed: Row) -> float | None:
    """What could still be there, as finely as the figure that is claimed."""
    if finding.at_most is None:
        return None
    step = step_of(claimed)
    if step is None:
        return with_digits(finding.at_most)
    scale = 100 if finding.unit == "points" else 1
    return rounded(finding.at_most, scale * step)


def _effect(mde: float | None, claimed: Row) -> float | None:
    """A smallest effect, as finely as the figure that is claimed."""
    step = None if mde is None else step_of(claimed)
    return mde if step is None or mde is None else rounded_up(mde, step)
