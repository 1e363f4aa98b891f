"""Commands without a model: ``spark-audit report``, ``compare`` and ``epsilon``.

Each command is a function whose parameters are its options; the docstring is its help.
A new command also gets an entry in ``REPORT_COMMANDS`` and in ``EXAMPLES`` of
``main.py``.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from spark_audit import options
from spark_audit.cli.report_inputs import Folder, manifest_of, opened
from spark_audit.errors import InputError
from spark_audit.messages import say
from spark_audit.sentences import render
from spark_audit.terminal import flags
from spark_audit.terminal.console import keep_apart, tell, tell_json

if TYPE_CHECKING:
    from spark_audit.results import Report

Unit = Literal["row", "canary"]
Relation = Literal["add-remove", "replace"]


def report(
    folder: Folder,
    /,
    *,
    formats: options.Formats = (),
    manifest: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    show_text: options.ShowText = False,
    exact: Annotated[bool, Parameter(group=options.OUTPUT, negative="")] = False,
    against: Annotated[
        Path | None, Parameter(group=options.WHAT, metavar="REPORT")
    ] = None,
    beside: Annotated[
        tuple[Path, ...],
        Parameter(group=options.WHAT, metavar="REPORT...", consume_multiple=True),
    ] = (),
    output: Annotated[Path | None, Parameter(metavar="FILE", alias="-o")] = None,
    open_page: Annotated[bool, Parameter(name="--open", negative="")] = False,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Render a report folder again from its report.json; needs no model.

    Parameters
    ----------
    manifest
        For --show-text, and for the dossier's number of rows.
    exact
        Write latex and csv without rounding, into exact/: for the owner alone.
    against
        Print the figures of another report's checkpoints of the same names next to
        these (reports/paper: SPARK's paper).
    beside
        Write a LaTeX table of this and these reports instead, as of other task orders
        or another base.
    output
        For --beside: file of the table; one that ends with .pdf, .svg or .png gets the
        paper's figure of task orders.
    open_page
        Open report.html in a browser.
    """
    if beside or output is not None:
        output = _check_beside(beside, output)
        if formats or against is not None or open_page or json or manifest is not None:
            raise InputError(
                "writes one table or figure and nothing else",
                where="--beside",
                fix="leave out the other options, but for --exact",
            )
        _write_beside([folder, *beside], output, exact=exact)
        return

    from spark_audit.cli.show import say_where, show_report, show_tables
    from spark_audit.report.disclosure.shared import disclosed
    from spark_audit.report.folder import what_is_not_written, write_report

    # Conflicting options are refused before anything is read.
    _check_options(
        formats,
        exact=exact,
        show_text=show_text,
        manifest=manifest,
        against=against,
        open_page=open_page,
        json=json,
    )

    folder, loaded_report = opened(folder)
    loaded_manifest = None
    if manifest is not None:
        loaded_manifest = manifest_of(loaded_report, manifest)
    # The comparison comes before any writing: an unknown name leaves the folder
    # unchanged.
    comparison = None
    if against is not None:
        from spark_audit.report.against import against as table_against

        comparison = table_against(loaded_report, opened(against)[1])

    shared = disclosed(loaded_report)
    written = write_report(
        loaded_report,
        folder,
        formats=formats,
        manifest=loaded_manifest,
        show_text=show_text,
        shared=shared,
        previous=loaded_report,
        exact=exact,
    )
    for line in what_is_not_written(loaded_report, formats, shared=shared):
        say(line)
    if open_page:
        webbrowser.open((folder / "report.html").resolve().as_uri())

    if json:
        tell_json(loaded_report.model_dump(mode="json"))
        return
    # A user who names formats reads the files instead, so their paths are printed.
    if verbose or not formats:
        show_report(loaded_report, shared=shared, verbose=verbose)
    if formats:
        for path in written:
            tell(str(path))
    else:
        say_where(folder)
    if comparison is not None:
        tell(f"\n{render('against.lead')}")
        show_tables([comparison], figures=False)


def _check_options(
    formats: Sequence[str],
    *,
    exact: bool,
    show_text: bool,
    manifest: Path | None,
    against: Path | None,
    open_page: bool,
    json: bool,
) -> None:
    """Refuse options of ``report`` that contradict each other.

    Raises
    ------
    InputError
        With the first of them.
    """
    from spark_audit.report.formats import check_formats

    check_formats(formats, exact=exact)
    options.text_in_dossier(formats, show_text=show_text)
    if show_text and manifest is None:
        raise InputError(
            "the text is in the manifest", where="--show-text", fix="add --manifest"
        )
    if json and against is not None:
        raise InputError(
            "prints tables for readers", where="--against", fix="leave out --json"
        )
    if open_page and formats and "html" not in formats:
        raise InputError(
            "opens report.html, which is not among the formats",
            where="--open",
            fix="add html to --format",
        )


