"""The audit of erasure: whether what should be forgotten really was.

Rows that a model was trained on and should have forgotten are compared with rows that
it never read, on the model before erasure, on each one after it, and on copies of these
(``--relearn``, ``--quantize``). Each model after erasure gets a verdict
(:mod:`~spark_audit.audits.erasure.verdicts`), with an error of at most 5%.

==================  ====================================================================
file                what stands there
==================  ====================================================================
``forget_set``      which rows should be forgotten
``units``           parts of rows, on three sides: the evidence
``comparison``      the remaining difference, and the tests on it
``setup``           mistakes of the setup
``verdicts``        what the tests come to
``conclusions``     findings on all checkpoints, chosen together
``findings``        one finding, and the words of verdicts
``figures``         costs, and scores that papers on unlearning report
``tables``          tests by part, requests, and counts of rows
``named_persons``   how many persons the forget set names
``field_scores``    those scores, for one row
``ranked_twins``    identifiers among their twins, where these were scored
``answers``         what the first screen says
==================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from cyclopts import Parameter

from spark_audit.audits.base import (
    Audit,
    Context,
    LatexColumn,
    Metric,
    Plan,
    Tables,
    scored,
)
from spark_audit.audits.erasure.answers import first_screen_answers
from spark_audit.audits.erasure.comparison import (
    ErasureComparison,
)
from spark_audit.audits.erasure.conclusions import (
    concluded_checkpoints,
    key_of_reference,
    not_scored,
)
from spark_audit.audits.erasure.figures import (
    NO_RANKS,
    cost_estimates,
    field_estimates,
    privleak_estimate,
)
from spark_audit.audits.erasure.findings import (
    VERDICTS,
    CheckpointFigures,
    is_reference,
    verdict_of,
)
from spark_audit.audits.erasure.forget_set import (
    check_forget_set,
    file_of,
    forget_set,
    is_file,
    requests_of,
)
from spark_audit.audits.erasure.named_persons import n_named_persons
from spark_audit.audits.erasure.ranked_twins import ranked_twins
from spark_audit.audits.erasure.setup import setup_result
from spark_audit.audits.erasure.tables import (
    request_records,
    row_counts,
)
from spark_audit.audits.erasure.units import (
    FORGET,
    IDENTIFIERS,
    RESPONSE,
    RETAINED,
    ROW,
    RowSides,
    erasure_units,
    sides_of_rows,
    with_twins,
)
from spark_audit.audits.erasure.verdicts import (
    Margin,
    margin_of,
)
from spark_audit.audits.first_answers import FirstAnswer
from spark_audit.errors import InputError
from spark_audit.manifest.schema import Manifest
from spark_audit.names import (
    BASE,
    NEVER,
    RELEARNED_BASE,
    check_known,
    is_untrained,
)
from spark_audit.results import AuditResult, Finding, Report, Row
from spark_audit.results.audit_result import TableRecord
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import rate_estimate

COMPARED_WITH = "the other checkpoints are compared with it"
"""Why the base has no figure."""

COMPARED_PARTS = (ROW, RESPONSE, IDENTIFIERS)
"""Variants of the remaining difference."""

SIDES = (FORGET, NEVER, RETAINED)
"""Variants of figures by side of the rows."""

_of_parts = partial(Metric, unit="nats", variants=COMPARED_PARTS)
_share_by_side = partial(Metric, bounds=(0.0, 1.0), learned=1)
_field_score = partial(_share_by_side, variants=SIDES, remarked=True)


@dataclass(frozen=True, kw_only=True)
class Erasure(Audit):
    """Whether rows that should be forgotten can be told from rows never trained on.

    The evidence is one line per checkpoint and part of a row: the columns are
    ``ERASURE_COLUMNS`` of :mod:`~spark_audit.audits.erasure.units`, and the scores
    those of ``ErasureUnits.scores`` there. Facts of the evidence: ``vocabulary``,
    tokens that a model chooses from; ``left_out`` and ``shared``, the counts
    ``n_left_out`` and ``n_shared`` of ``ErasureUnits``; ``persons``, the number of
    persons or sources that the forget set names, or 0.

    For the class attributes see :class:`~spark_audit.audits.base.Audit`.
    """

    name = "erasure"
    metrics = (
        _of_parts(
            "remaining",
            learned=-1,
            no_effect=0.0,
            missing=(ROW,),
            glance=(ROW, IDENTIFIERS),
        ),
        Metric("change", "nats", learned=-1, variants=(FORGET, NEVER), remarked=True),
        Metric("rise", "bits", learned=1, no_effect=0.0),
        Metric("margin", "nats", alone=True, is_chosen=True),
        Metric("smallest_margin", "nats", alone=True),
        Metric("cost", "nats", variants=(RETAINED, NEVER)),
        _share_by_side("written", rate=True, variants=(FORGET, NEVER)),
        Metric(
            "auc",
            "AUC",
            bounds=(0.0, 1.0),
            learned=1,
            no_effect=0.5,
            variants=("row", "mink40"),
        ),
        _field_score("exact_memorisation"),
        _field_score("extraction_strength"),
        Metric("privleak", "%", learned=-1, no_effect=0.0),
    )
    nothing = "the manifest has no row to forget, or none was held out to compare with"
    unscored = "its texts were not scored"
    over = "forget rows compared with held-out rows"
    counts = "tokens"
    sees_relearned_base = True
    covers = ("remaining", "clusters")
    sides = ("forget", "held_out")
    strongest_claim = "memory"
    memory = True
    unit = "nats per token"
    latex = (
        LatexColumn("Remaining ≈0", "remaining", ROW),
        LatexColumn("Identifiers ≈0", "remaining", IDENTIFIERS),
        LatexColumn("Cost ↓", "cost", RETAINED),
        LatexColumn("AUC ≈0.5", "auc", ROW, counted="rows"),
        LatexColumn("EM", "exact_memorisation", FORGET, counted="rows"),
        LatexColumn("ES", "extraction_strength", FORGET, counted="rows"),
        LatexColumn("privleak ≈0", "privleak", counted="rows"),
    )
    example = (
        "erasure --ckpt before=runs/m0 after=runs/m1 --base models/base "
        "--before before --forget ids.txt"
    )
    verdicts = VERDICTS

    forget: Annotated[
        tuple[str, ...],
        Parameter(
            metavar="FILE|task=NAME|stage=K...",
            help="what should be forgotten: a file of ids (of rows, sources or "
            "persons), a task, or the task of a stage",
        ),
    ] = ()
    before: Annotated[
        str | None,
        Parameter(metavar="NAME", help="the checkpoint before erasure"),
    ] = None
    retrained: Annotated[
        str | None,
        Parameter(
            metavar="NAME",
            help="a checkpoint that was trained again without these rows, to compare "
            "with",
        ),
    ] = None
    margin: Annotated[
        float | None,
        Parameter(
            metavar="X",
            help="nats per token up to which a difference counts as erased, chosen "
            "beforehand; default: a quarter of what the one before erasure remembers",
        ),
    ] = None
    order: Annotated[
        str | None,
        "tasks in training order: t1,t2; default: the order of the training runs",
    ] = None

    def __post_init__(self) -> None:
        """Refuse a margin that is no size, when the command line is read.

        In Python one request may be given as it is, and a path as a path.
        """
        given = self.forget
        requests = [given] if isinstance(given, str | Path) else given
        texts = [
            str(request) if isinstance(request, Path) else request
            for request in requests
        ]
        # A frozen dataclass sets its own fields by object's method.
        object.__setattr__(self, "forget", tuple(texts))
        super().__post_init__()
        if self.margin is not None and not 0 < self.margin < np.inf:
            raise InputError(
                f"{self.margin} is no margin",
                where="--margin",
                fix="give nats per token, above 0",
            )

    @classmethod
    def verdict_of(cls, finding: Finding) -> str:
        """Return the verdict of a finding of it; see the file ``findings``."""
        return verdict_of(finding)

    @classmethod
    def is_reference(cls, finding: Finding) -> bool:
        """Return whether a finding is on the model before erasure or a retrained one.

        See :meth:`spark_audit.audits.base.Audit.is_reference`.
        """
        return is_reference(finding)

    @classmethod
    def answers(cls, report: Report) -> Sequence[FirstAnswer]:
        """Return what was to be forgotten, and what is left of it in each checkpoint.

        See :meth:`spark_audit.audits.base.Audit.answers`.
        """
        return first_screen_answers(report)

    @property
    def inputs(self) -> list[Path]:
        return [file_of(text) for text in self.forget if is_file(text)]

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse a missing forget set, and names of no checkpoint, before scoring."""
        requests_of(self.forget)
        if self.before is None:
            raise InputError(
                "the checkpoint before erasure is not named",
                where="--before",
                fix="give its name among --ckpt: memory is measured on it",
            )
        check_known(self.before, names, where="--before")
        if self.retrained is not None:
            check_known(self.retrained, names, where="--retrained")

        if self.retrained == self.before:
            raise InputError(
                "is the checkpoint before erasure",
                where="--retrained",
                fix="name one that was trained without the forget rows",
            )
        if not any(name not in (self.before, self.retrained, BASE) for name in names):
            raise InputError(
                "no checkpoint after erasure is given",
                where="--ckpt",
                fix="give at least one besides those of --before and --retrained",
            )

    def check_manifest(self, manifest: Manifest) -> None:
        """Refuse ids, tasks and stages that the manifest does not have."""
        check_forget_set(requests_of(self.forget), manifest, self.order)

    def rows_to_forget(self, manifest: Manifest) -> frozenset[str]:
        """Return the ids of the forget rows."""
        return frozenset(self._rows(manifest).request_by_row)

    def _rows(self, manifest: Manifest) -> RowSides:
        """Return the rows of a manifest by side; none without a forget set."""
        requests = requests_of(self.forget) if self.forget else []
        return sides_of_rows(manifest, forget_set(requests, manifest, self.order))

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return forget rows, held-out rows and retained rows, for the plain pass."""
        rows = self._rows(manifest)
        return {Pass(): rows.ids} if rows.can_be_compared else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return the parts of rows, and their scores by each checkpoint."""
        rows = self._rows(manifest)
        if not rows.can_be_compared:
            return Evidence()
        units = erasure_units(manifest, rows)
        frame = units.frame
        twins = ranked_twins(
            tables,
            manifest,
            context,
            forget=rows.request_by_row,
            strings_of_retained=units.strings_of_retained,
        )
        if twins is not None:
            frame = with_twins(frame, twins)

        def measured() -> Measured:
            """Yield the scores of all units, checkpoint by checkpoint."""
            n_others = len(units.frame)
            for name, table in scored(tables):
                scores = {
                    score: np.pad(
                        values, (0, len(frame) - n_others), constant_values=np.nan
                    )
                    for score, values in units.scores(manifest, table).items()
                }
                scores["exposure"] = np.full(len(frame), np.nan)
                if twins is not None and name in twins.exposure_by_checkpoint:
                    exposure = twins.exposure_by_checkpoint[name]
                    scores["exposure"][n_others:] = exposure
                yield name, scores

        facts = {
            "vocabulary": manifest.reference.usable_vocab,
            "left_out": units.n_left_out,
            "shared": units.n_shared,
            "persons": n_named_persons(requests_of(self.forget), manifest),
        }
        return Evidence.of(frame, measured(), facts)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return figures, guards, findings and tables from the evidence alone."""
        comparison = ErasureComparison(
            evidence, before=self.before or "", retrained=self.retrained or ""
        )
        names = [
            name
            for name in evidence.checkpoints
            if name not in (BASE, RELEARNED_BASE) and not is_untrained(name)
        ]
        for reference in (comparison.before, comparison.retrained):
            if reference and reference not in evidence.checkpoints:
                return AuditResult(
                    findings=[not_scored(name, reference) for name in names]
                )

        # Figures of all checkpoints come first, as findings show those of several.
        margin = margin_of(comparison, self.margin)
        figures = {name: _figures_of(comparison, name, margin) for name in names}
        margin_row = _margin_row(comparison, margin)
        rows: list[Row] = [] if margin_row is None else [margin_row]
        compared_with = [
            name for name in (BASE, RELEARNED_BASE) if name in evidence.checkpoints
        ]
        rows += self.missing(compared_with, COMPARED_WITH)
        for name in names:
            rows += _rows_of(comparison, name, figures[name], context)

        # Mistakes of the setup leave no verdict.
        after = [name for name in names if not key_of_reference(name, comparison)]
        part_of_rows = comparison.part_of_rows.name
        setup = setup_result(
            comparison,
            after,
            {name: figures[name].remaining[part_of_rows] for name in names},
            margin,
            margin_row,
            n_shared=int(evidence.facts.get("shared", 0)),
            n_forget=_n_forget_rows(evidence.units),
        )

        concluded = concluded_checkpoints(
            comparison, names, figures, margin, margin_row, mistake=setup.mistake
        )
        tables: dict[str, list[TableRecord]] = {
            "erasure_margins": concluded.margin_records,
            "erasure_requests": [*request_records(comparison, names)],
            "erasure_rows": [*row_counts(evidence)],
        }
        return AuditResult(
            results=rows,
            guards=setup.guards,
            findings=concluded.findings,
            tables={key: table for key, table in tables.items() if table},
        )


def _n_forget_rows(units: pd.DataFrame) -> int:
    """Return the number of forget rows."""
    return int(units["example"][units["side"] == FORGET].nunique())


def _margin_row(comparison: ErasureComparison, margin: Margin) -> Row | None:
    """Return the margin as a figure of the model before erasure, if there is one."""
    if not margin.value:
        return None
    n_clusters = comparison.part_of_rows.n_clusters(FORGET)
    estimate = Estimate(margin.value, clusters=n_clusters)
    return Erasure.row(estimate, comparison.before, "margin")


def _figures_of(
    comparison: ErasureComparison, name: str, margin: Margin
) -> CheckpointFigures:
    """Return the figures of a checkpoint that findings show."""
    remaining = {}
    sides = {}
    for part in comparison.parts:
        contrast = comparison.difference(name, part)
        remaining[part.name] = Erasure.row(
            contrast.difference,
            name,
            "remaining",
            part.name,
            no_effect_low=-margin.value if margin.value else None,
            no_effect_high=margin.value or None,
        )
        since = f"since {comparison.stranger_of(name) or BASE}"
        sides[part.name] = (
            Erasure.row(contrast.trained, name, "change", FORGET, note=since),
            Erasure.row(contrast.held_out, name, "change", NEVER, note=since),
        )

    # The part that shows least decides.
    shown = []
    for part in margin.parts:
        tests = comparison.equivalence(name, part, margin.value)
        if tests is not None:
            shown.append(tests.smallest_margin + comparison.gaps[part.name])
    smallest = None
    if shown:
        n_clusters = comparison.part_of_rows.n_clusters(FORGET)
        estimate = Estimate(max(shown), clusters=n_clusters)
        smallest = Erasure.row(estimate, name, "smallest_margin")

    rise = None
    if comparison.part_of_twins.name in {*comparison.evidence.units["part"]}:
        estimate = comparison.rise(name).difference
        rise = Erasure.row(estimate, name, "rise")

    auc, _ = comparison.membership(name)
    return CheckpointFigures(
        remaining=remaining,
        sides=sides,
        smallest=smallest,
        auc=Erasure.row(auc, name, "auc", ROW),
        rise=rise,
        written=comparison.written(name),
    )


def _rows_of(
    comparison: ErasureComparison,
    name: str,
    figures: CheckpointFigures,
    context: Context,
) -> Iterator[Row]:
    """Yield all figures of one checkpoint."""
    yield from figures.remaining.values()
    yield from figures.sides[comparison.part_of_rows.name]
    if figures.smallest is not None:
        yield figures.smallest
    yield figures.auc
    if figures.rise is not None:
        yield figures.rise

    # What erasure has cost: nothing is told of the model before it.
    if name != comparison.before:
        for variant, estimate in cost_estimates(comparison, name):
            yield Erasure.row(estimate, name, "cost", variant)

    written = figures.written
    if written is not None:
        for variant, n_hits, n_groups in (
            (FORGET, written.n_forget, written.n_forget_groups),
            (NEVER, written.n_held_out, written.n_held_out_groups),
        ):
            is_hit = np.arange(n_groups) < n_hits  # (groups,)
            estimate = Estimate.missing(NO_RANKS)
            if n_groups:
                estimate = rate_estimate(is_hit, np.ones(n_groups))
            yield Erasure.row(estimate, name, "written", variant)

    for metric, variant, estimate in field_estimates(comparison, name):
        yield Erasure.row(estimate, name, metric, variant)
    auc, privleak = privleak_estimate(comparison, name, context)
    yield Erasure.row(auc, name, "auc", "mink40")
    yield Erasure.row(privleak, name, "privleak")
