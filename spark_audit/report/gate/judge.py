"""The outcome of each rule of the gate on each checkpoint of a report.

A figure that was not measured also trips a rule. So does a checkpoint without a test of
memory if the rule is on a claim, since a gate must not pass for lack of evidence.
Checkpoints that a rule leaves out are named.

``rules.py`` parses a rule, ``verdicts.py`` judges it on one checkpoint, this file goes
over the checkpoints, and ``lines.py``, ``pipeline_files.py`` and ``statement.py`` write
the outcomes. A further reason to leave a checkpoint out is a branch of
:func:`_why_impossible`, with a sentence ``gate.*``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from spark_audit.audits import about
from spark_audit.audits.setup_guards import faults
from spark_audit.errors import InputError, visible
from spark_audit.names import (
    BASE,
    RELEARN,
    CheckpointName,
    check_known,
    entry_of,
    is_untrained,
    series_of,
)
from spark_audit.report.checkpoint_states import is_reference
from spark_audit.report.disclosure.shared import disclosed
from spark_audit.report.gate.rules import Rule
from spark_audit.report.gate.verdicts import (
    GatedFigure,
    RuleState,
    RuleVerdict,
    has_no_verdict,
    judge_change,
    judge_claim,
    judge_figure,
    judge_guard,
    judge_verdict,
    rows_of_rule,
)
from spark_audit.results import Contrast, Report, Row, grouped
from spark_audit.sentences import render

NO_CHECKPOINT = "-"
"""Stands for the checkpoint where a rule has none to judge."""


@dataclass(frozen=True)
class RuleOutcome:
    """The outcome of a rule on one checkpoint, or why the rule leaves it out."""

    rule: str
    checkpoint: str
    state: RuleState
    detail: str

    @property
    def whom(self) -> str:
        """The checkpoint, as logs show it."""
        if self.checkpoint == NO_CHECKPOINT:
            return "no checkpoint"
        return visible(self.checkpoint)


@dataclass(frozen=True)
class _JudgedReport:
    """A report in two forms: exact figures decide, shared ones go into logs.

    Shared figures are rounded or withheld (``report/disclosure``).
    """

    exact: Report
    shared: Report


def check(
    report: Report,
    rules: Sequence[Rule],
    *,
    changed: Report | None = None,
    same: Collection[str] = (),
    allow_missing: bool = False,
) -> list[RuleOutcome]:
    """Return the outcome of each rule on every checkpoint, base and baseline too.

    A checkpoint is left out if the rule says so, or if it can have no such figure. Only
    the pooled figure and its decision interval count; ``p`` is the adjusted one if
    there is one. Exact figures decide, and shared ones are shown.

    Parameters
    ----------
    allow_missing
        Whether a figure that was not measured passes; else it trips the rule.
    changed, same
        The report with contrasts to an earlier one, and checkpoints that have not
        changed since, of :func:`spark_audit.pipeline.compare.changed_since`.

    Raises
    ------
    InputError
        If a rule names an unknown checkpoint, or is on a change and there is no earlier
        report.
    """
    judged_report = _JudgedReport(report, disclosed(report))
    changed_report = None
    if changed is not None:
        changed_report = _JudgedReport(changed, disclosed(changed))

    outcomes: list[RuleOutcome] = []
    # Judge a repeated rule only once.
    for rule in dict.fromkeys(rules):
        if rule.change and changed_report is None:
            raise InputError(
                "is of a change",
                where=f"--fail-if {rule.text!r}",
                fix="add --against REPORT",
            )

        report_of_rule = judged_report
        if rule.change and changed_report is not None:
            report_of_rule = changed_report

        # A rule that judges nobody must not pass.
        verdicts = list(_verdicts(report_of_rule, rule, same))
        if all(verdict.state == "left_out" for _, verdict in verdicts):
            nobody = RuleVerdict("missing", render("gate.nobody"))
            verdicts.append((NO_CHECKPOINT, nobody))

        for name, verdict in verdicts:
            state = verdict.state
            if state == "missing" and not allow_missing:
                state = "tripped"
            outcomes.append(RuleOutcome(rule.text, name, state, verdict.detail))
    return outcomes


def _verdicts(
    report: _JudgedReport, rule: Rule, unchanged: Collection[str]
) -> Iterator[tuple[str, RuleVerdict]]:
    """Yield each checkpoint and the verdict of a rule on it; first match wins.

    ==========  ==================================================================
    verdict     where
    ==========  ==================================================================
    left out    the rule does not choose the checkpoint
    left out    there can be no such figure of it (:func:`_why_impossible`)
    ok          the rule is on a change, and the checkpoint is the same as before
    tripped     the figure, claim, guard or change violates the rule
    missing     a setup guard failed: what does not violate may be an artefact
    as judged   all others
    ==========  ==================================================================
    """
    names = _names_to_judge(report.exact)
    chosen_names = _chosen_names(rule, names)

    # Both reports have the same rows in the same order.
    rows = rows_of_rule(report.exact, rule)
    shared_rows = rows_of_rule(report.shared, rule)
    figures_by_name: dict[str, list[GatedFigure]] = {}
    for exact, shared in zip(rows, shared_rows, strict=True):
        figures = figures_by_name.setdefault(exact.checkpoint, [])
        figures.append(GatedFigure(exact, shared))

    for name in names:
        if name not in chosen_names:
            yield name, RuleVerdict("left_out", render("gate.rule"))
            continue

        why_impossible = _why_impossible(report.exact, rule, rows, name)
        if why_impossible:
            yield name, RuleVerdict("left_out", why_impossible)
            continue

        # The checkpoint's weights are those of the earlier report: nothing to compare.
        if rule.change and name in unchanged:
            yield name, RuleVerdict("ok", render("gate.same"))
            continue

        verdict = _judge(report, rule, name, figures_by_name.get(name, []))
        yield name, _with_failed_guards(verdict, report.shared, name)


def _with_failed_guards(verdict: RuleVerdict, shared: Report, name: str) -> RuleVerdict:
    """Return the verdict on a checkpoint as its failed setup guards leave it.

    A violation stays one; any other result counts as missing.
    """
    failed_guards = faults(shared.guards, name)
    if not failed_guards:
        return verdict

    why_void = "; ".join(f"{guard.name}: {guard.detail}" for guard in failed_guards)
    if verdict.state == "tripped":
        return RuleVerdict("tripped", f"{verdict.detail}; {why_void}")
    return RuleVerdict("missing", why_void)


def _judge(
    report: _JudgedReport, rule: Rule, name: str, figures: Sequence[GatedFigure]
) -> RuleVerdict:
    """Return the verdict of a rule on a checkpoint, whatever setup guards say."""
    if rule.claim:
        return judge_claim(report.exact, rule, name)
    if rule.guard:
        return judge_guard(report.exact, report.shared, rule, name)
    if rule.verdict:
        return judge_verdict(report.exact, rule, name)
    if rule.change:
        return judge_change(rule, figures)
    return judge_figure(report.exact, rule, figures)


def judged(outcomes: Sequence[RuleOutcome]) -> list[str]:
    """Return a line per rule: the number of judged checkpoints, and those left out.

    Parameters
    ----------
    outcomes
        What :func:`check` returned.
    """
    lines = []
    outcomes_by_rule = grouped(outcomes, lambda outcome: outcome.rule)
    for rule, outcomes_of_rule in outcomes_by_rule.items():
        n_checkpoints = 0
        names_by_reason: dict[str, list[str]] = {}
        for outcome in outcomes_of_rule:
            if outcome.checkpoint == NO_CHECKPOINT:
                continue
            n_checkpoints += 1
            if outcome.state == "left_out":
                names = names_by_reason.setdefault(outcome.detail, [])
                names.append(outcome.checkpoint)
        n_left_out = sum(len(names) for names in names_by_reason.values())
        n_judged = n_checkpoints - n_left_out

        sentences = [
            render("gate.judged", rule=rule, judged=n_judged, all=n_checkpoints)
        ]
        for reason, names in names_by_reason.items():
            sentences.append(render("gate.left_out", names=names, reason=reason))

        lines.append("; ".join(sentences))
    return lines


def _names_to_judge(report: Report) -> list[str]:
    """Return the names that a rule can use: checkpoints, and methods with seeds.

    A series of which only stages were scored is known from its rows. A stage is judged
    through its series.
    """
    names_with_rows = dict.fromkeys(
        row.checkpoint for row in (*report.results, *report.contrasts)
    )
    checkpoint_names = [checkpoint.name for checkpoint in report.checkpoints]

    names = []
    for name in dict.fromkeys([*checkpoint_names, *names_with_rows]):
        is_stage = series_of(name) != name and series_of(name) in names_with_rows
        if name in names_with_rows or not is_stage:
            names.append(name)

    return names


def _chosen_names(rule: Rule, names: Sequence[str]) -> set[str]:
    """Return the checkpoints that a rule chooses; a method stands for its seeds.

    Raises
    ------
    InputError
        If the rule names an unknown checkpoint.
    """
    named_in_rule = []
    if rule.checkpoint is not None:
        named_in_rule = [rule.checkpoint]
    elif rule.but is not None:
        named_in_rule = [rule.but]
        # A name may hold a comma itself.
        if rule.but not in names:
            named_in_rule = [name.strip() for name in rule.but.split(",")]

    for name in named_in_rule:
        # Skip empty names between two commas.
        if name:
            check_known(name, names, where=f"--fail-if {rule.text!r}")

    if rule.checkpoint is not None:
        return {rule.checkpoint}
    chosen_names = set()
    for name in names:
        if name not in named_in_rule and entry_of(name) not in named_in_rule:
            chosen_names.add(name)
    return chosen_names


def _why_impossible(report: Report, rule: Rule, rows: Sequence[Row], name: str) -> str:
    """Return why a checkpoint can have no such figure; empty: it can.

    Parameters
    ----------
    rows
        Rows of the rule's figure, of all checkpoints.
    """
    if rule.change and name == BASE:
        return render("gate.baseline")

    # A rule judges the checkpoint that it names; a missing figure trips it then.
    if rule.checkpoint is not None:
        return ""
    if rule.guard and CheckpointName.parse(name).derived == RELEARN:
        return render("gate.relearned")
    # The base was not trained on audited rows.
    if rule.claim or rule.guard:
        if _is_reference(report, name):
            return _why_without_verdict(name)
        return render("gate.base") if name == BASE else ""
    if rule.verdict:
        is_untested = is_untrained(name) or has_no_verdict(report, rule.audit, name)
        return _why_without_verdict(name) if is_untested else ""

    # The base may have the row of a figure, without a value.
    rows_of_name = [row for row in rows if row.checkpoint == name]
    has_value = any(row.value is not None for row in rows_of_name)
    if rows_of_name and (name != BASE or has_value):
        return ""
    if _is_baseline_of(report, rows, name):
        return render("gate.baseline")

    if name == BASE and any(row.value is not None for row in rows):
        # The note of the base's row says why: it is the reference of the change, say.
        rows_of_base = _rows_of_metric(report, rule, BASE)
        if not rows_of_base:
            return render("gate.untrained")
        if all(row.value is None for row in rows_of_base):
            return rows_of_base[0].note

    # A quantised checkpoint is one of a series' last stage: it has no earlier stages.
    quantised_names = [
        checkpoint.name
        for checkpoint in report.checkpoints
        if checkpoint.quantised_from is not None
    ]
    if name in quantised_names and about(rule.audit).of_series:
        return render("gate.stages")
    return ""


def _why_without_verdict(name: str) -> str:
    """Return why an audit that gives verdicts has none on a checkpoint."""
    if CheckpointName.parse(name).derived:
        return render("gate.copy_without_verdict")
    return render("gate.without_verdict")


def _is_reference(report: Report, name: str) -> bool:
    """Return whether others are compared with a checkpoint."""
    findings = [finding for finding in report.findings if finding.checkpoint == name]
    return is_reference(findings)


def _is_baseline_of(report: Report, rows: Sequence[Row], name: str) -> bool:
    """Return whether contrasts are against this checkpoint, so that it has none."""
    contrasts = [row for row in rows if isinstance(row, Contrast)]
    if not contrasts:
        return False
    baseline = report.settings.get("baseline")
    baselines = {baseline} if baseline else {row.baseline for row in contrasts}
    # A method that is the baseline stands for its seeds.
    return bool({name, entry_of(name)} & {BASE, *baselines})


def _rows_of_metric(report: Report, rule: Rule, name: str) -> list[Row]:
    """Return the rows of a checkpoint for the rule's metric, in any group."""
    rows = []
    for row in report.results:
        is_metric = rule.is_on(row.audit, row.metric, row.variant)
        if is_metric and row.checkpoint == name:
            rows.append(row)
    return rows
