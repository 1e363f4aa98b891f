"""Local input is opened without a network and without a question.

Libraries ask the hub for what a local file names (a base, an adapter's second model, a
tokenizer's parent), and transformers asks on stdin whether to run code that it finds.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from spark_audit.errors import CheckpointError, IncompleteError, SparkError, one_line
from spark_audit.host_memory import out_of_memory

# Whether the hub was switched off before we did.
_before: list[bool] = []


@contextlib.contextmanager
def online() -> Iterator[None]:
    """The network as it was outside, for what the user asked from the hub."""
    import huggingface_hub.constants

    hub: Any = huggingface_hub.constants
    was = hub.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = _before[0] if _before else was
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = was


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep other libraries' progress bars and warnings off our stderr, and off the net.

    No request goes to the hub, and code that nobody trusted is an error, no question.
    What libraries warn of while loading (missing, unexpected, mismatched tensors) is
    checked here and raised as an error.
    """
    import huggingface_hub.utils
    import transformers.dynamic_module_utils
    import transformers.utils.logging

    # Neither library exports these for type checkers.
    hub: Any = huggingface_hub
    dynamic: Any = transformers.dynamic_module_utils
    hf: Any = transformers.utils.logging
    bars = hf.is_progress_bar_enabled(), not hub.utils.are_progress_bars_disabled()
    was, seconds = hub.constants.HF_HUB_OFFLINE, dynamic.TIME_OUT_REMOTE_CODE
    # PEFT imports what it finds installed, and that may log of kernels it lacks.
    disabled = logging.root.manager.disable
    _before.append(was)
    logging.disable(logging.ERROR)
    hf.disable_progress_bar()
    hub.utils.disable_progress_bars()
    hub.constants.HF_HUB_OFFLINE, dynamic.TIME_OUT_REMOTE_CODE = True, 0
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        _before.pop()
        hub.constants.HF_HUB_OFFLINE, dynamic.TIME_OUT_REMOTE_CODE = was, seconds
        logging.disable(disabled)
        if bars[0]:
            hf.enable_progress_bar()
        if bars[1]:
            hub.utils.enable_progress_bars()


@contextlib.contextmanager
def foreign(what: str, *, fix: str | None = None) -> Iterator[None]:
    """Errors of other libraries, which share no class, as a ``CheckpointError``.

    Raises
    ------
    IncompleteError
        If memory has ended.
    """
    try:
        yield
    except SparkError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise IncompleteError(
                "does not fit into memory",
                fix="try --dtype bfloat16, --device-map auto or a larger device",
            ) from error
        if isinstance(error, ImportError):
            fix = fix or "install the package that it names"
        raise CheckpointError(f"{what} ({one_line(error)})", fix=fix) from error
