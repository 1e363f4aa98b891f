"""Membership scores of texts, and whether the texts alone tell members apart.

All scores are oriented alike: the larger, the likelier a member. A score tells
membership only if members and non-members are alike but for training; the blind
classifier and the label test look at the texts without any model to check that.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse, stats

from spark_audit.manifest.schema import Manifest, ManifestExample
from spark_audit.scoring.table import TokenTable
from spark_audit.stats.balance import smd
from spark_audit.stats.duplicates import duplicate_groups
from spark_audit.stats.roc import auc

ATTACKS = ("loss", "response", "mink10", "minkpp10", "zlib", "reference")
SHARE = 0.1
SD_FLOOR = 1e-4
"""Below this, a next-token distribution counts as having no spread."""
ZLIB_LEVEL = 6
MOST_COMPARED = 20
"""Labels of a task that both sides are compared by; with more, each is too rare."""
FEWEST = 20
"""A task needs this many members and as many non-members to be estimated."""

FOLDS = 5
MOST_ROWS = 1500
"""The blind classifier draws this many rows at most."""
FEATURES = 1 << 14
C = 1.0
ENOUGH = 20
"""Permutations that reach the observed AUC after which no more are drawn."""


# --- scores ---------------------------------------------------------------------------


def lowest_mean(values: np.ndarray, share: float = SHARE) -> float:
    """Mean of the ``max(1, floor(share n))`` smallest values.

    Min-K% Prob (Shi et al. 2024, "Detecting Pretraining Data from Large Language
    Models"); a short text always keeps one token.
    """
    if not len(values):
        raise ValueError("there is no value")
    count = max(1, int(np.floor(share * len(values) + 1e-9)))
    return float(np.partition(values, count - 1)[:count].mean())


def z_scores(logp: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Log-probabilities against the model's own next-token distribution.

    ``(logp - mean) / sd``, 0 where ``sd`` is below :data:`SD_FLOOR`; their lowest mean
    is Min-K%++ (Zhang et al. 2025, "Min-K%++: Improved Baseline for Detecting
    Pre-Training Data from Large Language Models").
    """
    usable = sd >= SD_FLOOR
    return np.where(usable, (logp - mean) / np.where(usable, sd, 1.0), 0.0)


def compressed_bytes(text: str) -> int:
    """Size of a text under zlib at level 6, in bytes."""
    return len(zlib.compress(text.encode(), ZLIB_LEVEL))


def scored_text(example: ManifestExample) -> str:
    """The text that was scored.

    Where a text was cut to fit the context, the manifest knows the cut in tokens only:
    the share of characters that is kept is that of the tokens.
    """
    text = example.text
    total = len(example.reference_unll)
    start, end = example.kept
    low, high = (round(at / max(total, 1) * len(text)) for at in (start, end))
    return text[low:high]


def membership_scores(
    table: TokenTable,
    manifest: Manifest,
    ids: Sequence[str],
    *,
    base: TokenTable | None = None,
) -> dict[str, np.ndarray]:
    """Scores of examples from their tokens' log-probabilities.

    Parameters
    ----------
    table
        Plain table of a checkpoint.
    ids
        Example ids, ``n`` of them.
    base
        Plain table of the untrained model, for ``reference``.

    Returns
    -------
    Attack -> shape ``(n,)``; NaN where an example has no such score: nothing scored,
    no response token, no text, no base. ``loss`` and ``response`` are mean
    log-probabilities (nats), ``zlib`` the first over the compressed bytes,
    ``reference`` the first minus that of the base on the same tokens.
    """
    found = {name: np.full(len(ids), np.nan) for name in ATTACKS}
    columns = {
        name: table.columns[name].astype(np.float64)
        for name in ("nll", "mean_logp", "sd_logp")
        if name in table.columns
    }
    for i, key in enumerate(ids):
        if key not in table:
            continue
        rows = table.rows(key)
        logp = -columns["nll"][rows]
        if not len(logp):
            continue
        example = manifest.by_id[key]
        loss = float(logp.mean())
        response = logp[table.position[rows] >= example.response_token]
        found["loss"][i] = loss
        if len(response):
            found["response"][i] = response.mean()
        found["mink10"][i] = lowest_mean(logp)
        if "sd_logp" in columns:
            z = z_scores(logp, columns["mean_logp"][rows], columns["sd_logp"][rows])
            found["minkpp10"][i] = lowest_mean(z)
        if text := scored_text(example):
            found["zlib"][i] = loss / compressed_bytes(text)
        if base is not None and key in base:
            theirs = base.rows(key)
            if np.array_equal(table.position[rows], base.position[theirs]):
                nll = base.columns["nll"][theirs].astype(np.float64)
                found["reference"][i] = loss + float(nll.mean())
    return found


def reference_table(manifest: Manifest, ids: Sequence[str]) -> TokenTable:
    """The reference model's NLL as the manifest holds it, where nobody scored it again.

    There is no other column: scores that need the whole distribution are not had.
    """
    items = []
    for key in ids:
        unll = manifest.by_id[key].unll
        position = np.flatnonzero(unll >= 0)
        nll = (unll[position] / 1e6).astype(np.float32)
        items.append((key, position.astype(np.int32), {"nll": nll}))
    return TokenTable.from_items(items)


# --- texts without a model ------------------------------------------------------------


class Blind(NamedTuple):
    """How well the texts alone tell members apart.

    ``scores`` are out-of-fold, NaN where a row was not drawn; ``value`` is their AUC,
    averaged over tasks; ``null``, ``null_low`` and ``null_high`` its mean and its
    central 95 % when sides are permuted; ``p`` one-sided.
    """

    scores: np.ndarray
    value: float
    p: float
    null: float
    null_low: float
    null_high: float
    permutations: int
    rows: int


class Shift(NamedTuple):
    """One covariate of members against non-members."""

    ks: float
    p: float
    smd: float | None


@dataclass(frozen=True)
class Sides:
    """Member or not, by row, with what must stay together when it is permuted.

    ``member`` bool, ``cluster`` and ``task`` integer codes, all of shape ``(n,)``.
    """

    member: np.ndarray
    cluster: np.ndarray
    task: np.ndarray

    def __post_init__(self) -> None:
        if not len(self.member) == len(self.cluster) == len(self.task):
            raise ValueError("member, cluster and task must have one row each")

    def take(self, rows: np.ndarray) -> Sides:
        """Some of the rows."""
        return Sides(self.member[rows], self.cluster[rows], self.task[rows])

    def tasks(self) -> list[np.ndarray]:
        """Rows of each task that has both sides."""
        rows = [np.flatnonzero(self.task == task) for task in np.unique(self.task)]
        return [at for at in rows if 0 < self.member[at].sum() < len(at)]

    def permuted(self, rng: np.random.Generator) -> np.ndarray:
        """Sides dealt out anew, shape ``(n,)`` bool.

        Whole clusters swap sides within their task; a cluster with rows of both sides
        keeps its rows and shuffles them.
        """
        _, first, code = np.unique(self.cluster, return_index=True, return_inverse=True)
        size = np.bincount(code)
        inside = np.bincount(code, weights=self.member)
        pure = (inside == 0) | (inside == size)
        side = self.member[first].copy()
        task = self.task[first]
        for value in np.unique(task[pure]):
            at = np.flatnonzero(pure & (task == value))
            side[at] = rng.permutation(side[at])
        found = side[code]
        for cluster in np.flatnonzero(~pure):
            at = np.flatnonzero(code == cluster)
            found[at] = rng.permutation(self.member[at])
        return found


def label_codes(manifest: Manifest, ids: Sequence[str]) -> np.ndarray:
    """Number of each example's label within its task; -1 where responses are free.

    Shape ``(n,)``, int64. Labels are compared without case and outer white space.
    """
    labels: dict[str, set[str]] = {}
    own = [manifest.by_id[key] for key in ids]
    for example in own:
        labels.setdefault(example.task, set()).add(_label(example))
    codes = {
        task: {label: code for code, label in enumerate(sorted(found))}
        for task, found in labels.items()
        if len(found) <= MOST_COMPARED
    }
    return np.array(
        [codes.get(e.task, {}).get(_label(e), -1) for e in own], dtype=np.int64
    )


def own_text(example: ManifestExample) -> str:
    """Prompt and response without the task's fixed wording, as duplicates are found."""
    text, at, parts = example.text, 0, []
    for start, end in example.template:
        parts.append(text[at:start])
        at = end
    own = " ".join([*parts, text[at:]])
    return own if own.strip() else text


def crossing_duplicates(texts: Sequence[str], member: np.ndarray) -> int:
    """Rows whose group of near-duplicates has members and non-members."""
    groups = duplicate_groups(list(texts))
    sides = [set(groups[member].tolist()), set(groups[~member].tolist())]
    both = sides[0] & sides[1]
    return int(np.isin(groups, list(both)).sum())


def shift(members: np.ndarray, non_members: np.ndarray) -> Shift | None:
    """Two-sample check of one covariate; ``None`` where a side is too small.

    Kolmogorov-Smirnov with rows taken as independent, and the mean difference over
    the pooled SD (``None`` where that is 0).
    """
    x, y = (side[np.isfinite(side)] for side in (members, non_members))
    if len(x) < 2 or len(y) < 2:
        return None
    test = stats.ks_2samp(x, y)
    spread = np.sqrt((np.var(x, ddof=1) + np.var(y, ddof=1)) / 2)
    apart = smd(x, y, sd=float(spread)) if spread > 0 else None
    return Shift(float(test.statistic), float(test.pvalue), apart)


def label_test(
    sides: Sides, label: np.ndarray, *, seed: int, permutations: int = 999
) -> float | None:
    """Whether labels are distributed alike on both sides: a permutation p value.

    The statistic is Pearson's chi-square of side by label, summed over tasks; sides
    are permuted by cluster within tasks. ``None`` where no task has two labels.
    """
    use = label >= 0
    sides, label = sides.take(np.flatnonzero(use)), label[use]
    if not len(label):
        return None
    _, cell = np.unique(np.stack([sides.task, label]), axis=1, return_inverse=True)
    cell = cell.ravel()
    total = np.bincount(cell).astype(np.float64)
    task_of_cell = np.zeros(len(total), dtype=np.int64)
    _, task = np.unique(sides.task, return_inverse=True)
    task_of_cell[cell] = task
    if np.bincount(task_of_cell).max() < 2:
        return None

    def statistic(member: np.ndarray) -> float:
        ours = np.bincount(cell, weights=member, minlength=len(total))
        share = (np.bincount(task, weights=member) / np.bincount(task))[task_of_cell]
        usable = (share > 0) & (share < 1)
        expected = total * share
        spread = np.where(usable, expected * (1 - share), 1.0)
        return float(np.sum(np.where(usable, (ours - expected) ** 2 / spread, 0.0)))

    observed = statistic(sides.member) - 1e-9
    rng = np.random.default_rng(seed)
    hits = sum(statistic(sides.permuted(rng)) >= observed for _ in range(permutations))
    return (1 + hits) / (1 + permutations)


def blind_classifier(
    texts: Sequence[str],
    label: np.ndarray,
    sides: Sides,
    *,
    seed: int,
    permutations: int = 199,
) -> Blind | None:
    """Tell members by their texts alone, out of fold; ``None`` without two sides.

    Logistic regression (fixed penalty) on the presence of words (hashed: nothing is
    fitted), the text's length and its label. Folds keep clusters whole and are
    stratified by task and side; sides weigh alike in every task. The p value is from
    sides permuted by cluster, the whole procedure repeated (Mann-Whitney's standard
    error is too small for a cross-validated AUC). Once :data:`ENOUGH` permutations
    reach the observed AUC, no more are drawn and p is their share, which is valid
    (Besag and Clifford 1991, "Sequential Monte Carlo p-values").

    Parameters
    ----------
    texts
        ``n`` texts; more than :data:`MOST_ROWS` are subsampled by cluster.
    label
        Shape ``(n,)``, codes within the task.
    """
    rng = np.random.default_rng(seed)
    drawn = _subsample(sides, rng)
    used = sides.take(drawn)
    if not used.tasks() or min(_clusters_by_side(used)) < FOLDS:
        return None
    features = _features([texts[i] for i in drawn], label[drawn], used.task)
    order = rng.permutation(len(np.unique(used.cluster)))
    scores = _out_of_fold(features, used, used.member, order)
    value = _mean_auc(used, used.member, scores)
    nulls: list[float] = []
    hits = 0
    while len(nulls) < permutations and hits < ENOUGH:
        member = used.permuted(rng)
        nulls.append(
            _mean_auc(used, member, _out_of_fold(features, used, member, order))
        )
        hits += nulls[-1] >= value - 1e-12
    done = hits == ENOUGH and len(nulls) < permutations
    p = hits / len(nulls) if done else (1 + hits) / (1 + len(nulls))
    everywhere = np.full(len(texts), np.nan)
    everywhere[drawn] = scores
    low, high = np.quantile(nulls, [0.025, 0.975])
    return Blind(
        everywhere,
        value,
        p,
        float(np.mean(nulls)),
        float(low),
        float(high),
        len(nulls),
        len(drawn),
    )


def _label(example: ManifestExample) -> str:
    return example.response.strip().casefold()


def _clusters_by_side(sides: Sides) -> tuple[int, int]:
    return (
        len(np.unique(sides.cluster[sides.member])),
        len(np.unique(sides.cluster[~sides.member])),
    )


def _subsample(sides: Sides, rng: np.random.Generator) -> np.ndarray:
    """Rows of whole clusters in random order until there are enough, sorted."""
    n = len(sides.member)
    if n <= MOST_ROWS:
        return np.arange(n)
    # The smaller side keeps up to half: an AUC is as sure as its smaller side.
    kept = []
    counts = int(sides.member.sum()), int((~sides.member).sum())
    small = min(*counts, MOST_ROWS // 2)
    for member, count in zip((True, False), counts, strict=True):
        rows = np.flatnonzero(sides.member == member)
        wanted = small if count == min(counts) else MOST_ROWS - small
        _, code = np.unique(sides.cluster[rows], return_inverse=True)
        place = rng.permutation(code.max() + 1)[code]
        kept.append(rows[np.argsort(place, kind="stable")][:wanted])
    return np.sort(np.concatenate(kept))


def _features(
    texts: Sequence[str], label: np.ndarray, task: np.ndarray
) -> sparse.csr_matrix:
    from sklearn.feature_extraction.text import HashingVectorizer

    words = HashingVectorizer(
        n_features=FEATURES,
        alternate_sign=False,
        binary=True,
        norm="l2",
        token_pattern=r"(?u)\b\w+\b",
    ).transform(texts)
    length = np.log1p([len(text) for text in texts]) / np.log(1000) - 1
    _, kind = np.unique(np.stack([task, label]), axis=1, return_inverse=True)
    rows = np.arange(len(texts))
    kinds = sparse.csr_matrix(
        (np.full(len(texts), 0.5), (rows, kind.ravel())), dtype=np.float64
    )
    numbers = sparse.csr_matrix(np.stack([length, 2 * length**2], axis=1))
    return sparse.csr_matrix(sparse.hstack([words, numbers, kinds]))


def _folds(sides: Sides, member: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Fold of each row: clusters dealt out in turn within task and side."""
    _, first, code = np.unique(sides.cluster, return_index=True, return_inverse=True)
    rank = np.lexsort((order, member[first], sides.task[first]))
    fold = np.empty(len(first), dtype=np.int64)
    fold[rank] = np.arange(len(first)) % FOLDS
    return fold[code]


def _out_of_fold(
    features: sparse.csr_matrix,
    sides: Sides,
    member: np.ndarray,
    order: np.ndarray,
) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression

    fold = _folds(sides, member, order)
    scores = np.zeros(len(member))
    for k in range(FOLDS):
        test = fold == k
        train = np.flatnonzero(~test)
        model = LogisticRegression(
            C=C, solver="liblinear", dual=True, tol=0.1, max_iter=100, random_state=0
        )
        weight = _balanced(member[train], sides.task[train])
        model.fit(features[train], member[train], sample_weight=weight)
        scores[test] = model.decision_function(features[test])
    return scores


def _balanced(member: np.ndarray, task: np.ndarray) -> np.ndarray:
    """Weights that give both sides of every task the same total; mean 1."""
    _, cell = np.unique(np.stack([task, member]), axis=1, return_inverse=True)
    cell = cell.ravel()
    count = np.bincount(cell)
    _, code, size = np.unique(task, return_inverse=True, return_counts=True)
    return np.asarray(size[code] / (2 * count[cell]))


def _mean_auc(sides: Sides, member: np.ndarray, scores: np.ndarray) -> float:
    shuffled = Sides(member, sides.cluster, sides.task)
    return float(
        np.mean(
            [
                auc(scores[at][member[at]], scores[at][~member[at]])
                for at in shuffled.tasks()
            ]
        )
    )
