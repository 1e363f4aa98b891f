"""Rules that a report must pass before a checkpoint ships.

``AUDIT.METRIC[.OF].(value|low|high|p) OP NUMBER``, or ``claim OP CLAIM`` by severity,
of every checkpoint of the report, or ``for CHECKPOINT``, or ``except CHECKPOINT, ...``.
A figure that was not measured trips a rule as well, and so does a checkpoint whose
memory was not tested where a claim is asked for, because a gate must not pass for want
of evidence. Whom a rule leaves out is said.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from spark_audit.audits import about, all_audits
from spark_audit.audits.claims import faults
from spark_audit.errors import InputError, choose
from spark_audit.names import ANY, BASE, entry_of, series_of
from spark_audit.report.coverage import untested
from spark_audit.report.disclosure import disclosed
from spark_audit.results import Contrast, Report, Row, number
from spark_audit.results.findings import SEVERITY
from spark_audit.results.rows import WITHHELD

FIELDS = ("value", "low", "high", "p")
OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}
NOBODY = "-"
"""Stands for the checkpoint where a rule has none to judge."""

DEFAULT = ("claim >= membership",)
"""What trips where no rule is given: membership, memory, and verbatim extraction."""

_SCOPE = r"(?:\s+(?P<scope>for|except)\s+(?P<names>\S.*?))?\s*"
_CLAIM = re.compile(
    r"\s*claim\s*(?P<operator><=|>=|==|!=|<|>)\s*(?P<claim>[a-z_]+)" + _SCOPE
)
_RULE = re.compile(
    r"\s*(?P<figure>\S+?)\s*(?P<operator><=|>=|==|!=|<|>)\s*"
    r"(?P<bound>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)" + _SCOPE
)
SHAPE = (
    "write AUDIT.METRIC[.OF].value|low|high|p OP NUMBER or claim OP CLAIM "
    "[for CHECKPOINT | except CHECKPOINT, ...]"
)


@dataclass(frozen=True)
class Rule:
    """One rule as it was read: of one checkpoint, or of all but some.

    A rule on claims has a claim and its severity as ``bound``, and no figure.
    """

    text: str
    audit: str
    metric: str
    of: str
    field: str
    operator: str
    bound: float
    checkpoint: str | None
    but: str | None
    claim: str = ""


@dataclass(frozen=True)
class Finding:
    """What a rule came to on one checkpoint, or why it leaves it out."""

    rule: str
    checkpoint: str
    state: Literal["ok", "tripped", "missing", "left_out"]
    detail: str


def parse_rule(text: str) -> Rule:
    """Read a rule.

    Raises
    ------
    InputError
        If it cannot be read, or names an audit, metric or variant that there is not;
        the known ones are listed.
    """
    where = f"--fail-if {text!r}"
    if (match := _CLAIM.fullmatch(text)) is not None:
        return _claim_rule(text, match, where)
    match = _RULE.fullmatch(text)
    if match is None:
        raise InputError("is no rule", where=where, fix=SHAPE)
    audit, _, rest = match["figure"].partition(".")
    if audit not in all_audits():
        raise InputError(
            f"unknown audit {audit!r}",
            where=where,
            fix=choose(audit, all_audits()),
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
        **_scope(match),
    )


def _scope(match: re.Match[str]) -> dict[str, Any]:
    names = match["names"]
    return {
        "checkpoint": names if match["scope"] == "for" else None,
        "but": names if match["scope"] == "except" else None,
    }


def _claim_rule(text: str, match: re.Match[str], where: str) -> Rule:
    """``claim OP CLAIM``."""
    claim = match["claim"]
    if claim not in SEVERITY:
        raise InputError(
            f"unknown claim {claim!r}",
            where=where,
            fix=choose(claim, SEVERITY),
        )
    return Rule(
        text=text.strip(),
        audit="",
        metric="",
        of="",
        field="",
        operator=match["operator"],
        bound=SEVERITY[claim],
        **_scope(match),
        claim=claim,
    )


def _named(text: str, audit: str, where: str) -> tuple[str, str]:
    """Metric and variant, longest names first: both may hold dots."""
    metrics = {metric.name: metric.variants for metric in about(audit).metrics}
    for metric in sorted(metrics, key=len, reverse=True):
        if text != metric and not text.startswith(f"{metric}."):
            continue
        of, known = text[len(metric) + 1 :], metrics[metric]
        if of in known or (ANY in known and of):
            return metric, of
        raise InputError(
            f"{audit}.{metric} has no variant {of!r}" if of else f"{metric} needs one",
            where=where,
            fix=choose(of, (name or "(none)" for name in known)),
        )
    raise InputError(
        f"unknown metric {text!r} of {audit}",
        where=where,
        fix=choose(text.partition(".")[0], metrics),
    )


def check(
    report: Report, rules: Sequence[Rule], *, allow_missing: bool = False
) -> list[Finding]:
    """What each rule comes to on every checkpoint, the base and the baseline too.

    A checkpoint is left out where the rule says so, or where there can be no figure of
    it. Only the pooled figure and its decision interval count; ``p`` is the adjusted
    one where there is one. Exact figures decide, those of shared files are shown.

    Raises
    ------
    InputError
        If a rule names a checkpoint that the report has not.
    """
    found: list[Finding] = []
    shared = disclosed(report)
    for rule in dict.fromkeys(rules):
        found += _check(report, rule, shared, allow_missing=allow_missing)
    return found


def judged(found: Sequence[Finding]) -> list[str]:
    """One line per rule: how many checkpoints it judged, and which it left out."""
    lines = []
    for rule in dict.fromkeys(one.rule for one in found):
        mine = [one for one in found if one.rule == rule and one.checkpoint != NOBODY]
        out = [one for one in mine if one.state == "left_out"]
        reasons: dict[str, list[str]] = {}
        for one in out:
            reasons.setdefault(one.detail, []).append(one.checkpoint)
        line = f"{rule}: judged {len(mine) - len(out)} of {len(mine)} checkpoints"
        for reason, names in reasons.items():
            line += f"; left out: {', '.join(names)} ({reason})"
        lines.append(line)
    return lines


def _check(
    report: Report, rule: Rule, shared: Report, *, allow_missing: bool
) -> list[Finding]:
    rows = [] if rule.claim else _rows(report, rule)
    told = [] if rule.claim else _rows(shared, rule)
    names = _names(report)
    chosen = _chosen(rule, names)
    found = []
    for name in names:
        mine = [row for row in rows if row.checkpoint == name]
        reason = None if name in chosen else "by the rule"
        if reason is None and rule.checkpoint is None and not mine:
            reason = _impossible(report, rule, rows, name)
        if reason is not None:
            found.append(Finding(rule.text, name, "left_out", reason))
            continue
        if rule.claim:
            one = _claimed(report, rule, name)
        else:
            own = [row for row in told if row.checkpoint == name]
            one = _finding(report, rule, name, mine, own)
        if failed := faults(shared.guards, name):
            why = "; ".join(f"{guard.name}: {guard.detail}" for guard in failed)
            if one.state == "tripped":
                one = replace(one, detail=f"{one.detail}; {why}")
            else:
                one = replace(one, state="missing", detail=why)
        if one.state == "missing" and not allow_missing:
            one = replace(one, state="tripped")
        found.append(one)
    if all(one.state == "left_out" for one in found):
        state: Literal["missing", "tripped"] = "missing" if allow_missing else "tripped"
        found.append(Finding(rule.text, NOBODY, state, "no checkpoint to check"))
    return found


def _chosen(rule: Rule, names: Sequence[str]) -> set[str]:
    """Whom a rule speaks of; a method that is left out takes its seeds along."""
    if rule.checkpoint is not None:
        return set(_known([rule.checkpoint], rule, names))
    if rule.but is None:
        return set(names)
    # A name may hold a comma itself.
    texts = [rule.but] if rule.but in names else rule.but.split(",")
    but = set(_known([text.strip() for text in texts], rule, names))
    return {name for name in names if not {name, entry_of(name)} & but}


def _known(texts: Sequence[str], rule: Rule, names: Sequence[str]) -> Sequence[str]:
    for text in texts:
        if text not in names:
            raise InputError(
                f"{text!r} is none of the report's checkpoints",
                where=f"--fail-if {rule.text!r}",
                fix=choose(text, names),
            )
    return texts


def _impossible(
    report: Report, rule: Rule, rows: Sequence[Row], name: str
) -> str | None:
    """Why there is no such figure of a checkpoint, whatever is measured."""
    if rule.claim:
        return "trained on nothing" if name == BASE else None
    contrasts = [row for row in rows if isinstance(row, Contrast)]
    if contrasts:
        baseline = report.settings.get("baseline")
        others = {baseline} if baseline else {row.baseline for row in contrasts}
        if {name, entry_of(name)} & {BASE, *others}:
            return "compared with nothing"
    if name == BASE and (here := [row for row in rows if row.checkpoint == BASE]):
        measured = any(row.value is not None for row in rows if row.checkpoint != BASE)
        if measured and all(row.value is None for row in here):
            return here[0].note  # such as: it is the reference itself
    rounded = {one.name for one in report.checkpoints if one.quantised_from is not None}
    if name in rounded and about(rule.audit).of_series:
        return "stages are not rounded"
    return None


def _names(report: Report) -> list[str]:
    """Whom a rule can speak of: checkpoints, and methods that have several seeds.

    A series that only its stages were scored of is known from its rows; a stage speaks
    through its series.
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


