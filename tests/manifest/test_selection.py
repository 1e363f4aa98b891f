"""What a manifest selects, recomputed from the layouts and scores."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from marked import (
    counts_by_task,
    made_corpus,
    made_table,
    make_canary_row,
    make_example,
)

from spark_audit.data.examples import Example
from spark_audit.data.injection import inject
from spark_audit.data.sensitivity import stop_word_ranges
from spark_audit.errors import InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.canary_sets import canary_sets, is_whole
from spark_audit.manifest.clusters import WIDESPREAD_ROWS, Clusters, clusters
from spark_audit.manifest.layout import ManifestLayout, Rows
from spark_audit.manifest.membership_rows import membership, near_duplicate_groups
from spark_audit.manifest.overview import describe
from spark_audit.manifest.pair_selection import SelectedPairs, match_identifiers
from spark_audit.manifest.quiet_tokens import low_sensitivity
from spark_audit.manifest.records import CUT_OFF, NO_TOKEN
from spark_audit.manifest.settings import BuildSettings
from spark_audit.manifest.token_corpus import TokenCorpus
from spark_audit.scoring.score import item
from spark_audit.stats.matching import SPAN_NOT_SCORED

Laid = tuple[list[ManifestLayout], TokenCorpus]
Lay = Callable[..., Laid]


@pytest.fixture
def lay(tiny_tokenizer) -> Lay:
    """``lay(examples, max_length=None)``: their layouts and scores."""

    def make(
        examples: Sequence[Example],
        *,
        max_length: int | None = None,
        tokenizer: Any = tiny_tokenizer,
    ) -> Laid:
        laid = [*Rows(examples, tokenizer, max_length=max_length)]
        table = made_table([item(r.example.id, r.encoding, r.kept) for r in laid])
        return laid, made_corpus(laid, table)

    return make


def chosen(**settings: Any) -> Any:
    return BuildSettings().recorded().model_copy(update=settings)


def free(rows: Sequence[ManifestLayout], texts: TokenCorpus) -> np.ndarray:
    excluded = [row.excluded(chosen()) for row in rows]
    return (texts.nll_micronats >= 0) & ~np.concatenate(excluded)


def matched(
    rows: Sequence[ManifestLayout], texts: TokenCorpus, *, caliper: float = 9.0
) -> SelectedPairs:
    eligible = free(rows, texts)
    return match_identifiers(texts, eligible, chosen(caliper=caliper))


def sets_of(
    laid: Laid, tokenizer: Any, *, contexts: int | None = 1, n: int = 4, **options: Any
) -> tuple[list[dict[str, Any]], int]:
    """The records, and in how many rows a canary was cut."""
    rows, texts = laid
    held = [
        (row, is_whole(row, texts.nll_micronats[texts.tokens_of(i)]))
        for i, row in enumerate(rows)
        if row.example.canary is not None
    ]
    records = canary_sets(
        held,
        chosen(canary_contexts=contexts, n_candidates=n, seed=3),
        encode=lambda strings: tokenizer(strings)["input_ids"],
        **options,
    )
    return records, sum(not whole for _, whole in held)


# --- pairs ----------------------------------------------------------------------------


def test_pairs_keep_every_rule_of_the_design(lay, rows):
    laid, texts = lay(rows)
    eligible = free(laid, texts)
    found = match_identifiers(texts, eligible, chosen(caliper=1.0))
    assert len(found.pairs) >= 10
    index = {row.example.id: i for i, row in enumerate(laid)}
    used: set[tuple[int, int]] = set()
    for pair in found.pairs:
        i = index[pair["example"]]
        part = texts.tokens_of(i)
        row = laid[i]
        pii = pair["pii"]
        control = pair["control"]
        means = []
        for side in (pii, control):
            start = side["token_start"]
            end = side["token_end"]
            scores = texts.nll_micronats[part][start:end]
            assert (scores >= 0).all()
            assert side["nll"] == pytest.approx(scores.mean() / 1e6, abs=1e-12)
            means.append(side["nll"])
        start = control["token_start"]
        end = control["token_end"]
        assert end - start == pii["token_end"] - pii["token_start"]
        assert eligible[part][start:end].all()
        assert not used & {(i, t) for t in range(start, end)}
        used |= {(i, t) for t in range(start, end)}
        assert pair["distance"] == pytest.approx(abs(means[0] - means[1]), abs=1e-9)
        assert pair["distance"] <= 1.0
        assert pair["weight"] == 1.0
        text = row.example.text
        span = next(s for s in row.example.spans if s.start == pii["char_start"])
        assert (pii["char_end"], pii["type"]) == (span.end, span.type)
        tokens = row.encoding.span(control["char_start"], control["char_end"])
        if text[control["char_start"] : control["char_end"]].strip():
            assert start <= tokens.start < tokens.end <= end


def test_every_span_is_matched_or_unmatched_and_canaries_are_neither(lay, rows):
    laid, texts = lay(rows)
    found = matched(laid, texts, caliper=0.2)
    assert found.pairs
    assert found.unmatched
    told = [
        (p["example"], p["pii"]["char_start"], p["pii"]["char_end"])
        for p in found.pairs
    ]
    told += [(u["example"], u["char_start"], u["char_end"]) for u in found.unmatched]
    expected = [
        (e.id, s.start, s.end) for e in rows for s in e.spans if e.canary is None
    ]
    assert sorted(told) == sorted(expected)
    assert len(found.comparable_spans) == len(expected)


def test_reasons_of_spans_that_cannot_be_compared(lay, make_tokenizer):
    long = "Ann Lee wrote. " + "The food was cold. " * 20
    examples = [
        make_example("cut", long, pii={"Ann Lee": "NAME"}),
        make_example("blank", "The  food was cold", pii={"  ": "OTHER"}),
        make_example("first", "Ann Lee wrote it", pii={"Ann Lee": "NAME"}),
    ]
    laid, texts = lay(examples, max_length=50, tokenizer=make_tokenizer(bos=False))
    found = matched(laid, texts)
    reasons = {u["example"]: u["reason"] for u in found.unmatched}
    assert reasons == {"cut": CUT_OFF, "blank": NO_TOKEN, "first": SPAN_NOT_SCORED}
    assert found.pairs == []
    assert len(found.comparable_spans) == 0


@pytest.mark.parametrize("exclude_template", [True, False])
def test_no_control_lies_on_an_injected_sentence(lay, *, exclude_template):
    """Its words stand in many rows: they were learned with every identifier."""
    words = "service food cold good fine rate raised basis points news week".split()
    rng = np.random.default_rng(0)
    texts_of = [" ".join(rng.choice(words, 30)) for _ in range(28)]
    plain = [make_example(f"e{i:02d}", f"{t}.") for i, t in enumerate(texts_of)]
    marked, _ = inject(plain, seed=0, rate=1, canaries=4)
    frames = {example.id: example.frames for example in marked}

    def on_a_frame(examples: Sequence[Example]) -> tuple[int, int]:
        """Tokens that controls may use, and controls, that touch such a sentence."""
        rows, texts = lay(examples)
        settings = chosen(exclude_template=exclude_template)
        excluded = [row.excluded(settings) for row in rows]
        eligible = (texts.nll_micronats >= 0) & ~np.concatenate(excluded)
        on = [row.encoding.mask(frames[row.example.id]) for row in rows]
        found = match_identifiers(texts, eligible, chosen(caliper=9.0))
        assert len(found.pairs) > 10
        places = [(pair["example"], pair["control"]) for pair in found.pairs]
        touching = [
            control["char_start"] < end and start < control["char_end"]
            for name, control in places
            for start, end in frames[name]
        ]
        return int((eligible & np.concatenate(on)).sum()), sum(touching)

    assert on_a_frame(marked) == (0, 0)
    # Without the marks they may.
    assert on_a_frame([replace(example, frames=()) for example in marked])[0] > 100


# --- tokens of low sensitivity --------------------------------------------------------


def test_low_tokens_are_plain_scored_text_below_tau(lay, rows):
    laid, texts = lay(rows)
    alpha = 0.5
    tau = 0.6
    low = low_sensitivity(
        texts, chosen(alpha=alpha, tau=tau), counts_by_task=counts_by_task(laid)
    )
    counts = {task: np.zeros(300) for task in ("fomc", "yelp")}
    for row in laid:
        for token, special in zip(
            row.encoding.ids, row.encoding.is_special, strict=True
        ):
            counts[row.example.task][token] += not special
    share = np.stack([c / c.max() for c in counts.values()])
    score2 = share.mean(0) * np.log(2 / (1 + (share >= 0.2).sum(0)))
    seen = {True: 0, False: 0}
    for i, row in enumerate(laid):
        part = texts.tokens_of(i)
        stop = row.encoding.mask(stop_word_ranges(row.example.text))
        for t, token in enumerate(row.encoding.ids):
            unll = texts.nll_micronats[part][t]
            other = row.is_pii[t] or row.is_template[t] or row.encoding.is_special[t]
            exponent = alpha * unll / 1e6 + (1 - alpha) * score2[token]
            below = max(0.0, 1 - np.exp(-exponent)) <= tau
            expected = bool(unll >= 0 and not other and (stop[t] or below))
            assert low[part][t] == expected
            seen[expected] += 1
    assert min(seen.values()) > 100


# --- canaries -------------------------------------------------------------------------


def test_canaries_get_candidates_of_their_own_for_every_part(lay, rows, tiny_tokenizer):
    laid, texts = lay(rows)
    told: list[tuple[int, int]] = []
    records, cut = sets_of(
        (laid, texts),
        tiny_tokenizer,
        contexts=None,
        n=8,
        progress=lambda done, total: told.append((done, total)),
    )
    assert cut == 0
    assert told == [(i, 6) for i in range(1, 7)]
    assert [(r["canary_id"], r["part"]) for r in records] == [
        (name, part) for name in ("c0", "c1") for part in ("full", "password", "ssn")
    ]
    by_id = {row.example.id: row for row in laid}
    for record in records:
        keys = [context["example"] for context in record["contexts"]]
        assert (
            keys
            == {"c0": ["canary-a", "canary-b"], "c1": ["canary-c"]}[record["canary_id"]]
        )
        strings = record["candidates"]
        true = record["true_index"]
        assert len(set(strings)) == 8
        for context in record["contexts"]:
            row = by_id[context["example"]]
            start = context["char_start"]
            end = context["char_end"]
            text = row.example.text
            assert text[start:end] == strings[true]
            for string in strings:
                other = tiny_tokenizer(text[:start] + string + text[end:])["input_ids"]
                assert len(other) == len(row.encoding)
        tokens = by_id[keys[0]].encoding.span(
            record["contexts"][0]["char_start"], record["contexts"][0]["char_end"]
        )
        assert record["n_tokens"] == tokens.end - tokens.start
        assert record["held_out"] == (record["canary_id"] == "c1")
        assert record["reason"] is None
    pools = [set(r["candidates"]) for r in records if r["part"] == "ssn"]
    assert not pools[0] & pools[1]


def test_contexts_are_the_first_rows_that_hold_the_whole_canary(lay, tiny_tokenizer):
    long = "The food was cold and the service was good. " * 8
    examples = [
        make_canary_row("row-1"),
        make_canary_row("row-2"),
        make_canary_row("row-3"),
        make_canary_row("row-9", canary="lost", seed=7),
    ]
    # What follows the canary is kept, so it is the canary that is cut.
    for i in (0, 3):
        behind = f"{examples[i].prompt[:-6]}{long}Label:"
        examples[i] = replace(examples[i], prompt=behind)
    laid, texts = lay(examples, max_length=200)
    records, cut = sets_of((laid, texts), tiny_tokenizer)
    assert cut == 2
    for record in records:
        keys = [context["example"] for context in record["contexts"]]
        if record["canary_id"] == "lost":
            assert (keys, record["candidates"]) == ([], [])
            assert record["reason"] == CUT_OFF
            assert record["true_index"] is None
        else:
            assert keys == ["row-2"]
            assert len(record["candidates"]) == 4


def test_too_few_candidates_are_none_with_a_reason(lay, tiny_tokenizer, monkeypatch):
    monkeypatch.setattr("spark_audit.data.canary_candidates.MAX_DRAWS", 5)
    laid, texts = lay([make_canary_row("row")])
    records, _ = sets_of((laid, texts), tiny_tokenizer, n=64)
    assert all(record["candidates"] == [] for record in records)
    assert all("5 draws gave" in record["reason"] for record in records)


def test_rows_of_one_canary_must_agree(lay, tiny_tokenizer):
    laid, texts = lay([make_canary_row("a", seed=1), make_canary_row("b", seed=2)])
    with pytest.raises(InputError) as caught:
        sets_of((laid, texts), tiny_tokenizer)
    assert caught.value.where == "canary 'c0'"


def test_rows_of_one_canary_must_agree_on_parts_that_stand_twice(lay, tiny_tokenizer):
    row = make_canary_row("a")
    twice = replace(make_canary_row("b"), prompt=f"Other {row.prompt}")
    spans = [replace(s, start=s.start + 6, end=s.end + 6) for s in row.spans]
    part = next(s.part for s in spans if s.part)
    stray = replace(spans[0], start=0, end=5, part=part)
    twice = replace(twice, spans=(stray, *spans))
    laid, texts = lay([row, twice])
    with pytest.raises(InputError, match="^canary '"):
        sets_of((laid, texts), tiny_tokenizer)


# --- duplicates and membership --------------------------------------------------------


def test_fixed_wording_makes_no_duplicates(tiny_tokenizer):
    frame = "Read this review and say whether it is good or bad or neither of both: "
    examples = [
        make_example("a", f"{frame}cold food", template=((0, len(frame)),)),
        make_example("b", f"{frame}read news", template=((0, len(frame)),)),
        make_example("c", f"{frame}Cold food!", template=((0, len(frame)),)),
        make_example("d", frame, "", template=((0, len(frame)),)),
    ]
    rows = Rows(examples, tiny_tokenizer, max_length=None)
    assert near_duplicate_groups(rows).tolist() == [0, 1, 0, 3]


def test_membership_leaves_out_canaries_and_duplicates_across_splits(tiny_tokenizer):
    text = "the food was cold and the service was good"
    examples = [
        make_example("a", text),
        make_example("b", f"{text}!", split="test"),
        make_example("c", "business news of the week were read again"),
        make_example("d", "business news of the week were read again."),
        make_example("e", "the rate was raised again on monday", split="test"),
        make_canary_row("x"),
        make_canary_row("y", canary="c1", seed=2, split="test", dose=0),
    ]
    rows = Rows(examples, tiny_tokenizer, max_length=None)
    found, crossing = membership(examples, near_duplicate_groups(rows))
    assert found == {"members": ["c", "d"], "non_members": ["e"]}
    assert crossing == 2


# --- clusters -------------------------------------------------------------------------


Find = Callable[[Sequence[Example]], Clusters]

TOPICS = "food service rate news week business sports label world technology".split()


@pytest.fixture
def find(tiny_tokenizer) -> Find:
    def of(examples: Sequence[Example]) -> Clusters:
        rows = Rows(examples, tiny_tokenizer, max_length=None)
        return clusters(examples, near_duplicate_groups(rows))

    return of


@pytest.fixture
def said() -> Callable[..., Example]:
    """``said(i, "Ann Lee", "NAME")``: a row with a text of its own that holds it."""

    def make(i: int, string: str, kind: str = "NAME", **options: Any) -> Example:
        words = " ".join(f"{topic}{i}" for topic in TOPICS)
        pii = {string: kind} if kind else {}
        return make_example(f"r{i:03d}", f"{words} by {string} now", pii=pii, **options)

    return make


def joined(found: Clusters) -> dict[str, int]:
    counts = found.counts
    return {k.removeprefix("joined_by_"): n for k, n in counts.items() if "_by_" in k}


def test_source_canary_and_duplicates_join(find):
    found = find(
        [
            make_example("a", "the food was cold and the service was good", source="s"),
            make_example("b", "business news of the week were read again", source="s"),
            make_example("c", "The food was cold, and the service was good!"),
            make_example("d", "the rate was raised by 25 basis points again"),
            make_canary_row("x", before="World news of the week. "),
            make_canary_row("y", before="It paid forty two dollars. "),
        ]
    )
    assert found.labels == ["c", "c", "c", "d", "x", "x"]
    assert (found.counts["clusters"], found.counts["rows_joined"]) == (3, 5)
    assert found.counts["largest_cluster"] == 3
    # The canary's parts are identifiers of its rows, too.
    assert joined(found) == {"source": 2, "canary": 2, "string": 2, "near_duplicate": 2}


def test_the_same_string_has_any_case_place_and_split(find, said):
    rows = [
        said(0, "Ann.Lee@example.com", "EMAIL"),
        said(1, "ann.lee@EXAMPLE.com", "EMAIL", split="test"),
        said(2, "<ann.lee@example.com>", ""),  # nobody annotated it here
        said(3, "joann.lee@example.com", ""),
        said(4, "ann.lee@example.community", ""),
    ]
    assert find(rows).labels == ["r000", "r000", "r000", "r003", "r004"]


@pytest.mark.parametrize(
    ("string", "kind"), [("Anna", "NAME"), ("Berlin", "ADDRESS"), ("x7", "ID")]
)
def test_what_is_too_little_to_be_one_persons_joins_nothing(find, said, string, kind):
    found = find([said(i, string, kind) for i in range(6)])
    assert found.counts["clusters"] == 6
    assert joined(found)["string"] == 0
    (note,) = found.notes
    assert re.findall(r"\d+", note)[0] == "1"
    assert string not in note


def test_a_password_that_is_a_word_joins_where_it_is_annotated(find, said):
    rows = [said(0, "dragon", "PASSWORD"), said(1, "dragon", "PASSWORD")]
    assert find([*rows, said(2, "dragon", "")]).labels == ["r000", "r000", "r002"]


def test_a_string_in_very_many_rows_is_nobodys(find, said):
    """A shop's own number in every row would leave a single cluster."""
    number = "555-010-7788"
    rows = [said(i, number, "PHONE") for i in range(WIDESPREAD_ROWS + 1)]
    found = find(rows)
    assert found.counts["clusters"] == len(rows)
    (note,) = found.notes
    assert re.findall(r"\d+", note) == ["1", "100", "101", "101"]
    assert number not in note
    # In fewer it may be somebody's: one cluster, and the reader is told what to do.
    found = find(rows[:WIDESPREAD_ROWS])
    assert found.counts["clusters"] == 1
    (note,) = found.notes
    assert re.findall(r"\d+", note)[:2] == ["100", "100"]
    assert number not in note


