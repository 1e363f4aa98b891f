"""The extraction audit: complete trained identifiers from prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pandas as pd

from spark_audit.audits import ratio_rows
from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, scored
from spark_audit.audits.extract import canaries, findings
from spark_audit.audits.extract.findings import NO_TRAINED_IDENTIFIER
from spark_audit.audits.extract.guards import split_guards
from spark_audit.audits.extract.prompt_table import (
    not_asked,
    prompt_table,
    with_cue_and_base,
)
from spark_audit.audits.extract.prompts import (
    ALL_SAMPLERS,
    EXTRACT_COLUMNS,
    FULL_PROMPT,
    NUCLEUS,
    SAMPLERS,
    PromptedIdentifier,
    identifier_scores,
    listed,
    span_facts,
    spans_of,
)
from spark_audit.audits.rate_contrasts import bounded
from spark_audit.audits.supervision import trained_identifiers
from spark_audit.manifest import asked_prompts, encodings
from spark_audit.manifest.schema import Manifest
from spark_audit.results import AuditResult, Contrast, Finding, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.results.findings import Fact
from spark_audit.scoring.table import Pass
from spark_audit.stats.bootstrap import cluster_sums, median_replicates
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import median_estimate, percentile_interval
from spark_audit.stats.sampled_extraction import n_p
from spark_audit.stats.sign_flips import sign_flip

PROMPTED = Pass("prompted")

DEFAULT_PROMPTS = "last16,cue"

MAX_N50 = 1e12
"""Larger numbers of tries are only stated as "more than this"."""

TRIES_BEYOND_BOUND = 10 * MAX_N50
"""Tries that stand for any larger number, and for endless ones: a place in the order
above :data:`MAX_N50`."""

BEYOND_MAX_N50 = f"the median is over {MAX_N50:.0e}: its value is this bound"
"""Note of a median above :data:`MAX_N50`, whose value and limit are set to it."""

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
    trained rows in which training read the identifier: 0 if it is held out, -1 if
    training cut it off in all of its rows. ``supervision`` is the state of
    :mod:`~spark_audit.audits.supervision`, if it is known. ``first`` marks the first
    row of a canary by id, the only one that is evaluated. ``prompt`` is ``full`` or one
    of :data:`~spark_audit.manifest.asked_prompts.PROMPTS`, ``span`` the number of the
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
        """Return ``base`` if no held-out rows were asked for, else ``held_out``."""
        return "base" if finding.facts.get("against") == "base" else "held_out"

    @classmethod
    def size_of(cls, fact: Fact) -> int | None:
        """Return how many identifiers a fact named in ``sides`` counts.

        ``None`` in findings on canaries, where these facts are plain counts of hits.
        """
        if isinstance(fact, int):
            return None
        return super().size_of(fact)

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

        def measured() -> Measured:
            """Yield the scores of each checkpoint, in the order of the units."""
            for name, table in scored(tables):
                # Without ranks the output of greedy decoding is unknown.
                if "rank_lo" not in table.columns:
                    continue
                prompted = tables[name].get(PROMPTED)
                nucleus = tables[name].get(NUCLEUS) if self.top_p else None
                rows: list[tuple[float, ...]] = []
                for identifier in identifiers:
                    rows += identifier_scores(identifier, table, prompted, nucleus)
                scores = np.array(rows, float)  # (units, columns)
                yield name, dict(zip(EXTRACT_COLUMNS, scores.T, strict=True))

        # Tell prompts that fit no trained identifier from prompts without scores.
        trained_prompts = set()
        for key in keys:
            prompt, _, example_id = encodings.components_of(key)
            if manifest.by_id[example_id].split == "train":
                trained_prompts.add(prompt)
        facts = {
            "asked": prompts,
            "trained": sorted(trained_prompts),
            "checkpoints": list(tables),
        }
        return Evidence.of(units, measured(), facts)

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
        """Return figures of all identifiers, and findings on the compared ones.

        Figures describe each split of the manifest as it is. Findings and the table of
        prompts compare trained with held-out identifiers. They leave out an identifier
        of a test row that a trained row also contains, since it was trained on.
        """
        spans = _compared_spans(evidence)
        pii = spans[spans["set"] == "pii"]
        canary_spans = spans[spans["set"] == "canary"]
        prompts = prompt_table(pii, seed=context.seed)
        prompts += not_asked(
            prompts,
            asked=evidence.facts["asked"],
            trained=evidence.facts["trained"],
            checkpoints=evidence.facts["checkpoints"],
        )
        tables = {"extract_prompts": prompts} if prompts else {}
        on_canaries = list(canaries.canary_findings(canary_spans))

        # Without a trained identifier no figure of the audit can be given.
        after_true_prefix = with_cue_and_base(pii)
        if "train" not in set(after_true_prefix["split"]):
            untested = Finding.not_tested(
                "extract", "not_estimable", reason=NO_TRAINED_IDENTIFIER
            )
            rows = self.missing(evidence.checkpoints, NO_TRAINED_IDENTIFIER)
            return AuditResult(
                rows=rows, findings=[untested, *on_canaries], tables=tables
            )

        rows, contrasts = extraction_figures(evidence, context)
        concluded = [
            *findings.findings(after_true_prefix, rows, seed=context.seed),
            *on_canaries,
            *findings.contrast_findings(contrasts),
        ]
        return AuditResult(
            rows=rows,
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
    """Return one row per identifier and prompt, with all facts but scores."""
    # The facts have the order of the identifiers.
    facts_by_span = span_facts(manifest, trained_identifiers(manifest))
    records: list[dict[str, Any]] = []
    for number, (facts, identifier) in enumerate(
        zip(facts_by_span, identifiers, strict=True)
    ):
        for prompt in identifier.prompts:
            records.append({**facts, "prompt": prompt, "span": number})
    return pd.DataFrame.from_records(records)


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
    """Return rates and numbers of tries after the true prefix, and contrasts."""
    units = evidence.units
    # Figures only describe, so they are not limited to compared identifiers. Those that
    # training cut off (a dose of -1) are left out by `groups_of`.
    pii = units[(units["set"] == "pii") & (units["prompt"] == FULL_PROMPT)]
    groups = list(ratio_rows.groups_of(pii))
    cells = ratio_rows.cells_of_units(
        groups,
        evidence,
        "greedy",
        # The rate is the mean of `greedy` as it is, so nothing is computed from it.
        metrics={"greedy_rate": np.asarray},
        # It has one variant. Groups index all units of the evidence, not only `pii`.
        of=np.full(len(units), ""),
    )
    rows, contrasts = ratio_rows.ratio_figures(cells, context, Extraction)
    contrasts = bounded(contrasts, ("greedy_rate",))

    # Medians are not ratios of sums, so they are computed separately.
    for group in groups:
        median_rows, median_contrasts = medians(group, evidence, context)
        rows += median_rows
        contrasts += median_contrasts
    return ratio_rows.beside_base(rows), contrasts


@dataclass(frozen=True)
class MedianTries:
    """Numbers of tries at one checkpoint and sampler."""

    log_tries: np.ndarray
    """log10, shape ``(spans,)``."""
    replicates: np.ndarray
    """Medians of log10 tries in every resample, shape ``(B,)``."""


def medians(
    group: ratio_rows.UnitGroup, evidence: Evidence, context: Context
) -> tuple[list[Row], list[Contrast]]:
    """Return median numbers of tries of a group's spans, and contrasts of them.

    Medians and their differences are on log10 tries. Values are cut a little above
    :data:`MAX_N50`, which gives a span that sampling never draws a place in the order.
    All checkpoints share the resamples.
    """
    weights = group.weights(context)
    rows: list[Row] = []
    tries: dict[tuple[str, str], MedianTries] = {}
    for name in evidence.checkpoints:
        for sampler in ALL_SAMPLERS:
            logp_of_units = evidence.row(name, f"logp_{sampler}")  # (units,), nats
            logp = logp_of_units[group.positions]  # (spans,), nats
            if np.isnan(logp).any():
                continue

            # A span that sampling never draws needs infinitely many tries: set it
            # beyond the bound.
            log_tries = np.log10(np.minimum(n_p(logp), TRIES_BEYOND_BOUND))
            replicates = median_replicates(weights, log_tries, group.codes)
            tries[name, sampler] = MedianTries(log_tries, replicates)

            median = median_estimate(log_tries, group.codes, replicates=replicates)
            # The interval is computed on the log scale and converted to tries.
            estimate = _tries(median).noting(ONE_TOKENISATION)

            # A median beyond the bound is set to it by then.
            if estimate.value is not None and estimate.value >= MAX_N50:
                estimate = estimate.noting(BEYOND_MAX_N50)
            row = Extraction.row(
                estimate, name, "n50_median", sampler, group=group.name
            )
            rows.append(row)

    contrasts = []
    for name, baseline in context.baselines.items():
        for sampler in ALL_SAMPLERS:
            tries_of = tries.get((name, sampler))
            tries_of_baseline = tries.get((baseline, sampler))
            if tries_of is None or tries_of_baseline is None:
                continue
            contrast = _contrast_of_tries(
                group, name, baseline, sampler, tries_of, tries_of_baseline, context
            )
            contrasts.append(contrast)
    return rows, contrasts


def _contrast_of_tries(
    group: ratio_rows.UnitGroup,
    name: str,
    baseline: str,
    sampler: str,
    tries: MedianTries,
    tries_of_baseline: MedianTries,
    context: Context,
) -> Contrast:
    """Return the difference of two medians of log10 tries; below 0 is a leak."""
    difference = _difference(tries, tries_of_baseline, n_clusters=group.n_clusters)
    change = tries.log_tries - tries_of_baseline.log_tries  # (spans,)
    change_by_cluster = cluster_sums(change, group.codes, group.n_clusters)

    # A test needs several clusters that contribute to the difference.
    p = None
    if difference.value is not None and np.count_nonzero(change_by_cluster) > 1:
        p = sign_flip(change_by_cluster, seed=context.seed)
    return Contrast.of_estimate(
        difference,
        audit="extract",
        checkpoint=name,
        baseline=baseline,
        metric="n50_median",
        of=sampler,
        group=group.name,
        unit="log10 tries",
        null=0.0,
        p=p,
    )


def _difference(
    tries: MedianTries, tries_of_baseline: MedianTries, *, n_clusters: int
) -> Estimate:
    """Return the difference of two medians of log10 tries, with its interval."""
    if n_clusters < 2:
        return Estimate.missing("only 1 cluster; an interval needs 2")

    # Only the bound of such a median is known.
    n_spans = len(tries.log_tries)
    median = float(np.median(tries.log_tries))
    median_of_baseline = float(np.median(tries_of_baseline.log_tries))
    if max(median, median_of_baseline) > np.log10(MAX_N50):
        reason = f"a median is more than {MAX_N50:.0e} tries"
        return Estimate.missing(reason, n=n_spans, clusters=n_clusters)

    estimate = Estimate(median - median_of_baseline, n=n_spans, clusters=n_clusters)

    # All resamples agree: no interval.
    low, high = percentile_interval(tries.replicates - tries_of_baseline.replicates)
    if high <= low:
        return estimate
    return estimate.between(low, high)


def _tries(estimate: Estimate) -> Estimate:
    """Return an estimate of log10 tries as tries, none above :data:`MAX_N50`.

    The bound is a valid lower limit, but no upper limit:

    ===========================  ============  ======================  ===============
    what is beyond the bound     value         lower limit             upper limit
    ===========================  ============  ======================  ===============
    the value                    the bound     its own, at most the    none
                                               bound
    the upper limit alone        its own       its own                 none
    nothing                      its own       its own                 its own
    ===========================  ============  ======================  ===============

    An estimate without an interval has no limits, except that the bound is the lower
    limit of a value beyond it: all resamples equal the value.
    """
    value = _power_of_ten(estimate.value)
    low = _power_of_ten(estimate.low)
    high = _power_of_ten(estimate.high)
    if value is None:
        return estimate

    if value > MAX_N50:
        lower_limit = MAX_N50 if low is None else min(low, MAX_N50)
        at_bound = replace(estimate, value=MAX_N50).between(lower_limit, None)
        return at_bound.noting(
            f"more than {MAX_N50:.0e}: the value is that bound, with no upper limit"
        )

    in_tries = replace(estimate, value=value)
    if low is None:
        return in_tries
    if high is not None and high > MAX_N50:
        without_upper_limit = in_tries.between(min(low, MAX_N50), None)
        return without_upper_limit.noting(
            f"no upper limit: it is more than {MAX_N50:.0e}"
        )
    return in_tries.between(low, high)


def _power_of_ten(exponent: float | None) -> float | None:
    """Return 10 to a power; ``None`` of ``None``."""
    if exponent is None:
        return None
    return float(np.power(10.0, exponent))
