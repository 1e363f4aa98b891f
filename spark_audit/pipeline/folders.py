"""Find the manifest of a checkpoint, and the folders of a report and of scores.

Audits of the same checkpoints add up in one folder, whether they were called together
or one by one. A request that would lose a part of the folder's report is refused before
anything is scored: what counts as lost stands in ``joined.py`` (``lost_parts``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.errors import InputError
from spark_audit.files import check_links, check_writable, lies_inside
from spark_audit.manifest.file import check_fit, original, read_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.inputs_record import REPORTS
from spark_audit.pipeline.joined import lost_parts
from spark_audit.pipeline.request import Request
from spark_audit.report.folder import folder_of, read_report
from spark_audit.report.formats import REPORT_FOLDERS
from spark_audit.results import Report

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint
    from spark_audit.checkpoints.specs import Spec

MANIFESTS = Path("manifests")
"""Where a manifest is looked for if the user gives none."""

FOREIGN_FILES = ("run.json", "adapter_config.json", "config.json", "*.jsonl")
"""Files that mark a folder as one of checkpoints or of data."""

REPORT_PAGES = ("report.html", "report.md", "dossier.html", "tables", "figures")
"""Files and folders that a report would overwrite in a folder of something else."""


def manifest_for(checkpoint: Checkpoint, request: Request) -> Manifest:
    """Return the manifest for a request that names none.

    It is made of the rows of ``--data`` where they are given, or else found in
    ``manifests/``.

    Parameters
    ----------
    checkpoint
        The first checkpoint of the request, as its headers describe it.
    """
    if not request.data:
        return find_manifest(checkpoint)

    # Audits of series, the only ones that take --data, need no more than rows.
    from spark_audit.data.examples import data_files, read_examples
    from spark_audit.manifest.task_manifest import task_manifest

    name = "+".join(dict.fromkeys(path.stem for path in request.data))
    return task_manifest(
        read_examples(*data_files(request.data)), checkpoint, name=name
    )


def find_manifest(checkpoint: Checkpoint) -> Manifest:
    """Return the only manifest in ``manifests/`` that fits a checkpoint's base.

    Raises
    ------
    InputError
        If none fits, or several do; the message lists them.
    """
    fitting: dict[Path, Manifest] = {}
    refused: list[str] = []  # "PATH (REASON)"
    paths = [*MANIFESTS.glob("*.json"), *MANIFESTS.glob("*.arrow")]
    for path in sorted(paths):
        try:
            if not lies_inside(path):
                raise InputError("is a link out of the folder")
            manifest = original(read_manifest(path))
            check_fit(manifest, checkpoint, base_sha256=checkpoint.base_sha256)
            fitting[path] = manifest
        except InputError as error:
            refused.append(f"{path} ({error.what})")

    if len(fitting) == 1:
        return next(iter(fitting.values()))
    if fitting:
        listed = ", ".join(str(path) for path in fitting)
        problem = f"several manifests fit: {listed}"
    else:
        reasons = "; ".join(refused) or f"there is none in {MANIFESTS}/"
        problem = f"no manifest fits: {reasons}"
    raise InputError(
        problem,
        where=f"checkpoint {checkpoint.name!r}",
        fix="give --manifest, or build one with `spark-audit manifest build`",
    )


def report_folder(
    manifest: Manifest, names: Sequence[str], specs: Sequence[Spec], request: Request
) -> Path:
    """Return the folder of a report, by default ``reports/<manifest>-<names>``.

    Raises
    ------
    InputError
        As for :func:`check_folder`.
    """
    if request.output is not None:
        folder = request.output
    else:
        name = "-".join([manifest.name, *names])
        # Replace characters that mean something to a file system.
        safe_characters = []
        for character in name:
            is_safe = character.isalnum() or character in "._+-"
            safe_characters.append(character if is_safe else "_")
        safe_name = "".join(safe_characters)
        folder = REPORTS / safe_name
    check_folder(folder, manifest, specs, request)
    return folder


def check_folder(
    folder: Path, manifest: Manifest, specs: Sequence[Spec], request: Request
) -> Report | None:
    """Return the report that a folder holds, if any, once it may be written to.

    Raises
    ------
    InputError
        If the folder holds a finished report of which this request would lose a part
        (see :func:`~spark_audit.pipeline.joined.lost_parts`), or if it is a folder of
        data or of a checkpoint.
    OutputError
        If the folder cannot be written.
    """
    check_links(folder, *REPORT_FOLDERS)
    check_is_for_reports(folder)

    old_report = None
    if (folder / "report.json").exists():
        old_report = read_report(folder)
        lost = lost_parts(old_report, request, manifest, specs)
        if lost:
            raise InputError(
                f"holds a finished report with {lost}, which would be lost",
                where=str(folder),
                fix="give another -o, or remove the folder",
            )

    check_writable(folder)
    return old_report


def check_is_for_reports(folder: Path) -> None:
    """Refuse a folder of data, of a checkpoint, or of files named like a report's.

    Raises
    ------
    InputError
        Names the first such file.
    """
    if (folder / "report.json").exists():
        return

    foreign: list[Path] = []
    for pattern in FOREIGN_FILES:
        foreign += folder.glob(pattern)

    # With scores beside them, pages are those of a run that was interrupted.
    if not (folder / "scores").exists():
        for name in REPORT_PAGES:
            if (folder / name).exists():
                foreign.append(folder / name)

    if foreign:
        raise InputError(
            f"is not a report folder: it holds {foreign[0].name}",
            where=str(folder),
            fix="give another -o",
        )


def score_folder(scores: Path) -> Path:
    """Return the folder of scores that ``--scores`` stands for.

    The user may name that folder, or the folder of a report that holds it. A folder
    that is missing or empty becomes a new one.

    Raises
    ------
    InputError
        If the path is a file, or a folder of something else.
    """
    folder = folder_of(scores)
    for store in (folder / "scores" / "store", folder / "store", folder):
        if (store / "salt").exists():
            return store

    is_empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_empty:
        raise InputError(
            "holds no scores",
            where=f"--scores {scores}",
            fix="give a report folder with scores/store, or a folder for scores",
        )
    return folder
