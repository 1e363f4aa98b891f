"""Membership scores against hand-made figures; what texts alone give away."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from spark_audit.audits.mia import text_classifiers
from spark_audit.audits.mia.best_guess import best_guess
from spark_audit.audits.mia.covariates import covariate_table, differs_by_covariate
from spark_audit.audits.mia.score_tables import (
    ALL_SCORES,
    DECLARED_SCORES,
    mean_rank,
    membership_scores,
)
from spark_audit.audits.mia.scores import NOTHING_FELL
from spark_audit.audits.mia.texts import blind_classifier, label_test, permute_sides
from spark_audit.scoring.table import TokenTable
from spark_audit.stats.clustered_roc import Design

LP = np.array(
    [-0.1, -2.3, -0.5, -4, -1.2, -0.05, -3, -0.7, -0.2, -1.5, -0.9, -6]
)  # fmt: skip


def example(**fields: Any) -> Any:
    facts: dict[str, Any] = {
        "id": "a",
        "task": "t",
        "prompt": "Text: some words of it.",
        "response": " good",
        "template": [],
        "kept": (0, 12),
        "reference_unll": [None] * 12,
        "response_token": 10,
    }
    facts |= fields
    text = facts["prompt"] + facts["response"]
    return SimpleNamespace(**facts, text=text, had_loss=None)


def manifest(*examples: Any) -> Any:
    return SimpleNamespace(by_id={e.id: e for e in examples})


def table(**logp: Any) -> TokenTable:
    """Tokens from position 1 on; mean and SD of the model's own distribution too."""
    items = []
    for key, values in logp.items():
        nll = -np.asarray(values, np.float32)
        columns = {
            "nll": nll,
            "rank_lo": np.where(nll > 0.5, 2, 1).astype(np.int32),
            "mean_logp": np.full(len(nll), -2.0, np.float32),
            "sd_logp": np.full(len(nll), 0.5, np.float32),
        }
        items.append((key, np.arange(1, len(nll) + 1, dtype=np.int32), columns))
    return TokenTable.from_items(items)


def drawn(rng: np.random.Generator, n: int) -> np.ndarray:
    return -rng.gamma(1.5, 1.5, n).astype(np.float32).astype(np.float64)


