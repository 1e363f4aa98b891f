"""The widths of the paper's figures, for code that draws nothing itself."""

from __future__ import annotations

COLUMN_WIDTH = 3.3
"""Inches of a column of a paper."""

TEXT_WIDTH = 6.9
"""Inches of the text of a paper, over all its columns."""

WIDTH_ROOM = 0.5
"""Inches by which a figure may be narrower than a column or wider than a text."""
