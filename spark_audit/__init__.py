"""SPARK Audit: what a language-model checkpoint gives away of its training data.

    import spark_audit as sa

    manifest = sa.load_manifest("manifests/NAME.json")
    checkpoint = sa.open_checkpoint("runs/mine", base="models/base")
    tables = sa.score(checkpoint, sa.manifest_items(manifest, checkpoint))
    result = sa.audits.matched({"mine": tables}, manifest)

Names are resolved when they are used: importing this imports neither torch nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "checkpoints.open": ("open_checkpoint",),
    "checkpoints.recipe": ("Loaded",),
    "data.examples": ("Example", "Span", "read_examples"),
    "manifest.build": ("build_manifest",),
    "manifest.file": ("load_manifest",),
    "manifest.items": ("items_for", "manifest_items"),
    "manifest.schema": ("Manifest",),
    "report.folder": ("read_report",),
    "results": ("AuditResult", "Estimate"),
    "scoring.score": ("score",),
    "scoring.table": ("Pass", "TokenTable"),
}
_OF = {name: module for module, names in _PLACES.items() for name in names}
__all__ = ["audits", "stats", *sorted(_OF)]


def __getattr__(name: str) -> Any:
    if name in ("audits", "stats"):
        return import_module(f"{__name__}.{name}")
    if name not in _OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_OF[name]}"), name)
