"""Read the record in a run folder of spark-train, and check its files against it."""

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
"""The record of a run; when the run is complete, with checksums of its other files."""
STATE_FILE = "state.safetensors"
"""The state from which a run goes on, with checksums of its other files until then."""
_FIELD_TYPES = {
    "status": str,
    "method": str,
    "dp": str,
    "starts": list,
    "tasks": list,
    "settings": dict,
    "changed": list,
    "clock": str,
    "seconds": dict,
    "files": dict,
}
"""Fields that are read of ``run.json``, with their types."""


def read_run(path: Path) -> dict[str, Any]:
    """Read ``run.json`` of a run folder, or of the folder above ``stages``.

    Returns
    -------
    dict
        The record, without fields of unexpected types; empty if there is no record.

    Raises
    ------
    OutputError
        If the record was changed, or is not JSON beside a folder ``stages``.
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
        # Without stages it may be anybody's file.
        is_damaged = (record_file.parent / "stages").is_dir()

    if is_damaged:
        raise _damaged(record_file, DAMAGED)

    # Other programs also write files with this name.
    if not isinstance(record, dict) or record.get("kind") != "spark-train-run":
        return {}
    return {
        name: record[name]
        for name, field_type in _FIELD_TYPES.items()
        if isinstance(record.get(name), field_type)
    }


def check_run(path: Path) -> dict[str, Any]:
    """Check the files of a run folder against their checksums; return ``run.json``.

    For an unfinished run, the files of its last state are checked. Adapters have
    checksums of their own, which are checked on opening.

    Raises
    ------
    OutputError
        Names a file that was changed.
    """
    run = read_run(path)
    run_folder = _run_folder(path)

    # Until a run is complete, its state holds the checksums of the other files.
    goes_on = run.get("status") != "complete"
    checksums = run.get("files")
    if run and goes_on:
        checksums = None
        # A run without a state has just begun or just ended.
        with suppress(FileNotFoundError):
            checksums = read_state(run_folder / STATE_FILE).get("files")

    check_files(run_folder, checksums, grows=goes_on)
    return run


def check_files(home: Path, files: object, *, grows: bool) -> None:
    """Check files of a run against their records.

    Parameters
    ----------
    home
        The run folder.
    files
        Name -> size and SHA-256. In ``scores/``, which nothing reads, missing files are
        allowed.
    grows
        Whether the files may have grown since.

    Raises
    ------
    OutputError
        Names a file that was changed.
    """
    if not isinstance(files, dict):
        return

    for name, facts in files.items():
        file = home / name
        # A damaged record must not lead to files elsewhere.
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise _damaged(home / RECORD_FILE, "names a file outside its folder")
        if file.parent != home and not file.exists():
            continue

        damage = fault(file, facts, grows=grows)
        if damage is not None:
            raise _damaged(file, damage)


def read_state(path: Path) -> dict[str, Any]:
    """Read the description of the run in the header of its state.

    Raises
    ------
    FileNotFoundError
        If there is no state.
    OutputError
        If the state was changed.
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
    except (SafetensorError, OSError, InputError, LookupError, TypeError):
        raise _damaged(path, "is damaged or no state of a run") from None


def _damaged(path: Path, problem: str) -> OutputError:
    """Return the error about a file that was changed since the run wrote it."""
    remedy = "copy the run folder again, or remove it and train again"
    return OutputError(problem, where=str(path), fix=remedy)


def trained_order(path: Path) -> tuple[str, ...]:
    """Return the tasks of a run in the order of learning; empty if it is not a run."""
    tasks = read_run(path).get("tasks", ())
    return tuple(tasks) if all(isinstance(task, str) for task in tasks) else ()


def _run_folder(path: Path) -> Path:
    """Return the folder of a run, also for the path of its folder ``stages``."""
    resolved = path.resolve()
    return resolved.parent if resolved.name == "stages" else path
