"""Identifiers reproduced word for word after their true prefix.

Greedy decoding reproduces a span exactly when each of its tokens has rank 1 in the pass
that scores it; sampling reproduces it with the product of its tokens' probabilities.
Both are exact: nothing is drawn, and nothing depends on a seed.
Beside both stands what identifiers that were never trained on give: guessing.
What is claimed is of the true prefix; other prompts stand in a table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits import extract_findings, ratio_rows
from spark_audit.audits.base import Audit, Context, Metric, Plan, Tables, scored
from spark_audit.audits.extract_findings import FULL, NOTHING, string_facts
from spark_audit.audits.identifiers import identifier_facts
from spark_audit.audits.supervision import (
    COLUMN,
    NOT_READ,
    Trained,
    canary_rows_cut,
    canary_supervision,
    trained_identifiers,
)
from spark_audit.manifest import sequences
from spark_audit.manifest.schema import (
    Manifest,
    ManifestExample,
    ManifestSpan,
    TokenRange,
)
from spark_audit.results import AuditResult, Contrast, Finding, Row
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.bootstrap import cluster_sums, median_replicates, sign_flip
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import median_estimate, percentile_interval
from spark_audit.stats.memorisation import n_p, top_k_logp
from spark_audit.terminal.flags import one_of

PROMPTED = Pass("prompted")
SAMPLERS = ("t1", "top40")
NUCLEUS = Pass("nucleus")
NUCLEI = ("top_p90", "top_p95")
"""Samplers of that pass, on request."""
EVERY = (*SAMPLERS, *NUCLEI)
DEFAULT = "last16,cue"
MOST = 1e12
"""Tries beyond which a number of tries says no more than "more than that"."""

ONE_TOKENISATION = (
    "probability of one tokenisation after the true prefix; that of the text is at "
    "least as high, so fewer tries may be enough"
)

VALUES = (
    *("n_tokens", "greedy", "greedy_sure", "logp_t1", "logp_top40"),
    *("parts", "parts_right", *(f"logp_{of}" for of in NUCLEI)),
)
METRICS = (
    Metric(
        "greedy_rate", rate=True, learned=1, missing=("",), glance=("",), headline=("",)
    ),
    Metric("n50_median", "tries", learned=-1, variants=EVERY, missing=SAMPLERS),
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
    ``first`` marks the first row of
    a canary by id, which alone is evaluated. ``prompt`` is ``full`` or one of
    :data:`PROMPTS`, ``span`` the number of the span in the manifest; ``parts`` and
    ``parts_right`` are those of :func:`graded`, the columns of strings those of
    :func:`~spark_audit.audits.extract_findings.string_facts`.
    """

    name = "extract"
    metrics = METRICS
    nothing = NOTHING
    covers = ("greedy_rate", "n")

    prompts: Annotated[
        str,
        "prompts in addition to the true prefix: last8, last16, last32, association, "
        "association2, association3, cue; full: no others",
    ] = DEFAULT
    top_p: Annotated[
        bool, "tries of top-p sampling at 0.9 and 0.95, too: one more forward pass"
    ] = False

    def __post_init__(self) -> None:
        listed(self.prompts)

    def plan(self, manifest: Manifest, *, paper: bool = False) -> Plan:
        """All examples with an identifier whose tokens were scored, canaries too."""
        ids = sorted({example.id for example, *_ in spans_of(manifest)})
        asked = sorted(sequences.asked_keys(manifest, listed(self.prompts)))
        passes = {Pass(): ids, PROMPTED: asked, NUCLEUS: ids if self.top_p else []}
        return {wanted: keys for wanted, keys in passes.items() if keys}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        asked = listed(self.prompts)
        keys = {*sequences.asked_keys(manifest, asked)}
        trained_on = trained_identifiers(manifest)
        known = _known(manifest, trained_on)
        spans: list[Asked] = []
        for example, span, tokens in spans_of(manifest):
            each = {p: sequences.key_of(p, span.start, example.id) for p in asked}
            prompts = {prompt: key for prompt, key in each.items() if key in keys}
            text = example.text[span.start : span.end]
            spans.append(Asked(text, span.type, tokens, {FULL: example.id, **prompts}))
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
                yield name, dict(zip(VALUES, rows.T, strict=True))

        asks = map(sequences.parts_of, keys)
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
        prompts = extract_findings.prompt_table(every, seed=context.seed)
        prompts += extract_findings.not_asked(prompts, evidence.facts)
        tables = {"extract_prompts": prompts} if prompts else {}
        planted = spans[spans["set"] == "canary"]
        canaries = [*extract_findings.canary_findings(planted)]
        held = extract_findings.cue_alone(every)
        if "train" not in {*held["split"]}:
            unknown = Finding.not_tested("extract", "not_estimable", reason=NOTHING)
            rows = self.missing(evidence.checkpoints, NOTHING)
            return AuditResult(rows=rows, findings=[unknown, *canaries], tables=tables)
        units = evidence.units
        pii = units[(units["set"] == "pii") & (units["prompt"] == FULL)]
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
        findings = [
            *extract_findings.findings(held, rows, seed=context.seed),
            *canaries,
            *extract_findings.contrast_findings(contrasts),
        ]
        guards = extract_findings.guards(held)
        return AuditResult(rows, contrasts, guards, findings=findings, tables=tables)