def test_panel_equals_the_published_codes():
    """Written again, text by text, from what their programmes do."""
    rng = np.random.default_rng(3)
    keys = [f"e{i:02d}" for i in range(40)]
    base = {key: drawn(rng, int(rng.integers(3, 60))) for key in keys}
    base["e07"] = drawn(rng, 30)
    base["e08"] = drawn(rng, 30)
    seen = {k: np.minimum(v + rng.normal(0.3, 0.4, len(v)), 0) for k, v in base.items()}
    seen = {k: v.astype(np.float32).astype(np.float64) for k, v in seen.items()}
    examples = manifest(*(example(id=key) for key in keys))
    scores = membership_scores(table(**seen), examples, keys, base=table(**base))
    fallen = 0
    for i, key in enumerate(keys):
        target = -seen[key]
        reference = -base[key]
        shares = []
        for window in (2, 3, 4, 6, 9, 13, 18, 25, 32, 40):
            ones = np.ones(min(window, len(target)))
            sums = [np.convolve(v, ones, "valid") for v in (reference, target)]
            shares.append(np.mean(sums[0] > sums[1]))
        assert scores["wbc"][i] == pytest.approx(np.mean(shares), abs=1e-6)
        up = down = wrong = 0.0
        for j in range(1, len(target)):  # the code leaves out its first position
            if target[j] > 0.5:  # the table's first guesses
                wrong += 1
                up += max(0.0, reference[j] - target[j])
                down += max(0.0, target[j] - reference[j])
        if wrong < 2:
            assert np.isnan(scores["ez"][i])
        elif down:
            fallen += 1
            assert scores["ez"][i] == pytest.approx(up / (down + 1e-12), rel=1e-6)
        for share, name in ((0.1, "10"), (0.2, "20"), (0.3, "30")):
            k = max(1, int(share * len(target) + 1e-9))
            lowest = sorted(seen[key])[:k]
            assert scores[f"mink{name}"][i] == pytest.approx(np.mean(lowest), abs=1e-6)
            z = sorted((v + 2) / 0.5 for v in seen[key])[:k]
            assert scores[f"minkpp{name}"][i] == pytest.approx(np.mean(z), abs=1e-5)
    assert fallen > 20
    ratio = {key: np.exp(seen[key]) / np.exp(base[key]) for key in keys}
    everyone = np.concatenate([ratio[key] for key in keys])
    step = max(1, len(everyone) // 1024)
    for i, key in enumerate(keys):
        share = np.mean(
            [np.mean(ratio_at_k >= everyone[::step]) for ratio_at_k in ratio[key]]
        )
        assert scores["rmia"][i] == pytest.approx(share, abs=2e-3)


def test_texts_of_which_no_wrong_guess_fell_rank_highest():
    """The published code gives them 0, the lowest score there is."""
    rows = {"a": LP + 0.4, "b": LP + 0.5, "c": LP + np.resize([0.9, -1e-4], 12)}
    examples = manifest(*(example(id=key) for key in "abcde"))
    same = {"d": LP, "e": LP[:2]}
    base = {**dict.fromkeys("abcd", LP), "e": LP[:2] - 1}
    scores = membership_scores(
        table(**rows, **same), examples, [*"abcde"], base=table(**base)
    )["ez"]
    assert scores[1] > scores[0] > NOTHING_FELL > scores[2] > 1
    assert np.isnan(scores[3:]).all(), "nothing moved; one wrong guess is no zone"


def test_combined_is_a_mean_of_ranks():
    first = np.array([3.0, 1, 2, np.nan])
    second = np.array([1.0, np.nan, 2, np.nan])
    ranks = mean_rank([first, second])
    assert ranks[:3] == pytest.approx([(5 / 6 + 1 / 4) / 2, 1 / 6, (3 / 6 + 3 / 4) / 2])
    assert np.isnan(ranks[3])
    assert set(DECLARED_SCORES) <= set(ALL_SCORES)


def test_what_is_missing_is_missing():
    rows = {"a": LP, "b": LP[:3]}
    examples = manifest(
        example(response_token=20),
        example(id="b"),
        example(id="c"),
    )
    scores = membership_scores(table(**rows), examples, ["a", "b", "c"])
    missing = {name: np.isnan(values).tolist() for name, values in scores.items()}
    assert missing["loss"] == [False, False, True]
    assert missing["response"] == [True, True, True], "no response token was scored"
    assert missing["reference"] == [True, True, True], "there is no base"
    short_table = table(a=LP[:5])
    cut = membership_scores(table(**rows), examples, ["a"], base=short_table)
    assert np.isnan(cut["reference"][0]), "other tokens cannot be compared"
    none = TokenTable.from_items([])
    assert np.isnan(membership_scores(none, examples, ["a"])["loss"]).all()


def test_scores_ignore_the_other_texts():
    """Peers' scores change with the batch or its padding."""
    examples = manifest(*(example(id=key) for key in "abc"))
    scores_alone = membership_scores(table(b=LP), examples, ["b"])
    among = membership_scores(table(a=LP[:2], b=LP, c=LP[::-1]), examples, ["a", "b"])
    for attack in set(ALL_SCORES) - {"combined"}:  # a mean of ranks
        assert among[attack][1] == pytest.approx(scores_alone[attack][0], nan_ok=True)


def test_lengths_of_both_sides_are_compared():
    rng = np.random.default_rng(0)
    length = [*rng.normal(0, 1, 400), *rng.normal(0.5, 1, 300)]
    facts = pd.DataFrame({"task": "t", "member": np.arange(700) < 400})
    facts = facts.assign(length=length, zlib_bytes=1.0, cluster=np.arange(700))
    differing, flat = covariate_table(facts)
    assert differing["p"] < 1e-4
    assert differing["smd"] == pytest.approx(-0.5, abs=0.15)
    assert flat["smd"] is None
    assert differs_by_covariate(differing)
    assert not differs_by_covariate(flat)
    assert not [*covariate_table(facts[399:])]


def test_only_examples_with_a_length_are_counted():
    facts = pd.DataFrame({"task": "t", "member": np.arange(8) < 4})
    facts = facts.assign(length=np.arange(8.0), zlib_bytes=1.0, cluster=np.arange(8))
    facts.loc[[0, 1], "length"] = np.nan
    of_length, of_bytes = covariate_table(facts)
    assert (of_length["clusters"], of_bytes["clusters"]) == (2, 4)


def test_two_constant_lengths_differ_though_they_have_no_spread():
    facts = pd.DataFrame({"task": "t", "member": np.arange(60) < 30})
    length = np.where(facts["member"], 40.0, 41.0)
    facts = facts.assign(length=length, zlib_bytes=1.0, cluster=np.arange(60))
    split, flat = covariate_table(facts)
    assert split["smd"] is None
    assert differs_by_covariate(split)
    assert not differs_by_covariate(flat)


# --- permuting sides ------------------------------------------------------------------


def test_permuted_sides_keep_clusters_and_tasks():
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(40), 3)
    task = cluster % 2
    pure = Design(cluster < 25, cluster, task)
    for _ in range(20):
        permuted = permute_sides(pure, rng)
        assert permuted.sum() == pure.member.sum()
        assert permuted[task == 0].sum() == pure.member[task == 0].sum()
        assert (permuted.reshape(-1, 3) == permuted[::3, None]).all(), (
            "clusters stay whole"
        )
    mixed = Design(np.tile([True, False, False], 40), cluster, task)
    drawn = np.array([permute_sides(mixed, rng) for _ in range(50)])
    assert (drawn.reshape(50, 40, 3).sum(axis=2) == 1).all()
    assert 0.2 < drawn[:, ::3].mean() < 0.5
    with pytest.raises(ValueError, match="member, cluster and task"):
        Design(np.ones(2, bool), np.zeros(3), np.zeros(2))