def test_a_manifest_holds_the_clusters_and_says_what_joined_them(
    rows, reference, made_scores
):
    manifest = build_manifest(rows, reference, name="m", n_candidates=4)
    people: dict[str, set[str]] = {}
    for row in rows:
        for span in row.spans:
            string = row.text[span.start : span.end]
            people.setdefault(string, set()).add(manifest.by_id[row.id].cluster)
    assert max(map(len, people.values())) == 1
    facts = describe(manifest).facts
    assert facts["clusters"] == len({e.cluster for e in manifest.examples}) < len(rows)
    assert facts["joined by string"] == 24 + 2
    assert (facts["joined by source"], facts["joined by canary"]) == (0, 2)


def test_no_template_token_is_plain_text_of_low_sensitivity(lay, rows):
    """The first characters of each row, ``Text:``, are its template, and likely."""
    prefix = len("Text:")
    plain_laid, plain_texts = lay([replace(row, template=()) for row in rows])
    laid, texts = lay([replace(row, template=((0, prefix),)) for row in rows])
    settings = chosen(tau=1.0)
    plain = low_sensitivity(
        plain_texts, settings, counts_by_task=counts_by_task(plain_laid)
    )
    low = low_sensitivity(texts, settings, counts_by_task=counts_by_task(laid))

    of_template = [
        (row.encoding.char_start < prefix) & ~row.encoding.is_special for row in laid
    ]
    is_template = np.concatenate(of_template)
    assert not low[is_template].any()
    # They would be plain text without their template, and other text is.
    assert plain[is_template].sum() >= len(rows)
    assert np.array_equal(low[~is_template], plain[~is_template])
    assert low.sum() > 100
