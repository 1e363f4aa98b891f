"""Compare reports: conclude again from the evidence of several, side by side.

No model and no manifest is needed: every audit concludes from the evidence that it left
in the folder ``scores`` of each report.

:func:`compare` makes a report of several; the gate takes the changes since an earlier
report from :func:`changed_since`. A further condition for reports to be comparable is
an item of :func:`_setup` (all audits) or a branch of :func:`_comparable` (one audit).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from spark_audit.arguments import checked_call
from spark_audit.audits import Matched, about, audit_names, find
from spark_audit.audits.base import Context, baselines_of, originals
from spark_audit.audits.seeds import with_entries
from spark_audit.audits.setup_guards import REMAINS
from spark_audit.audits.trained_rows import TRAINED_ROWS_FIT
from spark_audit.errors import InputError, OutputError, SparkError, memory_failure
from spark_audit.files import check_links
from spark_audit.names import BASE, CheckpointName, check_known, entry_of, series_of
from spark_audit.pipeline.conclude import score_files, write_evidence
from spark_audit.pipeline.folders import check_is_for_reports
from spark_audit.report.assemble import MATCHING_TABLES, assemble
from spark_audit.report.audit_report import AuditReport
from spark_audit.report.folder import read_report
from spark_audit.report.formats import REPORT_FOLDERS
from spark_audit.report.kept import keep_if_replaced
from spark_audit.report.named import evidence_of
from spark_audit.results import AuditResult, CheckpointFacts, Contrast, Guard, Report
from spark_audit.results.evidence import Evidence
from spark_audit.results.guards import guard

NOT_INSTALLED = "the package that it is of is not installed"
"""Why nothing is concluded for an audit of another package that is not installed."""

LEFT_OUT = "audits compared"
"""Name of the guard that lists audits that were not compared."""

FREE_OPTIONS = (
    "replicates",
    "placebo_draws",
    "rematched",
    "blind_permutations",
    "by",
)
"""Options in which compared reports may differ: they only set how much is drawn, or add
figures to those that are compared. Figures by group are those of the first report."""


@dataclass(frozen=True)
class ComparedReport:
    """A report that is compared with others, and how the comparison names its parts.

    Attributes
    ----------
    folder
        Where the report and its evidence lie.
    names
        Name of a checkpoint in the report -> its name in the comparison. A name that is
        missing here stays as it is.
    """

    folder: Path
    report: Report
    names: Mapping[str, str]

    def path(self, audit: str) -> Path:
        """Return the path of an audit's evidence."""
        return self.folder / "scores" / about(audit).evidence_file()

    def evidence(self, audit: str) -> Evidence:
        """Read the evidence of an audit, with the comparison's names of checkpoints.

        A file that is not as the report's checksum says is refused.
        """
        return evidence_of(self.report, self.folder, audit).renamed(self.names)


@checked_call
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
    """Return one report on the checkpoints of several, with contrasts to a baseline.

    Parameters
    ----------
    folders
        Report folders over one manifest. A checkpoint in several of them counts once.
        Different checkpoints with the same name are called ``FOLDER/NAME``.
    baseline
        Default: the checkpoint of the first report, if it has one besides the base.
    preset
        Default: that of the first report.
    null
        Ordinary runs whose spread a correction must exceed, as in ``matched``.
    output
        Folder for the evidence; the caller writes the report itself. A report in it
        about something else is kept in a dated folder beside it.
    only
        Audits to compare; default: all that can be compared.

    Raises
    ------
    InputError
        If the reports have different manifests, parts of a manifest or number formats,
        if they share no audit, or if no baseline can be chosen.
    OutputError
        If evidence is not as it was written.

    Examples
    --------
    >>> report = sa.compare("reports/mine", "reports/other", baseline="other")
    >>> [checkpoint.name for checkpoint in report.checkpoints]
    ['base', 'mine', 'other']
    """
    report_in_output = _report_in(output)
    paths = [Path(folder) for folder in folders]
    compared_reports = _compared_reports(paths)
    first = compared_reports[0].report
    baseline = baseline or _only_checkpoint(compared_reports[0].names)
    checkpoints = _united_checkpoints(compared_reports)

    # Unite the evidence of each audit that all reports have.
    comparable = _comparable(compared_reports)
    evidence_by_audit: dict[str, Evidence] = {}
    for audit in comparable.audits:
        if not only or audit in only:
            evidence_by_audit[audit] = Evidence.united(
                [compared.evidence(audit) for compared in compared_reports]
            )
    _check_baseline(baseline, evidence_by_audit)

    settings = first.settings | {
        "preset": preset or first.settings.get("preset"),
        "seed": seed,
        "baseline": baseline,
        f"{Matched.name}.null": null,
        "compared": [path.name for path in paths],
    }
    # Free options may differ among the reports, so that each audit uses its defaults.
    # A key is AUDIT.OPTION, or the name of a setting that all audits share.
    settings_of_audits = {}
    for key, value in settings.items():
        if key.partition(".")[2] not in FREE_OPTIONS:
            settings_of_audits[key] = value
    results = {}
    for audit, evidence in evidence_by_audit.items():
        results[audit] = concluded(audit, evidence, settings_of_audits, checkpoints)

    report = assemble(
        results,
        status=first.status,
        command=list(command),
        settings=settings,
        manifest=first.manifest,
        checkpoints=checkpoints,
        guards=_guards(compared_reports, comparable.left_out),
        tables=_matching_tables(compared_reports),
    )
    if output is None:
        return report

    keep_if_replaced(output, report_in_output, report)
    checksums = write_evidence(output, evidence_by_audit)
    return report.model_copy(
        update={"evidence": checksums, "files": score_files(checksums)}
    )


