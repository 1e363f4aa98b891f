"""A folder that is written again: audits of the old report that stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from spark_audit.results import AuditResult, Report

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


def joined(
    old: Report, results: Mapping[str, AuditResult], facts: dict[str, Any]
) -> tuple[Mapping[str, AuditResult], dict[str, Any]]:
    """What a report is assembled of, with the other audits of the old one.

    Raises
    ------
    InputError
        If the base would be lost from an audit; the new scores are kept.
    """
    others = [audit for audit in audits_of(old) if audit not in results]
    if not others:
        return results, facts
    now = {one.name: one for one in facts["checkpoints"]}
    had = any(row.checkpoint == BASE and row.audit in results for row in old.results)
    rows = (row for one in results.values() for row in one.rows)
    if had and not any(row.checkpoint == BASE for row in rows):
        what = f"holds a finished report of {', '.join(others)} with another base, "
        what += "which is not scored now (--base)"
        fix = "give another -o, or remove the folder; what was scored is kept"
        raise InputError(what, fix=fix)
    united = {**results_of(old, others), **results}
    guards = [*facts["guards"], *(g for one in results.values() for g in one.guards)]
    told = {(guard.name, guard.checkpoint) for guard in guards}
    kept = [one for one in old.guards if (one.name, one.checkpoint) not in told]
    files = {about(audit).evidence_file() for audit in others}
    return {audit: united[audit] for audit in in_order(united)}, facts | {
        "settings": old.settings | facts["settings"],
        "checkpoints": [
            *now.values(),
            *(c for c in old.checkpoints if c.name not in now),
        ],
        "guards": [*facts["guards"], *kept],
        "evidence": {k: sha256 for k, sha256 in old.evidence.items() if k in files},
        "timing": old.timing | facts["timing"],
    }
