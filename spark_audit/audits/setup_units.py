"""What the setup guards look at: parts of rows, and their scores before and after.

A part of a row is an identifier, the rest of the row, or its low-sensitivity tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.supervision import trained_identifiers
from spark_audit.audits.unguessable import guesses
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.scoring.table import TokenTable


class UnitFacts(NamedTuple):
    """A part of a row whose tokens are scored together.

    Attributes
    ----------
    kind
        ``identifier``; the rest of the row, ``text`` or ``canary``; or its tokens of
        ``low`` sensitivity.
    key
        Name of an identifier; empty: another part.
    type
        Type of an identifier, or task of the row.
    is_trained
        Whether the identifier stands in a trained row, or the row is one.
    guess
        Kind of an identifier that nobody can guess; empty: others.
    rate
        How often it is guessed nevertheless, at most.
    """

    kind: str
    key: str
    split: str
    cluster: str
    type: str
    is_trained: bool
    guess: str
    rate: float


UNIT_DTYPES: Mapping[str, type] = {
    "is_trained": bool,
    "rate": float,
    "n_tokens": float,
    "nll": float,
    "base_nll": float,
    "max_difference": float,
    "is_written": bool,
    "is_written_with_ties": bool,
}
"""Columns of scored units that are numbers; the others are those of :class:`UnitFacts`.

``nll`` and ``base_nll`` are summed over the tokens, nats; ``max_difference`` is the
largest difference of a token between the two. ``is_written``: greedy decoding writes
all tokens, without ties; ``is_written_with_ties``: if ties are won."""


class Identifier(NamedTuple):
    """An identifier of a row: its tokens, from the first to after the last."""

    start: int
    end: int
    facts: UnitFacts


class TokenScores(NamedTuple):
    """Scores of a row's tokens by a checkpoint and its base, shape ``(tokens,)`` each.

    Attributes
    ----------
    nll, base_nll
        Nats.
    is_first, is_first_with_ties
        Whether a token is the first guess: without ties, and if ties are won.
    """

    position: np.ndarray
    nll: np.ndarray
    base_nll: np.ndarray
    is_first: np.ndarray
    is_first_with_ties: np.ndarray


def identifiers_of_rows(manifest: Manifest) -> dict[str, list[Identifier]]:
    """Return the identifiers of each row without a canary, by the row's id."""
    trained_on = trained_identifiers(manifest, canaries=False)
    guess_of = guesses(manifest)

    identifiers: dict[str, list[Identifier]] = {}
    for row in manifest.examples:
        if row.canary_id is not None:
            continue

        identifiers[row.id] = []
        for span, (start, end) in row.identifiers:
            # What stands in a trained row is not held out, whatever row it is read in.
            is_trained = row.split == "train" or trained_on.dose_of(row, span) != 0
            guess = guess_of[row.id, span.start, span.end]
            facts = UnitFacts(
                kind="identifier",
                key=f"{span.start}:{row.id}",
                split=row.split,
                cluster=row.cluster,
                type=span.type,
                is_trained=is_trained,
                guess=guess.kind,
                rate=guess.rate,
            )
            identifiers[row.id].append(Identifier(start, end, facts))
    return identifiers


def scored_units(
    table: TokenTable,
    base: TokenTable | None,
    manifest: Manifest,
    identifiers: Mapping[str, Sequence[Identifier]],
) -> pd.DataFrame:
    """Return all parts of rows with a scored token, and their scores.

    Parameters
    ----------
    base
        Scores of the base; without them the manifest's stand for them.

    Returns
    -------
    Columns of :class:`UnitFacts`, and of :data:`UNIT_DTYPES`.
    """
    records: list[dict[str, object]] = []
    for row in manifest.examples:
        if row.id not in table:
            continue

        scores = _token_scores(table, base, row)
        # The same model gives every token the same NLL, up to rounding.
        difference = np.abs(scores.nll - scores.base_nll)  # (tokens,), nats
        for facts, is_part in _parts(row, identifiers.get(row.id, ()), scores.position):
            if not is_part.any():
                # Cut off, or outside the context.
                continue
            record = facts._asdict() | {
                "n_tokens": is_part.sum(),
                "nll": scores.nll[is_part].sum(),
                "base_nll": scores.base_nll[is_part].sum(),
                "max_difference": difference[is_part].max(),
                "is_written": scores.is_first[is_part].all(),
                "is_written_with_ties": scores.is_first_with_ties[is_part].all(),
            }
            records.append(record)

    columns = dict.fromkeys([*UnitFacts._fields, *UNIT_DTYPES])
    return pd.DataFrame(records, columns=[*columns]).astype(dict(UNIT_DTYPES))


def _token_scores(
    table: TokenTable, base: TokenTable | None, row: ManifestExample
) -> TokenScores:
    """Return the scores of a row's tokens; ranks that were not kept are of no token."""
    places = table.rows(row.id)
    position = table.position[places]
    nll = table.columns["nll"][places].astype(np.float64)
    if base is not None and row.id in base:
        base_nll = base.columns["nll"][base.rows(row.id)].astype(np.float64)
    else:
        base_nll = row.unll[position] / 1e6  # from millionths of a nat

    # Scored without ranks, no token counts as written.
    is_first_with_ties = np.zeros(len(position), dtype=bool)
    is_first = is_first_with_ties
    if "rank_lo" in table.columns:
        is_first_with_ties = table.columns["rank_lo"][places] == 1
        is_first = is_first_with_ties & (table.columns["ties"][places] == 0)
    return TokenScores(
        position=position,
        nll=nll,
        base_nll=base_nll,
        is_first=is_first,
        is_first_with_ties=is_first_with_ties,
    )


def _parts(
    row: ManifestExample, identifiers: Sequence[Identifier], position: np.ndarray
) -> list[tuple[UnitFacts, np.ndarray]]:
    """Return the parts of a row, and which scored tokens each has, ``(tokens,)`` bool.

    Those are its identifiers, the rest of the row, and its low-sensitivity tokens.

    Parameters
    ----------
    position
        Of the scored tokens in the row, shape ``(tokens,)``.
    """
    masks: list[tuple[UnitFacts, np.ndarray]] = []
    is_rest = np.ones(len(position), dtype=bool)
    for identifier in identifiers:
        is_identifier = (position >= identifier.start) & (position < identifier.end)
        is_rest &= ~is_identifier
        masks.append((identifier.facts, is_identifier))

    rest = UnitFacts(
        kind="text" if row.canary_id is None else "canary",
        key="",
        split=row.split,
        cluster=row.cluster,
        type=row.task,
        is_trained=row.split == "train",
        guess="",
        rate=1.0,
    )
    masks.append((rest, is_rest))
    masks.append((rest._replace(kind="low"), np.isin(position, row.low)))
    return masks
