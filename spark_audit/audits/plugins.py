"""Plugins: audits and membership scores that other packages register."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from spark_audit.errors import one_line
from spark_audit.messages import say


def registered(group: str, fault: Callable[[str, Any], str]) -> dict[str, Any]:
    """Return the objects that other packages register by an entry point.

    Broken ones are left out, with a warning that gives the reason.

    Parameters
    ----------
    group
        Name of the entry point.
    fault
        ``fault(name, loaded)`` returns the fault of a loaded object; empty: it has
        none.

    Returns
    -------
    Name -> loaded object.
    """
    loaded: dict[str, Any] = {}
    for point in sorted(entry_points(group=group), key=str):
        # Foreign code runs here and may raise anything, which must not stop us.
        try:
            candidate = point.load()
            reason = fault(point.name, candidate)
        except (Exception, SystemExit) as error:
            candidate = None
            reason = one_line(error)

        if reason:
            loaded.pop(point.name, None)
            say(f"{group}: {point.name!r} ({point.value}) is left out: {reason}")
        else:
            loaded[point.name] = candidate
    return loaded
