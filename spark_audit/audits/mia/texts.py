"""Whether texts alone tell members apart: blind classifier, labels, covariates."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pandas as pd
import scipy

from spark_audit.data.examples import parts_outside
from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.provenance import seed_for
from spark_audit.stats.clustered_roc import Design
from spark_audit.stats.duplicates import duplicate_groups
from spark_audit.stats.roc import auc

MOST_COMPARED = 20
"""Labels of a task that both sides are compared by; with more, each is too rare."""

FOLDS = 5

MAX_ROWS_FOR_TEXTS = 1500
"""The blind classifier draws this many rows at most."""

FEATURES = 1 << 14

BLIND_EXCEEDANCES_TO_STOP = 20
"""Permutations that reach the observed AUC after which no more are drawn."""

R = TypeVar("R")

Record: TypeAlias = "dict[str, Any]"

Features: TypeAlias = "scipy.sparse.csr_matrix | np.ndarray"


def remembered(function: Callable[..., R]) -> Callable[..., R]:
    """Keep what was made last: looks at one model, again and again, ask the same."""
    last: tuple[str, Any] = "", None

    @wraps(function)
    def run(*given: Any, **options: Any) -> Any:
        import joblib

        nonlocal last
        found, asked = last, joblib.hash((given, options))
        if found[0] != asked:
            last = found = asked, function(*given, **options)
        return found[1]

    return run


def compressed_bytes(text: str) -> int:
    """Size of a text under zlib at level 6, in bytes."""
    return len(zlib.compress(text.encode(), 6))


def permuted(sides: Design, rng: np.random.Generator) -> np.ndarray:
    """Design dealt out anew, shape ``(n,)`` bool.

    Whole clusters swap sides within their task; a cluster with rows of both sides
    keeps its rows and shuffles them.
    """
    code = np.unique(sides.cluster, return_inverse=True)[1]
    inside, size = np.bincount(code, sides.member), np.bincount(code)
    mixed = ((inside > 0) & (inside < size))[code]
    # Dealt are clusters within their task, and rows within a cluster of both sides.
    unit = np.where(mixed, len(size) + np.arange(len(code)), code)
    stratum = np.where(mixed, sides.task.max(initial=0) + 1 + code, sides.task)
    _, first, place = np.unique(unit, return_index=True, return_inverse=True)
    side = sides.member[first].copy()
    for one in np.unique(stratum[first]):
        at = np.flatnonzero(stratum[first] == one)
        side[at] = rng.permutation(side[at])
    return side[place]


def _own_text(example: ManifestExample) -> str:
    """Prompt and response without the task's fixed wording, as duplicates are found."""
    text = example.text
    parts = parts_outside(tuple(example.template), len(text))
    own = " ".join(text[start:end] for start, end in parts)
    return own if own.strip() else text


def labelled(units: pd.DataFrame) -> tuple[np.ndarray, Design]:
    """Codes of the labels of some rows, -1 for none, and their sides."""
    sides = Design.of(units["member"], units["cluster"], units["task"])
    return units["label"].to_numpy(np.int64), sides


def label_test(
    label: np.ndarray, sides: Design, *, seed: int, permutations: int = 999
) -> float | None:
    """Whether labels are distributed alike on both sides: a permutation p value.

    The statistic is Pearson's chi-square of side by label, summed over tasks; sides
    are permuted by cluster within tasks. ``None`` where no task has two labels.
    """
    use = label >= 0
    sides, label = sides.take(np.flatnonzero(use)), label[use]
    if not len(label):
        return None
    shape = sides.task.max() + 1, label.max() + 1
    cell = sides.task * shape[1] + label
    total = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    if (total > 0).sum(axis=1).max() < 2:
        return None

    def statistic(member: np.ndarray) -> float:
        ours = np.bincount(cell, member, total.size).reshape(shape)
        with np.errstate(invalid="ignore"):
            share = ours.sum(axis=1, keepdims=True) / total.sum(axis=1, keepdims=True)
            spread = total * share * (1 - share)
            return float(np.nansum((ours - total * share) ** 2 / spread))

    observed = statistic(sides.member) - 1e-9
    rng = np.random.default_rng(seed)
    hits = sum(statistic(permuted(sides, rng)) >= observed for _ in range(permutations))
    return (1 + hits) / (1 + permutations)


