"""The record of a run that continues in its folder, or the refusal of another run."""

from __future__ import annotations

from spark_audit.checkpoints import run_record
from spark_audit.errors import InputError
from spark_train.run_folder import Folder
from spark_train.run_record import FREE_SETTINGS, RunRecord
from spark_train.training_corpus import Note
from spark_train.training_settings import shown


def resumed_record(
    folder: Folder, old: RunRecord, new: RunRecord, tell: Note
) -> RunRecord:
    """Return the record of the folder's run, with a new start if it continues.

    Raises
    ------
    InputError
        If the folder belongs to another run. The error lists the differences.
    """
    if old.fingerprint() != new.fingerprint():
        differences = "; ".join(_differences(old, new)) or "of another version"
        raise InputError(
            f"holds a run of other settings: {differences}",
            where=str(folder.path),
            fix="give another -o, or the same settings",
        )
    for text in old.notes:
        tell(text)

    # A complete run is only checked, and never trained again.
    if old.status == "complete":
        folder.check_adapters(old.seconds)
        run_record.check_files(folder.path, old.files, grows=False)
        return old
    return old.model_copy(update={"starts": [*old.starts, *new.starts]})


def _differences(old: RunRecord, new: RunRecord) -> list[str]:
    """Return the differences between two runs, such as ``lr 0.1 -> 0.2``.

    Settings that only one of two methods has are left out.
    """
    old_facts = old.identity() | old.settings
    new_facts = new.identity() | new.settings
    names = (old_facts.keys() & new_facts.keys()) - {*FREE_SETTINGS}

    differences = []
    for name in sorted(names):
        before = old_facts[name]
        after = new_facts[name]
        if before == after:
            continue
        # For hashes of data files, it is enough to say that they differ.
        if name == "data":
            differences.append("data: other files or contents")
        else:
            differences.append(f"{name} {shown(before):.40} -> {shown(after):.40}")
    return differences
