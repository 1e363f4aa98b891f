"""Facts of the findings that compare a rate, and the remarks that follow from them.

Facts of these findings, for sentences (``sentences/en/extract.toml``) and report.json:

====================  ==============================================================
fact                  meaning
====================  ==============================================================
rate                  the rate of reproduced identifiers of trained rows, a row
back                  the same as a count; next to held-out ones of those compared
none_back             whether none is reproduced, even if ties are won
past_base             whether the difference at the base was subtracted
against               what is compared: ``natural`` or ``injected`` held-out ones,
                      ``base``
apart                 the difference that is claimed, a row
unseen, before        shares of held-out ones, and of trained ones at the base
few_held_out          whether some are held out, though none that can be compared
lacking               why these cannot be compared: ``form``, ``few``, ``text``
guess_rate, guessed   rate of guessing, and hits of the test that allows for it
kind                  the only type of that test; empty: several
grows                 p of the growth with dose, where it is the clearer test
sure, shared, cued    hits, and those among them that other rows hold, or the cue
                      gives; each only above 0
all_shared            whether other rows hold all hits
====================  ==============================================================

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


def guess_remarks(facts: Facts, says: str) -> list[str]:
    """Return the key of the remark on guessing, for one type or for several.

    Parameters
    ----------
    facts
        With those of :func:`~spark_audit.audits.extract.guessing.beyond_guessing`.
    says
        ``guessing`` or ``lucky_guesses``.
    """
    if "guessed" in facts:
        return [f"{says}_of_kind" if facts["kind"] else says]

    # Without a guess rate nothing was counted: the rows of all hits give them away.
    if says == "guessing":
        return ["hinted"]
    return []


def holder_facts(train: pd.DataFrame) -> Facts:
    """Return the counts of hits that other rows contain, and that the cue gives alone.

    They are read by :func:`holder_remarks`.

    Parameters
    ----------
    train
        Spans of train rows: columns ``greedy_sure``, ``elsewhere``, ``cue``, ``base``.
    """
    hits = train[train["greedy_sure"].astype(bool)]
    n_hits = len(hits)
    n_shared = int(hits["elsewhere"].sum())
    # A hit of the base does not come from the cue.
    n_cued = int((hits["cue"] & ~hits["base"]).sum())

    # Leave out counts of 0, which no remark states.
    facts: Facts = {"all_shared": n_shared == n_hits}
    counts = {"sure": n_hits, "shared": n_shared, "cued": n_cued}
    for name, count in counts.items():
        if count:
            facts[name] = Hits(count=count, of=len(train))
    return facts


def holder_remarks(facts: Facts) -> list[str]:
    """Return the keys of remarks on facts of :func:`holder_facts`."""
    further = []
    if "shared" in facts:
        further.append("all_shared" if facts["all_shared"] else "some_shared")
    if "cued" in facts:
        further.append("cued")
    return further


def why_not_compared(spans: pd.DataFrame) -> str:
    """Return the reason why held-out identifiers are no control of trained ones.

    ``form``: none has the form and the place of trained ones; ``few``: too few have,
    to test whether their texts differ; ``text``: their texts differ.

    Parameters
    ----------
    spans
        Of one checkpoint: columns ``stratum``, ``split`` and ``cluster``.
    """
    # A stratum below 0 holds spans whose texts differ between sides, or may: see
    # audits/identifier_texts.py.
    of_like_form = spans[spans["stratum"] < 0]
    if of_like_form.empty:
        return "form"

    n_clusters = of_like_form.groupby("split")["cluster"].nunique().reindex(SPLITS)
    is_tested = n_clusters.min() >= MIN_CLUSTERS_FOR_CLASSIFIER
    return "text" if is_tested else "few"
