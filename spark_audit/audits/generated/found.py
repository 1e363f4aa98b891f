"""What of a manifest stands in files that a model wrote: the evidence of the audit.

:func:`evidence_of_files` makes it, without a model. Its units are those of
:mod:`~spark_audit.audits.generated.units`, and the texts of each file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.generated.units import (
    CANARY,
    FILE_TEXT,
    IDENTIFIER,
    NO_UNIT,
    ROW,
    ManifestUnits,
    units_of_manifest,
)
from spark_audit.data.nearest_rows import nearest_rows
from spark_audit.data.shared_passages import longest_passages
from spark_audit.data.strings_in_texts import first_holders, first_near_misses
from spark_audit.manifest.schema import Manifest
from spark_audit.provenance import seed_for
from spark_audit.results.evidence import Evidence, Measured
from spark_audit.stats.nearest_sides import (
    NearestSides,
    NearestTest,
    Neighbours,
    nearest_sides,
    nearest_test,
)

SCORES = ("hit", "near", "words", "holder", "trained", "held_out")
"""Scores of units; NaN where one says nothing about the unit's set.

============  ======================================================================
``hit``       1: the identifier or part of a canary stands in the file
``near``      1: the identifier does not, but a near miss of it does
``words``     words of the row's longest passage in the file; 0: it has none
``holder``    number of the first text that holds it, from 1
``trained``   similarity of the text to its nearest trained row, and
``held_out``  to its nearest held-out row
============  ======================================================================
"""

N_NEIGHBOURS = 32
"""Nearest rows of a text that are kept, of both sides together."""

MAX_TEXTS_COMPARED = 2000
"""Most texts of a file that are compared with all rows; they are drawn at random."""

MIN_CLUSTERS_OF_SIDE = 2
"""Clusters that each side needs for the comparison of the nearest rows."""


@dataclass(frozen=True)
class NearestTexts:
    """How near texts of a file are to rows of both sides.

    Attributes
    ----------
    numbers
        Of each compared text its number in the file, from 1.
    sides
        Its similarity to the nearest row of each side.
    nearest_clusters
        The cluster of the row that it is nearest to.
    test
        The test over all of them.
    """

    numbers: np.ndarray
    sides: NearestSides
    nearest_clusters: Sequence[str]
    test: NearestTest


def evidence_of_files(
    manifest: Manifest,
    texts_by_name: Mapping[str, Sequence[str]],
    *,
    least_words: int,
    seed: int,
) -> Evidence:
    """Return the evidence of some files that a model wrote.

    Parameters
    ----------
    texts_by_name
        Name of a file in the report -> its texts.
    least_words
        Words that a passage has at least.
    seed
        Seed of all that is drawn.
    """
    looked_for = units_of_manifest(manifest, seed=seed)
    nearest_by_name: dict[str, NearestTexts] = {}
    for name, texts in texts_by_name.items():
        nearest = _nearest_texts(
            looked_for, texts, seed=seed_for(seed, "generated", name)
        )
        if nearest is not None:
            nearest_by_name[name] = nearest

    records: list[dict[str, Any]] = []
    for name, nearest in nearest_by_name.items():
        for number, cluster in zip(
            nearest.numbers, nearest.nearest_clusters, strict=True
        ):
            place = {"set": FILE_TEXT, "example": name, "start": int(number)}
            records.append({**NO_UNIT, **place, "cluster": cluster})
    of_texts = pd.DataFrame.from_records(records, columns=[*NO_UNIT])
    units = looked_for.units
    if len(of_texts):
        units = pd.concat([units, of_texts], ignore_index=True)

    def measured() -> Measured:
        """Yield the scores of each file, in the order of the units."""
        for name, texts in texts_by_name.items():
            scores = {score: np.full(len(units), np.nan) for score in SCORES}
            _score_strings(scores, looked_for, texts)
            _score_rows(scores, looked_for, texts, least_words)
            if name in nearest_by_name:
                is_text_of_file = (units["set"] == FILE_TEXT) & (
                    units["example"] == name
                )
                sides = nearest_by_name[name].sides
                scores["trained"][is_text_of_file] = sides.trained
                scores["held_out"][is_text_of_file] = sides.held_out
            yield name, scores

    tests = {name: nearest.test for name, nearest in nearest_by_name.items()}
    facts = {
        "least_words": least_words,
        "text_p": looked_for.text_p,
        "texts": {name: len(texts) for name, texts in texts_by_name.items()},
        "nearest_p": {name: test.p for name, test in tests.items()},
        "expected": {name: test.expected for name, test in tests.items()},
        "expected_nearer": {name: test.expected_nearer for name, test in tests.items()},
    }
    return Evidence.of(units, measured(), facts)


def _score_strings(
    scores: Mapping[str, np.ndarray], looked_for: ManifestUnits, texts: Sequence[str]
) -> None:
    """Write into the scores which strings stand in the texts, or are nearly missed."""
    sets = looked_for.units["set"].to_numpy()
    string_positions = np.flatnonzero(np.isin(sets, (IDENTIFIER, CANARY))).tolist()
    holders = first_holders({looked_for.strings[i] for i in string_positions}, texts)

    identifier_positions = np.flatnonzero(sets == IDENTIFIER).tolist()
    identifiers = {looked_for.strings[i] for i in identifier_positions}
    near_holders = first_near_misses(identifiers, texts)

    for i in string_positions:
        string = looked_for.strings[i]
        is_hit = string in holders
        scores["hit"][i] = is_hit
        if sets[i] == IDENTIFIER:
            scores["near"][i] = not is_hit and string in near_holders

        holder = holders.get(string)
        if holder is None and sets[i] == IDENTIFIER:
            holder = near_holders.get(string)
        if holder is not None:
            scores["holder"][i] = holder + 1


def _score_rows(
    scores: Mapping[str, np.ndarray],
    looked_for: ManifestUnits,
    texts: Sequence[str],
    least_words: int,
) -> None:
    """Write into the scores the longest passage of each row in the texts."""
    row_positions = np.flatnonzero(looked_for.units["set"] == ROW).tolist()
    if not row_positions:
        return

    passages = longest_passages(
        looked_for.texts, looked_for.clusters, texts, least_words=least_words
    )
    for i in row_positions:
        passage = passages[looked_for.row_of_unit[i]]
        scores["words"][i] = passage.n_words
        if passage.n_words:
            scores["holder"][i] = passage.text + 1


def _nearest_texts(
    looked_for: ManifestUnits, texts: Sequence[str], *, seed: int
) -> NearestTexts | None:
    """Return how near the texts are to rows of both sides; ``None``: not comparable.

    Clusters with rows on both sides are left out.
    """
    is_row = (looked_for.units["set"] == ROW).to_numpy()
    rows = looked_for.units[is_row]
    n_sides = rows.groupby("cluster")["split"].transform("nunique")
    rows = rows[n_sides == 1]
    n_clusters = rows.groupby("split")["cluster"].nunique()
    n_clusters = n_clusters.reindex(["train", "test"], fill_value=0)
    if (n_clusters < MIN_CLUSTERS_OF_SIDE).any():
        return None

    rng = np.random.default_rng(seed)
    drawn = np.arange(len(texts))
    if len(texts) > MAX_TEXTS_COMPARED:
        drawn = np.sort(rng.choice(len(texts), MAX_TEXTS_COMPARED, replace=False))

    row_texts = [looked_for.texts[looked_for.row_of_unit[i]] for i in rows.index]
    similarity, index = nearest_rows(
        [texts[i] for i in drawn.tolist()], row_texts, N_NEIGHBOURS
    )  # (texts, K) each

    # Clusters are dealt within the task of their first row.
    code_of_row, names = pd.factorize(rows["cluster"])
    first_rows = rows.groupby(code_of_row).first()
    is_trained = (first_rows["split"] == "train").to_numpy()  # (clusters,)
    strata = pd.factorize(first_rows["task"])[0]  # (clusters,)

    neighbours = Neighbours(similarity, code_of_row[index])
    test = nearest_test(neighbours, is_trained, strata, seed=seed)
    return NearestTexts(
        numbers=drawn + 1,
        sides=nearest_sides(neighbours, is_trained),
        # The first neighbour of a text is its nearest row.
        nearest_clusters=[str(names[code]) for code in neighbours.cluster[:, 0]],
        test=test,
    )
