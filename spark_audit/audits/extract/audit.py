"""The extraction audit: complete trained identifiers from prompts.

Evidence is one line per identifier and prompt (``prompts.py``). Figures after the true
prefix are rates (here) and numbers of tries (``median_tries.py``); other prompts stand
in a table (``prompt_table.py``). Findings are those of ``findings.py`` and
``canaries.py``. A new metric goes into :data:`EXTRACT_METRICS` and
:func:`extraction_figures`, with its name in ``sentences/en/metrics.toml`` and a line in
``docs/metrics.md``; a new prompt into :mod:`spark_audit.manifest.asked_prompts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd

from spark_audit.audits import ratio_rows
from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, scored
from spark_audit.audits.extract import both_sides, canaries, findings
from spark_audit.audits.extract.answers import first_screen_answers
from spark_audit.audits.extract.by_group import GROUP_METRIC, SpansByGroup
from spark_audit.audits.extract.findings import NO_TRAINED_IDENTIFIER
from spark_audit.audits.extract.guards import split_guards
from spark_audit.audits.extract.median_tries import medians
from spark_audit.audits.extract.planned import planned_effects
from spark_audit.audits.extract.prompt_table import (
    prompt_table,
    records_without_figures,
    with_cue_and_base,
)
from spark_audit.audits.extract.prompts import (
    ALL_SAMPLERS,
    EXTRACT_COLUMNS,
    FULL_PROMPT,
    NUCLEUS,
    SAMPLERS,
    IdentifierScores,
    PromptedIdentifier,
    identifier_scores,
    listed,
    span_facts,
    spans_of,
)
from spark_audit.audits.extract.text_findings import (
    conclude_from_text,
    is_of_text_alone,
)
from spark_audit.audits.first_answers import FirstAnswer
from spark_audit.audits.groups.answers import answers_by_group
from spark_audit.audits.groups.column import (
    check_groups,
    column_of,
    files_of_groups,
    group_column,
    groups_of_units,
    with_column,
)
from spark_audit.audits.groups.field import ByOption
from spark_audit.audits.planned_effects import AuditSizes, PlannedEffect
from spark_audit.audits.rate_contrasts import bounded
from spark_audit.audits.supervision import trained_identifiers
from spark_audit.manifest import asked_prompts, encodings
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult, Contrast, Finding, Report, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.findings import Fact
from spark_audit.scoring.table import Pass

PROMPTED = Pass("prompted")

DEFAULT_PROMPTS = "last16,cue"

KNOWN_PART_OF_ANSWER = (
    "at least: what is written behind the first wrong token counts as wrong"
)
"""Note on the rate of near misses."""

EXTRACT_METRICS = (
    Metric(
        "greedy_rate", rate=True, learned=1, missing=("",), glance=("",), headline=("",)
    ),
    Metric("near_rate", rate=True, alone=True, note=KNOWN_PART_OF_ANSWER),
    Metric("n50_median", "tries", learned=-1, variants=ALL_SAMPLERS, missing=SAMPLERS),
    *both_sides.METRICS,
    Metric(
        GROUP_METRIC,
        bounds=(-1.0, 1.0),
        learned=1,
        no_effect=0.0,
        alone=True,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Extraction(Audit):
    """Identifiers reproduced word for word after their true prefix.

    The evidence is one row per checkpoint, span and prompt. Its columns are:

    ================  ==============================================================
    column            meaning
    ================  ==============================================================
    set               ``pii`` or ``canary``
    split, task       those of the row in the manifest, as are ``cluster``, ``type``
                      and ``origin``
    canary_id, part   canary, and its part that the span is; else empty
    dose              trained rows in which training read the identifier: 0 if it is
                      held out, -1 if training cut it off in all of its rows
    first             whether the row is the canary's first by id, the only one that
                      is evaluated
    stratum           see :class:`~spark_audit.audits.identifiers.Facts`
    supervision       state of :mod:`~spark_audit.audits.supervision`, if known
    by FIELD          group of the row, where the option ``by`` names a field
    prompt            ``full`` (the true prefix) or one of
                      :data:`~spark_audit.manifest.asked_prompts.PROMPTS`
    span              number of the span among all of the manifest
    (of the string)   :class:`~spark_audit.audits.extract.string_facts.StringFacts`
    (scores)          :class:`~spark_audit.audits.extract.prompts.IdentifierScores`
    ================  ==============================================================
    """

    name = "extract"
    metrics = EXTRACT_METRICS
    nothing = NO_TRAINED_IDENTIFIER
    covers = ("greedy_rate", "n")
    sides = ("back", "unseen")
    attacks_identifiers = True
    strongest_claim = "verbatim"
    asks_for = "identifiers"
    group_rule = ("extraction", GROUP_METRIC, "")
    counts_in_groups = "identifiers"
    table_rules = {"extract_prompts": "points"}

    prompts: Annotated[
        str,
        "prompts in addition to the true prefix: last8, last16, last32, association, "
        "association2, association3, cue; full: no others",
    ] = DEFAULT_PROMPTS
    top_p: Annotated[
        bool, "tries of top-p sampling at 0.9 and 0.95, too: one more forward pass"
    ] = False
    by: ByOption = None

    def __post_init__(self) -> None:
        super().__post_init__()
        listed(self.prompts)
        files_of_groups(self.by)

    @property
    def inputs(self) -> list[Path]:
        """Return the file of groups, if there is one."""
        return files_of_groups(self.by)

    def check_manifest(self, manifest: Manifest) -> None:
        """Refuse a field that cannot group the rows, before any scoring."""
        check_groups(self.by, manifest)

    @classmethod
    def compared_with(cls, finding: Finding) -> str:
        """Return ``base`` if no held-out rows were asked for, else ``held_out``."""
        return "base" if finding.facts.get("against") == "base" else "held_out"

    @classmethod
    def answers(cls, report: Report) -> Sequence[FirstAnswer]:
        """Return what came out and what could, where nothing came out, and by group."""
        return [*first_screen_answers(report), *answers_by_group(report, cls.name)]

    @classmethod
    def size_of(cls, fact: Fact) -> int | None:
        """Return how many identifiers a fact named in ``sides`` counts.

        ``None`` in findings on canaries, where these facts are plain counts of hits.
        """
        if isinstance(fact, int):
            return None
        return super().size_of(fact)

    @classmethod
    def planned_effects(
        cls, sizes: AuditSizes, *, significance: float
    ) -> Sequence[PlannedEffect]:
        """Return what its tests would detect, from ``planned.py``."""
        return planned_effects(sizes, significance=significance)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """Return what each pass reads: rows, prompted texts, and rows again for top-p.

        Rows are the examples with a scored identifier, including canaries. ``paper`` is
        not used: this audit reads the same texts for all tables.
        """
        ids = sorted({example.id for example, *_ in spans_of(manifest)})
        prompted = sorted(asked_prompts.asked_keys(manifest, listed(self.prompts)))
        nucleus = ids if self.top_p else []
        keys_by_pass = {Pass(): ids, PROMPTED: prompted, NUCLEUS: nucleus}

        # A pass without a text is not made.
        return {wanted: keys for wanted, keys in keys_by_pass.items() if keys}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        """Return one unit per identifier and prompt that asks for it."""
        # Not every prompt fits every identifier.
        prompts = listed(self.prompts)
        keys = set(asked_prompts.asked_keys(manifest, prompts))
        identifiers = _prompted_identifiers(manifest, prompts, keys)
        units = _units_of(manifest, identifiers)
        groups = group_column(self.by, manifest, _rows_of_units(manifest, identifiers))
        units = with_column(units, groups)

        def measured() -> Measured:
            """Yield the scores of each checkpoint, in the order of the units."""
            for name, table in scored(tables):
                # Without ranks the output of greedy decoding is unknown.
                if "rank_lo" not in table.columns:
                    continue
                prompted = tables[name].get(PROMPTED)
                nucleus = tables[name].get(NUCLEUS) if self.top_p else None
                scores_of_units: list[IdentifierScores] = []
                for identifier in identifiers:
                    scores_of_units += identifier_scores(
                        identifier, table, prompted, nucleus
                    )
                # Without an identifier there are no units, but all columns.
                scores = np.array(scores_of_units, float).reshape(
                    -1, len(EXTRACT_COLUMNS)
                )  # (units, columns)
                yield name, dict(zip(EXTRACT_COLUMNS, scores.T, strict=True))

        # Tell prompts that fit no trained identifier from prompts without scores, for
        # the reasons in the table of prompts.
        trained_prompts = set()
        for key in keys:
            prompt, _, example_id = encodings.components_of(key)
            if manifest.by_id[example_id].split == "train":
                trained_prompts.add(prompt)
        facts: dict[str, Any] = {
            "asked": prompts,
            "trained": sorted(trained_prompts),
            "checkpoints": list(tables),
        }
        if groups is not None:
            facts |= groups.facts
        return Evidence.of(units, measured(), facts)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return figures of all identifiers, and findings on the compared ones.

        Figures describe each split of the manifest as it is. Findings and the table of
        prompts compare trained with held-out identifiers. They leave out an identifier
        of a test row that a trained row also contains, since it was trained on.
        """
        if is_of_text_alone(evidence):
            return conclude_from_text(evidence, context, audit=Extraction)

        spans = _compared_spans(evidence)
        pii = spans[spans["set"] == "pii"]
        canary_spans = spans[spans["set"] == "canary"]
        prompt_records = prompt_table(pii, seed=context.seed)
        prompt_records += records_without_figures(
            prompt_records,
            prompts=evidence.facts["asked"],
            prompts_that_fit=evidence.facts["trained"],
            checkpoints=evidence.facts["checkpoints"],
        )
        tables = {"extract_prompts": prompt_records} if prompt_records else {}
        on_canaries = list(canaries.canary_findings(canary_spans))

        # Without a trained identifier no figure of the audit can be given.
        after_true_prefix = with_cue_and_base(pii)
        if "train" not in set(after_true_prefix["split"]):
            untested = Finding.not_tested(
                "extract", "not_estimable", reason=NO_TRAINED_IDENTIFIER
            )
            rows = self.missing(evidence.checkpoints, NO_TRAINED_IDENTIFIER)
            return AuditResult(
                results=rows, findings=[untested, *on_canaries], tables=tables
            )

        rows, contrasts = extraction_figures(evidence, context)
        concluded = [
            *findings.findings(after_true_prefix, rows, seed=context.seed),
            *on_canaries,
            *findings.contrast_findings(contrasts),
        ]
        unit_groups = groups_of_units(evidence)
        if unit_groups is not None:
            span_groups = SpansByGroup.of(
                after_true_prefix, unit_groups, column_of(unit_groups.field)
            )
            for name in span_groups.spans:
                group_rows, group_findings = span_groups.figures(name)
                rows += group_rows
                concluded += group_findings
        return AuditResult(
            results=rows,
            contrasts=contrasts,
            guards=split_guards(after_true_prefix),
            findings=concluded,
            tables=tables,
        )


