"""The audit of ranks: the place of identifiers in the full vocabulary.

The rank of a token is its place among all next tokens that the model could give, by
probability: 1 is the model's first guess. Figures are of three sets of tokens: matched
identifiers (``pii``), their equally hard controls (``control``), and all annotated
identifiers (``pii_all``). The audit claims no memory: ranks move in any fine-tuning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits import identifiers, ratio_rows
from spark_audit.audits.base import (
    Audit,
    Context,
    LatexColumn,
    Metric,
    Plan,
    Tables,
    scored,
)
from spark_audit.audits.ratio_rows import RowPlace
from spark_audit.audits.supervision import (
    COLUMN,
    NOT_READ,
    STRATA,
    Trained,
    by_supervision,
    trained_identifiers,
)
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.names import BASE
from spark_audit.results import AuditResult, Contrast, Finding, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.findings import Fact
from spark_audit.scoring.table import Pass
from spark_audit.stats.bootstrap import median_replicates
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import median_estimate
from spark_audit.stats.memory_contrast import memory


class SpanFacts(NamedTuple):
    """Facts on a span of tokens, which are columns of the evidence.

    Attributes
    ----------
    set
        One of :data:`RANK_SETS`.
    split, task, cluster
        Those of its example.
    type
        Type of the identifier; of a control, that of its identifier.
    dose, form, cue, stratum
        Of ``pii_all``, as in :class:`~spark_audit.audits.identifiers.Facts`; else 0.
    supervision
        What training did with the identifier; empty: not known.
    """

    set: str
    split: str
    task: str
    type: str
    cluster: str
    dose: int
    form: int
    cue: int
    stratum: int
    supervision: str


class RankedSpan(NamedTuple):
    """Tokens ``start`` to before ``end`` of an example, whose ranks are read."""

    example: str
    start: int
    end: int
    facts: SpanFacts


RANK_COLUMNS = {"rank": "rank_lo", "ties": "ties"}
"""Column of the evidence -> column of the scores."""

RANK_SETS = ("pii", "control", "pii_all")
"""Sets of tokens, which are the variants (``of``) of figures: see the module."""

OF_MATCHED = identifiers.Facts(dose=0, form=0, cue=0)
"""Placeholder facts of matched identifiers and controls, whose figures need none."""

HEAVY = "heavy-tailed: a 95% interval covers about 75%; only for comparison with SPARK"

BASE_NOT_SCORED = "the base model was not scored: give --base"

TIES_MATTER = 0.005
"""Share of tokens tied for rank 1 above which readers are told: by so much the Top-1
rate depends on who wins ties."""

PER_TOKEN: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "top1_rate": lambda rank: rank <= 1.0,
    "top5_rate": lambda rank: rank <= 5.0,
    "top10_rate": lambda rank: rank <= 10.0,
    "rank_mean": np.asarray,
    "log2_rank_mean": np.log2,
    "mrr": np.reciprocal,
}
"""Metric -> function of the ranks (float64) whose mean over tokens it is."""


def _ranked(
    name: str,
    unit: str = "",
    *,
    rate: bool = False,
    bounds: tuple[float, float] | None = None,
    learned: int,
    headline: tuple[str, ...] = (),
    note: str = "",
) -> Metric:
    """Return a metric of identifiers and of their controls."""
    return Metric(
        name,
        unit,
        rate=rate,
        bounds=bounds,
        learned=learned,
        headline=headline,
        note=note,
        variants=RANK_SETS,
        missing=("pii",),
    )


@dataclass(frozen=True, kw_only=True)
class Rank(Audit):
    """Ranks of identifiers and their controls among all next tokens.

    The evidence is one row per checkpoint, token and set: ``pii`` are tokens of matched
    identifiers, ``control`` tokens of their controls, ``pii_all`` tokens of all
    annotated identifiers, whose ``dose``, ``form``, ``cue`` and ``stratum`` are those
    of ``Facts`` in ``identifiers``.
    """

    name = "rank"
    metrics = (
        _ranked("top1_rate", rate=True, learned=1, headline=("pii",)),
        *(_ranked(f"top{k}_rate", rate=True, learned=1) for k in (5, 10)),
        _ranked("rank_mean", "ranks", bounds=(1.0, np.inf), learned=-1, note=HEAVY),
        _ranked("log2_rank_mean", "bits", bounds=(0.0, np.inf), learned=-1),
        _ranked("mrr", bounds=(0.0, 1.0), learned=1),
        Metric(
            "rank_median", "ranks", bounds=(1.0, np.inf), learned=-1, variants=RANK_SETS
        ),
        Metric(
            "top1_memory",
            bounds=(-2.0, 2.0),
            learned=1,
            null=0.0,
            variants=("pii_all",),
            missing=("pii_all",),
            glance=("pii_all",),
        ),
    )
    disclosure_step = 1
    latex = (
        LatexColumn("Rank mean ↑", "rank_mean", "pii"),
        LatexColumn("Rank median ↑", "rank_median", "pii"),
        LatexColumn("Top-1 ↓", "top1_rate", "pii"),
        LatexColumn("Top-5 ↓", "top5_rate", "pii"),
        LatexColumn("Top-10 ↓", "top10_rate", "pii"),
    )
    nothing = "the manifest has no identifier to audit"
    unscored = "no identifier of this set was scored"

    @classmethod
    def whole_of(cls, metric: str, of: str) -> tuple[str, str, str] | None:
        """Return ``pii_all`` for ``pii``, the identifiers with a control.

        See :meth:`spark_audit.audits.base.Audit.whole_of`.
        """
        return (cls.name, metric, "pii_all") if of == "pii" else None

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return all examples without a canary that have a scored identifier."""
        ids = []
        for example in manifest.examples:
            if example.canary_id is None and example.identifiers:
                ids.append(example.id)
        return {Pass(): sorted(ids)} if ids else {}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return the rank of every token of an identifier or control."""
        trained_on = trained_identifiers(manifest)
        spans = [*_matched_spans(manifest, trained_on)]
        spans += _annotated_spans(manifest, trained_on)
        if not spans:
            return Evidence()

        # One line per span, then one per token: the token is the unit.
        units = pd.DataFrame([span.facts for span in spans])
        if not trained_on.is_known:
            units = units.drop(columns=COLUMN)
        n_tokens = [span.end - span.start for span in spans]
        tokens = units.loc[units.index.repeat(n_tokens)].reset_index(drop=True)

        def measured() -> Measured:
            """Yield ranks and ties of all tokens, by checkpoints scored with them."""
            for name, table in scored(tables):
                if "rank_lo" not in table.columns:
                    continue

                # Lines of the table, span by span: the order of the evidence.
                lines_by_span = []
                for span in spans:
                    token_slice = table.span(span.example, span.start, span.end)
                    lines_by_span.append(np.arange(token_slice.start, token_slice.stop))
                table_lines = np.concatenate(lines_by_span)  # (tokens,)

                values = {
                    column: table.columns[scored_column][table_lines]
                    for column, scored_column in RANK_COLUMNS.items()
                }
                yield name, values

        return Evidence.of(tokens, measured())

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return rows of all metrics, contrasts, and findings on pooled figures."""
        groups = [*ratio_rows.groups_of(evidence.units)]
        sets = evidence.units["set"].to_numpy()  # (tokens,)

        # Means over tokens, then medians; the null of both is the controls' figure.
        mean_cells = ratio_rows.cells_of_units(
            groups, evidence, "rank", metrics=PER_TOKEN, of=sets
        )
        rows, contrasts = ratio_rows.ratio_figures(mean_cells, context, Rank)

        median_cells = ratio_rows.cells_of_units(
            groups, evidence, "rank", metrics={"rank_median": np.asarray}, of=sets
        )
        for group, cells in median_cells:
            rows += _median_rows(group, cells, context)
        rows = ratio_rows.with_nulls(rows, _control_of)

        # The change of Top-1 is relative to held-out identifiers, so its null is 0.
        rows += _memory_rows(evidence)

        findings = [*_rank_findings(rows, contrasts)]
        names_with_ties = _names_with_ties(evidence)
        if names_with_ties:
            ties = Finding.not_tested(
                "rank", "rank.ties", further=["rank.ties_advice"], names=names_with_ties
            )
            findings.append(ties)
        return AuditResult(rows=rows, contrasts=contrasts, findings=findings)


