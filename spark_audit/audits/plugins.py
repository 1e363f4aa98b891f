"""What other packages add: audits and membership scores by entry points."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from spark_audit.errors import one_line
from spark_audit.messages import say


def registered(group: str, fault: Callable[[str, Any], str]) -> dict[str, Any]:
    """Return what other packages register by an entry point, without what is broken.

    What is left out is said, with the reason.

    Parameters
    ----------
    group
        Name of the entry point.
    fault
        ``fault(name, loaded)`` returns why something loaded is not what it should be;
        empty: nothing is wrong.

    Returns
    -------
    Name -> what was loaded.
    """
    loaded: dict[str, Any] = {}
    for point in sorted(entry_points(group=group), key=str):
        # Somebody else's code runs here: whatever it raises, ours goes on.
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
