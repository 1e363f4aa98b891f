"""The base class of audits: a frozen dataclass whose fields are its options.

A subclass names its metrics and has three methods. ``plan`` lists the texts that each
pass must score. ``evidence`` lists the units that are audited, without text, and their
scores by checkpoint. ``conclude`` turns these into figures and findings; reports are
compared from evidence alone. No audit uses a model. Claims become final once they are
corrected over all primary tests of a report
(:func:`~spark_audit.audits.claims.corrected`).

The command line calls these methods itself; ``Audit.__call__`` does all of it at once
in Python. A further attribute that only some audits set goes into :class:`Audit`, with
a default and a line of its docstring. docs/contributing/adding.md shows a whole audit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from spark_audit.arguments import CheckedFields
from spark_audit.audits.audit_inputs import Context as Context
from spark_audit.audits.audit_inputs import Plan as Plan
from spark_audit.audits.audit_inputs import Tables as Tables
from spark_audit.audits.audit_inputs import check_tables
from spark_audit.audits.audit_inputs import scored as scored
from spark_audit.audits.baselines import Baseline as Baseline
from spark_audit.audits.baselines import baselines_of as baselines_of
from spark_audit.audits.baselines import originals as originals
from spark_audit.audits.baselines import with_base as with_base
from spark_audit.audits.claims import at_level, corrected
from spark_audit.audits.first_answers import FirstAnswer
from spark_audit.audits.groups.answers import answers_by_group
from spark_audit.audits.metric_rows import MetricRows
from spark_audit.audits.metrics import LatexColumn as LatexColumn
from spark_audit.audits.metrics import Metric as Metric
from spark_audit.audits.planned_effects import AuditSizes, PlannedEffect
from spark_audit.manifest.file import original, read_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.names import series_of
from spark_audit.results import (
    AuditResult,
    Claim,
    Finding,
    Hits,
    Report,
    Row,
)
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import Fact
from spark_audit.results.rows import ROW_GROUP
from spark_audit.sentences.effects import signed_effect

if TYPE_CHECKING:
    import pandas as pd

TableRule: TypeAlias = Literal["digits", "points", "dropped"]
"""How shared files hold a table of an audit.

