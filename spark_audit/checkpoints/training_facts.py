"""Read from the record of a run what its checkpoints were trained with.

``run.json`` of spark-train has the method, its settings and the seconds of each phase,
and ``metrics.jsonl`` a line per step with the losses. A checkpoint in the folder of a
run gets the facts of all phases up to its own. A trainer of transformers leaves steps
and losses beside its checkpoint (``trainer_state.py``); any other one has no facts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from spark_audit.checkpoints.recorded_numbers import is_count, is_number
from spark_audit.checkpoints.run_record import check_files, read_run
from spark_audit.checkpoints.trainer_state import trainer_facts
from spark_audit.files import data_bytes, read_regular
from spark_audit.results.training import Setting, TrainingFacts, TrainingPart

METRICS_FILE = "metrics.jsonl"
"""A line per step of a run, with its losses."""

STAGES_FOLDER = "stages"
"""The folder of a run with ``STAGE/PART``, a checkpoint of each phase."""

LEARNING = "task"
"""Part of a stage that learns its task."""
CORRECTION = "priv"
"""Part of a stage that corrects the model after its task."""
ANSWERS = "answers"
"""Key of the seconds that a stage's answers took, in place of a part."""

PROBE = "probe"
"""Marks lines of losses that are of no step, and names the seconds that they took."""

SHARE_OF_LAST_STEPS = 10
"""Losses at the end are means over the last of so many parts of a phase."""
MIN_LAST_STEPS = 10
"""Fewest steps over which losses at the end are means, if a phase has as many."""

_CACHED_RUNS = 16
"""Runs whose steps are kept, because each stage of a run is opened by itself."""

StepLine: TypeAlias = Mapping[str, Any]
"""A line of ``metrics.jsonl``."""


class _LastSteps(NamedTuple):
    """The end of a phase.

    Attributes
    ----------
    n_steps
        Steps of the whole phase.
    lines
        Lines of its last steps.
    """

    n_steps: int
    lines: tuple[StepLine, ...]


def training_of(folder: Path) -> TrainingFacts | None:
    """Return what the checkpoint in a folder was trained with.

    Parameters
    ----------
    folder
        The checkpoint's own folder, ``RUN/stages/2-yelp/task`` for one of spark-train.

    Returns
    -------
    TrainingFacts or None
        ``None`` if neither spark-train nor a trainer of transformers left a record, or
        if the record does not say with which method it was trained.

    Raises
    ------
    OutputError
        If the record of the run, or the file of its losses, was changed.
    """
    part_folder = folder.resolve()
    stage_folder = part_folder.parent
    if stage_folder.parent.name != STAGES_FOLDER:
        return trainer_facts(folder)

    run_folder = stage_folder.parent.parent
    run = read_run(run_folder)
    method = run.get("method")
    if not method:
        return trainer_facts(folder)

    # The phases up to this checkpoint, in the order of the run.
    seconds_by_phase = run.get("seconds", {})
    own_key = f"{stage_folder.name}/{part_folder.name}"
    keys = _keys_until(own_key, seconds_by_phase)
    settings = _plain_values(run.get("settings", {}))
    steps_by_phase = _last_steps_of_run(run_folder, run)

    privacy = run.get("dp", "")
    clock = run.get("clock")
    return TrainingFacts(
        method=method,
        privacy="" if privacy == "none" else privacy,
        tasks=_learned_tasks(keys, run.get("tasks", ())),
        settings=settings,
        changed=_changed_settings(run, settings),
        clock="processor" if clock == "processor" else "wall",
        parts=_parts(keys, seconds_by_phase, steps_by_phase, settings),
    )