def tokens_by_state(
    example: ManifestExample, pii_type: str, trained_on: Trained
) -> dict[str, np.ndarray]:
    """Return tokens of identifiers of a type, by what training did with them.

    A token that several identifiers share belongs to the first of them. Identifiers
    that training cut off are left out.

    Returns
    -------
    State (:mod:`spark_audit.audits.supervision`) -> indices of its tokens in the
    example, shape ``(tokens,)``. States without a token are left out.
    """
    # From the last identifier to the first, so that the first one overwrites others.
    n_tokens = len(example.reference_unll)
    states = np.full(n_tokens, "-", object)  # (tokens,), "-": no identifier
    for span, (start, end) in reversed(example.identifiers):
        if span.type == pii_type and trained_on.dose_of(example, span) != NOT_READ:
            states[start:end] = trained_on.supervision_of(example, span)

    by_state: dict[str, np.ndarray] = {}
    for state in ("", *STRATA):
        tokens = np.flatnonzero(states == state)
        if len(tokens):
            by_state[state] = tokens
    return by_state


def _matched_spans(manifest: Manifest, trained_on: Trained) -> Iterator[RankedSpan]:
    """Yield the tokens of matched identifiers, and of their controls."""
    supervision_by_span: dict[identifiers.SpanKey, str] = {}
    if trained_on.is_known:
        for example in manifest.examples:
            for span in example.spans:
                key = (example.id, span.start, span.end)
                supervision_by_span[key] = trained_on.supervision_of(example, span)

    for pair in manifest.pairs:
        example = manifest.by_id[pair.example]
        key = (example.id, pair.pii.char_start, pair.pii.char_end)
        for span_set, tokens in (("pii", pair.pii), ("control", pair.control)):
            facts = _span_facts(
                example,
                span_set,
                pii_type=pair.pii.type,
                facts=OF_MATCHED,
                supervision=supervision_by_span.get(key, ""),
            )
            yield RankedSpan(example.id, tokens.token_start, tokens.token_end, facts)


