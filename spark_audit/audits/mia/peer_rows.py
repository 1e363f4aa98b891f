"""Rows that other tools score: written for these, and read again with the scores.

``manifest rows`` writes them, one line per row; a row is an example of the manifest.
Some rows appear twice, so that scores without ids show whether they are in the order of
the lines: of a row that appears twice, both scores should be alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spark_audit.audits.mia.score_files import HASH, text_hash
from spark_audit.errors import InputError
from spark_audit.files import data_bytes, read_regular
from spark_audit.manifest.schema import Manifest

ROWS_OPTION = "--scores-rows"
"""The option that names the file of these rows."""

WRITE = "write them with `spark-audit manifest rows`"
"""What to do, in errors on the file of rows."""

ROWS_TWICE = 12
"""Number of rows of each side that appear twice."""

MAX_P_IN_ORDER = 0.001
"""Scores are in order if p of a random order is at most this."""

RANDOM_PAIRS = 3999
"""Number of sets of random pairs that the repeated rows are compared with."""

ROUNDING_OF_SUM = 1e-9
"""A sum of distances that is larger by no more than this counts as equal."""

QUANTILE_OF_EXACT = 0.25
"""Share of the repeated rows that decides whether an attack is exact."""

MAX_GAP_OF_EXACT = 0.01
"""An attack is exact, and scores equal texts equally, if this share of repeated rows
(:data:`QUANTILE_OF_EXACT`) has two scores less than this far apart, as a share of all
ranks.
"""

MIN_GAP_OF_MISPLACED = 0.2
"""Scores of an exact attack are misplaced if a repeated row has two scores further
apart than this share of all ranks.
"""


def peer_rows(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield the rows that membership is tested on, some of them twice.

    The digest of the manifest determines their order and the repeated rows.

    Yields
    ------
    ``id``, ``text``, ``label`` (1: member), ``prompt`` and ``response``.

    Raises
    ------
    InputError
        If the manifest has no members or no non-members.
    """
    sides = manifest.membership
    if not sides.members or not sides.non_members:
        raise InputError("has no members or no non-members", where=manifest.name)

    # A seed from the digest gives the same file on every machine.
    rng = np.random.default_rng(int(manifest.digest, 16))
    ids_by_label = {1: sorted(sides.members), 0: sorted(sides.non_members)}
    for label, ids in ids_by_label.items():
        repeated = rng.permutation(len(ids))[:ROWS_TWICE]
        with_repeats = np.concatenate([np.arange(len(ids)), repeated])
        for i in rng.permutation(with_repeats):
            example = manifest.by_id[ids[i]]
            yield {
                "id": example.id,
                "text": example.text,
                "label": label,
                "prompt": example.prompt,
                "response": example.response,
            }


def read_rows(path: Path) -> pd.DataFrame:
    """Return ``id``, ``label`` and ``text_sha256`` of a file's rows, a line for each.

    The lines are in the order of the file; a row that appears twice has two.

    Raises
    ------
    InputError
        If they are not rows of :func:`peer_rows`.
    """
    where = f"{ROWS_OPTION} {path}"
    records = []
    try:
        content = read_regular(path, follow=True, most=data_bytes())
        for line in content.splitlines():
            row = json.loads(line)
            records.append((str(row["id"]), int(row["label"]), text_hash(row["text"])))
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=where) from error
    except (ValueError, LookupError, TypeError, AttributeError):
        raise InputError("has no rows", where=where, fix=WRITE) from None

    frame = pd.DataFrame(records, columns=["id", "label", HASH])
    if not frame["id"].duplicated().any():
        raise InputError("has no row twice", where=where, fix=WRITE)
    return frame


