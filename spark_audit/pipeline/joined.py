"""Join a new report with the audits that only the folder's old report has.

``folders.py`` asks before scoring what would be lost (:func:`lost_parts`);
``conclude.py`` joins both reports after it (:func:`joined`). A further part that is
taken over is a field of :class:`ReportParts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    """Return the audits that a report has rows of, in the order of reports."""
    rows = [*report.results, *report.contrasts]
    return in_order({row.audit for row in rows})


def lost_parts(
    old: Report, request: Request, manifest: Manifest, specs: Sequence[Spec]
) -> str:
    """Return, in words, what a new report would lose of the folder's; empty: nothing.

    ==========================================  =====================================
    what is lost                                when
    ==========================================  =====================================
    the whole old report                        it is over another manifest
    checkpoints                                 the request does not audit them
    audits that the request does not run        checkpoints or shared settings differ
    ==========================================  =====================================

    Parameters
    ----------
    old
        The finished report of the folder.
    specs
        The checkpoints that the request opens.
    """
    if old.manifest.digest != manifest.digest:
        return f"another manifest ({old.manifest.name!r})"

    # The base is scored beside any checkpoint, and never lost alone.
    reported = {series_of(facts.name) for facts in old.checkpoints}
    reported -= {BASE, RELEARNED_BASE}
    requested = _requested_checkpoints(request, specs) - {BASE}
    if reported - requested:
        return f"checkpoints {', '.join(sorted(reported - requested))}"

    # Audits of one report must be of the same checkpoints and shared settings.
    requested_audits = {audit.name for audit in request.audits}
    kept_audits = [audit for audit in audits_of(old) if audit not in requested_audits]
    differing = []
    if reported != requested:
        differing.append("checkpoints")
    for key, value in request.shared_settings(manifest).items():
        if old.settings.get(key) != value:
            differing.append(key)
    if kept_audits and differing:
        return f"audits {', '.join(kept_audits)} with another {', '.join(differing)}"
    return ""


def _requested_checkpoints(request: Request, specs: Sequence[Spec]) -> set[str]:
    """Return the names of all seeds of a request, and of checkpoints derived from them.

    Stages go by the name of their series.
    """
    derivations = ["", *request.loading.quantize]
    if request.relearn:
        derivations.append(RELEARN)

    names = {named.name for named in request.opened}
    for spec in specs:
        for seed in seeds_of(spec.name, len(spec.paths)):
            for derivation in derivations:
                name = str(CheckpointName(seed, derived=derivation))
                names.add(series_of(name))
    return names


@dataclass(frozen=True, kw_only=True)
class ReportParts:
    """The parts of a new report to which an old one of the same folder may add.

    Attributes
    ----------
    results
        Name of an audit -> its rows, findings and guards.
    guards
        The guards that belong to no audit's result.
    timing
        Seconds by kind of work.
    evidence
        Name of a file of the old report's evidence that stays -> its SHA-256.
    """

    results: Mapping[str, AuditResult]
    checkpoints: Sequence[CheckpointFacts]
    settings: Mapping[str, object]
    guards: Sequence[Guard]
    timing: Mapping[str, float]
    evidence: Mapping[str, str] = field(default_factory=dict)


def joined(old: Report, new: ReportParts) -> ReportParts:
    """Return the parts of a new report, with the audits that only the old one has.

    What both reports have is taken from the new one.

    Raises
    ------
    InputError
        If the old report has figures of a base, and the new one has none.
    """
    kept_audits = [audit for audit in audits_of(old) if audit not in new.results]
    if not kept_audits:
        return new
    _check_base_stays(old, new, kept_audits)

    all_results = {**results_of(old, kept_audits), **new.results}
    evidence_files = {about(audit).evidence_file() for audit in kept_audits}
    evidence = {}
    for name, sha256 in old.evidence.items():
        if name in evidence_files:
            evidence[name] = sha256

    new_names = {facts.name for facts in new.checkpoints}
    checkpoints = [*new.checkpoints]
    for facts in old.checkpoints:
        if facts.name not in new_names:
            checkpoints.append(facts)
    return ReportParts(
        results={audit: all_results[audit] for audit in in_order(all_results)},
        checkpoints=checkpoints,
        settings={**old.settings, **new.settings},
        guards=[*new.guards, *_kept_guards(old, new)],
        evidence=evidence,
        timing={**old.timing, **new.timing},
    )


def _check_base_stays(
    old: Report, new: ReportParts, kept_audits: Sequence[str]
) -> None:
    """Refuse to replace audits that were run with a base by ones without.

    The kept audits would then be of another base than the new ones. What was scored
    stays in the store.
    """
    had_base = False
    for row in old.results:
        if row.checkpoint == BASE and row.audit in new.results:
            had_base = True

    has_base = False
    for result in new.results.values():
        if any(row.checkpoint == BASE for row in result.results):
            has_base = True

    if had_base and not has_base:
        raise InputError(
            f"holds a finished report of {', '.join(kept_audits)} with another base, "
            "which is not scored now (--base)",
            fix="give another -o, or remove the folder; what was scored is kept",
        )


def _kept_guards(old: Report, new: ReportParts) -> list[Guard]:
    """Return the guards of an old report that the new one has no guard in place of."""
    new_guards = [*new.guards]
    for result in new.results.values():
        new_guards += result.guards
    replaced = {(guard.name, guard.checkpoint) for guard in new_guards}

    kept_guards = []
    for guard in old.guards:
        if (guard.name, guard.checkpoint) not in replaced:
            kept_guards.append(guard)
    return kept_guards
