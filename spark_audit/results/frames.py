"""Lists of records as data frames, whose columns follow from the types of the records.

``docs/frames.md`` shows the columns; ``python docs/frame_tables.py`` writes its tables
anew after a field of a record was added or changed.

All columns have nullable types of pandas, in empty frames too: ``string``, ``Float64``,
``Int64`` and ``boolean``. A missing cell is ``pd.NA``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
)

from pydantic import BaseModel

from spark_audit.arguments import wrong_value
from spark_audit.errors import InputError, choose
from spark_audit.results.report_checks import (
    ACCURACY_MATRIX,
    WRITTEN_COLUMNS,
    task_of_column,
)

if TYPE_CHECKING:
    import pandas as pd

DTYPE_BY_TYPE: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "Int64",
    float: "Float64",
}
"""Type of a field -> dtype of its column."""

STATE_COLUMNS = ("state", "voided_by")
"""Columns of every list and table of figures on checkpoints."""

PLACE_DTYPES = {"checkpoint": "string", "stage": "Int64", "after": "string"}
"""Columns of the accuracy matrix that are no tasks, and their dtypes."""

LEFT_OUT_OF_FRAMES = ("facts",)
"""Fields without a column: what sentences are rendered from."""


def column_types(record_type: type[BaseModel]) -> dict[str, str]:
    """Return the columns of a list of records, and their dtypes.

    Fields that hold lists, such as ``power``, are JSON text. Records on a checkpoint
    have the columns ``state`` and ``voided_by``, also where these are no fields.
    """
    annotations: dict[str, Any] = {}
    for name, field in record_type.model_fields.items():
        annotations[name] = field.annotation
    for name, computed in record_type.model_computed_fields.items():
        annotations[name] = computed.return_type

    dtypes = {
        name: _dtype_of(annotation)
        for name, annotation in annotations.items()
        if name not in LEFT_OUT_OF_FRAMES
    }
    return dtypes | {column: "string" for column in STATE_COLUMNS}


def _dtype_of(annotation: Any) -> str:
    """Return the dtype of a field: of the first type in its annotation that has one."""
    for plain_type in _plain_types(annotation):
        if plain_type in DTYPE_BY_TYPE:
            return DTYPE_BY_TYPE[plain_type]
    # Lists and records are JSON text.
    return "string"


def _plain_types(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation, without None and the checks of its values."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        yield from _plain_types(arguments[0])
    elif origin is Union or origin is UnionType:
        for argument in arguments:
            yield from _plain_types(argument)
    elif origin is Literal:
        yield type(arguments[0])
    elif annotation is not NoneType:
        yield annotation


def frame(of: str, holder: Any, lists: Mapping[str, type[BaseModel]]) -> pd.DataFrame:
    """Return a list of records, or a further table, as a frame with a row per record.

    Parameters
    ----------
    of
        Name of the list or table.
    holder
        A report or the result of an audit: it has an attribute for each list, and
        ``tables`` by name.
    lists
        Name of each list -> type of its records.

    Raises
    ------
    InputError
        If there is no such list or table; the message lists the known names.
    ArgumentError
        If the name is no text.
    """
    check_table_name(of)
    if of in lists:
        return frame_of_records(getattr(holder, of), lists[of])
    if of in holder.tables:
        return frame_of_further_table(holder.tables, of)

    fix = choose(of, [*lists, *holder.tables])
    raise InputError(f"there is no table {of!r}", fix=fix)


def check_table_name(of: object) -> None:
    """Refuse what is no name of a list or table, such as a list of names.

    Raises
    ------
    ArgumentError
        Names the argument and its type.
    """
    if not isinstance(of, str):
        raise wrong_value("of", of, "not the name of a table")


def frame_of_records(
    records: Iterable[BaseModel], record_type: type[BaseModel]
) -> pd.DataFrame:
    """Return records as a frame; its columns are those of :func:`column_types`."""
    dtypes = column_types(record_type)

    left_out = set(LEFT_OUT_OF_FRAMES)
    rows = [record.model_dump(mode="json", exclude=left_out) for record in records]
    # Guards and checkpoints have neither state nor guard as a field.
    return frame_of_rows(rows, dtypes, missing="")


def frame_of_table(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a further table as a frame.

    The values of a column decide on its dtype: ``Float64`` if one of them is no whole
    number. A column without any value holds numbers, unless its name says text.
    """
    columns = list(dict.fromkeys(column for record in records for column in record))

    dtypes = {}
    for column in columns:
        values = [record.get(column) for record in records]
        dtypes[column] = _dtype_of_values(column, values)

    return frame_of_rows(records, dtypes)


def frame_of_further_table(
    tables: Mapping[str, Sequence[Mapping[str, Any]]], of: str
) -> pd.DataFrame:
    """Return a further table by its name; the accuracy matrix has a line for a task."""
    table = frame_of_table(tables[of])
    return long_accuracy_matrix(table) if of == ACCURACY_MATRIX else table


def long_accuracy_matrix(matrix: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy matrix with a line for each task after each stage.

    Parameters
    ----------
    matrix
        The columns ``checkpoint``, ``stage`` and ``after``, and one for each task. Of
        whole checkpoints there are no stages.
    """
    if not len(matrix):
        # A table without records has no columns.
        matrix = frame_of_rows([], PLACE_DTYPES)
    if "after" not in matrix:
        matrix = matrix.assign(after="").astype({"after": "string"})
    task_columns = [column for column in matrix if column not in PLACE_DTYPES]

    # Columns are numbered meanwhile, since a task may have the name "accuracy".
    numbers = {task: number for number, task in enumerate(task_columns)}
    numbered = matrix.rename(columns=numbers)
    long = numbered.melt([*PLACE_DTYPES], [*numbers.values()], "task", "accuracy")
    long["task"] = [task_of_column(task_columns[number]) for number in long["task"]]

    types = {"task": "string", "accuracy": "Float64"}
    measured = long.astype(types).dropna(subset="accuracy")
    return measured.reset_index(drop=True)


def _dtype_of_values(column: str, values: Iterable[object]) -> str:
    """Return the dtype of a column of a further table."""
    present_types = {type(value) for value in values if value is not None}
    if not present_types:
        return "string" if column in WRITTEN_COLUMNS else "Float64"

    for plain_type in (bool, int):
        if present_types == {plain_type}:
            return DTYPE_BY_TYPE[plain_type]
    is_number = present_types <= {int, float}
    return "Float64" if is_number else "string"


def _text(value: object) -> str | None:
    """Return a value as text: lists and records as JSON, numbers as they are written.

    A missing value stays missing.
    """
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return None if value is None else str(value)


def frame_of_rows(
    rows: Sequence[Mapping[str, object]],
    dtypes: Mapping[str, str],
    *,
    missing: object = None,
) -> pd.DataFrame:
    """Return rows of values as a frame with the given columns and dtypes.

    Parameters
    ----------
    missing
        Value of a column that a row lacks.
    """
    # pandas takes long to import, and reading a report does not need it.
    import pandas as pd

    columns = {}
    for name, dtype in dtypes.items():
        cells: list[Any] = [row.get(name, missing) for row in rows]
        if dtype == "string":
            cells = [_text(cell) for cell in cells]
        columns[name] = pd.array(cells, dtype=dtype)  # type: ignore[call-overload]
    return pd.DataFrame(columns, index=range(len(rows)))