def independent(n1: int, n0: int, tasks: int = 1) -> Design:
    rows = np.arange(n1 + n0)
    return Design(rows < n1, rows, rows % tasks)


def test_labels_that_differ_between_the_sides_have_a_small_p():
    rng = np.random.default_rng(0)
    sides = independent(200, 100, tasks=2)
    alike = rng.integers(0, 3, 300)
    p = label_test(alike, sides, seed=1)
    assert p > 0.05
    labels_apart = np.where(
        sides.member, rng.integers(0, 2, 300), rng.integers(0, 3, 300)
    )
    assert label_test(labels_apart, sides, seed=1) == pytest.approx(0.001)
    assert label_test(np.full(300, -1), sides, seed=1) is None
    assert label_test(np.zeros(300, int), sides, seed=1) is None
    # Tasks of other sizes on both sides are no label shift.
    uneven = Design(
        np.arange(300) < 200, np.arange(300), (np.arange(300) % 10 > 2).astype(int)
    )
    p = label_test(uneven.task, uneven, seed=1)
    assert p is None, "one label in each task"


# --- the blind classifier -------------------------------------------------------------

VOCABULARY = np.array([f"w{i}" for i in range(600)])


def blind(*given: Any, **options: Any) -> Any:
    """What the classifier finds, by names."""
    blind_figures, scores = blind_classifier(*given, **options)
    if not blind_figures:
        return None
    figures_by_name = {
        name.removeprefix("blind_"): figure for name, figure in blind_figures.items()
    }
    return SimpleNamespace(scores=scores, **figures_by_name)


def texts_of(
    sides: Design, *, factor: float, seed: int, words: int = 30, copies: int = 1
) -> list[str]:
    """Random texts; three words are ``factor`` times as frequent among members."""
    rng = np.random.default_rng(seed)
    p = 1 / np.arange(1, 601)
    q = p.copy()
    q[[5, 9, 14]] *= factor
    laws = {False: p / p.sum(), True: q / q.sum()}
    cache: dict[int, str] = {}
    texts = []
    for member, cluster in zip(sides.member, sides.cluster, strict=True):
        if copies == 1 or int(cluster) not in cache:
            drawn = VOCABULARY[rng.choice(600, words, p=laws[bool(member)])]
            cache[int(cluster)] = " ".join(drawn)
        texts.append(cache[int(cluster)])
    return texts


