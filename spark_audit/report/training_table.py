"""The table of what checkpoints were trained with: a line for each with a record.

Its columns are the checkpoint, its method, the settings in which runs differ or which
differ from their defaults, then steps, seconds and the losses at the end, of learning
and of correction. A record that does not say which settings differ from their defaults
has all of them, because only the version that trained knows its defaults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from spark_audit import sentences
from spark_audit.names import series_of
from spark_audit.report.cells import (
    AUDITED_SECTION,
    Cell,
    ReportTable,
    records_table,
)
from spark_audit.results import CheckpointFacts, Report
from spark_audit.results.report_checks import MAX_FIGURE, WRITTEN_COLUMNS
from spark_audit.results.training import (
    SETTINGS_WITHOUT_EFFECT,
    Setting,
    TrainingFacts,
)

TRAINING_TABLE = "training"
"""Name of the table in a report."""

PART_NAMES = {"task": "learning", "priv": "correction", "answers": "answers"}
"""Part of a training -> its name in columns."""

OWN_COLUMNS = (*WRITTEN_COLUMNS, "method", "privacy", "tasks", "clock")
"""Columns of the table that are no settings, or that hold text in any table."""

SECOND_DIGITS = 1
"""Decimals of seconds in the table; the checkpoints' facts have all."""


class TrainedCheckpoint(NamedTuple):
    """A checkpoint in the table, and what it was trained with."""

    name: str
    training: TrainingFacts


def is_training_table(name: str, report: Report) -> bool:
    """Return whether a table of a report is the one on training.

    An audit of another package may have a table of this name.
    """
    return name == TRAINING_TABLE and name not in report.origins


def training_tables(
    checkpoints: Sequence[CheckpointFacts],
) -> dict[str, list[dict[str, Any]]]:
    """Return the table on training by its name; empty if nothing is known of any."""
    trained = trained_checkpoints(checkpoints)
    if not trained:
        return {}

    setting_names = _settings_to_show(trained)
    records = [_record(checkpoint, setting_names) for checkpoint in trained]
    # A method without correction, say, leaves its columns empty: all runs may.
    columns = [
        column
        for column in records[0]
        if any(record[column] is not None for record in records)
    ]
    return {
        TRAINING_TABLE: [
            {column: record[column] for column in columns} for record in records
        ]
    }


def trained_checkpoints(
    checkpoints: Sequence[CheckpointFacts],
) -> list[TrainedCheckpoint]:
    """Return the checkpoints whose training is known, with a line each.

    Of the stages of a series only the last has a line, and none where the run itself
    was audited.
    """
    by_line: dict[str, TrainedCheckpoint] = {}
    whole_names = {facts.name for facts in checkpoints}
    for facts in checkpoints:
        if facts.training is None:
            continue
        series = series_of(facts.name)
        is_stage = series != facts.name
        if is_stage and series in whole_names:
            continue
        # Later stages replace earlier ones.
        by_line[series] = TrainedCheckpoint(series, facts.training)
    return list(by_line.values())


def _settings_to_show(trained: Sequence[TrainedCheckpoint]) -> list[str]:
    """Return the settings in which checkpoints differ, or that may have been changed.

    Only those on which nothing depends are left out if no record says that they were.
    """
    names: dict[str, None] = {}
    for _, training in trained:
        names |= dict.fromkeys(training.settings)

    shown = []
    for name in names:
        # No setting of ours has such a name, but a record may be anybody's.
        if name in OWN_COLUMNS:
            continue
        is_shown = _is_changed(name, trained) or _differs(name, trained)
        if not is_shown and name not in SETTINGS_WITHOUT_EFFECT:
            is_shown = _may_be_changed(name, trained)
        if is_shown:
            shown.append(name)
    return shown


def _is_changed(name: str, trained: Iterable[TrainedCheckpoint]) -> bool:
    """Return whether a record says that a setting differs from its default."""
    return any(name in (training.changed or ()) for _, training in trained)


def _may_be_changed(name: str, trained: Iterable[TrainedCheckpoint]) -> bool:
    """Return whether a record has a setting and does not say if it is the default."""
    return any(
        training.changed is None and name in training.settings
        for _, training in trained
    )


def _differs(name: str, trained: Iterable[TrainedCheckpoint]) -> bool:
    """Return whether the checkpoints that have a setting differ in it."""
    values = {
        training.settings[name] for _, training in trained if name in training.settings
    }
    return len(values) > 1


