"""The registry of audits, by command: those of this package, of others and of a user.

An audit is imported only when something needs it. A further audit of this package is a
line of :data:`AUDITS` and of ``audits/__init__.pyi``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from spark_audit import audits
from spark_audit.arguments import wrong_value
from spark_audit.errors import InputError, one_of
from spark_audit.sentences import add_templates, optional

if TYPE_CHECKING:
    from spark_audit.audits.base import Audit, Metric

AUDIT_ENTRY_POINTS = "spark_audit.audits"
"""Group of entry points by which other packages register audits."""

AUDITS = {
    "matched": "Matched",
    "rank": "Rank",
    "nll": "NLL",
    "canary": "CanaryRank",
    "twins": "Twins",
    "mia": "Membership",
    "extract": "Extraction",
    "passages": "Passages",
    "noise": "Noise",
    "stages": "Stages",
    "utility": "Utility",
    "series": "SeriesAttack",
    "doors": "Doors",
    "erasure": "Erasure",
    "generated": "Generated",
}
"""Command -> name of the audit's class in ``spark_audit.audits``.

The command is also the audit's ``name``. In the order of reports; audits of other
packages follow.
"""

NAMES_OF_CLASSES = {
    "membership": "mia",
    "extraction": "extract",
    "canary_rank": "canary",
    "series_attack": "series",
}
"""Name of a class in lower case -> its command, where the two differ."""

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
"""Other commands, whose names no audit of another package can have."""

ALL_AUDITS = "all"
"""The command that runs every audit, and what stands for them in Python."""

AUDITS_ON_REQUEST = ("passages", "noise", "series", "doors", "erasure", "generated")
"""Audits that ``all`` runs on request only: they take most of the time, ask about rows
that a user must name or about another harm than that to persons, or break down what
another audit claims. Each further test makes those of all audits stricter. Audits of
files (``Audit.of_files``) are no part of ``all``, as they look at no model."""

DEFAULT_AUDITS = ("matched",)
"""Audits that a Python call runs by default."""

TRAINING_AUDITS = ("matched", "mia")
"""Audits that run by default on a model during training."""


_given_audits: dict[str, type[Audit]] = {}
"""Audits that Python code gave as classes, by name; :func:`register` fills it."""


@cache
def _audits_of_packages() -> dict[str, type[Audit]]:
    """Return the audits of other packages, by name.

    A broken one is left out with a warning (by ``registered``).
    """
    if not entry_points(group=AUDIT_ENTRY_POINTS):
        return {}

    # These imports take long, so they are made only if other packages register audits.
    from spark_audit.audits.base import Audit
    from spark_audit.audits.plugins import registered

    def fault(name: str, audit: Any) -> str:
        """Return why an object cannot be the audit of this name; empty if it can."""
        if name in (*AUDITS, *NAMES_OF_CLASSES, *RESERVED_COMMANDS):
            return "there is a command or an audit of this name"
        if isinstance(audit, type) and issubclass(audit, Audit) and audit.name == name:
            return ""
        return f"it is not an Audit named {name!r}"

    return registered(AUDIT_ENTRY_POINTS, fault)


def audit_names() -> list[str]:
    """Return the names of all audits, in the order of reports."""
    # A class that Python code gave may stand for one of a package, but not of ours.
    return [*AUDITS, *(_audits_of_packages() | _given_audits)]


def all_audits() -> Mapping[str, type[Audit]]:
    """Return every audit by its name, in the order of reports."""
    return {name: about(name) for name in audit_names()}


def find(name: str) -> type[Audit]:
    """Return the class of an audit, and refuse an unknown name.

    For names that a user gives. For those in a report see ``about``.

    Parameters
    ----------
    name
        The name of its command (``mia``), or that of its class (``Membership``, or
        ``membership``).

    Raises
    ------
    InputError
        If no audit has this name.
    """
    command_of_class = {class_name: command for command, class_name in AUDITS.items()}
    commands = {**NAMES_OF_CLASSES, **command_of_class}
    command = commands.get(name, name)
    if command not in audit_names():
        # A typing error may be one of a command, or of a class.
        one_of(name, "audit", [*audit_names(), *NAMES_OF_CLASSES])
    return about(command)


def audit_of(given: str | Audit | type[Audit]) -> Audit:
    """Return an audit that Python code gave, with its default options if it had none.

    Raises
    ------
    InputError
        If no audit has the given name.
    ArgumentError
        If the value is neither a name nor an audit.
    """
    from spark_audit.audits.base import Audit

    if isinstance(given, str):
        return find(given)()
    if isinstance(given, type) and issubclass(given, Audit):
        given = given()
    if not isinstance(given, Audit):
        raise wrong_value("audits", given, "neither the name of an audit nor an audit")
    register(type(given))
    return given


def audits_of(
    given: str | Audit | type[Audit] | Iterable[str | Audit | type[Audit]],
) -> list[str | Audit | type[Audit]]:
    """Return one or several audits that Python code gave, as a list.

    ``"all"`` stands for the audits that the command ``all`` runs without a request. An
    audit beside it that it holds, too, is taken instead, with its options.

    Examples
    --------
    >>> "matched" in audits_of("all"), "noise" in audits_of("all")
    (True, False)
    >>> audits_of(["all", "noise"])[-1]
    'noise'
    """
    from spark_audit.audits.base import Audit

    # `audit_of` names a value of another type.
    if isinstance(given, str | Audit | type) or not isinstance(given, Iterable):
        given = [given]
    audits = [*given]
    if ALL_AUDITS not in audits:
        return audits

    others = [audit for audit in audits if audit != ALL_AUDITS]
    names_of_others = {
        find(audit).name if isinstance(audit, str) else getattr(audit, "name", "")
        for audit in others
    }
    usual = [
        name
        for name in audit_names()
        if name not in AUDITS_ON_REQUEST and name not in names_of_others
    ]
    return [*usual, *others]


def register(audit: type[Audit]) -> None:
    """Make an audit known by its name in this process, as installed ones are.

    A class that is defined again, as by a cell that runs again, takes the place of the
    earlier one.

    Raises
    ------
    InputError
        If its name is no name of an audit, or is taken by a command or an audit of
        this package.
    """
    # Names of files, rules and commands hold it.
    is_usable = audit.name.isascii() and audit.name.isidentifier()
    if not is_usable or audit.name != audit.name.lower():
        raise InputError(
            f"{audit.name!r} cannot be the name of an audit",
            where=f"audit {audit.__name__}",
            fix='give its class a name of small letters, as `name = "surprise"`',
        )

    # A subclass of an audit of ours keeps its name, and what is known of it.
    if audit.name in AUDITS and issubclass(audit, about(audit.name)):
        return
    if audit.name in (*AUDITS, *NAMES_OF_CLASSES, *RESERVED_COMMANDS):
        raise InputError(
            f"there is a command or an audit named {audit.name!r}",
            where=f"audit {audit.__name__}",
            fix="give its class another `name`",
        )
    if about(audit.name) is not audit:
        _given_audits[audit.name] = audit
        add_templates(audit.words)


def about(name: str) -> type[Audit]:
    """Return the class of an audit; for an unknown name, the base class of all audits.

    Unlike ``find`` it does not refuse an unknown name, so that a report of an audit
    that is not installed can be shown.
    """
    if name in AUDITS:
        return _audit_of_package(name)

    from spark_audit.audits.base import Audit

    if name in _given_audits:
        return _given_audits[name]
    return _audits_of_packages().get(name, Audit)


@cache
def _audit_of_package(name: str) -> type[Audit]:
    """Return the class of an audit of this package, whose file is imported only now."""
    audit: type[Audit] = getattr(audits, AUDITS[name])
    return audit


def metric_of(audit: str, name: str) -> Metric:
    """Return the description of a metric; an unknown one has only its name."""
    return about(audit).metric(name)


def label(audit: str, metric: str, of: str = "") -> str:
    """Return the words for a metric, or for a variant of it.

    A variant without words of its own has those of its metric. A metric without words
    has its name.

    Parameters
    ----------
    of
        The variant; empty: none.
    """
    key = f"metric.{audit}.{metric}"
    words_of_variant = optional(f"{key}.of.{of}")
    return words_of_variant or optional(key) or metric


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of audits in the order of reports.

    Names of audits that are not installed come last, by the alphabet.
    """
    position_of = {name: index for index, name in enumerate(audit_names())}
    behind_all = len(position_of)
    return sorted(names, key=lambda name: (position_of.get(name, behind_all), name))
