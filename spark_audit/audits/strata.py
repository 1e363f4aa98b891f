"""Which annotated identifiers may be compared: those of one form and place.

A model that learned a form makes all identifiers of this form likelier. Held-out
identifiers are a control for trained ones of the same form and place only, and only
where the text alone does not tell the two sides apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.mia.texts import (
    FOLDS,
    both_sides,
    characters,
    clusters_by_side,
    dealt,
    permuted,
    remembered,
    subsample,
    word_features,
)
from spark_audit.provenance import seed_for
from spark_audit.stats.roc import Design

FEWEST = 2
"""Held-out clusters that a stratum needs."""
ENOUGH = 10
"""Clusters that each side needs. With fewer, the classifier misses what a checkpoint
knows: that 30 trained dates are of 2010 to 2016 and held-out ones of later years, it
finds in 38% of draws with 5 held-out clusters, in 80% with 6, in all with 8 or 10."""
CONTEXT = 30
"""Characters of the prefix that the classifier reads."""
PERMUTATIONS, LEVEL = 199, 0.05
FREE_MAIL = frozenset(
    "aol gmail gmx googlemail hotmail icloud live mail me msn outlook proton "
    "protonmail web yahoo yandex".split()
)
_RUN = re.compile(r"[^\W_]+|\s+|.", re.DOTALL)


def mask(string: str, kind: str) -> str:
    """Form of an identifier: digits as ``9``, words as ``a``, ``A`` or ``AA``.

    Where there are no letters, runs of three and more digits keep their length, such as
    those of a phone number; in dates, names and addresses lengths vary at random. A
    word with letters and digits is ``x``, and so is every password. Of a mail address
    the top-level domain is kept, or that it is of a free provider.
    """
    if kind == "PASSWORD":
        return "x"
    local, _, domain = string.rpartition("@")
    if local and "." in domain:
        names = domain.lower().split(".")
        ending = "free" if names[-2] in FREE_MAIL else names[-1]
        marks = "".join(c for c in dict.fromkeys(local) if not c.isalnum())
        return f"a{marks}@{ending}"
    exact = not any(c.isalpha() for c in string)
    parts = [_part(run, exact=exact) for run in _RUN.findall(string.strip())]
    # Of three words and more of one look the number does not matter.
    return re.sub(r"\b(\w+)( \1){2,}\b", r"\1 \1", "".join(parts))


def _part(run: str, *, exact: bool) -> str:
    if run.isspace():
        return " "
    if run.isdigit():
        return "9" * len(run) if exact and len(run) > 2 else "9"
    if not run.isalpha():
        return "x" if run.isalnum() else run
    if run.isupper() and len(run) > 1:
        return "AA"
    return "A" if run[0].isupper() else "a"


def strata(spans: pd.DataFrame) -> pd.DataFrame:
    """Comparable occurrences of annotated identifiers, and the test of their texts.

    Types are tested each by itself where both sides have :data:`ENOUGH` clusters, the
    others together, and then all that were not told apart. What cannot be tested is no
    control either.

    Parameters
    ----------
    spans
        A row per occurrence: ``type``, ``string``, ``part`` (prompt or response),
        ``later`` (whether an identifier stands in front of it in its row), ``context``
        (text in front), ``cluster``, and ``side``: 1 trained, 0 held out, -1 neither.

    Returns
    -------
    Same index: ``stratum``, from 1; negative where text alone tells the sides apart or
    that cannot be tested. ``text_auc``: out of fold, within strata; NaN: not tested.
    """
    masks = [mask(*each) for each in zip(spans["string"], spans["type"], strict=True)]
    keys = spans[["type", "part", "later"]].assign(mask=masks)
    found = pd.DataFrame(
        {"stratum": keys.groupby([*keys], sort=False).ngroup() + 1, "text_auc": np.nan},
        index=spans.index,
    )
    used = spans[spans["side"] >= 0].assign(stratum=found["stratum"])
    used = used[counterparts(used)]
    sizes = used.groupby(["type", "side"])["cluster"].nunique().unstack(fill_value=0)
    alone = sizes.index[(sizes >= ENOUGH).all(axis=1)]
    groups = used["type"].where(used["type"].isin(alone), "")
    apart = pd.Series(False, index=used.index)
    for _, part in used.groupby(groups):
        auc, p = told_apart(part)
        found.loc[part.index, "text_auc"] = auc
        apart[part.index] = not p > LEVEL
    rest = used[~apart]
    if groups[rest.index].nunique() > 1:
        auc, p = told_apart(rest)
        if not p > LEVEL:
            found.loc[rest.index, "text_auc"] = auc
            apart[rest.index] = True
    found.loc[apart.index[apart], "stratum"] *= -1
    return found


def counterparts(spans: pd.DataFrame) -> np.ndarray:
    """Which occurrences have some of the other side in their stratum.

    A stratum needs a trained occurrence and :data:`FEWEST` held-out clusters.

    Parameters
    ----------
    spans
        ``side`` (1 trained, 0 held out), ``cluster``, ``stratum``: a row per
        occurrence.

    Returns
    -------
    Shape ``(s,)`` bool.
    """
    held = spans[spans["side"] == 0].groupby("stratum")["cluster"].nunique()
    enough = set(held.index[held >= FEWEST])
    both = enough & set(spans["stratum"][spans["side"] == 1])
    return np.asarray(spans["stratum"].isin(both))


def told_apart(spans: pd.DataFrame) -> tuple[float, float]:
    """AUC and one-sided p of telling trained identifiers from held-out ones by text.

    The best of three classifiers (ridge regression), by the features of the membership
    audit's: characters of each identifier; words and characters of :data:`CONTEXT`
    characters in front of it, and how long its prefix is; or both. What stands behind
    an identifier cannot change its likelihood in a causal model. Folds keep clusters
    whole, identifiers are compared within strata, and whole clusters swap sides for the
    p value, with all fits made anew. NaN where a side has too few clusters.
    """
    return _told_apart(
        spans["string"].to_list(),
        spans["context"].str[-CONTEXT:].to_list(),
        spans["context"].str.len().to_numpy(),
        Design(
            (spans["side"] == 1).to_numpy(),
            pd.factorize(spans["cluster"])[0],
            pd.factorize(spans["stratum"])[0],
        ),
    )


@remembered
def _told_apart(
    strings: Sequence[str], contexts: Sequence[str], prefix: np.ndarray, sides: Design
) -> tuple[float, float]:
    # By the text: with one seed for all, folds that happen to split trained from
    # held-out rows unevenly would do so for every data set of that size.
    rng = np.random.default_rng(seed_for(0, *strings))
    drawn = subsample(sides, rng)
    used = sides.take(drawn)
    if not both_sides(used) or min(clusters_by_side(used)) < ENOUGH:
        return np.nan, np.nan
    same = np.zeros(len(drawn), np.int64)
    before = [contexts[i] for i in drawn]
    own = characters([strings[i] for i in drawn], (1, 4))
    place = np.log1p(prefix[drawn])[:, None] / np.log(1000)
    context = [characters(before), word_features(before, same, same), place]
    # Whole clusters swap sides, whatever the strata of their identifiers.
    pool = Design(used.member, used.cluster, same)
    dealt_anew = [permuted(pool, rng) for _ in range(PERMUTATIONS)]
    members = np.stack([used.member, *dealt_anew], axis=1)
    # Folds that know no side, so that those that were dealt anew are no worse off.
    fold = dealt(pool, same, rng.permutation(len(np.unique(used.cluster))))
    tried = []
    for parts in ([own], context, [own, *context]):
        features = scipy.sparse.hstack(parts).tocsr()
        kernel = (features @ features.T).toarray()
        scores = _out_of_fold(kernel, members, used.task, fold)
        tried.append(_areas(scores, members, used.task))
    # The best of each deal too: the choice is no advantage of the sides as they are.
    areas = np.max(tried, axis=0)
    return float(areas[0]), float((areas >= areas[0] - 1e-12).mean())


def _out_of_fold(
    kernel: np.ndarray, members: np.ndarray, stratum: np.ndarray, fold: np.ndarray
) -> np.ndarray:
    """Scores of each deal of sides, shape ``(n, deals)``; the penalty is 1."""
    sizes = np.bincount(stratum)[stratum, None]
    shares = np.stack([np.bincount(stratum, one)[stratum] for one in members.T], 1)
    target = members - shares / sizes
    scores = np.zeros(members.shape)
    for k in range(FOLDS):
        test, train = fold == k, fold != k
        own = kernel[np.ix_(train, train)] + np.eye(int(train.sum()))
        scores[test] = kernel[np.ix_(test, train)] @ np.linalg.solve(own, target[train])
    return scores


def _areas(scores: np.ndarray, members: np.ndarray, stratum: np.ndarray) -> np.ndarray:
    """AUC of each deal, shape ``(deals,)``: mean over strata by pairs of both sides."""
    wins, pairs = np.zeros((2, members.shape[1]))
    for one in np.unique(stratum):
        ours = members[stratum == one]
        count = ours.sum(axis=0)
        ranks = scipy.stats.rankdata(scores[stratum == one], axis=0)
        wins += (ranks * ours).sum(axis=0) - count * (count + 1) / 2
        pairs += count * (len(ours) - count)
    return np.asarray(wins / np.maximum(pairs, 1))
