"""What a notebook shows of manifests and results: a short table, a frame of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from spark_audit.errors import InputError, visible

if TYPE_CHECKING:
    import pandas as pd
    from pydantic import BaseModel


def table_html(
    title: str, header: Sequence[str], lines: Iterable[Sequence[Any]], *, end: str = ""
) -> str:
    """A table as HTML that holds nothing but text, escaped."""

    def cells(name: str, values: Sequence[Any]) -> str:
        style = ' style="text-align:left"'
        cells = (escape(visible(str(value))) for value in values)
        return "".join(f"<{name}{style}>{one}</{name}>" for one in cells)

    rows = "".join(f"<tr>{cells('td', line)}</tr>" for line in lines)
    head = f"<thead><tr>{cells('th', header)}</tr></thead>" if header else ""
    caption = f"<caption>{escape(visible(title))}</caption>"
    below = f"<p>{escape(visible(end))}</p>" if end else ""
    return f"<table>{caption}{head}<tbody>{rows}</tbody></table>{below}"


class Shown:
    """What says of itself in ``__repr_args__`` says it to a notebook as a table."""

    def _repr_html_(self) -> str:
        arguments: Any = getattr(self, "__repr_args__", tuple)()
        return table_html(type(self).__name__, (), arguments)


def frame(
    of: str,
    lists: Mapping[str, tuple[type[BaseModel], Sequence[BaseModel]]],
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
) -> pd.DataFrame:
    """One of some lists, or of the further tables, as a frame.

    Raises
    ------
    InputError
        If there is none of that name; it names those that there are.
    """
    import pandas as pd

    if of in lists:
        kind, rows = lists[of]
        records = [one.model_dump() for one in rows]
        names = [*kind.model_fields, *kind.model_computed_fields]
        return pd.DataFrame(records, columns=[n for n in names if n != "facts"])
    if of in tables:
        return pd.DataFrame(tables[of])
    known = ", ".join([*lists, *tables])
    raise InputError(f"there is no table {of!r}", fix=f"choose one of: {known}")
