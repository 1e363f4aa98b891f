"""What a manifest selects: pairs, tokens of low sensitivity, canaries, members.

Everything follows from the layouts and the reference model's micro-nats; no checkpoint
is looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from spark_audit.data.canaries import RANKED, Encode, canary_ranges
from spark_audit.data.candidate_sets import Candidates, Context, candidates
from spark_audit.data.examples import Canary, Example, Part
from spark_audit.data.sensitivity_score import (
    score2,
    sensitivity,
    stop_word_ranges,
    token_counts,
)
from spark_audit.data.templates import parts_outside, template_ranges
from spark_audit.errors import InputError
from spark_audit.manifest.covariates import Corpus
from spark_audit.manifest.layout import Layout, Rows
from spark_audit.provenance import seed_for
from spark_audit.stats.duplicates import duplicate_groups
from spark_audit.stats.matching import match_spans

CUT_OFF = "cut off: text longer than the context"
NO_TOKEN = "no token of its own"

Record = dict[str, Any]


# --- pairs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """Matched and unmatched spans as the manifest's records.

    ``scored`` are ``(example, start, length)`` of all spans that can be compared,
    matched or not, ``matched`` and ``controls`` those of the pairs' sides.
    """

    pairs: list[Record] = field(default_factory=list)
    unmatched: list[Record] = field(default_factory=list)
    scored: list[tuple[int, int, int]] = field(default_factory=list)
    matched: list[tuple[int, int, int]] = field(default_factory=list)
    controls: list[tuple[int, int, int]] = field(default_factory=list)


def match(
    texts: Corpus,
    eligible: np.ndarray,
    *,
    caliper: float,
    distance: Literal["mean", "profile"],
    controls: Literal["any", "before"],
) -> Pairs:
    """Match every span that is no part of a canary with text of its own example.

    Parameters
    ----------
    eligible
        Shape ``(N,)``, bool: tokens that a control may use.
    caliper
        Nats a token.
    """
    found = Pairs()
    for i, row in enumerate(texts.rows):
        spans, reasons = dict[int, tuple[int, int]](), dict[int, str]()
        for j, (span, tokens) in enumerate(
            zip(row.example.spans, row.spans, strict=True)
        ):
            if span.part is not None:
                continue
            if tokens is not None and row.within(tokens):
                spans[j] = tokens.start, tokens.end
            else:
                reasons[j] = CUT_OFF if tokens else NO_TOKEN
        part = texts.of(i)
        unll = texts.unll[part]
        if spans:
            matching = match_spans(
                unll,
                eligible[part],
                [*spans.values()],
                caliper_u=round(1e6 * caliper),
                distance=distance,
                controls=controls,
                shows=row.encoding.start < row.encoding.end,
            )
            which = [*spans]
            reasons |= {which[i]: why for i, why in matching.unmatched.items()}
            for pair in matching.pairs:
                of = which[pair.span]
                start, length = spans[of][0], spans[of][1] - spans[of][0]
                found.pairs.append(_pair(row, of, start, pair.start, length, unll))
                found.matched.append((i, start, length))
                found.controls.append((i, pair.start, length))
        found.scored.extend(
            (i, start, end - start)
            for start, end in spans.values()
            if (unll[start:end] >= 0).all()
        )
        for j in sorted(reasons):
            span = row.example.spans[j]
            found.unmatched.append(
                {
                    "example": row.example.id,
                    "char_start": span.start,
                    "char_end": span.end,
                    "type": span.type,
                    "reason": reasons[j],
                }
            )
    return found


def _pair(
    row: Layout, of: int, start: int, control: int, length: int, unll: np.ndarray
) -> Record:
    """The record of a span (by its number) and the control's first token."""
    span, encoding = row.example.spans[of], row.encoding

    def side(at: int, char_start: int, char_end: int) -> Record:
        return {
            "token_start": at,
            "token_end": at + length,
            "char_start": int(char_start),
            "char_end": int(char_end),
            "nll": int(unll[at : at + length].sum()) / (1e6 * length),
        }

    apart = int((unll[start : start + length] - unll[control : control + length]).sum())
    last = control + length - 1
    return {
        "example": row.example.id,
        "pii": {**side(start, span.start, span.end), "type": span.type},
        "control": side(control, encoding.start[control], encoding.end[last]),
        "distance": abs(apart) / (1e6 * length),
        "weight": 1.0,
    }


# --- tokens of low sensitivity --------------------------------------------------------