def _keys_until(own_key: str, seconds_by_phase: Mapping[str, Any]) -> list[str]:
    """Return the keys of the phases up to a checkpoint's, and of the answers after it.

    The run that goes on while its stage is audited may not have recorded it yet.
    """
    stage, _, _ = own_key.partition("/")
    keys: list[str] = []
    is_after_own = False
    for key in seconds_by_phase:
        # Of what follows the checkpoint's phase, only the answers of its stage count,
        # and only if no correction stands between.
        if is_after_own and key != f"{stage}/{ANSWERS}":
            break
        keys.append(key)
        is_after_own = is_after_own or key == own_key

    if own_key not in keys:
        keys.append(own_key)
    return keys


def _learned_tasks(keys: Iterable[str], tasks: Sequence[object]) -> list[str]:
    """Return the tasks of phases, in order; all tasks if they are learned at once.

    Parameters
    ----------
    keys
        Keys such as ``2-yelp/task``.
    tasks
        All tasks of the run.
    """
    names = [task for task in tasks if isinstance(task, str)]
    learned: dict[str, None] = {}
    for key in keys:
        stage, _, part = key.partition("/")
        _, _, task = stage.partition("-")
        if part == LEARNING:
            learned[task] = None

    is_one_by_one = set(learned) <= set(names)
    return list(learned) if is_one_by_one else names


def _plain_values(settings: Mapping[str, Any]) -> dict[str, Setting]:
    """Return the settings that are truth values, numbers or text.

    A whole number of any size may be a seed: a large one is text.
    """
    plain: dict[str, Setting] = {}
    for name, value in settings.items():
        if isinstance(value, bool | str) or is_number(value):
            plain[name] = value
        elif isinstance(value, int):
            plain[name] = str(value)
        elif isinstance(value, float) and math.isfinite(value):
            plain[name] = value
    return plain


def _changed_settings(
    run: Mapping[str, Any], settings: Mapping[str, object]
) -> list[str] | None:
    """Return the settings that differ from their defaults; None: not recorded."""
    changed = run.get("changed")
    if changed is None:
        return None
    return [name for name in settings if name in changed]


def _parts(
    keys: Sequence[str],
    seconds_by_phase: Mapping[str, Any],
    steps_by_phase: Mapping[str, _LastSteps],
    settings: Mapping[str, Setting],
) -> list[TrainingPart]:
    """Return learning, correction and answers, over all phases of the given keys."""
    keys_by_part: dict[str, list[str]] = {}
    for key in keys:
        _, _, part = key.partition("/")
        keys_by_part.setdefault(part, []).append(key)

    n_task_rows = 0
    parts: list[TrainingPart] = []
    for part in (LEARNING, CORRECTION, ANSWERS):
        if part not in keys_by_part:
            continue

        phases = keys_by_part[part]
        all_steps = [steps_by_phase.get(key, _LastSteps(0, ())) for key in phases]
        last = all_steps[-1]
        if part == LEARNING:
            n_task_rows = _rows_of_task(last, settings)
        n_rows = _rows_of_steps(last.lines, settings)
        if n_task_rows:
            # Each epoch reads the same rows again.
            n_rows = min(n_rows, n_task_rows)
        parts.append(
            TrainingPart(
                part=part,
                steps=sum(steps.n_steps for steps in all_steps),
                seconds=_sums_of_seconds(phases, seconds_by_phase),
                loss=_mean_loss(last.lines),
                terms=_mean_terms(last.lines),
                last_steps=len(last.lines),
                rows=n_rows,
            )
        )
    return parts


def _sums_of_seconds(
    keys: Iterable[str], seconds_by_phase: Mapping[str, Any]
) -> dict[str, float]:
    """Return the seconds of each kind of work, summed over phases.

    Those of probes are left out: reading them is no part of the training.
    """
    sums: dict[str, float] = {}
    for key in keys:
        seconds = seconds_by_phase.get(key)
        if not isinstance(seconds, Mapping):
            continue
        for work, value in seconds.items():
            if is_number(value) and work != PROBE:
                sums[work] = sums.get(work, 0.0) + value
    return sums


