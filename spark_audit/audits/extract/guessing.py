"""How often identifiers are guessed without any memory."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, count
from typing import Any

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.extract.rates import Facts, has_base, row_of
from spark_audit.audits.setup_guards import ALARM
from spark_audit.audits.unguessable import guesses
from spark_audit.data.occurrences import finder, folded, string_of
from spark_audit.manifest.identifier_forms import WORDED
from spark_audit.manifest.schema import Manifest, ManifestExample, ManifestSpan
from spark_audit.results import Hits
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import clopper_pearson

MIN_GUESS_RATE = 0.01
"""Lowest rate at which any kind of identifier is taken to be guessed **[ours]**."""

MAX_GUESS_RATE = 0.2
"""A type that is guessed more often is not pooled with others, nor tested by dose
**[ours]**."""

GIVEN = 0.5
"""Share of an identifier's characters that stand before it in its row, as whole words,
from which on the row gives it away **[ours]**."""

_LAST_TWO = re.compile(r"\d{1,2}(?!\d)")

_TWO_DIGITS = re.compile(r"\d\D*\d\D*$")

_WORD_OR_NUMBER = re.compile(r"[^\W_]+")


def string_facts(manifest: Manifest) -> dict[tuple[str, int, int], dict[str, Any]]:
    """What is known of every identifier's string, without the string.

    By example and first and last character: ``string`` and ``lead``, numbers of the
    string and of its leading part (all before its last two digits, of one without them
    its first word); ``home``, the number of the first trained row that it is annotated
    in, -1 for none; ``near``, whether another string of its type in trained rows is the
    same but for the last two digits of one of its numbers; ``given``, whether its row
    gives it away (:data:`GIVEN`); ``elsewhere``, whether rows of several sources, or a
    row never trained on, hold it; ``chance``, how often it is guessed at most, 1 if it
    can be guessed (:mod:`~spark_audit.audits.unguessable`).
    """
    spans = [
        (number, row, span, string_of(row, span))
        for number, row in enumerate(manifest.examples)
        for span in row.spans
    ]
    find = finder({text for *_, text in spans} - {""})
    holders: dict[str, set[str | None]] = defaultdict(set)
    for row in manifest.examples:
        for text in find(folded(row.text)):
            # Rows never trained on are one source more.
            holders[text].add(row.source_id if row.split == "train" else None)
    homes: dict[str, int] = {}
    alike: dict[tuple[str, str], set[str]] = defaultdict(set)
    for number, row, span, text in spans:
        if row.split == "train" and row.canary_id is None:
            homes.setdefault(text, number)
            for stem in _stems(text):
                alike[span.type, stem].add(text)
    numbers: dict[tuple[str, str], int] = defaultdict(count().__next__)
    guessed = guesses(manifest)
    found = {}
    for _, row, span, text in spans:
        guess = guessed.get((row.id, span.start, span.end))
        end, word = _TWO_DIGITS.search(text), _WORD_OR_NUMBER.search(text)
        lead = text[: end.start()] if end else word[0] if word else text
        same = (alike[span.type, stem] for stem in _stems(text))
        found[row.id, span.start, span.end] = dict(
            string=numbers[span.type, text],
            lead=numbers[span.type, f"\0{lead}"],
            home=homes.get(text, -1),
            near=len({*chain.from_iterable(same)}) > 1,
            given=_given(row, span),
            elsewhere=len(holders[text]) > 1,
            chance=1.0 if guess is None else guess.rate,
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
    words = _WORD_OR_NUMBER.findall(own)
    before = {*_WORD_OR_NUMBER.findall(folded(row.text[: span.start]))}
    known = sum(len(word) for word in words if word in before)
    return known >= GIVEN * sum(map(len, words)) > 0


def counted(spans: pd.DataFrame, split: str = "train") -> pd.DataFrame:
    """Identifiers that their rows do not give away; ``hit``: beyond the base's."""
    own = spans[(spans["split"] == split) & ~spans["given"].astype(bool)]
    return own.assign(hit=own["greedy_sure"].astype(bool) & ~own["base"])


def without_read(held: pd.DataFrame) -> pd.DataFrame:
    """Return held-out identifiers that may tell how often is guessed.

    Where unguessable ones come back, the checkpoint has read rows that were to be held
    out, and these say nothing of guessing: counted as guesses, a list of rows that was
    mistaken in part would hide all memory.

    Parameters
    ----------
    held
        From :func:`counted`; of evidence without ``chance`` all are returned.
    """
    if "chance" not in held:
        return held
    # What the base gives of a type may be guessed of others of it.
    by_base = held.groupby("type", observed=True)["base"].transform("mean")
    unguessable = held.assign(chance=np.maximum(held["chance"], by_base))
    unguessable = unguessable[unguessable["chance"] < 1]
    clusters = unguessable.groupby("cluster").agg(
        hit=("hit", "any"), tries=("chance", "sum")
    )
    n_hits = int(clusters["hit"].sum())
    if n_hits < 2:
        return held
    rate = clusters["tries"].clip(upper=1.0).mean()
    p = scipy.stats.binom.sf(n_hits - 1, len(clusters), rate)
    return held.drop(index=unguessable.index) if p < ALARM else held


