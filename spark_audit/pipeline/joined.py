"""A folder that is written again: audits of the old report that stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_audit.audits import about, in_order
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import (
    BASE,
    RELEARN,
    RELEARNED_BASE,
    CheckpointName,
    seeds_of,
    series_of,
)
from spark_audit.pipeline.request import Request
from spark_audit.report.assemble import results_of
from spark_audit.results import AuditResult, CheckpointFacts, Guard, Report

if TYPE_CHECKING:
    from spark_audit.checkpoints.specs import Spec


def audits_of(report: Report) -> list[str]:
    """The audits that a report tells of, in order."""
    rows = [*report.results, *report.contrasts]
    return in_order({row.audit for row in rows})


def lost_parts(
    old: Report, request: Request, manifest: Manifest, specs: Sequence[Spec]
) -> str:
    """What a finished report tells of that the new one would not; empty: nothing.

    That is all of another manifest, checkpoints that are not audited now, and other
    audits where checkpoints or settings are others.
    """
    if old.manifest.digest != manifest.digest:
        return f"another manifest ({old.manifest.name!r})"
    names = (
        str(CheckpointName(name, derived=kind))
        for spec in specs
        for name in seeds_of(spec.name, len(spec.paths))
        for kind in ("", *request.loading.quantize, *[RELEARN] * bool(request.relearn))
    )
    before = {series_of(one.name) for one in old.checkpoints} - {BASE, RELEARNED_BASE}
    now = {series_of(name) for name in names} - {BASE}
    asked = {audit.name for audit in request.audits}
    others = [one for one in audits_of(old) if one not in asked]
    differs = ["checkpoints"] if before != now else []
    settings = request.shared_settings(manifest)
    differs += [key for key in settings if old.settings.get(key) != settings[key]]
    if before - now:
        return f"checkpoints {', '.join(sorted(before - now))}"
    if others and differs:
        return f"audits {', '.join(others)} with another {', '.join(differs)}"
    return ""


@dataclass(frozen=True, kw_only=True)
class ReportParts:
    """The parts of a report that an old one of the same folder may add to.

    Attributes
    ----------
    results
        What each audit concludes.
    guards
        Those that belong to no audit's result.
    evidence
        SHA-256 of evidence that stays in the folder, by its name.
    """

    results: Mapping[str, AuditResult]
    checkpoints: Sequence[CheckpointFacts]
    settings: Mapping[str, Any]
    guards: Sequence[Guard]
    timing: Mapping[str, float]
    evidence: Mapping[str, str] = field(default_factory=dict)


def joined(old: Report, new: ReportParts) -> ReportParts:
    """Return the parts of a new report with the other audits of the old one.

    Raises
    ------
    InputError
        If the base would be lost from an audit; the new scores are kept.
    """
    others = [audit for audit in audits_of(old) if audit not in new.results]
    if not others:
        return new

    had_base = any(
        row.checkpoint == BASE and row.audit in new.results for row in old.results
    )
    rows = (row for result in new.results.values() for row in result.rows)
    if had_base and not any(row.checkpoint == BASE for row in rows):
        raise InputError(
            f"holds a finished report of {', '.join(others)} with another base, which "
            "is not scored now (--base)",
            fix="give another -o, or remove the folder; what was scored is kept",
        )

    united = {**results_of(old, others), **new.results}
    names = {one.name for one in new.checkpoints}
    new_guards = [*new.guards]
    for result in new.results.values():
        new_guards += result.guards
    new_keys = {(guard.name, guard.checkpoint) for guard in new_guards}
    old_guards = [
        guard for guard in old.guards if (guard.name, guard.checkpoint) not in new_keys
    ]
    files = {about(audit).evidence_file() for audit in others}
    return ReportParts(
        results={audit: united[audit] for audit in in_order(united)},
        checkpoints=[
            *new.checkpoints,
            *(one for one in old.checkpoints if one.name not in names),
        ],
        settings={**old.settings, **new.settings},
        guards=[*new.guards, *old_guards],
        evidence={k: sha256 for k, sha256 in old.evidence.items() if k in files},
        timing={**old.timing, **new.timing},
    )