@remembered
def blind_classifier(
    texts: Sequence[str],
    label: np.ndarray,
    sides: Design,
    *,
    seed: int,
    permutations: int = 199,
) -> tuple[dict[str, float], np.ndarray]:
    """Tell members by their texts alone, out of fold; nothing without two sides.

    Logistic regression (fixed penalty) on the presence of words (hashed: nothing is
    fitted), the text's length and its label. Folds keep clusters whole and are
    stratified by task and side; sides weigh alike in every task. The p value is from
    sides permuted by cluster, the whole procedure repeated (Mann-Whitney's standard
    error is too small for a cross-validated AUC). Once
    :data:`BLIND_EXCEEDANCES_TO_STOP` permutations reach the observed AUC, no more are
    drawn and p is their share, which is valid (Besag and Clifford 1991, "Sequential
    Monte Carlo p-values").

    Parameters
    ----------
    texts
        ``n`` texts; more than :data:`MAX_ROWS_FOR_TEXTS` are subsampled by cluster.
    label
        Shape ``(n,)``, codes within the task.

    Returns
    -------
    The AUC, averaged over tasks, as ``blind_value``, with its one-sided p ``blind_p``,
    its mean ``blind_null`` and central 95 % when sides are permuted, and how many
    permutations and rows; and the scores, NaN where a row was not drawn.
    """
    rng = np.random.default_rng(seed)
    drawn, everywhere = subsample(sides, rng), np.full(len(texts), np.nan)
    used = sides.take(drawn)
    if not enough(used, FOLDS):
        return {}, everywhere
    features = word_features([texts[i] for i in drawn], label[drawn], used.task)
    order = rng.permutation(len(np.unique(used.cluster)))

    def told_apart(member: np.ndarray) -> tuple[float, np.ndarray]:
        fold, scores = dealt(used, member, order), np.zeros(len(member))
        for k in range(FOLDS):
            score = fitted(features, member, used.task, fold != k)
            scores[fold == k] = score(fold == k)
        return mean_auc(used, member, scores), scores

    value, everywhere[drawn] = told_apart(used.member)
    nulls: list[float] = []
    hits = 0
    while len(nulls) < permutations and hits < BLIND_EXCEEDANCES_TO_STOP:
        nulls.append(told_apart(permuted(used, rng))[0])
        hits += nulls[-1] >= value - 1e-12
    done = hits == BLIND_EXCEEDANCES_TO_STOP and len(nulls) < permutations
    p = hits / len(nulls) if done else (1 + hits) / (1 + len(nulls))
    low, high = np.quantile(nulls, [0.025, 0.975]).tolist()
    facts = {
        "blind_value": value,
        "blind_p": p,
        "blind_null": float(np.mean(nulls)),
        "blind_null_low": low,
        "blind_null_high": high,
        "blind_permutations": len(nulls),
        "blind_rows": len(drawn),
    }
    return facts, everywhere


def enough(sides: Design, least: int) -> bool:
    """Whether a task has both sides, and each of them has so many clusters."""
    held = (sides.cluster[side] for side in (sides.member, ~sides.member))
    both = any(len(x) and len(y) for x, y in sides.tasks)
    return both and all(len({*own}) >= least for own in held)