def medians(
    group: ratio_rows.Group, evidence: Evidence, context: Context
) -> tuple[list[Row], list[Contrast]]:
    """Median numbers of tries of a group's spans, and contrasts of them.

    Medians are taken of log10 tries, at most a little above :data:`MOST`, so that a
    span that cannot be drawn at all has a place in the order; contrasts are differences
    of these. All checkpoints are on the same resamples.
    """
    weights, rows = group.weights(context), list[Row]()
    tries: dict[tuple[str, str], np.ndarray] = {}
    drawn: dict[tuple[str, str], np.ndarray] = {}
    for name, of in product(evidence.checkpoints, EVERY):
        logp = evidence.row(name, f"logp_{of}")[group.units]
        if np.isnan(logp).any():
            continue
        values = tries[name, of] = np.log10(np.minimum(n_p(logp), 10 * MOST))
        replicates = drawn[name, of] = median_replicates(weights, values, group.codes)
        found = _tries(median_estimate(values, group.codes, replicates=replicates))
        found = found.noting(ONE_TOKENISATION)
        rows.append(Extraction.row(found, name, "n50_median", of, group=group.name))
    contrasts = []
    for (name, baseline), of in product(context.baselines.items(), EVERY):
        one, other = (name, of), (baseline, of)
        if {one, other} <= {*tries}:
            pair, replicates = (tries[one], tries[other]), drawn[one] - drawn[other]
            found = _difference(pair, replicates, clusters=group.size)
            moved = cluster_sums(pair[0] - pair[1], group.codes, group.size)
            tested = found.value is not None and np.count_nonzero(moved) > 1
            test: dict[str, Any] = {"unit": "log10 tries", "null": 0.0}
            test["p"] = sign_flip(moved, seed=context.seed) if tested else None
            own = {"checkpoint": name, "baseline": baseline, "group": group.name}
            own |= {"audit": "extract", "metric": "n50_median", "of": of}
            contrasts.append(Contrast.of_estimate(found, **own, **test))
    return rows, contrasts


def _difference(
    pair: Sequence[np.ndarray], replicates: np.ndarray, *, clusters: int
) -> Estimate:
    """Difference of two medians of log10 tries."""
    if clusters < 2:
        return Estimate.missing("only 1 cluster; an interval needs 2")
    counts: dict[str, Any] = {"n": len(pair[0]), "clusters": clusters}
    one, other = map(np.median, pair)
    if max(one, other) > np.log10(MOST):
        reason = f"a median is more than {MOST:.0e} tries"
        return Estimate.missing(reason, **counts)
    estimate = Estimate(float(one - other), **counts)
    low, high = percentile_interval(replicates)
    return estimate.between(low, high) if high > low else estimate


def _tries(estimate: Estimate) -> Estimate:
    """An estimate of log10 tries as tries, none of them above :data:`MOST`."""
    if estimate.value is None:
        return estimate
    ends = [estimate.value, estimate.low, estimate.high]
    value, low, high = (10.0 ** np.array(ends, np.float64)).tolist()
    endless = value > MOST or high > MOST
    # Without an interval all resamples agree, and lie beyond the bound if it does.
    if math.isnan(low) and value > MOST:
        low = MOST
    made = replace(estimate, value=min(value, MOST))
    if not math.isnan(low):
        made = made.between(min(low, MOST), None if endless else high)
    # The bound stays a true lower limit, but never an upper one.
    note = f"no upper limit: it is more than {MOST:.0e}"
    if value > MOST:
        note = f"more than {MOST:.0e}: the value is that bound, with no upper limit"
    return made.noting(note) if endless else made


def _known(manifest: Manifest, trained_on: Trained) -> Iterator[dict[str, Any]]:
    """All facts of each span except its scores, in the order of :func:`spans_of`."""
    firsts: dict[tuple[str, str], str] = {}
    for example, span, _ in spans_of(manifest):
        key = (example.canary_id or example.id, span.part or "")
        firsts[key] = min(example.id, firsts.get(key, example.id))
    facts = identifier_facts(manifest, trained_on)
    strings = string_facts(manifest)
    rows_cut, canaries = canary_rows_cut(manifest), canary_supervision(manifest)
    doses = {
        canary.canary_id: 0
        if canary.held_out
        else max(canary.dose - rows_cut[canary.canary_id], 0) or NOT_READ
        for canary in manifest.canaries
    }
    for example, span, _ in spans_of(manifest):
        canary = example.canary_id or ""
        fact = facts[example.id, span.start, span.end]
        # Where only a part of the manifest is audited, its canaries are not listed.
        unlisted = 0 if example.split == "test" else 1
        dose = doses.get(canary, unlisted) if canary else fact.dose
        supervision = {}
        if trained_on.is_known:
            state = canaries.get(canary, "")
            if not canary:
                state = trained_on.supervision_of(example, span)
            supervision[COLUMN] = state
        yield {
            "set": "canary" if canary else "pii",
            "split": example.split,
            "task": example.task,
            "type": span.type,
            "origin": span.origin,
            "cluster": example.cluster,
            "canary_id": canary,
            "part": span.part or "",
            "dose": dose,
            "first": firsts[canary or example.id, span.part or ""] == example.id,
            "stratum": fact.stratum,
            **supervision,
            **strings[example.id, span.start, span.end],
        }


