"""Identifiers reproduced word for word after their true prefix.

Greedy decoding reproduces a span exactly when each of its tokens has rank 1 in the pass
that scores it; sampling reproduces it with the product of its tokens' probabilities.
Both are exact: nothing is drawn, and nothing depends on a seed.
Beside both stands what identifiers that were never trained on give: guessing.
What is claimed is of the true prefix; other prompts stand in a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Audit, Context, Plan, Tables, missing_rows
from spark_audit.audits.extract.canaries import canary_findings, canary_table
from spark_audit.audits.extract.extraction_findings import (
    NOTHING,
    contrast_findings,
    findings,
    guards,
)
from spark_audit.audits.extract.guesses import guess_table, string_facts
from spark_audit.audits.extract.prompts import (
    DEFAULT,
    FULL,
    PROMPTED,
    PROMPTS_TABLE,
    cue_alone,
    graded,
    listed,
    not_asked,
    prompt_table,
    shown_prompts,
)
from spark_audit.audits.extract.tries import SAMPLERS, Medians
from spark_audit.audits.identifier_facts import identifier_facts
from spark_audit.audits.metric import Metric, by_name
from spark_audit.audits.ratio_rows import (
    Group,
    Key,
    Sums,
    beside_base,
    bounded,
    groups_of,
    ratio_figures,
)
from spark_audit.manifest.prompts import asked_key, asked_keys, asked_place
from spark_audit.manifest.schema import (
    Manifest,
    ManifestExample,
    ManifestSpan,
    TokenRange,
)
from spark_audit.results import AuditResult, Finding
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.extraction import n_p, n_p_counts, top_k_logp

METRICS = (
    Metric(
        "greedy_rate", rate=True, learned=1, missing=("",), glance=("",), headline=("",)
    ),
    Metric("n50_median", "tries", learned=-1, variants=SAMPLERS, missing=SAMPLERS),
)

VALUES = (
    *("n_tokens", "greedy", "greedy_sure", "logp_t1", "logp_top40", "logp_cold"),
    *("parts", "parts_right"),
)


def _spans(
    manifest: Manifest,
) -> Iterator[tuple[ManifestExample, ManifestSpan, TokenRange]]:
    """Identifiers of rows without a canary, and the parts of canaries."""
    for example in manifest.examples:
        for span, tokens in example.identifiers:
            if (span.part is None) == (example.canary_id is None):
                yield example, span, tokens


def _scores(table: TokenTable, rows: slice) -> tuple[float, ...]:
    """:data:`VALUES` of a span, without those of its parts."""
    nll, rank, ties, mass, cold = (
        table.columns[name][rows]
        for name in ("nll", "rank_lo", "ties", "top40_logp", "top40_cold")
    )
    first = bool((rank == 1).all())
    return (
        len(nll),
        first,
        first and not ties.any(),
        # Rounding may leave a certain token's NLL a hair below 0.
        min(0.0, -float(nll.sum(dtype=np.float64))),
        float(top_k_logp(nll, rank, mass, k=40).sum()),
        float(top_k_logp(2 * nll, rank, cold, k=40).sum()),
    )


def _prompts(
    example: ManifestExample, span: ManifestSpan, asked: Sequence[str], keys: set[str]
) -> dict[str, str]:
    """Prompts that a span is asked behind, the true prefix first, and their keys."""
    found = {FULL: example.id}
    if not example.canary_id:
        each = {prompt: asked_key(prompt, span, example.id) for prompt in asked}
        found |= {prompt: key for prompt, key in each.items() if key in keys}
    return found


def _asked(
    span: ManifestSpan,
    tokens: TokenRange,
    prompts: Mapping[str, str],
    table: TokenTable,
    others: TokenTable | None,
    text: str,
) -> Iterator[tuple[float, ...]]:
    """:data:`VALUES` of a span behind each prompt; NaN if it was not scored."""
    places = {FULL: (table, table.span(prompts[FULL], *tokens))}
    for prompt, key in prompts.items():
        if prompt != FULL and others is not None and key in others:
            places[prompt] = (others, others.rows(key))
    known = graded(places, text[span.start : span.end], span.type)
    for prompt in prompts:
        if prompt in places:
            yield *_scores(*places[prompt]), *known[prompt]
        else:
            yield (np.nan,) * len(VALUES)


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
        ids = sorted({example.id for example, *_ in _spans(manifest)})
        asked = sorted(asked_keys(manifest, listed(self.prompts)))
        passes = {Pass(): ids, PROMPTED: asked}
        return {wanted: keys for wanted, keys in passes.items() if keys}

    def evidence(
        self, tables: Tables, manifest: Manifest, context: Context
    ) -> Evidence:
        asked = listed(self.prompts)
        firsts: dict[tuple[str, str], str] = {}
        for example, span, _ in _spans(manifest):
            key = (example.canary_id or example.id, span.part or "")
            firsts[key] = min(example.id, firsts.get(key, example.id))
        facts, strings = identifier_facts(manifest), string_facts(manifest)
        doses = {
            canary.canary_id: 0 if canary.held_out else canary.dose
            for canary in manifest.canaries
        }

        def known(example: ManifestExample, span: ManifestSpan) -> dict[str, Any]:
            canary = example.canary_id or ""
            fact = facts[example.id, span.start, span.end]
            # Where only a part of the manifest is audited, its canaries are not listed.
            unlisted = 0 if example.split == "test" else 1
            dose = doses.get(canary, unlisted) if canary else fact.dose
            return {
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
                **strings[example.id, span.start, span.end]._asdict(),
            }

        keys = set(asked_keys(manifest, asked))
        spans = [
            (example, span, tokens, _prompts(example, span, asked, keys))
            for example, span, tokens in _spans(manifest)
        ]
        units = pd.DataFrame.from_records(
            {**known(example, span), "prompt": prompt, "span": number}
            for number, (example, span, _, prompts) in enumerate(spans)
            for prompt in prompts
        )

        def measured() -> Measured:
            for name, passes in tables.items():
                table = passes.get(Pass())
                if table is None or "rank_lo" not in table.columns:
                    continue
                others = passes.get(PROMPTED)
                rows = [
                    scores
                    for example, span, tokens, prompts in spans
                    for scores in _asked(
                        span, tokens, prompts, table, others, example.text
                    )
                ]
                yield name, dict(zip(VALUES, np.array(rows, float).T, strict=True))

        split = {example.id: example.split for example in manifest.examples}
        trained = {p for p, _, key in map(asked_place, keys) if split[key] == "train"}
        prompts = {"asked": asked, "trained": sorted(trained)}
        return Evidence.of(units, measured(), prompts | {"checkpoints": [*tables]})

    def conclude(self, evidence: Evidence, context: Context) -> AuditResult:
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
            "extract_counts": _count_table(pii),
            PROMPTS_TABLE: [*prompts, *not_asked(prompts, evidence.facts)],
            "extract_canaries": canary_table(spans[spans["set"] == "canary"]),
        }
        tables = {name: table for name, table in tables.items() if table}
        if pii[pii["split"] == "train"].empty:
            return AuditResult(
                rows=missing_rows("extract", names, METRICS, NOTHING),
                findings=[
                    Finding(
                        audit="extract",
                        claim="not_tested",
                        says="not_estimable",
                        facts={"reason": NOTHING},
                    ),
                    *canary_findings(tables.get("extract_canaries", [])),
                ],
                tables=tables,
            )
        units = evidence.units[
            (evidence.units["set"] == "pii") & (evidence.units["prompt"] == FULL)
        ]
        groups = [*groups_of(units)]
        rows, contrasts = ratio_figures(
            (Sums.of(each, _cells(each, evidence, units), context) for each in groups),
            context,
            audit="extract",
            metrics=by_name(METRICS),
        )
        contrasts = bounded(contrasts, ("greedy_rate",))
        for group in groups:
            medians = Medians.of(group, evidence, units.index[group.units], context)
            rows += medians.rows()
            contrasts += medians.contrasts()
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
                *canary_findings(tables.get("extract_canaries", [])),
                *contrast_findings(contrasts),
            ],
            tables=tables,
        )


def _cells(
    group: Group, evidence: Evidence, units: pd.DataFrame
) -> Iterator[tuple[Key, np.ndarray, np.ndarray]]:
    at = units.index[group.units]
    for name in evidence.checkpoints:
        greedy = evidence.row(name, "greedy")[at]
        yield (name, "greedy_rate", ""), greedy, np.ones(len(at))


def _count_table(pii: pd.DataFrame) -> list[dict[str, Any]]:
    """Spans by the tries they need, of train and of test rows."""
    found: list[dict[str, Any]] = []
    for (name, split), part in pii.groupby(["checkpoint", "split"], sort=False):
        for of in ("t1", "top40", "cold"):
            logp = part[f"logp_{of}"].to_numpy(np.float64)
            counts = n_p_counts(n_p(logp))
            found.append(
                {
                    "checkpoint": name,
                    "rows": split,
                    "of": of,
                    "spans": len(part),
                    "greedy": int(part["greedy"].sum()),
                    "greedy_if_ties_lose": int(part["greedy_sure"].sum()),
                    **{f"n50_within_{most}": n for most, n in counts.items()},
                }
            )
    return found
