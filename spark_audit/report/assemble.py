"""A report of what several audits concluded: of a run, of a comparison, of a merge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from spark_audit.audits.base import TESTS, at_level, corrected, family
from spark_audit.audits.setup_guards import without_void
from spark_audit.manifest.schema import Manifest
from spark_audit.provenance import now, versions
from spark_audit.report.states import untested
from spark_audit.results import AuditResult, Guard, Report, by_severity

Records = list[dict[str, Any]]

MATCHING = ("matching_by_type", "balance")
"""Tables that no audit makes, of the manifest's own matching."""


def matching(manifest: Manifest) -> dict[str, Records]:
    """What the manifest says of its own matching, for every report made with it."""
    matched = Counter(pair.pii.type for pair in manifest.pairs)
    lost = Counter((span.type, span.reason) for span in manifest.unmatched)
    reasons = {
        kind: {why: n for (of, why), n in sorted(lost.items()) if of == kind}
        for kind in sorted({*matched, *(kind for kind, _ in lost)})
    }
    return {
        "matching_by_type": [
            {
                "type": kind,
                "matched": matched[kind],
                "unmatched": sum(own.values()),
                "reasons": "; ".join(f"{n} {why}" for why, n in own.items()),
            }
            for kind, own in reasons.items()
        ],
        "balance": [row.model_dump() for row in manifest.balance],
    }


def assemble(
    results: Mapping[str, AuditResult],
    *,
    guards: Iterable[Guard] = (),
    tables: Mapping[str, Records] | None = None,
    **facts: Any,
) -> Report:
    """One report of audits' results, in the order in which they are given.

    Parameters
    ----------
    guards, tables
        What belongs to no audit's result: guards before theirs, tables that give way
        to theirs.
    facts
        The other fields of :class:`Report`; it is made now, by these versions, unless
        they say otherwise.
    """
    parts = list(results.values())
    told = [*guards, *chain(*(part.guards for part in parts))]
    findings = corrected(list(chain(*(part.findings for part in parts))))
    findings = without_void(findings, told)
    audited = [one.name for one in facts.get("checkpoints", ())]
    findings += untested(findings, audited)
    settings = {**facts.pop("settings", {}), TESTS: len(family(findings))}
    given = tables or {}
    own = {n: (audit, t) for audit, r in results.items() for n, t in r.tables.items()}
    return Report.model_validate(
        {
            "created": now(),
            "versions": versions(),
            "findings": by_severity(findings),
            "settings": settings,
            "results": at_level(chain(*(part.rows for part in parts)), findings),
            "contrasts": at_level(chain(*(part.contrasts for part in parts)), findings),
            "guards": told,
            "tables": {**given, **{name: table for name, (_, table) in own.items()}},
            "origins": {
                **{name: "manifest" for name in MATCHING if name in given},
                **{name: audit for name, (audit, _) in own.items()},
            },
            **facts,
        }
    )


def results_of(report: Report, audits: Iterable[str]) -> dict[str, AuditResult]:
    """What a report tells of single audits: findings, rows, contrasts and tables."""
    return {
        audit: AuditResult(
            rows=[row for row in report.results if row.audit == audit],
            contrasts=[row for row in report.contrasts if row.audit == audit],
            findings=[one for one in report.findings if one.audit == audit],
            tables={
                name: report.tables[name]
                for name, origin in report.origins.items()
                if origin == audit and name in report.tables
            },
        )
        for audit in audits
    }