class Asked(NamedTuple):
    """An identifier: its text, type and tokens; prompts and keys, true prefix first."""

    text: str
    type: str
    tokens: TokenRange
    prompts: Mapping[str, str]


def _scores(
    one: Asked,
    table: TokenTable,
    others: TokenTable | None,
    nucleus: TokenTable | None,
) -> Iterator[tuple[float, ...]]:
    """:data:`VALUES` of an identifier behind each prompt; NaN if it was not scored.

    Top-p sampling is known behind the true prefix only.
    """
    places = {FULL: (table, table.span(one.prompts[FULL], *one.tokens))}
    for prompt, key in one.prompts.items():
        if prompt != FULL and others is not None and key in others:
            places[prompt] = (others, others.rows(key))
    known = graded(places, one.text, one.type)
    for prompt in one.prompts:
        if prompt not in places:
            yield (np.nan,) * len(VALUES)
            continue
        scores, rows = places[prompt]
        nll, rank, ties, mass = (
            scores.columns[name][rows]
            for name in ("nll", "rank_lo", "ties", "top40_logp")
        )
        first = bool((rank == 1).all())
        # Rounding may leave a certain token's NLL a hair below 0.
        logp = min(0.0, -float(nll.sum(dtype=np.float64)))
        top40 = float(top_k_logp(nll, rank, mass, k=40).sum())
        sure = first and not ties.any()
        top_p = [np.nan] * len(NUCLEI)
        if prompt == FULL and nucleus is not None:
            top_p = [_top_p(nucleus, one, of) for of in NUCLEI]
        yield len(nll), first, sure, logp, top40, *known[prompt], *top_p


def _top_p(table: TokenTable, one: Asked, of: str) -> float:
    """Log probability of an identifier behind its true prefix under top-p sampling."""
    rows = table.span(one.prompts[FULL], *one.tokens)
    columns = ("nll", "rank_lo", f"{of}_logp", f"{of}_size")
    nll, rank, mass, size = (table.columns[name][rows] for name in columns)
    return float(top_k_logp(nll, rank, mass, k=size).sum())


# --- prompts and samplers -----------------------------------------------------------


def listed(prompts: str) -> list[str]:
    """The prompts in addition to the true prefix that an option names.

    Raises
    ------
    InputError
        Naming one that there is not.
    """
    names = [name.strip() for name in prompts.split(",")]
    for name in names:
        one_of(name, "--prompts", (FULL, *sequences.PROMPTS))
    return [name for name in sequences.PROMPTS if name in names]


def spans_of(
    manifest: Manifest,
) -> Iterator[tuple[ManifestExample, ManifestSpan, TokenRange]]:
    """Identifiers of rows without a canary, and the parts of canaries."""
    for example in manifest.examples:
        for span, tokens in example.identifiers:
            if (span.part is None) == (example.canary_id is None):
                yield example, span, tokens


def graded(
    places: Mapping[str, tuple[TokenTable, slice]], text: str, kind: str
) -> dict[str, tuple[int, int]]:
    """Parts of an identifier, and how many greedy decoding writes, by prompt.

    A number's parts are its digits, in their place up to the first wrong token (behind
    it one in ten is right by chance); an address's is all before its @. None are known
    of what has neither, and where no prompt tells which characters a token writes.
    """
    # In its row the string has the same tokens behind all prompts.
    tails = [places[name] for name in sequences.TAILS if name in places]
    parts = [i for i, char in enumerate(text) if char.isdigit()]
    if kind == "EMAIL":
        parts = [at] if (at := text.find("@") - 1) >= 0 else []
    found = {}
    for prompt, (table, rows) in places.items():
        known = [(table, rows)] if prompt != FULL else tails
        if not known:
            found[prompt] = (0, 0)
            continue
        told, own = known[0]
        wrong = (table.columns["rank_lo"][rows] > 1) | (table.columns["ties"][rows] > 0)
        lead = int(np.argmax(np.append(wrong, True)))
        written = int(told.position[own][lead - 1]) if lead else 0
        found[prompt] = len(parts), sum(part < written for part in parts)
    return found
