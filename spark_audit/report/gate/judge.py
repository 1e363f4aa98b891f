"""What each rule of the gate comes to on each checkpoint of a report.

A figure that was not measured trips a rule as well, and so does a checkpoint whose
memory was not tested where a claim is asked for, because a gate must not pass for want
of evidence. Whom a rule leaves out is said.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from spark_audit.audits import about
from spark_audit.audits.setup_guards import faults
from spark_audit.audits.trained_rows import training_of
from spark_audit.errors import InputError, visible
from spark_audit.names import (
    BASE,
    RELEARN,
    CheckpointName,
    check_known,
    entry_of,
    series_of,
)
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.gate.rules import OPERATORS, Rule
from spark_audit.report.standings import untested
from spark_audit.results import Contrast, Report, Row, grouped, number
from spark_audit.results import Finding as Claimed
from spark_audit.results.rows import WITHHELD
from spark_audit.sentences import render

NO_CHECKPOINT = "-"
"""Stands for the checkpoint where a rule has none to judge."""

State: TypeAlias = Literal["ok", "tripped", "missing", "left_out"]


@dataclass(frozen=True)
class RuleOutcome:
    """The outcome of a rule on one checkpoint, or why the rule leaves it out."""

    rule: str
    checkpoint: str
    state: State
    detail: str

    @property
    def whom(self) -> str:
        """The checkpoint, as logs show it."""
        return (
            "no checkpoint"
            if self.checkpoint == NO_CHECKPOINT
            else visible(self.checkpoint)
        )


Pairs: TypeAlias = Sequence[tuple[Row, Row]]
"""Rows with exact figures, which decide, and as shared: many read the logs."""


def check(
    report: Report,
    rules: Sequence[Rule],
    *,
    changed: Report | None = None,
    same: Collection[str] = (),
    allow_missing: bool = False,
) -> list[RuleOutcome]:
    """Return the outcome of each rule on every checkpoint, base and baseline too.

    A checkpoint is left out where the rule says so, or where there can be no figure of
    it. Only the pooled figure and its decision interval count; ``p`` is the adjusted
    one where there is one. Exact figures decide, those of shared files are shown.

    Parameters
    ----------
    changed, same
        The report with contrasts to an earlier one, and checkpoints that have not
        changed since, of :func:`spark_audit.pipeline.compare.changed_since`.

    Raises
    ------
    InputError
        If a rule names a checkpoint that the report has not, or is of a change and
        there is no earlier report.
    """
    known = {False: report} | ({} if changed is None else {True: changed})
    pairs = {change: (one, disclosed(one)) for change, one in known.items()}
    found: list[RuleOutcome] = []
    for rule in dict.fromkeys(rules):
        if rule.change not in pairs:
            where = f"--fail-if {rule.text!r}"
            raise InputError("is of a change", where=where, fix="add --against REPORT")
        own = list(_verdicts(*pairs[rule.change], rule, same))
        if all(state == "left_out" for _, state, _ in own):
            own.append((NO_CHECKPOINT, "missing", render("gate.nobody")))
        for name, state, detail in own:
            if state == "missing" and not allow_missing:
                state = "tripped"
            found.append(RuleOutcome(rule.text, name, state, detail))
    return found


def _verdicts(
    report: Report, shared: Report, rule: Rule, same: Collection[str]
) -> Iterator[tuple[str, State, str]]:
    """Yield the name of each checkpoint, the outcome of the rule on it, and why."""
    names, rows = _names(report), _rows(report, rule)
    by_name = grouped(
        zip(rows, _rows(shared, rule), strict=True), lambda pair: pair[0].checkpoint
    )
    chosen = _chosen(rule, names)
    for name in names:
        pairs = by_name.get(name, [])
        if name not in chosen:
            yield name, "left_out", render("gate.rule")
        elif reason := _impossible(report, rule, rows, name):
            yield name, "left_out", reason
        elif rule.change and name in same:
            yield name, "ok", render("gate.same")
        else:
            if rule.claim:
                state, detail = _claimed(report, rule, name)
            elif rule.guard:
                state, detail = _guarded(report, shared, rule, name)
            else:
                judge = _moved if rule.change else _measured
                state, detail = judge(report, rule, pairs)
            if failed := faults(shared.guards, name):
                why = "; ".join(f"{guard.name}: {guard.detail}" for guard in failed)
                detail = f"{detail}; {why}" if state == "tripped" else why
                state = "tripped" if state == "tripped" else "missing"
            yield name, state, detail


def judged(found: Sequence[RuleOutcome]) -> list[str]:
    """Return a line per rule: how many checkpoints it judged, and which it left out."""
    lines = []
    for rule, outcomes in grouped(found, attrgetter("rule")).items():
        of_checkpoints = [
            outcome for outcome in outcomes if outcome.checkpoint != NO_CHECKPOINT
        ]
        left_out = [one for one in of_checkpoints if one.state == "left_out"]
        n_judged = len(of_checkpoints) - len(left_out)
        parts = [
            render("gate.judged", rule=rule, judged=n_judged, all=len(of_checkpoints))
        ]
        for reason, skipped in grouped(left_out, attrgetter("detail")).items():
            names = [one.checkpoint for one in skipped]
            parts.append(render("gate.left_out", names=names, reason=reason))
        lines.append("; ".join(parts))
    return lines


def _chosen(rule: Rule, names: Sequence[str]) -> set[str]:
    """Return the checkpoints of a rule; a method stands for its seeds."""
    texts = [rule.checkpoint or rule.but or ""]
    if rule.but is not None and rule.but not in names:
        # A name may hold a comma itself.
        texts = [text.strip() for text in rule.but.split(",")]
    for text in filter(None, texts):
        check_known(text, names, where=f"--fail-if {rule.text!r}")
    if rule.checkpoint is not None:
        return {rule.checkpoint}
    return {name for name in names if not {name, entry_of(name)} & {*texts}}


def _impossible(report: Report, rule: Rule, rows: Sequence[Row], name: str) -> str:
    """Return why a checkpoint can have no such figure; empty where it can."""
    if rule.change and name == BASE:
        return render("gate.baseline")
    if rule.checkpoint is not None:
        return ""
    if rule.guard and CheckpointName.parse(name).derived == RELEARN:
        return render("gate.relearned")
    if rule.claim or rule.guard:
        return render("gate.base") if name == BASE else ""
    here = [row for row in rows if row.checkpoint == name]
    if here and (name != BASE or any(row.value is not None for row in here)):
        return ""
    if contrasts := [row for row in rows if isinstance(row, Contrast)]:
        baseline = report.settings.get("baseline")
        others = {baseline} if baseline else {row.baseline for row in contrasts}
        if {name, entry_of(name)} & {BASE, *others}:
            return render("gate.baseline")
    if name == BASE and any(row.value is not None for row in rows):
        # Such as: it is the reference itself, of which there is no change.
        if not (figures := _of_metric(report, rule, BASE)):
            return render("gate.untrained")
        if all(row.value is None for row in figures):
            return figures[0].note
    rounded = {one.name for one in report.checkpoints if one.quantised_from is not None}
    if name in rounded and about(rule.audit).of_series:
        return render("gate.stages")
    return ""


def _names(report: Report) -> list[str]:
    """Return what a rule can name: checkpoints, and methods with several seeds.

    A series that only its stages were scored of is known from its rows; a stage speaks
    through its series.
    """
    said = dict.fromkeys(r.checkpoint for r in (*report.results, *report.contrasts))
    names = dict.fromkeys([*(one.name for one in report.checkpoints), *said])
    stages = {k for k in names if series_of(k) != k and series_of(k) in said}
    return [name for name in names if name in said or name not in stages]


def _rows(report: Report, rule: Rule) -> list[Row]:
    """Return the rows of the rule's figure; p values stand with contrasts only."""
    wanted = (rule.audit, rule.metric, rule.of)
    found = [
        row
        for row in (*report.results, *report.contrasts)
        if (row.audit, row.metric, row.of) == wanted and rule.holds(row.group)
    ]
    plain = [row for row in found if not isinstance(row, Contrast)]
    if rule.field == "p" or rule.change or not plain:
        return [row for row in found if isinstance(row, Contrast)]
    return plain


