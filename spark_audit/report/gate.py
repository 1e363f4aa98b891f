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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from spark_audit.audits import about, all_audits
from spark_audit.audits.claims import faults
from spark_audit.errors import InputError, choose, visible
from spark_audit.names import ANY, BASE, entry_of, series_of
from spark_audit.report.coverage import untested
from spark_audit.report.disclosure import disclosed
from spark_audit.report.writers.template import environment
from spark_audit.results import Contrast, Report, Row, number
from spark_audit.results.findings import SEVERITY
from spark_audit.results.rows import WITHHELD
from spark_audit.sentences import render

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


State: TypeAlias = Literal["ok", "tripped", "missing", "left_out"]


@dataclass(frozen=True)
class Rule:
    """One rule as it was read: of one checkpoint, or of all but some.

    A rule on claims has a claim and its severity as ``bound``, and no figure.
    """

    text: str
    operator: str
    bound: float
    checkpoint: str | None
    but: str | None
    audit: str = ""
    metric: str = ""
    of: str = ""
    field: str = ""
    claim: str = ""


@dataclass(frozen=True)
class Finding:
    """What a rule came to on one checkpoint, or why it leaves it out."""

    rule: str
    checkpoint: str
    state: State
    detail: str

    @property
    def whom(self) -> str:
        """The checkpoint, as logs show it."""
        return (
            "no checkpoint" if self.checkpoint == NOBODY else visible(self.checkpoint)
        )


def parse_rule(text: str) -> Rule:
    """Read a rule.

    Raises
    ------
    InputError
        If it cannot be read, or names an audit, metric or variant that there is not;
        the known ones are listed.
    """
    where = f"--fail-if {text!r}"
    match = _CLAIM.fullmatch(text) or _RULE.fullmatch(text)
    if match is None:
        raise InputError("is no rule", where=where, fix=SHAPE)
    rule = partial(
        Rule,
        text=text.strip(),
        operator=match["operator"],
        checkpoint=match["names"] if match["scope"] == "for" else None,
        but=match["names"] if match["scope"] == "except" else None,
    )
    if match.re is _CLAIM:
        claim = match["claim"]
        if claim not in SEVERITY:
            fix = choose(claim, SEVERITY)
            raise InputError(f"unknown claim {claim!r}", where=where, fix=fix)
        return rule(bound=SEVERITY[claim], claim=claim)
    audit, _, rest = match["figure"].partition(".")
    if audit not in all_audits():
        fix = choose(audit, all_audits())
        raise InputError(f"unknown audit {audit!r}", where=where, fix=fix)
    rest, _, field = rest.rpartition(".")
    if field not in FIELDS:
        fix = f"end the figure with one of: {', '.join(FIELDS)}"
        raise InputError(f"{field!r} is no field of a figure", where=where, fix=fix)
    if not math.isfinite(bound := float(match["bound"])):
        raise InputError("its bound is not finite", where=where, fix=SHAPE)
    metric, of = _named(rest, audit, where)
    return rule(audit=audit, metric=metric, of=of, field=field, bound=bound)


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
        out: dict[str, list[str]] = {}
        for one in mine:
            if one.state == "left_out":
                out.setdefault(one.detail, []).append(one.checkpoint)
        counted = len(mine) - sum(map(len, out.values()))
        facts = {"rule": rule, "judged": counted, "all": len(mine), "left_out": out}
        lines.append(render("gate.judged", **facts))
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
        reason = None if name in chosen else render("gate.rule")
        if reason is None and rule.checkpoint is None and not mine:
            reason = _impossible(report, rule, rows, name)
        if reason is not None:
            found.append(Finding(rule.text, name, "left_out", reason))
            continue
        if rule.claim:
            state, detail = _claimed(report, rule, name)
        else:
            own = [row for row in told if row.checkpoint == name]
            state, detail = _measured(report, rule, mine, own)
        if failed := faults(shared.guards, name):
            why = "; ".join(f"{guard.name}: {guard.detail}" for guard in failed)
            detail = f"{detail}; {why}" if state == "tripped" else why
            state = "tripped" if state == "tripped" else "missing"
        if state == "missing" and not allow_missing:
            state = "tripped"
        found.append(Finding(rule.text, name, state, detail))
    if all(one.state == "left_out" for one in found):
        state = "missing" if allow_missing else "tripped"
        found.append(Finding(rule.text, NOBODY, state, render("gate.nobody")))
    return found


def _chosen(rule: Rule, names: Sequence[str]) -> set[str]:
    """Whom a rule speaks of; a method that is left out takes its seeds along."""
    texts = [rule.checkpoint or rule.but or ""]
    if rule.but is not None and rule.but not in names:
        # A name may hold a comma itself.
        texts = [text.strip() for text in rule.but.split(",")]
    for text in filter(None, texts):
        if text not in names:
            raise InputError(
                f"{text!r} is none of the report's checkpoints",
                where=f"--fail-if {rule.text!r}",
                fix=choose(text, names),
            )
    if rule.checkpoint is not None:
        return {rule.checkpoint}
    return {name for name in names if not {name, entry_of(name)} & {*texts}}