def _finding(
    report: Report, rule: Rule, name: str, rows: Sequence[Row], shared: Sequence[Row]
) -> Finding:
    """What a rule comes to, in the figures of ``shared``: many read the logs."""
    sound = [
        (value, WITHHELD if told.withheld else number(_value(told, rule.field), 4))
        for row, told in zip(rows, shared, strict=True)
        if row.status == "ok" and (value := _value(row, rule.field)) is not None
    ]
    values = [value for value, _ in sound]
    shown = f"{rule.field} " + ", ".join(told for _, told in sound)
    # What was measured trips, whatever is missing beside it.
    if any(OPERATORS[rule.operator](value, rule.bound) for value in values):
        return Finding(rule.text, name, "tripped", shown)
    if report.status == "partial":
        return Finding(rule.text, name, "missing", "the report is partial (--limit)")
    if not rows:
        return Finding(rule.text, name, "missing", "was not measured")
    lost = next((row for row in rows if row.status != "ok"), None)
    if lost is not None:
        state = lost.status.replace("_", " ")
        detail = f"{state}: {lost.note}" if lost.note else state
        return Finding(rule.text, name, "missing", detail)
    if not values:
        return Finding(rule.text, name, "missing", f"has no {rule.field}")
    return Finding(rule.text, name, "ok", shown)


