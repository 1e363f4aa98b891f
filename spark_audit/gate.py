"""Rules that a report must pass before a checkpoint ships.

``AUDIT.METRIC[.OF].(value|low|high|p) OP NUMBER [for CHECKPOINT]``; a figure that was
not measured trips a rule as well, because a gate must not pass for want of evidence.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from spark_audit.audits import AUDITS, BASE, entry_of, of_stages, series_of
from spark_audit.errors import InputError
from spark_audit.results import Contrast, Report, Row, number

FIELDS = ("value", "low", "high", "p")
OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}
ANY = "*"
"""Stands for any variant in an audit's catalogue."""

_RULE = re.compile(
    r"\s*(?P<figure>\S+?)\s*(?P<operator><=|>=|==|!=|<|>)\s*"
    r"(?P<bound>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"(?:\s+for\s+(?P<checkpoint>\S.*?))?\s*"
)
SHAPE = "write AUDIT.METRIC[.OF].value|low|high|p OP NUMBER [for CHECKPOINT]"


@dataclass(frozen=True)
class Rule:
    """One rule as it was read."""

    text: str
    audit: str
    metric: str
    of: str
    field: str
    operator: str
    bound: float
    checkpoint: str | None


@dataclass(frozen=True)
class Finding:
    """What a rule came to on one checkpoint."""

    rule: str
    checkpoint: str
    state: Literal["ok", "tripped", "missing"]
    detail: str


def catalogue(audit: str) -> Mapping[str, Sequence[str]]:
    """Metrics that an audit gives, each with its variants; ``*``: any.

    It is the ``CATALOGUE`` of the audit's file.
    """
    module = sys.modules[AUDITS.get(audit).run.__module__]
    found: Mapping[str, Sequence[str]] = getattr(module, "CATALOGUE", {})
    return found


def parse_rule(text: str) -> Rule:
    """Read a rule.

    Raises
    ------
    InputError
        If it cannot be read, or names an audit, metric or variant that there is not;
        the known ones are listed.
    """
    where = f"--fail-if {text!r}"
    match = _RULE.fullmatch(text)
    if match is None:
        raise InputError("is no rule", where=where, fix=SHAPE)
    audit, _, rest = match["figure"].partition(".")
    if audit not in AUDITS.names():
        raise InputError(
            f"unknown audit {audit!r}",
            where=where,
            fix=f"choose one of: {', '.join(AUDITS.names())}",
        )
    rest, _, field = rest.rpartition(".")
    if field not in FIELDS:
        raise InputError(
            f"{field!r} is no field of a figure",
            where=where,
            fix=f"end the figure with one of: {', '.join(FIELDS)}",
        )
    if not math.isfinite(float(match["bound"])):
        raise InputError("its bound is not finite", where=where, fix=SHAPE)
    metric, of = _named(rest, audit, where)
    return Rule(
        text=text.strip(),
        audit=audit,
        metric=metric,
        of=of,
        field=field,
        operator=match["operator"],
        bound=float(match["bound"]),
        checkpoint=match["checkpoint"],
    )


def _named(text: str, audit: str, where: str) -> tuple[str, str]:
    """Metric and variant, longest names first: both may hold dots."""
    metrics = catalogue(audit)
    for metric in sorted(metrics, key=len, reverse=True):
        if text != metric and not text.startswith(f"{metric}."):
            continue
        of, known = text[len(metric) + 1 :], metrics[metric]
        if of in known or (ANY in known and of):
            return metric, of
        listed = ", ".join(name or "(none)" for name in known)
        raise InputError(
            f"{audit}.{metric} has no variant {of!r}" if of else f"{metric} needs one",
            where=where,
            fix=f"known variants: {listed}",
        )
    raise InputError(
        f"unknown metric {text!r} of {audit}",
        where=where,
        fix=f"choose one of: {', '.join(metrics)}",
    )


