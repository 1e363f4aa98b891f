"""The tokens that the rank audit looks at, and the ranks that they got."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.contract import Tables
from spark_audit.audits.identifier_facts import identifier_facts
from spark_audit.audits.stored_evidence import framed
from spark_audit.manifest.schema import Manifest
from spark_audit.scoring.table import Pass

FACTS = ["set", "split", "task", "type", "cluster", "dose", "form", "cue", "stratum"]
COLUMNS = ("checkpoint", *FACTS[:5], "rank", "ties", *FACTS[5:])
TAKEN = {"rank": "rank_lo", "ties": "ties"}


def frames(tables: Tables, manifest: Manifest) -> Iterator[pd.DataFrame]:
    """One row a token and set, checkpoint by checkpoint."""
    facts = framed(_facts(manifest), ["key", "start", "end", *FACTS])
    sizes = (facts["end"] - facts["start"]).to_numpy(np.int64)
    tokens = facts.loc[np.repeat(np.arange(len(facts)), sizes), FACTS]
    tokens = tokens.reset_index(drop=True)
    for name, passes in tables.items():
        table = passes.get(Pass())
        if table is None or "rank_lo" not in table.columns:
            continue
        places = facts[["key", "start", "end"]].itertuples(index=False, name=None)
        spans = (table.span(*place) for place in places)
        rows = np.concatenate(
            [np.zeros(0, np.int64), *(np.arange(s.start, s.stop) for s in spans)]
        )
        taken = {k: table.columns[c][rows].astype(np.int64) for k, c in TAKEN.items()}
        yield tokens.assign(checkpoint=name, **taken)[[*COLUMNS]]


def _facts(manifest: Manifest) -> Iterator[tuple[Any, ...]]:
    """Every range that is ranked, with what is known of it beside its scores."""
    known = identifier_facts(manifest)
    places = {
        (example.id, *tokens): astuple(known[example.id, span.start, span.end])[:-1]
        for example in manifest.examples
        for span, tokens in example.identifiers
    }
    for key, which, kind, start, end in ranges(manifest):
        one = manifest.by_id[key]
        told = places[key, start, end] if which == "pii_all" else (0, 0, 0, 0)
        yield key, start, end, which, one.split, one.task, kind, one.cluster, *told


def ranges(manifest: Manifest) -> Iterator[tuple[str, str, str, int, int]]:
    """Example, set, type and tokens of every range that is ranked."""
    for pair in manifest.pairs:
        pii, control = pair.pii, pair.control
        yield pair.example, "pii", pii.type, pii.token_start, pii.token_end
        yield pair.example, "control", pii.type, control.token_start, control.token_end
    for example in manifest.examples:
        if example.canary_id is not None:
            continue
        for span, tokens in example.identifiers:
            yield example.id, "pii_all", span.type, *tokens
