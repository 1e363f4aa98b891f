"""Types of a manifest's fields, with the bounds within which a value is read."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import AfterValidator, Field

from spark_audit.stats.matching import MICRO_NATS_PER_NAT


def _check_printable(text: str) -> str:
    """Refuse a name that cannot stand in a line of a table."""
    if not text.strip() or not text.isprintable():
        raise ValueError("is blank or holds control characters")
    return text


def _check_distinct(values: list[str]) -> list[str]:
    """Refuse a list with duplicate values."""
    if len(set(values)) < len(values):
        raise ValueError("holds something twice")
    return values


MAX_INTEGER = 10**9
"""Largest count, position or dose: no text or vocabulary goes beyond it."""

Name = Annotated[str, Field(max_length=1000), AfterValidator(_check_printable)]
"""A string that names files, rows of tables and lines of a terminal."""

Distinct = Annotated[list[str], AfterValidator(_check_distinct)]
"""A list of different strings."""

MOST_NATS = 1e4
"""Bound on a token's NLL, which no model with finite logits reaches."""

Whole = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
"""A count, a position or an index."""

Nats = Annotated[float, Field(ge=0, le=MOST_NATS, allow_inf_nan=False)]
"""An NLL, or a difference of two without its sign."""

MicroNats = Annotated[int, Field(ge=0, le=round(MICRO_NATS_PER_NAT * MOST_NATS))]
"""An NLL in millionths of a nat."""

Figure = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]
"""Any finite figure, of either sign."""

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
"""A part of 1."""


def check_inside(field: str, ranges: Collection[tuple[int, int]], length: int) -> None:
    """Refuse a range that is empty or reaches beyond a length."""
    for start, end in ranges:
        if not 0 <= start < end <= length:
            raise ValueError(f"{field}: {start}:{end} is empty or outside 0:{length}")
