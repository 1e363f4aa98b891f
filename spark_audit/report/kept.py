"""Keep a finished report that another one replaces, in a folder next to it.

Training again and auditing again is the normal case: the new report takes the folder of
its name, and the old one stays readable under the date on which it was made.

:func:`keep_if_replaced` is called before a new report is written. A further reason to
keep the old one is a branch of :func:`subject_that_changed`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from spark_audit.audits.claims import TESTS_SETTING
from spark_audit.files import cannot_write
from spark_audit.messages import say
from spark_audit.previous import DATE_FORMAT, unused
from spark_audit.results import CheckpointFacts, Report

NOT_KEPT = (".report.lock", ".spark-*", "store", "inputs.json")
"""Files of a report's folder that are not copied.

They are locks, files half written, and the scores of models, which stay where the next
run looks for them.
"""


def other_models(old: Report, checkpoints: Sequence[CheckpointFacts]) -> list[str]:
    """Return the names under which a report has other models than these.

    Names that only one of the two reports has are left out.
    """
    model_id_by_name = {facts.name: facts.model_id for facts in checkpoints}
    names = []
    for facts in old.checkpoints:
        is_in_both = facts.name in model_id_by_name
        if is_in_both and model_id_by_name[facts.name] != facts.model_id:
            names.append(facts.name)
    return names


def subject_that_changed(old: Report, new: Report) -> str:
    """Return what the old report is about and the new one is not, in words.

    The text is empty if there is nothing: then the old report need not be kept.

    The new report may come from another version of the program, and may hold more: more
    audits, or the base too.
    """
    if old.manifest.digest != new.manifest.digest:
        return f"another manifest ({old.manifest.name!r})"

    names_of_others = other_models(old, new.checkpoints)
    if names_of_others:
        names = ", ".join(repr(name) for name in names_of_others)
        return f"another model under the name {names}"

    new_names = {facts.name for facts in new.checkpoints}
    missing_names = [
        facts.name for facts in old.checkpoints if facts.name not in new_names
    ]
    if missing_names:
        return f"checkpoints that are not audited now ({', '.join(missing_names)})"

    # Settings come last, since they do not matter if data or models differ.
    changed = _changed_settings(old.settings, new.settings)
    if changed:
        return f"other settings ({', '.join(changed)})"
    return ""


def _changed_settings(
    old: Mapping[str, object], new: Mapping[str, object]
) -> list[str]:
    """Return the settings of both reports that differ.

    The number of tests follows from the audits, of which the new report may hold more.
    """
    changed = []
    for key, old_value in old.items():
        is_compared = key in new and key != TESTS_SETTING
        if is_compared and old_value != new[key]:
            changed.append(key)
    return changed


def keep_report(folder: Path, old: Report, subject: str) -> Path:
    """Copy a finished report into a dated folder beside it, and say so.

    The copy is whole or not there.

    Parameters
    ----------
    folder
        Where the old report is, and the new one will be.
    subject
        What only the old report is about, from :func:`subject_that_changed`.

    Returns
    -------
    Path
        ``FOLDER-DATE``, with the date on which the old report was made, or
        ``FOLDER-DATE-2``, ``FOLDER-DATE-3`` ... if that name is taken.

    Raises
    ------
    OutputError
        If the copy cannot be written; the old report stays as it is.
    """
    source = folder.resolve()
    kept_folder = unused(source.with_name(f"{source.name}-{_date(old, folder)}"))
    half_copied = kept_folder.with_name(f".{kept_folder.name}.part")
    try:
        # An earlier run may have been killed while it copied.
        shutil.rmtree(half_copied, ignore_errors=True)
        shutil.copytree(
            source,
            half_copied,
            symlinks=True,
            ignore=shutil.ignore_patterns(*NOT_KEPT),
        )
        half_copied.rename(kept_folder)
    except OSError as error:
        shutil.rmtree(half_copied, ignore_errors=True)
        raise cannot_write(kept_folder, error) from error

    # The path is shown as the user wrote it, unless the folder is a link.
    shown_folder = kept_folder
    if folder.name == source.name:
        shown_folder = folder.with_name(kept_folder.name)
    say(f"{folder} held a report of {subject}: it is kept in {shown_folder}")
    return kept_folder


def keep_if_replaced(folder: Path, old: Report | None, new: Report) -> None:
    """Keep the old report of a folder if the new one is about something else."""
    if old is None:
        return

    subject = subject_that_changed(old, new)
    if subject:
        keep_report(folder, old, subject)


def _date(report: Report, folder: Path) -> str:
    """Return the date on which a report was made, else that of its file."""
    # A report may come from somebody else, with any text as its date.
    try:
        created = datetime.fromisoformat(report.created)
    except ValueError:
        created = datetime.fromtimestamp((folder / "report.json").stat().st_mtime)
    return created.strftime(DATE_FORMAT)
