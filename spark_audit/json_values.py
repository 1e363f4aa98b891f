"""Types of JSON: values are objects until a reader has looked at what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Row: TypeAlias = dict[str, object]
"""A row of somebody's data: its columns by name."""

JsonObject: TypeAlias = Mapping[str, object]
"""An object of JSON that is only read."""
