"""Reports concluded again from evidence, side by side.

No model and no manifest is needed: every audit concludes from what it left in
``scores/``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from spark_audit.audits import Matched, about, audit_names, find
from spark_audit.audits.base import Context, baselines_of, guard, originals
from spark_audit.audits.seeds import with_entries
from spark_audit.audits.setup_guards import REMAINS
from spark_audit.audits.trained_rows import TRAINED_ROWS_FIT
from spark_audit.errors import InputError, OutputError, SparkError
from spark_audit.files import check_links
from spark_audit.names import BASE, CheckpointName, check_known, entry_of, series_of
from spark_audit.pipeline.conclude import score_files, write_evidence
from spark_audit.pipeline.folders import check_is_for_reports
from spark_audit.report.assemble import MATCHING_TABLES, assemble
from spark_audit.report.audit_report import AuditReport
from spark_audit.report.folder import REPORT_FOLDERS, read_report
from spark_audit.report.kept import keep_if_replaced
from spark_audit.report.named import evidence_of
from spark_audit.results import AuditResult, CheckpointFacts, Contrast, Guard, Report
from spark_audit.results.evidence import Evidence

ABSENT = "the package that it is of is not installed"
"""Why nothing is concluded of an audit that is not known here."""
LEFT_OUT = "audits compared"
"""The guard that names the audits that were not compared."""
FREE_OPTIONS = ("replicates", "placebo_draws", "rematched", "blind_permutations")
"""Options that change nothing that is compared."""


@dataclass(frozen=True)
class Part:
    """One of the reports, and what the comparison calls its checkpoints."""

    folder: Path
    report: Report
    names: Mapping[str, str]

    def path(self, audit: str) -> Path:
        """Where the evidence of an audit lies."""
        return self.folder / "scores" / about(audit).evidence_file()

    def evidence(self, audit: str) -> Evidence:
        """The evidence of an audit, as the report says that it was written."""
        return evidence_of(self.report, self.folder, audit).renamed(self.names)


def compare(
    *folders: str | Path,
    baseline: str | None = None,
    preset: str | None = None,
    seed: int = 0,
    null: str | None = None,
    output: Path | None = None,
    command: Sequence[str] = (),
    only: Collection[str] = (),
) -> AuditReport:
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
        Folder for the evidence; the report itself is the caller's to write. A report
        in it about something else is kept in a dated folder beside it.
    only
        Audits that are compared; default: all that can be.

    Raises
    ------
    InputError
        If the reports are over different manifests, parts of one or number formats,
        share no audit, or no baseline can be chosen.
    OutputError
        If evidence is not as it was written.
    """
    before = None
    if output is not None:
        check_links(output, *REPORT_FOLDERS)
        check_is_for_reports(output)
        if (output / "report.json").exists():
            before = read_report(output)
    paths = [Path(folder) for folder in folders]
    parts = _parts(paths)
    first = parts[0].report
    chosen = baseline or _default(parts[0].names)
    facts = _facts(parts)
    audits, left_out = _comparable(parts)
    evidence = {
        name: Evidence.united([part.evidence(name) for part in parts])
        for name in audits
        if not only or name in only
    }
    known = sorted({k for name, one in evidence.items() for k in entries(name, one)})
    check_known(chosen, [*known, *map(entry_of, known)], where="--baseline")
    settings = first.settings | {
        "preset": preset or first.settings.get("preset"),
        "seed": seed,
        "baseline": chosen,
        f"{Matched.name}.null": null,
        "compared": [path.name for path in paths],
    }
    options = {
        k: v for k, v in settings.items() if k.partition(".")[2] not in FREE_OPTIONS
    }
    results = {
        name: concluded(name, one, options, facts) for name, one in evidence.items()
    }
    report = assemble(
        results,
        status=first.status,
        command=list(command),
        settings=settings,
        manifest=first.manifest,
        checkpoints=facts,
        guards=_guards(parts, left_out),
        tables={
            name: records
            for part in reversed(parts)
            for name, records in part.report.tables.items()
            if name in MATCHING_TABLES and records
        },
    )
    if output is None:
        return report
    keep_if_replaced(output, before, report)
    sums = write_evidence(output, evidence)
    return report.model_copy(update={"evidence": sums, "files": score_files(sums)})


