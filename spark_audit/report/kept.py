"""A finished report that another one replaces: it is kept whole, in a folder beside it.

Training again and auditing again is the normal case: the new report takes the folder of
its name, and the old one stays readable under the date on which it was made.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from spark_audit.audits.claims import TESTS
from spark_audit.files import cannot_write
from spark_audit.messages import say
from spark_audit.previous import DATE, unused
from spark_audit.results import CheckpointFacts, Report

NOT_KEPT = (".report.lock", ".spark-*", "store", "inputs.json")
"""What is no part of a report: locks, files half written, and the scores of models,
which stay where the next run looks for them."""


def other_models(old: Report, checkpoints: Sequence[CheckpointFacts]) -> list[str]:
    """Return the names under which a report has other models than these."""
    model_ids = {one.name: one.model_id for one in checkpoints}
    return [
        one.name
        for one in old.checkpoints
        if model_ids.get(one.name, one.model_id) != one.model_id
    ]


def replaced(old: Report, new: Report) -> str:
    """Return what the old report is about that the new one is not; empty: nothing.

    The program may be another version, and the new report may hold more: more audits,
    or the base too.
    """
    if old.manifest.digest != new.manifest.digest:
        return f"another manifest ({old.manifest.name!r})"

    if others := other_models(old, new.checkpoints):
        return f"another model under the name {', '.join(map(repr, others))}"

    names = {one.name for one in new.checkpoints}
    gone = [one.name for one in old.checkpoints if one.name not in names]
    if gone:
        return f"checkpoints that are not audited now ({', '.join(gone)})"

    changed = _changed(old.settings, new.settings)
    if changed:
        return f"other settings ({', '.join(changed)})"
    return ""


def _changed(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    keys = [key for key in old if key in new and key != TESTS]
    return [key for key in keys if old[key] != new[key]]


def keep_report(folder: Path, old: Report, why: str) -> Path:
    """Copy a finished report into a dated folder beside it, and say so.

    The copy is whole or not there.

    Parameters
    ----------
    folder
        Where the old report is, and the new one will be.
    why
        What the old report is about, from :func:`replaced`.

    Returns
    -------
    Path
        ``FOLDER-DATE``, with the date on which the old report was made.

    Raises
    ------
    OutputError
        If the copy cannot be written; the old report stays as it is.
    """
    place = folder.resolve()
    kept = unused(place.with_name(f"{place.name}-{_date(old, folder)}"))
    part = kept.with_name(f".{kept.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(
            place, part, symlinks=True, ignore=shutil.ignore_patterns(*NOT_KEPT)
        )
        part.rename(kept)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise cannot_write(kept, error) from error

    shown = folder.with_name(kept.name) if folder.name == place.name else kept
    say(f"{folder} held a report of {why}: it is kept in {shown}")
    return kept


def keep_if_replaced(folder: Path, old: Report | None, new: Report) -> None:
    """Keep the old report of a folder if the new one is about something else."""
    if old is None:
        return
    if why := replaced(old, new):
        keep_report(folder, old, why)


def _date(report: Report, folder: Path) -> str:
    try:
        made = datetime.fromisoformat(report.created)
    except ValueError:
        made = datetime.fromtimestamp((folder / "report.json").stat().st_mtime)
    return made.strftime(DATE)
