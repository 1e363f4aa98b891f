"""Audits: what a checkpoint's scores say, each a file or a folder of pure functions.

    @AUDITS.register(plan=plan, conclude=conclude)
    def rank(tables, manifest, *, baseline=None, ...) -> AuditResult: ...

:mod:`spark_audit.audits.contract` says what each of them must give.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from spark_audit.audits.runner import Audits

AUDITS = Audits("spark_audit.audits", kind="audit", folder=Path(__file__).parent)


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name.replace("_", "-") not in AUDITS.names():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    AUDITS.get(name)
    return sys.modules[f"{__name__}.{name}"]


def __dir__() -> list[str]:
    return ["AUDITS", *(name.replace("-", "_") for name in AUDITS.names())]