def entries(name: str, evidence: Evidence) -> list[str]:
    """What an audit compares: checkpoints, or series."""
    whose = series_of if about(name).of_series else str
    return list(dict.fromkeys(map(whose, evidence.checkpoints)))


def concluded(
    name: str,
    evidence: Evidence,
    settings: Mapping[str, Any],
    facts: Sequence[CheckpointFacts],
) -> AuditResult:
    """What an audit concludes from stored evidence, with the settings of a report.

    Raises
    ------
    OutputError
        If it cannot conclude from them: they may be somebody else's.
    """
    try:
        return _concluded(name, evidence, settings, facts)
    except (SparkError, MemoryError):
        raise
    except Exception as error:  # whatever an audit does with unfit evidence
        raise OutputError(
            f"`{name}` can conclude nothing from it ({type(error).__name__})",
            where=f"scores/{about(name).evidence_file()}",
            fix="audit again with this version",
        ) from error


def _concluded(
    name: str,
    evidence: Evidence,
    settings: Mapping[str, Any],
    facts: Sequence[CheckpointFacts],
) -> AuditResult:
    kind, preset = find(name), str(settings.get("preset"))
    options = {one.name: settings.get(f"{name}.{one.name}") for one in fields(kind)}
    audit = kind(**{k: v for k, v in options.items() if v is not None})
    baselines = baselines_of(settings.get("baseline"), entries(name, evidence))
    context = Context(
        baselines=baselines | originals(facts),
        paper=preset == "paper",
        seed=int(settings.get("seed") or 0),
        replicates=audit.replicates_of(preset),
    )
    return with_entries(audit.conclude(evidence, context))


def changed_since(
    folder: Path, before: Path, *, only: Collection[str]
) -> tuple[Report, list[str]]:
    """What has changed since an earlier report over the same manifest.

    A checkpoint is held against the earlier one of its name, or the only one there is.

    Returns
    -------
    report
        The report, with contrasts to the earlier one in place of its own.
    same
        Checkpoints that are, to the byte, what they are held against.

    Raises
    ------
    InputError
        As :func:`compare` does, and if it is not known which two belong together.
    """
    old, new = _parts([before, folder])
    earlier = _own(old.names) or [BASE]
    partners = {
        name: name if name in earlier else earlier[-1] for name in _own(new.names)
    }
    if len(earlier) != 1 and not {*partners} <= {*earlier}:
        missing = ", ".join(sorted({*partners} - {*earlier}))
        raise InputError(
            f"has no checkpoint {missing}",
            where=f"--against {before}",
            fix="audit both under one name: --ckpt NAME=PATH",
        )
    contrasts: list[Contrast] = []
    for partner in dict.fromkeys(partners.values()):
        made = compare(before, folder, baseline=old.names[partner], only=only)
        back = {new.names[k]: k for k, other in partners.items() if other == partner}
        contrasts += [
            one.model_copy(update={"checkpoint": back[one.checkpoint]})
            for one in made.contrasts
            if one.checkpoint in back
        ]
    same = [k for k, other in partners.items() if new.names[k] == old.names[other]]
    return new.report.model_copy(update={"contrasts": contrasts}), same


