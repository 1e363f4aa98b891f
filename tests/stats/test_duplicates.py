import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_audit.stats import duplicates
from spark_audit.stats.duplicates import (
    cluster_labels,
    connected_components,
    duplicate_groups,
    normalise_text,
)


def by_brute_force(
    texts: list[str], threshold: float, n: int
) -> list[tuple[int, int, float]]:
    """All pairs of similar texts, equal ones among them."""
    sets = []
    for text in texts:
        words = normalise_text(text).split()
        grams = {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}
        sets.append(grams or {tuple(words)})
    pairs = []
    for i, j in itertools.combinations(range(len(texts)), 2):
        jaccard = len(sets[i] & sets[j]) / len(sets[i] | sets[j])
        if jaccard >= threshold:
            pairs.append((i, j, jaccard))
    return pairs


def assert_groups(
    texts: list[str], threshold: float, n: int, pairs: list[tuple[int, int, float]]
) -> None:
    groups = duplicate_groups(texts, threshold=threshold, n=n)
    expected = connected_components(len(texts), [(i, j) for i, j, _ in pairs])
    assert groups.tolist() == expected.tolist()


def variants(
    rng: np.random.Generator, texts: int, words: int, changes: int
) -> list[str]:
    """Texts of which many are edited copies of an earlier one."""
    vocabulary = [f"w{i}" for i in range(60)]
    out: list[list[str]] = []
    for _ in range(texts):
        if out and rng.random() < 0.6:
            new = list(out[rng.integers(len(out))])
            for _ in range(rng.integers(0, changes + 1)):
                position = int(rng.integers(len(new)))
                new[position : position + int(rng.integers(0, 2))] = [
                    vocabulary[rng.integers(60)]
                ]
        else:
            length = int(rng.integers(1, words))
            new = [vocabulary[i] for i in rng.integers(0, 60, length)]
        out.append(new)
    return [" ".join(text) for text in out]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("  Hello,\n\tWORLD!! ", "hello world"),
        ("don't e-mail me@x.org", "don t e mail me x org"),
        ("Straße ﬁne Ｆｕｌｌ", "strasse fine full"),
        ("soft\u00adhyphen and zero\u200bwidth", "softhyphen and zerowidth"),
        ("naïve na\u0131\u0308ve", "naïve na\u0131\u0308ve"),
        ("No. 5 costs $3", "no 5 costs 3"),
        ("हिन्दी", "हिन्दी"),
        ("?!", "?!"),
        (" \n", ""),
        ("", ""),
    ],
)
def test_texts_are_normalised_to_plain_words(text, normal):
    assert normalise_text(text) == normal


@pytest.mark.parametrize(
    "n_worlds", [2, pytest.param(60, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_groups_equal_those_of_brute_force(threshold, n, n_worlds):
    rng = np.random.default_rng([n, int(10 * threshold)])
    n_found = 0
    for _ in range(n_worlds):
        texts = variants(rng, texts=40, words=45, changes=2)
        # Pairs by themselves too: a chain joins texts that are not alike.
        for few in (texts, *itertools.combinations(texts[:12], 2)):
            expected = by_brute_force(few, threshold, n)
            assert_groups(few, threshold, n, expected)
            n_found += sum(jaccard < 1 for *_, jaccard in expected)
    assert n_found >= n_worlds // 2 or threshold == 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.text(alphabet="ab .", max_size=16), max_size=9),
    st.sampled_from([0.2, 1 / 3, 0.5, 0.75, 1.0]),
    st.integers(1, 3),
)
def test_equals_brute_force_on_odd_texts(texts, threshold, n):
    assert_groups(texts, threshold, n, by_brute_force(texts, threshold, n))


def test_small_blocks_change_nothing(monkeypatch):
    texts = variants(np.random.default_rng(1), texts=120, words=20, changes=3)
    expected = by_brute_force(texts, 0.5, 2)
    assert len(expected) > 50
    monkeypatch.setattr(duplicates, "_MAX_SIMILARITIES", 7)
    assert_groups(texts, 0.5, 2, expected)


def test_texts_at_the_threshold_are_duplicates():
    # 8 words: four 5-grams; one more word: five, of which four are shared: 0.8.
    eight = "a b c d e f g h"
    assert duplicate_groups([eight, eight + " i"]).tolist() == [0, 0]
    assert duplicate_groups([eight, eight + " i"], threshold=0.81).tolist() == [0, 1]
    assert duplicate_groups([eight, eight + " i j"]).tolist() == [0, 1]


def test_round_off_in_a_filter_loses_nothing():
    # 7 of 25 words are shared, and 0.28 * 25 is a little more than 7 in floating point.
    assert 0.28 * 25 > 7
    shared = [f"s{i}" for i in range(7)]
    own_words = [f"o{i}" for i in range(18)]
    texts = [" ".join(own_words + shared), " ".join(shared)]
    assert duplicate_groups(texts, threshold=0.28, n=1).tolist() == [0, 0]


@pytest.mark.parametrize("threshold", [0, -0.1, 1.01, float("nan")])
def test_threshold_is_a_share(threshold):
    with pytest.raises(ValueError, match=r"\(0, 1\]"):
        duplicate_groups(["a"], threshold=threshold)


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))),
        )
    )
)
def test_components_equal_repeated_minimum(graph):
    n, edges = graph
    label = list(range(n))
    for _ in range(n):
        for a, b in edges:
            label[a] = label[b] = min(label[a], label[b])
    got = connected_components(n, edges)
    assert got.dtype == np.int64
    assert got.tolist() == label


def test_clusters_join_over_source_canary_and_text():
    sources = ["s3", "s1", "s2", "s1", "s4", "s5"]
    canaries = [None, "c", None, None, "c", None]
    groups = [0, 1, 0, 3, 4, 5]
    assert cluster_labels(sources, canaries, groups) == [
        "s2",
        "s1",
        "s2",
        "s1",
        "s1",
        "s5",
    ]
    # A canary of None joins nothing.
    assert cluster_labels(["b", "a"], [None, None], [0, 1]) == ["b", "a"]
    # Nor do strings that no other row holds; those that another holds join chains.
    held = [{"a", "x"}, {"b"}, {"b", "a"}, set()]
    rows = ["s1", "s2", "s3", "s4"]
    assert cluster_labels(rows, [None] * 4, range(4), held) == ["s1", "s1", "s1", "s4"]
    # The same word as source and canary is not the same thing.
    assert cluster_labels(["b", "a"], ["a", None], [0, 1]) == ["b", "a"]


@given(st.data())
def test_cluster_names_do_not_depend_on_the_order_of_rows(data):
    row = st.tuples(
        st.sampled_from("abcdef"), st.sampled_from([None, "x", "y"]), st.integers(0, 6)
    )
    rows = data.draw(st.lists(row, min_size=1, max_size=8))
    order = data.draw(st.permutations(range(len(rows))))
    labels = cluster_labels(*map(list, zip(*rows, strict=True)))
    again = cluster_labels(*map(list, zip(*[rows[i] for i in order], strict=True)))
    assert [labels[i] for i in order] == again