def _check_baseline(baseline: str, evidence_by_audit: Mapping[str, Evidence]) -> None:
    """Refuse a baseline that no audit can compare with.

    It may be a checkpoint, a series, or a method that stands for its seeds.
    """
    names_in_any = set[str]()
    for audit, evidence in evidence_by_audit.items():
        names_in_any.update(entries(audit, evidence))

    names = sorted(names_in_any)
    methods = [entry_of(name) for name in names]
    check_known(baseline, [*names, *methods], where="--baseline")


def _report_in(output: Path | None) -> Report | None:
    """Return the report that the output folder holds already, if any.

    A folder that is not for reports is refused.
    """
    if output is None:
        return None
    check_links(output, *REPORT_FOLDERS)
    check_is_for_reports(output)
    if not (output / "report.json").exists():
        return None
    return read_report(output)


def _matching_tables(
    compared_reports: Sequence[ComparedReport],
) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of the manifest, from the first report that has each."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for compared in compared_reports:
        for name, records in compared.report.tables.items():
            if name in MATCHING_TABLES and records:
                tables.setdefault(name, records)
    return tables


def entries(audit: str, evidence: Evidence) -> list[str]:
    """Return the names that an audit compares, of checkpoints or of series."""
    names = list(evidence.checkpoints)
    if about(audit).of_series:
        names = [series_of(checkpoint) for checkpoint in names]
    return list(dict.fromkeys(names))


def concluded(
    name: str,
    evidence: Evidence,
    settings: Mapping[str, Any],
    facts: Sequence[CheckpointFacts],
) -> AuditResult:
    """Conclude again from an audit's stored evidence, with the settings of a report.

    Parameters
    ----------
    name
        The audit.
    facts
        Facts of all checkpoints of the report.

    Raises
    ------
    OutputError
        If the audit fails on this evidence, which may come from anybody.
    """
    try:
        return _concluded(name, evidence, settings, facts)
    except (SparkError, MemoryError):
        raise
    # An audit may fail in any way on evidence that does not fit it.
    except Exception as error:
        raise OutputError(
            f"`{name}` can conclude nothing from it ({type(error).__name__})",
            where=f"scores/{about(name).evidence_file()}",
            fix="audit again with this version",
        ) from memory_failure(error)


def _concluded(
    name: str,
    evidence: Evidence,
    settings: Mapping[str, Any],
    facts: Sequence[CheckpointFacts],
) -> AuditResult:
    """Do what :func:`concluded` does, but let any error through as it is."""
    audit_type = find(name)

    # A report's settings contain an audit's options as AUDIT.OPTION.
    options = {}
    for option in fields(audit_type):
        value = settings.get(f"{name}.{option.name}")
        if value is not None:
            options[option.name] = value
    audit = audit_type(**options)

    preset = str(settings.get("preset"))
    baselines = baselines_of(settings.get("baseline"), entries(name, evidence))
    context = Context(
        baselines=baselines | originals(facts),
        paper=preset == "paper",
        seed=int(settings.get("seed") or 0),
        replicates=audit.replicates_of(preset),
    )
    # Several seeds of a method get rows of the method, too.
    return with_entries(audit.conclude(evidence, context))