def _impossible(
    report: Report, rule: Rule, rows: Sequence[Row], name: str
) -> str | None:
    """Why there is no such figure of a checkpoint, whatever is measured."""
    if rule.claim:
        return render("gate.base") if name == BASE else None
    contrasts = [row for row in rows if isinstance(row, Contrast)]
    if contrasts:
        baseline = report.settings.get("baseline")
        others = {baseline} if baseline else {row.baseline for row in contrasts}
        if {name, entry_of(name)} & {BASE, *others}:
            return render("gate.baseline")
    if name == BASE and (here := [row for row in rows if row.checkpoint == BASE]):
        measured = any(row.value is not None for row in rows if row.checkpoint != BASE)
        if measured and all(row.value is None for row in here):
            return here[0].note  # such as: it is the reference itself
    rounded = {one.name for one in report.checkpoints if one.quantised_from is not None}
    if name in rounded and about(rule.audit).of_series:
        return render("gate.stages")
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
    wanted = (rule.audit, rule.metric, rule.of, "pooled")
    results: Sequence[Row] = () if rule.field == "p" else report.results
    places: Iterable[Sequence[Row]] = (results, report.contrasts)
    found = (
        [r for r in rows if (r.audit, r.metric, r.of, r.group) == wanted]
        for rows in places
    )
    return next(filter(None, found), [])


def _measured(
    report: Report, rule: Rule, rows: Sequence[Row], shared: Sequence[Row]
) -> tuple[State, str]:
    """What a rule comes to, in the figures of ``shared``: many read the logs."""
    sound = [
        (value, WITHHELD if told.withheld else number(_value(told, rule.field), 4))
        for row, told in zip(rows, shared, strict=True)
        if row.status == "ok" and (value := _value(row, rule.field)) is not None
    ]
    shown = f"{rule.field} " + ", ".join(told for _, told in sound)
    # What was measured trips, whatever is missing beside it.
    if any(OPERATORS[rule.operator](value, rule.bound) for value, _ in sound):
        return "tripped", shown
    if report.status == "partial":
        return "missing", render("gate.partial")
    if not rows:
        audits = dict.fromkeys(row.audit for row in report.results)
        return "missing", render("gate.unmeasured", audit=rule.audit, audits=audits)
    lost = next((row for row in rows if row.status != "ok"), None)
    if lost is not None:
        state = lost.status.replace("_", " ")
        return "missing", f"{state}: {lost.note}" if lost.note else state
    return ("ok", shown) if sound else ("missing", f"has no {rule.field}")


def _claimed(report: Report, rule: Rule, name: str) -> tuple[State, str]:
    """What is claimed of a checkpoint; one whose memory was not tested is missing."""
    own = [one for one in report.findings if one.checkpoint == name]
    holds = OPERATORS[rule.operator]
    tripped = [one for one in own if holds(one.severity, rule.bound)]
    if rule.operator in ("==", "!="):
        # One of several claims of the same severity is meant by its name.
        equal = rule.operator == "=="
        tripped = [one for one in own if (one.claim == rule.claim) is equal]
    told = dict.fromkeys(f"{one.claim} ({one.audit})" for one in tripped or own)
    shown = ", ".join(told) or render("gate.nothing")
    if tripped:
        return "tripped", shown
    if report.status == "partial":
        return "missing", render("gate.partial")
    if untested(report.findings, [name]):
        return "missing", render("gate.untested")
    if passed := [one for one in own if one.detected]:
        least = min(passed, key=lambda one: one.severity).claim
        shown = render("gate.passes", shown=shown, least=least)
    return "ok", shown


def _value(row: Row, field: str) -> float | None:
    if field != "p":
        found: float | None = getattr(row, field)
        return found
    assert isinstance(row, Contrast)
    return row.p if row.p_adjusted is None else row.p_adjusted


# --- what the tools of a pipeline read ------------------------------------------------

LEVELS = {"tripped": "error", "missing": "warning"}
"""States that stand at a run of GitHub Actions, and as what."""
_ESCAPED = {"%": "%25", "\r": "%0D", "\n": "%0A"}


def junit(found: Sequence[Finding], *, name: str) -> str:
    """One suite a rule, one case a checkpoint: failed where it tripped.

    Cases whose figure is missing, where that may be, and those that a rule leaves out
    are skipped.

    Parameters
    ----------
    name
        Of all suites, such as the report's folder.
    """
    rules = dict.fromkeys(one.rule for one in found)
    return (
        environment(visible=visible)
        .get_template("junit.xml")
        .render(
            name=name,
            found=found,
            rules={k: [one for one in found if one.rule == k] for k in rules},
        )
    )


def for_github(found: Sequence[Finding]) -> Iterator[str]:
    """Workflow commands of GitHub Actions, one a rule that tripped or lacks a figure.

    Format: docs.github.com, "Workflow commands for GitHub Actions".
    """
    for one in found:
        if (level := LEVELS.get(one.state)) is not None:
            title = _escaped(f"spark-audit gate: {one.whom}")
            title = title.replace(":", "%3A").replace(",", "%2C")
            yield f"::{level} title={title}::{_escaped(f'{one.rule}: {one.detail}')}"


def _escaped(text: str) -> str:
    return "".join(_ESCAPED.get(letter, letter) for letter in visible(text, keep="\n"))
