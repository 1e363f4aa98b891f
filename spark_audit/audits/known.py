"""The registry of audits, by command: those of this package and of others.

An audit is imported only when something needs it.
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
"""Entry point by which other packages register audits."""

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
"""Audits of this package by their commands, in the order of reports; others follow."""

RESERVED_COMMANDS = (
    "demo",
    "data",
    "manifest",
    "inspect",
    "all",
    "report",
    "persons",
    "compare",
    "verify",
    "epsilon",
    "gate",
)
"""Further names that no audit of another package can have."""

AUDITS_ON_REQUEST = ("noise", "series")
"""Audits that ``all`` runs on request only: they take most of the time."""

DEFAULT_AUDITS = ("matched",)
"""Audits that a Python call runs by default."""

TRAINING_AUDITS = ("matched", "mia")
"""Audits that run by default on a model during training."""


@cache
def _audits_of_packages() -> dict[str, type[Audit]]:
    """Return the audits of other packages; a broken one is left out."""
    if not entry_points(group=AUDIT_ENTRY_POINTS):
        return {}

    # The import takes long, so it is made only if other packages register audits.
    from spark_audit.audits.base import Audit
    from spark_audit.audits.plugins import registered

    def fault(name: str, audit: Any) -> str:
        """Return why an object cannot be an audit of this name; empty if it can."""
        if name in (*AUDITS, *RESERVED_COMMANDS):
            return "there is a command of this name"
        if isinstance(audit, type) and issubclass(audit, Audit) and audit.name == name:
            return ""
        return f"it is not an Audit named {name!r}"

    return registered(AUDIT_ENTRY_POINTS, fault)


def audit_names() -> list[str]:
    """Return the names of all audits, in the order of reports."""
    return list(dict.fromkeys([*AUDITS, *_audits_of_packages()]))


def all_audits() -> Mapping[str, type[Audit]]:
    """Return every audit by its name, in the order of reports."""
    return {name: about(name) for name in audit_names()}


def find(name: str) -> type[Audit]:
    """Return an audit by its name.

    Raises
    ------
    InputError
        If there is none.
    """
    return about(one_of(name, "audit", audit_names()))


def about(name: str) -> type[Audit]:
    """Return the class of an audit; for one that is not installed, the base class."""
    from spark_audit.audits.base import Audit

    if name in AUDITS:
        # The attribute imports the audit's module.
        audit: type[Audit] = getattr(audits, AUDITS[name])
        return audit
    return _audits_of_packages().get(name, Audit)


def metric_of(audit: str, name: str) -> Metric:
    """Return the description of a metric; an unknown one has its name only."""
    return about(audit).metric(name)


def label(audit: str, metric: str, of: str = "") -> str:
    """Return the words for a metric or a variant of it; its name if it is unknown."""
    # A variant without words of its own has those of its metric.
    key = f"metric.{audit}.{metric}"
    return optional(f"{key}.of.{of}") or optional(key) or metric


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of audits in the order of reports; unknown ones come last."""
    order = {name: number for number, name in enumerate(audit_names())}
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))