Without a rule, figures are rounded as the number of clusters allows, and figures of few
clusters are withheld. ``digits``: figures only lose digits, since they are about
planted strings or count answers. ``points``: floats are percentage points, and whole
numbers count parts of identifiers. ``dropped``: records of few clusters are left out,
since they say nothing without their figure.
"""


@dataclass(frozen=True, kw_only=True)
class Audit(MetricRows, CheckedFields, ABC):
    """One audit. Its fields are the options; ``Annotated`` holds the help text.

    States, disclosure, LaTeX, first screen, gate and command line read these class
    attributes and class methods. No module outside of ``audits`` knows an audit by its
    name. In this class "it" is the audit, and a name is that of a checkpoint.

    Attributes
    ----------
    name
        Its name in reports and commands.
    metrics
        What it estimates, in the order of reports.
    nothing, unscored
        Why a checkpoint has no figure: ``nothing`` if the manifest contains nothing to
        score, ``unscored`` if the texts were not scored. Without a reason the report
        omits the audit.
    why_not_alone
        Why a request of this audit alone is refused where no series is given; empty:
        it looks at checkpoints that are no series, too.
    over
        What the figures of the group ``pooled`` are pooled over, in words.
    chance
        Whether its null values are chance, not figures of another row.
    wide
        Whether its tables have one column per variant.
    counts
        What ``n`` of such a table counts.
    of_series
        Whether it uses all stages of a series.
    reads_stages
        Whether an audit that is of no series reads the scores of the stages of series,
        too, where other audits had them scored; it plans none there.
    of_files
        Whether it looks at files of text, which take the place of checkpoints, and at
        no model. Its evidence is made without scores.
    sees_base
        Whether an audit of series looks at the base, too; the others always do.
    sees_relearned_base
        Whether it looks at the relearned base, too, which no other audit does.
    file
        Name of its evidence file in ``scores/``, if that is not the audit's name.
    unit
        Unit of its smallest effects as readers see it.
    independent_units
        The units that its intervals are over and that ``clusters`` of a row counts, in
        words.
    example
        Arguments of its command in the example of ``--help``; empty: the usual ones.
    words
        Sentences by their keys, of an audit that no package registers: one that is
        written in a notebook. Those of a package stand in a file beside it.

    covers
        For an audit that attacks a checkpoint: the metric, and the field of its rows,
        that count the tested units. Such an audit has sentences ``attack`` and
        ``asks``. None: the audit only describes.
    sides
        Names of the facts that count trained and held-out units in its findings.
    attacks_identifiers
        Whether the attack is on identifiers of people, not on rows or planted strings.
    needs_canaries
        Whether the attack is on planted strings, which the next training run can plant
        if there are none.
    strongest_claim
        The severest claim that it can make about a checkpoint; None: no claim of it is
        about training.
    memory
        Whether it tests memory.
    memory_metric
        Metric whose rows over sources the memory plot and the first screen show, in
        nats per token; below 0 is more memory. Empty: it has no such metric.
    claims
        Whether its findings can make a claim.
    voided_by_setup
        Whether a failed setup guard voids its figures. That is so if it compares with
        the base, or trained rows with held-out ones.
    naming_score
        Variant of its scores that names single rows as trained on; empty: none.
    verdicts
        Words that it has for what it concludes of a checkpoint, in the order in which
        they are decided; empty: its claims alone. Rules of the gate name them.
    asks_for
        What an endpoint is asked for that gives only text; empty: nothing can be
        concluded from text.
    bracket
        What its variants are, in a word that rules of the gate write in brackets, as
        ``access`` in ``[access=answers]``. Its tables then have the lines of a
        checkpoint together, with the words ``variant.NAME.VARIANT``; empty: neither.
    bracket_names
        Further names of variants in brackets -> the variant.
    short_rule
        A word that stands for its first metric in rules with brackets, as
        ``membership`` in ``membership[access=answers] > 0.6``; empty: none.
    group_rule
        A word, and the metric and variant that it stands for in rules on groups of
        rows, as ``memory[group=de] < -0.1``. The audit then has the option ``by``.
    counts_in_groups
        What ``n`` of a figure by group counts, in words.
    outcome_table
        A table of its report whose column ``says`` stands behind the figures of the
        same ``checkpoint`` and ``variant``; empty: none.

    disclosure_step
        Least number of steps by which shared files round a share. It is 2 where a row
        or span is in or out, since a count would follow from one step, and 1 where
        tokens are counted.
    table_rules
        Rules for tables in shared files; :data:`TableRule` says what holds without one.

    latex_table, latex
        Name of its LaTeX table, if that is not the audit's, and its columns. Without
        columns there is no table.
    latex_variants
        Sign of what its variants are, if each has lines of its own in the LaTeX table,
        as ``σ``; its columns then have no variant. Empty: variants are columns.
    latex_records
        Further tables of its report that LaTeX has too, by name.
    latex_place
        Tables with a lower number come first; tables with the same number are in the
        order of their audits.
    """

    name: ClassVar[str] = ""
    metrics: ClassVar[tuple[Metric, ...]] = ()
    nothing: ClassVar[str] = "the manifest contains nothing for this audit"
    unscored: ClassVar[str] = "the texts for this audit were not scored"
    why_not_alone: ClassVar[str] = ""
    over: ClassVar[str] = "pooled over training rows"
    chance: ClassVar[bool] = False
    wide: ClassVar[bool] = False
    counts: ClassVar[str] = "tokens"
    of_series: ClassVar[bool] = False
    reads_stages: ClassVar[bool] = False
    of_files: ClassVar[bool] = False
    sees_base: ClassVar[bool] = True
    sees_relearned_base: ClassVar[bool] = False
    file: ClassVar[str] = ""
    unit: ClassVar[str] = ""
    independent_units: ClassVar[str] = "clusters"
    example: ClassVar[str] = ""
    words: ClassVar[Mapping[str, object]] = {}

    covers: ClassVar[tuple[str, str] | None] = None
    sides: ClassVar[tuple[str, str]] = ("trained", "held_out")
    attacks_identifiers: ClassVar[bool] = False
    needs_canaries: ClassVar[bool] = False
    strongest_claim: ClassVar[Claim | None] = None
    memory: ClassVar[bool] = False
    memory_metric: ClassVar[str] = ""
    claims: ClassVar[bool] = True
    voided_by_setup: ClassVar[bool] = True
    naming_score: ClassVar[str] = ""
    verdicts: ClassVar[tuple[str, ...]] = ()
    asks_for: ClassVar[Literal["", "identifiers", "canaries"]] = ""
    bracket: ClassVar[str] = ""
    bracket_names: ClassVar[Mapping[str, str]] = {}
    short_rule: ClassVar[str] = ""
    group_rule: ClassVar[tuple[str, str, str]] = ("", "", "")
    counts_in_groups: ClassVar[str] = "tokens"
    outcome_table: ClassVar[str] = ""

    disclosure_step: ClassVar[int] = 2
    table_rules: ClassVar[Mapping[str, TableRule]] = {}

    latex_table: ClassVar[str] = ""
    latex_variants: ClassVar[str] = ""
    latex_records: ClassVar[tuple[str, ...]] = ()
    latex_place: ClassVar[int] = 0
    latex: ClassVar[tuple[LatexColumn, ...]] = ()

    def __post_init__(self) -> None:
        """Refuse an option of a wrong type; an audit with more checks calls this."""
        self.check_fields()

    @classmethod
    def planned_effects(
        cls, sizes: AuditSizes, *, significance: float
    ) -> Sequence[PlannedEffect]:
        """Return what its tests would detect, before there is a checkpoint.

        The first one is of its claim; without any, it cannot be planned.
        ``significance`` is the largest p that is a detection.
        """
        del sizes, significance
        return ()

    @classmethod
    def effect_in_cell(cls, size: float, unit: str) -> str:
        """Return an effect as a cell of the matrix shows it, such as ``+12%``.

        Parameters
        ----------
        size
            How far a figure is from no effect; above 0 is more of a leak.
        """
        return signed_effect(size, unit)

    @classmethod
    def compared_with(cls, finding: Finding) -> str:
        """Return the comparison of an effect, for audits that have several.

        Returns
        -------
        str
            The last part of the key ``audit.NAME.than.PART``, such as ``base``. Empty:
            ``audit.NAME.than`` covers all effects, or there is no comparison.
        """
        del finding
        return ""

    @classmethod
    def verdict_of(cls, finding: Finding) -> str:
        """Return the word of ``verdicts`` for a finding; empty: it has none.

        It is asked for once the claim is corrected over the report, and again once
        setup guards have voided claims.
        """
        del finding
        return ""

    @classmethod
    def is_reference(cls, finding: Finding) -> bool:
        """Return whether a finding is on a checkpoint that others are compared with.

        Such a checkpoint is not under test: a report gives it no state, and no rule of
        the gate judges its claims.
        """
        del finding
        return False

    @classmethod
    def answers(cls, report: Report) -> Sequence[FirstAnswer]:
        """Return what answers its question in words on the first screen.

        Without words of its own it says what it found by group of rows, if it has.
        """
        return answers_by_group(report, cls.name)

    @classmethod
    def found_places(cls, evidence: Evidence) -> pd.DataFrame | None:
        """Return the places at which it found single strings or rows.

        They are for the owner of the data alone: columns ``checkpoint``, and whatever
        leads to a place. ``None``: it knows no places.
        """
        del evidence
        return None

    @classmethod
    def size_of(cls, fact: Fact) -> int | None:
        """Return the size that a fact of ``sides`` states; None if it states none.

        For a row this is the count that ``covers`` names, for hits the possible number.
        """
        if isinstance(fact, Row):
            # `covers` is a metric, and the field of its rows that counts units.
            counts_clusters = cls.covers is not None and cls.covers[1] == "clusters"
            return fact.clusters if counts_clusters else fact.n
        if isinstance(fact, Hits):
            return fact.of

        # In Python a bool is an int, but it is no count.
        if isinstance(fact, int) and not isinstance(fact, bool):
            return fact
        return None

    @classmethod
    def is_of_nobody(cls, unit: str) -> bool:
        """Return whether figures in a unit concern no person and keep all digits.

        Figures of planted strings and counts of right answers concern no person.
        """
        del unit
        return False

    @classmethod
    def whole_of(cls, metric: str, of: str) -> tuple[str, str, str] | None:
        """Return the figure of all identifiers, for a figure of a part of them.

        Returns
        -------
        Audit, metric and variant. ``None``: there is no such figure. Shared files look
        at both: their difference is the figure of the rest, which may be few.
        """
        del metric, of
        return None

    @classmethod
    def latex_tables(
        cls, rows: Sequence[Row], findings: Sequence[Finding], *, paper: bool
    ) -> Mapping[str, Sequence[LatexColumn]]:
        """Return the columns of each of its LaTeX tables, by name; mostly it has one.

        The parameters are those of :meth:`latex_columns`.
        """
        columns = cls.latex_columns(rows, findings, paper=paper)
        tables = {cls.latex_table or cls.name: columns}
        if by_group := cls._latex_columns_by_group(rows):
            tables[f"{cls.name}_groups"] = by_group
        return tables

    @classmethod
    def _latex_columns_by_group(cls, rows: Sequence[Row]) -> list[LatexColumn]:
        """Return a column for each group of rows that the audit has a figure of."""
        _, metric, variant = cls.group_rule
        columns = {}
        for row in rows:
            is_figure = (row.metric, row.variant) == (metric, variant)
            if row.audit == cls.name and is_figure and row.group_kind == ROW_GROUP:
                columns[row.group] = LatexColumn(
                    header=row.group_value,
                    metric=metric,
                    variant=variant,
                    group=row.group,
                    counted=cls.counts_in_groups,
                )
        return list(columns.values())

    @classmethod
    def latex_columns(
        cls, rows: Sequence[Row], findings: Sequence[Finding], *, paper: bool
    ) -> Sequence[LatexColumn]:
        """Return the columns of its LaTeX table, for the rows of a report.

        Parameters
        ----------
        rows, findings
            All rows and findings of the report.
        paper
            Whether the report has the tables of SPARK's paper.
        """
        del rows, findings, paper
        return cls.latex

    @property
    def inputs(self) -> Sequence[Path]:
        """Files that its options name, beside the checkpoints."""
        return ()

    @classmethod
    def evidence_file(cls) -> str:
        """Return the name of its evidence in ``scores/``."""
        return cls.file or f"{cls.name}.parquet"

    @abstractmethod
    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return the texts that each pass must score.

        Parameters
        ----------
        paper
            Whether the preset is that of SPARK's paper.
        """

    @abstractmethod
    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return the audited units, without text, and their scores by checkpoint.

        :meth:`conclude` gets nothing else, and reports are compared from it. Its
        columns are described by the audit's class.
        """

    @abstractmethod
    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return rows, contrasts, guards and findings.

        Evidence of several reports may have units that a checkpoint was not scored on:
        their scores are NaN.
        """

    @property
    def variants(self) -> Sequence[str] | None:
        """Variants of rows of a checkpoint without figures; None: as metrics say."""
        return None

    def check_names(self, names: Sequence[str]) -> None:
        """Reject options that name an unknown checkpoint."""
        del names

    def check_manifest(self, manifest: Manifest) -> None:
        """Reject options that do not fit the whole manifest, before any scoring."""
        del manifest

    def rows_to_forget(self, manifest: Manifest) -> frozenset[str]:
        """Return the ids of trained rows that a checkpoint should have forgotten.

        Setup guards do not expect them to be learned, nor to be likely.
        """
        del manifest
        return frozenset()

    def why_nothing(self, manifest: Manifest) -> str:
        """Return why the manifest contains nothing to score."""
        return self.nothing

    def replicates_of(self, preset: str) -> int:
        """Return the replicates of the bootstrap (SPARK: 2,000)."""
        return 2000 if preset == "paper" else 9999

    def __call__(
        self,
        tables: Tables,
        manifest: Manifest | Path | str,
        *,
        baseline: Baseline = None,
        preset: str | None = None,
        seed: int = 0,
    ) -> AuditResult:
        """Audit the scores of checkpoints, with claims corrected over this audit alone.

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

        Raises
        ------
        ArgumentError
            If the tables are not by checkpoint and pass.
        """
        check_tables(tables)
        full_manifest = original(read_manifest(manifest))
        preset = preset or full_manifest.settings.preset
        context = Context(
            baselines={},
            paper=preset == "paper",
            seed=seed,
            replicates=self.replicates_of(preset),
        )
        evidence = self.evidence(tables, full_manifest, context)

        # Conclude, if there is anything to conclude from.
        names = self._names_in_results(tables)
        result = AuditResult()
        if len(evidence):
            pairs = baselines_of(baseline, self._scored_names(names, evidence))
            result = self.conclude(evidence, replace(context, baselines=pairs))
        result = replace(result, evidence=evidence)

        # Checkpoints without a figure have rows with the reason.
        with_figures = {row.checkpoint for row in result.results}
        absent = [name for name in names if name not in with_figures]
        if absent:
            # All of them lack figures for the reason of the first.
            reason = self._why_absent(tables.get(absent[0]), full_manifest, context)
            result = self._with_absent(result, absent, reason)

        # Note the settings used, and correct the claims over all findings.
        options = asdict(self)
        if "replicates" in options:
            options["replicates"] = context.replicates
        findings = []
        for finding in corrected(result.findings):
            verdict = self.verdict_of(finding)
            findings.append(finding.copy_unchecked(verdict=verdict))
        return replace(
            result,
            settings={**options, **result.settings},
            findings=findings,
            results=at_level(result.results, findings),
        )

    def _names_in_results(self, checkpoints: Iterable[str]) -> list[str]:
        """Return names as results have them: of checkpoints, or of their series."""
        if self.of_series or self.reads_stages:
            checkpoints = [series_of(name) for name in checkpoints]
        return list(dict.fromkeys(checkpoints))

    def _scored_names(self, names: Iterable[str], evidence: Evidence) -> list[str]:
        """Return the names of which the evidence has scores."""
        of_evidence = self._names_in_results(evidence.checkpoints)
        scored_names = {*evidence.checkpoints, *of_evidence}
        return [name for name in names if name in scored_names]

    def _with_absent(
        self, result: AuditResult, absent: Sequence[str], reason: str
    ) -> AuditResult:
        """Return a result with the reason why checkpoints have no figure.

        Parameters
        ----------
        absent
            Names of these checkpoints.
        reason
            Empty: the audit stays silent about checkpoints without a figure.
        """
        rows = self.missing(absent, reason, variants=self.variants)
        result = replace(result, results=[*result.results, *rows])

        # Without evidence nothing was concluded, so that this is the only finding.
        has_evidence = result.evidence is not None and len(result.evidence) > 0
        if reason and not has_evidence:
            finding = Finding.not_tested(self.name, "not_estimable", reason=reason)
            result = replace(result, findings=[finding])
        return result

    def _why_absent(
        self, passes: object | None, manifest: Manifest, context: Context
    ) -> str:
        """Return why a checkpoint has no figure.

        Parameters
        ----------
        passes
            Its scores by pass. Those of a served checkpoint may say the reason
            themselves (``lacks`` of ``scoring.store.Scores``).
        """
        if not self.plan(manifest, paper=context.paper):
            return self.why_nothing(manifest)
        return getattr(passes, "lacks", "") or self.unscored
