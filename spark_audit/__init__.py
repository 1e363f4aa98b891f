"""SPARK Audit: what a language-model checkpoint gives away of its training data.

    import spark_audit as sa

    manifest = sa.load_manifest("manifests/NAME.json")
    checkpoint = sa.open_checkpoint("runs/mine", base="models/base")
    tables = sa.score(checkpoint, sa.manifest_items(manifest, checkpoint))
    result = sa.audits.matched({"mine": tables}, manifest)

These are the functions that the command line itself calls. Names are resolved when
they are used: importing this package imports neither torch nor pandas.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_audit.build import build_manifest as build_manifest
    from spark_audit.checkpoints import Loaded as Loaded
    from spark_audit.checkpoints import open_checkpoint as open_checkpoint
    from spark_audit.examples import Example as Example
    from spark_audit.examples import Span as Span
    from spark_audit.examples import read_examples as read_examples
    from spark_audit.manifest import Manifest as Manifest
    from spark_audit.manifest import read_manifest

    load_manifest = read_manifest
    from spark_audit.reports import read_report as read_report
    from spark_audit.results import AuditResult as AuditResult
    from spark_audit.results import Estimate as Estimate
    from spark_audit.scoring import score as score
    from spark_audit.sequences import items_for as items_for
    from spark_audit.sequences import manifest_items as manifest_items
    from spark_audit.table import Pass as Pass
    from spark_audit.table import TokenTable as TokenTable

_PLACES = {
    "AuditResult": "results",
    "Estimate": "results",
    "Example": "examples",
    "Loaded": "checkpoints",
    "Manifest": "manifest",
    "Pass": "table",
    "Span": "examples",
    "TokenTable": "table",
    "build_manifest": "build",
    "items_for": "sequences",
    "load_manifest": "manifest:read_manifest",
    "manifest_items": "sequences",
    "open_checkpoint": "checkpoints",
    "read_examples": "examples",
    "read_report": "reports",
    "score": "scoring",
}

__all__ = ["audits", "stats", *sorted(_PLACES)]


def __getattr__(name: str) -> Any:
    if name in ("audits", "stats"):
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute or name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
