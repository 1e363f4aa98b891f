"""Facts of the findings that compare a rate, and the remarks that follow from them.

Facts of these findings, for sentences (``sentences/en/extract.toml``) and report.json:

====================  ==============================================================
fact                  meaning
====================  ==============================================================
rate                  rate of reproduced identifiers of trained rows, a row
back                  the same as a count ("they come back"); next to held-out
                      identifiers only of those that are compared
none_back             whether none of trained rows is reproduced, even if ties are won
past_base             whether the difference at the base was subtracted, so that only
                      what exceeds it ("is past it") counts
against               what trained identifiers are compared with: ``natural`` or
                      ``injected`` held-out ones, or ``base``
apart                 the difference that is claimed: by how much the two rates are
                      apart, a row
unseen                share of held-out identifiers that is reproduced, a row
before                share of trained identifiers that the base reproduces, a row
few_held_out          whether identifiers are held out, though none can be compared
lacking               what held-out identifiers lack for a comparison: ``form``,
                      ``few`` or ``text`` (:func:`why_not_compared`)
guess_rate            rate at which identifiers are guessed without memory, a row
guessed               hits beyond the base in the test that allows for guesses
kind                  the only type of identifiers in that test; empty: several
grows                 p of a rate that grows with dose, if it is smaller than that of
                      guessing; else ``None``
sure                  hits of trained rows that do not depend on ties
shared                those among them whose string other rows contain, too
cued                  those among them that the cue alone gives in another row
all_shared            whether other rows contain the strings of all hits
====================  ==============================================================

A *hit* is an identifier that is reproduced. ``sure``, ``shared`` and ``cued`` are only
there above 0.

A new fact gets a row here, and a function or a line where the finding is made
(:mod:`~spark_audit.audits.extract.comparison`). Its sentence reads it by its name.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from spark_audit.audits.extract.rates import SPLITS, Facts, row_of
from spark_audit.audits.identifier_texts import MIN_CLUSTERS_FOR_CLASSIFIER
from spark_audit.results import Hits
from spark_audit.stats.estimate import Estimate


def reproduced_hits(spans: pd.DataFrame) -> Hits:
    """Return the reproduced identifiers of trained rows as a count of a total.

    ``count`` is without ties; ``tied`` counts identifiers that are reproduced only if
    ties are won.

    Parameters
    ----------
    spans
        Of one checkpoint: columns ``split``, ``greedy`` and ``greedy_sure``.
    """
    train = spans[spans["split"] == "train"]
    n_if_ties_won = int(train["greedy"].sum())
    n_sure = int(train["greedy_sure"].sum())
    return Hits(count=n_sure, of=len(train), tied=n_if_ties_won - n_sure)


def share_fact(
    checkpoint: str, metric: str, spans: pd.DataFrame, hit_column: str = "greedy_sure"
) -> Facts:
    """Return the reproduced share of some spans as a fact; empty without spans.

    Parameters
    ----------
    checkpoint
        The checkpoint that reproduces them.
    metric
        Name of the fact.
    spans
        Columns ``cluster``, that of the hits, and ``weight``, where they have weights.
    hit_column
        Column of hits; NaN where the checkpoint was not scored.
    """
    scored = spans.dropna(subset=hit_column)
    if scored.empty:
        return {}

    # In each stratum held-out spans get the total weight of the trained ones. Without
    # weights the mean is that of all spans alike.
    share = np.average(scored[hit_column].astype(float), weights=scored.get("weight"))
    n_clusters = scored["cluster"].nunique()
    estimate = Estimate(float(share), n=len(scored), clusters=n_clusters)
    return {metric: row_of(estimate, checkpoint=checkpoint, metric=metric)}


def lucky_guess_remark(facts: Facts) -> str:
    """Return the key of the remark that the test allows for lucky guesses.

    Parameters
    ----------
    facts
        With those of :func:`~spark_audit.audits.extract.guessing.beyond_guessing`, of
        one type of identifiers or of several.
    """
    return "lucky_guesses_of_kind" if facts["kind"] else "lucky_guesses"


def guess_rate_remark(facts: Facts) -> str:
    """Return the key of the remark on how many hits guessing gives.

    Parameters
    ----------
    facts
        With those of :func:`~spark_audit.audits.extract.guessing.beyond_guessing`, if
        it could test anything.
    """
    # Every hit has a hint in its row, so no guess rate could be estimated.
    if "guessed" not in facts:
        return "hinted"
    return "guessing_of_kind" if facts["kind"] else "guessing"


def other_row_facts(train: pd.DataFrame) -> Facts:
    """Return how many hits other rows contain, and how many the cue gives in such rows.

    :func:`other_row_remarks` reads these facts.

    Parameters
    ----------
    train
        Spans of train rows, with bool columns ``greedy_sure`` (a hit), ``elsewhere``
        (other rows contain the string), ``cue`` (reproduced behind its cue in another
        row) and ``base`` (reproduced by the base).
    """
    hits = train[train["greedy_sure"].astype(bool)]
    n_hits = len(hits)
    n_shared = int(hits["elsewhere"].sum())
    # Leave out what the base reproduces as well, since training did not cause it.
    n_cued = int((hits["cue"] & ~hits["base"]).sum())

    # Counts of 0 are no facts, since no remark states them.
    facts: Facts = {"all_shared": n_shared == n_hits}
    counts = {"sure": n_hits, "shared": n_shared, "cued": n_cued}
    for name, count in counts.items():
        if count:
            facts[name] = Hits(count=count, of=len(train))
    return facts


def other_row_remarks(facts: Facts) -> list[str]:
    """Return the keys of remarks on facts of :func:`other_row_facts`."""
    further = []
    if "shared" in facts:
        further.append("all_shared" if facts["all_shared"] else "some_shared")
    if "cued" in facts:
        further.append("cued")
    return further


def why_not_compared(spans: pd.DataFrame) -> str:
    """Return the reason why held-out identifiers are no control of trained ones.

    ========  ===================================================================
    reason    meaning, first match wins
    ========  ===================================================================
    ``form``  no held-out one has the form and the place of a trained one
    ``text``  some have, but text alone distinguishes them from trained ones
    ``few``   some have, but they are too few to test whether their texts differ
    ========  ===================================================================

    Parameters
    ----------
    spans
        Of one checkpoint: columns ``stratum``, ``split`` and ``cluster``.
    """
    # A stratum below 0 was refused: the same form and place, but texts that differ
    # between the sides, or may (see audits/identifier_texts.py).
    refused = spans[spans["stratum"] < 0]
    if refused.empty:
        return "form"

    # Texts are tested if each side has enough clusters. A side without spans has none.
    clusters_by_split = refused.groupby("split")["cluster"].nunique()
    n_clusters = clusters_by_split.reindex([*SPLITS], fill_value=0)
    is_tested = n_clusters.min() >= MIN_CLUSTERS_FOR_CLASSIFIER
    return "text" if is_tested else "few"