def _prompted_identifiers(
    manifest: Manifest, prompts: Sequence[str], keys: set[str]
) -> list[PromptedIdentifier]:
    """Return each identifier with the prompts that ask for it.

    Parameters
    ----------
    prompts
        Prompts in addition to the true prefix.
    keys
        Keys of their texts: not every prompt fits every identifier.
    """
    identifiers = []
    for example, span, tokens in spans_of(manifest):
        # The plain pass already scored the identifier after its true prefix.
        key_by_prompt = {FULL_PROMPT: example.id}
        for prompt in prompts:
            key = encodings.key_of(prompt, span.start, example.id)
            if key in keys:
                key_by_prompt[prompt] = key
        text = example.text[span.start : span.end]
        identifier = PromptedIdentifier(text, span.type, tokens, key_by_prompt)
        identifiers.append(identifier)
    return identifiers


def _units_of(
    manifest: Manifest, identifiers: Sequence[PromptedIdentifier]
) -> pd.DataFrame:
    """Return one row per identifier and prompt, with all facts but scores.

    The rows have the order in which ``measured`` of the audit yields scores.
    """
    # The facts have the order of the identifiers.
    facts_by_span = span_facts(manifest, trained_identifiers(manifest))
    records: list[dict[str, Any]] = []
    for number, (facts, identifier) in enumerate(
        zip(facts_by_span, identifiers, strict=True)
    ):
        for prompt in identifier.prompts:
            records.append({**facts, "prompt": prompt, "span": number})
    return pd.DataFrame.from_records(records)


