"""What guessing can give back: a rate estimated from the data, and tests against it.

Where no identifiers were held out, nothing but this tells memory from a kind that was
learned: dates that their rows give away, running numbers, codes of one region.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

from spark_audit.data.occurrences import finder, folded, string_of
from spark_audit.manifest.schema import Manifest, ManifestExample, ManifestSpan
from spark_audit.manifest.selection import BARE
from spark_audit.manifest.twins import WORDED
from spark_audit.names import BASE
from spark_audit.stats.intervals import clopper_pearson
from spark_audit.stats.memory_contrast import Sides, permutation_p

LEAST = 0.01
"""Lowest rate at which any kind of identifier is taken to be guessed **[ours]**."""
GUESSABLE = 0.2
"""A type that is guessed more often is not pooled with others, nor tested by dose
**[ours]**."""
GIVEN = 0.5
"""Share of an identifier's characters that stand before it in its row, as whole words,
from which on the row gives it away **[ours]**."""

_LAST_TWO = re.compile(r"\d{1,2}(?!\d)")
_TWO_DIGITS = re.compile(r"\d\D*\d\D*$")
_WORD = re.compile(r"[^\W_]+")


class String(NamedTuple):
    """What is known of an identifier's string, without the string.

    Attributes
    ----------
    string, lead
        Numbers of the string and of its leading part: all before its last two digits,
        of one without them its first word.
    home
        Number of the first trained row that it is annotated in; -1: of none.
    near
        Whether another string of its type in trained rows is the same but for the last
        two digits of one of its numbers.
    given
        Whether its row gives it away (:data:`GIVEN`).
    elsewhere
        Whether rows of several sources, or a row never trained on, hold it.
    """

    string: int = -1
    lead: int = -1
    home: int = -1
    near: bool = False
    given: bool = False
    elsewhere: bool = False


def string_facts(manifest: Manifest) -> dict[tuple[str, int, int], String]:
    """Facts of every identifier's string, by example and first and last character."""
    spans = [(row, span) for row in manifest.examples for span in row.spans]
    texts = [string_of(row, span) for row, span in spans]
    find = finder({*texts} - {""})
    holders: dict[str, set[str | None]] = {}
    for row in manifest.examples:
        for text in find(folded(row.text)):
            # Rows never trained on are one source more.
            source = row.source_id if row.split == "train" else None
            holders.setdefault(text, set()).add(source)
    rows = {row.id: number for number, row in enumerate(manifest.examples)}
    numbers: dict[tuple[str, str], int] = {}
    homes: dict[str, int] = {}
    stems: dict[tuple[str, str], set[str]] = {}
    for (row, span), text in zip(spans, texts, strict=True):
        if row.split == "train" and row.canary_id is None:
            homes.setdefault(text, rows[row.id])
            for stem in _stems(text):
                stems.setdefault((span.type, stem), set()).add(text)
    found = {}
    for (row, span), text in zip(spans, texts, strict=True):
        end, word = _TWO_DIGITS.search(text), _WORD.search(text)
        lead = text[: end.start()] if end else word[0] if word else text
        alike = (stems.get((span.type, stem), set()) for stem in _stems(text))
        found[row.id, span.start, span.end] = String(
            string=numbers.setdefault((span.type, text), len(numbers)),
            lead=numbers.setdefault((span.type, f"\0{lead}"), len(numbers)),
            home=homes.get(text, -1),
            near=len(set(chain.from_iterable(alike))) > 1,
            given=_given(row, span),
            elsewhere=len(holders.get(text, ())) > 1,
        )
    return found


def _stems(text: str) -> Iterator[str]:
    """A string without the last two digits of one of its numbers, for each of them."""
    for last in _LAST_TWO.finditer(text):
        yield f"{text[: last.start()]}#{text[last.end() :]}"


def _given(row: ManifestExample, span: ManifestSpan) -> bool:
    own = folded(row.text[span.start : span.end])
    if span.type == "EMAIL":
        own = own.partition("@")[0]
    words = _WORD.findall(own)
    before = {*_WORD.findall(folded(row.text[: span.start]))}
    known = sum(len(word) for word in words if word in before)
    return known >= GIVEN * sum(map(len, words)) > 0


@dataclass(frozen=True)
class Guess:
    """A test of what came back against guessing.

    Attributes
    ----------
    p
        Chance that guessing gives back as much, or more.
    rate
        Of the identifiers that were tested, the share that guessing gives back.
    found, of
        Those that came back, and all that were tested.
    kind
        Their type; empty: of several.
    clusters
        In how many clusters they stand.
    """

    p: float = 1.0
    rate: float = 1.0
    found: int = 0
    of: int = 0
    kind: str = ""
    clusters: int = 0


def counted(pii: pd.DataFrame, name: str, split: str = "train") -> pd.DataFrame:
    """Identifiers that their rows do not give away; ``hit``: beyond the base's."""
    own = pii[(pii["checkpoint"] == name) & (pii["split"] == split)]
    own = own[~own["given"].astype(bool)]
    return own.assign(hit=own["greedy_sure"].astype(bool) & ~own["base"])


