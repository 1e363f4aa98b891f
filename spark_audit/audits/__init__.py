"""Audits: what a checkpoint's scores say, each as two pure functions in one file.

An audit file registers its conclusion and names its plan::

    @AUDITS.register(plan=plan)
    def matched(tables, manifest, *, baseline=None, ...) -> AuditResult: ...

``plan(manifest, *, preset)`` says which examples each pass must score.
``tables`` maps checkpoint name -> pass -> token table. No audit sees a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from spark_audit.registry import Registry

if TYPE_CHECKING:
    from spark_audit.results import AuditResult
    from spark_audit.table import Pass, TokenTable

Tables: TypeAlias = "Mapping[str, Mapping[Pass, TokenTable]]"
Plan: TypeAlias = "dict[Pass, list[str]]"
Audit: TypeAlias = "Callable[..., AuditResult]"

AUDITS: Registry[Audit] = Registry(
    "spark_audit.audits", kind="audit", folder=Path(__file__).parent
)
