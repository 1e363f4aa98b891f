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
        Group of entry points, such as ``spark_audit.audits``.
    fault
        ``fault(name, loaded)`` returns the fault of a loaded object; empty: it has
        none.

    Returns
    -------
    Name -> loaded object.
    """
    registered_objects: dict[str, Any] = {}
    for point in sorted(entry_points(group=group), key=str):
        # Foreign code runs here and may raise anything, which must not stop us.
        try:
            candidate = point.load()
            reason = fault(point.name, candidate)
        except (Exception, SystemExit) as error:
            candidate = None
            reason = one_line(error)

        # Of several objects with one name the last one counts, broken or not.
        if reason:
            registered_objects.pop(point.name, None)
            say(f"{group}: {point.name!r} ({point.value}) is left out: {reason}")
        else:
            registered_objects[point.name] = candidate
    return registered_objects