def _of_metric(report: Report, rule: Rule, name: str) -> list[Row]:
    """Return the rows of a checkpoint that the rule's metric has, in any group."""
    wanted = (rule.audit, rule.metric, rule.of, name)
    return [
        row
        for row in report.results
        if (row.audit, row.metric, row.of, row.checkpoint) == wanted
    ]


def _measured(report: Report, rule: Rule, pairs: Pairs) -> tuple[State, str]:
    """Return whether a figure trips the rule, and the figures as shared."""
    field = "best_p" if rule.field == "p" else rule.field
    sound = [
        (value, _part(shown) + _number(shown, field))
        for row, shown in pairs
        if row.status == "ok" and (value := getattr(row, field)) is not None
    ]
    words = f"{rule.field} " + ", ".join(told for _, told in sound)
    if rule.field != "p" and about(rule.audit).metric(rule.metric).learned < 0:
        words += f" ({render('gate.lower')})"
    # What was measured trips, whatever is missing beside it.
    if any(OPERATORS[rule.operator](value, rule.bound) for value, _ in sound):
        return "tripped", words
    if report.status == "partial":
        return "missing", render("gate.partial")
    if not pairs:
        audits = dict.fromkeys(row.audit for row in report.results)
        if rule.audit in audits:
            return "missing", render("gate.unmeasured")
        why = render("gate.unmeasured_audit", audit=rule.audit, audits=audits)
        return "missing", why
    for row, _ in pairs:
        if row.status != "ok":
            told = (row.status.replace("_", " "), row.note)
            return "missing", ": ".join(filter(None, told))
    return ("ok", words) if sound else ("missing", f"has no {rule.field}")