def _check_beside(beside: Sequence[Path], output: Path | None) -> Path:
    """Return the file of a table or figure of several reports.

    Raises
    ------
    InputError
        If there are not several reports, no file to write, or one that is neither a
        table nor a figure by its name.
    """
    from spark_audit.report.figures.figure_files import FIGURE_FORMATS

    if not beside:
        raise InputError(
            "is for the table of --beside", where="-o", fix="give --beside REPORT"
        )
    if output is None:
        raise InputError(
            "needs a file to write", where="--beside", fix="add -o FILE.tex"
        )
    known = [".tex", *(f".{form}" for form in FIGURE_FORMATS)]
    if output.suffix.lower() not in known:
        raise InputError(
            "is neither a table nor a figure by its name",
            where=f"-o {output}",
            fix=f"end it with {', '.join(known)}",
        )
    return output


def _write_beside(folders: Sequence[Path], output: Path, *, exact: bool) -> None:
    """Write reports as one LaTeX table or one figure, and say where it is.

    Parameters
    ----------
    output
        A figure of task orders, if its name ends as one of a figure.
    exact
        Whether its figures are exact; the file is for the owner alone then.

    Raises
    ------
    InputError
        If a report has no figure of the table, or no system is in several reports whose
        figure was asked for.
    """
    from spark_audit.files import write_bytes
    from spark_audit.previous import keeping_previous
    from spark_audit.report.disclosure.shared import disclosed
    from spark_audit.report.figures.figure_files import FIGURE_FORMATS
    from spark_audit.report.writers.exact_files import check_exact, for_print
    from spark_audit.report.writers.latex_beside import table_beside

    reports: dict[str, Report] = {}
    for path in folders:
        folder, loaded_report = opened(path)
        if str(folder) in reports:
            raise InputError("is given twice", where=str(folder), fix="leave one out")
        if exact:
            check_exact(loaded_report, folder)
            reports[str(folder)] = for_print(loaded_report)
        else:
            reports[str(folder)] = disclosed(loaded_report)

    form = output.suffix.removeprefix(".").lower()
    if form in FIGURE_FORMATS:
        content = _figure_of_orders(list(reports.values()), output, form)
    else:
        content = table_beside(reports, is_exact=exact).encode()
    with keeping_previous([output]):
        write_bytes(output, content, mode=0o600 if exact else 0o644)
    tell(str(output))


def _figure_of_orders(reports: Sequence[Report], output: Path, form: str) -> bytes:
    """Return the figure of task orders over reports, in the form of a file.

    It is as wide as a column if the file's name ends with ``-column``, else as a text.

    Raises
    ------
    InputError
        If no system is in several reports.
    """
    from spark_audit.report.figures.figure_files import rendered
    from spark_audit.report.figures.paper.drawing import (
        COLUMN_ENDING,
        drawing_of_orders,
    )
    from spark_audit.report.figures.paper.widths import COLUMN_WIDTH, TEXT_WIDTH

    width = COLUMN_WIDTH if output.stem.endswith(COLUMN_ENDING) else TEXT_WIDTH
    figure = drawing_of_orders(reports, width=width)
    if figure is None:
        raise InputError(
            "the reports have no checkpoint of one name with figures of `utility` or "
            "`nll`",
            where="--beside",
            fix="audit the same methods under the same names in each order",
        )
    return rendered(figure, form)


def compare(
    folders: Annotated[list[Path], Parameter(metavar="DIR DIR...")],
    /,
    *,
    typed: flags.TypedLine,
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
    from spark_audit.pipeline.compare import compare as compare_reports
    from spark_audit.report.audit_report import read_report
    from spark_audit.report.folder import folder_of, write_report

    folders = [folder_of(folder) for folder in folders]
    for folder in folders:
        if folders.count(folder) > 1:
            raise InputError("is given twice", where=str(folder), fix="leave one out")
    if output is not None:
        keep_apart([output], folders)
        check_writable(output)

    # The evidence is enough for contrasts, so no checkpoint is opened.
    comparison = compare_reports(
        *folders,
        baseline=baseline,
        preset=preset,
        seed=seed,
        null=null,
        output=output,
        command=typed.words,
    )
    if output is not None:
        write_report(comparison, output)
        # Read again, because the written report also names its files.
        comparison = read_report(output)

    if json:
        tell_json(comparison.model_dump(mode="json"))
        return
    show_report(comparison, verbose=verbose)
    if output is not None:
        say_where(output)


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
    outcomes = receipts(opened(folder)[1], claim)
    accountant_says = ""
    if run is not None:
        accountant_says = accounted(run, claim)

    # One outcome for each checkpoint, whose state is a `ClaimState`.
    if json:
        claim_facts = {"claim": vars(claim), "accountant": accountant_says}
        tell_json([vars(outcome) | claim_facts for outcome in outcomes])
    else:
        for outcome in outcomes:
            tell(f"{outcome.checkpoint}: {outcome.sentence(claim)}")
        if accountant_says:
            tell(accountant_says)

    # An undecided outcome is not a contradiction.
    if any(outcome.state == "contradicted" for outcome in outcomes):
        raise SystemExit(1)
