"""Where manifests are found, and where reports go without losing any."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.errors import InputError
from spark_audit.files import check_links, check_writable, lies_inside
from spark_audit.manifest.file import check_fit, load_manifest, original
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.lineup import Lineup
from spark_audit.pipeline.merge import check as check_kept
from spark_audit.pipeline.request import Request
from spark_audit.report.folder import FOLDERS, read_report
from spark_audit.results import Report
from spark_audit.terminal.suggestions import goes

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded

MANIFESTS = Path("manifests")
REPORTS = Path("reports")


def manifest_for(checkpoint: Loaded, request: Request) -> Manifest:
    """The one that fits, or one of the data alone."""
    if not request.data:
        return find_manifest(checkpoint)
    from spark_audit.data.examples import data_files, read_examples
    from spark_audit.manifest.build import task_manifest

    name = "+".join(dict.fromkeys(path.stem for path in request.data))
    return task_manifest(
        read_examples(*data_files(request.data)), checkpoint, name=name
    )


def find_manifest(checkpoint: Loaded, *, folder: Path = MANIFESTS) -> Manifest:
    """The one manifest of a folder that was made for this checkpoint's base.

    Raises
    ------
    InputError
        If none or several fit; it lists them.
    """
    fitting: list[tuple[Path, Manifest]] = []
    others: list[str] = []
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.arrow")]):
        if not lies_inside(path):
            others.append(f"{path} (is a link out of the folder)")
            continue
        try:
            manifest = load_manifest(path)
            check_fit(manifest, checkpoint, base_sha256=checkpoint.base_sha256)
            original(manifest)
        except InputError as error:
            others.append(f"{path} ({error.what})")
        else:
            fitting.append((path, manifest))
    if len(fitting) == 1:
        return fitting[0][1]
    if fitting:
        raise InputError(
            "several manifests fit: " + ", ".join(str(path) for path, _ in fitting),
            where=f"checkpoint {checkpoint.name!r}",
            fix="choose one with --manifest",
        )
    found = "; ".join(others) if others else f"there is none in {folder}/"
    raise InputError(
        f"no manifest fits: {found}",
        where=f"checkpoint {checkpoint.name!r}",
        fix="build one with `spark-audit manifest build`, or give --manifest",
    )


def report_folder(manifest: Manifest, order: Lineup, request: Request) -> Path:
    """Where a report goes, checked: by default ``reports/<manifest>-<names>``."""
    name = "-".join([manifest.name, *order.names])
    # Nothing in it that a file system could read otherwise.
    safe = "".join(c if c.isalnum() or c in "._+-" else "_" for c in name)
    folder = request.output or REPORTS / safe
    check_folder(folder, manifest, order, request)
    return folder


def check_folder(
    folder: Path, manifest: Manifest, order: Lineup, request: Request
) -> Report | None:
    """The report that the folder holds; refuse to lose it, or not to be able to write.

    A folder of another manifest is refused, one with a finished report that this call
    would not write again, and one of data or of a checkpoint.
    """
    kind = goes(folder, wanted="report") if folder.is_dir() else None
    if kind is not None and not (folder / "report.json").exists():
        fix = f"give another -o; {kind}"
        raise InputError("is no report folder", where=str(folder), fix=fix)
    check_links(folder, *FOLDERS)
    before = None
    if (folder / "report.json").exists():
        before = read_report(folder)
        if before.manifest.digest != manifest.digest:
            raise InputError(
                f"holds a report over another manifest ({before.manifest.name!r})",
                where=str(folder),
                fix="give another -o, or remove the folder",
            )
        check_kept(before, request, manifest, order, folder=folder)
    check_writable(folder)
    return before
