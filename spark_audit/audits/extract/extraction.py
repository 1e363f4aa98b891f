"""Identifiers reproduced word for word after their true prefix.

Greedy decoding reproduces a span exactly when each of its tokens has rank 1 in the pass
that scores it; sampling reproduces it with the product of its tokens' probabilities.
Both are exact: nothing is drawn, and nothing depends on a seed.
Beside both stands what identifiers that were never trained on give: guessing.
What is claimed is of the true prefix; other prompts stand in a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from spark_audit.audits.base import Audit, Context, Plan, Tables, missing_rows
from spark_audit.audits.extract.prompt_evidence import (
    DEFAULT,
    FULL,
    NOTHING,
    PROMPTED,
    PROMPTS_TABLE,
    SAMPLERS,
    cue_alone,
    listed,
    not_asked,
    shown_prompts,
    spans_of,
)
from spark_audit.audits.metric import Metric
from spark_audit.manifest.prompts import asked_keys
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult, Contrast, Finding
from spark_audit.results.evidence import Evidence
from spark_audit.scoring.table import Pass

METRICS = (
    Metric(
        "greedy_rate", rate=True, learned=1, missing=("",), glance=("",), headline=("",)
    ),
    Metric("n50_median", "tries", learned=-1, variants=SAMPLERS, missing=SAMPLERS),
)


@dataclass(frozen=True, kw_only=True)
class Extraction(Audit):
    """Identifiers reproduced word for word after their true prefix.

    The evidence is one row per checkpoint, span and prompt. ``set`` is ``pii`` or
    ``canary``. ``greedy``: every token has rank 1, ties for the first place included;
    ``greedy_sure``: without ties. ``logp_*`` is the log probability (nats) of the span
    under sampling, minus infinity if it cannot be sampled. ``dose`` is the number of
    trained rows that contain it, 0 if it was held out. ``first`` marks the first row of
    a canary by id, which alone is evaluated. ``prompt`` is ``full`` or one of
    :data:`PROMPTS`, ``span`` the number of the span in the manifest; ``parts`` and
    ``parts_right`` are those of :func:`graded`, the columns of strings those of
    :class:`~spark_audit.audits.extract.guesses.String`.
    """

    name = "extract"
    metrics = METRICS
    nothing = NOTHING
    public = ("extract_canaries",)
    covers = ("greedy_rate", "n")
    frameworks = "AITG-APP-03"

    prompts: Annotated[
        str,
        "prompts in addition to the true prefix: last8, last16, last32, association, "
        "cue; full: no others",
    ] = DEFAULT

    def __post_init__(self) -> None:
        listed(self.prompts)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """All examples with an identifier whose tokens were scored, canaries too."""
        ids = sorted({example.id for example, *_ in spans_of(manifest)})
        asked = sorted(asked_keys(manifest, listed(self.prompts)))
        passes = {Pass(): ids, PROMPTED: asked}
        return {wanted: keys for wanted, keys in passes.items() if keys}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        from spark_audit.audits.extract.verbatim_spans import span_evidence

        return span_evidence(tables, manifest, listed(self.prompts))

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        from spark_audit.audits.extract.canary_extraction import (
            canary_findings,
            canary_table,
        )
        from spark_audit.audits.extract.extraction_findings import (
            contrast_findings,
            findings,
            guards,
        )
        from spark_audit.audits.extract.guesses import guess_table
        from spark_audit.audits.extract.prompt_table import prompt_table
        from spark_audit.audits.extract.tries import count_table, medians
        from spark_audit.audits.ratio_rows import (
            beside_base,
            bounded,
            groups_of,
            ratio_figures,
            sums_of_units,
        )

        whole = dict.fromkeys(("n_tokens", "parts", "parts_right"), np.int64)
        flags = dict.fromkeys(("greedy", "greedy_sure"), bool)
        spans = evidence.frame().astype({**whole, **flags})
        every = spans[spans["set"] == "pii"]
        pii = every[every["prompt"] == FULL]
        # What stands in a trained row is no guess, whatever row it is read in.
        every = every[(every["split"] == "train") | (every["dose"] == 0)]
        names = evidence.checkpoints
        prompts = shown_prompts(prompt_table(every, seed=context.seed))
        tables = {
            "extract_counts": count_table(pii),
            PROMPTS_TABLE: [*prompts, *not_asked(prompts, evidence.facts)],
            "extract_canaries": canary_table(spans[spans["set"] == "canary"]),
        }
        tables = {name: table for name, table in tables.items() if table}
        canaries = canary_findings(tables.get("extract_canaries", []))
        if pii[pii["split"] == "train"].empty:
            unknown = "extract", "not_estimable"
            return AuditResult(
                rows=missing_rows("extract", names, METRICS, NOTHING),
                findings=[Finding.not_tested(*unknown, reason=NOTHING), *canaries],
                tables=tables,
            )
        units = evidence.units[
            (evidence.units["set"] == "pii") & (evidence.units["prompt"] == FULL)
        ]
        groups = [*groups_of(units)]
        greedy = {name: evidence.row(name, "greedy")[units.index] for name in names}
        metrics, alike = {"greedy_rate": np.asarray}, np.full(len(units), "")
        rows, contrasts = ratio_figures(
            sums_of_units(groups, greedy, context, metrics=metrics, of=alike),
            context,
            audit="extract",
            metrics=METRICS,
        )
        contrasts = bounded(contrasts, ("greedy_rate",))
        for group in groups:
            found = [*medians(group, evidence, units.index[group.units], context)]
            contrasts += [row for row in found if isinstance(row, Contrast)]
            rows += [row for row in found if not isinstance(row, Contrast)]
        rows = beside_base(rows)
        held = cue_alone(every)
        if guesses := guess_table(held):
            tables["extract_guesses"] = guesses
        return AuditResult(
            rows=rows,
            contrasts=contrasts,
            guards=guards(held),
            findings=[
                *findings(held, rows, seed=context.seed),
                *canaries,
                *contrast_findings(contrasts),
            ],
            tables=tables,
        )
