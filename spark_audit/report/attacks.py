"""Summaries of each attack over all checkpoints of a report.

Pages show them as a table (:func:`attack_table`), and the dossier in words. A further
column is a key of :class:`AttackSummary`, filled by :func:`_summary`; in the table it
is a cell of :func:`attack_table`, with a sentence ``attacks.COLUMN`` as its head.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple, TypedDict

from spark_audit.audits import about
from spark_audit.names import BASE
from spark_audit.report.cells import ReportTable, records_table
from spark_audit.report.checkpoint_states import CheckpointState
from spark_audit.report.tried import Outcome, Tried, attack_name, outcome_name
from spark_audit.results import Finding, Report, Row
from spark_audit.results.findings import Fact
from spark_audit.sentences import (
    capitalised,
    knows,
    number,
    optional,
    render,
    translated,
)
from spark_audit.sentences.renderer import effect

WITHOUT_RESULT: tuple[Outcome, ...] = ("confounded", "void", "not tested")
"""Outcomes that allow no conclusion."""

UNITS_IN_WORDS = ("nats", "bits")
"""Units whose effects are words first, with the number in brackets."""

MAX_NAMES_OF_EFFECT = 3
"""Most checkpoints that are named with their smallest effect; more are counted."""


class AttackSummary(TypedDict):
    """An attack over all checkpoints.

    Attributes
    ----------
    name, audit, question
        The attack in words, its audit, and its question.
    frames
        Frameworks that require it.
    state, why
        ``tested``, ``void``, ``not tested`` or ``not applicable``, and the reason.
    on
        The size of the test, in words.
    null, least
        The value of the attack's figure without a leak, and the smallest detectable
        effect, both in words.
    open
        Outcome -> checkpoints on which the attack has no result.
    """

    name: str
    audit: str
    question: str
    frames: str
    state: str
    why: str
    on: str
    null: str
    least: str
    open: dict[Outcome, list[str]]


def attacks(
    report: Report, all_checkpoint_states: Sequence[CheckpointState]
) -> list[AttackSummary]:
    """Return a summary of each attack over all checkpoints, also of untried attacks."""
    # Audit -> checkpoint -> what the attack came to on it.
    tried_by_audit: dict[str, dict[str, Tried]] = {}
    for checkpoint_state in all_checkpoint_states:
        for tried in checkpoint_state.tried:
            tried_by_audit.setdefault(tried.audit, {})[checkpoint_state.name] = tried
    return [
        _summary(report, audit, tried_by_name)
        for audit, tried_by_name in tried_by_audit.items()
    ]


def _summary(
    report: Report, audit: str, tried_by_name: Mapping[str, Tried]
) -> AttackSummary:
    """Return one attack over all checkpoints.

    Parameters
    ----------
    tried_by_name
        Checkpoint -> the result of the attack on it.
    """
    names_by_outcome: dict[Outcome, list[str]] = {}
    for name, tried in tried_by_name.items():
        names_by_outcome.setdefault(tried.outcome, []).append(name)
    why_not_run = next(iter(tried_by_name.values())).why_not_run
    state, why = _state(report, audit, names_by_outcome, why_not_run)

    without_result: dict[Outcome, list[str]] = {}
    for outcome in WITHOUT_RESULT:
        if outcome in names_by_outcome:
            without_result[outcome] = names_by_outcome[outcome]

    return AttackSummary(
        name=attack_name(audit),
        audit=audit,
        question=optional(f"audit.{audit}.asks"),
        frames=optional(f"audit.{audit}.frameworks"),
        state=state,
        why=why,
        on=_size_of_test(report, audit) if state in ("tested", "void") else "",
        null=optional(f"audit.{audit}.null"),
        least=_detectable(report, tried_by_name, audit),
        open=without_result if state == "tested" else {},
    )


def _size_of_test(report: Report, audit: str) -> str:
    """Return the size of a test, in words; empty: it gave no figure."""
    rows = _rows_of_size(report, audit)
    size_column = _counted_by(audit).column
    counts = [getattr(row, size_column) for row in rows if row.group == "pooled"]
    count = max(counts, default=0)
    if not count:
        return ""

    text = _sizes_in_words(report, audit, count)
    types = {row.group_value for row in rows if row.group_kind == "type"}
    if len(types) > 1:
        text = render("audit.of_types", text=text, types=len(types))
    return text


class _CountedBy(NamedTuple):
    """What counts the units that an attack tests.

    Attributes
    ----------
    metric
        The metric of its rows; empty: any metric.
    column
        The column of these rows: ``n``, or ``clusters``.
    """

    metric: str
    column: str


def _counted_by(audit: str) -> _CountedBy:
    """Return what counts the tested units, as the class of an audit says."""
    metric, column = about(audit).covers or ("", "n")
    return _CountedBy(metric, column)


def _rows_of_size(report: Report, audit: str) -> list[Row]:
    """Return the rows that state the size of an attack's test.

    These are rows of the metric that counts the tested units. Without a base there may
    be no such row; then all rows of the audit are used.
    """
    metric = _counted_by(audit).metric
    rows = [row for row in report.results if row.audit == audit and row.n]
    of_metric = [row for row in rows if row.metric == metric] or rows
    without_base = [row for row in of_metric if row.checkpoint != BASE]
    return without_base or of_metric


def _sizes_in_words(report: Report, audit: str, count: int) -> str:
    """Return the sizes of both sides if they are known, else the tested number.

    An audit of another package may lack one or both sentences.
    """
    facts = _facts_of_sizes(report, audit)
    trained_fact, held_out_fact = about(audit).sides  # the facts that hold the sizes
    trained = about(audit).size_of(facts.get(trained_fact))
    held_out = about(audit).size_of(facts.get(held_out_fact))

    # The sentence that says most comes first; an audit need not have all of them.
    covers = f"audit.{audit}.covers"
    keys = [f"{covers}.count", covers]
    if trained is not None:
        keys = [f"{covers}.trained", *keys]
    if trained is not None and held_out is not None:
        keys = [f"{covers}.sides", *keys]

    for key in keys:
        if knows(key):
            return render(
                key, count=count, trained=trained, held_out=held_out, facts=facts
            )
    return str(count)


def _facts_of_sizes(report: Report, audit: str) -> Mapping[str, Fact]:
    """Return the facts of an audit's findings and guards, which include sizes.

    The sizes of the test come first. Other sentences may count more units, and findings
    on canaries count other units under the same names.
    """
    metric = _counted_by(audit).metric
    findings = []
    for finding in report.findings:
        if finding.audit == audit and finding.checkpoint != BASE:
            findings.append(finding)
    # Primary findings first, and among them those of the metric that counts the units.
    findings.sort(
        key=lambda finding: (finding.family != "primary", finding.row_metric != metric)
    )
    guards = []
    for guard in report.guards:
        if guard.says.startswith(f"guard.{audit}."):
            guards.append(guard)

    # The first sentence that has a fact wins.
    facts: dict[str, Fact] = {}
    for sentence in (*findings, *guards):
        facts = {**sentence.facts, **facts}
    return facts


def _state(
    report: Report, audit: str, outcomes: Container[str], why_not_run: str
) -> tuple[str, str]:
    """Return the state of an attack over all checkpoints, with the reason."""
    if "FOUND" in outcomes or "not shown" in outcomes:
        return "tested", ""
    for outcome in ("confounded", "void"):
        if outcome in outcomes:
            return "void", outcome

    rows = [row for row in report.results if row.audit == audit]
    if not rows:
        return "not tested", why_not_run
    if all(row.status == "not_estimable" for row in rows):
        note = next((row.note for row in rows if row.note), "")
        return "not applicable", translated("reason", note)

    # The audit has figures and no outcome: its first finding says why.
    for finding in report.findings:
        if finding.audit == audit and finding.checkpoint != BASE:
            return "not tested", finding.text.rstrip(".")
    return "not tested", render("dossier.no_test")


def _detectable(report: Report, tried_by_name: Mapping[str, Tried], audit: str) -> str:
    """Return the smallest detectable effects, in words; empty: none is known.

    They are those of checkpoints where no leak was found; if none of these has one,
    those of checkpoints with a leak. Checkpoints are named unless they are all.
    """
    # What could have been missed matters where nothing was found.
    for outcome in ("not shown", "FOUND"):
        main_tests: dict[str, Finding] = {}
        for name, tried in tried_by_name.items():
            if tried.outcome == outcome and tried.finding is not None:
                main_tests[name] = tried.finding

        text = _detectable_by(report, audit, main_tests, len(tried_by_name))
        if text:
            return text
    return ""


def _detectable_by(
    report: Report, audit: str, main_tests: Mapping[str, Finding], n_checkpoints: int
) -> str:
    """Return the smallest effects that some tests could detect, in words, or why none.

    Parameters
    ----------
    main_tests
        Checkpoint -> the finding that the outcome of the attack rests on.
    n_checkpoints
        Number of checkpoints that the attack was tried on.
    """
    tests = _tests_with_effect(report, audit, main_tests)
    unit = _unit_of_effects(tests, main_tests, audit)

    # Effects of two units cannot be compared.
    mde_by_name = {}
    for name, test in tests.items():
        if test.mde is not None and test.unit in ("", unit):
            mde_by_name[name] = test.mde
    if mde_by_name:
        return _least_in_words(
            mde_by_name,
            unit,
            n_checkpoints=n_checkpoints,
            lacking=[name for name in tests if name not in mde_by_name],
        )

    reasons = [test.why for test in tests.values() if test.why]
    return render("dossier.never", why=reasons[0]) if reasons else ""


def _tests_with_effect(
    report: Report, audit: str, main_tests: Mapping[str, Finding]
) -> dict[str, Finding]:
    """Return the test of each checkpoint that states the smallest detectable effect.

    If the main test states none, it is the first primary test that states one.
    """
    first_with_effect: dict[str, Finding] = {}
    for finding in report.findings:
        is_primary = (finding.audit, finding.family) == (audit, "primary")
        if is_primary and finding.mde is not None:
            first_with_effect.setdefault(finding.checkpoint, finding)

    tests = {}
    for name, main_test in main_tests.items():
        has_effect = main_test.mde is not None
        if has_effect:
            tests[name] = main_test
        else:
            tests[name] = first_with_effect.get(name, main_test)
    return tests


def _unit_of_effects(
    tests: Mapping[str, Finding], main_tests: Mapping[str, Finding], audit: str
) -> str:
    """Return the unit of the smallest effects, if possible that of a main test."""
    tests_of_outcomes = []
    other_tests = []
    for name, test in tests.items():
        if test.mde is None:
            continue
        if test is main_tests[name]:
            tests_of_outcomes.append(test)
        else:
            other_tests.append(test)

    for test in (*tests_of_outcomes, *other_tests):
        if test.unit:
            return test.unit
    return about(audit).unit


def _least_in_words(
    mde_by_name: Mapping[str, float],
    unit: str,
    *,
    n_checkpoints: int,
    lacking: Sequence[str],
) -> str:
    """Return the smallest detectable effects with their checkpoints.

    Parameters
    ----------
    n_checkpoints
        Number of checkpoints that the attack was tried on.
    lacking
        Checkpoints for which no smallest effect can be stated.
    """
    # First in words that a reader knows.
    least = min(mde_by_name.values())
    most = max(mde_by_name.values())
    least_effect = effect(least, unit, brief=True)
    text = effect(most, unit, brief=True)
    if least_effect != text:
        text = render("dossier.between", least=least_effect, most=text)

    # Then as numbers, where words say another scale.
    if unit in UNITS_IN_WORDS:
        low = number(least, 2)
        size = number(most, 2)
        if low != size:
            size = render("word.from_to", low=low, high=size)
        in_unit = render("dossier.of_unit", size=size, unit=unit)
        text = render("states.with_remark", text=text, remark=in_unit)

    # Which checkpoints these are, unless they are all.
    count = len(mde_by_name)
    if count < n_checkpoints and count > MAX_NAMES_OF_EFFECT:
        text = render("dossier.in_count", least=text, count=count, all=n_checkpoints)
    elif count < n_checkpoints:
        text = render("dossier.in_checkpoints", least=text, names=[*mde_by_name])

    if lacking:
        text = render("dossier.none_for", least=text, names=lacking)
    return text


def attack_table(summaries: Sequence[AttackSummary]) -> ReportTable:
    """Return a line per attack: question, sizes, and smallest detectable effect."""
    records = []
    for attack in summaries:
        cells = {
            "attack": f"{attack['name']} ({attack['audit']})",
            "question": attack["question"],
            "on": attack["on"] or f"{outcome_name('not tested')}: {attack['why']}",
            "null": attack["null"],
            "least": attack["least"] if attack["state"] == "tested" else "-",
        }
        record = {}
        for column, text in cells.items():
            record[render(f"attacks.{column}")] = capitalised(text)
        records.append(record)
    return records_table(records, title=render("attacks.title"), key="attacks")
