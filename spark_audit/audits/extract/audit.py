"""Complete trained identifiers from prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Annotated

import numpy as np
import pandas as pd

from spark_audit.audits import ratio_rows
from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, scored
from spark_audit.audits.extract import canaries, findings
from spark_audit.audits.extract.findings import NO_TRAINED_IDENTIFIER
from spark_audit.audits.extract.prompt_table import cue_alone, not_asked, prompt_table
from spark_audit.audits.extract.prompts import (
    ALL_SAMPLERS,
    EXTRACT_COLUMNS,
    FULL_PROMPT,
    NUCLEUS,
    SAMPLERS,
    PromptedIdentifier,
    _known,
    _scores,
    listed,
    spans_of,
)
from spark_audit.audits.supervision import (
    trained_identifiers,
)
from spark_audit.manifest import asked_prompts, encodings
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult, Contrast, Finding, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.findings import Fact
from spark_audit.scoring.table import Pass
from spark_audit.stats.bootstrap import cluster_sums, median_replicates, sign_flip
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import median_estimate, percentile_interval
from spark_audit.stats.sampled_extraction import n_p

PROMPTED = Pass("prompted")

DEFAULT_PROMPTS = "last16,cue"

MAX_N50 = 1e12
"""Tries beyond which a number of tries says no more than "more than that"."""

BEYOND_MAX_N50 = f"the median is over {MAX_N50:.0e}: its value is this bound"
"""Note of a median that is beyond :data:`MAX_N50`: its value and limit are that."""

ONE_TOKENISATION = (
    "probability of one tokenisation after the true prefix; that of the text is at "
    "least as high, so fewer tries may be enough"
)

EXTRACT_METRICS = (
    Metric(
        "greedy_rate", rate=True, learned=1, missing=("",), glance=("",), headline=("",)
    ),
    Metric("n50_median", "tries", learned=-1, variants=ALL_SAMPLERS, missing=SAMPLERS),
)


@dataclass(frozen=True, kw_only=True)
class Extraction(Audit):
    """Identifiers reproduced word for word after their true prefix.

    The evidence is one row per checkpoint, span and prompt. ``set`` is ``pii`` or
    ``canary``. ``greedy``: every token has rank 1, ties for the first place included;
    ``greedy_sure``: without ties. ``logp_*`` is the log probability (nats) of the span
    under sampling, minus infinity if it cannot be sampled. ``dose`` is the number of
    trained rows that it was read in, 0 if it was held out, -1 if training cut it off in
    all of them; ``supervision`` what training did with it, where that is known.
    ``first`` marks the first row of a canary by id, which alone is evaluated.
    ``prompt`` is ``full`` or one of
    :data:`~spark_audit.manifest.asked_prompts.PROMPTS`, ``span`` the number of the
    span in the manifest; ``parts`` and ``parts_right`` are those of
    :func:`~spark_audit.audits.extract.prompts.graded`, the columns of strings those of
    :func:`~spark_audit.audits.extract.guessing.string_facts`.
    """

    name = "extract"
    metrics = EXTRACT_METRICS
    nothing = NO_TRAINED_IDENTIFIER
    covers = ("greedy_rate", "n")
    sides = ("back", "unseen")
    attacks_identifiers = True
    strongest_claim = "verbatim"
    table_rules = {"extract_prompts": "points"}

    prompts: Annotated[
        str,
        "prompts in addition to the true prefix: last8, last16, last32, association, "
        "association2, association3, cue; full: no others",
    ] = DEFAULT_PROMPTS
    top_p: Annotated[
        bool, "tries of top-p sampling at 0.9 and 0.95, too: one more forward pass"
    ] = False

    def __post_init__(self) -> None:
        listed(self.prompts)

    @classmethod
    def compared_with(cls, finding: Finding) -> str:
        """Return ``base`` where no held-out rows were asked for, else ``held_out``."""
        return "base" if finding.facts.get("against") == "base" else "held_out"

    @classmethod
    def size_of(cls, fact: Fact) -> int | None:
        """Return how many identifiers a fact counts.

        Findings on canaries have a plain count under the same name, of those that came
        back.
        """
        return None if isinstance(fact, int) else super().size_of(fact)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """All examples with an identifier whose tokens were scored, canaries too."""
        ids = sorted({example.id for example, *_ in spans_of(manifest)})
        asked = sorted(asked_prompts.asked_keys(manifest, listed(self.prompts)))
        passes = {Pass(): ids, PROMPTED: asked, NUCLEUS: ids if self.top_p else []}
        return {wanted: keys for wanted, keys in passes.items() if keys}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        asked = listed(self.prompts)
        keys = {*asked_prompts.asked_keys(manifest, asked)}
        trained_on = trained_identifiers(manifest)
        known = _known(manifest, trained_on)
        spans: list[PromptedIdentifier] = []
        for example, span, tokens in spans_of(manifest):
            each = {p: encodings.key_of(p, span.start, example.id) for p in asked}
            prompts = {prompt: key for prompt, key in each.items() if key in keys}
            text = example.text[span.start : span.end]
            spans.append(
                PromptedIdentifier(
                    text, span.type, tokens, {FULL_PROMPT: example.id, **prompts}
                )
            )
        units = pd.DataFrame.from_records(
            {**facts, "prompt": prompt, "span": number}
            for number, (facts, one) in enumerate(zip(known, spans, strict=True))
            for prompt in one.prompts
        )

        def measured() -> Measured:
            for name, table in scored(tables):
                if "rank_lo" not in table.columns:
                    continue
                others, nucleus = map(tables[name].get, (PROMPTED, NUCLEUS))
                nucleus = nucleus if self.top_p else None
                each = (_scores(one, table, others, nucleus) for one in spans)
                rows = np.array([*chain.from_iterable(each)], float)
                yield name, dict(zip(EXTRACT_COLUMNS, rows.T, strict=True))

        asks = map(encodings.parts_of, keys)
        trained = {p for p, _, of in asks if manifest.by_id[of].split == "train"}
        facts = {"asked": asked, "trained": sorted(trained), "checkpoints": [*tables]}
        return Evidence.of(units, measured(), facts)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        whole = dict.fromkeys(("n_tokens", "parts", "parts_right"), np.int64)
        flags = dict.fromkeys(("greedy", "greedy_sure"), bool)
        spans = evidence.frame().astype({**whole, **flags})
        # What stands in a trained row is no guess, whatever row it is read in.
        used = (spans["split"] == "train") | (spans["dose"] == 0)
        every = spans[(spans["set"] == "pii") & used]
        prompts = prompt_table(every, seed=context.seed)
        prompts += not_asked(
            prompts,
            asked=evidence.facts["asked"],
            trained=evidence.facts["trained"],
            checkpoints=evidence.facts["checkpoints"],
        )
        tables = {"extract_prompts": prompts} if prompts else {}
        planted = spans[spans["set"] == "canary"]
        of_canaries = [*canaries.canary_findings(planted)]
        held = cue_alone(every)
        if "train" not in {*held["split"]}:
            unknown = Finding.not_tested(
                "extract", "not_estimable", reason=NO_TRAINED_IDENTIFIER
            )
            rows = self.missing(evidence.checkpoints, NO_TRAINED_IDENTIFIER)
            return AuditResult(
                rows=rows, findings=[unknown, *of_canaries], tables=tables
            )
        units = evidence.units
        pii = units[(units["set"] == "pii") & (units["prompt"] == FULL_PROMPT)]
        groups = [*ratio_rows.groups_of(pii)]
        metrics, of = {"greedy_rate": np.asarray}, np.full(len(units), "")
        cells = ratio_rows.cells_of_units(
            groups, evidence, "greedy", metrics=metrics, of=of
        )
        rows, contrasts = ratio_rows.ratio_figures(cells, context, Extraction)
        contrasts = ratio_rows.bounded(contrasts, ("greedy_rate",))
        for group in groups:
            found, changes = medians(group, evidence, context)
            rows += found
            contrasts += changes
        rows = ratio_rows.beside_base(rows)
        concluded = [
            *findings.findings(held, rows, seed=context.seed),
            *of_canaries,
            *findings.contrast_findings(contrasts),
        ]
        guards = findings.guards(held)
        return AuditResult(rows, contrasts, guards, findings=concluded, tables=tables)


def medians(
    group: ratio_rows.UnitGroup, evidence: Evidence, context: Context
) -> tuple[list[Row], list[Contrast]]:
    """Median numbers of tries of a group's spans, and contrasts of them.

    Medians are taken of log10 tries, at most a little above :data:`MAX_N50`, so that a
    span that cannot be drawn at all has a place in the order; contrasts are differences
    of these. All checkpoints are on the same resamples.
    """
    weights, rows = group.weights(context), list[Row]()
    tries: dict[tuple[str, str], np.ndarray] = {}
    drawn: dict[tuple[str, str], np.ndarray] = {}
    for name, of in product(evidence.checkpoints, ALL_SAMPLERS):
        logp = evidence.row(name, f"logp_{of}")[group.units]
        if np.isnan(logp).any():
            continue
        values = tries[name, of] = np.log10(np.minimum(n_p(logp), 10 * MAX_N50))
        replicates = drawn[name, of] = median_replicates(weights, values, group.codes)
        found = _tries(median_estimate(values, group.codes, replicates=replicates))
        found = found.noting(ONE_TOKENISATION)
        if found.value is not None and found.value >= MAX_N50:
            found = found.noting(BEYOND_MAX_N50)
        rows.append(Extraction.row(found, name, "n50_median", of, group=group.name))
    contrasts = []
    for (name, baseline), of in product(context.baselines.items(), ALL_SAMPLERS):
        one, other = (name, of), (baseline, of)
        if {one, other} <= {*tries}:
            pair, replicates = (tries[one], tries[other]), drawn[one] - drawn[other]
            found = _difference(pair, replicates, clusters=group.size)
            moved = cluster_sums(pair[0] - pair[1], group.codes, group.size)
            tested = found.value is not None and np.count_nonzero(moved) > 1
            contrast = Contrast.of_estimate(
                found,
                audit="extract",
                checkpoint=name,
                baseline=baseline,
                metric="n50_median",
                of=of,
                group=group.name,
                unit="log10 tries",
                null=0.0,
                p=sign_flip(moved, seed=context.seed) if tested else None,
            )
            contrasts.append(contrast)
    return rows, contrasts


def _difference(
    pair: Sequence[np.ndarray], replicates: np.ndarray, *, clusters: int
) -> Estimate:
    """Difference of two medians of log10 tries."""
    if clusters < 2:
        return Estimate.missing("only 1 cluster; an interval needs 2")
    n_spans = len(pair[0])
    median, median_of_baseline = (float(np.median(tries)) for tries in pair)
    if max(median, median_of_baseline) > np.log10(MAX_N50):
        reason = f"a median is more than {MAX_N50:.0e} tries"
        return Estimate.missing(reason, n=n_spans, clusters=clusters)

    estimate = Estimate(median - median_of_baseline, n=n_spans, clusters=clusters)
    low, high = percentile_interval(replicates)
    return estimate.between(low, high) if high > low else estimate


def _tries(estimate: Estimate) -> Estimate:
    """An estimate of log10 tries as tries, none of them above :data:`MAX_N50`."""
    if estimate.value is None:
        return estimate
    ends = [estimate.value, estimate.low, estimate.high]
    value, low, high = (10.0 ** np.array(ends, np.float64)).tolist()
    endless = value > MAX_N50 or high > MAX_N50
    # Without an interval all resamples agree, and lie beyond the bound if it does.
    if math.isnan(low) and value > MAX_N50:
        low = MAX_N50
    made = replace(estimate, value=min(value, MAX_N50))
    if not math.isnan(low):
        made = made.between(min(low, MAX_N50), None if endless else high)
    # The bound stays a true lower limit, but never an upper one.
    note = f"no upper limit: it is more than {MAX_N50:.0e}"
    if value > MAX_N50:
        note = f"more than {MAX_N50:.0e}: the value is that bound, with no upper limit"
    return made.noting(note) if endless else made