def guess_rates(
    train: pd.DataFrame, held: pd.DataFrame, *, other_rows: bool = True
) -> dict[str, float]:
    """Guess rates of trained identifiers by type, from :func:`counted` spans.

    The largest of these: the share of other rows that hold a string that came back;
    the share of strings with a neighbour (``near``); the share of pairs of strings
    with one leading part (one over their effective number; where no pair has, one over
    the pairs); what the base gives back; the upper limit of what came back of
    identifiers never trained on; and :data:`MIN_GUESS_RATE`. Numbers that were injected
    were drawn at random: neighbours and leading parts say nothing of these.

    Parameters
    ----------
    other_rows
        Whether the first of these counts.
    """
    kinds, hit = train.groupby("type", observed=True), train[train["hit"]]
    rates = pd.DataFrame({"least": MIN_GUESS_RATE, "base": kinds["base"].mean()})
    if other_rows:
        others = hit["string"].map(train["string"].value_counts()) - 1
        rates["others"] = others.groupby(hit["type"]).mean() / (kinds.size() - 1)
    theirs = held.groupby("type", observed=True)["hit"].agg(["sum", "size"])
    limits = {
        kind: clopper_pearson(*count, level=0.9)[1]
        for kind, *count in theirs[theirs["sum"] > 0].itertuples()
    }
    rates["held"] = pd.Series(limits, dtype=np.float64)
    told = {*train.loc[train["origin"] != "injected", "type"], *WORDED}
    strings = train[train["type"].isin(told)].drop_duplicates("string")
    rates["near"] = strings.groupby("type", observed=True)["near"].mean()
    # Pairs of strings, and those of one leading part: each with the ones before it.
    pairs, alike = (
        strings.groupby(by, observed=True).cumcount().groupby(strings["type"]).sum()
        for by in ("type", "lead")
    )
    # Few strings share none by chance: one pair more, which does.
    least = 1 / (pairs.sum() + 1)
    rates["lead"] = (alike / pairs.clip(lower=1)).clip(lower=least)
    return {str(kind): float(rate) for kind, rate in rates.max(axis=1).items()}


def _tested(train: pd.DataFrame, held: pd.DataFrame) -> tuple[float, Facts]:
    """One test. Its units are clusters, each with the strings whose first row it holds.

    What is guessed in one row of a source may be guessed in all. Tries of a cluster's
    strings are summed, and the tail is that of a binomial with the clusters' mean rate,
    which is no smaller than that of unequal rates (Hoeffding, 1956).
    """
    rates = train["type"].map(guess_rates(train, held)).astype(np.float64)
    units = train.groupby("home")["cluster"].transform("first")
    tries = rates.groupby(units).sum().clip(upper=1.0)
    found = int(train["hit"].groupby(units).any().sum())
    tail = float(scipy.stats.binom.sf(found - 1, len(tries), tries.mean()))
    kinds, names = train["type"].unique(), train["checkpoint"].unique()
    rate = Estimate(float(rates.mean()), clusters=train["cluster"].nunique())
    return tail if found > 1 else 1.0, {
        "guess_rate": row_of(rate, checkpoint=names[0], metric="guess_rate"),
        "guessed": Hits(count=int(train["hit"].sum()), of=len(train)),
        "kind": str(kinds[0]) if len(kinds) == 1 else "",
    }


def beyond_guessing(spans: pd.DataFrame) -> tuple[float, Facts]:
    """The least p of several tests that guessing gives back as much, and its facts.

    Each type is tested, and all that are not easily guessed; p is corrected for their
    number (Bonferroni). It needs no held-out identifiers, and few of trained ones;
    nothing is concluded of a single cluster, nor without the base.

    Returns
    -------
    The facts are the rate of guessing (``guess_rate``), what came back nevertheless of
    how many (``guessed``), and their type (``kind``), empty if there are several.
    """
    train, held = counted(spans), without_read(counted(spans, "test"))
    if not has_base(spans) or train.empty:
        return 1.0, {}
    parts = [part for _, part in train.groupby("type", observed=True)]
    rates = guess_rates(train, held)
    hard = [kind for kind, rate in rates.items() if rate <= MAX_GUESS_RATE]
    if len(parts) > 1 and hard:
        parts.append(train[train["type"].isin(hard)])
    tests = [_tested(part, held) for part in parts]
    p, facts = min(tests, key=lambda test: test[0])
    return min(1.0, len(tests) * p), facts
