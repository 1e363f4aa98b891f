"""Reports side by side: paired contrasts over one manifest, from stored evidence.

No model and no manifest is needed: every audit concludes from what it left in
``scores/``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from spark_audit.audits import Matched, about, all_audits, find
from spark_audit.audits.base import Context, replicates
from spark_audit.audits.baselines import baselines_of, originals
from spark_audit.audits.claims import REMAINS
from spark_audit.audits.seeds import with_entries
from spark_audit.errors import InputError, OutputError, choose
from spark_audit.files import check_links
from spark_audit.names import BASE, CheckpointName, entry_of, series_of
from spark_audit.provenance import sha256_file
from spark_audit.report.assemble import assemble
from spark_audit.report.attachments import (
    read_cases,
    united,
    united_cases,
    write_cases,
)
from spark_audit.report.folder import FOLDERS, read_report
from spark_audit.results import AuditResult, CheckpointFacts, Guard, Report
from spark_audit.results.evidence import Evidence

FREE = ("replicates", "placebo_draws", "rematched", "blind_permutations")
"""Options that change nothing that is compared."""


def compare(
    folders: Sequence[Path],
    *,
    baseline: str | None = None,
    preset: str | None = None,
    seed: int = 0,
    null: str | None = None,
    output: Path | None = None,
    command: Sequence[str] = (),
) -> Report:
    """One report over the checkpoints of several, with contrasts to a baseline.

    Parameters
    ----------
    folders
        Report folders over one manifest. A checkpoint that several hold counts once;
        different ones of one name are called ``FOLDER/NAME``.
    baseline
        Default: the checkpoint of the first report, if it has one besides the base.
    preset
        Default: that of the first report.
    null
        Ordinary runs whose spread a correction must clear, as of ``matched``.
    output
        Folder for the evidence; the report itself is the caller's to write.

    Raises
    ------
    InputError
        If the reports are over different manifests, parts of one or number formats,
        share no audit, or no baseline can be chosen.
    OutputError
        If evidence is not as it was written.
    """
    if output is not None:
        check_links(output, *FOLDERS)
    reports = [read_report(folder) for folder in folders]
    _check(folders, reports)
    names = _names(folders, reports)
    first = reports[0]
    chosen = baseline or _default(names[0])
    preset = preset or str(first.settings.get("preset"))
    facts = _facts(reports, names)
    audits, left_out = _comparable(folders, reports)
    evidence = {a: _evidence(a, folders, reports, names) for a in audits}
    entries = {
        audit: dict.fromkeys(
            map(series_of if about(audit).of_series else str, known.checkpoints)
        )
        for audit, known in evidence.items()
    }
    paper, count = preset == "paper", replicates(preset)
    context = partial(Context, paper=paper, seed=seed, replicates=count)
    results = {
        audit: _concluded(
            audit,
            known,
            context(baselines_of(chosen, entries[audit]) | originals(facts.values())),
            null,
        )
        for audit, known in evidence.items()
    }
    _check_usable(results, chosen, set().union(*entries.values()), folders, left_out)
    sums: dict[str, str] = {}
    if output is not None:
        sums = _write(output, evidence)
        parts = zip(map(read_cases, folders), names, strict=True)
        write_cases(output, united_cases([*parts]))
    kept = [about(name).evidence_file() for name in results]
    kept += ["cases.parquet", "cases.csv"]
    return assemble(
        results,
        status=first.status,
        command=list(command),
        settings=first.settings
        | {"preset": preset, "seed": seed, "baseline": chosen, "matched.null": null}
        | {"compared": [str(folder.name) for folder in folders]},
        manifest=first.manifest,
        checkpoints=list(facts.values()),
        guards=[*_told(left_out), *_setup(reports, names)],
        tables=united([report.tables for report in reports]),
        evidence=sums,
        files={} if output is None else {"scores": [f"scores/{n}" for n in kept]},
    )


def _concluded(
    name: str, evidence: Evidence, context: Context, null: str | None
) -> AuditResult:
    """An audit's figures from evidence, the means of several seeds among them."""
    kind = find(name)
    audit = Matched(null=null) if kind is Matched else kind()
    return with_entries(audit.conclude(evidence, context))


def _check_usable(
    results: Collection[str],
    chosen: str,
    known: Collection[str],
    folders: Sequence[Path],
    left_out: Sequence[str],
) -> None:
    """Refuse where nothing can be compared, or there is no such baseline."""
    if not results:
        raise InputError(
            "no audit can be compared"
            + (f": {'; '.join(left_out)}" if left_out else ", none left evidence"),
            where=", ".join(str(folder) for folder in folders),
            fix="audit them with the same command first",
        )
    if chosen not in known and chosen not in map(entry_of, known):
        raise InputError(
            f"{chosen!r} is none of the checkpoints",
            where="--baseline",
            fix=choose(chosen, sorted(known)),
        )


def _facts(
    reports: Sequence[Report], names: Sequence[dict[str, str]]
) -> dict[str, CheckpointFacts]:
    """Each checkpoint once, by its new name."""
    facts: dict[str, CheckpointFacts] = {}
    for report, renamed in zip(reports, names, strict=True):
        for one in report.checkpoints:
            name = renamed[one.name]
            original = one.quantised_from and renamed.get(one.quantised_from)
            changes = {"name": name, "quantised_from": original}
            facts.setdefault(name, one.model_copy(update=changes))
    return facts