def by_place(scores: pd.DataFrame, rows: pd.DataFrame, where: str) -> pd.DataFrame:
    """Return the scores with the ``id`` of the row on the same line, each row once.

    Of a row that appears twice, the first score is kept.

    Parameters
    ----------
    scores
        Column ``score``, and ``label`` if the file has it; numbered from 0.
    rows
        From :func:`read_rows`.
    where
        How errors name the file of scores.

    Raises
    ------
    InputError
        If the number, the labels or repeated rows of the scores show another order than
        that of these rows.
    """
    fix = "score all rows of the file, in its order, and give the same file here"
    if len(scores) != len(rows):
        raise InputError(
            f"has {len(scores)} scores, and there are {len(rows)} rows",
            where=where,
            fix=fix,
        )

    n_other_labels = 0
    if "label" in scores:
        n_other_labels = (scores["label"] != rows["label"]).sum()
    if n_other_labels:
        raise InputError(
            f"has another label than the rows at {n_other_labels} of {len(rows)} "
            "places",
            where=where,
            fix=fix,
        )
    if not _are_in_order(scores["score"], rows):
        raise InputError(
            "scores rows that stand twice no more alike than any others",
            where=where,
            fix=f"{fix}; of an attack that does so, give a table with a column id",
        )
    return scores.assign(id=rows["id"])[~rows["id"].duplicated()]


def _are_in_order(scores: pd.Series, rows: pd.DataFrame) -> bool:
    """Return whether repeated rows have closer scores than random rows of their side.

    If most repeats agree exactly, a few that differ widely show misplaced scores.

    Parameters
    ----------
    scores
        One per line, in the order of the file.
    rows
        From :func:`read_rows`.
    """
    label = rows["label"].to_numpy()  # (lines,)
    ranks = scores.groupby(rows["label"]).rank(pct=True).to_numpy()  # (lines,), 0 to 1

    # How far apart the two scores of each repeated row are, without missing scores.
    first, second = _lines_of_repeated_rows(rows)  # (pairs,)
    distance = np.abs(ranks[first] - ranks[second])  # (pairs,)
    is_scored = np.isfinite(distance)
    distance = distance[is_scored]
    label_of_pair = label[first[is_scored]]  # (pairs,)

    # The test is one-sided: repeats must be closer than random pairs, up to rounding.
    random_sums = _random_sums(ranks, label, label_of_pair)
    n_as_near = (random_sums <= distance.sum() + ROUNDING_OF_SUM).sum()
    p = (1 + n_as_near) / (1 + RANDOM_PAIRS)
    if p > MAX_P_IN_ORDER:
        return False

    # An attack that scores equal texts equally does so for all repeats.
    is_exact = np.quantile(distance, QUANTILE_OF_EXACT) < MAX_GAP_OF_EXACT
    has_misplaced = distance.max() > MIN_GAP_OF_MISPLACED
    return bool(not (is_exact and has_misplaced))


def _lines_of_repeated_rows(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the second line of each row that appears twice.

    Shape ``(repeated rows,)`` each.
    """
    pairs = []
    for lines in rows.groupby("id").indices.values():
        if len(lines) > 1:
            pairs.append(lines[:2])
    first, second = np.array(pairs).T
    return first, second


def _random_sums(
    ranks: np.ndarray, label: np.ndarray, label_of_pair: np.ndarray
) -> np.ndarray:
    """Return the summed distances of random pairs of lines, as many as real pairs.

    Parameters
    ----------
    ranks, label
        Rank and side of each line, shape ``(lines,)``; NaN: no score.
    label_of_pair
        Side of each real pair, shape ``(pairs,)``; random pairs are of the same sides.

    Returns
    -------
    Shape ``(RANDOM_PAIRS,)``.
    """
    rng = np.random.default_rng(0)
    random_sums = np.zeros(RANDOM_PAIRS)
    for side in np.unique(label_of_pair):
        n_pairs = (label_of_pair == side).sum()
        ranks_of_side = ranks[(label == side) & np.isfinite(ranks)]
        drawn = rng.choice(ranks_of_side, (2, RANDOM_PAIRS, n_pairs))
        random_sums += np.abs(drawn[0] - drawn[1]).sum(axis=1)
    return random_sums
