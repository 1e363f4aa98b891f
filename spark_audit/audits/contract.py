"""Audits: what a checkpoint's scores say, each as pure functions in one file.

An audit file registers its conclusion and names its plan::

    @AUDITS.register(plan=plan, conclude=conclude)
    def rank(tables, manifest, *, baseline=None, ...) -> AuditResult: ...

``plan(manifest, *, preset, ...)`` says which sequences each pass must score.
``tables`` maps checkpoint name -> pass -> token table; the audit turns them into its
evidence, a table without text, and ``conclude(evidence, *, baselines, paper, seed,
replicates)`` turns that into figures: reports are compared from evidence alone. An
optional ``check(...)`` refuses options before anything is scored. No audit sees a
model.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_audit.registry import Registry

if TYPE_CHECKING:
    from spark_audit.manifest.schema import Manifest
    from spark_audit.results import AuditResult, CheckpointFacts, Finding
    from spark_audit.scoring.table import Pass, TokenTable

Tables: TypeAlias = "Mapping[str, Mapping[Pass, TokenTable]]"
Plan: TypeAlias = "dict[Pass, list[str]]"
Audit: TypeAlias = "Callable[..., AuditResult]"
Baseline: TypeAlias = "str | Mapping[str, str] | None"

BASE = "base"
"""Name of the reference model when it is scored too."""

_REPLICATE = re.compile(r"(.+)\[([1-9]\d*)\]")


def replicate_of(name: str) -> tuple[str, int] | None:
    """Entry and number of a replicate ``NAME[K]``; ``None`` for any other name."""
    found = _REPLICATE.fullmatch(name)
    return None if found is None else (found[1], int(found[2]))


def entry_of(name: str) -> str:
    """The method that a replicate ``NAME[K]`` belongs to; any other name itself."""
    found = replicate_of(name)
    return name if found is None else found[0]


def carriers(findings: Iterable[Finding], audit: str) -> dict[str, str]:
    """Entry -> the variant that an audit's severest finding of it rests on.

    Of replicates it is that of the severest; entries whose findings rest on no figure
    are left out.
    """
    found: dict[str, Finding] = {}
    for one in findings:
        # Headlines of several seeds are figures chosen beforehand.
        if one.audit != audit or not one.of or one.claim == "moved":
            continue
        entry = entry_of(one.checkpoint)
        if entry not in found or one.severity > found[entry].severity:
            found[entry] = one
    return {entry: one.of for entry, one in found.items()}


def series_of(name: str) -> str:
    """The series of a stage ``NAME@K``; any other name itself."""
    series, at, stage = name.rpartition("@")
    return series if at and stage.isdecimal() else name


def baselines_of(baseline: Baseline, names: Iterable[str]) -> dict[str, str]:
    """What each checkpoint is held against; those without a baseline are left out.

    A baseline that has replicates of its own is paired with another method's by their
    number: the same seed. ``base`` is held against nothing.
    """
    known = list(names)
    if baseline is None:
        return {}
    if not isinstance(baseline, str):
        pairs = baseline.items()
        return {k: v for k, v in pairs if k in known and v in known and k != v}
    found = {}
    for name in known:
        replicate = replicate_of(name)
        own = name if replicate is None else replicate[0]
        other = baseline
        if replicate is not None and f"{baseline}[{replicate[1]}]" in known:
            other = f"{baseline}[{replicate[1]}]"
        if own not in (baseline, BASE) and other in known:
            found[name] = other
    return found


def replicates(preset: str | None) -> int:
    """Bootstrap replicates of a preset (SPARK: 2,000)."""
    return 2000 if preset == "paper" else 9999


def originals(checkpoints: Iterable[CheckpointFacts]) -> dict[str, str]:
    """Each rounded checkpoint with what it was rounded from: its baseline."""
    known = list(checkpoints)
    names = {one.name for one in known}
    pairs = ((one.name, one.quantised_from) for one in known)
    return {name: own for name, own in pairs if own is not None and own in names}


def is_rounded(name: str, baseline: str) -> bool:
    """Whether a checkpoint is its baseline with rounded weights, by its name."""
    return name in (f"{baseline}+int8", f"{baseline}+int4")


def settings_of(manifest: Manifest, *, preset: str | None, seed: int) -> dict[str, Any]:
    """How an audit concludes: the manifest's preset unless another is asked for."""
    chosen = preset or manifest.settings.preset
    return {
        "paper": chosen == "paper",
        "seed": seed,
        "replicates": replicates(chosen),
    }


ORDER = ("matched", "rank", "nll", "canary", "mia", "extract", "noise", "utility")
"""How reports tell of audits; others follow."""


def in_order(audits: Iterable[str]) -> list[str]:
    """Audits in the order of a report."""
    place = {name: i for i, name in enumerate(ORDER)}
    return sorted(audits, key=lambda name: (place.get(name, len(place)), name))


def evidence_file(audit: str) -> str:
    """Name of an audit's evidence in ``scores/``."""
    return "spans.parquet" if audit == "matched" else f"{audit}.parquet"


class Audits(Registry[Audit]):
    """The registry of audits, whose modules are called as their audits."""

    def register(
        self, *, order: float = math.inf, **parts: Callable[..., Any]
    ) -> Callable[[Audit], Audit]:
        """Decorator for the one audit of a file or folder; see :class:`Registry`."""
        inner = super().register(order=order, **parts)

        class Callable_(ModuleType):
            """``sa.audits.matched(...)``."""

            def __call__(self, *args: Any, **options: Any) -> AuditResult:
                return registry.get(self.__name__.rpartition(".")[2]).run(
                    *args, **options
                )

        registry = self

        def decorate(function: Audit) -> Audit:
            module = f"{self.package}.{self.stem_of(function)}"
            sys.modules[module].__class__ = Callable_

            @wraps(function)
            def run(tables: Tables, manifest: Manifest, **options: Any) -> AuditResult:
                from spark_audit.manifest.file import original

                return function(tables, original(manifest), **options)

            return inner(run)

        return decorate

    def of_stages(self, audit: str) -> bool:
        """Whether an audit looks at all stages of a series: ``stages`` is a part."""
        return "stages" in self.get(audit).parts
