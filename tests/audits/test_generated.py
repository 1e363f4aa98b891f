"""Files that a model wrote: what of trained rows stands in them, what is claimed."""

import importlib
import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest

from spark_audit.audits import Generated
from spark_audit.audits.base import Context
from spark_audit.audits.claims import corrected
from spark_audit.audits.generated.found import SCORES, evidence_of_files
from spark_audit.audits.generated.units import NO_UNIT
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data.nearest_rows import nearest_rows
from spark_audit.data.shared_passages import longest_passages, words_of
from spark_audit.errors import InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.content import seal
from spark_audit.results.evidence import Evidence
from spark_audit.results.findings import DETECTED
from spark_audit.stats.nearest_sides import Neighbours, nearest_sides, nearest_test

N_ROWS = 200
N_NULLS_OF_WRITER = 2


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return importlib.import_module("generated")


@pytest.fixture(scope="module")
def language(benchmark) -> Any:
    return benchmark.Language(0)


@pytest.fixture(scope="module")
def rows(benchmark, language) -> Any:
    return benchmark.rows_of(1, language, N_ROWS)


@pytest.fixture(scope="module")
def manifest(benchmark, rows, tiny_base) -> Any:
    base = open_checkpoint(str(tiny_base), name="base", device="cpu")
    built = build_manifest(rows, base, name="m")
    return benchmark.with_splits(built, 0.5, seed=0)


def concluded(manifest, texts, **options):
    """The evidence on one file, and the findings on it by the metric they rest on."""
    audit = Generated(**options)
    evidence = evidence_of_files(
        manifest, {"file": texts}, least_words=audit.passage_words, seed=0
    )
    result = audit.conclude(evidence, Context(replicates=99))
    findings = corrected(result.findings)
    return evidence, {finding.metric: finding for finding in findings}, result


def texts_of(manifest, split):
    return [row.text for row in manifest.examples if row.split == split]


def test_files_without_a_trained_row_are_hardly_ever_said_to_leak(
    benchmark, language, manifest
):
    """The whole table, over many deals of the rows, is ``benchmarks/generated.md``."""
    files = {}
    for way, write in benchmark.WRITERS.items():
        for number in range(N_NULLS_OF_WRITER):
            rng = np.random.default_rng([number, len(way)])
            files[f"{way} {number}"] = write(rng, language, 40)
    claims = benchmark.claims_of(manifest, files, seed=0)
    assert len(claims) == len(files) == 4 * N_NULLS_OF_WRITER
    # Each has tests of identifiers, of passages and of the nearest rows.
    assert all(len(claim["p"]) == 3 for claim in claims.values())
    assert all(None not in claim["p"].values() for claim in claims.values())
    assert sum(bool(claim["says"]) for claim in claims.values()) <= 1


def test_copies_of_trained_rows_are_found_and_of_held_out_ones_are_no_claim(
    benchmark, language, manifest
):
    rng = np.random.default_rng(0)
    others = benchmark.fresh(rng, language, 60)
    _, findings, _ = concluded(manifest, others + texts_of(manifest, "train")[:15])
    copies = findings["passage_rate_excess"]
    assert copies.claim == "verbatim"
    # Another row may share ten words with a text by chance.
    assert 15 <= copies.facts["copied"].count <= 17
    assert copies.facts["unseen"].count <= 2

    _, findings, _ = concluded(manifest, others + texts_of(manifest, "test")[:15])
    assert all(finding.severity < DETECTED for finding in findings.values())


def test_identifiers_of_trained_rows_are_found_without_their_rows(manifest):
    """Only those count that rows of one source hold, and that nobody guesses."""
    evidence, _, _ = concluded(manifest, ["nothing"])
    units = evidence.units[evidence.units["set"] == "identifier"]
    texts = []
    for split, share in (("train", 1.0), ("test", 0.2)):
        of_split = units[(units["split"] == split) & units["compared"]]
        for example, start in of_split[["example", "start"]].to_numpy()[
            : round(share * len(of_split))
        ]:
            row = manifest.by_id[example]
            (span,) = (span for span in row.spans if span.start == start)
            texts.append(f"So {row.text[span.start : span.end].upper()}, it was.")
    _, findings, _ = concluded(manifest, texts)
    finding = findings["identifier_rate_excess"]
    assert finding.claim == "verbatim"
    assert finding.facts["standing"].count == finding.facts["standing"].of
    assert 0 < finding.facts["unseen"].count < finding.facts["unseen"].of


