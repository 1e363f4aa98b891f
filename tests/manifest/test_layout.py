"""Examples as tokens: masks, cuts."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from marked import made_corpus, made_table, make_example

from spark_audit.errors import InputError
from spark_audit.manifest.layout import ManifestLayout, Rows
from spark_audit.manifest.pair_selection import Balance, SelectedPairs
from spark_audit.manifest.settings import BuildSettings
from spark_audit.manifest.token_corpus import (
    TokenCorpus,
    control_pool,
    covariates,
    token_classes,
)
from spark_audit.scoring.score import item
from spark_audit.scoring.table import TokenTable


def chosen(**settings: Any) -> Any:
    return BuildSettings().recorded().model_copy(update=settings)


def laid_out(
    examples: Any, tokenizer: Any, *, max_length: int | None
) -> list[ManifestLayout]:
    return [*Rows(examples, tokenizer, max_length=max_length)]


def shown(row: ManifestLayout, mask: np.ndarray) -> str:
    """The text of the tokens of a mask, other characters as dots."""
    keep = [False] * len(row.example.text)
    for start, end in zip(
        row.encoding.char_start[mask], row.encoding.char_end[mask], strict=True
    ):
        keep[start:end] = [True] * int(end - start)
    pairs = zip(row.example.text, keep, strict=True)
    return "".join(char if kept else "." for char, kept in pairs)


def test_excluded_are_identifiers_with_a_buffer_specials_and_template(tiny_tokenizer):
    examples = [
        make_example(f"e{i}", f"Text: {word} John Smith was {word}\nLabel:", " good")
        for i, word in enumerate(["cold", "fine"])
    ]
    name = {"John Smith": "NAME"}
    examples[0] = make_example("e0", examples[0].prompt, " good", pii=name)
    row = laid_out(examples, tiny_tokenizer, max_length=None)[0]
    text = row.example.text
    # The common beginning and end of the prompts is fixed wording.
    assert (
        shown(row, row.is_template) == "Text:" + "." * (len(text) - 17) + ".Label:....."
    )
    none = row.excluded(chosen(buffer=0, exclude_template=False))
    assert none.tolist() == (row.is_pii | row.encoding.is_special).tolist()
    one = row.excluded(chosen(buffer=1, exclude_template=False))
    at = np.flatnonzero(row.is_pii)
    expected = none.copy()
    expected[[at[0] - 1, at[-1] + 1]] = True
    assert one.tolist() == expected.tolist()
    both = row.excluded(chosen(buffer=1, exclude_template=True))
    assert both.tolist() == (expected | row.is_template).tolist()


def test_a_long_text_is_cut_and_says_so(tiny_tokenizer):
    example = make_example(
        "e",
        "Ann Lee wrote. " + "The food was cold. " * 20 + "John Smith paid.",
        pii={"Ann Lee": "NAME", "John Smith": "NAME"},
    )
    whole, short = (
        laid_out([example], tiny_tokenizer, max_length=limit)[0] for limit in (None, 60)
    )
    assert not whole.was_cut
    assert whole.kept == (0, len(whole.encoding))
    assert short.was_cut
    assert short.kept == (len(short.encoding) - 59, len(short.encoding))
    assert [short.keeps(tokens) for _, tokens in short.spans] == [False, True]


def test_the_response_begins_with_its_first_token(tiny_tokenizer):
    row, empty = laid_out(
        [make_example("e", "The food was", " cold"), make_example("f", "Food", "")],
        tiny_tokenizer,
        max_length=None,
    )
    assert row.encoding.char_start[row.response_token] == len("The food was ")
    assert empty.response_token == len(empty.encoding)


def test_no_room_names_the_example(tiny_tokenizer):
    with pytest.raises(InputError) as caught:
        laid_out([make_example("e7", "The food")], tiny_tokenizer, max_length=1)
    assert caught.value.where == "example 'e7'"
    assert "--max-length" in caught.value.fix


# --- covariates -----------------------------------------------------------------------


Small = tuple[list[ManifestLayout], TokenCorpus, TokenTable]
TEXTS = [
    ("Text: The FOOD was 42 dollars, caf\u00e9 \u4f60\u597d.\nLabel:", " good"),
    ("Ask Maria at 555-0142  now \U0001f600", " World news"),
    ("x", ""),
]


@pytest.fixture(scope="module")
def small(tiny_tokenizer) -> Small:
    examples = [make_example(f"e{i}", *parts) for i, parts in enumerate(TEXTS)]
    rows = [*Rows(examples, tiny_tokenizer, max_length=None)]
    table = made_table([item(r.example.id, r.encoding, r.kept) for r in rows])
    return rows, made_corpus(rows, table), table


def plain(
    rows: list[ManifestLayout], table: TokenTable, i: int, start: int, length: int
) -> dict[str, float]:
    row, text = rows[i], rows[i].example.text
    tokens = range(start, start + length)
    scores = table.span(row.example.id, start, start + length)
    nll = [round(1e6 * float(v)) / 1e6 for v in table.columns["nll"][scores]]
    chars = text[
        row.encoding.char_start[start] : row.encoding.char_end[start + length - 1]
    ]
    count = Counter(
        int(token)
        for r in rows
        for token, special in zip(r.encoding.ids, r.encoding.is_special, strict=True)
        if not special
    )
    share = {token: n / sum(count.values()) for token, n in count.items()}
    begin = [int(row.encoding.char_start[t]) for t in tokens]
    end = [int(row.encoding.char_end[t]) for t in tokens]
    word = [
        a < b and (a == 0 or text[a - 1].isspace())
        for a, b in zip(begin, end, strict=True)
    ]
    return {
        "nll_mean": sum(nll) / length,
        "nll_max": max(nll),
        "nll_first": nll[0],
        "entropy": -float(np.mean(table.columns["mean_logp"][scores])),
        "log2_rank": float(np.mean(np.log2(table.columns["rank_lo"][scores]))),
        "position": start / len(row.encoding),
        "tokens": length,
        "chars_per_token": max(len(chars), 1) / length,
        "digit_share": sum(c.isdigit() for c in chars) / max(len(chars), 1),
        "capital_share": sum(c.isupper() for c in chars) / max(len(chars), 1),
        "log_frequency": sum(math.log(share[int(row.encoding.ids[t])]) for t in tokens)
        / length,
        "word_initial_share": sum(word) / length,
        "in_prompt_share": sum(a < len(row.example.prompt) for a in begin) / length,
    }


def test_covariates_of_every_window_are_those_of_plain_loops(small):
    rows, texts, table = small
    places = [
        (i, start, length)
        for i, row in enumerate(rows)
        for length in (1, 2, 5)
        for start in range(1, len(row.encoding) - length + 1)
    ]
    # Not in the order of the text, as pairs are not.
    places = [places[j] for j in np.random.default_rng(0).permutation(len(places))]
    found = covariates(texts, np.array(places))
    for n, place in enumerate(places):
        for name, value in plain(rows, table, *place).items():
            # float32 scores were summed in another order.
            assert found[name][n] == pytest.approx(value, abs=2e-6), (name, place)


def test_classes_are_one_letter_a_token(small):
    rows, texts, _ = small
    classes = token_classes(texts).tobytes().decode()
    assert len(classes) == len(texts.nll_micronats)
    for i, row in enumerate(rows):
        for t, letter in enumerate(classes[texts.tokens_of(i)]):
            chars = row.example.text[
                row.encoding.char_start[t] : row.encoding.char_end[t]
            ]
            expected = (
                "d"
                if any(c.isdigit() for c in chars)
                else "A"
                if any(c.isupper() for c in chars)
                else "a"
                if any(c.isalpha() for c in chars)
                else "-"
            )
            assert letter == expected
    assert set(classes) == set("dAa-")


def test_the_pool_holds_eligible_windows_of_the_spans_lengths(small):
    _, texts, _ = small
    eligible = texts.nll_micronats >= 0
    eligible[texts.first_token[1] + 6] = False
    spans = np.array([(1, 6, 1), (1, 6, 3), (1, 9, 3), (0, 2, 4)])
    found = control_pool(eligible, texts, spans)
    for example, length in ((1, 1), (1, 3), (0, 4)):
        mine = (found[:, 0] == example) & (found[:, 2] == length)
        starts = found[mine, 1]
        whole = eligible[texts.tokens_of(example)]
        assert len(starts) >= 3
        assert all(whole[s : s + length].all() for s in starts)
        assert (np.diff(starts) >= length).all()
    assert len(found) == sum(
        ((found[:, 0] == e) & (found[:, 2] == n)).sum()
        for e, n in ((1, 1), (1, 3), (0, 4))
    )


def test_balance_adds_where_controls_stand(small):
    _, texts, _ = small
    balance = Balance()
    pairs = SelectedPairs([], [], np.array([(0, 10, 2, 5), (1, 4, 3, 9)]))
    balance.add(texts, texts.nll_micronats >= 0, pairs)
    by_name = {row["covariate"]: row for row in balance.records()}
    assert list(by_name)[:3] == ["nll_mean", "nll_max", "nll_first"]
    # 7 to 10 is 3 tokens before, 7 to 9 is 2 tokens behind.
    assert by_name["distance_to_pii"]["mean_control"] == pytest.approx(2.5)
    assert by_name["control_before"]["mean_control"] == pytest.approx(0.5)
    for name in ("distance_to_pii", "control_before"):
        assert by_name[name]["mean_pii"] is None
        assert by_name[name]["smd_after"] is None
    assert by_name["tokens"]["smd_after"] == pytest.approx(0.0)
