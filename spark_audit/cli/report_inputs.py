"""Read the inputs of commands on reports: a report folder, and its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from spark_audit.errors import InputError

if TYPE_CHECKING:
    from spark_audit.manifest.schema import Manifest
    from spark_audit.results import Report

Folder = Annotated[Path, Parameter(help="Report folder, or a file of one.")]


def opened(path: Path) -> tuple[Path, Report]:
    """Return the report folder at a path, and its report.

    Parameters
    ----------
    path
        A report folder, or a file of one, such as ``report.json``.
    """
    from spark_audit.report.folder import folder_of, read_report

    folder = folder_of(path)
    return folder, read_report(folder)


def manifest_of(report: Report, path: Path) -> Manifest:
    """Return the manifest at a path, if the report was made with it.

    Raises
    ------
    InputError
        If the report was made with another manifest.
    """
    from spark_audit.manifest.file import original, read_manifest

    manifest = original(read_manifest(path))
    if manifest.digest != report.manifest.digest:
        digest_start = report.manifest.digest[:12]
        raise InputError(
            f"is not the manifest of this report, {report.manifest.name!r}",
            where=str(path),
            fix=f"give the one whose digest begins with {digest_start}",
        )
    return manifest
