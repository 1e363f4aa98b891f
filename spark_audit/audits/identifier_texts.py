"""Strata of annotated identifiers, and whether their texts distinguish the sides.

Trained and held-out identifiers can be compared only where chance could have dealt them
to the sides. Nobody dealt annotated ones, so a classifier that reads their text alone
must not distinguish the sides: a language model reads that text, too.

:func:`strata` divides identifiers by type and form, and tests their texts with
:func:`compare_texts`. A deal is an assignment of clusters to the two sides. A feature
that the classifier shall also read goes into ``_kernels``, a division of identifiers
into ``_stratum_numbers``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

from spark_audit.audits.mia.best_guess import character_features
from spark_audit.audits.mia.text_classifiers import (
    FOLDS,
    folds_of,
    has_enough_clusters,
    remember_last,
    subsample,
    word_features,
)
from spark_audit.audits.mia.texts import permute_sides
from spark_audit.provenance import seed_for
from spark_audit.stats.clustered_roc import Design
from spark_audit.stats.multiple_tests import holm_by_key

MIN_CLUSTERS_OF_STRATUM = 2
"""Held-out clusters that a stratum needs."""

MIN_CLUSTERS_FOR_CLASSIFIER = 10
"""Clusters that each side needs. With fewer, the classifier misses differences that a
checkpoint knows. Take 30 trained dates from 2010 to 2016 and held-out dates of later
years: it finds this in 38% of draws with 5 held-out clusters, in 80% with 6, and in all
with 8 or 10.
"""

ROUNDING = 1e-12
"""Tolerance for rounding where AUCs, or p and a level, are compared."""

CONTEXT_CHARACTERS = 30
"""Characters of the prefix that the classifier reads, the last ones."""

LONG_PREFIX = 1000
"""A prefix of this many characters has about the value 1 as its length feature."""

PERMUTATIONS = 199
"""Least number of random deals of the sides."""

LEVEL = 0.05
"""Share of data sets that lose identifiers although chance alone dealt the sides."""

ON_TRAINED_SIDE = 1
ON_HELD_OUT_SIDE = 0
ON_NO_SIDE = -1
"""Codes of the column ``side`` of an occurrence."""

RIDGE = 1.0
"""Penalty of the ridge regression."""

FREE_MAIL = frozenset(
    "aol gmail gmx googlemail hotmail icloud live mail me msn outlook proton "
    "protonmail web yahoo yandex".split()
)
"""Names of the domains of mail providers, which say nothing about a person."""

# Letters and digits, white space, or a single mark.
_RUN_OF_FORM = re.compile(r"[^\W_]+|\s+|.", re.DOTALL)


class TextTest(NamedTuple):
    """How well text alone distinguishes trained from held-out identifiers.

    Attributes
    ----------
    auc
        Out of fold, within strata; NaN: not tested.
    p
        One-sided p of no difference; NaN: not tested.
    """

    auc: float
    p: float

    @property
    def is_tested(self) -> bool:
        """Return whether each side had enough clusters for a test."""
        return not np.isnan(self.p)


NO_TEXT_TEST = TextTest(np.nan, np.nan)


def mask(string: str, kind: str) -> str:
    """Return the form of an identifier: digits as ``9``, words as ``a``, ``A``, ``AA``.

    Without letters, runs of three or more digits keep their length, as in phone
    numbers; in dates, names and addresses lengths vary at random. A word with letters
    and digits is ``x``, and so is every password. A mail address keeps its top-level
    domain, or the fact that its provider is free.

    Parameters
    ----------
    kind
        Type of the identifier, such as ``EMAIL``.

    Examples
    --------
    >>> mask("Anna Smith", "NAME")
    'A A'
    >>> mask("212-555-0142", "PHONE")
    '999-999-9999'
    >>> mask("a.smith@corp.com", "EMAIL")
    'a.@com'
    """
    if kind == "PASSWORD":
        return "x"

    local, _, domain = string.rpartition("@")
    if local and "." in domain:
        names = domain.lower().split(".")
        ending = "free" if names[-2] in FREE_MAIL else names[-1]
        marks = "".join(char for char in dict.fromkeys(local) if not char.isalnum())
        return f"a{marks}@{ending}"

    has_letters = any(char.isalpha() for char in string)
    runs = _RUN_OF_FORM.findall(string.strip())
    form = "".join(_form_of_run(run, keeps_length=not has_letters) for run in runs)
    # The number of three or more words that look alike does not matter.
    return re.sub(r"\b(\w+)( \1){2,}\b", r"\1 \1", form)


def _form_of_run(run: str, *, keeps_length: bool) -> str:
    """Return the form of a run of letters and digits, of white space, or of a mark."""
    if run.isspace():
        return " "
    if run.isdigit():
        return "9" * len(run) if keeps_length and len(run) > 2 else "9"
    if not run.isalpha():
        return "x" if run.isalnum() else run
    if run.isupper() and len(run) > 1:
        return "AA"
    return "A" if run[0].isupper() else "a"


@remember_last
def strata(spans: pd.DataFrame) -> pd.DataFrame:
    """Return the strata of annotated identifiers, and how the texts of sides differ.

    The last result is kept, since several audits ask for the same spans.

    Each type with :data:`MIN_CLUSTERS_FOR_CLASSIFIER` clusters on both sides is tested
    by itself, and the other types together. Then all that were not distinguished are
    tested together. Identifiers that cannot be tested are refused, too. With several
    groups of types, half of :data:`LEVEL` goes to their tests (Holm), so that many
    types drop out no more often than one. The other half goes to the test of the rest.

    Parameters
    ----------
    spans
        A line per occurrence: ``type``, ``string``, ``part`` (prompt or response),
        ``later`` (whether an identifier stands in front of it in its row), ``context``
        (text in front), ``cluster``, and ``side``: 1 trained, 0 held out, -1 neither.

    Returns
    -------
    The same index, with ``stratum``, from 1, and ``text_auc``, out of fold and within
    strata (NaN: not tested). The stratum of a refused occurrence is negative: text
    alone distinguishes the sides, or no test is possible. Occurrences whose stratum
    lacks a side are not refused, but have no counterpart.
    """
    result = pd.DataFrame(
        {"stratum": _stratum_numbers(spans), "text_auc": np.nan}, index=spans.index
    )

    # Compare occurrences whose stratum also has the other side.
    on_a_side = spans[spans["side"] != ON_NO_SIDE].assign(stratum=result["stratum"])
    compared = on_a_side[counterparts(on_a_side)]

    # Test each group of types by itself, and refuse the distinguished ones.
    group_names = _groups_of_types(compared)  # (compared,)
    groups = [group for _, group in compared.groupby(group_names)]
    level = LEVEL if len(groups) == 1 else LEVEL / 2
    tests = _tests_of_groups(groups, level)
    is_refused = pd.Series(False, index=compared.index)
    for group, test in zip(groups, tests, strict=True):
        result.loc[group.index, "text_auc"] = test.auc
        is_refused[group.index] = _distinguishes(test, level)

    # All types together can show a difference that no single type shows.
    rest = compared[~is_refused]
    if group_names[rest.index].nunique() > 1:
        test = compare_texts(rest)
        if _distinguishes(test, level):
            result.loc[rest.index, "text_auc"] = test.auc
            is_refused[rest.index] = True

    refused = is_refused.index[is_refused]
    result.loc[refused, "stratum"] *= -1
    return result


def _tests_of_groups(groups: Sequence[pd.DataFrame], level: float) -> list[TextTest]:
    """Return the test of each group of types, with p corrected over all (Holm).

    Parameters
    ----------
    groups
        Occurrences of each group, with the columns for :func:`compare_texts`.
    level
        Level of all tests together.
    """
    # Draw enough deals for the smallest p to pass the strictest level.
    permutations = max(PERMUTATIONS, math.ceil(len(groups) / level) - 1)
    tests = [compare_texts(group, permutations=permutations) for group in groups]

    p_by_group: dict[int, float | None] = {}
    for i, test in enumerate(tests):
        p_by_group[i] = test.p if test.is_tested else None
    adjusted_ps = holm_by_key(p_by_group)  # without groups that were not tested
    return [test._replace(p=adjusted_ps.get(i, np.nan)) for i, test in enumerate(tests)]


def _distinguishes(test: TextTest, level: float) -> bool:
    """Return whether text distinguishes the sides, or this could not be tested."""
    return not test.is_tested or test.p <= level + ROUNDING


def _stratum_numbers(spans: pd.DataFrame) -> pd.Series:
    """Return the number of each occurrence's stratum, from 1, with the same index.

    A stratum is of one type, form and part of the row, and either behind another
    identifier or not.

    Parameters
    ----------
    spans
        As for :func:`strata`.
    """
    forms = [
        mask(string, kind)
        for string, kind in zip(spans["string"], spans["type"], strict=True)
    ]
    keys = spans[["type", "part", "later"]].assign(mask=forms)
    return keys.groupby([*keys], sort=False).ngroup() + 1


def _groups_of_types(compared: pd.DataFrame) -> pd.Series:
    """Return the group in which each occurrence is tested, with the same index.

    The group is its type if both sides have enough clusters of it. Other types are
    tested together, under the empty name.

    Parameters
    ----------
    compared
        A line per trained or held-out occurrence: ``type``, ``side``, ``cluster``.
    """
    by_type_and_side = compared.groupby(["type", "side"])["cluster"].nunique()
    n_clusters = by_type_and_side.unstack(fill_value=0)  # (types, sides)
    is_large = (n_clusters >= MIN_CLUSTERS_FOR_CLASSIFIER).all(axis=1)
    large_types = n_clusters.index[is_large]
    return compared["type"].where(compared["type"].isin(large_types), "")


def counterparts(spans: pd.DataFrame) -> np.ndarray:
    """Return a mask of the occurrences whose stratum can be compared, ``(s,)`` bool.

    A stratum needs a trained occurrence and :data:`MIN_CLUSTERS_OF_STRATUM` held-out
    clusters.

    Parameters
    ----------
    spans
        A line per occurrence: ``side`` (1 trained, 0 held out), ``cluster``,
        ``stratum``.
    """
    held_out = spans[spans["side"] == ON_HELD_OUT_SIDE]
    n_held_out = held_out.groupby("stratum")["cluster"].nunique()
    with_held_out = set(n_held_out.index[n_held_out >= MIN_CLUSTERS_OF_STRATUM])
    with_trained = set(spans["stratum"][spans["side"] == ON_TRAINED_SIDE])
    return np.asarray(spans["stratum"].isin(with_held_out & with_trained))


def compare_texts(spans: pd.DataFrame, *, permutations: int = PERMUTATIONS) -> TextTest:
    """Return how well text distinguishes trained from held-out identifiers.

    The test takes the best of three ridge regressions, with features as in the
    membership audit. They read the characters of each identifier; the words and
    characters of the last :data:`CONTEXT_CHARACTERS` characters in front of it, and the
    length of its prefix; or both. Text behind an identifier cannot change its
    likelihood in a causal model. Folds keep clusters whole, and identifiers are
    compared within strata. For the p value whole clusters swap sides, and all fits are
    repeated. There is no test if a side has too few clusters.

    Parameters
    ----------
    spans
        A line per trained or held-out occurrence: ``string``, ``context``, ``cluster``,
        ``stratum``, ``side``.
    """
    # A `Design` calls the sides members and others, and strata tasks.
    clusters = pd.factorize(spans["cluster"])[0]  # (occurrences,)
    strata_codes = pd.factorize(spans["stratum"])[0]  # (occurrences,)
    is_trained = (spans["side"] == ON_TRAINED_SIDE).to_numpy()  # (occurrences,)
    all_sides = Design(is_trained, clusters, strata_codes)

    # The seed depends on the texts. With one seed for all, folds that happen to split
    # the sides unevenly would do so for every data set of that size.
    rng = np.random.default_rng(seed_for(0, *spans["string"]))
    drawn = subsample(all_sides, rng)  # (n,), indices of occurrences
    sides = all_sides.take(drawn)
    spans = spans.iloc[drawn]
    if not has_enough_clusters(sides, MIN_CLUSTERS_FOR_CLASSIFIER):
        return NO_TEXT_TEST

    # Whole clusters swap sides, so the strata of their identifiers do not matter.
    one_stratum = np.zeros(len(drawn), np.int64)
    pool = Design(sides.member, sides.cluster, one_stratum)
    deals = [permute_sides(pool, rng) for _ in range(permutations)]
    # Column 0 has the true sides.
    members = np.stack([sides.member, *deals], axis=1)  # (n, 1 + permutations), bool
    # Folds do not depend on sides, so that deals are treated like the true sides.
    order = rng.permutation(len(np.unique(sides.cluster)))
    fold = folds_of(pool, one_stratum, order)  # (n,)

    aucs_by_classifier = []
    for kernel in _kernels(spans):
        scores = _out_of_fold(kernel, members, sides.task, fold)
        aucs_by_classifier.append(_aucs(scores, members, sides.task))

    # Each deal has the AUC of its best classifier, as the true sides have.
    aucs = np.max(aucs_by_classifier, axis=0)  # (1 + permutations,)
    auc_of_true_sides = aucs[0]
    share_as_good = (aucs >= auc_of_true_sides - ROUNDING).mean()
    return TextTest(auc=float(auc_of_true_sides), p=float(share_as_good))


def _kernels(spans: pd.DataFrame) -> list[np.ndarray]:
    """Return inner products of the features of identifiers, of contexts, and of both.

    Parameters
    ----------
    spans
        A line per occurrence: ``string``, ``context``.

    Returns
    -------
    Shape ``(n, n)`` each.
    """
    # Word features hold labels and tasks, too; here all texts have the same.
    same = np.zeros(len(spans), np.int64)
    prefixes = spans["context"].str[-CONTEXT_CHARACTERS:].to_list()
    prefix_lengths = spans["context"].str.len().to_numpy()[:, None]  # (n, 1)

    of_identifier = [character_features(spans["string"].to_list(), (1, 4))]
    of_context = [
        character_features(prefixes),
        word_features(prefixes, same, same),
        np.log1p(prefix_lengths) / np.log(LONG_PREFIX),
    ]
    kernels = []
    for blocks in (of_identifier, of_context, [*of_identifier, *of_context]):
        features = scipy.sparse.hstack(blocks).tocsr()  # (n, features)
        kernels.append((features @ features.T).toarray())
    return kernels


def _out_of_fold(
    kernel: np.ndarray, members: np.ndarray, stratum: np.ndarray, fold: np.ndarray
) -> np.ndarray:
    """Return scores of kernel ridge regression for each deal of sides.

    Parameters
    ----------
    kernel
        Shape ``(n, n)``.
    members
        Shape ``(n, deals)``, bool: which occurrences are trained in each deal.
    stratum, fold
        Shape ``(n,)``: codes.

    Returns
    -------
    Shape ``(n, deals)``; each occurrence is scored by a fit without its fold.
    """
    # The target is trained or not, minus the share of trained ones of the stratum:
    # centring makes the comparison one within strata.
    sizes = np.bincount(stratum)[stratum, None]  # (n, 1)
    n_members = [np.bincount(stratum, deal)[stratum] for deal in members.T]
    target = members - np.stack(n_members, axis=1) / sizes  # (n, deals)

    scores = np.zeros(members.shape)
    for test_fold in range(FOLDS):
        is_test = fold == test_fold
        is_train = ~is_test
        train_kernel = kernel[np.ix_(is_train, is_train)]
        penalised = train_kernel + RIDGE * np.eye(int(is_train.sum()))
        weights = np.linalg.solve(penalised, target[is_train])  # (train, deals)
        scores[is_test] = kernel[np.ix_(is_test, is_train)] @ weights
    return scores


def _aucs(scores: np.ndarray, members: np.ndarray, stratum: np.ndarray) -> np.ndarray:
    """Return the AUC of each deal: the mean over strata, weighted by pairs of sides.

    Parameters
    ----------
    scores, members
        Shape ``(n, deals)``.
    stratum
        Shape ``(n,)``: codes.

    Returns
    -------
    Shape ``(deals,)``.
    """
    n_deals = members.shape[1]
    wins = np.zeros(n_deals)
    pairs = np.zeros(n_deals)
    for code in np.unique(stratum):
        is_inside = stratum == code
        is_member = members[is_inside]  # (inside, deals), bool
        n_members = is_member.sum(axis=0)  # (deals,)
        ranks = scipy.stats.rankdata(scores[is_inside], axis=0)  # (inside, deals)
        # Mann and Whitney (1947): the rank sum minus its smallest possible value.
        wins += (ranks * is_member).sum(axis=0) - n_members * (n_members + 1) / 2
        pairs += n_members * (len(is_member) - n_members)
    return np.asarray(wins / np.maximum(pairs, 1))
