"""SPARK Audit: what a language-model checkpoint gives away of its training data.

docs/tutorial.md goes from rows of text to a report. Names are resolved when they are
used: importing this imports neither torch nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "checkpoints.open": ("open_checkpoint",),
    "checkpoints.loaded": ("Loaded",),
    "data.examples": ("Example", "Span", "read_examples"),
    "data.importers": ("import_rows",),
    "data.pii": ("annotate_examples",),
    "manifest.build": ("build_manifest",),
    "manifest.file": ("load_manifest", "write_manifest"),
    "manifest.items": ("items_for", "manifest_items", "score"),
    "manifest.schema": ("Manifest",),
    "pipeline.compare": ("compare",),
    "pipeline.request": ("Request",),
    "pipeline.run": ("audit", "run"),
    "report.folder": ("read_report",),
    "results": ("AuditResult", "Estimate", "Report"),
    "scoring.table": ("Pass", "TokenTable"),
}
_OF = {name: module for module, names in _PLACES.items() for name in names}
__all__ = ["audits", "stats", *sorted(_OF)]
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name in ("audits", "stats"):
        return import_module(f"{__name__}.{name}")
    if name not in _OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_OF[name]}"), name)