def _comparable(
    folders: Sequence[Path], reports: Sequence[Report]
) -> tuple[list[str], list[str]]:
    """Audits whose evidence all folders have, and what is left out and why."""
    audits: list[str] = []
    left_out: list[str] = []
    for audit in all_audits():
        lacking = [f.name for f in folders if not _path(f, audit).exists()]
        if len(lacking) == len(folders):
            continue
        if lacking:
            left_out.append(f"{audit} ({', '.join(lacking)})")
        elif differing := _differing(audit, reports):
            left_out.append(f"{audit} (made with another {', '.join(differing)})")
        else:
            audits.append(audit)
    return audits, left_out


def _write(output: Path, evidence: Mapping[str, Evidence]) -> dict[str, str]:
    """Write the evidence of all audits; the checksum of each file."""
    for audit, one in evidence.items():
        one.write(_path(output, audit))
    return {about(a).evidence_file(): sha256_file(_path(output, a)) for a in evidence}


def _differing(name: str, reports: Sequence[Report]) -> list[str]:
    """Options of an audit that the reports do not share."""
    return [
        option.name
        for option in fields(find(name))
        if option.name not in FREE
        and len(
            {str(report.settings.get(f"{name}.{option.name}")) for report in reports}
        )
        > 1
    ]


def _told(left_out: Sequence[str]) -> list[Guard]:
    facts: Any = {"left_out": [*left_out]}
    says = "guard.audits_compared"
    guard = Guard(name="audits compared", passed=None, says=says, facts=facts)
    return [guard] if left_out else []


def _setup(reports: Sequence[Report], names: Sequence[dict[str, str]]) -> list[Guard]:
    """Setup guards that failed in the reports: evidence alone does not show them."""
    found: dict[tuple[str, str], Guard] = {}
    for report, renamed in zip(reports, names, strict=True):
        for guard in report.guards:
            if guard.name in REMAINS and guard.passed is False:
                name = renamed.get(guard.checkpoint, guard.checkpoint)
                told = guard.model_copy(update={"checkpoint": name})
                found.setdefault((guard.name, name), told)
    return list(found.values())


def _check(folders: Sequence[Path], reports: Sequence[Report]) -> None:
    """Refuse what cannot be paired, naming what differs."""
    if len(reports) < 2:
        raise InputError("needs at least two reports", fix="give DIR DIR...")

    def facts(report: Report) -> dict[str, Any]:
        plain = (c for c in report.checkpoints if c.quantised_from is None)
        return {
            "manifest": report.manifest.digest[:12],
            "--limit": report.settings.get("limit"),
            "number format": ", ".join(sorted({one.dtype for one in plain})),
        }

    ours = facts(reports[0])
    for folder, report in zip(folders[1:], reports[1:], strict=True):
        for what, value in facts(report).items():
            if value != ours[what]:
                raise InputError(
                    f"its {what} is {value}, that of {folders[0]} {ours[what]}",
                    where=str(folder),
                    fix="audit both against the same manifest in the same way",
                )


def _names(folders: Sequence[Path], reports: Sequence[Report]) -> list[dict[str, str]]:
    """New name of every checkpoint, by report: one name, one model."""
    models: dict[str, set[str]] = {}
    for report in reports:
        for one in report.checkpoints:
            models.setdefault(one.name, set()).add(one.model_id)
    labels = [folder.resolve().name for folder in folders]
    if len(set(labels)) < len(labels):
        labels = [f"{label}-{k}" for k, label in enumerate(labels, start=1)]
    return [
        {
            one.name: one.name if len(models[one.name]) == 1 else f"{label}/{one.name}"
            for one in report.checkpoints
        }
        for label, report in zip(labels, reports, strict=True)
    ]


def _default(names: dict[str, str]) -> str:
    own = [
        new
        for old, new in names.items()
        if old != BASE and CheckpointName.parse(old).stage is None
    ]
    if len(own) != 1:
        raise InputError(
            "the first report has several checkpoints",
            where="--baseline",
            fix=f"choose one of: {', '.join(own) or BASE}",
        )
    return own[0]


def _path(folder: Path, audit: str) -> Path:
    return folder / "scores" / about(audit).evidence_file()


def _evidence(
    audit: str,
    folders: Sequence[Path],
    reports: Sequence[Report],
    names: Sequence[dict[str, str]],
) -> Evidence:
    """The evidence of an audit from all reports, each checkpoint once.

    Raises
    ------
    OutputError
        If a file is not as its report says that it was written.
    """
    parts = []
    for folder, report, renamed in zip(folders, reports, names, strict=True):
        path = _path(folder, audit)
        if report.evidence.get(path.name) != sha256_file(path):
            raise OutputError(
                "is not the file that the report was made from",
                where=str(path),
                fix="copy the report's folder again, or audit again",
            )
        parts.append(Evidence.read(path).renamed(renamed))
    return Evidence.united(parts)
