"""Records of a manifest's lists as they are made, and why a span has no pair."""

from __future__ import annotations

from typing import TypeAlias

CUT_OFF = "cut off: text longer than the context"

NO_TOKEN = "no token of its own"

Record: TypeAlias = dict[str, object]
