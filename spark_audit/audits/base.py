"""What an audit is: a frozen dataclass whose fields are its options.

A subclass names its metrics and has four methods. ``plan`` lists the texts that each
pass must score. ``evidence`` turns the scores into tables without text, ``conclude``
turns these into figures and findings; reports are compared from evidence alone.
``further`` adds the parts that need the manifest. No audit uses a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import pandas as pd

from spark_audit.audits.baselines import Baseline, baselines_of
from spark_audit.audits.claims import at_level, corrected
from spark_audit.audits.metric import Metric, by_name
from spark_audit.audits.stored_evidence import (
    Evidence,
    StoredEvidence,
    joined,
    names_in,
    stored,
)
from spark_audit.manifest.file import load_manifest, original
from spark_audit.manifest.schema import Manifest
from spark_audit.names import BASE, entry_of, series_of
from spark_audit.results import AuditResult, Finding, Row
from spark_audit.scoring.table import Pass, TokenTable

Tables: TypeAlias = Mapping[str, Mapping[Pass, TokenTable]]
"""Checkpoint -> pass -> scores."""
Plan: TypeAlias = dict[Pass, list[str]]
"""Pass -> keys of the texts that it must score."""


@dataclass(frozen=True)
class Context:
    """The settings of a conclusion.

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


@dataclass(frozen=True, kw_only=True)
class Audit(ABC):
    """One audit. Its fields are the options; ``Annotated`` holds the help text.

    Attributes
    ----------
    name, metrics, columns
        Its name in reports and commands; what it estimates, in the order of reports;
        the columns of its evidence.
    nothing, unscored
        Why a checkpoint has no figure: the manifest contains nothing to score, or the
        texts were not scored. Without a reason the report omits the audit, and
        ``alone`` is why it is refused if it is the only audit.
    over
        What the figures of the group ``pooled`` are pooled over.
    scope
        What cannot be concluded from it.
    chance
        Its null values are chance, not figures of another row.
    wide, counts
        Tables have one column per variant; what ``n`` of such a table counts.
    of_series
        It uses all stages of a series.
    in_turns
        If the evidence is large, it can process one checkpoint after the other.
    coded
        It accepts columns of text that are categories.
    public
        Tables of counts, of ranks of planted strings and of states, from which nothing
        is withheld.
    file
        File of its evidence in ``scores/``, if not named after the audit.
    covers
        Of an audit that attacks a checkpoint: the metric and the field of its rows that
        count what was tested. None: the audit only describes.
    memory
        Whether it tests memory.
    claims
        Whether it can make a claim.
    unit, frameworks
        Unit of its smallest effects as readers see it; the requirements of frameworks
        that it serves.
    slow
        It takes most of the time, so ``all`` runs it only on request.
    """

    name: ClassVar[str] = ""
    metrics: ClassVar[tuple[Metric, ...]] = ()
    columns: ClassVar[tuple[str, ...]] = ("checkpoint",)
    nothing: ClassVar[str] = "the manifest contains nothing for this audit"
    unscored: ClassVar[str] = "the texts for this audit were not scored"
    alone: ClassVar[str] = ""
    over: ClassVar[str] = "pooled over training rows"
    scope: ClassVar[tuple[str, ...]] = ()
    chance: ClassVar[bool] = False
    wide: ClassVar[bool] = False
    counts: ClassVar[str] = "tokens"
    of_series: ClassVar[bool] = False
    in_turns: ClassVar[bool] = True
    coded: ClassVar[bool] = False
    public: ClassVar[tuple[str, ...]] = ()
    file: ClassVar[str] = ""
    covers: ClassVar[tuple[str, str] | None] = None
    memory: ClassVar[bool] = False
    claims: ClassVar[bool] = True
    unit: ClassVar[str] = ""
    frameworks: ClassVar[str] = ""
    slow: ClassVar[bool] = False

    @classmethod
    def metric(cls, name: str) -> Metric:
        """The metric of a name; an unknown one has its name only."""
        return by_name(cls.metrics).get(name) or Metric(name)

    @classmethod
    def evidence_file(cls) -> str:
        """Name of its evidence in ``scores/``."""
        return cls.file or f"{cls.name}.parquet"

    @abstractmethod
    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """The texts that each pass must score."""

    @abstractmethod
    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Iterator[pd.DataFrame]:
        """Tables without text that :meth:`conclude` needs, one checkpoint at a time."""

    @abstractmethod
    def conclude(self, evidence: pd.DataFrame, context: Context) -> AuditResult:
        """Rows, contrasts, guards and findings."""

    def turn(self, evidence: pd.DataFrame, context: Context) -> AuditResult:
        """:meth:`conclude` without the parts that need all checkpoints."""
        return self.conclude(evidence, context)

    def finish(self, result: AuditResult, context: Context) -> AuditResult:
        """The result of all turns, with the parts that need all checkpoints."""
        del context
        return result

    def further(
        self, result: AuditResult, tables: Tables, manifest: Manifest, context: Context
    ) -> AuditResult:
        """The result, with the parts that need the manifest."""
        del tables, manifest, context
        return result

    def check_names(self, names: Sequence[str]) -> None:
        """Reject options that name an unknown checkpoint."""
        del names

    def why_nothing(self, manifest: Manifest) -> str:
        """Why the manifest contains nothing to score."""
        del manifest
        return self.nothing

    def replicates_of(self, preset: str) -> int:
        """Replicates of the bootstrap."""
        return replicates(preset)

    def run(
        self,
        tables: Tables,
        manifest: Manifest | Path | str,
        *,
        baseline: Baseline = None,
        preset: str | None = None,
        seed: int = 0,
        spare: Callable[[], Path] | None = None,
    ) -> AuditResult:
        """Audit the scores of checkpoints.

        Parameters
        ----------
        tables
            Checkpoint -> pass -> scores; of one checkpoint ``{name: sa.score(...)}``.
        manifest
            The manifest that the tables were scored from, or its path.
        baseline
            Checkpoint that the others are compared with, or one for each.
        preset
            robust or paper; default: the manifest's.
        seed
            Random seed.
        spare
            Creates a file for evidence that is too large for memory.
        """
        check_tables(tables)
        whole = original(load_manifest(manifest))
        preset = preset or whole.settings.preset
        count = self.replicates_of(preset)
        context = Context({}, preset == "paper", seed, count)
        evidence = made(self, tables, whole, context, spare)
        names = list(
            dict.fromkeys(map(series_of, tables) if self.of_series else tables)
        )
        result = AuditResult()
        if len(evidence):
            seen = set(names_in(evidence))
            seen |= set(map(series_of, seen)) if self.of_series else set()
            pairs = baselines_of(baseline, (name for name in names if name in seen))
            result = concluded(self, evidence, replace(context, baselines=pairs))
        audited = {row.checkpoint for row in result.rows}
        if absent := [name for name in names if name not in audited]:
            reason = getattr(tables.get(absent[0]), "lacks", self.unscored)
            if not self.plan(whole, paper=context.paper):
                reason = self.why_nothing(whole)
            missing = missing_rows(self.name, absent, self.metrics, reason)
            unknown = Finding.not_tested(self.name, "not_estimable", reason=reason)
            findings = [unknown] if reason and not len(evidence) else result.findings
            result = replace(result, rows=[*result.rows, *missing], findings=findings)
        options = asdict(self)
        if "replicates" in options:
            options["replicates"] = count
        kept: Any = evidence  # stored evidence, where it is too large for a frame
        result = replace(result, settings=options, evidence=kept)
        result = self.further(result, tables, whole, context)
        findings = corrected(result.findings)
        rows = at_level(result.rows, findings)
        return replace(result, findings=findings, rows=rows)


