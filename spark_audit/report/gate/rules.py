"""Rules of the gate, as they are typed.

``AUDIT.METRIC[.OF].(value|low|high|p) OP NUMBER``, or ``claim OP CLAIM`` by severity,
of every checkpoint of the report, or ``for CHECKPOINT``, or ``except CHECKPOINT, ...``.
``guard trained_rows_fit`` trips where trained rows fit no better than held-out ones.
Behind a metric ``[type=EMAIL]`` or ``[type=*]`` names a part of the rows.
``AUDIT.METRIC[.OF] rose by NUMBER``, or ``fell by``, is of the change since an earlier
report: it trips where a change is shown that may be as large as that, and where one of
that size could not have been seen.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spark_audit.audits import about, audit_names
from spark_audit.audits.setup_guards import REMAINS
from spark_audit.audits.trained_rows import TRAINED_ROWS_FIT
from spark_audit.errors import InputError, choose, one_of
from spark_audit.names import (
    ANY_NAME,
)
from spark_audit.results.findings import SEVERITY

FIELDS = ("value", "low", "high", "p")

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}

DEFAULT_RULES = ("claim >= membership",)
"""What trips where no rule is given: membership, memory, and verbatim extraction."""

_SCOPE = r"(?:\s+(?P<scope>for|except)\s+(?P<names>\S.*?))?\s*"

_CLAIM = re.compile(
    r"\s*claim\s*(?P<operator><=|>=|==|!=|<|>)\s*(?P<claim>[a-z_]+)" + _SCOPE
)

_GUARD = re.compile(r"\s*guard\s+(?P<guard>\w+)" + _SCOPE)

_RULE = re.compile(
    r"\s*(?P<figure>\S+?)(?:\[(?P<kind>\w+)=(?P<part>[^\]]+)\](?P<field>\.\w+)?)?\s*"
    r"(?P<operator><=|>=|==|!=|<|>|\s(?:rose|fell)\s+by\s)\s*"
    r"(?P<bound>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)" + _SCOPE
)

RULE_SHAPE = (
    "write AUDIT.METRIC[.OF].value|low|high|p OP NUMBER, AUDIT.METRIC[.OF] rose by "
    "NUMBER, claim OP CLAIM or guard NAME [for CHECKPOINT | except CHECKPOINT, ...]"
)

GUARDS = (TRAINED_ROWS_FIT,)
"""Guards that a rule may name; those that void claims violate every rule anyhow."""

CHANGES = ("rose", "fell")
"""Operators of a change since an earlier report."""


@dataclass(frozen=True)
class Rule:
    """One rule as it was read: of one checkpoint, or of all but some.

    A rule on claims has a claim and its severity as ``bound``, and no figure; one on a
    guard has its name alone. ``group`` is a part of the rows, ``type:*`` each of a
    kind.
    """

    text: str
    operator: str
    bound: float
    checkpoint: str | None = None
    but: str | None = None
    audit: str = ""
    metric: str = ""
    of: str = ""
    field: str = ""
    claim: str = ""
    guard: str = ""
    group: str = "pooled"

    @property
    def change(self) -> bool:
        """Whether it is of the change since an earlier report."""
        return self.operator in CHANGES

    def holds(self, group: str) -> bool:
        """Whether it is of such a part of the rows."""
        kind, _, part = self.group.partition(":")
        return group.startswith(f"{kind}:") if part == "*" else group == self.group


def parse_rule(text: str) -> Rule:
    """Read a rule.

    Raises
    ------
    InputError
        If it cannot be read, or names an audit, metric or variant that there is not;
        the known ones are listed.
    """
    where = f"--fail-if {text!r}"
    match = _CLAIM.fullmatch(text) or _GUARD.fullmatch(text) or _RULE.fullmatch(text)
    if match is None:
        raise InputError("is no rule", where=where, fix=RULE_SHAPE)
    text = text.strip()
    checkpoint = match["names"] if match["scope"] == "for" else None
    but = match["names"] if match["scope"] == "except" else None
    if match.re is _GUARD:
        guard = match["guard"]
        _check_guard(guard, where)
        return Rule(
            text=text,
            operator="",
            bound=0.0,
            checkpoint=checkpoint,
            but=but,
            guard=guard,
        )

    operator_shown = match["operator"].split()[0]
    if match.re is _CLAIM:
        claim = match["claim"]
        if claim not in SEVERITY:
            fix = choose(_nearest_claim(claim), SEVERITY)
            raise InputError(f"unknown claim {claim!r}", where=where, fix=fix)
        return Rule(
            text=text,
            operator=operator_shown,
            bound=SEVERITY[claim],
            checkpoint=checkpoint,
            but=but,
            claim=claim,
        )

    audit, _, rest = match["figure"].partition(".")
    one_of(audit, where, audit_names())
    group = "pooled"
    if match["kind"]:
        group = f"{match['kind']}:{match['part']}"
        rest += match["field"] or ""
    field = "value"
    if operator_shown not in CHANGES:
        rest, _, field = rest.rpartition(".")
    if field not in FIELDS:
        fields = ", ".join(f".{one}" for one in FIELDS)
        fix = f"end {match['figure']} with one of: {fields}"
        raise InputError("the rule does not say which number", where=where, fix=fix)
    if not math.isfinite(bound := float(match["bound"])):
        raise InputError("its bound is not finite", where=where, fix=RULE_SHAPE)
    metric, of = _named(rest, audit, where)
    return Rule(
        text=text,
        operator=operator_shown,
        bound=bound,
        checkpoint=checkpoint,
        but=but,
        audit=audit,
        metric=metric,
        of=of,
        field=field,
        group=group,
    )


def _nearest_claim(text: str) -> str:
    """Return the severest claim of the audit that a text begins with, else the text."""
    for name in audit_names():
        claim = about(name).strongest_claim
        if claim is not None and text.startswith(name):
            return claim
    return text


def _check_guard(name: str, where: str) -> None:
    """Refuse a guard that no rule can name.

    Raises
    ------
    InputError
        With what can be named, or why there is no need to.
    """
    if name in GUARDS:
        return
    if name in REMAINS:
        fix = f"leave it out: a checkpoint for which {name} fails violates every rule"
        raise InputError(f"{name} needs no rule", where=where, fix=fix)
    fix = choose(name, GUARDS)
    raise InputError(f"unknown guard {name!r}", where=where, fix=fix)


def _named(text: str, audit: str, where: str) -> tuple[str, str]:
    """Metric and variant; of metrics that it may name the longest: names hold dots."""
    metrics = {metric.name: metric.variants for metric in about(audit).metrics}
    meant = (name for name in metrics if f"{text}.".startswith(f"{name}."))
    metric = max(meant, key=len, default=None)
    if metric is None:
        fix = choose(text.partition(".")[0], metrics)
        raise InputError(f"{audit} has no metric {text!r}", where=where, fix=fix)
    of, known = text[len(metric) + 1 :], metrics[metric]
    if of not in known and not (ANY_NAME in known and of):
        fix = "" if "" in known else f"write {audit}.{metric}.VARIANT; "
        fix += choose(of, (name or "(none)" for name in known))
        what = f"{audit}.{metric} has no variant {of!r}"
        raise InputError(what, where=where, fix=fix)
    return metric, of
