"""What a checkpoint reads of a manifest's canaries, and that it scores what it says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marked import make_canary_row, make_example

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data.encoding import Encoding, encode
from spark_audit.data.examples import Example
from spark_audit.errors import InputError
from spark_audit.manifest.build import build_manifest
from spark_audit.manifest.encodings import key_of
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import MORE_TOKENS, items_for, row_prompts
from spark_audit.scoring.items import Candidates, Item
from spark_audit.scoring.score import score
from spark_audit.scoring.table import Pass

KIND = Pass("candidates")
Case = tuple[Manifest, Any]
N = 12


ROWS = [
    make_canary_row("a", canary="c/0"),
    make_canary_row("b", canary="c/0", before="Bad. It was cold and I will never. "),
    make_canary_row("c", canary="c1", seed=2, format="login", before=""),
    make_canary_row("d", canary="c2", seed=3, format="reset", before="She said: "),
    make_example(
        "e",
        "Contact Maria Jones today. The service was good.\nLabel:",
        pii={"Maria Jones": "NAME"},
        split="test",
    ),
]


def checkpoint(folder: Path, make_model: Any, tokenizer: Any) -> Any:
    make_model("llama").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return open_checkpoint(str(folder), name="base", device="cpu")


@pytest.fixture(scope="module", params=[True, False], ids=["bos", "no bos"])
def case(request, tmp_path_factory, make_model, make_tokenizer) -> Case:
    """A real manifest of real scores, and the checkpoint it was built from."""
    folder = tmp_path_factory.mktemp("model")
    loaded = checkpoint(folder, make_model, make_tokenizer(bos=request.param))
    manifest = build_manifest(
        ROWS,
        loaded,
        name="small",
        caliper=2.0,
        n_candidates=N,
        preset="paper",
        max_length=90,  # cuts the beginning of some rows
    )
    return manifest, loaded


def keys_of(manifest: Manifest) -> list[str]:
    """All ranked sets."""
    return [
        key_of("canary", canary.canary_id, canary.part, context.example)
        for canary in manifest.canaries
        for context in canary.contexts
        if canary.true_index is not None
    ]


def has_bos(loaded: Any) -> bool:
    return bool(loaded.tokenizer("x")["input_ids"][0] == 1)


def test_scores_are_those_of_each_row_with_the_string_replaced(case):
    import torch

    manifest, loaded = case
    keys = keys_of(manifest)
    assert len(keys) >= 9
    cut = [e.id for e in manifest.examples if e.kept[0] > 0]
    assert any(key.endswith(f":{item}") for key in keys for item in cut)
    items = items_for(manifest, loaded, {KIND: keys})[KIND]
    scored = score(loaded, items, passes=[KIND])
    assert scored.notes == ()
    model = loaded.model.double()
    for canary in manifest.canaries:
        for context in canary.contexts:
            key = key_of("canary", canary.canary_id, canary.part, context.example)
            if key not in keys:
                continue
            example = manifest.by_id[context.example]
            text = example.prompt + example.response
            (true,) = encode(loaded.tokenizer, [text])
            span = true.span(context.char_start, context.char_end)
            table = scored[KIND]
            rows = table.rows(key)
            for i, string in enumerate(canary.candidates):
                text_with_string = (
                    text[: context.char_start] + string + text[context.char_end :]
                )
                (encoding,) = encode(loaded.tokenizer, [text_with_string])
                fed, positions = encoding.model_input(example.kept)
                ids = torch.from_numpy(fed.astype(np.int64))[None]
                with torch.inference_mode():
                    logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
                logp = torch.log_softmax(logits, -1)
                nll = -logp.gather(1, ids[0, 1:, None])[:, 0].numpy()
                inside = (positions >= span.start) & (positions < span.end)
                expected = nll[inside[1:]]
                assert len(expected) == span.end - span.start
                nll_found = table.columns["nll_mean"][rows][i]
                assert nll_found == pytest.approx(expected.mean(), abs=1e-5)
    loaded.model.float()


def test_the_true_candidate_is_the_row_itself(case):
    manifest, loaded = case
    keys = keys_of(manifest)
    plan = {KIND: keys, Pass(): [e.id for e in manifest.examples]}
    items = items_for(manifest, loaded, plan)
    plain: dict[str, Item] = {item.key: item for item in items[Pass()]}
    sets: dict[str, Candidates] = {item.key: item for item in items[KIND]}
    assert list(sets) == keys
    full_table = score(loaded, items[Pass()])[Pass()]
    for canary in manifest.canaries:
        if canary.true_index is None:
            continue
        for context in canary.contexts:
            candidate_set = sets[
                key_of("canary", canary.canary_id, canary.part, context.example)
            ]
            assert len(candidate_set.continuations) == N
            assert {len(ids) for ids in candidate_set.continuations} == {
                len(candidate_set.continuations[0])
            }
            assert len({ids.tobytes() for ids in candidate_set.continuations}) == N
            row = plain[context.example].ids
            true = np.append(
                candidate_set.prefix, candidate_set.continuations[canary.true_index]
            )
            np.testing.assert_array_equal(true, row[: len(true)])
            if canary.n_tokens and context is canary.contexts[0]:
                assert len(candidate_set.continuations[0]) == canary.n_tokens
            # The plain pass says the same of it.
            table = score(loaded, [candidate_set], passes=[KIND])[KIND]
            end = len(true) - 1
            start = len(candidate_set.prefix) - 1
            nll = full_table.columns["nll"][full_table.rows(context.example)][start:end]
            assert table.columns["nll_sum"][canary.true_index] == pytest.approx(
                nll.sum(), rel=1e-4
            )


def test_a_coin_is_a_canary_and_its_neighbour_among_the_candidates(case):
    manifest, loaded = case
    item_by_key = {
        item.key: item
        for item in items_for(manifest, loaded, {KIND: keys_of(manifest)})[KIND]
    }
    coins = 0
    for canary in manifest.canaries:
        if canary.part != "full" or canary.true_index is None:
            continue
        row = canary.contexts[0].example
        key = key_of("coin", canary.canary_id, row)
        first_index = canary.true_index - canary.true_index % 2
        canary_item = item_by_key[key_of("canary", canary.canary_id, "full", row)]
        (pair,) = items_for(manifest, loaded, {KIND: [key]})[KIND]
        assert [ids.tolist() for ids in pair.continuations] == [
            ids.tolist()
            for ids in canary_item.continuations[first_index : first_index + 2]
        ]
        assert np.array_equal(pair.prefix, canary_item.prefix)
        coins += 1
    assert coins


def test_a_canary_that_begins_a_text_has_a_bos_before_it_or_is_not_ranked(case):
    manifest, loaded = case
    key = key_of("canary", "c1", "full", "c")
    if has_bos(loaded):
        (item,) = items_for(manifest, loaded, {KIND: [key]})[KIND]
        assert item.prefix.tolist() == [1]
    else:
        assert key not in keys_of(manifest)
        with pytest.raises(InputError, match=f"^candidates {key!r}: "):
            items_for(manifest, loaded, {KIND: [key]})


def changed(manifest: Manifest, index: int, **fields: Any) -> Manifest:
    canaries = list(manifest.canaries)
    canaries[index] = canaries[index].model_copy(update=fields)
    return manifest.model_copy(update={"canaries": canaries})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # Another number of tokens; as many, but not only its own; a true one that is
        # not the row's.
        (lambda c: {"candidates": [*c.candidates[:-1], "x"]}, "changes tokens around"),
        (lambda c: {"true_index": (c.true_index + 1) % N}, "changes tokens around"),
        (
            lambda c: {"candidates": [], "true_index": None, "reason": "too few"},
            "too few",
        ),
        (lambda c: {"contexts": c.contexts[:0]}, "has no such set"),
    ],
)
def test_a_set_that_does_not_fit_its_row_is_refused(change, message, case):
    manifest, loaded = case
    canary = manifest.canaries[0]
    key = key_of("canary", canary.canary_id, canary.part, canary.contexts[0].example)
    changed_manifest = changed(manifest, 0, **change(canary))
    with pytest.raises(InputError, match=message) as caught:
        items_for(changed_manifest, loaded, {KIND: [key]})
    assert repr(key) in str(caught.value)
    assert not any(string in str(caught.value) for string in canary.candidates)


def test_a_string_that_was_cut_off_is_refused(case):
    manifest, loaded = case
    canary = next(c for c in manifest.canaries if c.part == "ssn")
    row = canary.contexts[0].example
    examples = [
        e.model_copy(update={"kept": (0, 10)}) if e.id == row else e
        for e in manifest.examples
    ]
    short = manifest.model_copy(update={"examples": examples})
    short.__dict__.pop("by_id", None)
    key = key_of("canary", canary.canary_id, "ssn", row)
    with pytest.raises(InputError, match=f"^candidates {key!r}: "):
        items_for(short, loaded, {KIND: [key]})


# --- prompts without a manifest -------------------------------------------------------


def prompt_rows(
    tokenizer: Any, *rows: tuple[str, str, str, str]
) -> list[tuple[Example, Encoding]]:
    """Rows of ``(key, task, prompt, response)``."""
    examples = [
        Example(key, task, prompt, response, "train", key)
        for key, task, prompt, response in rows
    ]
    texts = encode(tokenizer, [example.text for example in examples])
    return [*zip(examples, texts, strict=True)]


def test_prompts_of_plain_rows_are_those_of_a_manifest(case):
    manifest, loaded = case
    rows = prompt_rows(
        loaded.tokenizer, *((e.id, e.task, e.prompt, e.response) for e in ROWS)
    )
    starts = {row.id: text.first_token_past(len(row.prompt)) for row, text in rows}
    assert starts == {e.id: e.response_token for e in manifest.examples}
    keys = ["e", "a", "d"]
    items = row_prompts(rows, keys, limit=manifest.settings.max_length)
    expected = items_for(manifest, loaded, {Pass("generate"): keys})[Pass("generate")]
    assert [item.key for item in items] == keys
    for item, expected_item in zip(items, expected, strict=True):
        assert item.content() == expected_item.content()


def test_rows_that_are_not_asked_bound_the_answers(tiny_tokenizer):
    rows = prompt_rows(
        tiny_tokenizer,
        ("a", "t", "The food. Label:", " good"),
        ("b", "t", "The news. Label:", " zzzzzzzz"),
        ("c", "u", "Label:", " good"),
    )
    size = [len(text) - text.first_token_past(len(row.prompt)) for row, text in rows]
    assert size[1] > size[0] == size[2]
    (item,) = row_prompts(rows, ["a"], limit=None)
    assert item.labels == (" good", " zzzzzzzz")
    assert item.max_new_tokens == size[1] + MORE_TOKENS
    np.testing.assert_array_equal(
        item.ids, tiny_tokenizer("The food. Label:")["input_ids"]
    )
    (item,) = row_prompts(rows, ["c"], limit=None)
    assert item.max_new_tokens == size[2] + MORE_TOKENS
    # Half of a small context at most is the answer's.
    (item,) = row_prompts(rows, ["a"], limit=10)
    assert (len(item.ids), item.max_new_tokens) == (5, 5)
    assert item.ids[0] == 1


def test_a_response_without_a_token_begins_at_the_texts_end(tiny_tokenizer):
    (encoding,) = encode(tiny_tokenizer, ["Label:"])
    assert encoding.first_token_past(6) == len(encoding)
    assert encoding.first_token_past(0) == 1