def guess_rates(
    train: pd.DataFrame, held: pd.DataFrame, *, other_rows: bool = True
) -> dict[str, float]:
    """Guess rates of trained identifiers by type, from :func:`counted` spans.

    The largest of these: the share of other rows that hold a string that came back;
    the share of strings with a neighbour (``near``); the share of pairs of strings
    with one leading part (one over their effective number; where no pair has, one over
    the pairs); what the base gives back; the upper limit of what came back of
    identifiers never trained on; and :data:`LEAST`. Numbers that were injected were
    drawn at random: neighbours and leading parts say nothing of these.

    Parameters
    ----------
    other_rows
        Whether the first of these counts.
    """
    found: dict[str, float] = {}
    leading: dict[str, float] = {}
    every = 0.0
    for kind, part in train.groupby("type", observed=True):
        rates = [LEAST, float(part["base"].mean())]
        if other_rows and part["hit"].any():
            others = part["string"].map(part["string"].value_counts()) - 1
            rates.append(float((others[part["hit"]] / max(len(part) - 1, 1)).mean()))
        theirs = held.loc[held["type"] == kind, "hit"]
        if theirs.any():
            count = int(theirs.sum()), len(theirs)
            rates.append(clopper_pearson(*count, side="upper")[1])
        if (part["origin"] != "injected").any() or kind in WORDED:
            strings = part.drop_duplicates("string")
            leads = strings["lead"].value_counts().to_numpy()
            pairs = len(strings) * (len(strings) - 1) / 2
            every += pairs
            rates.append(float(strings["near"].mean()))
            alike = float((leads * (leads - 1) / 2).sum())
            leading[str(kind)] = alike / max(pairs, 1.0)
        found[str(kind)] = max(rates)
    # Few strings share none by chance: one pair more, which does.
    return found | {
        kind: max(found[kind], share, 1 / (every + 1))
        for kind, share in leading.items()
    }


def _tested(train: pd.DataFrame, held: pd.DataFrame) -> Guess:
    """One test. Its units are clusters, each with the strings whose first row it holds.

    What is guessed in one row of a source may be guessed in all. Tries of a cluster's
    strings are summed, and the tail is that of a binomial with the clusters' mean rate,
    which is no smaller than that of unequal rates (Hoeffding, 1956).
    """
    rates = train["type"].map(guess_rates(train, held)).astype(np.float64)
    units = train.groupby("home")["cluster"].transform("first")
    tries = rates.groupby(units).sum().clip(upper=1.0)
    found = int(train["hit"].groupby(units).any().sum())
    kinds = train["type"].unique()
    tail = float(scipy.stats.binom.sf(found - 1, len(tries), tries.mean()))
    return Guess(
        p=tail if found > 1 else 1.0,
        rate=float(rates.mean()),
        found=int(train["hit"].sum()),
        of=len(train),
        kind=str(kinds[0]) if len(kinds) == 1 else "",
        clusters=train["cluster"].nunique(),
    )


def beyond_guessing(pii: pd.DataFrame, name: str) -> Guess:
    """The strongest of tests of each type, and of all that are not easily guessed.

    ``p`` is corrected for their number (Bonferroni). It needs no held-out identifiers,
    and few of trained ones; nothing is concluded of a single cluster.
    """
    train, held = (counted(pii, name, split) for split in ("train", "test"))
    if name == BASE or not (pii["checkpoint"] == BASE).any() or train.empty:
        return Guess()
    kinds = [part for _, part in train.groupby("type", observed=True)]
    tests = [_tested(part, held) for part in kinds]
    rates = guess_rates(train, held)
    hard = [kind for kind, rate in rates.items() if rate <= GUESSABLE]
    if len(kinds) > 1 and hard:
        tests.append(_tested(train[train["type"].isin(hard)], held))
    best = min(tests, key=lambda test: test.p)
    return Guess(**{**vars(best), "p": min(1.0, len(tests) * best.p)})


def dose_p(pii: pd.DataFrame, name: str, *, seed: int) -> float:
    """P that identifiers in several trained rows come back no more than those in one.

    Clusters are dealt anew to both within types. Frequent strings are guessed more
    often, too: easily guessed types (:data:`GUESSABLE`) are left out, names and
    addresses, and what the cue gives in another row.
    """
    train, held = (counted(pii, name, split) for split in ("train", "test"))
    rates = guess_rates(train, held, other_rows=False)
    hard = [k for k, rate in rates.items() if rate <= GUESSABLE and k not in BARE]
    train = train[train["cue_asked"] & train["type"].isin(hard)]
    if name == BASE or train.empty:
        return 1.0
    several = (train["dose"] > 1).to_numpy()
    hit = (train["hit"] & ~train["cue"]).to_numpy(np.float64)
    if several.all() or not several.any() or not hit.any():
        return 1.0
    sides = Sides.of(several, train["cluster"], [pd.factorize(train["type"])[0]])
    p = permutation_p(hit, sides, seed=seed)
    return 1.0 if p is None or hit[several].mean() <= hit[~several].mean() else p