def low_sensitivity(
    texts: Corpus, *, alpha: float, tau: float, counts: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Scored tokens of plain text with a sensitivity Score of at most ``tau``.

    **[ours]** Score_1 is the reference model's NLL, Score_2 is taken over all tasks and
    rows of the manifest. No identifier, special or template token is among them.

    Parameters
    ----------
    counts
        :func:`counts_by_task` of all rows.

    Returns
    -------
    numpy.ndarray
        Shape ``(N,)``, bool.
    """
    pii = np.concatenate([row.pii for row in texts.rows])
    fixed = np.concatenate([row.fixed for row in texts.rows])
    stop = np.concatenate(
        [row.encoding.mask(stop_word_ranges(row.example.text)) for row in texts.rows]
    )
    scored = texts.unll >= 0
    low = np.zeros(len(scored), dtype=bool)
    low[scored] = (
        sensitivity(
            texts.unll[scored] / 1e6,
            score2([counts[name] for name in sorted(counts)])[texts.tokens[scored]],
            alpha=alpha,
            pii_mask=pii[scored],
            zero_mask=(stop | fixed)[scored],
        )
        <= tau
    )
    return np.asarray(low & ~pii & ~fixed & ~texts.special)


def counts_by_task(rows: Iterable[Layout], vocab_size: int) -> dict[str, np.ndarray]:
    """How often each token stands in the rows of each task, special ones left out."""
    found: dict[str, list[np.ndarray]] = {}
    for row in rows:
        plain = row.encoding.ids[~row.encoding.special]
        found.setdefault(row.example.task, []).append(plain)
    return {
        task: token_counts([np.concatenate(ids)], vocab_size=vocab_size)
        for task, ids in found.items()
    }


# --- canaries -------------------------------------------------------------------------


def canary_sets(
    rows: Sequence[tuple[Layout, np.ndarray]],
    *,
    encode: Encode,
    contexts: int | None,
    n: int,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[Record], int]:
    """Candidates for every canary and part, each from a pool of its own.

    Parameters
    ----------
    rows
        Those with a canary, and the micro-nats of their tokens.
    encode
        Token ids of texts, special tokens included.
    contexts
        Rows that a canary is ranked in, the first by id that hold all of it;
        ``None``: all.
    n
        Strings in a set.

    Returns
    -------
    list, int
        The manifest's records, and in how many rows a canary was cut.
    """
    standing: dict[str, list[tuple[Layout, np.ndarray]]] = defaultdict(list)
    for row, unll in rows:
        if row.example.canary is not None:
            standing[row.example.canary.id].append((row, unll))
    records, cut = list[Record](), 0
    for _, held in sorted(standing.items()):
        canary, parts = _one_canary([row.example for row, _ in held])
        whole = [row for row, unll in held if _is_whole(row, unll)]
        cut += len(held) - len(whole)
        for part in RANKED:
            ranges = [(row, canary_ranges(row.example)[part]) for row in whole]
            places, tokens = ranges[:contexts], None
            found = Candidates((), None, CUT_OFF)
            if places:
                tokens = places[0][0].encoding.span(*places[0][1])
                found = candidates(
                    canary.format,
                    parts,
                    part,
                    encode=encode,
                    contexts=[Context(row.example.text, *at) for row, at in places],
                    seed=seed_for(seed, canary.id, part),
                    n=n,
                )
            record = {
                "canary_id": canary.id,
                "part": part,
                "contexts": [
                    {"example": row.example.id, "char_start": start, "char_end": end}
                    for row, (start, end) in places
                ],
                "candidates": list(found.strings),
                "true_index": found.true_index,
                "reason": found.reason or None,
                "n_tokens": tokens.end - tokens.start if tokens else None,
                "format": canary.format,
                "dose": canary.dose,
                "held_out": canary.held_out,
            }
            records.append(record | ({"pair": canary.pair} if canary.pair else {}))
            progress(len(records), len(standing) * len(RANKED))
    return records, cut


def _one_canary(held: Sequence[Example]) -> tuple[Canary, dict[Part, str]]:
    """What all rows of a canary agree on: the canary and its parts."""
    (canary, parts), *others = {
        (e.canary, tuple((s.part, e.text[s.start : s.end]) for s in e.spans if s.part))
        for e in held
    }
    assert canary is not None
    if others:
        raise InputError(
            "rows of one canary hold different strings or facts",
            where=f"canary {canary.id!r}",
            fix="inject again",
        )
    return canary, {part: text for part, text in parts if part is not None}


def _is_whole(row: Layout, unll: np.ndarray) -> bool:
    """Whether every token of the canary was scored."""
    tokens = row.encoding.span(*canary_ranges(row.example)["full"])
    return tokens is not None and bool((unll[tokens.start : tokens.end] >= 0).all())


# --- duplicates and membership --------------------------------------------------------


def duplicates(rows: Rows) -> np.ndarray:
    """Near-duplicate group of each row, shape ``(n,)``, int64.

    Fixed wording is left out: all rows of a task share it.
    """
    texts = []
    for example in rows.examples:
        fixed = template_ranges(example, rows.templates)
        parts = parts_outside(fixed, len(example.text))
        text = " ".join(example.text[start:end] for start, end in parts)
        texts.append(text if text.strip() else example.text)
    return duplicate_groups(texts)


def membership(
    examples: Sequence[Example], groups: np.ndarray
) -> tuple[dict[str, list[str]], int]:
    """Members and non-members, and how many rows near-duplicates cost.

    Members are the train rows without a canary, non-members the test rows without one.
    Rows whose near-duplicate group stands in both splits are neither.
    """
    rows = [*zip(examples, groups.tolist(), strict=True)]
    train, test = (
        {group for example, group in rows if example.split == split}
        for split in ("train", "test")
    )
    crossing, found = 0, {"members": list[str](), "non_members": list[str]()}
    for example, group in rows:
        if example.canary is None and group in train & test:
            crossing += 1
        elif example.canary is None:
            side = "members" if example.split == "train" else "non_members"
            found[side].append(example.id)
    return found, crossing
