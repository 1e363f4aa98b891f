"""Local input is opened without a network and without a question.

Libraries ask the hub for what a local file names (a base, an adapter's second model, a
tokenizer's parent), and transformers asks on stdin whether to run code that it finds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

# Whether the hub was switched off before we did.
_before: list[bool] = []


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """No request to the hub, and code that nobody trusted is an error, no question."""
    hub, dynamic = _switches()
    was, seconds = hub.HF_HUB_OFFLINE, dynamic.TIME_OUT_REMOTE_CODE
    _before.append(was)
    hub.HF_HUB_OFFLINE, dynamic.TIME_OUT_REMOTE_CODE = True, 0
    try:
        yield
    finally:
        _before.pop()
        hub.HF_HUB_OFFLINE, dynamic.TIME_OUT_REMOTE_CODE = was, seconds


@contextlib.contextmanager
def online() -> Iterator[None]:
    """The network as it was outside, for what the user asked from the hub."""
    hub, _ = _switches()
    was = hub.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = _before[0] if _before else was
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = was


def _switches() -> tuple[Any, Any]:
    import huggingface_hub.constants
    import transformers.dynamic_module_utils

    # Neither library exports these for type checkers.
    return huggingface_hub.constants, transformers.dynamic_module_utils
