"""What of a report may be shared: the one rule between it and every file but its own.

Whoever has the base model finds a span's text from its NLL, and confirms a guess of it.
As statistical offices do, figures of few clusters are withheld, and with them one more
of the same partition, so that what is left of the pooled figure is never that of a few;
all others are rounded. Findings and their claims stay: only their figures are taken
out. Verdict and gate are of the report itself, which stands in ``report.json``.

Planted canaries belong to nobody, and accuracy counts answers: of these, only scores
are withheld.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_audit.report.disclosure.digests import manifest_facts
from spark_audit.report.disclosure.findings import (
    figure_place,
    shown_finding,
    shown_named_fact,
)
from spark_audit.report.disclosure.places import (
    command_line,
    shareable,
    shareable_settings,
)
from spark_audit.report.disclosure.rows import (
    RowKey,
    row_key,
    shown_row,
    withheld_rows,
)
from spark_audit.report.disclosure.tables import shown_table
from spark_audit.report.figures_line import with_figures
from spark_audit.results import CheckpointFacts, Guard, Report, Row, grouped


def disclosed(report: Report) -> Report:
    """Return the report as every file holds it that is not for its owner only."""
    rows = (*report.results, *report.contrasts)
    withheld = withheld_rows(rows)
    shown = {row_key(row): shown_row(row, withheld.get(id(row))) for row in rows}
    rows_by_place = grouped(rows, figure_place)

    findings = [
        shown_finding(finding, report, shown, rows_by_place)
        for finding in report.findings
    ]
    tables = {
        name: shown_table(name, records, report)
        for name, records in report.tables.items()
    }
    shared = report.model_copy(
        update={
            "command": list(command_line(report.command)),
            "manifest": manifest_facts(report.manifest),
            "checkpoints": [_shown_checkpoint(one) for one in report.checkpoints],
            "settings": shareable_settings(report.settings),
            "results": [shown[row_key(row)] for row in report.results],
            "contrasts": [shown[row_key(row)] for row in report.contrasts],
            "findings": findings,
            "guards": [_shown_guard(guard, report, shown) for guard in report.guards],
            "caveats": [shareable(caveat) for caveat in report.caveats],
            "tables": tables,
        }
    )
    # The lines of figures follow from the findings as they are shared.
    return with_figures(shared)


def _shown_checkpoint(checkpoint: CheckpointFacts) -> CheckpointFacts:
    """Return a checkpoint whose files are named, not the folders that they lie in."""
    names = {
        "source": shareable(checkpoint.source),
        "base": checkpoint.base and shareable(checkpoint.base),
        "notes": [shareable(note) for note in checkpoint.notes],
    }
    return checkpoint.model_copy(update=names)


def _shown_guard(guard: Guard, report: Report, shown: Mapping[RowKey, Row]) -> Guard:
    """Return a guard whose facts are rounded or withheld as the rows are."""
    n_clusters = report.manifest.n_clusters
    facts = {
        name: shown_named_fact(name, fact, shown, n_clusters)
        for name, fact in guard.facts.items()
    }
    return guard.model_copy(update={"facts": facts})


def rounded_for_owner(report: Report) -> Report:
    """Return a report rounded as shared files have it, with nothing withheld.

    Who has ``report.json`` may see every figure; rounded ones are those of the pages.
    """
    shared = disclosed(report)
    lists = {}
    for name in ("results", "contrasts", "findings", "guards"):
        pairs = zip(getattr(report, name), getattr(shared, name), strict=True)
        lists[name] = [exact if shown.withheld else shown for exact, shown in pairs]
    return with_figures(shared.model_copy(update=lists))