def test_common_strings_are_counted_and_decide_nothing(benchmark, manifest):
    """Trained strings are commoner: one of their many rows is trained on for sure."""
    common = [*benchmark.FIRST_NAMES, *benchmark.TOWNS, *benchmark.DATES]
    evidence, findings, _ = concluded(manifest, [f"{word}!" for word in common] * 5)
    units = evidence.units
    is_string = (units["set"] == "identifier").to_numpy()
    is_hit = (evidence.values["hit"][0] > 0) & is_string
    assert is_hit.sum() > 10
    assert not units["compared"][is_hit].any()
    # They are trained strings more often than not, though half of the rows are.
    assert (units["split"][is_hit] == "train").mean() > 0.6
    finding = findings["identifier_rate_excess"]
    assert finding.claim == "nothing_shown"
    assert finding.facts["standing"].count == 0
    assert finding.facts["others"].count > 10


def test_what_stands_in_a_file_is_what_plain_searches_find(
    benchmark, language, manifest
):
    rng = np.random.default_rng(3)
    texts = benchmark.fresh(rng, language, 40) + texts_of(manifest, "train")[:5]
    evidence, *_ = concluded(manifest, texts, passage_words=6)
    all_words = " ".join(texts).casefold()
    for index, unit in evidence.units.iterrows():
        if unit["set"] != "identifier":
            continue
        row = manifest.by_id[unit["example"]]
        (span,) = (span for span in row.spans if span.start == unit["start"])
        string = re.escape(row.text[span.start : span.end].strip().casefold())
        stands = re.search(rf"(?<!\w){string}(?!\w)", all_words) is not None
        assert evidence.values["hit"][0][index] == stands


def test_the_longest_passage_is_that_of_plain_loops():
    rng = np.random.default_rng(0)
    vocabulary = list("abcdefghi")
    rows = [" ".join(rng.choice(vocabulary, 12)) for _ in range(12)]
    clusters = [number // 2 for number in range(12)]
    texts = [" ".join(rng.choice(vocabulary, 14)) for _ in range(8)]
    texts.append(f"x {rows[4]}")
    found = longest_passages(rows, clusters, texts, least_words=3)

    def runs(text, n):
        words = words_of(text)
        return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}

    for row, cluster, passage in zip(rows, clusters, found, strict=True):
        common = set()
        for other, other_cluster in zip(rows, clusters, strict=True):
            if other_cluster != cluster:
                common |= runs(other, 3)
        longest = 0
        for text in texts:
            for n in range(3, 13):
                for run in runs(row, n) & runs(text, n):
                    parts = {run[i : i + 3] for i in range(n - 2)}
                    longest = n if not parts & common else longest
        assert passage.n_words == longest
        if longest:
            words = words_of(texts[passage.text])
            assert any(
                tuple(words[i : i + longest]) in runs(row, longest)
                for i in range(len(words))
            )


def test_similarity_is_the_cosine_of_dense_vectors():
    rng = np.random.default_rng(1)
    rows = [" ".join(rng.choice(list("abcdefgh"), 9)) for _ in range(7)]
    texts = [" ".join(rng.choice(list("abcdefghz"), 9)) for _ in range(5)]

    def terms(text):
        words = text.split()
        return Counter([*words, *map(" ".join, zip(words, words[1:], strict=False))])

    counted = [terms(text) for text in rows]
    names = sorted({name for count in [*counted, *map(terms, texts)] for name in count})

    def vector(count):
        values = []
        for name in names:
            n_rows = sum(name in other for other in counted)
            weight = math.log(8 / n_rows) if n_rows else math.log(8)
            n = count.get(name, 0)
            values.append((1 + math.log(n)) * weight if n else 0.0)
        return np.array(values) / np.linalg.norm(values)

    cosines = np.array([[vector(terms(t)) @ vector(c) for c in counted] for t in texts])
    similarity, index = nearest_rows(texts, rows, 7)
    assert np.allclose(np.take_along_axis(cosines, index, axis=1), similarity)
    assert (np.diff(similarity, axis=1) <= 1e-12).all()
    # A copy is as near as can be.
    (near,), (first,) = nearest_rows([rows[3]], rows, 1)
    assert near[0] == pytest.approx(1)
    assert first[0] == 3


