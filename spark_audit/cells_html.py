"""What a notebook shows of an object on the last line of a cell.

An object has a short ``repr`` (:func:`short_repr`) and a small table in HTML
(:func:`cell_html`, template ``cells.html``), which loads nothing from the network.
Notebooks are shared with their outputs, so neither holds text of examples, nor figures
that a shared report has not: those of a report come from its rounded copy
(``AuditReport``), and other objects show none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from spark_audit.errors import visible

T = TypeVar("T")

MAX_REPR = 200
"""Most characters of a repr."""

MAX_FACT_IN_REPR = 40
"""Most characters of one fact in a repr."""

MAX_ROWS_OF_CELL = 20
"""Most lines of a table in a cell; the others are counted."""


def cell_html(
    title: str, header: Sequence[str], rows: Sequence[Sequence[object]], note: str = ""
) -> str:
    """Return a table as HTML for a notebook; all text in it is escaped.

    Parameters
    ----------
    header
        Names of the columns; empty: the first column names what stands in the second.
    note
        A sentence below the table.
    """
    shown_rows = []
    for row in rows[:MAX_ROWS_OF_CELL]:
        shown_rows.append([_as_text(value) for value in row])

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("cells.html").render(
        title=_as_text(title),
        header=header,
        rows=shown_rows,
        n_more=len(rows) - len(shown_rows),
        note=_as_text(note),
    )


def counted(n: int, noun: str) -> str:
    """Return a number with what it counts, in the singular for 1.

    >>> counted(1, "figure"), counted(1200, "figure")
    ('1 figure', '1,200 figures')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def facts_html(title: str, facts: Mapping[str, object], note: str = "") -> str:
    """Return names and values as HTML for a notebook, without those that are empty."""
    rows = [
        (name, value) for name, value in facts.items() if value not in (None, "", ())
    ]
    return cell_html(title, [], rows, note)


def _as_text(value: object) -> str:
    """Return a value as the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return visible(str(value))


def short_repr(of: object, *values: object, **facts: object) -> str:
    """Return a repr of at most :data:`MAX_REPR` characters.

    Parameters
    ----------
    values, facts
        What stands in it, without and with a name. Empty ones are left out.
    """
    parts = [_cut(repr(value), MAX_FACT_IN_REPR) for value in values]
    for name, value in facts.items():
        if value not in (None, "", ()):
            parts.append(f"{name}={_cut(repr(value), MAX_FACT_IN_REPR)}")

    inside = _cut(", ".join(parts), MAX_REPR - len(type(of).__name__) - 2)
    return f"{type(of).__name__}({inside})"


def _cut(text: str, most: int) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


class CellList(list[T]):
    """A list of a report that a notebook shows as a table; otherwise it is a list.

    Parameters
    ----------
    items
        What it holds.
    html
        Makes the table. It is a ``partial`` of a function of a module, so that a report
        can be pickled.
    """

    def __init__(self, items: Iterable[T], html: Callable[[], str]) -> None:
        super().__init__(items)
        self._html = html

    def __repr__(self) -> str:
        """Return the first of them and the number of the others."""
        if not self:
            return "[]"
        if len(self) == 1:
            return f"[{_cut(repr(self[0]), MAX_REPR - 2)}]"

        n_more = f", ... {len(self) - 1} more]"
        return f"[{_cut(repr(self[0]), MAX_REPR - 1 - len(n_more))}{n_more}"

    def _repr_html_(self) -> str:
        """Return it as a notebook shows it."""
        return self._html()
