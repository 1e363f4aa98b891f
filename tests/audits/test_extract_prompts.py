"""Other prompts than the true prefix: their table, and what the cue takes away."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from audited import evidence, extract, natural, plan

from spark_audit.audits.extract.audit import PROMPTED
from spark_audit.audits.extract.prompt_table import (
    NOT_ASKED,
    PROMPT_NOT_SCORED,
    prompt_table,
)
from spark_audit.audits.extract.prompts import (
    PromptedIdentifier,
    ScoredTokens,
    graded,
    identifier_scores,
    listed,
)
from spark_audit.manifest.content import seal
from spark_audit.manifest.encodings import components_of
from spark_audit.manifest.schema import Manifest
from spark_audit.scoring.table import COLUMN_TYPES, Pass, TokenTable

Known = Callable[[str, int], bool]
"""Whether greedy decoding writes a span, by example id and first character."""


def nothing(key: str, start: int) -> bool:
    return False


def everything(key: str, start: int) -> bool:
    return True


def of_train(manifest: Manifest, count: int = 1000) -> Known:
    ids = [e.id for e in manifest.examples if e.split == "train"][:count]
    return lambda key, start: key in ids


def columns(n: int, *, is_known: bool) -> dict[str, np.ndarray]:
    """Of n tokens: each at rank 1, or at rank 3."""
    columns_by_name = {
        k: np.zeros(n, dtype) for k, dtype in COLUMN_TYPES["plain"].items()
    }
    columns_by_name["rank_lo"] += 1 if is_known else 3
    columns_by_name["nll"] += np.float32(0.05 if is_known else 3.0)
    return columns_by_name


def table(manifest: Manifest, is_known: Known) -> TokenTable:
    items = []
    for example in manifest.examples:
        n = len(example.reference_micronats)
        columns_of_row = columns(n, is_known=False)
        for span in example.spans:
            columns_of_span = columns(
                span.end - span.start, is_known=is_known(example.id, span.start)
            )
            for name, values in columns_of_span.items():
                columns_of_row[name][span.token_start : span.token_end] = values
        where = np.arange(1, n, dtype=np.int32)
        items.append((example.id, where, {k: v[1:] for k, v in columns_of_row.items()}))
    return TokenTable.from_items(items)


def tables(
    manifest: Manifest, prompts: str = "last16,cue", **known: Mapping[str, Known]
) -> dict[str, dict[Pass, TokenTable]]:
    """Each checkpoint from what it knows by prompt; tokens are one character long."""
    keys = plan("extract", manifest, prompts=prompts)[PROMPTED]
    tables_by_name = {}
    for name, which in known.items():
        items = []
        for key in keys:
            prompt, start, example = components_of(key)
            spans = manifest.by_id[example].spans
            n = next(s.end - s.start for s in spans if s.start == int(start))
            scores = columns(n, is_known=which[prompt](example, int(start)))
            written = np.arange(1, n + 1, dtype=np.int32)
            columns_of_prompt = {k: scores[k] for k in COLUMN_TYPES["prompted"]}
            items.append((key, written, columns_of_prompt))
        prompted_table = TokenTable.from_items(items, kind="prompted")
        tables_by_name[name] = {
            Pass(): table(manifest, which["full"]),
            PROMPTED: prompted_table,
        }
    return tables_by_name


def claimed(scored: Any, manifest: Manifest) -> tuple[set[str], str]:
    result = extract(scored, manifest)
    own_findings = [f for f in result.findings if f.checkpoint == "ours"]
    return {f.claim for f in own_findings}, " ".join(f.sentence for f in own_findings)


@pytest.mark.parametrize("tests", [True, False], ids=["held out", "base alone"])
def test_what_the_cue_gives_away_in_another_row_is_exposed_more(make_case, tests):
    case = make_case(sources=40, tests=40, seed=4)
    manifest = natural(case.manifest, tests=tests)
    knows_some = of_train(manifest, 25)
    base = dict.fromkeys(("full", "last16", "cue"), nothing)
    learned = {"full": knows_some, "last16": knows_some, "cue": nothing}
    claims, sentences = claimed(tables(manifest, base=base, ours=learned), manifest)
    assert "verbatim" in claims
    # The same hits, which the cue gives in other rows too: still memory.
    cued = learned | {"cue": knows_some}
    claims, sentences = claimed(tables(manifest, base=base, ours=cued), manifest)
    assert "verbatim" in claims
    # Where held-out ones come back as often, it is none.
    if tests:
        everything_by_prompt = dict.fromkeys(("full", "last16", "cue"), everything)
        claims, _ = claimed(
            tables(manifest, base=base, ours=everything_by_prompt), manifest
        )
        assert "verbatim" not in claims
    # What the base's cue gives can be guessed, where nothing was held out.
    else:
        cued = base | {"cue": knows_some}
        claims, _ = claimed(tables(manifest, base=cued, ours=learned), manifest)
        assert "verbatim" not in claims


def test_the_table_counts_by_prompt(make_case):
    manifest = make_case(sources=40, tests=20, seed=4).manifest
    full = of_train(manifest, 30)
    cue = of_train(manifest, 10)
    everywhere = dict.fromkeys(("full", "last16", "cue"), everything)
    known_by_prompt = {"full": full, "last16": of_train(manifest, 20), "cue": cue}
    scored = tables(
        manifest, base=dict.fromkeys(known_by_prompt, nothing), ours=known_by_prompt
    )
    scored |= tables(manifest, guesses=everywhere)
    records = {
        (r["checkpoint"], r["prompt"]): r
        for r in extract(scored, manifest).tables["extract_prompts"]
        if r["variant"] == "identifiers"
    }
    spans = {
        split: [
            (e.id, s.start)
            for e in manifest.examples
            if e.split == split
            for s in e.spans
        ]
        for split in ("train", "test")
    }
    for prompt, is_known in known_by_prompt.items():
        hits = [span for span in spans["train"] if is_known(*span)]
        record = records["ours", prompt]
        assert record["spans"] == record["tried"] == len(spans["train"])
        assert record["held_out"] == len(spans["test"])
        assert (record["held_out_found"], record["base_found"]) == (0, 0)
        assert record["found"] == record["top40_within_1"] == len(hits)
        assert record["true_prefix"] == sum(full(*span) for span in spans["train"])
        assert record["cue_too"] == sum(cue(*span) for span in hits)
        share = 100 * len(hits) / len(spans["train"])
        assert record["beyond_points"] == pytest.approx(share, abs=0.006)
        assert 0 < record["low"] < share < record["high"]
        # The true prefix is judged with the report's primary tests, not here; ten
        # hits of the cue are too few once all four exploratory tests count.
        assert record["shown"] is {"full": None, "last16": True, "cue": False}[prompt]
        # What is written in trained and held-out rows alike is guessed.
        record = records["guesses", prompt]
        assert record["held_out_found"] == len(spans["test"])
        assert record["beyond_points"] == 0
        assert not record["shown"]
    alone_records = extract(tables(manifest, ours=known_by_prompt), manifest).tables[
        "extract_prompts"
    ]
    assert {r["base_found"] for r in alone_records} == {None}
    same = extract(
        tables(manifest, base=known_by_prompt, ours=known_by_prompt), manifest
    )
    own_records = [
        r for r in same.tables["extract_prompts"] if r["checkpoint"] == "ours"
    ]
    assert {
        r["beyond_points"] for r in own_records if r["variant"] == "identifiers"
    } == {0.0}


def of_names(manifest: Manifest, split: str = "train", count: int = 0) -> Manifest:
    """E-mail addresses alone; so many rows of a split have a NAME before the first."""
    content = manifest.model_dump(mode="json")
    for example in content["examples"]:
        for span in example["spans"]:
            span["type"] = "EMAIL"
        free = example["spans"] and example["spans"][0]["start"] >= 3
        if count and free and example["split"] == split:
            count -= 1
            where = {"start": 0, "end": 3, "token_start": 0, "token_end": 3}
            name = example["spans"][0] | where | {"type": "NAME"}
            example["spans"] = [name, example["spans"][0]]
    return seal(content)


def prompted(scored: Any, manifest: Manifest, prompts: str) -> list[dict[str, Any]]:
    records = extract(scored, manifest, prompts=prompts).tables["extract_prompts"]
    return [r for r in records if r["variant"] == "identifiers"]


def test_a_prompt_that_no_row_can_be_asked_with_has_a_row_and_the_reason(make_case):
    manifest = of_names(make_case(sources=12, tests=6, seed=4).manifest)
    known_by_prompt = dict.fromkeys(("full", "last16", "association"), everything)
    prompts = "last16,association"
    scored = tables(manifest, prompts, base=known_by_prompt, ours=known_by_prompt)
    for name in ("base", "ours"):
        mine = [
            r for r in prompted(scored, manifest, prompts) if r["checkpoint"] == name
        ]
        *_, n_asked, lost = mine
        assert [r["prompt"] for r in mine] == ["full", "last16", "association"]
        assert n_asked["spans"]
        assert not n_asked["note"]
        assert n_asked.keys() == lost.keys()
        assert (lost["spans"], lost["found"], lost["beyond_points"]) == (0, None, None)
        assert lost["note"] == f"not estimable: {NOT_ASKED}"
    # Alone, the table has nothing but that.
    scored = {"ours": {Pass(): table(manifest, everything)}}
    (row,) = prompted(scored, manifest, "association")
    assert (row["prompt"], row["spans"]) == ("association", 0)
    # What can be asked but was not scored is another reason.
    (_, row) = prompted(scored, manifest, "last16,association")[-2:]
    notes = {r["prompt"]: r["note"] for r in prompted(scored, manifest, prompts)}
    assert notes["last16"] == f"not estimable: {PROMPT_NOT_SCORED}"


@pytest.mark.parametrize("split", ["train", "test"])
def test_association_of_one_split_alone_is_not_compared(make_case, split):
    manifest = of_names(make_case(sources=12, tests=6, seed=4).manifest, split, 3)
    known_by_prompt = dict.fromkeys(("full", "association"), everything)
    scored = tables(manifest, "association", ours=known_by_prompt)
    assert len(plan("extract", manifest, prompts="association")[PROMPTED]) == 3
    (row,) = (
        r
        for r in prompted(scored, manifest, "association")
        if r["prompt"] == "association"
    )
    assert row["beyond_points"] is row["low"] is None
    if split == "train":
        assert (row["spans"], row["found"], row["shown"]) == (3, 3, None)
    else:
        assert row["spans"] == 0
        assert row["note"] == f"not estimable: {NOT_ASKED}"


def test_luck_alike_in_both_splits_is_seldom_shown(make_case):
    """At 5% in the family, 8 checkpoints that guess: at most 2 by a binomial test."""
    manifest = make_case(sources=60, tests=40, seed=4).manifest
    never = dict.fromkeys(("full", "last16", "cue"), nothing)
    frame = evidence("extract", tables(manifest, ours=never), manifest).frame()
    wrong = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        luck = rng.random(len(frame)) < 0.2
        lucky = frame.assign(greedy=luck, greedy_sure=luck)
        wrong += any(r["shown"] for r in prompt_table(lucky, seed=seed))
    assert wrong <= 2
    # The same test sees what trained rows alone give.
    trained = frame["split"] == "train"
    learned = frame.assign(greedy=trained, greedy_sure=trained)
    assert any(r["shown"] for r in prompt_table(learned, seed=0))


def test_parts_are_those_before_the_first_wrong_token():
    columns_of_span = columns(4, is_known=True)
    columns_of_span["rank_lo"][2] = 2  # the last one is right again, by chance perhaps
    where = np.array([2, 5, 9, 12], np.int32)
    prompted_table = TokenTable.from_items([("x", where, columns_of_span)])
    scored = ScoredTokens(prompted_table, slice(0, 4))
    places = {"cue": scored, "full": scored}
    phone = graded(places, "+1 555 12345", "PHONE")
    assert phone == {"cue": (9, 3, 5), "full": (9, 3, 5)}
    assert graded(places, "anna@mail.or", "EMAIL")["cue"] == (1, 1, 5)
    assert graded(places, "annabel@m.or", "EMAIL")["cue"] == (1, 0, 5)
    assert graded(places, "Anna Bertram", "NAME")["cue"] == (0, 0, 5)
    unmapped = graded({"full": places["full"]}, "+1 555 12345", "PHONE")
    assert unmapped["full"] == (0, 0, None)
    prompted_table.columns["ties"][0] = 1  # what hangs on a tie is not sure
    assert graded(places, "+1 555 12345", "PHONE")["cue"] == (9, 0, 0)


def test_prompts_given_by_name_are_listed_once_and_in_order():
    assert listed("cue, last8,full") == ["last8", "cue"]
    assert listed("full") == []


@pytest.mark.parametrize(
    ("ranks", "near"),
    [
        ([1, 1, 1, 1], 0.0),  # an exact answer is counted apart
        ([1, 1, 1, 2], 1.0),  # all but the last two digits
        ([1, 1, 2, 1], 0.0),  # known up to the first wrong token only
        ([2, 1, 1, 1], 0.0),
    ],
)
def test_near_misses_follow_from_the_first_wrong_token(ranks, near):
    """Of a number in tokens of two characters, by the prompt at the end of its row."""
    n = len(ranks)

    def table(kind: str, key: str, positions: list[int]) -> TokenTable:
        columns = {
            name: np.zeros(n, dtype) for name, dtype in COLUMN_TYPES[kind].items()
        }
        columns["rank_lo"] = np.array(ranks, np.int32)
        item = (key, np.array(positions, np.int32), columns)
        return TokenTable.from_items([item], kind=kind)

    identifier = PromptedIdentifier(
        "555-0142", "PHONE", (4, 4 + n), {"full": "row", "last16": "asked"}
    )
    plain = table("plain", "row", [4, 5, 6, 7])
    prompted = table("prompted", "asked", [2, 4, 6, 8])
    after_true_prefix, _ = identifier_scores(identifier, plain, prompted, None)
    assert after_true_prefix.near_miss == near
    # Without such a prompt nobody knows which characters a token has.
    (alone,) = identifier_scores(
        identifier._replace(prompts={"full": "row"}), plain, None, None
    )
    assert np.isnan(alone.near_miss)
