"""Audits: what a checkpoint's scores say, each a file or a folder of pure functions.

An audit registers how its evidence is made, with what it needs and gives::

    @AUDITS.register(about=About(METRICS), plan=plan, conclude=conclude)
    def evidence(tables, manifest, *, option=...) -> pd.DataFrame: ...

``plan(manifest, *, preset, ...)`` says which sequences each pass must score.
``tables`` maps checkpoint name -> pass -> token table; ``evidence`` is a table without
text, and ``conclude(evidence, context)`` turns it into figures: reports are compared
from evidence alone. An optional ``check(...)`` refuses options before anything is
scored, an optional ``further(result, tables, manifest, ...)`` adds what needs the
manifest. Options that these take by keyword are flags of the command line. One runner
does the rest for all of them: what to hold checkpoints against, the preset, and rows
with the reason where nothing was scored.
No audit sees a model.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_audit.audits.signatures import check_tables, help_of, sign, signature_of
from spark_audit.names import CheckpointName, entry_of, series_of
from spark_audit.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from spark_audit.audits.turns import Evidence
    from spark_audit.manifest.schema import Manifest
    from spark_audit.results import AuditResult, CheckpointFacts, Finding, Row
    from spark_audit.scoring.table import Pass, TokenTable

Tables: TypeAlias = "Mapping[str, Mapping[Pass, TokenTable]]"
Plan: TypeAlias = "dict[Pass, list[str]]"
Audit: TypeAlias = "Callable[..., AuditResult]"
Baseline: TypeAlias = "str | Mapping[str, str] | None"

BASE = "base"
"""Name of the reference model when it is scored too."""
ANY = "*"
"""Stands for any variant of a metric."""
ORDER = (
    *("matched", "rank", "nll", "canary", "twins", "mia", "extract", "noise"),
    *("stages", "utility"),
)
"""The audits as reports have them; any other stands behind, by name."""


@dataclass(frozen=True)
class Metric:
    """What is known of one metric: whatever estimates, reads or shows it asks here.

    Attributes
    ----------
    name, label, labels
        In rows, and as readers see it (default: the name); ``labels`` has those of
        variants that are called otherwise.
    unit, bounds, rate
        Of its values, and their range; a rate is a share of events, whose interval is
        never of zero width.
    learned
        Which way it moves as a checkpoint learns its rows, or the string planted in
        them, by heart: 1 up, -1 down; 0: neither by itself.
    variants, hidden, missing
        What ``of`` can be (:data:`ANY`: anything); those that stand in the CSV alone;
        those that get a row with the reason where nothing was scored.
    null, note
        Chance value, and what stands with every figure.
    definitions
        Terms that readers meet with the metric, and their meaning.
    glance, headline
        By variant: its title among the figures that are shown first (:data:`ANY`: the
        variant that the verdict rests on), and its name in sentences on several seeds.
    panel, counted
        Title of the table that it stands in, where it is not the audit's own; by
        variant, its name as the one that the table's smallest effect is of.
    """

    name: str
    label: str = ""
    unit: str = ""
    rate: bool = False
    bounds: tuple[float, float] | None = None
    learned: int = 0
    variants: tuple[str, ...] = ("",)
    null: float | None = None
    note: str = ""
    hidden: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)
    glance: Mapping[str, str] = field(default_factory=dict)
    headline: Mapping[str, str] = field(default_factory=dict)
    panel: str = ""
    counted: Mapping[str, str] = field(default_factory=dict)

    def label_of(self, of: str = "") -> str:
        """What readers see for one of its variants."""
        return self.labels.get(of) or self.label or self.name

    @property
    def range(self) -> tuple[float, float]:
        """Least and largest value."""
        return self.bounds or ((0.0, 1.0) if self.rate else (-math.inf, math.inf))

    @property
    def range_of_change(self) -> tuple[float, float]:
        """Least and largest difference of two values."""
        low, high = self.range
        return low - high, high - low


@dataclass(frozen=True)
class Context:
    """What an audit concludes under.

    Attributes
    ----------
    baselines
        Checkpoint -> the one that it is compared with.
    paper
        Take percentile intervals for the decision, as SPARK does.
    replicates
        Of the bootstrap.
    """

    baselines: Mapping[str, str] = field(default_factory=dict)
    paper: bool = False
    seed: int = 0
    replicates: int = 9999


def by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Metrics by their names."""
    return {metric.name: metric for metric in metrics}