def _parts(folders: Sequence[Path]) -> list[Part]:
    """The reports with new names, one for each model; refuse what cannot be paired."""
    reports = [read_report(folder) for folder in folders]
    if len(reports) < 2:
        raise InputError("needs at least two reports", fix="give DIR DIR...")
    ours = _setup(reports[0])
    models: dict[str, set[str]] = {}
    for folder, report in zip(folders, reports, strict=True):
        for what, value in _setup(report).items():
            if value != ours[what]:
                raise InputError(
                    f"its {what} is {value}, that of {folders[0]} {ours[what]}",
                    where=str(folder),
                    fix="audit both against the same manifest in the same way",
                )
        for one in report.checkpoints:
            models.setdefault(one.name, set()).add(one.model_id)
    labels = [folder.resolve().name for folder in folders]
    if len(set(labels)) < len(labels):
        labels = [f"{label}-{k}" for k, label in enumerate(labels, start=1)]
    parts = []
    for folder, report, label in zip(folders, reports, labels, strict=True):
        names = {one.name: one.name for one in report.checkpoints}
        names |= {name: f"{label}/{name}" for name in names if len(models[name]) > 1}
        parts.append(Part(folder, report, names))
    return parts


def _setup(report: Report) -> dict[str, Any]:
    """What reports that are compared share."""
    plain = (c for c in report.checkpoints if c.quantised_from is None)
    return {
        "manifest": report.manifest.digest[:12],
        "--limit": report.settings.get("limit"),
        "number format": ", ".join(sorted({one.dtype for one in plain})),
    }


def _own(names: Iterable[str]) -> list[str]:
    """A report's checkpoints without the base and stages of a series."""
    return [
        name
        for name in names
        if name != BASE and CheckpointName.parse(name).stage is None
    ]


def _default(names: Mapping[str, str]) -> str:
    own = _own(names)
    if len(own) != 1:
        raise InputError(
            "the first report has several checkpoints",
            where="--baseline",
            fix=f"choose one of: {', '.join(names[one] for one in own) or BASE}",
        )
    return names[own[0]]


def _facts(parts: Sequence[Part]) -> list[CheckpointFacts]:
    """Each checkpoint once, by its new name."""
    facts: dict[str, CheckpointFacts] = {}
    for part in parts:
        for one in part.report.checkpoints:
            name = part.names[one.name]
            original = one.quantised_from and part.names.get(one.quantised_from)
            changes = {"name": name, "quantised_from": original}
            facts.setdefault(name, one.model_copy(update=changes))
    return list(facts.values())


def _comparable(parts: Sequence[Part]) -> tuple[list[str], list[str]]:
    """Audits whose evidence all folders have, and what is left out and why."""
    audits: list[str] = []
    settings = [part.report.settings for part in parts]
    every = {row.audit for part in parts for row in part.report.results}
    left_out = [f"{name} ({ABSENT})" for name in sorted(every - {*audit_names()})]
    for name in audit_names():
        lacking = [p.folder.name for p in parts if not p.path(name).exists()]
        options = (
            one.name for one in fields(about(name)) if one.name not in FREE_OPTIONS
        )
        told = {one: {str(s.get(f"{name}.{one}")) for s in settings} for one in options}
        differing = [one for one, values in told.items() if len(values) > 1]
        if len(lacking) == len(parts):
            continue
        if lacking:
            left_out.append(f"{name} ({', '.join(lacking)})")
        elif differing:
            left_out.append(f"{name} (made with another {', '.join(differing)})")
        else:
            audits.append(name)
    if not audits:
        raise InputError(
            "no audit can be compared"
            + (f": {'; '.join(left_out)}" if left_out else ", none left evidence"),
            where=", ".join(str(part.folder) for part in parts),
            fix="audit them with the same command first",
        )
    return audits, left_out


def _guards(parts: Sequence[Part], left_out: Sequence[str]) -> list[Guard]:
    """Audits that are left out, and what the setup came to: no evidence shows them."""
    guards: dict[tuple[str, str], Guard] = {}
    if left_out:
        facts = {"left_out": [*left_out]}
        guards["", ""] = guard(LEFT_OUT, "audits_compared", facts)
    for part in parts:
        for one in part.report.guards:
            has_failed = one.name in REMAINS and one.passed is False
            if has_failed or one.name == TRAINED_ROWS_FIT:
                name = part.names.get(one.checkpoint, one.checkpoint)
                renamed = one.model_copy(update={"checkpoint": name})
                guards.setdefault((one.name, name), renamed)
    return list(guards.values())
