"""Rates at which identifiers are guessed without memory, and tests of more hits.

A *hit* is an identifier that greedy decoding reproduces. A *guess rate* is the chance
of a hit without memory, a share; it is assumed rather too high than too low, so that no
guess is called memory. First stand the identifiers that count, then guess rates by
type, then the tests (for :mod:`~spark_audit.audits.extract.comparison`).

A new rate becomes a column of ``rates`` and a row of the table in :func:`guess_rates`.
Where it needs another fact of a string, that is a field of
:class:`~spark_audit.audits.extract.string_facts.StringFacts`, and so a column of the
evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.extract.rates import Facts, is_scored_beside_base, row_of
from spark_audit.audits.setup_guards import ALARM
from spark_audit.manifest.clusters import ONE_WORD_TYPES
from spark_audit.manifest.identifier_forms import WORDED
from spark_audit.results import Hits
from spark_audit.stats.estimate import Estimate
from spark_audit.stats.intervals import clopper_pearson
from spark_audit.stats.memory_contrast import Sides
from spark_audit.stats.permutation import permutation_p

MIN_GUESS_RATE = 0.01
"""Lowest guess rate that is assumed for any kind of identifier **[ours]**."""

MAX_GUESS_RATE = 0.2
"""A type with a higher guess rate is not pooled with others nor tested by dose
**[ours]**.
"""

LEVEL_OF_GUESS_LIMIT = 0.9
"""Confidence of the two-sided interval whose upper limit is taken as a guess rate."""


def counted_identifiers(spans: pd.DataFrame, split: str = "train") -> pd.DataFrame:
    """Return the identifiers of a split that their rows do not give away.

    Only these count in the tests of guessing. The column ``hit`` is added: whether the
    checkpoint reproduces an identifier and the base does not.

    Parameters
    ----------
    spans
        Of one checkpoint: columns ``split``, ``given``, ``greedy_sure`` and ``base``
        (:func:`~spark_audit.audits.extract.prompt_table.with_cue_and_base`).
    """
    # A hit of the base needs no training on these rows, so it is no hit here.
    is_counted = (spans["split"] == split) & ~spans["given"].astype(bool)
    identifiers = spans[is_counted]
    is_hit = identifiers["greedy_sure"].astype(bool) & ~identifiers["base"]
    return identifiers.assign(hit=is_hit)


def unread_identifiers(held_out: pd.DataFrame) -> pd.DataFrame:
    """Return held-out identifiers without those that the checkpoint seems to have read.

    The others can show how often identifiers are guessed. If unguessable ones are
    reproduced more often than by chance, the checkpoint has read rows that should be
    held out: then all unguessable ones are left out. Counting these as guesses would
    let a partly wrong list of rows hide all memory.

    Parameters
    ----------
    held_out
        From :func:`counted_identifiers`, with columns ``type``, ``cluster`` and
        ``chance``: the chance that a guess gives the string, 1 where it can be guessed
        or that is not known. Without ``chance`` all are returned.
    """
    if "chance" not in held_out:
        return held_out

    # The hit rate of the base on a type is a guess rate of that type.
    base_rate = held_out.groupby("type", observed=True)["base"].transform("mean")
    chance = np.maximum(held_out["chance"], base_rate)  # (identifiers,)
    with_chance = held_out.assign(chance=chance)
    unguessable = with_chance[with_chance["chance"] < 1]  # 1: it can be guessed

    # Each cluster is one trial; its chance is the sum over its identifiers.
    clusters = unguessable.groupby("cluster").agg(
        hit=("hit", "any"), chance=("chance", "sum")
    )
    # A single hit may be a guess, so it proves nothing.
    n_hits = int(clusters["hit"].sum())
    if n_hits < 2:
        return held_out

    # The tail is that of a binomial with the mean rate, as in the test of trained ones.
    rate = clusters["chance"].clip(upper=1.0).mean()
    p = scipy.stats.binom.sf(n_hits - 1, len(clusters), rate)
    if p >= ALARM:
        return held_out
    return held_out.drop(index=unguessable.index)


def guess_rates(
    train: pd.DataFrame, held_out: pd.DataFrame, *, other_rows: bool = True
) -> dict[str, float]:
    """Return guess rates of trained identifiers by type.

    Both frames are from :func:`counted_identifiers`. The rate is the largest of these:

    ==========  ====================================================================
    ``least``   :data:`MIN_GUESS_RATE`
    ``base``    share that the base reproduces
    ``others``  mean share of the other identifiers of the type that are the same string
                as one that was reproduced
    ``held``    upper limit of the hit rate of identifiers never trained on
    ``near``    share of strings with a neighbour
    ``lead``    share of pairs of strings of the type with one leading part; where few
                or none have, :func:`_least_shares`
    ==========  ====================================================================

    Injected numbers were drawn at random, so neighbours and leading parts say nothing
    about them.

    Parameters
    ----------
    train, held_out
        Columns ``type``, ``origin``, ``hit``, ``base`` and those of
        :class:`~spark_audit.audits.extract.string_facts.StringFacts`.
    other_rows
        Whether ``others`` is one of the rates.
    """
    of_type = train.groupby("type", observed=True)
    rates = pd.DataFrame({"least": MIN_GUESS_RATE, "base": of_type["base"].mean()})
    if other_rows:
        # For hits: the share of other lines of the type that have the same string.
        hits = train[train["hit"]]
        other_holders = hits["string"].map(train["string"].value_counts()) - 1
        mean_holders = other_holders.groupby(hits["type"]).mean()
        rates["others"] = mean_holders / (of_type.size() - 1)

    rates["held"] = _held_out_limits(held_out)

    # Other strings guide a guess of words, and of numbers unless all of the type were
    # injected. Count each string once, however many rows hold it.
    natural_types = set(train.loc[train["origin"] != "injected", "type"])
    is_guided = train["type"].isin(natural_types | set(WORDED))
    strings = train[is_guided].drop_duplicates("string")
    rates["near"] = strings.groupby("type", observed=True)["near"].mean()

    rates["lead"] = _shares_of_like_pairs(strings)

    # A type that a rate says nothing about has NaN there, which the maximum skips.
    highest = rates.max(axis=1)
    return {str(pii_type): float(rate) for pii_type, rate in highest.items()}


def _held_out_limits(held_out: pd.DataFrame) -> pd.Series[float]:
    """Return by type the upper limit of the rate at which held-out ones are reproduced.

    Hits among identifiers never trained on are guesses. Types without a hit are left
    out.

    Parameters
    ----------
    held_out
        From :func:`unread_identifiers`: columns ``type`` and ``hit``.
    """
    hits_by_type = held_out.groupby("type", observed=True)["hit"].agg(["sum", "size"])
    with_hits = hits_by_type[hits_by_type["sum"] > 0]
    limits = {}
    for pii_type, n_hits, n in with_hits.itertuples():
        limits[pii_type] = clopper_pearson(n_hits, n, level=LEVEL_OF_GUESS_LIMIT)[1]
    return pd.Series(limits, dtype=np.float64)


def _shares_of_like_pairs(strings: pd.DataFrame) -> pd.Series[float]:
    """Return by type the share of pairs of strings that have one leading part.

    It is at least what :func:`_least_shares` returns.

    Parameters
    ----------
    strings
        Each string once: columns ``type`` and ``lead``, and ``chance`` where known.
    """
    n_pairs = _pairs_by_type(strings, "type")
    n_alike = _pairs_by_type(strings, "lead")
    shares = n_alike / n_pairs.clip(lower=1)
    return shares.clip(lower=_least_shares(strings, n_pairs))


def _least_shares(strings: pd.DataFrame, n_pairs: pd.Series[int]) -> pd.Series[float]:
    """Return by type the guess rate to assume where no two strings are alike.

    Few strings may share no leading part by chance, so one pair more is counted, which
    does: of two strings, every second one may be guessed. But the form of some strings
    tells that nobody guesses them (:mod:`~spark_audit.audits.unguessable`), however few
    they are. The mean of their bounds is taken where it is smaller.

    Parameters
    ----------
    strings
        As in :func:`_shares_of_like_pairs`.
    n_pairs
        Pairs of strings by type. Pairs of other types say nothing about this one.
    """
    from_pairs = 1 / (n_pairs + 1)
    # Evidence of earlier versions does not know what can be guessed.
    if "chance" not in strings:
        return from_pairs

    from_form = strings.groupby("type", observed=True)["chance"].mean()
    return from_pairs.clip(upper=from_form.reindex(from_pairs.index))


def _pairs_by_type(strings: pd.DataFrame, column: str) -> pd.Series[int]:
    """Return how many pairs of strings have the same value in a column, by type.

    A value of ``lead`` belongs to one type; with ``type`` all pairs of a type count.
    """
    # Each string makes a pair with every one before it that has its value.
    n_before = strings.groupby(column, observed=True).cumcount()  # (strings,)
    return n_before.groupby(strings["type"]).sum()


class GuessTest(NamedTuple):
    """The p that guessing gives as many hits, and the facts of its sentence."""

    p: float
    facts: Facts


def _guess_test(train: pd.DataFrame, held_out: pd.DataFrame) -> GuessTest:
    """Return the test that guessing gives as many clusters with a hit.

    The units are clusters, each with the strings whose first row it contains, since a
    guess that succeeds in one row of a source may succeed in all. The guess rates of a
    cluster's identifiers are summed. The tail is that of a binomial with the mean rate
    of the clusters, which is no smaller than the tail for unequal rates (Hoeffding,
    1956).

    Parameters
    ----------
    train, held_out
        Of one checkpoint, from :func:`counted_identifiers`.
    """
    rates_by_type = guess_rates(train, held_out)
    rates = train["type"].map(rates_by_type).astype(np.float64)  # (identifiers,)

    # All rows of a string (one `home` each) belong to the cluster of its first trained
    # row.
    home_cluster = train.groupby("home")["cluster"].transform("first")  # (identifiers,)
    cluster_rates = rates.groupby(home_cluster).sum().clip(upper=1.0)  # (clusters,)
    n_hits = int(train["hit"].groupby(home_cluster).any().sum())  # clusters with a hit

    # A single cluster proves nothing.
    p = 1.0
    if n_hits > 1:
        p = float(
            scipy.stats.binom.sf(n_hits - 1, len(cluster_rates), cluster_rates.mean())
        )

    # The sentence names the type where there is one.
    pii_types = train["type"].unique()
    name = train["checkpoint"].unique()[0]
    mean_rate = Estimate(float(rates.mean()), clusters=train["cluster"].nunique())
    facts: Facts = {
        "guess_rate": row_of(mean_rate, checkpoint=name, metric="guess_rate"),
        "guessed": Hits(count=int(train["hit"].sum()), of=len(train)),
        "kind": str(pii_types[0]) if len(pii_types) == 1 else "",
    }
    return GuessTest(p, facts)


def beyond_guessing(spans: pd.DataFrame) -> GuessTest:
    """Return the least p of several tests that guessing gives as many hits, with facts.

    There is a test of each type, and one of all types that are hard to guess. p is
    one-sided, and corrected over them (Bonferroni). The tests need no held-out
    identifiers and few trained ones. Where nothing can be tested (no base, or no
    identifier that its row does not give away), p is 1 and there are no facts.

    Parameters
    ----------
    spans
        Of one checkpoint, with the columns of :func:`counted_identifiers` and
        :func:`guess_rates`.

    Returns
    -------
    The facts are the guess rate (``guess_rate``), the hits and their total
    (``guessed``), and the type (``kind``), empty if there are several.
    """
    train = counted_identifiers(spans)
    held_out = unread_identifiers(counted_identifiers(spans, "test"))
    if not is_scored_beside_base(spans) or train.empty:
        return GuessTest(1.0, {})

    # Test each type alone, then all hard types together, since each may have few hits.
    groups = [of_type for _, of_type in train.groupby("type", observed=True)]
    rates = guess_rates(train, held_out)
    hard_types = _hard_types(rates)
    if len(groups) > 1 and hard_types:
        groups.append(train[train["type"].isin(hard_types)])

    # Take the clearest test, corrected for the number of tests.
    tests = [_guess_test(group, held_out) for group in groups]
    clearest = min(tests, key=lambda test: test.p)
    return GuessTest(min(1.0, len(tests) * clearest.p), clearest.facts)


def _hard_types(rates: Mapping[str, float]) -> list[str]:
    """Return the types with a guess rate up to :data:`MAX_GUESS_RATE`."""
    return [pii_type for pii_type, rate in rates.items() if rate <= MAX_GUESS_RATE]


def dose_p(spans: pd.DataFrame, *, seed: int) -> float:
    """Return p that identifiers in several trained rows are reproduced no more often.

    The comparison is with identifiers in one trained row; clusters are permuted within
    types. Since frequent strings are also guessed more often, names, addresses and
    types with a guess rate above :data:`MAX_GUESS_RATE` are left out. So are hits that
    the cue gives in another row. p is two-sided, and 1 where nothing can be compared or
    the rate does not grow.

    Parameters
    ----------
    spans
        Of one checkpoint: columns ``type``, ``dose`` (trained rows that hold the
        string), ``cue`` (whether the checkpoint gives it after the same cue, without
        its row), ``cue_asked`` (whether that was asked), and those of
        :func:`counted_identifiers`.
    """
    # Hits in other rows are the effect under test, so they do not count as guesses.
    train = counted_identifiers(spans)
    held_out = unread_identifiers(counted_identifiers(spans, "test"))
    rates = guess_rates(train, held_out, other_rows=False)
    is_hard = train["type"].isin(_hard_types(rates))
    is_name_or_address = train["type"].isin(ONE_WORD_TYPES)
    train = train[train["cue_asked"] & is_hard & ~is_name_or_address]

    is_in_several = (train["dose"] > 1).to_numpy()  # (spans,), bool
    is_hit = (train["hit"] & ~train["cue"]).to_numpy(np.float64)  # (spans,), 0 or 1
    if is_in_several.all() or not is_in_several.any() or not is_hit.any():
        return 1.0

    # Identifiers in several rows are one side, those in one row the other. Clusters are
    # permuted within types.
    type_codes = pd.factorize(train["type"])[0]
    sides = Sides.of(is_in_several, train["cluster"], [type_codes])
    p = permutation_p(is_hit, sides, seed=seed)
    rate_in_several = is_hit[is_in_several].mean()
    rate_in_one = is_hit[~is_in_several].mean()
    # Only more hits at a higher dose count; fewer are no memory.
    if p is None or rate_in_several <= rate_in_one:
        return 1.0
    return p