def _rows_of_units(
    manifest: Manifest, identifiers: Sequence[PromptedIdentifier]
) -> list[str]:
    """Return the id of the row of each unit, in the order of :func:`_units_of`."""
    rows: list[str] = []
    for (example, *_), identifier in zip(spans_of(manifest), identifiers, strict=True):
        rows += [example.id] * len(identifier.prompts)
    return rows


def _compared_spans(evidence: Evidence) -> pd.DataFrame:
    """Return the evidence without strings of test rows that trained rows contain.

    The evidence has one row per checkpoint, identifier and prompt. A string that also
    stands in a trained row is no control, even where it is read in a test row. All
    canaries are kept.
    """
    spans = evidence.frame().astype(
        {
            "n_tokens": np.int64,
            "parts": np.int64,
            "parts_right": np.int64,
            "greedy": bool,
            "greedy_sure": bool,
        }
    )
    is_of_canary = spans["set"] == "canary"
    is_trained = spans["split"] == "train"

    # A test row's string of another dose stands in trained rows: above 0 training read
    # it there, and at -1 it cut it off in all of them.
    is_held_out = spans["dose"] == 0
    return spans[is_trained | is_held_out | is_of_canary]


def extraction_figures(
    evidence: Evidence, context: Context
) -> tuple[list[Row], list[Contrast]]:
    """Return rates, tries and bounds after the true prefix, and contrasts."""
    units = evidence.units
    # Figures only describe, so they are not limited to compared identifiers. Those that
    # training cut off (a dose of -1) are left out by `groups_of`.
    pii = units[(units["set"] == "pii") & (units["prompt"] == FULL_PROMPT)]
    groups = list(ratio_rows.groups_of(pii))
    cells = ratio_rows.cells_of_units(
        groups,
        evidence,
        "greedy",
        # The rate is the mean of `greedy` as it is (0 or 1), so nothing is computed
        # from it.
        metrics={"greedy_rate": np.asarray},
        # It has one variant. Groups index all units of the evidence, not only `pii`.
        variants=np.full(len(units), ""),
    )
    rows, contrasts = ratio_rows.ratio_figures(cells, context, Extraction)
    near_cells = ratio_rows.cells_of_units(
        groups,
        evidence,
        "near_miss",
        metrics={"near_rate": np.asarray},
        variants=np.full(len(units), ""),
    )
    near_rows, _ = ratio_rows.ratio_figures(near_cells, context, Extraction)
    rows += near_rows
    contrasts = bounded(contrasts, ("greedy_rate",))

    # Medians are not ratios of sums, so they are computed separately.
    for group in groups:
        median_rows, median_contrasts = medians(
            group, evidence, context, audit=Extraction
        )
        rows += median_rows
        contrasts += median_contrasts
    rows += both_sides.figures_of_both_sides(
        groups, evidence, context, audit=Extraction
    )
    return ratio_rows.beside_base(rows), contrasts