def changed_since(
    folder: Path, before: Path, *, only: Collection[str]
) -> tuple[Report, list[str]]:
    """Return the changes since an earlier report over the same manifest.

    The gate judges rules on what rose or fell by this. Each checkpoint is compared with
    the earlier report's checkpoint of its name, or with its only one.

    Parameters
    ----------
    folder, before
        Folders of the new and of the earlier report.
    only
        Audits to compare; empty: all that can be compared.

    Returns
    -------
    report
        The report of ``folder``, with contrasts to the earlier report in place of its
        own.
    same
        Checkpoints that are the very model that they are compared with.

    Raises
    ------
    InputError
        As :func:`compare`; also if a checkpoint has no partner in the earlier report.
    """
    old, new = _compared_reports([before, folder])
    earlier = _without_base(old.names) or [BASE]
    later = _without_base(new.names)
    missing = sorted({*later} - {*earlier})
    if missing and len(earlier) > 1:
        raise InputError(
            f"has no checkpoint {', '.join(missing)}",
            where=f"--against {before}",
            fix="audit both under one name: --ckpt NAME=PATH",
        )

    # Checkpoint of the new report -> its partner in the earlier one, whose only
    # checkpoint is the partner of all others.
    partners = {name: name if name in earlier else earlier[-1] for name in later}

    # Each earlier checkpoint is the baseline of a separate comparison.
    contrasts: list[Contrast] = []
    for partner in dict.fromkeys(partners.values()):
        comparison = compare(before, folder, baseline=old.names[partner], only=only)

        # Name in the comparison -> name in the new report.
        names_in_report = {}
        for name, partner_of_name in partners.items():
            if partner_of_name == partner:
                names_in_report[new.names[name]] = name
        for contrast in comparison.contrasts:
            if contrast.checkpoint in names_in_report:
                name = names_in_report[contrast.checkpoint]
                contrasts.append(contrast.model_copy(update={"checkpoint": name}))

    # Two checkpoints have one name in a comparison only if they are the same model.
    same = []
    for name, partner in partners.items():
        if new.names[name] == old.names[partner]:
            same.append(name)
    return new.report.model_copy(update={"contrasts": contrasts}), same


def _compared_reports(folders: Sequence[Path]) -> list[ComparedReport]:
    """Read the reports to compare, and name their checkpoints for the comparison.

    Reports that cannot be compared are refused.
    """
    reports = [read_report(folder) for folder in folders]
    if len(reports) < 2:
        raise InputError(
            "a comparison needs at least two reports", fix="give DIR DIR..."
        )

    first_setup = _setup(reports[0])
    model_ids_by_name: dict[str, set[str]] = {}
    for folder, report in zip(folders, reports, strict=True):
        for name, value in _setup(report).items():
            if value != first_setup[name]:
                raise InputError(
                    f"its {name} is {value}, and that of {folders[0]} is "
                    f"{first_setup[name]}",
                    where=str(folder),
                    fix="audit both against the same manifest in the same way",
                )
        for facts in report.checkpoints:
            model_ids_by_name.setdefault(facts.name, set()).add(facts.model_id)

    # Different models with one name are called FOLDER/NAME.
    labels = [folder.resolve().name for folder in folders]
    if len(set(labels)) < len(labels):
        labels = [f"{label}-{number}" for number, label in enumerate(labels, start=1)]

    compared_reports = []
    for folder, report, label in zip(folders, reports, labels, strict=True):
        names = {}
        for facts in report.checkpoints:
            names[facts.name] = facts.name
            if len(model_ids_by_name[facts.name]) > 1:
                names[facts.name] = f"{label}/{facts.name}"
        compared_reports.append(ComparedReport(folder, report, names))
    return compared_reports


def _setup(report: Report) -> dict[str, object]:
    """Return what must be the same in all compared reports: name -> value."""
    dtypes = set[str]()
    for facts in report.checkpoints:
        # A rounded checkpoint has another number format on purpose.
        if facts.quantised_from is None:
            dtypes.add(facts.dtype)
    return {
        "manifest": report.manifest.digest[:12],
        "--limit": report.settings.get("limit"),
        "number format": ", ".join(sorted(dtypes)),
    }


def _without_base(names: Iterable[str]) -> list[str]:
    """Return a report's checkpoints, without the base and stages of a series."""
    checkpoints = []
    for name in names:
        if name != BASE and CheckpointName.parse(name).stage is None:
            checkpoints.append(name)
    return checkpoints


