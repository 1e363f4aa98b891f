"""The evidence of the matched audit: one row a checkpoint, span and role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.occurrences import identifier_facts
from spark_audit.audits.spans import Sums, audited_spans
from spark_audit.manifest.schema import Manifest, TokenRange
from spark_audit.stats.matching import non_overlapping_windows

CLASSES = {"d": "digits", "A": "capitals", "a": "letters", "-": "marks"}
"""Classes of tokens, and the columns that count an identifier's tokens of each."""


def evidence(manifest: Manifest, sums: Mapping[str, Sums]) -> pd.DataFrame:
    """What the matched audit concludes from, for every checkpoint in ``sums``.

    Roles: ``pii`` and ``control`` (the two sides of ``pair``), ``unmatched`` (PII
    without a control), ``window`` (eligible non-PII text of a span's length, the
    pool that regression to the mean is estimated on) and ``low`` (the tokens of low
    sensitivity of an example, one row an example). ``nll_sum`` is the checkpoint's,
    ``ref_sum`` the reference's, both in nats. ``dose`` is the number of trained rows
    that the identifier's string stands in, whichever row it is read in, and ``trained``
    1 where that is any; ``form`` and ``cue`` number the format of an injected
    identifier and the sentence it was injected with, 0 for any other text. ``alike``
    rows hold the eligible tokens of one class (``type``: see
    :class:`~spark_audit.manifest.schema.ManifestExample`) of an example, and columns
    :data:`CLASSES` how many tokens of each an identifier has.
    """
    skeleton, others = _skeleton(manifest)
    if not len(skeleton):
        return skeleton
    at = tuple(skeleton[name].to_numpy() for name in ("index", "start", "n_tokens"))
    places = others.pop("places")
    whole = pd.concat([skeleton, others], ignore_index=True)

    def scored(found: Sums) -> np.ndarray:
        rows = map(found.of_tokens, others["index"], places)
        return np.concatenate([found(*at), np.fromiter(rows, np.float64)])

    whole["ref_sum"] = scored(Sums.of_reference(manifest))
    parts = [
        whole.assign(checkpoint=name, nll_sum=scored(of_checkpoint))
        for name, of_checkpoint in sums.items()
    ]
    return pd.concat(parts, ignore_index=True).drop(columns="index")


def _skeleton(manifest: Manifest) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The spans of every role, without scores; beside them ``low`` and ``alike`` rows.

    The latter have a column ``places``: their tokens, which are no range.
    """
    index = {example.id: i for i, example in enumerate(manifest.examples)}
    facts = identifier_facts(manifest)
    records: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []

    def row(
        i: int, role: str, start: int, n_tokens: int, **more: Any
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

    def identifier(i: int, role: str, tokens: TokenRange, pair: int = -1) -> None:
        example = manifest.examples[i]
        span = next(s for s in example.spans if s.tokens == tokens)
        known = facts[example.id, span.start, span.end]
        told = {"trained": int(known.dose > 0), **vars(known)}
        held = Counter(example.classes[slice(*tokens)])
        told |= {name: held[letter] for letter, name in CLASSES.items()}
        size = tokens[1] - tokens[0]
        records.append(row(i, role, tokens[0], size, type=span.type, pair=pair, **told))

    paired = set()
    for number, pair in enumerate(manifest.pairs):
        i, pii, control = index[pair.example], pair.pii, pair.control
        place = (pii.token_start, pii.token_end)
        paired.add((i, *place))
        identifier(i, "pii", place, number)
        size = control.token_end - control.token_start
        own = {"type": pii.type, "pair": number}
        records.append(row(i, "control", control.token_start, size, **own))
    for split in ("train", "test"):
        for i, example, ranges in audited_spans(manifest, split=split):
            for place in ranges:
                if (i, *place) not in paired:
                    identifier(i, "unmatched", place)
            for size in sorted({end - start for start, end in ranges}):
                for start in non_overlapping_windows(example.eligible, size):
                    records.append(row(i, "window", int(start), size))
            if example.low:
                low = row(i, "low", 0, len(example.low))
                others.append({**low, "places": example.low})
            letters = np.array(list(example.classes))
            for letter in CLASSES:
                at = np.flatnonzero(example.eligible & (letters == letter))
                if len(at):
                    alike = row(i, "alike", 0, len(at), type=letter)
                    others.append({**alike, "places": at})
    return _frame(records), _frame(others, "places")


def _frame(records: Sequence[Mapping[str, Any]], *further: str) -> pd.DataFrame:
    names = "index example cluster task split role type pair start n_tokens".split()
    counts = ("trained", "dose", "form", "cue", *CLASSES.values())
    frame = pd.DataFrame.from_records(
        list(records), columns=[*names, *counts, *further]
    )
    numbers = dict.fromkeys(counts, 0)
    return frame.fillna({"type": "", "pair": -1, **numbers}).astype(
        {"pair": np.int64, **dict.fromkeys(counts, np.int64)}
    )
