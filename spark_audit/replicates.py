"""Several seeds of one method as one entry, with intervals over sources, seeds or both.

Replicates are audited one by one as ``NAME[1]``, ``NAME[2]``, and every figure of the
entry ``NAME`` is their mean. Over sources, its limits are the means of theirs, unless
the audit has worked the mean out itself: an upper bound, reached where the replicates'
errors move together, as they nearly do over the same sources. Over seeds, it has the t
interval of the replicates' values. Over both, half-widths are added in quadrature,
which counts the part of the error that belongs to source and seed together twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from scipy import special

from spark_audit.audits import replicate_of
from spark_audit.results import AuditResult, Contrast, Estimate, Row, number
from spark_audit.stats.intervals import ratio_estimate

R = TypeVar("R", bound=Row)

AVERAGED = "limits are the mean of the replicates' limits: conservative"
QUADRATURE = "sources and seeds added in quadrature: conservative"
_WORST = ("not_resolvable", "insensitive", "invalid")


def with_entries(result: AuditResult) -> AuditResult:
    """The result with rows and contrasts of every method that has replicates."""
    rows = _entries(result.rows, _row_key, _plain)
    contrasts = _entries(result.contrasts, _contrast_key, _against)
    if not rows and not contrasts:
        return result
    return replace(
        result,
        rows=[*result.rows, *rows],
        contrasts=[*result.contrasts, *contrasts],
        verdict=[*result.verdict, *_sentences(contrasts)],
    )


def _row_key(row: Row) -> tuple[str, ...]:
    return (row.metric, row.of, row.group)


def _contrast_key(row: Contrast) -> tuple[str, ...]:
    return (*_row_key(row), _method(row.baseline))


def _method(name: str) -> str:
    found = replicate_of(name)
    return name if found is None else found[0]


def _plain(rows: Sequence[Row]) -> dict[str, Any]:
    return {}


def _against(rows: Sequence[Contrast]) -> dict[str, Any]:
    """Baseline of an entry's contrast, and the t test over seeds.

    Tested is what lies beyond the range that holds no effect: from 0 to the null value.
    """
    beyond = []
    for row in rows:
        assert row.value is not None
        ends = (0.0, row.null or 0.0)
        beyond.append(row.value - min(max(row.value, min(ends)), max(ends)))
    spread = float(np.std(beyond, ddof=1)) / np.sqrt(len(beyond))
    p = None
    if spread > 0:
        t = abs(float(np.mean(beyond))) / spread
        p = float(2 * special.stdtr(len(beyond) - 1, -t))
    return {"baseline": _method(rows[0].baseline), "p": p}


def _entries(
    rows: Sequence[R],
    key: Callable[[R], tuple[str, ...]],
    further: Callable[[Sequence[R]], dict[str, Any]],
) -> list[R]:
    groups: dict[tuple[str, ...], list[R]] = {}
    own = {(row.checkpoint, *key(row)): row for row in rows}
    for row in rows:
        found = replicate_of(row.checkpoint)
        if found is not None:
            groups.setdefault((found[0], *key(row)), []).append(row)
    made: list[R] = []
    for place, members in groups.items():
        if len(members) > 1:
            made += _entry(place[0], members, own.get(place), further)
    return made


def _entry(
    name: str,
    members: Sequence[R],
    own: R | None,
    further: Callable[[Sequence[R]], dict[str, Any]],
) -> list[R]:
    """Rows of one figure: over sources (unless it is there), over seeds, over both."""
    first = members[0]
    columns: dict[str, Any] = {
        key: getattr(first, key) for key in ("audit", "metric", "of", "group", "unit")
    }
    columns |= {"checkpoint": name, "family": "exploratory"}
    if isinstance(first, Contrast):
        columns["baseline"] = _method(first.baseline)
    values = [row.value for row in members if row.value is not None]
    if len(values) < len(members):
        lost = next(row.note for row in members if row.value is None)
        reason = f"{len(members) - len(values)} of {len(members)} replicates: {lost}"
        if own is not None:
            return []
        missing = Estimate.missing(reason)
        return [type(first).of_estimate(missing, over="both", **columns)]
    columns["status"] = max(
        (row.status for row in members),
        key=lambda status: _WORST.index(status) if status in _WORST else -1,
    )
    for side in ("null", "null_low", "null_high"):
        columns[side] = _mean(getattr(row, side) for row in members)
    mean = float(np.mean(values))
    sources = Estimate(
        mean,
        low=_mean(row.low for row in members),
        high=_mean(row.high for row in members),
        interval=first.interval,
        level=first.level,
        n=first.n,
        clusters=first.clusters,
        note=f"mean of {len(members)} replicates; {AVERAGED}",
    )
    if own is not None:
        assert own.value is not None
        mean = own.value
        sources = replace(sources, value=mean, low=own.low, high=own.high)
    seeds = ratio_estimate(values, np.ones(len(values)), level=first.level)
    seeds = replace(seeds, value=mean).noting(f"over {len(values)} seeds")
    both = _quadrature(sources, seeds)
    more = further(members)
    found: list[tuple[Estimate, str, dict[str, Any]]] = []
    if own is None:
        found.append((sources, "sources", {}))
    found += [(seeds, "seeds", more), (both, "both", {})]
    return [
        type(first).of_estimate(estimate, over=over, **{**columns, **extra})
        for estimate, over, extra in found
    ]


def _quadrature(sources: Estimate, seeds: Estimate) -> Estimate:
    value = sources.value
    assert value is not None
    sides = (sources.low, sources.high, seeds.low, seeds.high)
    if any(side is None for side in sides):
        return replace(
            sources, low=None, high=None, interval="none", note="no interval over both"
        )
    low, high, early, late = (abs(float(side or 0.0) - value) for side in sides)
    return replace(
        sources,
        low=value - float(np.hypot(low, early)),
        high=value + float(np.hypot(high, late)),
        interval="jackknife-t",
        parity_low=None,
        parity_high=None,
        note=QUADRATURE,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = list(values)
    if any(value is None for value in known):
        return None
    return float(np.mean([value or 0.0 for value in known]))


def _sentences(contrasts: Sequence[Contrast]) -> list[str]:
    """What the DiD of methods with several seeds is, in words."""
    lines = []
    for row in contrasts:
        if (row.metric, row.group, row.over) != ("did", "pooled", "both"):
            continue
        if row.value is None or row.low is None or row.high is None:
            continue
        lines.append(
            f"{row.checkpoint} against {row.baseline}, over sources and seeds: DiD "
            f"{number(row.value)} [{number(row.low)}, {number(row.high)}] nats."
        )
    return lines