def _moved(report: Report, rule: Rule, pairs: Pairs) -> tuple[State, str]:
    """Return whether a figure moved as far as the rule forbids, and the figures.

    ``rose`` is towards more remembering where the metric has such a direction. A change
    as large as the bound is seen in 80 of 100 cases where the smallest effect that the
    contrast can detect is no larger.
    """
    states: dict[State, list[str]] = {"tripped": [], "missing": [], "ok": []}
    toward = about(rule.audit).metric(rule.metric).learned or 1
    sign = toward if rule.operator == "rose" else -toward
    for row, shown in pairs:
        part = _part(row)
        if row.value is None or row.ends is None:
            states["missing"].append(f"{part}not estimable: {row.note}")
            continue
        low, high = sorted(sign * end for end in row.ends)
        words = part + shown.note
        if shown.value is not None:
            way = "rose" if toward * shown.value >= 0 else "fell"
            words = f"{part}{way} by {number(abs(shown.value), 4)}"
        if high >= rule.bound and low > 0:
            states["tripped"].append(words)
        elif high >= rule.bound and (row.mde is None or row.mde > rule.bound):
            least = "" if row.mde is None else number(row.mde)
            key = "gate.power_with_least" if least else "gate.power"
            states["missing"].append(part + render(key, least=least))
        else:
            states["ok"].append(words)
    told = ((state, ", ".join(said)) for state, said in states.items() if said)
    return next(told, ("missing", render("gate.unchanged")))


def _part(row: Row) -> str:
    """Return the part of the rows that a figure is of, with a space behind it."""
    return "" if row.group == "pooled" else f"{row.grouping[1]} "


def _number(shown: Row, field: str) -> str:
    """Return a figure of a shared row, or that it is withheld."""
    return WITHHELD if shown.withheld else number(getattr(shown, field), 4)


def _claimed(report: Report, rule: Rule, name: str) -> tuple[State, str]:
    """Return whether a claim on a checkpoint trips; without a test it is missing."""
    own = [one for one in report.findings if one.checkpoint == name]
    # One of several claims of the same severity is meant by its name.
    named = rule.operator in ("==", "!=")
    field, bound = ("claim", rule.claim) if named else ("severity", rule.bound)
    holds: Callable[[Any, Any], bool] = OPERATORS[rule.operator]
    tripped = [one for one in own if holds(getattr(one, field), bound)]
    shown = _claims(tripped or own) or render("gate.nothing")
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


def _guarded(
    report: Report, shared: Report, rule: Rule, name: str
) -> tuple[State, str]:
    """Return whether a guard holds for a checkpoint; without a test it is missing.

    Whatever gives trained rows away shows that these are the rows.
    """
    training = training_of(name)
    own = [
        guard
        for guard in shared.guards
        if guard.name == rule.guard and training_of(guard.checkpoint) == training
    ]
    if opened := [guard for guard in own if not guard.passed]:
        return "tripped", opened[0].detail
    if own:
        return "ok", own[0].detail
    detected = [
        one
        for one in report.findings
        if one.detected and training_of(one.checkpoint) == training
    ]
    if detected:
        return "ok", render("gate.detected", shown=_claims(detected))
    if report.status == "partial":
        return "missing", render("gate.partial")
    return "missing", render("gate.untested_rows")


def _claims(findings: Sequence[Claimed]) -> str:
    """Return claims in the order of findings, each once with its audits."""
    by_claim: dict[str, dict[str, None]] = {}
    for one in findings:
        by_claim.setdefault(one.claim, {})[one.audit] = None
    return ", ".join(f"{claim} ({', '.join(of)})" for claim, of in by_claim.items())