def test_blind_classifier_finds_a_shift_in_the_texts():
    sides = independent(120, 80, tasks=2)
    labels = np.zeros(200, int)
    texts = texts_of(sides, factor=4, seed=0)
    figures = blind(texts, labels, sides, seed=0, permutations=40)
    assert figures.p == pytest.approx(1 / 41)
    assert figures.value > 0.65
    assert figures.value > figures.null_high
    assert np.isfinite(figures.scores).all()
    alike = texts_of(sides, factor=1, seed=0)
    nothing = blind(alike, labels, sides, seed=0, permutations=40)
    assert nothing.p > 0.05
    assert nothing.null_low < nothing.value < nothing.null_high
    # Labels and lengths alone are seen too.
    by_label = blind(alike, sides.member.astype(int), sides, seed=0, permutations=5)
    assert by_label.value > 0.9
    longer = [
        text + " w0" * (30 if m else 0)
        for text, m in zip(alike, sides.member, strict=True)
    ]
    by_length = blind(longer, labels, sides, seed=0, permutations=5)
    assert by_length.value > 0.7


def test_texts_that_repeat_within_a_cluster_give_nothing_away():
    """Copies in two folds would be recognised: folds keep clusters whole."""
    cluster = np.repeat(np.arange(50), 4)
    sides = Design(cluster < 25, cluster, np.zeros(200, int))
    texts = texts_of(sides, factor=1, seed=1, copies=4)
    figures = blind(texts, np.zeros(200, int), sides, seed=0, permutations=60)
    assert figures.p > 0.05
    assert figures.value < 0.75


def test_uneven_tasks_are_no_shift():
    """Member shares of 90 and 20 % by task: the task gives no one away within it."""
    rng = np.random.default_rng(0)
    task = np.repeat([0, 1], 120)
    member = rng.random(240) < np.where(task == 0, 0.9, 0.2)
    sides = Design(member, np.arange(240), task)
    texts = [
        f"topic{t} {text}"
        for t, text in zip(task, texts_of(sides, factor=1, seed=2), strict=True)
    ]
    figures = blind(texts, np.zeros(240, int), sides, seed=0, permutations=60)
    assert figures.p > 0.05


def test_numbers_that_are_written_otherwise_are_told_apart_by_few_rows():
    """Their digits are all different: only the form tells the sides."""
    rng = np.random.default_rng(0)
    forms = ("Call {}.{}.{} at noon", "Call {}-{}-{} at noon")
    texts = [
        forms[row % 2].format(*rng.integers(100, 1000, 3).tolist()) for row in range(60)
    ]
    rows = np.arange(60)
    sides = Design(rows % 2 == 0, rows, rows * 0)
    score = best_guess(texts, np.zeros(60, np.int64), sides, {}, seed=0)
    assert roc_auc_score(sides.member, score) > 0.99


def test_large_sets_are_subsampled(monkeypatch):
    monkeypatch.setattr(text_classifiers, "MAX_ROWS_FOR_TEXTS", 60)
    sides = independent(150, 20)
    texts = texts_of(sides, factor=1, seed=0)
    figures = blind(texts, np.zeros(170, int), sides, seed=0, permutations=10)
    drawn = np.isfinite(figures.scores)
    assert figures.rows == drawn.sum() == 60
    assert drawn[sides.member].sum() == 40


@pytest.mark.parametrize(("n1", "n0"), [(0, 20), (20, 0), (20, 3), (0, 0)])
def test_too_few_clusters_for_folds_give_no_blind_score(n1, n0):
    sides = independent(n1, n0)
    texts = ["some words"] * (n1 + n0)
    assert blind(texts, np.zeros(n1 + n0, int), sides, seed=0) is None


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3])
def test_blind_p_value_holds_its_level(rows):
    """Rejections of 5 % where nothing differs, clusters of equal texts included."""
    runs = 120
    rejected = 0
    cluster = np.repeat(np.arange(90), rows)
    sides = Design(cluster < 60, cluster, np.zeros(len(cluster), int))
    for seed in range(runs):
        texts = texts_of(sides, factor=1, seed=seed, copies=rows)
        figures = blind(
            texts, np.zeros(len(cluster), int), sides, seed=seed, permutations=59
        )
        rejected += figures.p <= 0.05
    assert rejected / runs < 0.10
