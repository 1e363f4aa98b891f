"""What identifiers are asked with: prompts, samplers, and the cue's share.

Each prompt is compared with the same prompt for identifiers never trained on, and
against the base. Only the true prefix is a primary test; the others are one exploratory
family, corrected by Holm in their own table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.extract.extraction_findings import EXACT, PARTS, Spans, beyond
from spark_audit.errors import InputError, choose
from spark_audit.manifest.prompts import PROMPTS, TAILS
from spark_audit.manifest.schema import (
    Manifest,
    ManifestExample,
    ManifestSpan,
    TokenRange,
)
from spark_audit.names import BASE
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.bootstrap import holm_by_key
from spark_audit.stats.sampled_extraction import n_p, n_p_counts

PROMPTED = Pass("prompted")
PROMPTS_TABLE = "extract_prompts"
SAMPLERS = ("t1", "top40")
NUCLEUS = Pass("nucleus")
NUCLEI = ("top_p90", "top_p95")
"""Samplers of that pass, on request."""
EVERY = (*SAMPLERS, *NUCLEI)
FULL = "full"
"""The true prefix: what the plain pass has read anyway."""
DEFAULT = "last16,cue"
LEVEL = 0.05
WHOLE, GRADED = "identifiers", ("digits", "local parts")
WITHIN = (1, 10, 100)
"""Numbers of draws that the table counts."""
NOT_ASKED = "no identifier of a trained row fits this prompt"
NOT_SCORED = "the texts of this prompt were not scored"
NOT_COMPARED = (
    "not estimable: too few comparable identifiers were held out, or there is no base "
    "model on the same rows"
)


def listed(prompts: str) -> list[str]:
    """The prompts in addition to the true prefix that an option names.

    Raises
    ------
    InputError
        Naming one that there is not.
    """
    names = [name.strip() for name in prompts.split(",")]
    for name in names:
        if name not in (FULL, *PROMPTS):
            raise InputError(
                f"{name!r} is not a prompt",
                where="--prompts",
                fix=choose(name, [FULL, *PROMPTS]),
            )
    return [name for name in PROMPTS if name in names]


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
    tails = [places[name] for name in TAILS if name in places]
    found = {}
    for prompt, (table, rows) in places.items():
        # In its row the string has the same tokens behind all prompts.
        known = [(table, rows)] if prompt != FULL else tails
        if not known:
            found[prompt] = (0, 0)
            continue
        told, at = known[0]
        wrong = (table.columns["rank_lo"][rows] > 1) | (table.columns["ties"][rows] > 0)
        lead = int(np.argmax(np.append(wrong, True)))
        written = int(told.position[at][lead - 1]) if lead else 0
        found[prompt] = _parts(text, kind, written)
    return found


def _parts(text: str, kind: str, written: int) -> tuple[int, int]:
    if kind == "EMAIL":
        local = text.find("@")
        return int(local > 0), int(0 < local <= written)
    digits = [i for i, char in enumerate(text) if char.isdigit()]
    return len(digits), sum(i < written for i in digits)


def cue_alone(every: pd.DataFrame) -> pd.DataFrame:
    """Spans behind their true prefix, with what the cue and the base give, ties won.

    ``cue``: this checkpoint's cue or the base's; ``cue_asked``: whether one was asked
    for; ``base``: the base, behind the true prefix or the cue.
    """
    asked = every["prompt"] == "cue"
    won = every["greedy"].astype(bool)
    full = every[every["prompt"] == FULL]
    places = pd.MultiIndex.from_frame(full[["checkpoint", "span"]])
    own = pd.MultiIndex.from_frame(every[asked & won][["checkpoint", "span"]])
    base = every[(every["checkpoint"] == BASE) & won]
    cued = base.loc[base["prompt"] == "cue", "span"]
    given = base.loc[base["prompt"].isin([FULL, "cue"]), "span"]
    return full.assign(
        cue=places.isin(own) | full["span"].isin(cued),
        cue_asked=full["span"].isin(every.loc[asked, "span"]),
        base=full["span"].isin(given),
    )


def prompt_table(every: pd.DataFrame, *, seed: int) -> list[dict[str, Any]]:
    """Records by checkpoint and prompt, the true prefix first; hits that are sure.

    One is of whole identifiers, the others of their parts (:func:`graded`).
    ``true_prefix`` counts those of the same spans that come back behind it, ``cue_too``
    those of the prompt's hits that the cue gives in another row's context too; ``note``
    has the reason where no difference is estimable, ``shown`` is whether one was found,
    None where it is not tested here. Empty where nothing but the true prefix was asked.
    """
    if set(every["prompt"]) <= {FULL}:
        return []
    full = Spans.by_checkpoint(cue_alone(every))
    cue = bool((every["prompt"] == "cue").any())
    records: list[dict[str, Any]] = []
    for prompt in (FULL, *PROMPTS):
        asked = every[every["prompt"] == prompt]
        graded, mail = asked["parts"] > 0, asked["type"] == "EMAIL"
        kept = (graded | True, graded & ~mail, graded & mail)
        for of, chosen in zip((WHOLE, *GRADED), kept, strict=True):
            part = asked[chosen]
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
                record["note"] = "" if apart else NOT_COMPARED
                record["p"] = p if tested else None
                records.append(record)
    names = [*full]
    records.sort(key=lambda record: names.index(record["checkpoint"]))
    adjusted = holm_by_key({i: record.pop("p") for i, record in enumerate(records)})
    for i, record in enumerate(records):
        clear = (record["low"] or 0.0) > 0 and adjusted.get(i, 1.0) < LEVEL
        record["shown"] = clear if i in adjusted else None
    return records


def _counts(name: str, spans: Spans) -> dict[str, Any]:
    """What came back, and of how many: trained, held out, and of the base."""
    train, test, hits = spans.train, spans.test, spans.hits
    base = spans if name == BASE else spans.base
    return {
        "spans": len(train),
        "clusters": int(train["cluster"].nunique()),
        "tried": int(train[hits.trials].sum()),
        "found": int(train[hits.sure].sum()),
        "base_found": None if base is None else int(base.train[hits.won].sum()),
        "held_out": int(test[hits.trials].sum()),
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


def not_asked(
    records: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """A record, with the reason, for each prompt that asked for nothing."""
    done = {(record["checkpoint"], record["prompt"]) for record in records}
    empty = dict.fromkeys(records[0] if records else ())
    return [
        {**empty, "checkpoint": name, "prompt": prompt, "of": WHOLE}
        | {"spans": 0, "clusters": 0}
        | {"note": f"not estimable: {NOT_SCORED if scored else NOT_ASKED}"}
        for name in facts["checkpoints"]
        for prompt in facts["asked"]
        if (name, prompt) not in done
        for scored in [prompt in facts["trained"]]
    ]