def subsample(sides: Design, rng: np.random.Generator) -> np.ndarray:
    """Rows of whole clusters in random order until there are enough, sorted."""
    n = len(sides.member)
    if n <= MAX_ROWS_FOR_TEXTS:
        return np.arange(n)
    # The smaller side keeps up to half: an AUC is as sure as its smaller side.
    kept = []
    both = [np.flatnonzero(sides.member == side) for side in (True, False)]
    fewest = min(map(len, both))
    small = min(fewest, MAX_ROWS_FOR_TEXTS // 2)
    for rows in both:
        wanted = small if len(rows) == fewest else MAX_ROWS_FOR_TEXTS - small
        _, code = np.unique(sides.cluster[rows], return_inverse=True)
        place = rng.permutation(code.max() + 1)[code]
        kept.append(rows[np.argsort(place, kind="stable")][:wanted])
    return np.sort(np.concatenate(kept))


def hashed(
    texts: Sequence[str],
    *,
    n_features: int,
    analyzer: str = "word",
    ngram_range: tuple[int, int] = (1, 1),
) -> scipy.sparse.csr_matrix:
    """Return the presence of words or n-grams, each text of unit length.

    They are hashed, so that nothing is fitted.

    Returns
    -------
    Shape ``(n, n_features)``.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(
        n_features=n_features,
        analyzer=analyzer,
        ngram_range=ngram_range,
        token_pattern=r"(?u)\b\w+\b" if analyzer == "word" else None,
        alternate_sign=False,
        binary=True,
        norm="l2",
    )
    features: scipy.sparse.csr_matrix = vectorizer.transform(texts)
    return features


def word_features(
    texts: Sequence[str], label: np.ndarray, task: np.ndarray
) -> scipy.sparse.csr_matrix:
    """Presence of words (hashed), length and label, shape ``(n, features)``."""
    words = hashed(texts, n_features=FEATURES)
    length = np.log1p([len(text) for text in texts]) / np.log(1000) - 1
    _, kind = np.unique(np.stack([task, label]), axis=1, return_inverse=True)
    cells = np.arange(len(texts)), kind.ravel()
    kinds = scipy.sparse.csr_matrix((np.full(len(texts), 0.5), cells))
    numbers = scipy.sparse.csr_matrix(np.stack([length, 2 * length**2], axis=1))
    return scipy.sparse.csr_matrix(scipy.sparse.hstack([words, numbers, kinds]))


def dealt(sides: Design, member: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Fold of each row: clusters dealt out in turn within task and side."""
    _, first, code = np.unique(sides.cluster, return_index=True, return_inverse=True)
    rank = np.lexsort((order, member[first], sides.task[first]))
    fold = np.empty(len(first), dtype=np.int64)
    fold[rank] = np.arange(len(first)) % FOLDS
    return fold[code]


def fitted(
    features: Features, member: np.ndarray, task: np.ndarray, train: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """What scores chosen rows by a logistic regression on the rows ``train``."""
    from sklearn.linear_model import LogisticRegression

    is_dense = isinstance(features, np.ndarray)
    model = LogisticRegression(
        C=1.0,
        max_iter=100,
        random_state=0,
        solver="liblinear",
        dual=not is_dense,
        tol=0.01 if is_dense else 0.1,
    )
    rows = np.flatnonzero(train)
    weight = balanced(member[rows], task[rows])
    model.fit(features[rows], member[rows], sample_weight=weight)
    return lambda at: np.asarray(model.decision_function(features[np.flatnonzero(at)]))


def balanced(member: np.ndarray, task: np.ndarray) -> np.ndarray:
    """Weights that give both sides of every task the same total; mean 1."""
    cell = 2 * task + member
    return np.asarray(np.bincount(task)[task] / (2 * np.bincount(cell)[cell]))


def mean_auc(sides: Design, member: np.ndarray, scores: np.ndarray) -> float:
    """AUC averaged over tasks with both sides."""
    tasks = Design(member, sides.cluster, sides.task).tasks
    both = ((scores[x], scores[y]) for x, y in tasks if len(x) and len(y))
    return float(np.mean([auc(*each) for each in both]))


def without_model(
    manifest: Manifest,
    texts: list[str],
    ids: list[str],
    *,
    seed: int,
    permutations: int,
) -> tuple[pd.DataFrame, dict[str, float], np.ndarray]:
    """The examples, what their texts alone tell, and the blind classifier's scores.

    ``label`` is a number within the task, -1 where responses are free; labels are
    compared without case and outer white space.
    What is told are ``duplicates_left`` and ``duplicates_removed``, and what
    :func:`blind_classifier` finds out.
    """
    members, known = set(manifest.membership.members), manifest.by_id
    # Not the examples themselves: each takes 12 KB.
    facts = [
        (key, one.task, one.cluster, key in members, one.answer.strip().casefold())
        for key, one in ((key, known[key]) for key in ids)
    ]
    columns = ["example", "task", "cluster", "member", "label"]
    units = pd.DataFrame(facts, columns=columns)
    labels = units.groupby("task")["label"]
    codes = labels.transform(lambda each: pd.factorize(each, sort=True)[0])
    few = labels.transform("nunique") <= MOST_COMPARED
    units["label"] = np.asarray(codes.where(few, -1), np.int64)
    units["length"], units["zlib_bytes"] = (
        [*map(size, texts)] for size in (len, compressed_bytes)
    )
    same = duplicate_groups([_own_text(known[key]) for key in ids])
    copies = units["member"].groupby(same)
    units["dose"] = dose = copies.transform("sum").astype(float)
    # Rows whose group of near-duplicates has members and non-members.
    crossing = (dose > 0) & (dose < copies.transform("size"))
    removed = manifest.counts.get("rows_near_duplicate", 0)
    alone: dict[str, float] = {"duplicates_left": int(crossing.sum())}
    alone["duplicates_removed"] = removed
    if not permutations:
        return units, alone, np.full(len(ids), np.nan)
    label, sides = labelled(units)
    told, scores = blind_classifier(
        texts,
        label,
        sides,
        seed=seed_for(seed, "mia", "blind"),
        permutations=permutations,
    )
    return units, {**alone, **told}, scores
