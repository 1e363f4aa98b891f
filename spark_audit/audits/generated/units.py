"""Units of the manifest that may stand in a file that a model wrote.

There are four sets of units. The first three are of the manifest, the same for all
files, and the last one is of :mod:`~spark_audit.audits.generated.found`:

==============  ====================================================================
set             a unit
==============  ====================================================================
``identifier``  a string of rows without a canary: a trained or a held-out one
``canary``      a part of a canary, in its first row
``row``         a trained or held-out row without near-duplicates on the other side
``text``        a text of one file; no other file has a score of it
==============  ====================================================================

**What can be compared.** A string that stands in many rows is trained on if only one of
them is, and it is common, so that any file may hold it. Nothing but this would make
trained strings come out more often than held-out ones. So only strings count that rows
of one origin hold: a source, with all near-duplicates of its rows. Then the origin was
either trained on or held out. Natural strings must also be of a form that nobody
guesses (:mod:`~spark_audit.audits.unguessable`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from spark_audit.audits.extract.prompts import span_facts, spans_of
from spark_audit.audits.mia.score_tables import scored_text
from spark_audit.audits.mia.texts import without_model
from spark_audit.audits.supervision import trained_identifiers
from spark_audit.data.occurrences import finder, folded, string_of
from spark_audit.data.shared_passages import words_of
from spark_audit.manifest.schema import Manifest
from spark_audit.stats.duplicates import cluster_labels, duplicate_groups

IDENTIFIER = "identifier"
CANARY = "canary"
ROW = "row"
FILE_TEXT = "text"

TEXT_PERMUTATIONS = 99
"""Permutations of the classifier that reads texts alone."""

NO_UNIT: Mapping[str, Any] = {
    "set": "",
    "example": "",
    "start": 0,
    "split": "",
    "task": "",
    "type": "",
    "origin": "",
    "cluster": "",
    "part": "",
    "dose": 0,
    "stratum": 0,
    "compared": False,
    "n_words": 0,
}
"""Columns of units, with the values that say nothing."""


@dataclass(frozen=True)
class ManifestUnits:
    """The units of a manifest, and the texts in which they are looked for.

    Attributes
    ----------
    units
        One line per unit, with the columns of :data:`NO_UNIT`.
    strings
        Of each unit its string, folded; empty for rows.
    texts, clusters
        Of each row of the manifest the text that was scored, and its cluster.
    row_of_unit
        Of each unit the number of its row in the manifest.
    text_p
        p that texts alone do not tell trained from held-out rows; ``None``: not tested.
    """

    units: pd.DataFrame
    strings: Sequence[str]
    texts: Sequence[str]
    clusters: Sequence[str]
    row_of_unit: Sequence[int]
    text_p: float | None


def units_of_manifest(manifest: Manifest, *, seed: int) -> ManifestUnits:
    """Return what of a manifest is looked for in files.

    Parameters
    ----------
    seed
        Seed of the classifier that reads texts alone.
    """
    texts = [scored_text(row) for row in manifest.examples]
    number_of_row = {row.id: number for number, row in enumerate(manifest.examples)}

    records: list[dict[str, Any]] = []
    strings: list[str] = []
    for record, string in _strings_with_facts(manifest):
        records.append({**NO_UNIT, **record})
        strings.append(string)

    row_ids, text_p = _compared_rows(manifest, seed=seed)
    for key in row_ids:
        row = manifest.by_id[key]
        record = {
            "set": ROW,
            "example": key,
            "split": row.split,
            "task": row.task,
            "cluster": row.cluster,
            "compared": True,
            "n_words": len(words_of(texts[number_of_row[key]])),
        }
        records.append({**NO_UNIT, **record})
        strings.append("")

    return ManifestUnits(
        units=pd.DataFrame.from_records(records, columns=[*NO_UNIT]),
        strings=strings,
        texts=texts,
        clusters=[row.cluster for row in manifest.examples],
        row_of_unit=[number_of_row[record["example"]] for record in records],
        text_p=text_p,
    )


def _strings_with_facts(manifest: Manifest) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the identifiers and parts of canaries, each string of a type once."""
    n_origins = _number_of_origins(manifest)
    facts_by_span = span_facts(manifest, trained_identifiers(manifest))
    seen: set[int] = set()
    for facts, (row, span, _) in zip(facts_by_span, spans_of(manifest), strict=True):
        string = string_of(row, span)
        is_canary = facts["set"] == CANARY
        if is_canary:
            is_counted = bool(facts["first"]) and facts["dose"] >= 0
        else:
            is_trained = facts["split"] == "train" and facts["dose"] > 0
            is_held_out = facts["split"] == "test" and facts["dose"] == 0
            is_new = facts["string"] not in seen
            is_counted = (is_trained or is_held_out) and is_new
        if not is_counted or not string:
            continue

        seen.add(facts["string"])
        is_of_one_origin = n_origins.get(string, 0) == 1
        is_hard = facts["origin"] == "injected" or facts["chance"] < 1
        record = {
            "set": CANARY if is_canary else IDENTIFIER,
            "example": row.id,
            "start": span.start,
            "split": facts["split"],
            "task": facts["task"],
            "type": facts["type"],
            "origin": facts["origin"],
            "cluster": facts["cluster"],
            "part": facts["part"],
            "dose": facts["dose"],
            "stratum": facts["stratum"],
            "compared": is_canary or (is_of_one_origin and is_hard),
        }
        yield record, string


def _number_of_origins(manifest: Manifest) -> dict[str, int]:
    """Return of how many origins rows hold each string, annotated there or not."""
    rows = manifest.examples
    origins = cluster_labels(
        [row.source_id for row in rows],
        [row.canary_id for row in rows],
        duplicate_groups([row.text for row in rows]),
    )
    strings = {string_of(row, span) for row in rows for span in row.spans}
    find = finder(strings - {""})
    origins_by_string: dict[str, set[str]] = defaultdict(set)
    for row, origin in zip(rows, origins, strict=True):
        annotated = {string_of(row, span) for span in row.spans}
        for string in find(folded(row.text)) | annotated:
            origins_by_string[string].add(origin)
    return {string: len(holders) for string, holders in origins_by_string.items()}


def _compared_rows(manifest: Manifest, *, seed: int) -> tuple[list[str], float | None]:
    """Return ids of trained and held-out rows, and the p of their texts alone.

    They are the rows of the membership audit, without near-duplicates on the other
    side; none if a side has none.
    """
    members = manifest.membership.members
    non_members = manifest.membership.non_members
    if not members or not non_members:
        return [], None

    ids = sorted([*members, *non_members])
    texts_alone = without_model(
        manifest,
        [scored_text(manifest.by_id[key]) for key in ids],
        ids,
        seed=seed,
        permutations=TEXT_PERMUTATIONS,
    )
    is_crossing = texts_alone.units["is_crossing"].to_numpy(bool)
    kept = [key for key, crosses in zip(ids, is_crossing, strict=True) if not crosses]
    return kept, texts_alone.figures.get("blind_p")
