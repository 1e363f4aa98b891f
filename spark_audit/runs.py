"""What the folder of a spark-train run tells of its training, for reports.

Whatever is wrong with these files, the checkpoints beside them are what they are: what
cannot be read is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from spark_audit.facts import read_regular

WINDOWS = 20
"""Points that a report keeps of each stage's losses."""
_NO_TERM = ("stage", "part", "step", "probe")
_LARGEST = 1 << 26
"""Bytes of a file of metrics beyond which it is not read."""

Records = list[dict[str, Any]]


def read_run(path: Path) -> dict[str, Any]:
    """``run.json`` of a run folder, or of the folder above ``stages``; else nothing."""
    if path.is_file():
        return {}
    try:
        found = json.loads(read_regular(_home(path) / "run.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    known = isinstance(found, dict) and found.get("kind") == "spark-train-run"
    return found if known else {}


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
        if path.stat().st_size > _LARGEST:
            return
        text = read_regular(path).decode()
    except (OSError, UnicodeDecodeError):
        return
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
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
    return math.isfinite(value)
