"""Tables of figures in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [_table_row(heads), "|---" * len(heads) + "|"]
    lines += [_table_row(row) for row in rows]
    return "\n".join(lines)


def _table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def round_down(number: float) -> int:
    """Return a number rounded down; what is whole but for rounding stays."""
    return math.floor(round(number, 9))


def round_up(number: float) -> int:
    """Return a number rounded up; what is whole but for rounding stays."""
    return math.ceil(round(number, 9))
