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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_audit.names import CheckpointName, entry_of

if TYPE_CHECKING:
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
    partner
        Metric that it is shown with or not at all: from the one the other may follow.
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
    partner: str = ""
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
    public
        Tables of counts, of ranks of planted strings and of states: nothing of them is
        withheld.
    file
        Its evidence in ``scores/``, if that is not called as the audit is.
    covers
        Of an audit that attacks a checkpoint: the metric whose figures tell on how
        much, and the field of its rows that counts it. Empty: it only describes.
    memory
        Whether its tests are of what was remembered.
    claims
        Whether anything is claimed from it.
    unit, frames
        Unit of its smallest effects as readers see it; where frameworks ask for it.
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
    public: tuple[str, ...] = ()
    file: str = ""
    covers: tuple[str, str] | None = None
    memory: bool = False
    claims: bool = True
    unit: str = ""
    frames: str = ""
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