def _only_checkpoint(names: Mapping[str, str]) -> str:
    """Return a report's only checkpoint besides the base; refuse several."""
    checkpoints = _without_base(names)
    if len(checkpoints) != 1:
        choices = ", ".join(names[name] for name in checkpoints) or BASE
        raise InputError(
            "the first report has several checkpoints",
            where="--baseline",
            fix=f"choose one of: {choices}",
        )
    return names[checkpoints[0]]


def _united_checkpoints(
    compared_reports: Sequence[ComparedReport],
) -> list[CheckpointFacts]:
    """Return the facts of each checkpoint once, under its name in the comparison."""
    facts_by_name: dict[str, CheckpointFacts] = {}
    for compared in compared_reports:
        for facts in compared.report.checkpoints:
            name = compared.names[facts.name]
            # A rounded checkpoint names the one that it was made of: rename that, too.
            original = facts.quantised_from
            if original:
                original = compared.names.get(original)
            renamed = facts.model_copy(
                update={"name": name, "quantised_from": original}
            )
            facts_by_name.setdefault(name, renamed)
    return list(facts_by_name.values())


class ComparableAudits(NamedTuple):
    """The audits that can be compared, and the others.

    Attributes
    ----------
    left_out
        The other audits, each as ``NAME (REASON)``.
    """

    audits: list[str]
    left_out: list[str]


def _comparable(compared_reports: Sequence[ComparedReport]) -> ComparableAudits:
    """Return the audits whose evidence all folders have, and what is left out.

    Raises
    ------
    InputError
        If there is no such audit.
    """
    reported_audits = set[str]()
    for compared in compared_reports:
        reported_audits.update(row.audit for row in compared.report.results)
    not_installed = sorted(reported_audits - {*audit_names()})

    audits: list[str] = []
    left_out = [f"{name} ({NOT_INSTALLED})" for name in not_installed]
    for name in audit_names():
        folders_without = []
        for compared in compared_reports:
            if not compared.path(name).exists():
                folders_without.append(compared.folder.name)
        # An audit that no report has needs no mention.
        if len(folders_without) == len(compared_reports):
            continue

        differing_options = _differing_options(name, compared_reports)
        if folders_without:
            left_out.append(f"{name} ({', '.join(folders_without)})")
        elif differing_options:
            options = ", ".join(differing_options)
            left_out.append(f"{name} (made with another {options})")
        else:
            audits.append(name)

    if not audits:
        reasons = f": {'; '.join(left_out)}" if left_out else ", none left evidence"
        raise InputError(
            f"no audit can be compared{reasons}",
            where=", ".join(str(compared.folder) for compared in compared_reports),
            fix="audit them with the same command first",
        )
    return ComparableAudits(audits, left_out)


def _differing_options(
    audit: str, compared_reports: Sequence[ComparedReport]
) -> list[str]:
    """Return the options of an audit that are not the same in all reports."""
    differing = []
    for option in fields(about(audit)):
        if option.name in FREE_OPTIONS:
            continue
        key = f"{audit}.{option.name}"
        values = {
            str(compared.report.settings.get(key)) for compared in compared_reports
        }
        if len(values) > 1:
            differing.append(option.name)
    return differing


def _guards(
    compared_reports: Sequence[ComparedReport], left_out: Sequence[str]
) -> list[Guard]:
    """Return the guards of the comparison that are not concluded from evidence.

    One names the audits that were left out; the others are taken over from the reports.
    """
    # (Name of the guard, checkpoint) -> guard; the first report that has one counts.
    guards: dict[tuple[str, str], Guard] = {}
    if left_out:
        facts = {"left_out": [*left_out]}
        guards[LEFT_OUT, ""] = guard(LEFT_OUT, "audits_compared", facts)

    # Guards of the setup rest on scores of tokens, which evidence does not hold: they
    # are taken over as they were.
    for compared in compared_reports:
        for old_guard in compared.report.guards:
            has_failed = old_guard.name in REMAINS and old_guard.passed is False
            if has_failed or old_guard.name == TRAINED_ROWS_FIT:
                checkpoint = compared.names.get(
                    old_guard.checkpoint, old_guard.checkpoint
                )
                renamed = old_guard.model_copy(update={"checkpoint": checkpoint})
                guards.setdefault((old_guard.name, checkpoint), renamed)
    return list(guards.values())
