"""Which audits there are: ours, and other packages', by the names of their commands.

An audit is imported when something is asked of it: a report of one needs no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from spark_audit import audits
from spark_audit.errors import one_of
from spark_audit.sentences import optional

if TYPE_CHECKING:
    from spark_audit.audits.base import Audit, Metric

AUDIT_ENTRY_POINTS = "spark_audit.audits"
"""Entry point of other packages' audits."""
AUDITS = {
    "matched": "Matched",
    "rank": "Rank",
    "nll": "NLL",
    "canary": "CanaryRank",
    "twins": "Twins",
    "mia": "Membership",
    "extract": "Extraction",
    "noise": "Noise",
    "stages": "Stages",
    "utility": "Utility",
    "series": "SeriesAttack",
}
"""Our audits by their commands, as reports have them; others follow."""
RESERVED_COMMANDS = (
    *("demo", "data", "manifest", "inspect", "all", "report", "persons", "compare"),
    *("verify", "epsilon", "gate"),
)
"""What no audit of another package can be called, either."""
AUDITS_ON_REQUEST = ("noise", "series")
"""``all`` runs these on request alone: they take most of the time, or answer who asks.
"""
DEFAULT_AUDITS = ("matched",)
"""What a Python call runs that names no audit."""
TRAINING_AUDITS = ("matched", "mia")
"""What a look at a model during training runs that names no audit."""


@cache
def _outside() -> dict[str, type[Audit]]:
    """Audits of other packages; a broken one is left out."""
    if not entry_points(group=AUDIT_ENTRY_POINTS):
        return {}
    from spark_audit.audits.base import Audit, registered

    def no_audit(name: str, audit: Any) -> str:
        if name in (*AUDITS, *RESERVED_COMMANDS):
            return "there is a command of this name"
        if isinstance(audit, type) and issubclass(audit, Audit) and audit.name == name:
            return ""
        return f"it is not an Audit named {name!r}"

    return registered(AUDIT_ENTRY_POINTS, no_audit)


def audit_names() -> list[str]:
    """The names of all audits, in the order of reports."""
    return list(dict.fromkeys([*AUDITS, *_outside()]))


def all_audits() -> Mapping[str, type[Audit]]:
    """Every audit by its name, in the order of reports."""
    return {name: about(name) for name in audit_names()}


def find(name: str) -> type[Audit]:
    """An audit by its name.

    Raises
    ------
    InputError
        If there is none.
    """
    return about(one_of(name, "audit", audit_names()))


def about(name: str) -> type[Audit]:
    """What is known of an audit; of one that is not installed, the defaults."""
    from spark_audit.audits.base import Audit

    if name in AUDITS:
        audit: type[Audit] = getattr(audits, AUDITS[name])
        return audit
    return _outside().get(name, Audit)


def metric_of(audit: str, name: str) -> Metric:
    """What is known of a metric; of an unknown one, its name."""
    return about(audit).metric(name)


def label(audit: str, metric: str, of: str = "") -> str:
    """What readers call a metric, or a variant of it; an unknown one by its name."""
    key = f"metric.{audit}.{metric}"
    return optional(f"{key}.of.{of}") or optional(key) or metric


def in_order(some: Iterable[str]) -> list[str]:
    """Names of audits in the order of reports; unknown ones last."""
    places = {name: place for place, name in enumerate(audit_names())}
    return sorted(some, key=lambda name: (places.get(name, len(places)), name))
