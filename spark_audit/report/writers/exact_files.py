"""exact/: tables with exact figures, for the owner of a report alone.

Shared files are rounded to what their clusters allow (``disclosure/rounding.py``), and
the exact figures stand in ``report.json``. Here they stand as tables, which nobody else
can read, in a folder of their own, so that whoever gives away ``tables/`` does not give
them away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from spark_audit.errors import InputError
from spark_audit.report.cells import is_shared
from spark_audit.report.disclosure.digests import is_keyed, manifest_facts
from spark_audit.report.prepared import PreparedReport
from spark_audit.report.writers.latex import latex_files
from spark_audit.report.writers.table_files import write_csv
from spark_audit.report.writers.writer import File, WriterInput
from spark_audit.results import Report

EXACT_FOLDER = "exact"
"""Folder of the exact tables, in the report's folder."""


def check_exact(report: Report, folder: Path) -> None:
    """Refuse a report whose figures are rounded already.

    Raises
    ------
    InputError
        If it was made for sharing.
    """
    if is_shared(report) and is_keyed(report.manifest.digest):
        raise InputError(
            "holds the figures of a shared report, which are rounded",
            where=str(folder),
            fix="give the folder that the audit wrote",
        )


def write_exact_csv(
    prepared: PreparedReport, folder: Path, writer_input: WriterInput
) -> Iterator[File]:
    """Yield every table of the report as CSV, with all digits of its figures."""
    assert writer_input.exact is not None
    exact = PreparedReport(writer_input.exact)
    yield from _for_owner(write_csv(exact, folder, writer_input))


def write_exact_latex(
    prepared: PreparedReport, folder: Path, writer_input: WriterInput
) -> Iterator[File]:
    """Yield the LaTeX tables with four decimals, as the paper prints them."""
    assert writer_input.exact is not None
    report = for_print(writer_input.exact)
    yield from _for_owner(latex_files(report, is_exact=True))


def for_print(report: Report) -> Report:
    """Return an exact report with a keyed digest, which a note may show.

    Tables in a paper are not for the owner alone, and the bare digest would let anybody
    try out guesses of the texts.
    """
    digest = manifest_facts(report.manifest).digest
    manifest = report.manifest.model_copy(update={"digest": digest})
    return report.copy_unchecked(manifest=manifest)


def _for_owner(files: Iterable[File]) -> Iterator[File]:
    """Yield files under the same names in ``exact/``, for the owner alone."""
    for file in files:
        name = PurePosixPath(file.name).name
        yield File(f"{EXACT_FOLDER}/{name}", file.content, private=True)