def check(
    report: Report, rules: Sequence[Rule], *, allow_missing: bool = False
) -> list[Finding]:
    """What each rule comes to, on each checkpoint that it speaks of.

    Without ``for``, that is every checkpoint but the base and the baseline. Only the
    pooled figure and its decision interval count; ``p`` is the adjusted one where there
    is one.

    Raises
    ------
    InputError
        If a rule names a checkpoint that the report has not.
    """
    found: list[Finding] = []
    for rule in rules:
        found += _check(report, rule, allow_missing=allow_missing)
    return found


def _check(report: Report, rule: Rule, *, allow_missing: bool) -> list[Finding]:
    rows = _rows(report, rule)
    names = _names(report)
    if rule.checkpoint is not None:
        if rule.checkpoint not in names:
            raise InputError(
                f"{rule.checkpoint!r} is none of the report's checkpoints",
                where=f"--fail-if {rule.text!r}",
                fix=f"choose one of: {', '.join(names)}",
            )
        names = [rule.checkpoint]
    else:
        left_out = {BASE, report.settings.get("baseline")}
        rounded = {
            one.name
            for one in report.checkpoints
            if one.quantised_from is not None
            # Rounded copies of the baseline, and stages, which are never rounded.
            and (one.quantised_from in left_out or of_stages(rule.audit))
        }
        names = [
            name
            for name in names
            if not {name, entry_of(name)} & (left_out | rounded)
            and (entry_of(name) == name or entry_of(name) not in names)
        ]
    found = []
    for name in names:
        mine = [row for row in rows if row.checkpoint == name]
        found.append(_finding(report, rule, name, mine))
    if not found:
        found = [Finding(rule.text, "-", "missing", "no checkpoint to check")]
    if allow_missing:
        return found
    return [
        Finding(one.rule, one.checkpoint, "tripped", one.detail)
        if one.state == "missing"
        else one
        for one in found
    ]


def _names(report: Report) -> list[str]:
    """Whom a rule can speak of: checkpoints, and methods that have several seeds.

    A series that only its stages were scored of is known from its rows; a stage speaks
    through its series, a seed through its method.
    """
    rows = [*report.results, *report.contrasts]
    said = {row.checkpoint for row in rows}
    names = [*(one.name for one in report.checkpoints), *(r.checkpoint for r in rows)]
    return [
        name
        for name in dict.fromkeys(names)
        if name in said or series_of(name) == name or series_of(name) not in said
    ]


def _rows(report: Report, rule: Rule) -> list[Row]:
    """Pooled rows of the rule's figure; p values stand with contrasts only."""
    contrasts: list[Row] = list(report.contrasts)
    results: list[Row] = list(report.results)
    places = [contrasts] if rule.field == "p" else [results, contrasts]
    for rows in places:
        found = [
            row
            for row in rows
            if (row.audit, row.metric, row.of, row.group)
            == (rule.audit, rule.metric, rule.of, "pooled")
        ]
        if found:
            return found
    return []


def _finding(report: Report, rule: Rule, name: str, rows: Sequence[Row]) -> Finding:
    if report.status == "partial":
        return Finding(rule.text, name, "missing", "the report is partial (--limit)")
    if not rows:
        return Finding(rule.text, name, "missing", "was not measured")
    lost = next((row for row in rows if row.status != "ok"), None)
    if lost is not None:
        state = lost.status.replace("_", " ")
        detail = f"{state}: {lost.note}" if lost.note else state
        return Finding(rule.text, name, "missing", detail)
    values = [v for row in rows if (v := _value(row, rule.field)) is not None]
    if not values:
        return Finding(rule.text, name, "missing", f"has no {rule.field}")
    shown = ", ".join(number(value, 4) for value in values)
    hit = any(OPERATORS[rule.operator](value, rule.bound) for value in values)
    return Finding(rule.text, name, "tripped" if hit else "ok", f"{rule.field} {shown}")


def _value(row: Row, field: str) -> float | None:
    if field != "p":
        found: float | None = getattr(row, field)
        return found
    assert isinstance(row, Contrast)
    return row.p if row.p_adjusted is None else row.p_adjusted
