"""Write the tables of ``docs/frames.md``: the columns of each list of a report.

``python docs/frame_tables.py`` replaces all that stands below the line ``MARK`` of the
page by one table per list. The columns, their dtypes, units and meanings are those of
the types of the records, so a new field needs nothing but another run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from spark_audit.report.frames import FRAME_LISTS
from spark_audit.results.frames import column_types

PAGE = Path(__file__).with_name("frames.md")

MARK = "<!-- python docs/frame_tables.py writes what follows -->\n"

MEANING_OF_ADDED = {
    "state": "State of its checkpoint, as on the report's first screen; empty: none.",
    "voided_by": "Empty: it is no figure, so no guard voids it.",
}
"""Columns that frames add to lists whose records have no such field."""

ZERO_TO_ONE = ("interval_level", "p", "p_adjusted")
"""Shares and probabilities."""


def _unit(name: str, dtype: str, field: FieldInfo | None) -> str:
    """Return the unit of a column; empty for text."""
    extra = field.json_schema_extra if field is not None else None
    if isinstance(extra, dict) and "unit" in extra:
        return "as `unit` says"
    if name in ZERO_TO_ONE:
        return "0 to 1"
    return "a count" if dtype == "Int64" and name != "severity" else ""


def _rows(record_type: type[BaseModel]) -> Iterator[str]:
    """Yield the row of each column: name, dtype, unit and meaning."""
    for name, dtype in column_types(record_type).items():
        field = record_type.model_fields.get(name)
        computed = record_type.model_computed_fields.get(name)
        if field is not None:
            meaning = field.description or ""
        elif computed is not None:
            meaning = computed.description or ""
        else:
            meaning = MEANING_OF_ADDED[name]

        unit = _unit(name, dtype, field)
        words = " ".join(meaning.split()).replace("|", "\\|")
        yield f"| `{name}` | {dtype} | {unit} | {words} |\n"


def tables() -> str:
    """Return the part of the page below its mark."""
    parts = []
    for name, record_type in FRAME_LISTS.items():
        head = (
            f"\n## {name}\n\n| column | dtype | unit | meaning |\n|---|---|---|---|\n"
        )
        parts.append(head + "".join(_rows(record_type)))
    return "".join(parts)


if __name__ == "__main__":
    text, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    PAGE.write_text(text + mark + tables(), encoding="utf-8")