def check_tables(tables: object) -> None:
    """Reject scores of a single checkpoint, which would give an empty result.

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


def replicates(preset: str | None) -> int:
    """Bootstrap replicates of a preset (SPARK: 2,000)."""
    return 2000 if preset == "paper" else 9999


def missing_rows(
    audit: str, names: Iterable[str], metrics: Iterable[Metric], reason: str
) -> list[Row]:
    """Pooled rows without a figure, with the reason."""
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


def made(
    audit: Audit,
    tables: Tables,
    manifest: Manifest,
    context: Context,
    spare: Callable[[], Path] | None,
) -> Evidence:
    """The evidence of an audit, in a file where it is too large for memory."""
    frames = audit.evidence(tables, manifest, context)
    if spare is None or not audit.in_turns:
        return joined(frames, audit.columns)
    return stored(frames, spare)


def concluded(audit: Audit, evidence: Evidence, context: Context) -> AuditResult:
    """What an audit concludes, in turns where the evidence is not held at once."""
    if not isinstance(evidence, StoredEvidence):
        return audit.conclude(evidence, context)
    whose, baselines = series_of if audit.of_series else str, context.baselines
    result = AuditResult()
    for unit in _units(evidence.names, whose):
        series = dict.fromkeys(map(whose, unit))
        pairs = {name: baselines[name] for name in series if name in baselines}
        # A method's replicates are averaged, and so are those that it is compared with.
        others = {entry_of(name) for name in pairs.values()}
        seen = {n for n in evidence.names if n in unit or entry_of(whose(n)) in others}
        # Without a name: what a turn saw is gone before the next is read.
        turn = audit.turn(
            evidence.of({*seen, BASE}, coded=audit.coded),
            replace(context, baselines=pairs),
        )
        result = _with(result, turn, {*unit, *series, *map(entry_of, series)})
    return audit.finish(result, context)


def _units(names: Iterable[str], whose: Callable[[str], str]) -> Iterator[list[str]]:
    """Checkpoints by method: replicates of one are concluded on together."""
    by_entry: dict[str, list[str]] = {}
    for name in names:
        by_entry.setdefault(entry_of(whose(name)), []).append(name)
    yield from by_entry.values()


def _with(made: AuditResult, result: AuditResult, own: set[str]) -> AuditResult:
    """What was said before, and what a turn says of its own or of no checkpoint."""

    def fresh(before: list[Any], now: Sequence[Any]) -> list[Any]:
        general = [x for x in now if not x.checkpoint and x not in before]
        return [*before, *general, *(x for x in now if x.checkpoint in own)]

    tables = dict(made.tables)
    for name, records in result.tables.items():
        if records and "checkpoint" in records[0]:
            mine = [record for record in records if record["checkpoint"] in own]
            tables[name] = [*tables.get(name, []), *mine]
        else:
            tables.setdefault(name, records)
    return replace(
        made,
        rows=fresh(made.rows, result.rows),
        contrasts=fresh(made.contrasts, result.contrasts),
        guards=fresh(made.guards, result.guards),
        findings=fresh(made.findings, result.findings),
        scope=list(dict.fromkeys([*made.scope, *result.scope])),
        tables=tables,
    )
