"""The evidence of the matched audit: one row a checkpoint, span and role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.base import Tables
from spark_audit.audits.identifier_facts import identifier_facts
from spark_audit.audits.matched.rematch import affordable, other_pairs
from spark_audit.audits.spans import Sums, audited_spans
from spark_audit.manifest.schema import Manifest, TokenRange
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.scoring.table import Pass
from spark_audit.stats.matching import non_overlapping_windows

CLASSES = {"d": "digits", "A": "capitals", "a": "letters", "-": "marks"}
"""Classes of tokens, and the columns that count an identifier's tokens of each."""


def span_evidence(
    manifest: Manifest, tables: Tables, *, rematched: bool, draws: int, seed: int
) -> Evidence:
    """What the matched audit concludes from.

    Roles: ``pii`` and ``control`` (the two sides of ``pair``), ``unmatched`` (PII
    without a control), ``window`` (eligible non-PII text of a span's length, the
    pool that regression to the mean is estimated on) and ``low`` (the tokens of low
    sensitivity of an example, one row an example). ``nll_sum`` is the checkpoint's,
    ``ref_sum`` the reference's, both in nats. ``dose`` is the number of trained rows
    that the identifier's string stands in, whichever row it is read in, and ``trained``
    1 where that is any; ``form``, ``cue``, ``stratum`` and ``text_auc`` are those of
    :class:`~spark_audit.audits.identifier_facts.Facts`, 0 for any other text. ``alike``
    rows hold the eligible tokens of one class (``type``: see
    :class:`~spark_audit.manifest.schema.ManifestExample`) of an example, and columns
    :data:`CLASSES` how many tokens of each an identifier has. Without a ``split`` are
    the roles of :func:`~spark_audit.audits.matched.rematch.other_pairs`.
    """
    scores = {n: passes[Pass()] for n, passes in tables.items() if Pass() in passes}
    skeleton = _frame(_spans(manifest)) if scores else pd.DataFrame()
    if skeleton.empty:
        return Evidence()
    at = tuple(skeleton[name].to_numpy() for name in ("index", "start", "n_tokens"))
    others = _frame(_texts(manifest), "places")
    of, places = others["index"].to_numpy(), others.pop("places").to_list()
    drawn = affordable(manifest, draws)
    more = [*other_pairs(manifest, rematched=rematched, draws=drawn, seed=seed)]

    def scored(found: Sums) -> np.ndarray:
        rows = map(found.of_tokens, of, places)
        return np.concatenate(
            [
                found(*at),
                np.fromiter(rows, float),
                *(summed(found) for _, summed in more),
            ]
        )

    units = pd.concat(
        [skeleton, others, *(_frame(units) for units, _ in more)], ignore_index=True
    )
    units = units.drop(columns="index")
    units["ref_sum"] = scored(Sums.of_reference(manifest))

    def measured() -> Measured:
        for name, table in scores.items():
            yield name, {"nll_sum": scored(Sums.of_table(manifest, table))}

    facts = {"rematched": rematched, "placebo": draws > 0, "draws": drawn}
    return Evidence.of(units, measured(), facts)


def _spans(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """The spans of every role, without scores."""
    index = {example.id: i for i, example in enumerate(manifest.examples)}
    facts = identifier_facts(manifest)

    def identifier(i: int, role: str, tokens: TokenRange, pair: int) -> dict[str, Any]:
        example = manifest.examples[i]
        span = next(s for s in example.spans if s.tokens == tokens)
        known = facts[example.id, span.start, span.end]
        told = {"trained": int(known.dose > 0), **vars(known)}
        held = Counter(example.classes[slice(*tokens)])
        told |= {name: held[letter] for letter, name in CLASSES.items()}
        size = tokens[1] - tokens[0]
        own = _row(manifest, i, role, tokens[0], size, type=span.type)
        return {**own, "pair": pair, **told}

    paired = set()
    for number, pair in enumerate(manifest.pairs):
        i, pii, control = index[pair.example], pair.pii, pair.control
        place = (pii.token_start, pii.token_end)
        paired.add((i, *place))
        yield identifier(i, "pii", place, number)
        size = control.token_end - control.token_start
        own = {"type": pii.type, "pair": number}
        yield _row(manifest, i, "control", control.token_start, size, **own)
    for split in ("train", "test"):
        for i, example, ranges in audited_spans(manifest, split=split):
            for place in ranges:
                if (i, *place) not in paired:
                    yield identifier(i, "unmatched", place, -1)
            for size in sorted({end - start for start, end in ranges}):
                for start in non_overlapping_windows(example.eligible, size):
                    yield _row(manifest, i, "window", int(start), size)


def _texts(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """``low`` and ``alike`` rows, with their tokens, which are no range: ``places``."""
    for split in ("train", "test"):
        for i, example, _ in audited_spans(manifest, split=split):
            if example.low:
                low = _row(manifest, i, "low", 0, len(example.low))
                yield {**low, "places": example.low}
            letters = np.array(list(example.classes))
            for letter in CLASSES:
                at = np.flatnonzero(example.eligible & (letters == letter))
                if len(at):
                    alike = _row(manifest, i, "alike", 0, len(at), type=letter)
                    yield {**alike, "places": at.astype(np.int32)}


def _row(
    manifest: Manifest, i: int, role: str, start: int, n_tokens: int, **more: Any
) -> dict[str, Any]:
    example = manifest.examples[i]
    return {
        "index": i,
        "example": example.id,
        "cluster": example.cluster,
        "task": example.task,
        "split": example.split,
        "role": role,
        "start": start,
        "n_tokens": n_tokens,
        **more,
    }


def _frame(
    records: Iterator[dict[str, Any]] | pd.DataFrame, *further: str
) -> pd.DataFrame:
    words = dict.fromkeys(("example", "cluster", "task", "split", "role", "type"), "")
    counts = dict.fromkeys(("trained", "dose", "form", "cue", "stratum"), 0)
    counts |= dict.fromkeys(CLASSES.values(), 0)
    whole = {"pair": -1, "start": 0, "n_tokens": 0, **counts}
    names = ["index", *words, *whole, "text_auc", *further]
    frame = pd.DataFrame(records).reindex(columns=names)
    filled = frame.astype(dict.fromkeys(words, object)).fillna({**words, **whole})
    return filled.astype({**dict.fromkeys(whole, np.int64), "text_auc": np.float64})
