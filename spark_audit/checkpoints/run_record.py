"""What the folder of a run of spark-train says of itself."""

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

RECORD, STATE = "run.json", "state.safetensors"
"""What a run is, and where one that goes on stands: both hold checksums of the rest."""
_RUN_FIELDS = {"status": str, "starts": list, "tasks": list}
_RUN_FIELDS |= {name: dict for name in ("settings", "seconds", "files")}
"""What is read of ``run.json``, with its type."""


def read_run(path: Path) -> dict[str, Any]:
    """``run.json`` of a run folder, or of the folder above ``stages``; else nothing.

    What is of another type than spark-train writes is left out.

    Raises
    ------
    OutputError
        If it is not as it was written, or no JSON beside a folder ``stages``.
    """
    place = _home(path) / RECORD
    try:
        data = read_regular(place)
        found = parse_json(data, place=str(place), finite=False)
        damaged = intact(data) is False
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, InputError):
        # Without stages it may be anyone's file.
        found, damaged = {}, (place.parent / "stages").is_dir()
    if damaged:
        raise _damaged(place, DAMAGED)
    if not isinstance(found, dict) or found.get("kind") != "spark-train-run":
        return {}
    return {
        key: found[key]
        for key in _RUN_FIELDS
        if isinstance(found.get(key), _RUN_FIELDS[key])
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
    run, home = read_run(path), _home(path)
    goes_on, told = run.get("status") != "complete", run
    if run and goes_on:
        told = {}
        with suppress(FileNotFoundError):  # it has only begun, or has just ended
            told = read_state(home / STATE)
    check_files(home, told.get("files"), grows=goes_on)
    return run


def check_files(home: Path, files: object, *, grows: bool) -> None:
    """Hold files of a run against what was written down of them.

    Parameters
    ----------
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
    for name, told in files.items() if isinstance(files, dict) else ():
        place = home / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise _damaged(home / RECORD, "names a file outside its folder")
        if place.parent != home and not place.exists():
            continue
        if (what := fault(place, told, grows=grows)) is not None:
            raise _damaged(place, what)


def read_state(path: Path) -> dict[str, Any]:
    """What the header of a run's state says of the run.

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
            told = file.metadata()["state"].encode()
        return dict(parse_json(told, place=str(path), finite=False))
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, InputError, LookupError, TypeError) as error:
        raise _damaged(path, "is damaged or no state of a run") from error


def _damaged(path: Path, what: str) -> OutputError:
    fix = "copy the run folder again, or remove it and train again"
    return OutputError(what, where=str(path), fix=fix)


def trained_order(path: Path) -> tuple[str, ...]:
    """The tasks of a run as it learned them; nothing where the folder is no run."""
    tasks = read_run(path).get("tasks", ())
    return tuple(tasks) if all(isinstance(task, str) for task in tasks) else ()


def _home(path: Path) -> Path:
    return path.resolve().parent if path.resolve().name == "stages" else path
