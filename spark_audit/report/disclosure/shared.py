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
from spark_audit.report.disclosure.rows import row_key, shown_row, withheld_rows
from spark_audit.report.disclosure.tables import shown_table
from spark_audit.results import Report, grouped


def disclosed(report: Report) -> Report:
    """The report as every file holds it that is not for its owner only."""
    rows = (*report.results, *report.contrasts)
    hidden = withheld_rows(rows)
    shown = {row_key(row): shown_row(row, hidden.get(id(row))) for row in rows}
    by_place = grouped(rows, figure_place)
    clusters = report.manifest.n_clusters
    checkpoints, guards = [], []
    for one in report.checkpoints:
        # Files are named, not the folders on somebody's machine.
        shown_names = {
            "source": shareable(one.source),
            "base": one.base and shareable(one.base),
            "notes": [shareable(note) for note in one.notes],
        }
        checkpoints.append(one.model_copy(update=shown_names))
    for guard in report.guards:
        facts = {
            name: shown_named_fact(name, fact, shown, clusters)
            for name, fact in guard.facts.items()
        }
        guards.append(guard.model_copy(update={"facts": facts}))
    return report.model_copy(
        update={
            "command": list(command_line(report.command)),
            "manifest": manifest_facts(report.manifest),
            "checkpoints": checkpoints,
            "settings": shareable_settings(report.settings),
            "results": [shown[row_key(row)] for row in report.results],
            "contrasts": [shown[row_key(row)] for row in report.contrasts],
            "findings": [
                shown_finding(one, report, shown, by_place) for one in report.findings
            ],
            "guards": guards,
            "caveats": [shareable(one) for one in report.caveats],
            "tables": {
                name: shown_table(name, records, report)
                for name, records in report.tables.items()
            },
        }
    )


def rounded_for_owner(report: Report) -> Report:
    """Return a report rounded as shared files have it, with nothing withheld.

    Who has ``report.json`` may see every figure; rounded ones are those of the pages.
    """
    shared = disclosed(report)
    parts = {}
    for name in ("results", "contrasts", "findings", "guards"):
        pairs = zip(getattr(report, name), getattr(shared, name), strict=True)
        parts[name] = [own if told.withheld else told for own, told in pairs]
    return shared.model_copy(update=parts)
