"""Show reports and records as tables on stdout.

What is said first stands in ``report/at_a_glance.py`` (answer, matrix, next steps) and
is printed by ``glance.py``. ``report/glance.py`` is something else: the table of one
main figure per audit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_audit import sentences
from spark_audit.audits import about
from spark_audit.cli.glance import show_glance
from spark_audit.collector import collector_paused
from spark_audit.report import checkpoint_states, first_screen
from spark_audit.report.advice import advice
from spark_audit.report.attacks import attack_table
from spark_audit.report.cells import ReportTable, records_table
from spark_audit.report.disclosure.shared import rounded_for_owner
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.tables import tables
from spark_audit.results import OF_REPORT, Report, by_severity
from spark_audit.terminal.console import show_line, show_table, stdout, tell, tell_json

MIN_TABLE_COLUMNS = 120
"""Terminal width below which figures of a table would be cut or broken."""


@collector_paused()
def show_report(
    report: Report, *, shared: Report | None = None, verbose: bool = False
) -> None:
    """Print a report at a glance; in full if it has no attack or if asked for.

    Parameters
    ----------
    shared
        The report's shared form, if it is known.
    """
    report = rounded_for_owner(report, shared)
    prepared = PreparedReport(report)
    # There is no glance of a report without an attack.
    at_a_glance = prepared.answer
    # Findings on the report as a whole come first, those of audits further below.
    for finding in by_severity(report.findings):
        if finding.audit == OF_REPORT and not finding.checkpoint:
            show_line(finding.sentence, style="bold")
    if at_a_glance is not None:
        show_glance(at_a_glance, verbose=verbose)
        if not verbose:
            show_line(sentences.render("terminal.more"))
            return
        _show_states(prepared)

    _show_guards(report)
    if not report.findings:
        show_line(sentences.render("page.no_verdict"))
    for finding in by_severity(report.findings):
        if finding.audit != OF_REPORT or finding.checkpoint:
            style = "bold" if finding.detected else None
            show_line(f"- {finding.audit}: {finding.sentence}", style=style)
    if not verbose and stdout().width < MIN_TABLE_COLUMNS:
        show_line(sentences.render("terminal.tables"))
        return

    # All tables of several audits would take hundreds of lines.
    audits = {row.audit for row in report.results}
    main_figures = prepared.key_figures
    if len(audits) > 1 and main_figures is not None:
        show_tables([main_figures])
        return
    # A wide audit has a column per variant, which pooled figures alone would hide.
    is_wide = all(about(audit).wide for audit in audits)
    show_tables(tables(report, brief=not is_wide))


def _show_guards(report: Report) -> None:
    """Print the audits' own checks that failed or gave a warning (``passed`` None)."""
    for guard in report.guards:
        if guard.passed:
            continue
        state = "warning" if guard.passed is None else "failed"
        word = sentences.render(f"page.guard_{state}")
        # Some checks concern the whole audit.
        place = f" ({guard.checkpoint})" if guard.checkpoint else ""
        show_line(f"{word}: {guard.title}{place}: {guard.detail}")


def _show_states(prepared: PreparedReport) -> None:
    """Print the state of each checkpoint and the tests, in full sentences."""
    for checkpoint_state in prepared.checkpoint_states:
        badge = checkpoint_states.badge(checkpoint_state.state)
        outcomes = sentences.capitalised(checkpoint_state.outcomes)
        style = "bold" if checkpoint_state.detections else None
        show_line(
            f"{badge} {checkpoint_state.name}: {checkpoint_state.reason} {outcomes}.",
            style=style,
        )
    level = first_screen.level(prepared.report)
    show_line(sentences.render("terminal.level", level=level))

    # Columns: attack, question, what it was tried on, null, least detectable effect.
    table = attack_table(prepared.attacks)
    least_effect_title = table.header[-1]
    for line in table.rows:
        attack, _, tried_on, _, least_effect = line.texts
        show_line(f"{attack}: {tried_on}; {least_effect_title}: {least_effect}")

    for state, text in advice(prepared.checkpoint_states).items():
        show_line(f"{checkpoint_states.SHAPES[state]} {text}")
    result_of_gate = first_screen.gate(prepared.checkpoint_states)
    show_line(sentences.render("page.without_rules", does=result_of_gate))


def show_tables(tables: Sequence[ReportTable], *, figures: bool = True) -> None:
    """Print tables one after the other, with remarks; see :func:`show_table`."""
    for table in tables:
        show_table(
            table.title,
            table.header,
            [line.texts for line in table.rows],
            remarks=table.remarks,
            figures=figures,
        )


def show_records(
    records: Sequence[Mapping[str, object]], *, title: str, as_json: bool = False
) -> None:
    """Print records with equal fields as a table, or as a JSON list.

    The keys of the first record are the table's header.
    """
    if as_json:
        tell_json([dict(record) for record in records])
        return
    show_tables([records_table(records, title=title)])


def say_where(folder: Path) -> None:
    """Print which file of a report folder to open first."""
    existing_files = []
    for name in ("report.html", "report.md", "report.json"):
        if (folder / name).exists():
            existing_files.append(str(folder / name))
    # The first two that exist: the page and its text, if these formats were written.
    paths = ", ".join(existing_files[:2])
    tell(f"\n{sentences.render('terminal.report')}: {paths}")
    dossier = folder / "dossier.html"
    if dossier.exists():
        tell(f"{sentences.render('terminal.dossier')}: {dossier}")
