"""The one runner of all audits: what it is called with, and what it does for each."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

from spark_audit.audits.contract import (
    NOTHING_KNOWN,
    ORDER,
    About,
    Audit,
    Baseline,
    Context,
    Metric,
    Tables,
    baselines_of,
    by_name,
    missing_rows,
    replicates,
    taken,
)
from spark_audit.names import series_of
from spark_audit.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from spark_audit.audits.stored_evidence import Evidence
    from spark_audit.manifest.schema import Manifest
    from spark_audit.results import AuditResult

COMMON = {
    "tables": "Checkpoint -> pass -> token table; of one, {name: score(...)}.",
    "manifest": "What the tables were scored from, or its path.",
    "baseline": "Checkpoint that the others are held against, or one for each.",
    "preset": "robust or paper; default: the manifest's.",
    "seed": "Of everything random.",
}


def signature_of(run: Callable[..., Any]) -> inspect.Signature:
    """Its signature as readers need it: types without the help beside them."""
    full = inspect.signature(run)
    plain = [
        one.replace(annotation=_parts(str(one.annotation))[0])
        for one in full.parameters.values()
    ]
    return full.replace(parameters=plain)


def help_of(run: Callable[..., Any]) -> str:
    """The docstring of an audit's file, and its options with what they are for."""
    # Past the module's own lookup, which asks here.
    about = vars(sys.modules[run.__module__]).get("__doc__") or ""
    lines = [about.strip(), "", "Parameters", "----------"]
    for name, one in inspect.signature(run).parameters.items():
        kind, said = _parts(str(one.annotation))
        default = "" if one.default is one.empty else f", default {one.default!r}"
        said = said or COMMON.get(name, "")
        lines += [f"{name} : {kind}{default}", *([f"    {said}"] if said else [])]
    return "\n".join([*lines, "", "Returns", "-------", "AuditResult"])


def _parts(annotation: str) -> tuple[str, str]:
    """An annotation's type, and its help: of ``Annotated`` the text or flag beside."""
    tree = ast.parse(annotation, mode="eval").body
    if not isinstance(tree, ast.Subscript) or ast.unparse(tree.value) != "Annotated":
        return annotation, ""
    kind, beside = tree.slice.elts[:2]  # type: ignore[attr-defined]
    if isinstance(beside, ast.Call) and beside.args:
        beside = beside.args[0]
    said = str(beside.value) if isinstance(beside, ast.Constant) else ""
    return ast.unparse(kind), said


