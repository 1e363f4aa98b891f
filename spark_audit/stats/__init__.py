"""Statistics of the audits: pure numpy and SciPy, no model, no file.

``sa.stats.<function>`` are the public functions of this folder's files, found when
they are used.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def _places() -> dict[str, str]:
    """Name of each public function and class -> the file that defines it."""
    return {
        name: path.stem
        for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))
        for name in re.findall(
            r"^(?:def|class) ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.M
        )
    }


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_places())
    if name not in _places():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_places()[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_places()])
