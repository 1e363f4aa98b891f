"""The report as it can be shared: every file is written from it but ``report.json``.

With the base model, anybody can find a span's text from its NLL, or confirm a guess.
Figures of few clusters are therefore withheld, with all figures from which they could
be computed (:mod:`spark_audit.report.disclosure.withholding`). The others are rounded
(:mod:`spark_audit.report.disclosure.rounding`).

Findings and their claims stay: only their figures are taken out. Verdict and gate are
those of the exact report, which stands in ``report.json``.

Fields of a report that :func:`disclosed` does not replace are shared as they are: a
further field with figures or paths of the owner MUST be replaced there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from spark_audit.report.disclosure.digests import manifest_facts
from spark_audit.report.disclosure.figure_place import Place, PlacedValue
from spark_audit.report.disclosure.findings import shown_finding, shown_guard
from spark_audit.report.disclosure.paths import (
    shareable,
    shareable_command,
    shareable_settings,
)
from spark_audit.report.disclosure.rows import shown_row
from spark_audit.report.disclosure.tables import shown_table
from spark_audit.report.disclosure.training import shown_training
from spark_audit.report.disclosure.withholding import reasons_to_withhold
from spark_audit.report.figures_line import with_figures
from spark_audit.report.training_table import (
    TRAINING_TABLE,
    is_training_table,
    training_tables,
)
from spark_audit.results import (
    CheckpointFacts,
    Contrast,
    Finding,
    Guard,
    Report,
    Row,
)

ItemT = TypeVar("ItemT", Row, Contrast, Finding, Guard)


def disclosed(report: Report) -> Report:
    """Return the report in the form of all files that are not for its owner alone."""
    # Judge rows and contrasts together, since one could be computed from the other.
    rows = (*report.results, *report.contrasts)
    reasons = reasons_to_withhold(rows)
    placed_values = [PlacedValue.of_row(row) for row in rows]
    shown_rows: dict[PlacedValue, Row] = {}
    # Findings name the place of their figure, but not the row.
    rows_by_place: dict[Place, list[Row]] = {}
    for row, placed, why_withheld in zip(rows, placed_values, reasons, strict=True):
        shown_rows[placed] = shown_row(row, why_withheld)
        rows_by_place.setdefault(placed.place.without_comparison, []).append(row)

    findings = [
        shown_finding(finding, report, shown_rows, rows_by_place)
        for finding in report.findings
    ]
    tables = {}
    for name, records in report.tables.items():
        tables[name] = shown_table(name, records, report)

    checkpoints = [_shown_checkpoint(facts) for facts in report.checkpoints]
    # This table is made of the checkpoints.
    if TRAINING_TABLE in tables and is_training_table(TRAINING_TABLE, report):
        tables |= training_tables(checkpoints)
    guards = [shown_guard(guard, report, shown_rows) for guard in report.guards]
    shown = [shown_rows[placed] for placed in placed_values]
    n_results = len(report.results)
    shared = report.copy_unchecked(
        command=shareable_command(report.command),
        manifest=manifest_facts(report.manifest),
        checkpoints=checkpoints,
        settings=shareable_settings(report.settings),
        results=shown[:n_results],
        contrasts=shown[n_results:],
        findings=findings,
        guards=guards,
        caveats=[shareable(caveat) for caveat in report.caveats],
        tables=tables,
    )
    # Lines of figures are made from the shared findings.
    return with_figures(shared)


def _shown_checkpoint(checkpoint: CheckpointFacts) -> CheckpointFacts:
    """Return a checkpoint with the names of its files, without their folders.

    What it was trained with is rounded.
    """
    # Not every checkpoint has a base.
    base = checkpoint.base
    if base:
        base = shareable(base)
    training = checkpoint.training
    if training is not None:
        training = shown_training(training)
    return checkpoint.model_copy(
        update={
            "source": shareable(checkpoint.source),
            "base": base,
            "training": training,
            "notes": [shareable(note) for note in checkpoint.notes],
        }
    )


def rounded_for_owner(report: Report, shared: Report | None = None) -> Report:
    """Return a report rounded as shared files have it, with nothing withheld.

    The owner of ``report.json`` may see every figure. Rounding is that of the pages, so
    that a reader finds the same figures in both.

    Parameters
    ----------
    shared
        What :func:`disclosed` returns for the report, if it is known.
    """
    if shared is None:
        shared = disclosed(report)
    with_withheld = shared.copy_unchecked(
        results=_exact_where_withheld(report.results, shared.results),
        contrasts=_exact_where_withheld(report.contrasts, shared.contrasts),
        findings=_exact_where_withheld(report.findings, shared.findings),
        guards=_exact_where_withheld(report.guards, shared.guards),
    )
    # Exact findings contain exact lines of figures, so make these again.
    return with_figures(with_withheld)


def _exact_where_withheld(
    exact_items: Sequence[ItemT], shared_items: Sequence[ItemT]
) -> list[ItemT]:
    """Return the shared items of a list, with exact ones in place of withheld ones."""
    items = []
    for exact, shared in zip(exact_items, shared_items, strict=True):
        items.append(exact if shared.withheld else shared)
    return items
