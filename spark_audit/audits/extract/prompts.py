"""The identifiers that are asked for, and how each was answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from spark_audit.audits.extract.guessing import string_facts
from spark_audit.audits.identifiers import identifier_facts
from spark_audit.audits.supervision import (
    COLUMN,
    NOT_READ,
    Trained,
    canary_rows_cut,
    canary_supervision,
)
from spark_audit.errors import one_of
from spark_audit.manifest import asked_prompts
from spark_audit.manifest.schema import (
    Manifest,
    ManifestExample,
    ManifestSpan,
    TokenRange,
)
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.sampled_extraction import top_k_logp

FULL_PROMPT = "full"
"""The true prefix: what the plain pass has read anyway."""

SAMPLERS = ("t1", "top40")

NUCLEUS = Pass("nucleus")

NUCLEUS_SAMPLERS = ("top_p90", "top_p95")
"""Samplers of that pass, on request."""

ALL_SAMPLERS = (*SAMPLERS, *NUCLEUS_SAMPLERS)

EXTRACT_COLUMNS = (
    *("n_tokens", "greedy", "greedy_sure", "logp_t1", "logp_top40"),
    *("parts", "parts_right", *(f"logp_{of}" for of in NUCLEUS_SAMPLERS)),
)


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


class PromptedIdentifier(NamedTuple):
    """An identifier: its text, type and tokens; prompts and keys, true prefix first."""

    text: str
    type: str
    tokens: TokenRange
    prompts: Mapping[str, str]


def _scores(
    one: PromptedIdentifier,
    table: TokenTable,
    others: TokenTable | None,
    nucleus: TokenTable | None,
) -> Iterator[tuple[float, ...]]:
    """Yield :data:`EXTRACT_COLUMNS` of an identifier behind each prompt.

    They are NaN where it was not scored. Top-p sampling is known behind the true
    prefix only.
    """
    places = {FULL_PROMPT: (table, table.span(one.prompts[FULL_PROMPT], *one.tokens))}
    for prompt, key in one.prompts.items():
        if prompt != FULL_PROMPT and others is not None and key in others:
            places[prompt] = (others, others.rows(key))
    known = graded(places, one.text, one.type)
    for prompt in one.prompts:
        if prompt not in places:
            yield (np.nan,) * len(EXTRACT_COLUMNS)
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
        top_p = [np.nan] * len(NUCLEUS_SAMPLERS)
        if prompt == FULL_PROMPT and nucleus is not None:
            top_p = [_top_p(nucleus, one, of) for of in NUCLEUS_SAMPLERS]
        yield len(nll), first, sure, logp, top40, *known[prompt], *top_p


def _top_p(table: TokenTable, one: PromptedIdentifier, of: str) -> float:
    """Log probability of an identifier behind its true prefix under top-p sampling."""
    rows = table.span(one.prompts[FULL_PROMPT], *one.tokens)
    columns = ("nll", "rank_lo", f"{of}_logp", f"{of}_size")
    nll, rank, mass, size = (table.columns[name][rows] for name in columns)
    return float(top_k_logp(nll, rank, mass, k=size).sum())


def listed(prompts: str) -> list[str]:
    """The prompts in addition to the true prefix that an option names.

    Raises
    ------
    InputError
        Naming one that there is not.
    """
    names = [name.strip() for name in prompts.split(",")]
    for name in names:
        one_of(name, "--prompts", (FULL_PROMPT, *asked_prompts.PROMPTS))
    return [name for name in asked_prompts.PROMPTS if name in names]


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
    tails = [places[name] for name in asked_prompts.TAILS if name in places]
    parts = [i for i, char in enumerate(text) if char.isdigit()]
    if kind == "EMAIL":
        parts = [at] if (at := text.find("@") - 1) >= 0 else []
    found = {}
    for prompt, (table, rows) in places.items():
        known = [(table, rows)] if prompt != FULL_PROMPT else tails
        if not known:
            found[prompt] = (0, 0)
            continue
        told, own = known[0]
        wrong = (table.columns["rank_lo"][rows] > 1) | (table.columns["ties"][rows] > 0)
        lead = int(np.argmax(np.append(wrong, True)))
        written = int(told.position[own][lead - 1]) if lead else 0
        found[prompt] = len(parts), sum(part < written for part in parts)
    return found
