"""Units that the setup guards compare: parts of examples, with scores before and after.

An example is a row of the manifest. A part of it is an identifier, the rest of the
example, or its tokens of low sensitivity. The last part overlaps the others: its tokens
stand in the rest or in an identifier, and are counted again.

``identifiers_of_rows`` (once) -> ``scored_units`` (for each checkpoint) -> the tests of
:mod:`spark_audit.audits.setup_faults`. A further part goes into ``_parts``, a further
score into ``scored_units`` and :data:`UNIT_DTYPES`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.supervision import trained_identifiers
from spark_audit.audits.token_sums import base_nll_of
from spark_audit.audits.unguessable import guesses
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.schema import Manifest
from spark_audit.scoring.table import TokenTable


class UnitFacts(NamedTuple):
    """A part of an example whose tokens are scored together.

    Attributes
    ----------
    kind
        ``identifier``; the rest of the example, ``text`` or ``canary``; or its tokens
        of ``low`` sensitivity. The setup guards choose units by these words.
    key
        Place of an identifier, ``CHARACTER:EXAMPLE``: the character of the example's
        text at which it starts, and the example's id, the same for all checkpoints.
        Empty for other parts.
    split
        ``train`` or ``test``: the list that the example was given in.
    cluster
        The sources of the example that count as one.
    type
        Type of an identifier, or task of the example.
    is_trained
        Whether the identifier stands in a trained example, or the example is one. An
        identifier of a ``test`` example may stand in a trained one, too.
    unguessable_kind
        Kind of an identifier that nobody can guess, such as ``name``; empty for other
        identifiers and parts.
    guess_rate
        Chance that it is guessed nevertheless, at most; 1 for other parts.
    """

    kind: str
    key: str
    split: str
    cluster: str
    type: str
    is_trained: bool
    unguessable_kind: str
    guess_rate: float


UNIT_DTYPES: Mapping[str, type] = {
    "is_trained": bool,
    "guess_rate": float,
    "n_tokens": float,
    "nll": float,
    "base_nll": float,
    "max_difference": float,
    "is_written": bool,
    "is_written_with_ties": bool,
}
"""Columns of scored units that are numbers or masks; all others are strings.

``is_trained`` and ``guess_rate`` are those of :class:`UnitFacts`. The others are of the
scored tokens of a part:

``n_tokens``
    Their count, as a float: sums are divided by it, and weighted with it.
``nll``, ``base_nll``
    Summed over these tokens, nats.
``max_difference``
    The largest absolute difference of a token between the two, nats. It tells a
    checkpoint that is its own base.
``is_written``, ``is_written_with_ties``
    Whether greedy decoding writes all of these tokens: without ties, and if ties are
    won.
"""


class Identifier(NamedTuple):
    """An identifier of an example, and where its tokens are.

    ``start`` and ``end`` are indices of tokens in the example, not of characters; the
    token at ``end`` is the first one behind it.
    """

    start: int
    end: int
    facts: UnitFacts


class TokenScores(NamedTuple):
    """Scores of an example's tokens by a checkpoint and its base, ``(tokens,)`` each.

    Attributes
    ----------
    position
        Indices of the scored tokens in the example.
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
    """Return the identifiers of each example without a canary, by the example's id.

    They are the same for all checkpoints.
    """
    trained_on = trained_identifiers(manifest, canaries=False)
    guess_of = guesses(manifest)

    identifiers: dict[str, list[Identifier]] = {}
    for example in manifest.examples:
        if example.canary_id is not None:
            continue

        identifiers[example.id] = []
        for span, (start, end) in example.identifiers:
            # An identifier of a trained example is held out nowhere: a held-out one
            # that repeats it counts as trained, too.
            stands_in_trained = trained_on.dose_of(example, span) != 0
            is_trained = example.split == "train" or stands_in_trained
            guess = guess_of[example.id, span.start, span.end]
            facts = UnitFacts(
                kind="identifier",
                key=f"{span.start}:{example.id}",
                split=example.split,
                cluster=example.cluster,
                type=span.type,
                is_trained=is_trained,
                unguessable_kind=guess.kind,
                guess_rate=guess.rate,
            )
            identifiers[example.id].append(Identifier(start, end, facts))
    return identifiers