@dataclass(frozen=True)
class About:
    """What is known of an audit beside its functions.

    Attributes
    ----------
    metrics
        What it gives, in the order of reports.
    columns
        Of its evidence.
    nothing, unscored
        Why a checkpoint has no figure: the manifest holds nothing to score (a string,
        or a function of the manifest and the options); its tables are missing. Of
        what has an empty reason nothing is said, but ``alone`` where it is the only
        audit of a report.
    over
        What figures of the group ``pooled`` are over.
    chance
        Its null values are chance itself, not another line's figure.
    wide, counts
        Variants have columns of their own; what ``n`` of such a table counts.
    stages
        It looks at all stages of a series.
    coded
        It concludes from columns of text that are categories, too.
    file
        Its evidence in ``scores/``, if that is not called as the audit is.
    attack, covers
        What it tries on a checkpoint, in words (empty: it attacks nothing, and only
        describes); the metric whose figures tell on how much, the field of its rows
        that counts it, and what is counted.
    asked
        ``all`` leaves it out but where it is asked for: it takes most of the time.
    """

    metrics: tuple[Metric, ...] = ()
    columns: tuple[str, ...] = ("checkpoint",)
    nothing: str | Callable[..., str] = "the manifest holds nothing for it"
    unscored: str = "its texts were not scored"
    alone: str = ""
    over: str = "pooled over training rows"
    chance: bool = False
    wide: bool = False
    counts: str = "tokens"
    stages: bool = False
    coded: bool = False
    file: str = ""
    attack: str = ""
    covers: tuple[str, str, str] = ("", "n", "")
    asked: bool = False


NOTHING_KNOWN = About()


def carriers(findings: Iterable[Finding], audit: str) -> dict[str, str]:
    """Entry -> the variant that an audit's severest finding of it rests on.

    Of replicates it is that of the severest; entries whose findings rest on no figure
    are left out.
    """
    severest: dict[str, Finding] = {}
    for one in findings:
        # Headlines of several seeds are figures chosen beforehand.
        if one.audit != audit or not one.of or one.claim == "moved":
            continue
        entry = entry_of(one.checkpoint)
        if entry not in severest or one.severity > severest[entry].severity:
            severest[entry] = one
    return {entry: one.of for entry, one in severest.items()}


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
    chosen = {}
    for name in known:
        entry, other = entry_of(name), baseline
        if entry != name:
            seed = CheckpointName.parse(name).seed
            same_seed = str(CheckpointName(baseline, seed))
            other = same_seed if same_seed in known else baseline
        if entry not in (baseline, BASE) and other in known:
            chosen[name] = other
    return chosen


def replicates(preset: str | None) -> int:
    """Bootstrap replicates of a preset (SPARK: 2,000)."""
    return 2000 if preset == "paper" else 9999


def originals(checkpoints: Iterable[CheckpointFacts]) -> dict[str, str]:
    """Each rounded checkpoint with what it was rounded from: its baseline."""
    known = list(checkpoints)
    names = {one.name for one in known}
    pairs = ((one.name, one.quantised_from) for one in known)
    return {name: own for name, own in pairs if own is not None and own in names}


def taken(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that a function takes by keyword."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in names}


def missing_rows(
    audit: str, names: Iterable[str], metrics: Iterable[Metric], reason: str
) -> list[Row]:
    """The pooled rows of checkpoints that nothing can be said of, and why."""
    from spark_audit.results import Row

    columns: dict[str, Any] = {"status": "not_estimable", "note": reason}
    return [
        Row(
            audit=audit,
            checkpoint=name,
            metric=metric.name,
            of=of,
            unit=metric.unit,
            null=metric.null,
            **columns,
        )
        for name in names
        for metric in metrics
        for of in metric.missing
    ]


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
        from spark_audit.audits.turns import concluded, names_in, stored
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
            said = Finding(
                audit=name, claim="not_tested", sentence=f"Not estimable: {reason}."
            )
            findings = [said] if reason and not len(frame) else result.findings
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
