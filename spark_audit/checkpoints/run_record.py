"""The record in a run folder of spark-train: read, and held against its files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from spark_audit.errors import InputError, OutputError
from spark_audit.files import (
    DAMAGED,
    fault,
    intact,
    intact_file,
    parse_json,
    read_regular,
)

RECORD_FILE = "run.json"
STATE_FILE = "state.safetensors"
"""What a run is, and where one that goes on stands: both hold checksums of the rest."""
_FIELD_TYPES = {
    "status": str,
    "starts": list,
    "tasks": list,
    "settings": dict,
    "seconds": dict,
    "files": dict,
}
"""What is read of ``run.json``, with its type."""


def read_run(path: Path) -> dict[str, Any]:
    """Read ``run.json`` of a run folder, or of the folder above ``stages``.

    Returns
    -------
    dict
        Without fields of another type than spark-train writes; empty where there is
        no record of a run.

    Raises
    ------
    OutputError
        If it is not as it was written, or no JSON beside a folder ``stages``.
    """
    record_file = _run_folder(path) / RECORD_FILE
    record: object = {}
    try:
        data = read_regular(record_file)
        record = parse_json(data, place=str(record_file), finite=False)
        is_damaged = intact(data) is False
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, InputError):
        # Without stages it may be anyone's file.
        is_damaged = (record_file.parent / "stages").is_dir()

    if is_damaged:
        raise _damaged(record_file, DAMAGED)

    # Other programs have files of this name, too.
    if not isinstance(record, dict) or record.get("kind") != "spark-train-run":
        return {}
    return {
        name: record[name]
        for name, field_type in _FIELD_TYPES.items()
        if isinstance(record.get(name), field_type)
    }


def check_run(path: Path) -> dict[str, Any]:
    """Hold the files of a run folder against their checksums; return ``run.json``.

    Of a run that goes on, what its last state tells of is held against it. Adapters
    have checksums of their own, which are looked at when they are opened.

    Raises
    ------
    OutputError
        With the name of a file that is not as it was written.
    """
    run = read_run(path)
    run_folder = _run_folder(path)

    # Until a run is complete, its state has the checksums of the rest.
    goes_on = run.get("status") != "complete"
    checksums = run.get("files")
    if run and goes_on:
        checksums = None
        # Without a state it has only begun, or has just ended.
        with suppress(FileNotFoundError):
            checksums = read_state(run_folder / STATE_FILE).get("files")

    check_files(run_folder, checksums, grows=goes_on)
    return run


def check_files(home: Path, files: object, *, grows: bool) -> None:
    """Hold files of a run against what was written down of them.

    Parameters
    ----------
    home
        The run folder.
    files
        Name -> size and SHA-256; of ``scores/``, which nothing reads, only what is
        there is looked at.
    grows
        More may have been written since.

    Raises
    ------
    OutputError
        With the name of a file that is not as it was written.
    """
    if not isinstance(files, dict):
        return

    for name, facts in files.items():
        file = home / name
        # What a damaged record names is not opened elsewhere.
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise _damaged(home / RECORD_FILE, "names a file outside its folder")
        if file.parent != home and not file.exists():
            continue

        damage = fault(file, facts, grows=grows)
        if damage is not None:
            raise _damaged(file, damage)


def read_state(path: Path) -> dict[str, Any]:
    """Read what the header of a run's state says of the run.

    Raises
    ------
    FileNotFoundError
        If there is none.
    OutputError
        If it is not as it was written.
    """
    from safetensors import SafetensorError, safe_open

    try:
        if intact_file(path) is False:
            raise _damaged(path, DAMAGED)

        with safe_open(path, framework="np") as file:
            header = file.metadata()["state"].encode()
        return dict(parse_json(header, place=str(path), finite=False))
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, InputError, LookupError, TypeError) as error:
        raise _damaged(path, "is damaged or no state of a run") from error


def _damaged(path: Path, problem: str) -> OutputError:
    """Return the error about a file that is not as it was written."""
    remedy = "copy the run folder again, or remove it and train again"
    return OutputError(problem, where=str(path), fix=remedy)


def trained_order(path: Path) -> tuple[str, ...]:
    """Return the tasks of a run as it learned them; empty where it is no run."""
    tasks = read_run(path).get("tasks", ())
    return tuple(tasks) if all(isinstance(task, str) for task in tasks) else ()


def _run_folder(path: Path) -> Path:
    """Return the folder of a run, which may be given by its folder ``stages``."""
    resolved = path.resolve()
    return resolved.parent if resolved.name == "stages" else path
