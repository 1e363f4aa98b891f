"""Types of JSON values, which are plain objects until a reader has checked them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Row: TypeAlias = dict[str, object]
"""A row of a data file: column name -> value."""

JsonObject: TypeAlias = Mapping[str, object]
"""A JSON object that is only read."""
