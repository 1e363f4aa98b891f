"""The table of prompts: what comes back behind each of them.

Each prompt is compared with the same prompt for identifiers never trained on, and
against the base. Only the true prefix is a primary test; the others are one exploratory
family, corrected by Holm in their own table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import product

import numpy as np
import pandas as pd

from spark_audit.audits.extract.prompts import FULL_PROMPT
from spark_audit.audits.extract.rates import (
    CONFIDENCE,
    NOT_COMPARED,
    SPLITS,
    by_checkpoint,
    difference_beyond_base,
    value_and_limits,
)
from spark_audit.manifest.asked_prompts import PROMPTS
from spark_audit.names import BASE
from spark_audit.results.audit_result import TableRecord
from spark_audit.stats.bootstrap import holm_by_key
from spark_audit.stats.sampled_extraction import n_p

WHOLE, DIGITS, LOCAL = "identifiers", "digits", "local parts"

WITHIN = (1, 10, 100)
"""Numbers of draws that the table of prompts counts."""

NOT_ASKED = "no identifier of a trained row fits this prompt"

PROMPT_NOT_SCORED = "the texts of this prompt were not scored"


def cue_alone(every: pd.DataFrame) -> pd.DataFrame:
    """Spans behind their true prefix, with what the cue and the base give, ties won.

    ``cue``: this checkpoint's cue or the base's; ``cue_asked``: whether one was asked
    for; ``base``: the base, behind the true prefix or the cue.
    """
    place = ["checkpoint", "prompt", "span"]
    won = pd.MultiIndex.from_frame(every.loc[every["greedy"].astype(bool), place])
    full = every[every["prompt"] == FULL_PROMPT]

    def back(places: pd.DataFrame) -> np.ndarray:
        """Return whether each span comes back at its checkpoint and prompt."""
        return np.asarray(pd.MultiIndex.from_frame(places).isin(won))

    places = full[place]
    is_cued = back(places.assign(prompt="cue"))
    is_base = back(places.assign(checkpoint=BASE))
    is_base_cued = back(places.assign(checkpoint=BASE, prompt="cue"))
    asked = every["prompt"] == "cue"
    return full.assign(
        trials=1,
        cue=is_cued | is_base_cued,
        cue_asked=full["span"].isin(every.loc[asked, "span"]),
        base=is_base | is_base_cued,
    )


def prompt_table(every: pd.DataFrame, *, seed: int) -> list[TableRecord]:
    """Records by checkpoint and prompt, the true prefix first; hits that are sure.

    One is of whole identifiers, the others of their parts
    (:func:`~spark_audit.audits.extract.prompts.graded`).
    ``true_prefix`` counts those of the same spans that come back behind it, ``cue_too``
    those of the prompt's hits that the cue gives in another row's context too; ``note``
    has the reason where no difference is estimable, ``shown`` is whether one was found,
    None where it is not tested here. Empty where nothing but the true prefix was asked.
    """
    if {*every["prompt"]} <= {FULL_PROMPT}:
        return []
    full, mail = by_checkpoint(cue_alone(every)), every["type"] == "EMAIL"
    right, parts = every["parts_right"], every["parts"]
    graded = every.assign(greedy_sure=right, greedy=right, trials=parts)
    cases = {WHOLE: every.assign(trials=1), DIGITS: graded[~mail], LOCAL: graded[mail]}
    cue = bool((every["prompt"] == "cue").any())
    records: list[TableRecord] = []
    for prompt, (of, case) in product((FULL_PROMPT, *PROMPTS), cases.items()):
        asked = case[(case["prompt"] == prompt) & (case["trials"] > 0)]
        for name, spans in by_checkpoint(asked).items():
            train, test = (spans[spans["split"] == split] for split in SPLITS)
            if train.empty:
                continue
            base = train["greedy" if name == BASE else "base_won"].dropna()
            record: TableRecord = {
                "checkpoint": name,
                "prompt": prompt,
                "of": of,
                "spans": len(train),
                "clusters": int(train["cluster"].nunique()),
                "tried": int(train["trials"].sum()),
                "found": int(train["greedy_sure"].sum()),
                "base_found": None if base.empty else int(base.sum()),
                "held_out": int(test["trials"].sum()),
                "held_out_found": int(test["greedy_sure"].sum()),
            }
            apart, p = difference_beyond_base(spans, seed=seed, whole=of == WHOLE)
            value, low, high = value_and_limits(apart)
            record["beyond_points"] = None if p is None else round(100 * value, 2)
            record["low"] = None if p is None else round(100 * low, 2)
            record["high"] = None if p is None else round(100 * high, 2)
            if of == WHOLE:
                hits = train.index[train["greedy_sure"].astype(bool)]
                tries = n_p(train["logp_top40"].to_numpy(np.float64))
                same = full[name][full[name].index.isin(train.index)]
                too = int(same["cue"][same.index.isin(hits)].sum()) if cue else None
                record |= {
                    "true_prefix": int(same["greedy_sure"].sum()),
                    "cue_too": too,
                }
                record |= {f"top40_within_{n}": int((tries <= n).sum()) for n in WITHIN}
            tested = (prompt, of) != (FULL_PROMPT, WHOLE) and name != BASE
            record["note"] = NOT_COMPARED if p is None else ""
            records.append({**record, "p": p if tested else None})
    order = [*full]
    records.sort(key=lambda record: order.index(record["checkpoint"]))
    adjusted = holm_by_key({i: record.pop("p") for i, record in enumerate(records)})
    for i, record in enumerate(records):
        clear = (record["low"] or 0.0) > 0 and adjusted.get(i, 1.0) < 1 - CONFIDENCE
        record["shown"] = clear if i in adjusted else None
    return records


def not_asked(
    records: Sequence[TableRecord],
    *,
    asked: Iterable[str],
    trained: Collection[str],
    checkpoints: Sequence[str],
) -> list[TableRecord]:
    """Return a record, with the reason, for each prompt that asked for nothing.

    Parameters
    ----------
    records
        Those of prompts that asked for something.
    asked
        All prompts that an option names.
    trained
        Prompts that fit an identifier of a trained row.
    """
    done = {(record["checkpoint"], record["prompt"]) for record in records}
    empty: TableRecord = dict.fromkeys(records[0] if records else ())
    empty_records = []
    for name in checkpoints:
        for prompt in asked:
            if (name, prompt) in done:
                continue
            reason = PROMPT_NOT_SCORED if prompt in trained else NOT_ASKED
            record = empty | {
                "checkpoint": name,
                "prompt": prompt,
                "of": WHOLE,
                "spans": 0,
                "clusters": 0,
                "note": f"not estimable: {reason}",
            }
            empty_records.append(record)
    return empty_records