def _annotated_spans(manifest: Manifest, trained_on: Trained) -> Iterator[RankedSpan]:
    """Yield the tokens of all annotated identifiers of examples without a canary."""
    facts_of = identifiers.identifier_facts(manifest, trained_on)
    for example in manifest.examples:
        if example.canary_id is not None:
            continue
        for span, (start, end) in example.identifiers:
            supervision = ""
            if trained_on.is_known:
                supervision = trained_on.supervision_of(example, span)
            facts = _span_facts(
                example,
                "pii_all",
                pii_type=span.type,
                facts=facts_of[example.id, span.start, span.end],
                supervision=supervision,
            )
            yield RankedSpan(example.id, start, end, facts)


def _span_facts(
    example: ManifestExample,
    span_set: str,
    *,
    pii_type: str,
    facts: identifiers.Facts,
    supervision: str,
) -> SpanFacts:
    """Return the facts on a span of an example.

    Parameters
    ----------
    span_set
        One of :data:`RANK_SETS`.
    facts
        Facts on the identifier, such as its dose.
    """
    return SpanFacts(
        set=span_set,
        split=example.split,
        task=example.task,
        type=pii_type,
        cluster=example.cluster,
        dose=facts.dose,
        form=facts.form,
        cue=facts.cue,
        stratum=facts.stratum,
        supervision=supervision,
    )