def sign(run: Callable[..., Any], *functions: Callable[..., Any] | None) -> None:
    """Give the runner the signature of its audit: the options of its functions."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    every = [
        parameter
        for function in filter(None, functions)
        for parameter in inspect.signature(function).parameters.values()
    ]
    options: dict[str, inspect.Parameter] = {}
    for parameter in every:
        # What the runner gives has no default: it is no option.
        if parameter.kind is keyword and parameter.default is not parameter.empty:
            options.setdefault(parameter.name, parameter)
    first = [p for p in every if p.name in ("tables", "manifest")][:2]
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*first, *options.values()], return_annotation="AuditResult"
    )


def check_tables(tables: object) -> None:
    """Refuse scores of one checkpoint, which would be an empty result.

    Raises
    ------
    TypeError
        It names the argument.
    """
    if isinstance(tables, Mapping) and all(
        isinstance(name, str) and isinstance(passes, Mapping)
        for name, passes in tables.items()
    ):
        return
    raise TypeError(
        "tables: give the scores of each checkpoint by its name, as in "
        "{'mine': sa.score(...)}"
    )


class Audits(Registry[Audit]):
    """The registry of audits, whose modules are called as their audits."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._about: dict[str, About] = {}

    def register(  # type: ignore[override]
        self, *, about: About | None = None, **parts: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator for the one audit of a file or folder; see :class:`Registry`.

        With a part ``conclude`` the function makes the evidence, and the runner does
        the rest; without one it is the whole audit, tables in and result out.
        """
        inner = super().register(**parts)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            stem = self.stem_of(function)
            name = stem.replace("_", "-")
            self._about[name] = about or NOTHING_KNOWN
            self._callable(f"{self.package}.{stem}", name)
            inner(self._runner(name, function, parts))
            return function

        return decorate

    def _callable(self, module: str, name: str) -> None:
        registry = self

        class Callable_(ModuleType):
            """``sa.audits.matched(...)``, with the signature of its audit."""

            def __call__(self, *args: Any, **options: Any) -> AuditResult:
                return registry.get(name).run(*args, **options)

            def __getattribute__(self, attribute: str) -> Any:
                if attribute == "__signature__":
                    return signature_of(registry.get(name).run)
                if attribute == "__doc__":
                    return help_of(registry.get(name).run)
                return super().__getattribute__(attribute)

        sys.modules[module].__class__ = Callable_

    def _runner(
        self, name: str, function: Callable[..., Any], parts: Mapping[str, Any]
    ) -> Audit:
        """The audit as it is called: on the whole manifest, with its own options."""

        @wraps(function)
        def run(tables: Tables, manifest: Manifest, **options: Any) -> AuditResult:
            from spark_audit.audits.claims import at_level, corrected
            from spark_audit.manifest.file import load_manifest, original

            check_tables(tables)
            own = original(load_manifest(manifest))
            # Makes a file for evidence that is too large; no option of the audit.
            spare = options.pop("evidence_file", None)
            if "conclude" not in parts:
                result: AuditResult = function(tables, own, **options)
            else:
                bound = inspect.signature(run).bind(tables, manifest, **options)
                bound.apply_defaults()
                result = self._run(name, function, tables, own, spare, **bound.kwargs)
            found = corrected(result.findings)
            return replace(result, findings=found, rows=at_level(result.rows, found))

        if "conclude" in parts:
            sign(run, _options, function, parts.get("further"), parts["conclude"])
        return run

    def _run(
        self,
        name: str,
        evidence: Callable[..., pd.DataFrame],
        tables: Tables,
        manifest: Manifest,
        spare: Callable[[], Path] | None,
        *,
        baseline: Baseline = None,
        preset: str | None = None,
        seed: int = 0,
        **options: Any,
    ) -> AuditResult:
        """Check, make the evidence, conclude, and say of whom nothing can be said."""
        from spark_audit.audits.stored_evidence import concluded, names_in, stored
        from spark_audit.results import AuditResult, Finding

        about, parts = self._about[name], self.get(name).parts
        preset = preset or manifest.settings.preset
        given = {**options, "preset": preset, "seed": seed}
        if "check" in parts:
            parts["check"](**taken(parts["check"], options))
        frame: Evidence
        if spare is not None and (frames := parts.get("frames")):
            made = frames(tables, manifest, **taken(frames, given))
            frame = stored(made, spare)
        else:
            frame = evidence(tables, manifest, **taken(evidence, given))
        names = list(dict.fromkeys(map(series_of, tables) if about.stages else tables))
        result = AuditResult()
        count = options.get("replicates") or replicates(preset)
        if len(frame):
            seen = set(names_in(frame))
            seen |= set(map(series_of, seen)) if about.stages else set()
            held = baselines_of(baseline, (n for n in names if n in seen))
            context = Context(held, preset == "paper", seed, count)
            known = taken(parts["conclude"], options)
            result = concluded(frame, parts, about, context, **known)
        told = {row.checkpoint for row in result.rows}
        if absent := [each for each in names if each not in told]:
            reason = getattr(tables.get(absent[0]), "lacks", about.unscored)
            if not parts["plan"](manifest, **taken(parts["plan"], given)):
                reason = _said(about.nothing, manifest, options)
            missing = missing_rows(name, absent, about.metrics, reason)
            unknown = Finding.not_tested(name, "not_estimable", reason=reason)
            findings = [unknown] if reason and not len(frame) else result.findings
            result = replace(result, rows=[*result.rows, *missing], findings=findings)
        counted = {"replicates": count} if "replicates" in options else {}
        kept: Any = frame  # stored evidence, where it is too large for a frame
        result = replace(result, settings={**options, **counted}, evidence=kept)
        if "further" in parts:
            more = taken(parts["further"], given)
            result = parts["further"](result, tables, manifest, **more)
        return result

    def about(self, audit: str) -> About:
        """What is known of an audit; of one that there is not, nothing."""
        if audit not in self._about and audit in self.names():
            self.get(audit)
        return self._about.get(audit, NOTHING_KNOWN)

    def metrics(self, audit: str) -> tuple[Metric, ...]:
        """The metrics that an audit gives."""
        return self.about(audit).metrics

    def metric(self, audit: str, name: str) -> Metric:
        """What is known of a metric; of one that there is not, its name."""
        return by_name(self.metrics(audit)).get(name) or Metric(name)

    def evidence_file(self, audit: str) -> str:
        """Name of an audit's evidence in ``scores/``."""
        return self.about(audit).file or f"{audit}.parquet"

    def of_stages(self, audit: str) -> bool:
        """Whether an audit looks at all stages of a series."""
        return self.about(audit).stages

    def in_order(self, audits: Iterable[str] | None = None) -> list[str]:
        """Audits, all unless told, in the order of a report; nothing is imported."""
        chosen = self.names() if audits is None else audits
        places = {name: place for place, name in enumerate(ORDER)}
        return sorted(chosen, key=lambda name: (places.get(name, len(ORDER)), name))


def _said(reason: str | Callable[..., str], manifest: Any, options: Any) -> str:
    if isinstance(reason, str):
        return reason
    return reason(manifest, **taken(reason, options))


def _options(
    tables: Tables,
    manifest: Manifest,
    *,
    baseline: Baseline = None,
    preset: str | None = None,
    seed: int = 0,
) -> None:
    """What every audit takes beside its own options."""
