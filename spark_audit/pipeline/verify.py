"""Whether a report says what its evidence says: concluded anew, without any model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from spark_audit.audits import find
from spark_audit.audits.base import Context
from spark_audit.checkpoints.specs import Loading, parse_specs
from spark_audit.errors import InputError, OutputError, choose
from spark_audit.pipeline.compare import Part, concluded
from spark_audit.report.assemble import assemble
from spark_audit.report.folder import read_report
from spark_audit.report.gate import (
    check,
    differences,
    parse_rule,
    read_rules,
    statement,
)
from spark_audit.results import AuditResult, Report
from spark_audit.results.evidence import Evidence

CLOSE = 1e-9
"""Relative difference up to which figures of two machines are the same."""


def verify(
    folder: Path,
    *,
    attestation: Path | None = None,
    ckpt: Sequence[str] = (),
    base: str | None = None,
) -> Iterator[tuple[str, str]]:
    """What was verified, and what is wrong with it; empty where nothing is.

    Every file of evidence is compared with its checksum in the report, and every
    conclusion with what the evidence gives now. Setup guards need scores of tokens,
    which are no evidence: they are taken as the report has them.

    Parameters
    ----------
    folder
        Of the report.
    attestation
        A statement of ``gate --attest``; it must be, to the byte, the one that this
        report gives.
    ckpt, base
        Checkpoints whose weights must be those that the report is of.

    Raises
    ------
    InputError
        If a checkpoint is none of the report's, or a statement cannot be read.
    """
    report = read_report(folder)
    part = Part(folder, report, names={})
    evidence: dict[str, Evidence] = {}
    measured = (row.audit for row in report.results if row.value is not None)
    for name in dict.fromkeys(measured):
        file, wrong = part.path(name).name, ""
        if file not in report.evidence:
            yield name, "left no evidence, so nothing can be concluded from it"
            continue
        try:
            evidence[name] = part.evidence(name)
        except OutputError as error:
            wrong = error.what
        yield f"scores/{file}", wrong
    if evidence:
        yield from _concluded(report, evidence)
    if attestation is not None:
        content, rules, allow = read_rules(attestation)
        found = check(report, [parse_rule(one) for one in rules], allow_missing=allow)
        now = statement(report, folder, found, allow_missing=allow)
        told = ", ".join(differences(now, content))
        yield str(attestation), f"states otherwise: {told}" if told else ""
    if ckpt:
        yield from _weights(report, ckpt, base)


def _concluded(
    report: Report, evidence: Mapping[str, Evidence]
) -> Iterator[tuple[str, str]]:
    """What the report says otherwise than its evidence, by audit."""
    results = {name: _result(report, name, one) for name, one in evidence.items()}
    made = assemble(
        results,
        guards=report.guards,
        status=report.status,
        command=report.command,
        manifest=report.manifest,
        checkpoints=report.checkpoints,
        settings=report.settings,
    )
    for name in evidence:
        apart = [
            part
            for part in ("results", "contrasts", "findings")
            if not _same(_of(report, part, name), _of(made, part, name))
        ]
        told = {k: v for k, v in made.tables.items() if made.origins.get(k) == name}
        apart += [
            k for k, table in told.items() if not _same(report.tables.get(k), table)
        ]
        said = f"does not follow from its evidence: {', '.join(apart)}" if apart else ""
        yield f"conclusions of {name}", said


def _result(report: Report, name: str, evidence: Evidence) -> AuditResult:
    """What an audit concludes with the settings of the report."""
    kind, settings = find(name), report.settings
    given = {one.name: settings.get(f"{name}.{one.name}") for one in fields(kind)}
    given.pop("replicates", None)
    audit = kind(**{k: v for k, v in given.items() if v is not None})
    preset, baseline = str(settings.get("preset")), settings.get("baseline")
    context = Context(
        paper=preset == "paper",
        seed=int(settings.get("seed") or 0),
        replicates=int(
            settings.get(f"{name}.replicates") or audit.replicates_of(preset)
        ),
    )
    return concluded(audit, evidence, context, baseline, report.checkpoints)


def _of(report: Report, part: str, audit: str) -> list[Any]:
    return [o.model_dump() for o in getattr(report, part) if o.audit == audit]


def _same(ours: Any, theirs: Any) -> bool:
    """Whether two parts of reports are the same, numbers to :data:`CLOSE`."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return ours.keys() == theirs.keys() and all(
            _same(value, theirs[key]) for key, value in ours.items()
        )
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float | int):
        return bool(np.isclose(ours, theirs, rtol=CLOSE, atol=CLOSE))
    return bool(ours == theirs)


def _weights(
    report: Report, ckpt: Sequence[str], base: str | None
) -> Iterator[tuple[str, str]]:
    """Whether checkpoints are those that the report is of."""
    from spark_audit.checkpoints.open import Opening

    known = {one.name: one.weights_sha256 for one in report.checkpoints}
    specs = parse_specs(list(ckpt))
    for spec in specs:
        if spec.name not in known:
            what = f"{spec.name!r} is none of the report's checkpoints"
            fix = f"{choose(spec.name, known)}; name it as NAME=PATH"
            raise InputError(what, where="--ckpt", fix=fix)
    for one in Opening(specs, Loading(base=base)).described:
        if one.name in known:
            same = one.weights_sha256 == known[one.name]
            yield f"weights of {one.name}", "" if same else "are others"
