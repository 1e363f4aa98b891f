"""Units of an endpoint that gives only text: what it is asked, and what came out.

The units are those of :class:`~spark_audit.audits.extract.audit.Extraction`, but only
those that can be asked for without waste: no identifier that training cut off,
no string of a test row that trained rows hold, no canary but in its first row, and none
that the prompt gives away. Scores of tokens are NaN. ``greedy`` and ``greedy_sure`` are
1 if the answer at temperature 0 gives the identifier, and ``answers_with_it`` counts
all answers that do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.extract.prompts import (
    EXTRACT_COLUMNS,
    FULL_PROMPT,
    span_facts,
    spans_of,
)
from spark_audit.audits.supervision import trained_identifiers
from spark_audit.checkpoints.endpoint_options import Endpoint
from spark_audit.checkpoints.text_answers import TextAnswer
from spark_audit.manifest.asked_prompts import CuedIdentifier, asked_identifiers
from spark_audit.manifest.example_schema import ManifestExample, ManifestSpan
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.text_prompts import (
    PROMPTS_OF_TEXT,
    TextPrompt,
    other_prompt,
    true_prompt,
)
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import ANSWERS_EACH
from spark_audit.scoring.refusals import is_refusal

N_ANSWERS = "n_answers"
REFUSALS = "refusals"
CUT_ANSWERS = "cut"
"""Facts: all answers, those among them that refuse, and those that were cut off where
the identifier could still have followed."""

ANSWERS_WITH_IT = "answers_with_it"
"""Score of a unit: answers that give its identifier."""


@dataclass(frozen=True)
class AskedUnit:
    """One identifier after one prompt.

    Attributes
    ----------
    record
        Its columns in the evidence.
    prompt
        What is sent.
    place
        What names it among all units of its manifest, for a choice by hash.
    """

    record: Mapping[str, Any]
    prompt: TextPrompt
    place: str


def asked_units(
    manifest: Manifest,
    prompts: Sequence[str],
    endpoint: Endpoint,
    *,
    identifiers: bool = True,
) -> list[AskedUnit]:
    """Return all that an endpoint is asked for.

    Parameters
    ----------
    prompts
        Prompts beside the true context; those that need tokens are left out.
    identifiers
        Whether identifiers are asked for, beside planted canaries.
    """
    lenders = asked_identifiers(manifest)
    facts_by_span = span_facts(manifest, trained_identifiers(manifest))
    units = []
    for number, (facts, (row, span, _)) in enumerate(
        zip(facts_by_span, spans_of(manifest), strict=True)
    ):
        if not _is_asked_for(facts, identifiers=identifiers):
            continue
        cued = lenders.get((row.id, span.start))
        for name, prompt in _prompts_for(row, span, cued, prompts, endpoint).items():
            if not prompt.gives_it_away:
                record = {**facts, "prompt": name, "span": number}
                units.append(AskedUnit(record, prompt, f"{row.id} {span.start}"))
    return units


def _is_asked_for(facts: Mapping[str, Any], *, identifiers: bool) -> bool:
    """Return whether the answers to an identifier would count for anything."""
    if facts["set"] == "canary":
        return bool(facts["first"]) and facts["dose"] >= 0
    is_held_out = facts["split"] == "test" and facts["dose"] == 0
    is_trained = facts["split"] == "train" and facts["dose"] > 0
    return identifiers and (is_held_out or is_trained)


def _prompts_for(
    row: ManifestExample,
    span: ManifestSpan,
    cued: CuedIdentifier | None,
    prompts: Sequence[str],
    endpoint: Endpoint,
) -> dict[str, TextPrompt]:
    """Return the prompts that ask for one identifier, by name, the true context first.

    Parameters
    ----------
    cued
        The identifier with a row that lends its context; ``None``: a canary.
    """
    asked = {}
    true = true_prompt(row, span, endpoint)
    # Another prompt alone would have nothing to be compared with.
    if true is None:
        return {}
    asked[FULL_PROMPT] = true
    if cued is not None:
        for name in PROMPTS_OF_TEXT:
            if name in prompts:
                prompt = other_prompt(name, cued, endpoint)
                if prompt is not None:
                    asked[name] = prompt
    return asked


def evidence_of_answers(
    units: Sequence[AskedUnit],
    answers: Sequence[Sequence[TextAnswer]],
    *,
    checkpoint: str,
    prompts: Sequence[str],
) -> Evidence:
    """Return the evidence of the answers of one endpoint.

    Parameters
    ----------
    answers
        Those to each unit, the one at temperature 0 first; each has as many.
    prompts
        Prompts beside the true context that were asked for.
    """
    greedy = np.zeros(len(units))
    n_with_it = np.zeros(len(units))
    n_refusals = 0
    n_cut = 0
    for i, (unit, answers_of_unit) in enumerate(zip(units, answers, strict=True)):
        hits = [unit.prompt.is_hit(answer.text) for answer in answers_of_unit]
        greedy[i] = hits[0]
        n_with_it[i] = sum(hits)
        n_refusals += sum(is_refusal(answer) for answer in answers_of_unit)
        n_cut += sum(
            _is_cut_before(unit.prompt, answer)
            for answer, is_hit in zip(answers_of_unit, hits, strict=True)
            if not is_hit
        )

    nothing = np.full(len(units), np.nan)
    scores = {
        **dict.fromkeys(EXTRACT_COLUMNS, nothing),
        "greedy": greedy,
        "greedy_sure": greedy,
        ANSWERS_WITH_IT: n_with_it,
    }
    is_trained = [unit.record["split"] == "train" for unit in units]
    prompts_that_fit = {
        unit.record["prompt"]
        for unit, trained in zip(units, is_trained, strict=True)
        if trained
    }
    n_each = len(answers[0]) if answers else 0
    facts = {
        "asked": [name for name in prompts if name in PROMPTS_OF_TEXT],
        "trained": sorted(prompts_that_fit - {FULL_PROMPT}),
        "checkpoints": [checkpoint],
        ANSWERS_EACH: n_each,
        N_ANSWERS: n_each * len(units),
        REFUSALS: n_refusals,
        CUT_ANSWERS: n_cut,
    }
    frame = pd.DataFrame.from_records([dict(unit.record) for unit in units])
    return Evidence.of(frame, [(checkpoint, scores)], facts)


def _is_cut_before(prompt: TextPrompt, answer: TextAnswer) -> bool:
    """Return whether an answer was cut off where its identifier could have followed."""
    return answer.is_cut and prompt.can_become_hit(answer.text)