def test_the_test_of_nearest_rows_is_that_of_all_deals():
    """Of 7 clusters, 4 trained: 35 deals, each as likely as the other."""
    rng = np.random.default_rng(2)
    n_texts, n_clusters = 30, 7
    similarity = -np.sort(-rng.random((n_texts, n_clusters)), axis=1)
    order = np.argsort(rng.random((n_texts, n_clusters)), axis=1)
    neighbours = Neighbours(similarity, order)
    is_trained = np.arange(n_clusters) < 4
    strata = np.zeros(n_clusters, int)

    def difference(sides):
        total = 0.0
        for near, clusters in zip(similarity, order, strict=True):
            trained = max(s for s, c in zip(near, clusters, strict=True) if sides[c])
            others = max(s for s, c in zip(near, clusters, strict=True) if not sides[c])
            total += trained - others
        return total / n_texts

    every = []
    for mask in range(2**n_clusters):
        sides = np.array([bool(mask >> bit & 1) for bit in range(n_clusters)])
        if sides.sum() == 4:
            every.append(difference(sides))
    observed = difference(is_trained)
    assert len(every) == 35
    assert nearest_sides(neighbours, is_trained).difference.mean() == pytest.approx(
        observed
    )

    test = nearest_test(neighbours, is_trained, strata, seed=0)
    tail = min(np.mean(every >= observed - 1e-12), np.mean(every <= observed + 1e-12))
    assert test.p == pytest.approx(min(1, 2 * tail), abs=0.1)
    assert test.expected == pytest.approx(np.mean(every), abs=0.01)


def test_texts_near_trained_rows_are_said_to_be_closer(benchmark, language, manifest):
    """Every third word is another one, so that no passage is left."""
    rng = np.random.default_rng(4)
    texts = []
    for text in texts_of(manifest, "train")[:60]:
        words = text.split()
        for place in range(0, len(words), 3):
            words[place] = str(rng.choice(language.words))
        texts.append(" ".join(words))
    _, findings, result = concluded(manifest, texts)
    closer = findings["closer"]
    assert closer.claim == "memory"
    assert closer.low > 0
    assert findings["passage_rate_excess"].claim == "nothing_shown"
    (nearer,) = (row for row in result.results if row.metric == "nearer_rate")
    assert nearer.value > 0.9
    assert nearer.no_effect == pytest.approx(0.5, abs=0.05)


def test_rows_that_differ_by_themselves_confound_what_is_copied(manifest):
    texts = texts_of(manifest, "train")[:25]
    evidence, findings, _ = concluded(manifest, texts)
    assert findings["passage_rate_excess"].claim == "verbatim"
    facts = {**evidence.facts, "text_p": 0.01}
    other = Evidence(evidence.units, evidence.checkpoints, evidence.values, facts)
    result = Generated().conclude(other, Context(replicates=99))
    confounded = {f.metric for f in result.findings if f.claim == "confounded"}
    assert confounded == {"passage_rate_excess", "closer"}


def of_canaries(trained: int, held_out: int) -> Evidence:
    """A file that holds so many of twelve trained and of twelve held-out canaries."""
    split = np.repeat(["train", "test"], 12)
    units = pd.DataFrame(
        {
            **NO_UNIT,
            "set": "canary",
            "example": [f"c{number:02d}" for number in range(24)],
            "split": split,
            "type": "CANARY",
            "cluster": [f"c{number:02d}" for number in range(24)],
            "part": "full",
            "dose": np.where(split == "train", 4, 0),
            "compared": True,
        }
    )
    hits = np.tile(np.arange(12), 2) < np.repeat([trained, held_out], 12)
    nothing = np.full(24, np.nan)
    scores = {**dict.fromkeys(SCORES, nothing), "hit": hits.astype(float)}
    facts = {
        "least_words": 10,
        "text_p": None,
        "texts": {"file": 1},
        "nearest_p": {},
        "expected": {},
        "expected_nearer": {},
    }
    return Evidence.of(units, [("file", scores)], facts)


@pytest.mark.parametrize(
    ("trained", "held_out", "claim"),
    [(8, 0, "verbatim"), (12, 12, "moved"), (0, 0, "nothing_shown")],
)
def test_planted_canaries_are_found_where_held_out_ones_are_not(
    trained, held_out, claim
):
    result = Generated().conclude(of_canaries(trained, held_out), Context())
    (finding,) = (f for f in corrected(result.findings) if f.facts)
    assert finding.audit == "generated"
    assert finding.claim == claim
    assert finding.facts["back"] == trained
    assert finding.sentence


def test_without_held_out_rows_on_a_side_nothing_is_compared(manifest):
    content = manifest.model_dump(mode="json")
    for row in content["examples"]:
        row["split"] = "train"
    content["membership"] |= {"members": [], "non_members": []}
    _, findings, _ = concluded(seal(content), texts_of(manifest, "train")[:20])
    assert {finding.claim for finding in findings.values()} == {"not_tested"}


def test_a_passage_has_two_words_at_least():
    with pytest.raises(InputError, match="--passage-words"):
        Generated(passage_words=1)