def _claimed(report: Report, rule: Rule, name: str) -> Finding:
    """What is claimed of a checkpoint; one whose memory was not tested is missing."""
    own = [one for one in report.findings if one.checkpoint == name]
    # One of several claims of the same severity is meant by its name.
    tripped = [
        one
        for one in own
        if (
            (one.claim == rule.claim) == (rule.operator == "==")
            if rule.operator in ("==", "!=")
            else OPERATORS[rule.operator](one.severity, rule.bound)
        )
    ]
    told = dict.fromkeys(f"{one.claim} ({one.audit})" for one in tripped or own)
    shown = ", ".join(told) or "nothing"
    if tripped:
        return Finding(rule.text, name, "tripped", shown)
    if report.status == "partial":
        return Finding(rule.text, name, "missing", "the report is partial (--limit)")
    if untested(report.findings, [name]):
        return Finding(rule.text, name, "missing", "its memory was not tested")
    if passed := [one for one in own if one.detected]:
        least = min(passed, key=lambda one: one.severity).claim
        shown += (
            f"; passes, although detected: the rule leaves it out, --fail-if 'claim >= "
            f"{least}' does not"
        )
    return Finding(rule.text, name, "ok", shown)


def _value(row: Row, field: str) -> float | None:
    if field != "p":
        found: float | None = getattr(row, field)
        return found
    assert isinstance(row, Contrast)
    return row.p if row.p_adjusted is None else row.p_adjusted
