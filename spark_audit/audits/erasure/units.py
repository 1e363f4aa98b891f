"""The units of the audit of erasure: parts of rows, each on one of three sides.

========  ==============================================================================
side      rows
========  ==============================================================================
forget    trained rows that should be forgotten
held_out  rows that were never trained on
retained  other trained rows, which should be kept
========  ==============================================================================

===========  ===========================================================================
part         tokens
===========  ===========================================================================
row          those of the row outside of its identifiers
response     those of its response outside of its identifiers
identifiers  those of one identifier
low          those of low sensitivity, of which a working language model is sure
twins        none: an identifier among its twins, which counts as one token
===========  ===========================================================================

Where it is known which tokens had loss in training, a row and its response have no
others. An identifier that also stands in a retained row is left out: a model that never
read the forget rows knows it, too.

A row is an example of the manifest. A further part is yielded by :func:`_parts_of_row`,
a further column stands in :data:`ERASURE_COLUMNS`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spark_audit.audits.erasure.field_scores import RowScores
from spark_audit.audits.erasure.ranked_twins import RankedTwins
from spark_audit.audits.identifiers import Facts, identifier_facts
from spark_audit.audits.token_sums import Sums, TokenSet, TokensOfSets
from spark_audit.data.occurrences import doses, string_of
from spark_audit.manifest.example_schema import ManifestExample
from spark_audit.manifest.file import restricted_to
from spark_audit.manifest.schema import Manifest
from spark_audit.scoring.table import TokenTable

FORGET = "forget"
HELD_OUT = "held_out"
RETAINED = "retained"

ROW = "row"
RESPONSE = "response"
IDENTIFIERS = "identifiers"
LOW = "low"
TWINS = "twins"

MAX_RETAINED_ROWS = 1000
"""Most retained rows that are scored, drawn by the hash of their ids: they only show
what erasure has cost."""

ERASURE_COLUMNS = (
    "part",
    "side",
    "request",
    "example",
    "task",
    "cluster",
    "split",
    "type",
    "dose",
    "form",
    "cue",
    "stratum",
    "text_auc",
    "n_tokens",
    "ref_sum",
)
"""Columns of the units. ``request`` names the request of a forget row. ``split``,
``type``, ``dose``, ``form``, ``cue``, ``stratum`` and ``text_auc`` are those of other
audits of identifiers, where forget rows stand for the trained ones. ``ref_sum`` is the
summed NLL on the reference, nats."""

NO_FACTS = Facts(dose=0, form=0, cue=0)
"""Stands for the facts of a part that is no identifier."""


class RowSides(NamedTuple):
    """The rows of a manifest by side.

    Attributes
    ----------
    request_by_row
        Forget row -> name of its request.
    held_out, retained
        Ids of the rows of the other sides.
    """

    request_by_row: Mapping[str, str]
    held_out: frozenset[str]
    retained: frozenset[str]

    @property
    def ids(self) -> list[str]:
        """The ids of all rows, sorted."""
        return sorted({*self.request_by_row, *self.held_out, *self.retained})

    @property
    def can_be_compared(self) -> bool:
        """True if there are rows to forget, and rows to compare them with."""
        return bool(self.request_by_row) and bool(self.held_out)

    def side_of(self, row_id: str) -> str:
        """Return the side of a row; empty: it is on none."""
        if row_id in self.request_by_row:
            return FORGET
        if row_id in self.held_out:
            return HELD_OUT
        return RETAINED if row_id in self.retained else ""


def sides_of_rows(manifest: Manifest, request_by_row: Mapping[str, str]) -> RowSides:
    """Return the rows that are scored, by side, without rows of canaries.

    Parameters
    ----------
    request_by_row
        Forget row -> name of its request.
    """
    forget = {}
    held_out = set()
    retained = []
    for example in manifest.examples:
        if example.canary_id is not None:
            continue
        if example.split == "test":
            held_out.add(example.id)
        elif example.id in request_by_row:
            forget[example.id] = request_by_row[example.id]
        else:
            retained.append(example.id)

    # By hash, so that further rows change little.
    retained.sort(key=lambda row_id: hashlib.sha256(row_id.encode()).digest())
    kept = retained[:MAX_RETAINED_ROWS]
    return RowSides(forget, frozenset(held_out), frozenset(kept))


@dataclass(frozen=True)
class ErasureUnits:
    """The units of a manifest, with what is summed for each.

    Attributes
    ----------
    frame
        One line per unit, with :data:`ERASURE_COLUMNS`.
    strings_of_retained
        Identifiers that retained rows hold.
    n_left_out
        Identifiers of forget rows that are left out, since retained rows hold them,
        too.
    n_shared
        Forget rows that share a source, an identifier or a text with a retained row.
    """

    frame: pd.DataFrame
    strings_of_retained: frozenset[str]
    n_left_out: int
    n_shared: int
    tokens: TokensOfSets
    examples: tuple[ManifestExample, ...]
    row_units: np.ndarray

    def scores(self, manifest: Manifest, table: TokenTable) -> dict[str, np.ndarray]:
        """Return the scores of all units by one checkpoint, shape ``(units,)`` each.

        ``nll_sum`` is the summed NLL, nats; ``first`` how many of the tokens are the
        model's first guess, without ties; the others are those of
        :class:`~spark_audit.audits.erasure.field_scores.RowScores`, NaN for parts that
        are no whole rows.
        """
        scores = {"nll_sum": Sums(manifest, table).over(self.tokens)}

        # A server gives no ranks.
        scores["first"] = np.full(len(self.frame), np.nan)
        if "rank_lo" in table.columns:
            is_untied = table.columns["ties"] == 0
            is_first = (table.columns["rank_lo"] == 1) & is_untied  # (n,), bool
            sums_of_first = Sums(manifest, table, is_first.astype(np.float64))
            scores["first"] = sums_of_first.over(self.tokens)

        # Scores of whole rows, at the units of rows.
        of_rows = [RowScores.of(example, table) for example in self.examples]
        for name in RowScores._fields:
            of_units = np.full(len(self.frame), np.nan)
            of_units[self.row_units] = [getattr(row, name) for row in of_rows]
            scores[name] = of_units
        return scores


def with_twins(units: pd.DataFrame, twins: RankedTwins) -> pd.DataFrame:
    """Return the units with those of identifiers among their twins behind them.

    Parameters
    ----------
    units
        Units of rows and identifiers, with :data:`ERASURE_COLUMNS`, as the result.
    twins
        Identifiers that were ranked among their twins; each becomes one unit.
    """
    tasks = units.drop_duplicates("example").set_index("example")["task"]
    is_forgotten = twins.units["is_forgotten"]
    of_twins = pd.DataFrame(
        {
            "part": TWINS,
            "side": np.where(is_forgotten, FORGET, HELD_OUT),
            "request": "",
            "example": twins.units["example"],
            "task": twins.units["example"].map(tasks).fillna(""),
            "cluster": twins.units["cluster"],
            "split": np.where(is_forgotten, "train", "test"),
            "type": twins.units["type"],
            "dose": is_forgotten.astype(int),
            "form": 0,
            "cue": 0,
            "stratum": 0,
            "text_auc": np.nan,
            "n_tokens": 1,
            "ref_sum": 0.0,
        }
    )
    return pd.concat([units, of_twins[[*units]]], ignore_index=True)


def erasure_units(manifest: Manifest, sides: RowSides) -> ErasureUnits:
    """Return the units of all rows on a side.

    Parameters
    ----------
    manifest
        The manifest, or the part of it that is scored.
    """
    examples = [manifest.by_id[row_id] for row_id in manifest.by_id]
    retained_examples = [
        example
        for example in examples
        if example.split == "train" and example.id not in sides.request_by_row
    ]
    held = _strings_of_other_rows(examples, retained_examples)
    facts_of = _facts_of_identifiers(manifest, sides)
    clusters_of_retained = {example.cluster for example in retained_examples}

    token_sets: list[TokenSet[dict[str, Any]]] = []
    row_examples = []
    row_units = []
    n_left_out = 0
    n_shared = 0
    for index, example in enumerate(examples):
        side = sides.side_of(example.id)
        if not side:
            continue
        if side == FORGET and example.cluster in clusters_of_retained:
            n_shared += 1

        for part, tokens, identifier in _parts_of_row(example, side, facts_of):
            if identifier is not None and identifier.string in held:
                n_left_out += side == FORGET
                continue
            if part == ROW:
                row_units.append(len(token_sets))
                row_examples.append(example)
            record = _record(part, side, example, len(tokens), identifier)
            record["request"] = sides.request_by_row.get(example.id, "")
            token_sets.append(TokenSet(index, tokens, record))

    tokens_of_sets = TokensOfSets.of(token_sets)
    frame = pd.DataFrame(
        [token_set.facts for token_set in token_sets],
        columns=[name for name in ERASURE_COLUMNS if name != "ref_sum"],
    )
    frame["ref_sum"] = Sums(manifest).over(tokens_of_sets)
    return ErasureUnits(
        frame=frame,
        strings_of_retained=frozenset(held),
        n_left_out=n_left_out,
        n_shared=n_shared,
        tokens=tokens_of_sets,
        examples=tuple(row_examples),
        row_units=np.array(row_units, np.int64),
    )


class RowIdentifier(NamedTuple):
    """An identifier of a row: its type and string, and the facts on it."""

    type: str
    string: str
    facts: Facts


def _strings_of_other_rows(
    examples: Sequence[ManifestExample], retained: Sequence[ManifestExample]
) -> set[str]:
    """Return the identifiers of any row that stand in retained rows."""
    known = set()
    for example in examples:
        known |= {string_of(example, span) for span in example.spans}
    return set(doses(retained, known - {""}))


def _facts_of_identifiers(
    manifest: Manifest, sides: RowSides
) -> Mapping[tuple[str, int, int], Facts]:
    """Return the facts on identifiers, with forget rows alone as the trained ones."""
    compared = {*sides.request_by_row, *sides.held_out}
    return identifier_facts(restricted_to(manifest, compared))


def _parts_of_row(
    example: ManifestExample,
    side: str,
    facts_of: Mapping[tuple[str, int, int], Facts],
) -> Iterator[tuple[str, np.ndarray, RowIdentifier | None]]:
    """Yield the parts of a row: name, tokens, and the facts if it is an identifier.

    Parts without a scored token are left out. Retained rows have no identifiers, and
    forget rows no tokens of low sensitivity: whether a model still works is asked of
    other rows.
    """
    has_text = example.scored.copy()  # (tokens,), bool
    had_loss = example.had_loss
    if had_loss is not None:
        has_text &= had_loss
    has_text[example.identifier_tokens()] = False

    tokens_of_row = np.flatnonzero(has_text)
    tokens_of_response = tokens_of_row[tokens_of_row >= example.response_token]
    if len(tokens_of_row):
        yield ROW, tokens_of_row, None
    if len(tokens_of_response):
        yield RESPONSE, tokens_of_response, None

    if side != FORGET:
        low = np.array(example.low, np.int64)
        low = low[example.scored[low]]
        if len(low):
            yield LOW, low, None
    if side == RETAINED:
        return

    for span, (start, end) in example.identifiers:
        facts = facts_of.get((example.id, span.start, span.end))
        if facts is None:
            continue
        # A held-out row may hold a forgotten identifier: it is on neither side.
        is_on_side = facts.dose > 0 if side == FORGET else facts.dose == 0
        if is_on_side:
            identifier = RowIdentifier(span.type, string_of(example, span), facts)
            yield IDENTIFIERS, np.arange(start, end), identifier


def _record(
    part: str,
    side: str,
    example: ManifestExample,
    n_tokens: int,
    identifier: RowIdentifier | None,
) -> dict[str, Any]:
    """Return the columns of one unit, without its request and reference."""
    facts = NO_FACTS if identifier is None else identifier.facts
    return {
        "part": part,
        "side": side,
        "example": example.id,
        "task": example.task,
        "cluster": example.cluster,
        "split": "train" if side == FORGET else "test",
        "type": "" if identifier is None else identifier.type,
        "dose": facts.dose,
        "form": facts.form,
        "cue": facts.cue,
        "stratum": facts.stratum,
        "text_auc": facts.text_auc,
        "n_tokens": n_tokens,
    }
