"""Prompted identifiers, and their scores after each prompt.

The plain pass scores an identifier after its true prefix, as part of its whole row.
Another pass scores it by itself after other prompts
(:mod:`spark_audit.manifest.asked_prompts`). *Parts* are two things: a canary consists
of parts, each of which is a span of its own (``span.part``); a string has parts that
are graded one by one (:func:`graded`), such as the digits of a number.

A new score of an identifier is a field of :class:`IdentifierScores`, which
:func:`identifier_scores` fills; it is then a column of the evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from spark_audit.audits.extract.string_facts import string_facts
from spark_audit.audits.identifiers import identifier_facts
from spark_audit.audits.supervision import (
    COLUMN,
    NOT_READ,
    Trained,
    canary_rows_cut,
    canary_supervision,
)
from spark_audit.data.near_misses import known_answer, near_miss
from spark_audit.errors import one_of
from spark_audit.manifest import asked_prompts
from spark_audit.manifest.example_schema import (
    ManifestExample,
    ManifestSpan,
    TokenRange,
)
from spark_audit.manifest.schema import Manifest
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.extraction_bound import bound_bits
from spark_audit.stats.sampled_extraction import top_k_logp

FULL_PROMPT = "full"
"""The true prefix, after which the plain pass scores an identifier."""

SAMPLERS = ("t1", "top40")
"""Samplers whose probabilities every pass scores: all tokens at temperature 1, and the
likeliest ones only."""

TOP_TOKENS = 40
"""Likeliest tokens that the sampler ``top40`` draws from."""

NUCLEUS = Pass("nucleus")

NUCLEUS_SAMPLERS = ("top_p90", "top_p95")
"""Samplers of that pass, on request: the likeliest tokens that have 0.9 or 0.95 of the
probability."""

ALL_SAMPLERS = (*SAMPLERS, *NUCLEUS_SAMPLERS)


class IdentifierScores(NamedTuple):
    """Scores of an identifier after one prompt: columns of the evidence.

    All are NaN where it was not scored after this prompt.

    Attributes
    ----------
    n_tokens
        Tokens of the identifier.
    greedy, greedy_sure
        Whether greedy decoding writes it: if it wins all ties for the first place, and
        without ties.
    logp_t1, logp_top40, logp_top_p90, logp_top_p95
        Its log probability under sampling, nats; minus infinity: it is never drawn. The
        last two are NaN without the pass :data:`NUCLEUS`, and after all prompts but the
        true prefix.
    parts, parts_right
        Results of :func:`graded`.
    bits
        Bound of its chance from above, for any decoder that keeps the order of tokens
        (:mod:`spark_audit.stats.extraction_bound`): one draw gives it at most with
        2^-bits.
    near_miss
        Whether greedy decoding misses it nearly (:mod:`spark_audit.data.near_misses`),
        by what is known of its answer: the characters up to the first wrong token. NaN:
        no prompt maps its tokens to characters.
    """

    n_tokens: float
    greedy: float
    greedy_sure: float
    logp_t1: float
    logp_top40: float
    parts: float
    parts_right: float
    logp_top_p90: float
    logp_top_p95: float
    bits: float
    near_miss: float


EXTRACT_COLUMNS = IdentifierScores._fields


def span_facts(manifest: Manifest, trained_on: Trained) -> Iterator[dict[str, Any]]:
    """Yield all facts of each span but its scores, in the order of :func:`spans_of`.

    They are columns of the evidence, see
    :class:`~spark_audit.audits.extract.audit.Extraction`.

    Parameters
    ----------
    trained_on
        What training did with the identifiers.
    """
    # These facts are computed once for all spans.
    first_rows = _first_rows(manifest)
    facts = identifier_facts(manifest, trained_on)
    strings = string_facts(manifest)
    canary_states = canary_supervision(manifest)
    dose_by_canary = _dose_by_canary(manifest)

    for example, span, _ in spans_of(manifest):
        canary_id = example.canary_id or ""
        part = span.part or ""
        key = (example.id, span.start, span.end)

        # Training reads a canary in as many rows as the manifest lists.
        dose = facts[key].dose
        if canary_id:
            # If only a part of the manifest is audited, its canaries are not listed.
            unlisted = 0 if example.split == "test" else 1
            dose = dose_by_canary.get(canary_id, unlisted)

        # Columns of the evidence, in their order.
        record = {
            "set": "canary" if canary_id else "pii",
            "split": example.split,
            "task": example.task,
            "type": span.type,
            "origin": span.origin,
            "cluster": example.cluster,
            "canary_id": canary_id,
            "part": part,
            "dose": dose,
            "first": first_rows[canary_id or example.id, part] == example.id,
            "stratum": facts[key].stratum,
        }
        # The column exists only if the training input of some row is known.
        if trained_on.is_known and canary_id:
            record[COLUMN] = canary_states.get(canary_id, "")
        elif trained_on.is_known:
            record[COLUMN] = trained_on.supervision_of(example, span)
        yield {**record, **strings[key]}


def _first_rows(manifest: Manifest) -> dict[tuple[str, str], str]:
    """Map each canary and part to the first id of the rows that contain it.

    Several rows can contain one canary; the first by id counts. A row without a canary
    stands in its place, and is its own first row.
    """
    first_rows: dict[tuple[str, str], str] = {}
    for example, span, _ in spans_of(manifest):
        key = (example.canary_id or example.id, span.part or "")
        first_rows[key] = min(example.id, first_rows.get(key, example.id))
    return first_rows


def _dose_by_canary(manifest: Manifest) -> dict[str, int]:
    """Return the number of trained rows in which each canary was read.

    It is 0 for a held-out canary, and :data:`~spark_audit.audits.supervision.NOT_READ`
    if training cut it off in all of its rows.
    """
    n_rows_cut = canary_rows_cut(manifest)
    doses = {}
    for canary in manifest.canaries:
        n_rows_read = canary.dose - n_rows_cut[canary.canary_id]
        if canary.held_out:
            doses[canary.canary_id] = 0
        elif n_rows_read > 0:
            doses[canary.canary_id] = n_rows_read
        else:
            doses[canary.canary_id] = NOT_READ
    return doses


class PromptedIdentifier(NamedTuple):
    """An identifier and the prompts that ask for it.

    Attributes
    ----------
    text, type
        Its string, and its type in the manifest.
    tokens
        Where it stands in its row.
    prompts
        Prompt -> key of the text that was scored; the true prefix comes first. Its key
        is the id of the row.
    """

    text: str
    type: str
    tokens: TokenRange
    prompts: Mapping[str, str]


class ScoredTokens(NamedTuple):
    """The lines of a table that score the tokens of an identifier after one prompt."""

    table: TokenTable
    lines: slice


def identifier_scores(
    identifier: PromptedIdentifier,
    table: TokenTable,
    prompted: TokenTable | None,
    nucleus: TokenTable | None,
) -> Iterator[IdentifierScores]:
    """Yield the scores of an identifier after each of its prompts, in their order.

    Parameters
    ----------
    table, prompted, nucleus
        Scores of one checkpoint after the true prefix, after other prompts, and of
        top-p sampling; ``None``: such a pass was not made.
    """
    scored = _scored_by_prompt(identifier, table, prompted)
    part_counts = graded(scored, identifier.text, identifier.type)

    for prompt in identifier.prompts:
        if prompt not in scored:
            yield IdentifierScores._make([np.nan] * len(EXTRACT_COLUMNS))
            continue

        columns = scored[prompt].table.columns
        lines = scored[prompt].lines
        nll = columns["nll"][lines]  # (tokens,), nats
        rank = columns["rank_lo"][lines]  # (tokens,), 1 is the likeliest
        ties = columns["ties"][lines]  # (tokens,), others as likely as this one
        top40_mass = columns["top40_logp"][lines]  # (tokens,), nats

        # Greedy decoding writes the identifier if every token has rank 1.
        is_greedy = bool((rank == 1).all())
        # Rounding can make the NLL of a certain token slightly negative.
        logp = min(0.0, -float(nll.sum(dtype=np.float64)))

        top_p_logp = dict.fromkeys(NUCLEUS_SAMPLERS, np.nan)
        if prompt == FULL_PROMPT and nucleus is not None:
            for sampler in NUCLEUS_SAMPLERS:
                top_p_logp[sampler] = _top_p_logp(nucleus, identifier, sampler)

        yield IdentifierScores(
            n_tokens=len(nll),
            greedy=is_greedy,
            greedy_sure=is_greedy and not ties.any(),
            logp_t1=logp,
            logp_top40=float(top_k_logp(nll, rank, top40_mass, k=TOP_TOKENS).sum()),
            parts=part_counts[prompt].parts,
            parts_right=part_counts[prompt].right,
            logp_top_p90=top_p_logp["top_p90"],
            logp_top_p95=top_p_logp["top_p95"],
            bits=bound_bits(rank),
            near_miss=_is_near_miss(identifier.text, part_counts[prompt].n_characters),
        )


def _scored_by_prompt(
    identifier: PromptedIdentifier, table: TokenTable, prompted: TokenTable | None
) -> dict[str, ScoredTokens]:
    """Map each prompt after which the identifier was scored to its tokens' scores.

    Parameters
    ----------
    table, prompted
        Scores after the true prefix, and after other prompts.
    """
    # After its true prefix it is a section of the scored row, after other prompts all
    # that was scored.
    key_of_row = identifier.prompts[FULL_PROMPT]
    scored = {
        FULL_PROMPT: ScoredTokens(table, table.span(key_of_row, *identifier.tokens))
    }
    if prompted is None:
        return scored

    for prompt, key in identifier.prompts.items():
        if prompt != FULL_PROMPT and key in prompted:
            scored[prompt] = ScoredTokens(prompted, prompted.rows(key))
    return scored


def _top_p_logp(
    table: TokenTable, identifier: PromptedIdentifier, sampler: str
) -> float:
    """Return log p (nats) of an identifier under top-p sampling, after its prefix."""
    lines = table.span(identifier.prompts[FULL_PROMPT], *identifier.tokens)
    nll = table.columns["nll"][lines]  # (tokens,), nats
    rank = table.columns["rank_lo"][lines]  # (tokens,), 1 is the likeliest
    mass = table.columns[f"{sampler}_logp"][lines]  # (tokens,), nats
    n_kept = table.columns[f"{sampler}_size"][lines]  # (tokens,), tokens to draw from
    # Top-p sampling is top-k sampling with another k at each token.
    return float(top_k_logp(nll, rank, mass, k=n_kept).sum())


def listed(prompts: str) -> list[str]:
    """Return the prompts that an option names in addition to the true prefix.

    They have the order of :data:`~spark_audit.manifest.asked_prompts.PROMPTS`; the name
    of the true prefix adds none.

    Parameters
    ----------
    prompts
        Names between commas.

    Raises
    ------
    InputError
        If it names a prompt that does not exist.
    """
    names = [name.strip() for name in prompts.split(",")]
    for name in names:
        one_of(name, "--prompts", (FULL_PROMPT, *asked_prompts.PROMPTS))
    return [name for name in asked_prompts.PROMPTS if name in names]


def spans_of(
    manifest: Manifest,
) -> Iterator[tuple[ManifestExample, ManifestSpan, TokenRange]]:
    """Yield identifiers of rows without a canary, and the parts of canaries.

    Each has its row, its span (characters), and the range of its tokens in the row.
    Left out are annotated identifiers of rows with a canary.
    """
    for example in manifest.examples:
        for span, tokens in example.identifiers:
            if (span.part is None) == (example.canary_id is None):
                yield example, span, tokens


class PartCount(NamedTuple):
    """How many parts an identifier has, and how many of them greedy decoding writes."""

    parts: int
    right: int
    n_characters: int | None
    """Characters up to the first wrong token; ``None``: not known."""


def graded(
    scored: Mapping[str, ScoredTokens], text: str, pii_type: str
) -> dict[str, PartCount]:
    """Return the parts of an identifier that greedy decoding writes, by prompt.

    The parts of a number are its digits; those behind the first wrong token count as
    wrong, since one in ten would be right by chance. The only part of an e-mail address
    is the text before its @. Other identifiers have no parts, nor has one whose tokens
    cannot be mapped to characters by any prompt.

    Parameters
    ----------
    scored
        Prompt -> scores of the identifier's tokens after it.
    """
    last_characters = _last_characters_of_parts(text, pii_type)
    # Tables of prompts map tokens to characters, that of the plain pass does not. After
    # the last tokens of its prefix the string has the same tokens as in its row: such a
    # prompt maps those of the true prefix, too.
    tail_prompts = asked_prompts.TOKENS_BEFORE_IDENTIFIER
    tails = [scored[name] for name in tail_prompts if name in scored]

    counts = {}
    for prompt, tokens in scored.items():
        if prompt != FULL_PROMPT:
            positioned = tokens
        elif tails:
            positioned = tails[0]
        else:
            counts[prompt] = PartCount(0, 0, None)
            continue

        columns = tokens.table.columns
        is_behind = columns["rank_lo"][tokens.lines] > 1  # (tokens,), bool
        is_tied = columns["ties"][tokens.lines] > 0
        is_wrong = is_behind | is_tied

        # Parts count up to the first wrong token; without one, all are right.
        n_tokens_right = int(np.argmax(np.append(is_wrong, True)))
        n_characters_right = 0
        if n_tokens_right:
            # Number of the identifier's characters up to the end of each token.
            token_ends = positioned.table.position[positioned.lines]  # (tokens,)
            n_characters_right = int(token_ends[n_tokens_right - 1])

        n_parts_right = sum(last < n_characters_right for last in last_characters)
        counts[prompt] = PartCount(
            parts=len(last_characters),
            right=n_parts_right,
            n_characters=n_characters_right,
        )
    return counts


def _is_near_miss(text: str, n_right: int | None) -> float:
    """Return 1 if an answer nearly misses an identifier, else 0; NaN: not known.

    What greedy decoding writes behind its first wrong token is not known, and counts as
    wrong: so many near misses there are at least.

    Parameters
    ----------
    n_right
        Characters of the answer up to its first wrong token; ``None``: not known.
    """
    if n_right is None:
        return np.nan
    return float(near_miss(text, known_answer(text, n_right)) is not None)


def _last_characters_of_parts(text: str, pii_type: str) -> list[int]:
    """Return the index of the last character of each part of a string.

    Each digit is a part, or of an e-mail address all before its @.
    """
    if pii_type != "EMAIL":
        return [i for i, character in enumerate(text) if character.isdigit()]

    last_before_at = text.find("@") - 1
    if last_before_at < 0:
        return []
    return [last_before_at]