def _control_of(place: RowPlace) -> RowPlace | None:
    """Return the place of the controls' figure, which is the null for ``pii``."""
    if place.of != "pii":
        return None
    return place._replace(of="control")


def _median_rows(
    group: ratio_rows.UnitGroup,
    cells: Iterable[ratio_rows.RatioCell],
    context: Context,
) -> Iterator[Row]:
    """Yield the median ranks of one group.

    Parameters
    ----------
    cells
        Cells whose numerators are the ranks of the group's tokens.
    """
    weights = group.weights(context)
    for (name, metric, of), rank_or_nan, _ in cells:
        is_ranked = ~np.isnan(rank_or_nan)  # (tokens,)
        if not is_ranked.any():
            continue

        ranks = rank_or_nan[is_ranked]  # (ranked,)
        clusters = group.codes[is_ranked]
        replicates = median_replicates(weights, ranks, clusters)
        estimate = median_estimate(ranks, clusters, replicates=replicates)
        yield Rank.row(estimate, name, metric, of, group=group.name)


def _names_with_ties(evidence: Evidence) -> list[str]:
    """Return the checkpoints whose Top-1 rate depends on how ties are counted.

    It does if more than :data:`TIES_MATTER` of the tokens of a set share rank 1.
    """
    is_train = (evidence.units["split"] == "train").to_numpy()  # (tokens,)
    sets = evidence.units["set"].to_numpy()[is_train]
    is_first = evidence.values["rank"] == 1  # (checkpoints, tokens)
    is_tied_first = is_first & (evidence.values["ties"] > 0)

    shares = pd.DataFrame(is_tied_first[:, is_train].T).groupby(sets).mean()
    largest_shares = shares.max()  # (checkpoints,), over the sets
    names = []
    for name, share in zip(evidence.checkpoints, largest_shares, strict=True):
        if share > TIES_MATTER:
            names.append(name)
    return names


def _memory_rows(evidence: Evidence) -> Iterator[Row]:
    """Yield the change of Top-1 since the base, trained minus held-out identifiers.

    Rows are of all identifiers and of each stratum of supervision, by checkpoint. Each
    token weighs alike. Above 0, tokens of trained identifiers came to the top more
    often: they are remembered.
    """
    # Identifiers of test rows that occur in trained rows are neither trained on here
    # nor held out.
    units = evidence.units
    is_on_a_side = (units["split"] == "train") | (units["dose"] == 0)
    annotated = units[(units["set"] == "pii_all") & is_on_a_side]
    spans, is_told_by_text = identifiers.comparable(annotated)

    # Compare all held-out identifiers with all trained ones and with each stratum.
    is_train = spans["split"] == "train"
    groups = [("pooled", spans)]
    for group, trained in by_supervision(spans[is_train]):
        groups.append((group, pd.concat([trained, spans[~is_train]]).sort_index()))

    for group, spans_of_group in groups:
        if spans_of_group.empty:
            continue

        sides = identifiers.sides_of(spans_of_group)
        tokens = spans_of_group.index.to_numpy()  # (tokens,), indices in the evidence
        for name in evidence.checkpoints:
            if name == BASE:
                continue
            if BASE not in evidence.checkpoints:
                estimate = Estimate.missing(BASE_NOT_SCORED)
            elif is_told_by_text:
                estimate = Estimate.missing(identifiers.TOLD_APART)
            else:
                change = _top1_change(evidence, name, tokens)
                estimate = memory(change, sides).difference
            yield Rank.row(estimate, name, "top1_memory", "pii_all", group=group)


