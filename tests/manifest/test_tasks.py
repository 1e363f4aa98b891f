"""A manifest of data alone, and what the utility audit's passes read of it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from marked import make_example

from spark_audit.audits import about, all_audits, find
from spark_audit.errors import InputError
from spark_audit.manifest.content import digest
from spark_audit.manifest.encodings import key_of, task_labels
from spark_audit.manifest.file import check_fit, read_manifest, write_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import MORE_TOKENS, items_for
from spark_audit.manifest.task_manifest import task_manifest
from spark_audit.scoring.table import Pass

GENERATE = Pass("generate")
CANDIDATES = Pass("candidates")


def with_fields(loaded: Any, **fields: Any) -> Any:
    methods = {
        "has_rows_of": lambda *_: False,
        "scored_tokenizer_sha256": loaded.tokenizer_sha256,
    }
    return SimpleNamespace(**{**methods, **vars(loaded), **fields})


# --- the manifest ---------------------------------------------------------------------


def test_it_is_a_manifest_like_any_other(tmp_path, rows, reference):
    made = task_manifest(rows, reference, name="tasks")
    assert made.digest == digest(made.model_dump(mode="json"))
    write_manifest(made, tmp_path / "m.json")
    assert read_manifest(tmp_path / "m.json") == made
    assert [e.id for e in made.examples] == [row.id for row in rows]
    assert made.notes == [
        "made of data alone, for `utility` only: it holds no reference scores"
    ]
    example = made.by_id["fomc-00"]
    tokens = len(reference.tokenizer(example.prompt + example.response)["input_ids"])
    assert example.reference_unll == [None] * tokens
    assert example.spans[0].token_start is not None
    assert made.counts["examples"] == 33
    assert made.counts["tokens_scored"] == 0


def test_other_data_have_another_digest(rows, reference):
    made = task_manifest(rows, reference, name="tasks")
    assert made.digest == task_manifest(rows, reference, name="other").digest
    assert made.digest != task_manifest(rows[1:], reference, name="tasks").digest
    changed = [replace(rows[0], response=" bad"), *rows[1:]]
    assert made.digest != task_manifest(changed, reference, name="tasks").digest


def test_adapters_of_another_base_are_refused(rows, reference):
    made = task_manifest(rows, reference, name="tasks")
    loaded = with_fields(reference, shape={})
    assert check_fit(made, loaded, base_sha256="a" * 64) == []
    with pytest.raises(InputError, match="^checkpoint .*ffffffffffff"):
        check_fit(made, loaded, base_sha256="f" * 64)


@pytest.mark.parametrize("audit", [a for a in all_audits() if a != "utility"])
def test_other_audits_have_nothing_to_work_on(audit, rows, reference):
    """They say so, they do not crash."""
    made = task_manifest(rows, reference, name="tasks")
    assert find(audit)().plan(made) == {}
    result = find(audit)()({"x": {}}, made)
    assert all(row.status == "not_estimable" for row in result.results)
    # Of stages nothing is said where there is no series.
    assert bool(result.verdict) == bool(about(audit).nothing)


# --- prompts --------------------------------------------------------------------------


def prompt_of(made: Manifest, loaded: Any, key: str) -> Any:
    (item,) = items_for(made, loaded, {GENERATE: [key]})[GENERATE]
    return item


def test_a_prompt_is_the_joint_tokenisation_before_the_response(rows, reference):
    made = task_manifest(rows, reference, name="tasks")
    item = prompt_of(made, reference, "fomc-00")
    tokenizer, example = reference.tokenizer, made.by_id["fomc-00"]
    joint = tokenizer(example.prompt + example.response)["input_ids"]
    assert item.ids.tolist() == joint[: len(item.ids)]
    assert tokenizer.decode(joint[len(item.ids) :]) == example.response
    assert item.target == example.response
    assert item.max_new_tokens == len(joint) - len(item.ids) + MORE_TOKENS


def test_a_prompt_that_ends_in_a_blank(reference):
    """Alone, its blank is a token that the joint tokenisation does not have."""
    made = task_manifest(
        [make_example("r", "Text: cold food. Label: ", "bad")], reference, name="t"
    )
    item = prompt_of(made, reference, "r")
    tokenizer = reference.tokenizer
    alone = tokenizer("Text: cold food. Label: ")["input_ids"]
    assert item.ids.tolist() == alone[:-1]
    assert tokenizer.decode(alone[-1:]) == " "


def test_room_is_for_the_tasks_longest_label(reference):
    made = task_manifest(
        [
            make_example("a", "one two three", " good"),
            make_example("b", "four five six", " zzzzzzzz"),
            make_example("c", "seven eight", " good", task="fomc"),
        ],
        reference,
        name="t",
    )
    sizes = {
        key: prompt_of(made, reference, key).max_new_tokens for key in ("a", "b", "c")
    }
    long = len(reference.tokenizer(" zzzzzzzz", add_special_tokens=False)["input_ids"])
    short = len(reference.tokenizer(" good", add_special_tokens=False)["input_ids"])
    assert sizes == {"a": long + 4, "b": long + 4, "c": short + 4}


def test_a_long_prompt_loses_its_beginning_and_keeps_its_bos(reference):
    small = with_fields(reference, max_positions=24)
    prompt = "service food cold good fine rate raised basis points news Label:"
    made = task_manifest([make_example("r", prompt, " good")], small, name="t")
    item = prompt_of(made, small, "r")
    assert item.n_tokens == 24
    joint = reference.tokenizer(prompt + " good")["input_ids"]
    end = made.by_id["r"].response_token
    assert item.ids[0] == joint[0] == reference.tokenizer.bos_token_id
    assert item.ids[1:].tolist() == joint[end - len(item.ids) + 1 : end]


def test_rows_that_cannot_be_asked(make_tokenizer, reference):
    made = task_manifest(
        [make_example("r", "some text", " "), make_example("s", "more", " good")],
        reference,
        name="t",
    )
    with pytest.raises(InputError, match="^example 'r': "):
        prompt_of(made, reference, "r")
    with pytest.raises(InputError, match="'s'"):
        items_for(made, reference, {CANDIDATES: [key_of("labels", "s")]})
    bare = with_fields(reference, tokenizer=make_tokenizer(bos=False))
    made = task_manifest([make_example("r", "", "good")], bare, name="t")
    with pytest.raises(InputError, match="^example 'r': "):
        prompt_of(made, bare, "r")


# --- labels ---------------------------------------------------------------------------


def test_labels_are_tokenised_as_they_stand_behind_the_prompt(reference):
    answers = (" good", " bad", " very good", " very bad", " good")
    made = task_manifest(
        [make_example(f"r{i}", f"Text {i}. Label:", a) for i, a in enumerate(answers)],
        reference,
        name="t",
    )
    assert task_labels(made) == {"yelp": (" bad", " good", " very bad", " very good")}
    (item,) = items_for(made, reference, {CANDIDATES: [key_of("labels", "r2")]})[
        CANDIDATES
    ]
    assert item.key == key_of("labels", "r2") == "labels:r2"
    tokenizer = reference.tokenizer
    for label, row in zip(task_labels(made)["yelp"], item.continuations, strict=True):
        joint = tokenizer("Text 2. Label:" + label)["input_ids"]
        assert [*item.prefix.tolist(), *row.tolist()] == joint
    # A beginning that labels share is scored with them: the prompt ends before it.
    assert tokenizer.decode(item.prefix[1:]) == "Text 2. Label:"


def test_a_label_that_changes_the_prompts_tokens(reference):
    """All candidates then begin where the first of them leaves the others."""
    tokenizer = reference.tokenizer
    prompt = "Text: food. Label: "
    made = task_manifest(
        [make_example("r", prompt, "bad"), make_example("s", prompt + "5", "7")],
        reference,
        name="t",
    )
    (item,) = items_for(made, reference, {CANDIDATES: [key_of("labels", "r")]})[
        CANDIDATES
    ]
    for label, row in zip(("7", "bad"), item.continuations, strict=True):
        joint = tokenizer(prompt + label)["input_ids"]
        assert [*item.prefix.tolist(), *row.tolist()] == joint
    assert tokenizer.decode(item.prefix[1:]) == prompt.rstrip()
    assert tokenizer.decode(item.continuations[0]) == " 7"
    assert tokenizer.decode(item.continuations[1]) == " bad"


def test_free_text_has_no_labels(reference):
    made = task_manifest(
        [make_example(f"r{i}", "Text. Label:", f" word{i}") for i in range(65)],
        reference,
        name="t",
    )
    assert task_labels(made) == {}
    with pytest.raises(InputError, match="'r0'.*64"):
        items_for(made, reference, {CANDIDATES: [key_of("labels", "r0")]})


def test_every_row_is_read_in_the_plans_order(rows, reference):
    made = task_manifest(rows, reference, name="tasks")
    keys = [e.id for e in made.examples][::-1]
    plan = {GENERATE: keys, CANDIDATES: [key_of("labels", key) for key in keys]}
    found = items_for(made, reference, plan)
    assert [item.key for item in found[GENERATE]] == keys
    assert [item.key for item in found[CANDIDATES]] == plan[CANDIDATES]
    assert all(item.ids.dtype == np.int32 for item in found[GENERATE])
