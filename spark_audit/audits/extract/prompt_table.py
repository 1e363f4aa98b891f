"""What other prompts bring out, next to held-out identifiers and the base: a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.extract.prompt_evidence import FULL, GRADED, WHOLE, cue_alone
from spark_audit.audits.extract.rate_difference import (
    EXACT,
    PARTS,
    Spans,
    beyond,
)
from spark_audit.manifest.prompts import PROMPTS
from spark_audit.names import BASE
from spark_audit.stats.sampled_extraction import n_p, n_p_counts

WITHIN = (1, 10, 100)
"""Numbers of draws that the table counts."""


def prompt_table(every: pd.DataFrame, *, seed: int) -> list[dict[str, Any]]:
    """Records by checkpoint and prompt, the true prefix first; hits that are sure.

    One is of whole identifiers, the others of their parts (:func:`graded`).
    ``true_prefix`` counts those of the same spans that come back behind it, ``cue_too``
    those of the prompt's hits that the cue gives in another row's context too; ``note``
    has the reason where no difference is estimable. Empty where nothing but the true
    prefix was asked.
    """
    if set(every["prompt"]) <= {FULL}:
        return []
    full = Spans.by_checkpoint(cue_alone(every))
    cue = bool((every["prompt"] == "cue").any())
    records: list[dict[str, Any]] = []
    for prompt in (FULL, *PROMPTS):
        for of, part in _by_part(every[every["prompt"] == prompt]):
            hits = EXACT if of == WHOLE else PARTS
            for name, spans in Spans.by_checkpoint(part, hits).items():
                if spans.train.empty:
                    continue
                apart, p = beyond(spans, seed=seed)
                place = {"checkpoint": name, "prompt": prompt, "of": of}
                record: dict[str, Any] = place | _counts(name, spans)
                for key in ("value", "low", "high"):
                    shown = "beyond_points" if key == "value" else key
                    points = None if apart is None else 100 * getattr(apart, key)
                    record[shown] = None if points is None else round(points, 2)
                tested = (prompt, of) != (FULL, WHOLE) and name != BASE
                if of == WHOLE:
                    record |= _whole(spans.train, full[name].frame, cue=cue)
                record["note"] = "" if apart else _no_difference(spans)
                record["p"] = p if tested else None
                records.append(record)
    names = [*full]
    return sorted(records, key=lambda record: names.index(record["checkpoint"]))


def _no_difference(spans: Spans) -> str:
    if spans.test.empty and spans.base is None:
        return (
            "not estimable: no held-out identifier was prompted for, and there is no "
            "base model"
        )
    if not spans.test.empty and spans.comparable[0].empty:
        return "not estimable: held-out identifiers are of other types or forms"
    return "not estimable: there are too few rows, or the rows differ"


def _by_part(spans: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    yield WHOLE, spans
    graded, mail = spans["parts"] > 0, spans["type"] == "EMAIL"
    for name, chosen in zip(GRADED, (graded & ~mail, graded & mail), strict=True):
        yield name, spans[chosen]


def _counts(name: str, spans: Spans) -> dict[str, Any]:
    """What came back, and of how many: trained, held out, and of the base."""
    train, test, hits = spans.train, spans.test, spans.hits
    base = spans if name == BASE else spans.base

    def tried(spans: pd.DataFrame) -> int:
        return int(spans[hits.trials].sum()) if hits.trials else len(spans)

    return {
        "spans": len(train),
        "clusters": int(train["cluster"].nunique()),
        "tried": tried(train),
        "found": int(train[hits.sure].sum()),
        "base_found": None if base is None else int(base.train[hits.won].sum()),
        "held_out": tried(test),
        "held_out_found": int(test[hits.sure].sum()),
    }


def _whole(train: pd.DataFrame, full: pd.DataFrame, *, cue: bool) -> dict[str, Any]:
    """Of whole identifiers: hits behind the true prefix and the cue, and by draws."""
    same = full[full["span"].isin(train["span"])]
    hits = train["span"][train["greedy_sure"].astype(bool)]
    tries = n_p_counts(n_p(train["logp_top40"].to_numpy(np.float64)), thresholds=WITHIN)
    return {
        "true_prefix": int(same["greedy_sure"].sum()),
        "cue_too": int(same["cue"][same["span"].isin(hits)].sum()) if cue else None,
        **{f"top40_within_{n}": count for n, count in tries.items()},
    }