def scored_units(
    table: TokenTable,
    base_table: TokenTable | None,
    manifest: Manifest,
    identifiers: Mapping[str, Sequence[Identifier]],
) -> pd.DataFrame:
    """Return all parts of examples with a scored token, and their scores.

    Parameters
    ----------
    base_table
        Scores of the base, which must be of the same tokens; ``None``: the scores of
        the reference model stand for them, which the manifest has of each token that a
        checkpoint predicts.
    identifiers
        From :func:`identifiers_of_rows`.

    Returns
    -------
    One line per part, with columns of :class:`UnitFacts`, and of :data:`UNIT_DTYPES`.

    Raises
    ------
    InputError
        If the base was scored on other tokens of an example.
    """
    records: list[dict[str, object]] = []
    for example in manifest.examples:
        if example.id not in table:
            continue

        scores = _token_scores(table, base_table, example)
        parts = _parts(example, identifiers.get(example.id, ()), scores.position)

        difference = np.abs(scores.nll - scores.base_nll)  # (tokens,), nats
        for facts, is_part in parts:
            # A part that was cut off, or is outside the context, has no scored token.
            if not is_part.any():
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
    table: TokenTable, base_table: TokenTable | None, example: ManifestExample
) -> TokenScores:
    """Return the scores of an example's tokens by a checkpoint and its base.

    ``base_table`` is as for :func:`scored_units`.
    """
    token_slice = table.rows(example.id)
    position = table.position[token_slice]  # (tokens,)
    nll = table.columns["nll"][token_slice].astype(np.float64)  # (tokens,), nats

    # Without ranks no token is a first guess.
    is_first_with_ties = np.zeros(len(position), dtype=bool)
    is_first = is_first_with_ties
    if "rank_lo" in table.columns:
        is_first_with_ties = table.columns["rank_lo"][token_slice] == 1
        is_untied = table.columns["ties"][token_slice] == 0
        is_first = is_first_with_ties & is_untied

    return TokenScores(
        position=position,
        nll=nll,
        base_nll=base_nll_of(example, base_table, position),
        is_first=is_first,
        is_first_with_ties=is_first_with_ties,
    )


def _parts(
    example: ManifestExample, identifiers: Sequence[Identifier], position: np.ndarray
) -> list[tuple[UnitFacts, np.ndarray]]:
    """Return the parts of an example, and for each which scored tokens it has.

    Those are its identifiers, the rest of the example, and its tokens of low
    sensitivity: those of the rest or of identifiers, counted again. Masks are
    ``(tokens,)`` bool.

    Parameters
    ----------
    identifiers
        Of this example; none of an example with a canary.
    position
        Indices of the scored tokens in the example, shape ``(tokens,)``.
    """
    masks: list[tuple[UnitFacts, np.ndarray]] = []

    # Identifier tokens are never rest.
    is_rest = np.ones(len(position), dtype=bool)  # (tokens,)
    for identifier in identifiers:
        is_identifier = (position >= identifier.start) & (position < identifier.end)
        is_rest &= ~is_identifier
        masks.append((identifier.facts, is_identifier))

    rest = UnitFacts(
        kind="text" if example.canary_id is None else "canary",
        key="",
        split=example.split,
        cluster=example.cluster,
        type=example.task,
        is_trained=example.split == "train",
        unguessable_kind="",
        guess_rate=1.0,
    )
    masks.append((rest, is_rest))

    low = rest._replace(kind="low")
    is_low = np.isin(position, example.low)
    masks.append((low, is_low))
    return masks
