"""Unchecked records of a manifest's lists, and reasons for a span without a pair."""

from __future__ import annotations

from typing import TypeAlias

CUT_OFF = "cut off: text longer than the context"
"""Reason for an identifier without a pair, or a canary without candidates."""

NO_TOKEN = "no token of its own"
"""Reason for an identifier of white space alone."""

Record: TypeAlias = dict[str, object]
"""Field -> value. Classes of :mod:`spark_audit.manifest.schema` check it later."""
