"""A report held against its own evidence: whatever does not follow from it is named.

Evidence comes first. Every file of it is concluded again, and the report must say that
and nothing else; then the shared files must be, to the byte, what the report gives.
What no evidence shows is listed by :func:`taken_on_trust`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from spark_audit import sentences
from spark_audit.audits import about, audit_names
from spark_audit.audits.setup_guards import REMAINS
from spark_audit.audits.trained_rows import TRAINED_ROWS_FIT
from spark_audit.checkpoints.specs import Loading, parse_specs
from spark_audit.errors import InputError, SparkError, choose
from spark_audit.files import read_regular
from spark_audit.manifest.schema import Manifest
from spark_audit.names import entry_of, series_of
from spark_audit.pipeline.compare import ABSENT, LEFT_OUT, Part, concluded
from spark_audit.report import gate
from spark_audit.report.assemble import MATCHING_TABLES, assemble, matching, results_of
from spark_audit.report.disclosure import disclosed
from spark_audit.report.figures import drawing
from spark_audit.report.folder import (
    ENGLISH_FORMATS,
    SCORES_FOLDER,
    WRITERS,
    read_report,
)
from spark_audit.report.tables import WriterInput
from spark_audit.results import AuditResult, Finding, Guard, Report, Row
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import OF_REPORT

CLOSE = 1e-9
"""Relative difference up to which figures of two machines are the same."""
NO_EVIDENCE = "left no evidence, so nothing can be concluded from it"
NOT_NAMED = "lies in the folder, and the report does not name it"
NOTHING = "nothing could be verified: the report has no evidence"
OTHER_BYTES = (
    "is not what report.json gives: it was changed, or another version wrote it "
    "(`spark-audit report` renders it again)"
)
OTHER_BYTES_OF_CHANGED = (
    "is not what report.json gives, and report.json does not follow from its evidence: "
    "do not render it again, take the report from whoever made it, or audit again"
)
SHARED_PAGES = ("report.html", "report.md", "card.md", "dossier.html")
SHARED_FOLDERS = ("tables", "figures")
"""Where the shared files of a report lie."""

Checked = tuple[str, str]
"""What was verified, and what is wrong with it; empty where nothing is."""


def verify(
    folder: Path,
    *,
    attestation: Path | None = None,
    ckpt: Sequence[str] = (),
    base: str | None = None,
    manifest: Manifest | None = None,
) -> Iterator[Checked]:
    """Yield what was verified, and what is wrong with it; empty where nothing is.

    Parameters
    ----------
    folder
        Of the report.
    attestation
        A statement of ``gate --attest``; it must be, to the byte, the one that this
        report gives.
    ckpt, base
        Checkpoints whose weights must be those that the report is of.
    manifest
        The manifest that must be the one of the report, for its counts and tables.

    Raises
    ------
    InputError
        If a checkpoint is none of the report's, or a statement cannot be read.
    """
    report = read_report(folder)
    is_sound = True
    for name, wrong in follows(report, folder):
        is_sound = is_sound and not wrong
        yield name, wrong
    if manifest is not None:
        yield from _of_manifest(report, manifest)
    for name, wrong in _files(report, folder, manifest):
        # Rendering it again would write the changed figures into the honest pages.
        is_misleading = wrong == OTHER_BYTES and not is_sound
        yield name, OTHER_BYTES_OF_CHANGED if is_misleading else wrong
    if attestation is not None:
        yield from _statement(report, folder, attestation)
    if ckpt:
        yield from _weights(report, ckpt, base)


def follows(report: Report, folder: Path) -> Iterator[Checked]:
    """Yield whether all that a report concludes follows from the evidence beside it."""
    part = Part(folder, report, names={})
    evidence: dict[str, Evidence] = {}
    for name, (audit, wrong) in _named_evidence(report, part).items():
        if audit and not wrong:
            try:
                evidence[audit] = part.evidence(audit)
            except SparkError as error:
                wrong = error.what
        yield f"scores/{name}", wrong
    for audit in _claimed_audits(report):
        if (
            audit not in evidence
            and about(audit).evidence_file() not in report.evidence
        ):
            yield audit, NO_EVIDENCE if audit in audit_names() else ABSENT
    if not evidence:
        yield "report.json", NOTHING
        return
    yield from _conclusions(report, evidence)
    yield from _counts(report, evidence)


# --- which evidence there is ----------------------------------------------------------


def _named_evidence(report: Report, part: Part) -> dict[str, tuple[str, str]]:
    """Map each file of evidence to its audit, and to what is wrong with its name."""
    audit_of = {about(name).evidence_file(): name for name in audit_names()}
    found: dict[str, tuple[str, str]] = {}
    for name in report.evidence:
        found[name] = (audit_of.get(name, ""), "" if name in audit_of else ABSENT)
    for name, audit in audit_of.items():
        if name not in report.evidence and part.path(audit).exists():
            found[name] = ("", NOT_NAMED)
    return found


def _claimed_audits(report: Report) -> list[str]:
    """List the audits of which a report says more than that there is nothing."""
    rows = (*report.results, *report.contrasts)
    audits = [row.audit for row in rows if row.value is not None]
    audits += [row.audit for row in report.contrasts]
    audits += [one.audit for one in report.findings if one.claim != "not_tested"]
    audits += report.origins.values()
    return [one for one in dict.fromkeys(audits) if one not in (OF_REPORT, "manifest")]


# --- what it concludes ----------------------------------------------------------------


def _conclusions(report: Report, evidence: Mapping[str, Evidence]) -> Iterator[Checked]:
    """Yield what the report says otherwise than its evidence, by audit and part."""
    audits = dict.fromkeys(
        one.audit for one in (*report.results, *report.contrasts, *report.findings)
    )
    results: dict[str, AuditResult] = {}
    wrong: dict[str, str] = {}
    for audit in dict.fromkeys([*audits, *evidence]):
        if audit in evidence:
            try:
                results[audit] = concluded(
                    audit, evidence[audit], report.settings, report.checkpoints
                )
            except SparkError as error:
                wrong[audit] = error.what
        elif audit != OF_REPORT:
            results[audit] = _without_evidence(report, audit)
    if wrong:
        # Claims are corrected over all audits: without one of them none can be told.
        yield from ((f"conclusions of {audit}", what) for audit, what in wrong.items())
        return

    setup = [one for one in report.guards if is_setup(one)]
    made = assemble(
        results,
        guards=setup,
        status=report.status,
        command=report.command,
        manifest=report.manifest,
        checkpoints=report.checkpoints,
        settings=report.settings,
    )
    for audit in [*results, OF_REPORT]:
        differing = _differing(_said(made, audit), _said(report, audit))
        name = "the whole" if audit == OF_REPORT else audit
        yield f"conclusions of {name}", _does_not_follow(differing)
    yield "checks", _does_not_follow(_differing_guards(made, report))
    yield "settings", _does_not_follow(_differing_settings(made, results, report))
    yield "tables", _does_not_follow(_foreign_tables(made, report))
    yield "checkpoints", _does_not_follow(_foreign_checkpoints(report, evidence))


def _does_not_follow(parts: Sequence[str]) -> str:
    return f"does not follow from its evidence: {', '.join(parts)}" if parts else ""


def is_setup(guard: Guard) -> bool:
    """Whether a guard rests on scores of tokens, or on reports that were compared."""
    return guard.name in (*REMAINS, TRAINED_ROWS_FIT, LEFT_OUT)


def _without_evidence(report: Report, audit: str) -> AuditResult:
    """Return what may be said of an audit without evidence: that there is nothing."""
    said = results_of(report, [audit])[audit]
    rows = [row for row in said.rows if row.value is None]
    findings = [one for one in said.findings if one.claim == "not_tested"]
    return AuditResult(rows=rows, findings=findings)


def _said(report: Report, audit: str) -> dict[str, Any]:
    """Return what a report has of an audit: figures, findings and tables."""
    parts: dict[str, Any] = {}
    for name in ("results", "contrasts", "findings"):
        rows: Sequence[Row | Finding] = getattr(report, name)
        parts[name] = [row.model_dump() for row in rows if row.audit == audit]
    for name, origin in report.origins.items():
        if origin == audit:
            parts[f"table {name}"] = report.tables.get(name)
    return parts


def _differing(made: Mapping[str, Any], said: Mapping[str, Any]) -> list[str]:
    """Name the parts of an audit that differ.

    That a checkpoint was not scored is in no evidence: rows without a figure may stand
    beside those that follow, of checkpoints that have none else.
    """
    scored = {row["checkpoint"] for row in made["results"]}
    rows = [
        row
        for row in said["results"]
        if row["checkpoint"] in scored or row["value"] is not None
    ]
    compared = {**said, "results": rows}
    names = dict.fromkeys([*made, *compared])
    return [
        name
        for name in names
        if not is_same(made.get(name), compared.get(name, [None]))
    ]


def _differing_guards(made: Report, report: Report) -> list[str]:
    """Name the checks that the evidence gives otherwise, and those that it lacks."""
    ours = _guards_by_place(made)
    theirs = _guards_by_place(report)
    wrong = {name for name, _ in ours.keys() ^ theirs.keys()}
    for place in ours.keys() & theirs.keys():
        for said in theirs[place]:
            if not any(is_same(one, said) for one in ours[place]):
                wrong.add(place[0])
    return sorted(wrong)


def _guards_by_place(report: Report) -> dict[tuple[str, str], list[dict[str, Any]]]:
    places: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for guard in report.guards:
        place = (guard.name, guard.checkpoint)
        places.setdefault(place, []).append(guard.model_dump())
    return places


def _differing_settings(
    made: Report, results: Mapping[str, AuditResult], report: Report
) -> list[str]:
    """Name the settings that the conclusions have otherwise, such as how many tests."""
    wrong = [
        name
        for name, value in made.settings.items()
        if not is_same(value, report.settings.get(name))
    ]
    for audit, result in results.items():
        for key, value in result.settings.items():
            name = f"{audit}.{key}"
            if name in report.settings and not is_same(value, report.settings[name]):
                wrong.append(name)
    return wrong


def _foreign_tables(made: Report, report: Report) -> list[str]:
    """Name the tables that no audit with evidence makes."""
    known = {*made.tables, *MATCHING_TABLES}
    foreign = [name for name in report.tables if name not in known]
    origins = made.origins | dict.fromkeys(MATCHING_TABLES, "manifest")
    misplaced = [
        name for name, audit in report.origins.items() if origins.get(name) != audit
    ]
    return list(dict.fromkeys([*foreign, *misplaced]))


def _foreign_checkpoints(report: Report, evidence: Mapping[str, Evidence]) -> list[str]:
    """Name the checkpoints of the evidence that the report does not have.

    A series stands for its stages, a method for its seeds.
    """
    known = {one.name for one in report.checkpoints}
    known |= {series_of(name) for name in known} | {entry_of(name) for name in known}
    scored = {name for one in evidence.values() for name in one.checkpoints}
    return sorted(
        name for name in scored if not {name, series_of(name), entry_of(name)} & known
    )


def is_same(one: Any, other: Any) -> bool:
    """Whether two parts of reports are the same, numbers to :data:`CLOSE`."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(
            is_same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if _is_number(one) and _is_number(other):
        return bool(np.isclose(one, other, rtol=CLOSE, atol=CLOSE))
    return bool(one == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- counts of the manifest -----------------------------------------------------------


def _counts(report: Report, evidence: Mapping[str, Evidence]) -> Iterator[Checked]:
    """Yield whether as many identifiers are counted as ``matched`` read."""
    if "matched" not in evidence:
        return
    units = evidence["matched"].units
    pairs = units[units["role"] == "pii"]
    trained = pairs[pairs["split"] == "train"]
    counted = {
        "n_spans": len(trained),
        "n_clusters": trained["cluster"].nunique(),
        "n_tokens": int(trained["n_tokens"].sum()),
    }
    wrong = [
        name
        for name, count in counted.items()
        if getattr(report.manifest, name) != count
    ]
    if records := report.tables.get("matching_by_type"):
        matched = pairs["type"].value_counts().to_dict()
        told = {record["type"]: record["matched"] for record in records}
        if {k: n for k, n in told.items() if n} != matched:
            wrong.append("matching_by_type")
    yield "counts", _does_not_follow(wrong)


def _of_manifest(report: Report, manifest: Manifest) -> Iterator[Checked]:
    """Yield whether a report is of a manifest: its digest, counts and matching."""
    from spark_audit.pipeline.run import manifest_facts

    counts = ("name", "digest", "n_sources", "n_clusters", "n_spans", "n_tokens")
    ours = manifest_facts(manifest)
    wrong = [
        name for name in counts if getattr(ours, name) != getattr(report.manifest, name)
    ]
    tables = matching(manifest)
    wrong += [
        name
        for name in MATCHING_TABLES
        if name in report.tables and not is_same(tables[name], report.tables[name])
    ]
    if report.settings.get("limit") is not None:
        # A part of the rows was audited: its counts are those of the part.
        wrong = [name for name in wrong if name in ("name", "digest")]
    said = f"is not that of the report: {', '.join(wrong)}" if wrong else ""
    yield "manifest", said


# --- shared files ---------------------------------------------------------------------


def _files(
    report: Report, folder: Path, manifest: Manifest | None
) -> Iterator[Checked]:
    """Yield whether each file of the folder is what the report gives, to the byte."""
    shared = disclosed(report)

    @cache
    def drawn_in(language: str) -> Any:
        """Return the figures, whose words are of the language that is spoken."""
        return drawing.drawings(shared)

    for kind, names in report.files.items():
        if kind == SCORES_FOLDER or kind not in WRITERS:
            continue
        there = {}
        for name in names:
            try:
                there[name] = read_regular(folder / name, most=1 << 28)
            except OSError:
                yield name, "is missing, and the report names it"
        if needs_manifest(report, kind) and manifest is None:
            continue  # it is listed among what is taken on trust
        render = partial(_rendered, kind, shared, folder, drawn_in, manifest)
        given = _nearest_rendering(kind, there, render)
        for name in there:
            yield name, "" if given.get(name) == there[name] else OTHER_BYTES
        for name in sorted(given.keys() - {*names}):
            yield name, "is missing, and report.json gives it"
    named = {*chain(*report.files.values())}
    for name in _files_of_reports(folder):
        if name not in named:
            yield name, NOT_NAMED


def needs_manifest(report: Report, kind: str) -> bool:
    """Whether a format holds words or counts that only the manifest has."""
    return kind == "dossier" and bool(report.files.get(kind))


Renderer = Callable[[str, bool], dict[str, bytes]]


def _nearest_rendering(
    kind: str, there: Mapping[str, bytes], render: Renderer
) -> dict[str, bytes]:
    """Return the files as they are rendered in the language in which they are.

    Where that is none of ours, in English.
    """
    languages = ["en"] if kind in ENGLISH_FORMATS else sentences.LANGUAGES
    first: dict[str, bytes] = {}
    for language in languages:
        for show_text in (False, True) if kind == "dossier" else (False,):
            given = render(language, show_text)
            if given == there:
                return given
            first = first or given
    return first


def _rendered(
    kind: str,
    shared: Report,
    folder: Path,
    drawn_in: Callable[[str], Any],
    manifest: Manifest | None,
    language: str,
    show_text: bool,
) -> dict[str, bytes]:
    """Return the bytes of each file of a format, by its name."""
    how = WriterInput(partial(drawn_in, language), manifest, show_text)
    with sentences.spoken(language):
        files = list(WRITERS[kind](shared, folder, how))
    return {
        name: content.encode() if isinstance(content, str) else content
        for name, content, _ in files
    }


def _files_of_reports(folder: Path) -> Iterator[str]:
    """Yield what lies in a folder under a name that files of reports have."""
    for name in SHARED_PAGES:
        if (folder / name).is_file():
            yield name
    for place in SHARED_FOLDERS:
        for path in sorted((folder / place).glob("*")):
            yield f"{place}/{path.name}"


# --- statements and weights -----------------------------------------------------------


def _statement(report: Report, folder: Path, path: Path) -> Iterator[Checked]:
    """Yield whether a statement is the one that the report gives."""
    content, rules, allow_missing = gate.read_rules(path)
    asked = [gate.parse_rule(one) for one in rules]
    found = gate.check(report, asked, allow_missing=allow_missing)
    now = gate.statement(report, folder, found, allow_missing=allow_missing)
    told = ", ".join(gate.differences(now, content))
    yield str(path), f"states otherwise: {told}" if told else ""


def _weights(
    report: Report, ckpt: Sequence[str], base: str | None
) -> Iterator[Checked]:
    """Yield whether checkpoints are those that the report is of."""
    from spark_audit.checkpoints.open import OpenCheckpoints

    known = {one.name: one.weights_sha256 for one in report.checkpoints}
    specs = parse_specs(list(ckpt))
    for spec in specs:
        if spec.name not in known:
            what = f"{spec.name!r} is none of the report's checkpoints"
            fix = f"{choose(spec.name, known)}; name it as NAME=PATH"
            raise InputError(what, where="--ckpt", fix=fix)
    for one in OpenCheckpoints(specs, Loading(base=base)).described:
        if one.name in known:
            same = one.weights_sha256 == known[one.name]
            yield f"weights of {one.name}", "" if same else "are others"


# --- what nothing shows ---------------------------------------------------------------


def taken_on_trust(
    report: Report, *, verified: Iterable[str] = (), with_manifest: bool = False
) -> list[str]:
    """List what no evidence shows, in plain words.

    Parameters
    ----------
    verified
        Checkpoints whose weights were compared.
    with_manifest
        Whether the manifest was given.
    """
    told = [
        "that the evidence is of these checkpoints and all that there was: whoever can "
        "write to the folder can write both (sign the statement of `gate --attest`)",
        "checks of the setup (held_out_back, base_read_rows, broken_model, "
        "trained_rows_fit): they rest on scores of single tokens, no evidence",
        "status, command, versions and times, and settings that no conclusion rests on",
    ]
    missing = [one.name for one in report.checkpoints if one.name not in {*verified}]
    if missing:
        names = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        told.append(f"weights and source of {names} (give --ckpt NAME=PATH)")
    if not with_manifest:
        told.append(
            "the manifest's digest, sources, balance and identifiers without a control "
            "(give --manifest FILE)"
        )
        for kind in report.files:
            if needs_manifest(report, kind):
                told.append(f"{', '.join(report.files[kind])} (give --manifest FILE)")
    return told
