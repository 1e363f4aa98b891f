"""Log figures by the ``log`` of the trainer that runs, and so to its services.

Sentences go to Python's logger ``spark_audit``.
"""

from __future__ import annotations

import inspect
import logging

import transformers

from spark_audit.messages import say

_log = logging.getLogger("spark_audit")


def log_by_trainer(figures: dict[str, float]) -> None:
    """Pass figures to the trainer's ``log``, but not to TRL's, which clears its own.

    A trainer does not give itself to its callbacks: it is looked for among those that
    called. Outside of a trainer, the figures go to Python's log.

    Parameters
    ----------
    figures
        Figures by their name in logs, as shared files may have them.
    """
    # From this function outwards, up to the trainer's loop.
    frame = inspect.currentframe()
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, transformers.Trainer):
            # The first class that has a log of its own, from the user's to the Trainer.
            for base_class in type(trainer).__mro__:
                is_of_trl = base_class.__module__.startswith("trl.")
                log = vars(base_class).get("log")
                if log is not None and not is_of_trl:
                    log(trainer, figures)
                    return
        frame = frame.f_back
    _log.info("%s", figures)


def log_sentence(text: str, *, is_warning: bool = True) -> None:
    """Log a sentence; without a handler, show a warning as messages are shown.

    Python would write it on stderr, across a bar and as a failure of a notebook's cell.
    """
    level = logging.WARNING if is_warning else logging.INFO
    is_heard = _log.hasHandlers() or not is_warning
    if _log.isEnabledFor(level) and not is_heard:
        say(text)
    else:
        _log.log(level, "%s", text)