def _rows_of_task(last: _LastSteps, settings: Mapping[str, object]) -> int:
    """Return about how many rows a task has: those of one epoch; 0: not known."""
    epochs = settings.get("epochs")
    batch_size = settings.get("batch_size")
    if not is_count(epochs) or not is_count(batch_size) or epochs < 1:
        return 0
    return math.ceil(last.n_steps / epochs) * batch_size


def _rows_of_steps(lines: Sequence[StepLine], settings: Mapping[str, object]) -> int:
    """Return how many rows some steps read, the same row in two steps twice.

    Steps of a correction count their rows; those of learning read a batch each.
    """
    batch_size = settings.get("batch_size")
    rows_per_step = batch_size if is_count(batch_size) else 0
    n_rows = 0
    for line in lines:
        counted = line.get("rows")
        n_rows += counted if is_count(counted) else rows_per_step
    return n_rows


def _mean_loss(lines: Sequence[StepLine]) -> float | None:
    """Return the mean loss of some steps; None: there is none."""
    losses = [line["loss"] for line in lines if is_number(line.get("loss"))]
    return math.fsum(losses) / len(losses) if losses else None


def _mean_terms(lines: Sequence[StepLine]) -> dict[str, float]:
    """Return the mean of each term of the loss over the positions of some steps.

    A line has the mean of a term beside the number of its positions, ``n_TERM``. Steps
    without a position of a term do not count for it.
    """
    counts: dict[str, int] = {}
    sums: dict[str, float] = {}
    for line in lines:
        for key, count in line.items():
            term = key.removeprefix("n_")
            mean = line.get(term)
            if term == key or not is_count(count) or not count:
                continue
            if is_number(mean):
                counts[term] = counts.get(term, 0) + count
                sums[term] = sums.get(term, 0.0) + count * mean
    return {term: sums[term] / counts[term] for term in sums}


def _last_steps_of_run(
    run_folder: Path, run: Mapping[str, Any]
) -> Mapping[str, _LastSteps]:
    """Return the last steps of each phase of a run, by its key; empty: no losses.

    Raises
    ------
    OutputError
        If the file is not the one that the complete run wrote.
    """
    path = run_folder / METRICS_FILE
    try:
        facts = path.stat()
    except OSError:
        return {}

    # Until a run is complete, its state has the checksums of growing files.
    recorded = run.get("files", {})
    if run.get("status") == "complete" and METRICS_FILE in recorded:
        check_files(run_folder, {METRICS_FILE: recorded[METRICS_FILE]}, grows=False)
    return _read_last_steps(path, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=_CACHED_RUNS)
def _read_last_steps(
    path: Path, modified_ns: int, n_bytes: int
) -> Mapping[str, _LastSteps]:
    """Return the last steps of each phase in a file of losses, by the phase's key.

    Parameters
    ----------
    modified_ns, n_bytes
        Time and size of the file, so that it is read again once it has grown.
    """
    try:
        text = read_regular(path, most=data_bytes()).decode()
    except (OSError, ValueError):
        return {}

    lines_by_phase: dict[str, list[StepLine]] = {}
    for line in _steps(text):
        key = f"{line.get('stage')}/{line.get('part')}"
        lines_by_phase.setdefault(key, []).append(line)

    last_steps = {}
    for key, lines in lines_by_phase.items():
        n_last = max(MIN_LAST_STEPS, len(lines) // SHARE_OF_LAST_STEPS)
        last_steps[key] = _LastSteps(len(lines), tuple(lines[-n_last:]))
    return last_steps


def _steps(text: str) -> Iterator[StepLine]:
    """Yield the lines of optimizer steps; probes on other rows are left out."""
    for text_line in text.splitlines():
        try:
            line = json.loads(text_line)
        except (ValueError, RecursionError):
            # The last line of a run that goes on may be written in part.
            continue
        if isinstance(line, dict) and "step" in line and not line.get(PROBE):
            yield line