def _top1_change(evidence: Evidence, name: str, tokens: np.ndarray) -> np.ndarray:
    """Return the change of Top-1 of tokens since the base, shape ``(tokens,)``.

    1: the token came to the top. -1: it fell from there. 0: neither.

    Parameters
    ----------
    tokens
        Indices of the tokens in the evidence, shape ``(tokens,)``.
    """
    rank = evidence.row(name, "rank")[tokens]
    ties = evidence.row(name, "ties")[tokens]
    base_rank = evidence.row(BASE, "rank")[tokens]

    # A tie for rank 1 counts as the top for the base, and not for the checkpoint: so
    # ties alone never look like memory.
    is_top = (rank == 1) & (ties == 0)
    was_top = base_rank == 1
    return np.asarray(is_top - was_top.astype(np.float64))


def _rank_findings(
    rows: Sequence[Row], contrasts: Sequence[Contrast]
) -> Iterator[Finding]:
    """Yield a finding on the Top-1 rate of each checkpoint, and on changes of ranks.

    Changes are of the mean logarithm of ranks, from each baseline.
    """
    # Pooled rows by checkpoint, metric and set; a missing figure has only a note.
    notes: dict[tuple[str, str, str], str] = {}
    figures: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        if row.group == "pooled":
            key = (row.checkpoint, row.metric, row.of)
            notes[key] = row.note
            if row.value is not None:
                figures[key] = row

    for name in dict.fromkeys(row.checkpoint for row in rows):
        yield _top1_finding(name, figures, notes)

    changes: dict[tuple[str, str, str], Contrast] = {}
    for contrast in contrasts:
        if contrast.group == "pooled" and contrast.metric == "log2_rank_mean":
            changes[contrast.checkpoint, contrast.baseline, contrast.of] = contrast
    for (name, baseline, of), change in changes.items():
        if of == "pii":
            control = changes.get((name, baseline, "control"))
            yield _change_finding(change, control)


def _top1_finding(
    name: str,
    figures: Mapping[tuple[str, str, str], Row],
    notes: Mapping[tuple[str, str, str], str],
) -> Finding:
    """Return the finding on the Top-1 rate of a checkpoint.

    Parameters
    ----------
    figures, notes
        Pooled figures, and the notes of all pooled rows, by checkpoint, metric and set.
    """
    # If no identifier has a control, the finding is on all annotated ones.
    of = "pii" if (name, "top1_rate", "pii") in figures else "pii_all"
    top1 = figures.get((name, "top1_rate", of))
    if top1 is None:
        reason = notes.get((name, "top1_rate", of), Rank.unscored)
        return Finding.not_tested(
            "rank", "rank.missing", checkpoint=name, reason=reason
        )

    top1_of_base = None
    if name != BASE:
        top1_of_base = figures.get((BASE, "top1_rate", of))
    facts: dict[str, Fact] = {"top1": top1, "base": top1_of_base}

    # The remark of a known fact has the same name.
    says = "rank.top1_all"
    compared = ["base"]
    if of == "pii":
        facts["median"] = figures.get((name, "rank_median", of))
        facts["control"] = figures.get((name, "top1_rate", "control"))
        facts["memory"] = figures.get((name, "top1_memory", "pii_all"))
        says = "rank.top1"
        compared = ["median", "control", "base", "memory"]

    further = [f"rank.{fact}" for fact in compared if facts[fact] is not None]
    return Finding.on(top1, "moved", says, facts=facts, further=further)


def _change_finding(change: Contrast, control: Contrast | None) -> Finding:
    """Return the finding on a change of the mean logarithm of ranks.

    Parameters
    ----------
    change
        The change of identifiers, in doublings of the rank; below 0 is towards the top.
    control
        The change of their controls, which shows whether all text moved that way.
    """
    direction = change.direction(up="away", down="towards")
    further = []
    if direction in ("away", "towards") and control is not None and control.value:
        side = "away" if control.value > 0 else "towards"
        further.append(f"rank.control_{side}")
    return Finding.on(
        change,
        "moved",
        f"rank.change_{direction}",
        facts={"change": change, "control": control},
        further=further,
    )
