"""``spark-audit report``, ``compare``, ``gate`` and others: what needs no model."""

from __future__ import annotations

import webbrowser
from collections.abc import Collection, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from spark_audit import options
from spark_audit.errors import InputError, choose
from spark_audit.messages import say
from spark_audit.previous import keeping_previous
from spark_audit.sentences import render
from spark_audit.terminal import flags
from spark_audit.terminal.console import (
    keep_apart,
    show_line,
    show_table,
    tell,
    tell_json,
)

ROWS_NAMED = 5
"""Rows of a checkpoint that `persons` names; --json lists all."""

Unit = Literal["row", "canary"]
Relation = Literal["add-remove", "replace"]
if TYPE_CHECKING:
    from spark_audit.manifest.schema import Manifest
    from spark_audit.results import Report

Folder = Annotated[Path, Parameter(help="Report folder, or a file of one.")]


def report(
    folder: Folder,
    /,
    *,
    formats: options.Formats = (),
    manifest: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    show_text: options.ShowText = False,
    against: Annotated[
        Path | None, Parameter(group=options.WHAT, metavar="REPORT")
    ] = None,
    open_page: Annotated[bool, Parameter(name="--open", negative="")] = False,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Render a report folder again from its report.json; needs no model.

    Parameters
    ----------
    manifest
        For --show-text, and for the dossier's number of rows.
    against
        Print the figures of another report's checkpoints of the same names next to
        these (reports/paper: SPARK's paper).
    open_page
        Open report.html in a browser.
    """
    from spark_audit.cli.show import say_where, show_report, show_tables
    from spark_audit.report.folder import write_report

    options.text_in_dossier(formats, show_text=show_text)
    if show_text and manifest is None:
        what = "the text is in the manifest"
        raise InputError(what, where="--show-text", fix="add --manifest")
    if json and against is not None:
        what = "prints tables for readers"
        raise InputError(what, where="--against", fix="leave out --json")
    if open_page and formats and "html" not in formats:
        what = "opens report.html, which is not among the formats"
        raise InputError(what, where="--open", fix="add html to --format")
    folder, content = opened(folder)
    source = None if manifest is None else manifest_of(content, manifest)
    # Before anything is written: a name that is unknown leaves the folder as it is.
    beside = []
    if against is not None:
        from spark_audit.report.against import against as compared

        beside = [compared(content, opened(against)[1])]
    written = write_report(
        content,
        folder,
        formats=formats,
        manifest=source,
        show_text=show_text,
    )
    if open_page:
        webbrowser.open((folder / "report.html").resolve().as_uri())
    if json:
        tell_json(content.model_dump(mode="json"))
        return
    if verbose or not formats:
        show_report(content, verbose=verbose)
    if not formats:
        say_where(folder)
    for path in written if formats else ():
        tell(str(path))
    if beside:
        tell(f"\n{render('against.lead')}")
        show_tables(beside, figures=False)


def opened(path: Path) -> tuple[Path, Report]:
    """The report folder that a path is, or lies in, and its report."""
    from spark_audit.report.folder import folder_of, read_report

    folder = folder_of(path)
    return folder, read_report(folder)


def manifest_of(content: Report, path: Path) -> Manifest:
    """The manifest that a report was made with."""
    from spark_audit.manifest.file import load_manifest, original

    manifest = original(load_manifest(path))
    if manifest.digest != content.manifest.digest:
        raise InputError(
            f"is not the manifest of this report, {content.manifest.name!r}",
            where=str(path),
            fix=f"give the one whose digest begins with {content.manifest.digest[:12]}",
        )
    return manifest


def compare(
    folders: Annotated[list[Path], Parameter(metavar="DIR DIR...")],
    /,
    *,
    typed: flags.Line,
    baseline: Annotated[str | None, Parameter(metavar="NAME")] = None,
    output: Annotated[Path | None, Parameter(metavar="DIR", alias="-o")] = None,
    preset: options.Preset = None,
    seed: options.Seed = 0,
    null: Annotated[str | None, Parameter(metavar="NAME,NAME")] = None,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Paired contrasts of reports over one manifest; needs no model.

    Parameters
    ----------
    folders
        Report folders.
    baseline
        Default: the first report's checkpoint.
    output
        Write a report folder too.
    null
        Ordinary runs; a DiD must be larger than theirs.
    """
    from spark_audit.cli.show import say_where, show_report
    from spark_audit.files import check_writable
    from spark_audit.pipeline.compare import compare as compared
    from spark_audit.report.audit_report import read_report
    from spark_audit.report.folder import folder_of, write_report

    folders = [folder_of(folder) for folder in folders]
    if twice := [one for one in folders if folders.count(one) > 1]:
        raise InputError("is given twice", where=str(twice[0]), fix="leave one out")
    if output is not None:
        keep_apart([output], folders)
        check_writable(output)
    content = compared(
        *folders,
        baseline=baseline,
        preset=preset,
        seed=seed,
        null=null,
        output=output,
        command=typed.words,
    )
    if output is not None:
        write_report(content, output)
        content = read_report(output)
    if json:
        tell_json(content.model_dump(mode="json"))
        return
    show_report(content, verbose=verbose)
    if output is not None:
        say_where(output)


def gate(
    folder: Folder,
    /,
    *,
    fail_if: Annotated[tuple[str, ...], Parameter(metavar="RULE...")] = (),
    against: Annotated[Path | None, Parameter(metavar="REPORT")] = None,
    allow_missing: bool = False,
    junit: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    sarif: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    attest: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    json: options.Json = False,
) -> None:
    """Fail with exit code 1 if a rule is violated; needs no model.

    The last line is PASS or FAIL, with the rule that decided.

    Rules judge every checkpoint, unless they end with 'for NAME' or 'except NAMES':

    'claim >= membership': a claim of this severity or more.

    'mia.auc.loss.low > 0.55': a figure, or an end of its interval. Of NLL, as in
    matched.memory.value, lower is more memory.

    'extract.greedy_rate[type=*].high > 0.01': the same by type.

    'guard trained_rows_fit': trained rows do not fit better than held-out ones; the
    list of rows or the template may be wrong.

    'matched.memory rose by 0.05': since ``--against``, towards more memory.

    Parameters
    ----------
    fail_if
        Conditions under which the gate fails. Default: 'claim >= membership', which
        covers memory and verbatim.
    against
        An earlier report over the same manifest, for rules on what rose or fell.
    allow_missing
        Missing figures do not violate a rule.
    junit
        Write the result of each rule as JUnit XML.
    sarif
        Write what trips as SARIF 2.1.0, which code scanning reads.
    attest
        Write an in-toto statement on the report, for you to sign; ``spark-audit
        verify`` reads it.
    """
    from spark_audit.audits.supervision_guards import supervision_warnings
    from spark_audit.files import write_text
    from spark_audit.report.gate import pipeline_files, statement
    from spark_audit.report.gate.judge import check
    from spark_audit.report.gate.lines import gate_lines
    from spark_audit.report.gate.rules import DEFAULT_RULES, parse_rule

    rules = [parse_rule(text) for text in fail_if or DEFAULT_RULES]
    folder, content = opened(folder)
    changed = None
    same: Collection[str] = ()
    audits = {rule.audit for rule in rules if rule.change}
    if against is not None and not audits:
        what = "is for rules on what rose or fell, and there is none"
        fix = "add one, such as --fail-if 'mia.auc.loss rose by 0.05', or leave it out"
        raise InputError(what, where="--against", fix=fix)
    if against is not None:
        from spark_audit.pipeline.compare import changed_since

        changed, same = changed_since(folder, opened(against)[0], only=audits)
    verdicts = check(
        content, rules, allow_missing=allow_missing, changed=changed, same=same
    )
    outputs = [one for one in (junit, sarif, attest) if one]
    keep_apart(outputs, [folder, folder / "report.json"])
    if attest is not None and changed is not None:
        what = "is on one report, without an earlier one"
        raise InputError(what, where="--attest", fix="leave --against out")
    name = folder.resolve().name
    if attest is not None:
        _check_evidence(content, folder)
    with keeping_previous(outputs):
        if junit is not None:
            write_text(junit, pipeline_files.junit(verdicts, name=name))
        if sarif is not None:
            write_text(sarif, dumps(pipeline_files.sarif(verdicts, name=name)))
        if attest is not None:
            stated = statement.statement(
                content, folder, verdicts, allow_missing=allow_missing
            )
            write_text(attest, stated.decode())
    try:
        if json:
            tell_json([vars(one) for one in verdicts])
        else:
            warnings = supervision_warnings(content.guards)
            tell("\n".join([*warnings, *gate_lines(verdicts)]))
    finally:
        # Whether anybody reads this is nothing to the verdict.
        if any(one.state == "tripped" for one in verdicts):
            raise SystemExit(1)


def _check_evidence(report: Report, folder: Path) -> None:
    """Refuse to state anything on a report that does not follow from its evidence."""
    from spark_audit.pipeline.verification.verify import follows

    for what, wrong in follows(report, folder):
        if wrong:
            raise InputError(
                f"nothing can be stated on this report: {what} {wrong}",
                where="--attest",
                fix=f"see `spark-audit verify {folder}`, and audit again",
            )


def epsilon(
    folder: Folder,
    /,
    *,
    claims: float,
    delta: float = 0.0,
    unit: Unit = "row",
    relation: Relation = "add-remove",
    run: Annotated[Path | None, Parameter(metavar="RUN")] = None,
    json: options.Json = False,
) -> None:
    """Hold a claim of differential privacy against a report's canaries; 1 if it fails.

    Parameters
    ----------
    claims
        The epsilon that is claimed.
    delta
        Its delta; without one, the claim is of pure epsilon.
    unit
        What the claim protects: a row, or all rows that a canary stands in.
    relation
        Whether one is added or removed, as accountants of DP-SGD have it, or replaced.
    run
        A run of spark-train, for what its accountant states.
    """
    from spark_audit.report.receipt import Claim, accounted, receipts

    claim = Claim(epsilon=claims, delta=delta, unit=unit, relation=relation)
    found = receipts(opened(folder)[1], claim)
    stated = "" if run is None else accounted(run, claim)
    if json:
        more = {"claim": vars(claim), "accountant": stated}
        tell_json([vars(one) | more for one in found])
    else:
        for one in found:
            tell(f"{one.checkpoint}: {one.sentence(claim)}")
        if stated:
            tell(stated)
    if any(one.state == "contradicted" for one in found):
        raise SystemExit(1)


def verify(
    folder: Folder,
    /,
    *,
    attestation: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    ckpt: Annotated[tuple[str, ...], Parameter(metavar="[NAME=]PATH...")] = (),
    base: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    manifest: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    json: options.Json = False,
) -> None:
    """Conclude a report anew from its evidence, without model or text; 1 if it differs.

    Every file of evidence is concluded again and compared with all that the report
    says; shared files must be, to the byte, what it gives. What nothing shows is
    listed.

    Parameters
    ----------
    attestation
        A statement of ``gate --attest``: it must be the one that this report gives.
    ckpt
        Checkpoints whose weights must be those of the report.
    base
        Base model of adapters.
    manifest
        The manifest, for its digest, its counts and the dossier.
    """
    from spark_audit.checkpoints.specs import parse_specs
    from spark_audit.pipeline.verification.trust import taken_on_trust
    from spark_audit.pipeline.verification.verify import verify as verified

    folder, report = opened(folder)
    # Concluding again takes a minute: a name that is unknown is refused before it.
    known = [one.name for one in report.checkpoints]
    for spec in parse_specs(list(ckpt)):
        if spec.name not in known:
            what = f"{spec.name!r} is none of the report's checkpoints"
            fix = f"{choose(spec.name, known)}; name it as NAME=PATH"
            raise InputError(what, where="--ckpt", fix=fix)
    whole = None if manifest is None else manifest_of(report, manifest)
    # Also where stderr is no terminal: nothing else is printed for a minute or more.
    say(render("verify.begins", folder=folder))
    found = [
        {"what": what, "verified": not wrong, "detail": wrong}
        for what, wrong in verified(
            folder, attestation=attestation, ckpt=ckpt, base=base, manifest=whole
        )
    ]
    compared = [str(one["what"]).removeprefix("weights of ") for one in found if ckpt]
    trusted = taken_on_trust(report, verified=compared, with_manifest=whole is not None)
    if json:
        tell_json({"checked": found, "taken_on_trust": trusted})
    else:
        _show_verified(found, trusted)
    if not all(one["verified"] for one in found):
        raise SystemExit(1)


def _show_verified(found: list[dict[str, Any]], trusted: Sequence[str]) -> None:
    """Print whether a report follows from its evidence, and what does not."""
    from spark_audit.results import grouped

    strays = [one for one in found if _is_stray(one)]
    wrong = [one for one in found if not one["verified"] and one not in strays]
    held = [one for one in found if one["verified"]]
    verdict = _verdict(n_wrong=len(wrong), n_held=len(held), n_strays=len(strays))
    show_line(verdict, style="bold")
    if wrong and strays:
        show_line(render("verify.strays", count=len(strays)), style="bold")

    # What holds is counted by its kind, as are strays; what is wrong stands in full.
    differs = render("verify.wrong")
    lines = [(str(one["what"]), differs, str(one["detail"])) for one in wrong]
    for kind, of_kind in grouped(strays, _kind_of_part).items():
        name, detail = _name_of_parts(kind, of_kind), render("verify.stray_detail")
        if len(of_kind) > 1:
            detail = render("verify.strays_detail", count=len(of_kind))
        lines.append((name, render("verify.stray"), detail))
    for kind, of_kind in grouped(held, _kind_of_part).items():
        state = render("verify.held", count=len(of_kind))
        lines.append((_name_of_parts(kind, of_kind), state, ""))
    header = [render(f"verify.column_{name}") for name in ("part", "state", "detail")]
    show_table("", header, lines, figures=False)

    show_line(render("verify.trusted"))
    for line in trusted:
        show_line(f"- {line}")
    if wrong:
        show_line(render("verify.next"))
    elif strays:
        show_line(render("verify.next_of_strays"))


def _verdict(*, n_wrong: int, n_held: int, n_strays: int) -> str:
    """Return whether a report follows from its evidence, in one line."""
    if n_wrong:
        return render("verify.differs", wrong=n_wrong, count=n_wrong + n_held)
    if n_strays:
        return render("verify.follows_but_strays", count=n_held, strays=n_strays)
    return render("verify.follows", count=n_held)


def _is_stray(part: dict[str, Any]) -> bool:
    """Whether a part is a shared file that the report does not name.

    Evidence that it does not name is none: what was left out may have concluded
    something else.
    """
    from spark_audit.pipeline.verification.checked import NOT_NAMED

    is_evidence = str(part["what"]).startswith("scores/")
    return bool(part["detail"] == NOT_NAMED and not is_evidence)


def _name_of_parts(kind: str, parts: Sequence[dict[str, Any]]) -> str:
    """Return the name of one part, or the kind of several."""
    return kind if len(parts) > 1 else str(parts[0]["what"])


def _kind_of_part(part: dict[str, Any]) -> str:
    """Return which kind of parts of a report one is of."""
    what = str(part["what"])
    for folder in ("scores/", "tables/", "figures/"):
        if what.startswith(folder):
            return folder
    if what.startswith("conclusions of "):
        return render("verify.conclusions")
    if what.startswith("weights of "):
        return render("verify.weights")
    return render("verify.others")


def persons(
    folders: Annotated[list[Path], Parameter(metavar="REPORT...")],
    /,
    *,
    person: Annotated[tuple[str, ...], Parameter(metavar="ID...")] = (),
    manifest: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    show_text: Annotated[bool, Parameter(negative="")] = False,
    share: Annotated[float, Parameter(metavar="X")] = 0.1,
    json: options.Json = False,
) -> None:
    """What a report shows of single rows and persons; needs no model and no text.

    Parameters
    ----------
    folders
        Report folders: of two over one manifest, before and after an erasure, say, it
        is also told what changed.
    person
        Ids of rows, or of their groups (a group has the name of its smallest
        source). Default: the list of named rows.
    manifest
        For --person by any source of a row, and for --show-text.
    show_text
        Name the identifiers that come back word for word. Rows of one group may name
        several persons: read them before you hand them out.
    share
        Expected share of false ones among named rows.
    """
    from spark_audit.report import named

    if not 0 < share < 1:
        raise InputError("must be between 0 and 1", where="--share", fix="give 0.1")
    if show_text and (manifest is None or not person):
        fix = "give --person ID and --manifest FILE"
        what = "needs the person and the manifest, which has the text"
        raise InputError(what, where="--show-text", fix=fix)
    reports = dict(map(opened, folders))
    whole, sources = None, dict[str, str]()
    if manifest is not None:
        for report in reports.values():
            whole = manifest_of(report, manifest)
            sources = {row.source_id: row.cluster for row in whole.examples}
    kind = "persons" if person else "named"
    told: dict[str, list[dict[str, Any]]] = {kind: []}
    for folder, report in reports.items():
        if person:
            sheets = named.persons(
                report,
                folder,
                person,
                sources=sources,
                shown=whole if show_text else None,
                share=share,
            )
        else:
            evidence = named.evidence_of(report, folder)
            sheets = [
                {
                    "checkpoint": one.checkpoint,
                    "summary": one.summary(share),
                    "why": one.why,
                    "n_rows": len(one.rows),
                    "n_groups": len(one.groups),
                    "rows": one.rows.loc[one.rows["named"], "row"].tolist(),
                    "groups": one.groups.loc[one.groups["named"], "group"].tolist(),
                }
                for one in named.named_rows(report, evidence, share=share)
            ]
        told[kind] += [{"report": str(folder), **one} for one in sheets]
    if person and len(reports) == 2:
        told["changes"] = named.changed(reports, person, sources=sources)
    if json:
        tell_json(told)
        return
    place = "{report}: " if len(reports) > 1 else ""
    if person:
        _show_sheets(told, place, share)
        return
    _show_named(told["named"], place, share)


def _show_named(named: list[dict[str, Any]], place: str, share: float) -> None:
    """Print how many rows each checkpoint shows to have been trained on, and which."""
    counts = [
        f"{place.format(**one)}{one['checkpoint']} ({len(one['rows'])})"
        for one in named
        if one["rows"]
    ]
    if counts:
        show_line(render("named.some", names=", ".join(counts)), style="bold")
    else:
        show_line(render("named.no_row"), style="bold")

    lines = []
    for one in named:
        rows = render("named.of", count=len(one["rows"]), of=one["n_rows"])
        groups = render("named.of", count=len(one["groups"]), of=one["n_groups"])
        if one["why"]:
            rows = groups = "-"
        first = ", ".join(one["rows"][:ROWS_NAMED])
        if len(one["rows"]) > ROWS_NAMED:
            first = render("named.first", rows=first)
        name = f"{place.format(**one)}{one['checkpoint']}"
        lines.append((name, rows, groups, one["why"] or first))
    columns = ("checkpoint", "rows", "groups", "which")
    header = [render(f"named.column_{name}") for name in columns]
    show_table("", header, lines, figures=False)

    show_line(render("named.false_share", share=share))
    show_line(render("named.limits"))
    show_line(render("named.next"))


def _show_sheets(
    told: dict[str, list[dict[str, Any]]], place: str, share: float
) -> None:
    """Print what each checkpoint shows of each person, and what changed."""
    from spark_audit.report import person_sentences as sheets

    columns = [render(f"persons.column.{name}") for name in sheets.PERSON_COLUMNS]
    change_columns = [
        render(f"persons.column.{name}") for name in sheets.CHANGE_COLUMNS
    ]
    changes = told.get("changes", [])
    for key in dict.fromkeys(one["id"] for one in told["persons"]):
        records = [one for one in told["persons"] if one["id"] == key]
        show_line(sheets.person_verdict(records, place=place), style="bold")
        show_line(sheets.rows_of_person(records[0]))
        lines = [sheets.person_line(one, place=place.format(**one)) for one in records]
        show_table("", columns, lines, figures=False)
        for one in records:
            for text in one["texts"]:
                show_line(f"{place.format(**one)}{one['checkpoint']}: {text}")

        moved = [one for one in changes if one["id"] == key]
        if moved:
            change_lines = [sheets.change_line(one) for one in moved]
            show_table("", change_columns, change_lines, figures=False)
        elif "changes" in told:
            show_line(render("persons.no_pair"))
        tell()

    for remark in sheets.remarks_on_persons(told["persons"], changes, share=share):
        show_line(remark)
    show_line(render("persons.next"))
