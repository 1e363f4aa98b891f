"""Audits: what a checkpoint's scores say, each as two pure functions in one file.

An audit file registers its conclusion and names its plan::

    @AUDITS.register(plan=plan)
    def matched(tables, manifest, *, baseline=None, ...) -> AuditResult: ...

``plan(manifest, *, preset)`` says which examples each pass must score.
``tables`` maps checkpoint name -> pass -> token table. No audit sees a model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_audit.registry import Registry

if TYPE_CHECKING:
    from spark_audit.results import AuditResult
    from spark_audit.table import Pass, TokenTable

Tables: TypeAlias = "Mapping[str, Mapping[Pass, TokenTable]]"
Plan: TypeAlias = "dict[Pass, list[str]]"
Audit: TypeAlias = "Callable[..., AuditResult]"


class _Callable(ModuleType):
    """An audit's module that is called as its audit: ``sa.audits.matched(...)``."""

    def __call__(self, *args: Any, **options: Any) -> AuditResult:
        return AUDITS.get(self.__name__.rpartition(".")[2]).run(*args, **options)


class _Audits(Registry[Audit]):
    def register(self, **parts: Callable[..., Any]) -> Callable[[Audit], Audit]:
        inner = super().register(**parts)

        def decorate(function: Audit) -> Audit:
            sys.modules[function.__module__].__class__ = _Callable
            return inner(function)

        return decorate


AUDITS = _Audits("spark_audit.audits", kind="audit", folder=Path(__file__).parent)


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name.replace("_", "-") not in AUDITS.names():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    AUDITS.get(name)
    return sys.modules[f"{__name__}.{name}"]
