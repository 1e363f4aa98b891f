"""What the folder of a spark-train run tells of its training, for reports.

A file that is not as it was written is refused; what a record does not say, or says
in another way, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from spark_audit.checksums import DAMAGED, fault, intact, intact_file
from spark_audit.errors import InputError, OutputError
from spark_audit.files import SETTINGS_BYTES, open_regular, parse_json, read_regular

RECORD, STATE = "run.json", "state.safetensors"
"""What a run is, and where one that goes on stands: both hold checksums of the rest."""
UNCHECKED = "not checked: the run folder carries no checksums"
WINDOWS = 20
"""Points that a report keeps of each stage's losses."""
_NO_TERM = ("stage", "part", "step", "probe")
_MOST = 1e300
_LARGEST = 1 << 26
"""Bytes of a file of metrics beyond which it is not read."""

Records = list[dict[str, Any]]


def read_run(path: Path) -> dict[str, Any]:
    """``run.json`` of a run folder, or of the folder above ``stages``; else nothing.

    Raises
    ------
    OutputError
        If it is not as it was written, or no JSON beside a folder ``stages``.
    """
    if path.is_file():
        return {}
    place = _home(path) / RECORD
    try:
        data = read_regular(place)
        found = parse_json(data, place=str(place), finite=False)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, InputError):
        # Without stages it may be anyone's file.
        if (place.parent / "stages").is_dir():
            raise _damaged(place, DAMAGED) from None
        return {}
    if intact(data) is False:
        raise _damaged(place, DAMAGED)
    known = isinstance(found, dict) and found.get("kind") == "spark-train-run"
    return found if known else {}


def check_run(path: Path) -> list[str]:
    """Hold the files of a run folder against their checksums.

    Of a run that goes on, what its last state tells of is held against it. Adapters
    have checksums of their own, which are looked at when they are opened.

    Returns
    -------
    list of str
        A note where there is nothing to hold them against.

    Raises
    ------
    OutputError
        With the name of a file that is not as it was written.
    """
    run, home = read_run(path), _home(path)
    if not run:
        return []
    complete, told = run.get("status") == "complete", run
    if not complete:
        try:
            told = read_state(home / STATE)
        except FileNotFoundError:  # it has only begun, or has just ended
            told = {"files": {}}
    check_files(home, told.get("files"), grows=not complete)
    return [] if run.get("seal") and "files" in told else [UNCHECKED]


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
        if Path(name).is_absolute() or ".." in Path(name).parts:
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
    try:
        if intact_file(path) is False:
            raise _damaged(path, DAMAGED)
        with open_regular(path) as file:
            size = int.from_bytes(file.read(8), "little")
            header = file.read(size) if size <= SETTINGS_BYTES else b""
            if len(header) != size:
                raise _damaged(path, DAMAGED)
            content = parse_json(header, place=str(path))
            told = str(content["__metadata__"]["state"]).encode()
            return dict(parse_json(told, place=str(path), finite=False))
    except FileNotFoundError:
        raise
    except (OSError, InputError, ValueError, LookupError, TypeError) as error:
        raise _damaged(path, "is damaged or no state of a run") from error


def _damaged(path: Path, what: str) -> OutputError:
    return OutputError(
        what,
        where=str(path),
        fix="copy the run folder again, or remove it and train again",
    )


def trained_order(path: Path) -> tuple[str, ...]:
    """The tasks of a run as it learned them; nothing where the folder is no run."""
    tasks = read_run(path).get("tasks")
    if not isinstance(tasks, list) or not all(isinstance(t, str) for t in tasks):
        return ()
    return tuple(tasks)


def run_tables(folders: Mapping[str, Path]) -> dict[str, Records]:
    """Settings, time and losses of the runs among some checkpoints.

    Parameters
    ----------
    folders
        Name of a checkpoint -> where it lies; those that are no run are passed over.

    Returns
    -------
    dict
        ``run_settings`` (one record a setting), ``run_time`` (seconds by kind of work)
        and ``run_losses`` (terms of the loss, as means over windows of steps, and of
        the probe). Without any run it is empty.
    """
    runs = {name: read_run(path) for name, path in folders.items()}
    runs = {name: run for name, run in runs.items() if run}
    if not runs:
        return {}
    return {
        "run_settings": [r for name, run in runs.items() for r in _settings(name, run)],
        "run_time": [r for name, run in runs.items() for r in _time(name, run)],
        "run_losses": [
            {"checkpoint": name, **record}
            for name in runs
            for record in _losses(_home(folders[name]) / "metrics.jsonl")
        ],
    }


def _home(path: Path) -> Path:
    return path.resolve().parent if path.resolve().name == "stages" else path


def _settings(name: str, run: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    given = run.get("settings")
    tasks, identity = run.get("tasks"), run.get("identity")
    values = {
        "method": run.get("method"),
        # Where there is a privacy option.
        "dp": identity.get("dp") if isinstance(identity, dict) else None,
        "order": ",".join(map(str, tasks)) if isinstance(tasks, list) else None,
        **(given if isinstance(given, dict) else {}),
    }
    for setting, value in values.items():
        if isinstance(value, str | bool) or _number(value):
            yield {"checkpoint": name, "setting": str(setting), "value": value}


def _time(name: str, run: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for key, works in _items(run.get("seconds")):
        stage, _, part = key.rpartition("/")
        for work, seconds in _items(works):
            if _number(seconds):
                yield {
                    "checkpoint": name,
                    "stage": stage,
                    "part": part,
                    "work": work,
                    "seconds": round(float(seconds), 3),
                }


def _losses(path: Path) -> Iterator[dict[str, Any]]:
    """Terms by stage and part: means over windows of steps, then the probe."""
    lines = list(_lines(path))
    for (stage, part), group in groupby(
        lines, key=lambda line: (line["stage"], line["part"])
    ):
        mine = list(group)
        steps = [line for line in mine if not line.get("probe")]
        size = max(math.ceil(len(steps) / WINDOWS), 1)
        for at in range(0, len(steps), size):
            window = steps[at : at + size]
            yield _record(stage, part, "steps", window)
        for line in mine:
            if line.get("probe"):
                yield _record(stage, part, "probe", [line])


def _record(stage: str, part: str, kind: str, window: Records) -> dict[str, Any]:
    """Means of each term over the steps that had a position for it."""
    terms = [
        key
        for key in window[-1]
        if key not in _NO_TERM and key not in ("lr", "grad_norm") and key[:2] != "n_"
    ]
    means: dict[str, float | None] = {}
    for term in terms:
        found = [
            float(line[term])
            for line in window
            if _number(line.get(term)) and line.get(f"n_{term}", 1)
        ]
        means[term] = math.fsum(found) / len(found) if found else None
    return {
        "stage": stage,
        "part": part,
        "kind": kind,
        "step": window[-1]["step"],
        **means,
    }


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = read_regular(path, most=_LARGEST).splitlines()
    except OSError:
        return
    for line in lines:
        try:
            found = parse_json(line, place=str(path), finite=False)
        except InputError:
            continue
        if not isinstance(found, dict) or not _number(found.get("step")):
            continue
        if isinstance(found.get("stage"), str) and isinstance(found.get("part"), str):
            yield found


def _items(value: object) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, dict) else ()


def _number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # Also no whole number that no float holds.
    return -_MOST <= value <= _MOST
