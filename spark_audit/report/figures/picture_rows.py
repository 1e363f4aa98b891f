"""Rows made of figures that stand in a table of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_audit.report.figures import picture
from spark_audit.results import Row

if TYPE_CHECKING:
    pass


VALUE_COLUMNS = ("value", "low", "high")


def row_of_values(
    audit: str, metric: str, look: picture.Style, *ends: float | None
) -> Row | None:
    """A row of a curve whose figures (value, low, high) stand in a table."""
    figures: dict[str, Any] = dict(zip(VALUE_COLUMNS, ends, strict=True))
    if figures["value"] is None:
        return None
    return Row(audit=audit, checkpoint=look.name, metric=metric, **figures)
