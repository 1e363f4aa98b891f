"""Audits: the classes that conclude from the scores of checkpoints.

``__init__.pyi`` lists them, and :class:`~spark_audit.audits.base.Audit` is their base
class. Other packages add audits by the entry point ``spark_audit.audits``. An audit is
imported when it is first used.

Examples
--------
>>> sa.audits.Matched(replicates=500).name
'matched'
"""

from difflib import get_close_matches

import lazy_loader

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Return an attribute when it is first used; name the nearest to an unknown one.

    Raises
    ------
    AttributeError
        If there is none of this name.
    """
    # A name that Python itself asks for has no neighbour.
    if name in __all__ or name.startswith("_"):
        return _attribute(name)
    try:
        return _attribute(name)
    except AttributeError as error:
        nearest = get_close_matches(name, __all__, n=1)
        if not nearest:
            raise
        raise AttributeError(f"{error}; did you mean {nearest[0]!r}?") from None
