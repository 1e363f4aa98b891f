"""Pause Python's collector of cycles while very many objects are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Let Python look for no unused cycles meanwhile.

    It looks again and again at all objects, and a report has hundreds of thousands:
    drawing took 1.6 times as long. What is unused meanwhile is freed afterwards.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # Somebody else may have paused it before.
        if was_enabled:
            gc.enable()