def _record(
    checkpoint: TrainedCheckpoint, setting_names: Iterable[str]
) -> dict[str, Any]:
    """Return the line of a checkpoint; None: it has no such setting or part."""
    training = checkpoint.training
    record: dict[str, Any] = {
        "checkpoint": checkpoint.name,
        "method": training.method,
        "privacy": training.privacy or None,
        "tasks": len(training.tasks) or None,
    }
    for name in setting_names:
        value = training.settings.get(name)
        record[name] = None if value is None else _plain(value)

    for part, column in PART_NAMES.items():
        record[f"steps_{column}"] = training.part(part).steps or None
    for part, column in PART_NAMES.items():
        seconds = training.part(part).seconds
        record[f"seconds_{column}"] = (
            round(sum(seconds.values()), SECOND_DIGITS) if seconds else None
        )
    has_seconds = any(part.seconds for part in training.parts)
    record["clock"] = training.clock if has_seconds else None
    for part, column in PART_NAMES.items():
        record[f"loss_{column}"] = training.part(part).loss
    return record


def _plain(value: Setting) -> float | str:
    """Return a setting's value as tables hold it: switches are `on` or `off`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float | int) and abs(value) > MAX_FIGURE:
        # A seed may have any size.
        return str(value)
    return value


def training_for_readers(report: Report, *, digits: int | None = None) -> ReportTable:
    """Return the report's table on training as pages show it.

    Settings that all lines share stand below it, with the clock of the seconds. Those
    that are known to differ from their defaults stand apart from those that may.

    Parameters
    ----------
    digits
        Decimals of losses; None: as all tables have them.
    """
    records = report.tables[TRAINING_TABLE]
    trained = trained_checkpoints(report.checkpoints)
    setting_names: set[str] = set()
    for _, training in trained:
        setting_names.update(training.settings)

    shared_settings: dict[str, Any] = {}
    uncertain_settings: dict[str, Any] = {}
    for column in records[0]:
        if column not in setting_names or _differs(column, trained):
            continue
        values = [record.get(column) for record in records]
        value = next((value for value in values if value is not None), None)
        if _is_changed(column, trained):
            shared_settings[column] = value
        else:
            uncertain_settings[column] = value
    left_out = {*shared_settings, *uncertain_settings}
    clocks = {record["clock"] for record in records if record.get("clock")}
    if len(clocks) == 1:
        left_out.add("clock")

    shown = []
    for record in records:
        line: dict[str, Any] = {}
        for name, value in record.items():
            if name in left_out:
                continue
            if value is not None and name in setting_names:
                line[name] = Cell(_typed(value), numeric=not isinstance(value, str))
            elif value is not None and name.startswith("seconds_"):
                line[name] = Cell(f"{value:.{SECOND_DIGITS}f}", numeric=True)
            else:
                line[name] = value
        shown.append(line)
    title = sentences.render("table.training")
    table = records_table(
        shown,
        title=title,
        short=title,
        remarks=tuple(
            _remarks(shared_settings, uncertain_settings, clocks, n_lines=len(records))
        ),
        section=AUDITED_SECTION,
        key=TRAINING_TABLE,
        digits=digits,
    )
    # Names of settings stand as they are typed.
    header = []
    for column in shown[0]:
        is_setting = column in setting_names
        header.append(column if is_setting else column.replace("_", " "))
    return replace(table, header=tuple(header))


def _typed(value: object) -> str:
    """Return a setting's value as people type it, with all of its digits."""
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _remarks(
    shared_settings: Mapping[str, Any],
    uncertain_settings: Mapping[str, Any],
    clocks: Collection[Any],
    *,
    n_lines: int,
) -> Iterator[str]:
    """Yield what stands below the table.

    Parameters
    ----------
    shared_settings
        Changed settings in which the lines do not differ.
    uncertain_settings
        Others of these, of which no record says whether they are the defaults.
    clocks
        Clocks of the seconds.
    """
    if shared_settings:
        key = "table.training_alike" if n_lines > 1 else "table.training_changed"
        yield sentences.render(key, settings=_named_values(shared_settings))
    if uncertain_settings:
        key = "table.training_perhaps_alike"
        if n_lines == 1:
            key = "table.training_perhaps_changed"
        yield sentences.render(key, settings=_named_values(uncertain_settings))
    if len(clocks) == 1:
        yield sentences.render(f"table.training_clock_{next(iter(clocks))}")
    yield sentences.render("table.training_losses")


def _named_values(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as `name value`, as people type them."""
    return [f"{name} {_typed(value)}" for name, value in settings.items()]
