"""The evidence of the extract audit: which identifiers come back, in how many tries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Tables
from spark_audit.audits.extract.guesses import string_facts
from spark_audit.audits.extract.prompt_evidence import FULL, PROMPTED, graded, spans_of
from spark_audit.audits.identifier_facts import identifier_facts
from spark_audit.manifest.prompts import asked_key, asked_keys, asked_place
from spark_audit.manifest.schema import (
    Manifest,
    ManifestExample,
    ManifestSpan,
    TokenRange,
)
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.sampled_extraction import top_k_logp

VALUES = (
    *("n_tokens", "greedy", "greedy_sure", "logp_t1", "logp_top40", "logp_cold"),
    *("parts", "parts_right"),
)


def span_evidence(tables: Tables, manifest: Manifest, asked: Sequence[str]) -> Evidence:
    """What the extract audit concludes from: see its class."""
    firsts: dict[tuple[str, str], str] = {}
    for example, span, _ in spans_of(manifest):
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
    spans = []
    for example, span, tokens in spans_of(manifest):
        # Prompts that a span is asked behind, the true prefix first, and their keys.
        each = {prompt: asked_key(prompt, span, example.id) for prompt in asked}
        prompts = {prompt: key for prompt, key in each.items() if key in keys}
        spans.append((example, span, tokens, {FULL: example.id, **prompts}))
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
                for scores in _asked(span, tokens, prompts, table, others, example.text)
            ]
            yield name, dict(zip(VALUES, np.array(rows, float).T, strict=True))

    split = {example.id: example.split for example in manifest.examples}
    trained = {p for p, _, key in map(asked_place, keys) if split[key] == "train"}
    facts_of = {"asked": asked, "trained": sorted(trained), "checkpoints": [*tables]}
    return Evidence.of(units, measured(), facts_of)


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
