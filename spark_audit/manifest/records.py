"""Unchecked records of a manifest's lists, and reasons for a span without a pair."""

from __future__ import annotations

from typing import TypeAlias

CUT_OFF = "cut off: text longer than the context"

NO_TOKEN = "no token of its own"

Record: TypeAlias = dict[str, object]
