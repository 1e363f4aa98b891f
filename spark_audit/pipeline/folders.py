"""Where manifests are found, and where reports go without losing any.

Audits of the same checkpoints add up in one folder, whether they were called together
or one by one. What would be lost otherwise is refused before anything is scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.errors import InputError
from spark_audit.files import (
    check_links,
    check_writable,
    lies_inside,
)
from spark_audit.manifest.file import check_fit, load_manifest, original
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.request import Request
from spark_audit.report.folder import REPORT_FOLDERS, read_report
from spark_audit.results import Report

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.checkpoints.specs import Spec
from spark_audit.pipeline.joined import lost_parts

MANIFESTS = Path("manifests")

REPORTS = Path("reports")

OTHERS = ("run.json", "adapter_config.json", "config.json", "*.jsonl")
"""What folders of checkpoints and of data hold."""

REPORT_PAGES = ("report.html", "report.md", "dossier.html", "tables", "figures")
"""What a report would write over in a folder that is not its own."""


def manifest_for(checkpoint: Loaded, request: Request) -> Manifest:
    """The one that fits, or one of the data alone."""
    if not request.data:
        return find_manifest(checkpoint)
    from spark_audit.data.examples import data_files, read_examples
    from spark_audit.manifest.task_manifest import task_manifest

    name = "+".join(dict.fromkeys(path.stem for path in request.data))
    return task_manifest(
        read_examples(*data_files(request.data)), checkpoint, name=name
    )


def find_manifest(checkpoint: Loaded) -> Manifest:
    """The one manifest of ``manifests/`` that was made for this checkpoint's base.

    Raises
    ------
    InputError
        If none or several fit; it lists them.
    """
    fitting: dict[Path, Manifest] = {}
    others: list[str] = []
    for path in sorted([*MANIFESTS.glob("*.json"), *MANIFESTS.glob("*.arrow")]):
        try:
            if not lies_inside(path):
                raise InputError("is a link out of the folder")
            manifest = original(load_manifest(path))
            check_fit(manifest, checkpoint, base_sha256=checkpoint.base_sha256)
            fitting[path] = manifest
        except InputError as error:
            others.append(f"{path} ({error.what})")
    if len(fitting) == 1:
        return fitting.popitem()[1]
    what = f"several manifests fit: {', '.join(map(str, fitting))}"
    if not fitting:
        found = "; ".join(others) or f"there is none in {MANIFESTS}/"
        what = f"no manifest fits: {found}"
    raise InputError(
        what,
        where=f"checkpoint {checkpoint.name!r}",
        fix="give --manifest, or build one with `spark-audit manifest build`",
    )


def report_folder(
    manifest: Manifest, names: Sequence[str], specs: Sequence[Spec], request: Request
) -> Path:
    """Where a report goes, checked: by default ``reports/<manifest>-<names>``."""
    name = "-".join([manifest.name, *names])
    # Nothing in it that a file system could read otherwise.
    safe = "".join(c if c.isalnum() or c in "._+-" else "_" for c in name)
    folder = request.output or REPORTS / safe
    check_folder(folder, manifest, specs, request)
    return folder


def check_folder(
    folder: Path, manifest: Manifest, specs: Sequence[Spec], request: Request
) -> Report | None:
    """The report that the folder holds; refuse to lose it, or not to be able to write.

    A folder of another manifest is refused, one with a finished report that this call
    would not write again, and one of data or of a checkpoint.
    """
    check_links(folder, *REPORT_FOLDERS)
    check_is_for_reports(folder)
    before = None
    if (folder / "report.json").exists():
        before = read_report(folder)
        if lost := lost_parts(before, request, manifest, specs):
            raise InputError(
                f"holds a finished report with {lost}, which would be lost",
                where=str(folder),
                fix="give another -o, or remove the folder",
            )
    check_writable(folder)
    return before


def check_is_for_reports(folder: Path) -> None:
    """Refuse a folder of data, of a checkpoint, or of files named like a report's.

    Raises
    ------
    InputError
        With the first such file.
    """
    if (folder / "report.json").exists():
        return
    theirs = [one for kind in OTHERS for one in folder.glob(kind)]
    # A run that was interrupted while it wrote its report has scores.
    if not (folder / "scores").exists():
        theirs += [folder / name for name in REPORT_PAGES if (folder / name).exists()]
    if theirs:
        what = f"is no report folder: it holds {theirs[0].name}"
        raise InputError(what, where=str(folder), fix="give another -o")
