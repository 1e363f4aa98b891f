"""The answer before a training, of the demo's manifest and of changed copies."""

import json
from pathlib import Path
from typing import Any

import pytest

from spark_audit.cli.main import run
from spark_audit.manifest.content import content_of, seal
from spark_audit.manifest.example_schema import ManifestTrainingInput, ManifestTurn
from spark_audit.manifest.file import read_manifest, write_manifest
from spark_audit.manifest.overview import JUDGED_TABLE, describe
from spark_audit.manifest.redaction import redact
from spark_audit.manifest.schema import Manifest
from spark_audit.planning.plan import training_plan
from spark_audit.planning.rows import planned_rows
from spark_audit.planning.shown import shown_plan

DEMO = Path(__file__).parents[2] / "manifests" / "demo.json"


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return read_manifest(DEMO)


def with_examples(manifest: Manifest, changed: dict[str, Any]) -> Manifest:
    """The manifest with some of its examples replaced, by id."""
    examples = [changed.get(one.id, one) for one in manifest.examples]
    return manifest.with_parts(examples=examples)


def plain_rows(manifest: Manifest, split: str) -> list[Any]:
    """Examples of a split with identifiers and without a canary."""
    return [
        one
        for one in manifest.examples
        if one.split == split and one.canary_id is None and one.spans
    ]


def test_rows_are_the_same_from_packed_lists_and_from_objects(manifest):
    unpacked = manifest.with_parts(examples=[*manifest.examples])
    assert planned_rows(unpacked) == planned_rows(manifest)


def test_counts_agree_with_those_of_the_overview(manifest):
    plan = training_plan(manifest)
    judged = describe(manifest).tables[JUDGED_TABLE]
    n_trained = sum(record["trained"] for record in judged)
    n_held_out = sum(record["held out"] for record in judged)
    # In the demo each identifier stands in one row.
    assert plan.repeats.identifiers.total == n_trained
    assert sum(plan.repeats.held_out_by_type.values()) == n_held_out
    assert plan.n_canaries == manifest.counts["canaries"]
    assert not plan.n_canaries_unranked


def test_the_command_answers_in_json(capsys):
    assert run(["manifest", "show", str(DEMO), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    plan = shown["before_training"]
    assert plan["change"] == []
    by_figure = {effect["figure"]: effect for effect in plan["effects"]}
    assert by_figure["memory"]["n_trained"] == 207
    assert by_figure["memory"]["effect"] > 0
    assert plan["epsilons"][0]["needed"]["1.0"] == 47


def test_no_form_of_the_answer_names_anybody(manifest, capsys, tmp_path):
    # Eight copies of a row: its identifiers have a dose of 9, and are left over.
    source = plain_rows(manifest, "train")[0]
    copies = []
    for number in range(8):
        copies.append(
            source.model_copy(
                update={"id": f"copy-{number}", "prompt": f"{source.prompt}[NAME]s"}
            )
        )
    changed = {**content_of(manifest), "examples": [*manifest.examples, *copies]}
    write_manifest(seal(changed), tmp_path / "m.json")
    plan = training_plan(read_manifest(tmp_path / "m.json"))
    assert plan.repeats.highest
    assert plan.leftovers.n_left

    printed = ""
    for option in ("--json", "--verbose", "--markdown", "--quiet"):
        assert run(["manifest", "show", str(tmp_path / "m.json"), option]) == 0
        printed += capsys.readouterr().out
    names = {source.text[span.start : span.end] for span in source.spans}
    for name in names | {one.id for one in (*manifest.examples, *copies)}:
        assert name not in printed


def test_markdown_has_the_tables(capsys):
    assert run(["manifest", "show", str(DEMO), "--markdown"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# ")
    assert "| 207 / 102 |" in text


def test_a_redacted_copy_makes_no_claim_about_texts(manifest):
    redacted = training_plan(redact(manifest))
    whole = training_plan(manifest)
    assert not redacted.has_text
    assert redacted.leftovers is None
    assert shown_plan(redacted).headline != shown_plan(whole).headline
    for figure in ("memory", "exposure", "auc", "reproduced"):
        assert redacted.effect(figure).n_trained == whole.effect(figure).n_trained
        assert redacted.effect(figure).n_held_out == whole.effect(figure).n_held_out
    assert not redacted.n_canaries_unranked


def test_a_copy_in_the_held_out_rows_is_something_to_change(manifest):
    trained = plain_rows(manifest, "train")[0]
    held_out = plain_rows(manifest, "test")[0]
    copy = trained.model_copy(update={"id": held_out.id, "split": "test"})
    plan = training_plan(with_examples(manifest, {held_out.id: copy}))
    assert plan.repeats.n_copied_rows == 1
    assert plan.repeats.n_shared_identifiers == len(trained.spans)
    assert len(shown_plan(plan).changes) == 1


def test_without_canaries_it_is_said_before_the_training(manifest):
    rows = [one for one in manifest.examples if one.canary_id is None]
    plan = training_plan(manifest.with_parts(canaries=[], examples=rows))
    assert len(shown_plan(plan).changes) == 1
    assert plan.effect("exposure").effect is None
    assert plan.effect("exposure").needed[0] > 12
    assert plan.epsilons[0].n == 0


def test_without_held_out_identifiers_it_is_said_before_the_training(manifest):
    changed = {}
    for one in plain_rows(manifest, "test"):
        changed[one.id] = one.model_copy(update={"spans": []})
    plan = training_plan(with_examples(manifest, changed))
    assert plan.effect("memory").effect is None
    assert len(shown_plan(plan).changes) == 1


def test_tokens_in_the_loss_are_those_of_the_examples_mask(manifest):
    changed = {}
    n_with_loss = 0
    n_in_loss = 0
    for number, one in enumerate(plain_rows(manifest, "train")):
        n_tokens = len(one.reference_unll)
        # Loss from a token that moves from row to row; one character is no boundary.
        first = number % n_tokens
        first_character = min(number, len(one.text) - 1)
        training = ManifestTrainingInput(
            special_tokens="added",
            turns=[ManifestTurn(start=0, end=len(one.text), role="user")],
            supervised=[(first_character, len(one.text))],
            supervised_tokens=[(first, n_tokens)],
            max_length=None,
            truncation="end",
            fed_tokens=(0, n_tokens),
            fed_text=(0, len(one.text)),
            token_ids=None,
        )
        changed[one.id] = one.model_copy(update={"training_input": training})
        for span in one.spans:
            has_loss = changed[one.id].had_loss
            n_with_loss += int(has_loss[span.token_start : span.token_end].sum())
            state = changed[one.id].supervision_of(span.start, span.end)
            n_in_loss += state == "in the loss"

    loss = training_plan(with_examples(manifest, changed)).loss
    assert loss.n_tokens_with_loss == n_with_loss > 0
    assert loss.total("in the loss") == n_in_loss > 0
    assert loss.total("read only") > 0
    assert set(loss.by_role) == {"user"}


def test_identifiers_that_the_loss_never_sees_are_something_to_change(manifest):
    changed = {}
    for one in plain_rows(manifest, "train"):
        training = ManifestTrainingInput(
            special_tokens="added",
            turns=[],
            supervised=[(len(one.text) - 1, len(one.text))],
            supervised_tokens=[],
            max_length=None,
            truncation="end",
            fed_tokens=(0, len(one.reference_unll)),
            fed_text=(0, len(one.text)),
            token_ids=None,
        )
        changed[one.id] = one.model_copy(update={"training_input": training})
    plan = training_plan(with_examples(manifest, changed))
    assert plan.loss.total("read only") == plan.loss.n_identifiers
    assert len(shown_plan(plan).changes) == 1


def test_few_groups_are_something_to_change_before_the_training(manifest):
    # Held-out identifiers of ten rows alone are too few for a memory of 25%.
    changed = {}
    for one in plain_rows(manifest, "test")[10:]:
        changed[one.id] = one.model_copy(update={"spans": []})
    plan = training_plan(with_examples(manifest, changed))
    memory = plan.effect("memory")
    assert memory.n_held_out == 10
    assert memory.effect > 0.2 > memory.target
    n_trained, n_held_out = memory.needed
    assert n_held_out > 10
    assert n_trained / n_held_out == pytest.approx(memory.n_trained / 10, rel=0.02)
    assert len(shown_plan(plan).changes) == 1


def test_identifiers_of_one_group_with_twins_count_once(manifest):
    first, second = manifest.twins[:2]
    same = second.model_copy(update={"contexts": first.contexts, "dose": first.dose})
    whole = training_plan(manifest).effect("rise")
    plan = training_plan(manifest.with_parts(twins=[first, same, *manifest.twins[2:]]))
    fewer = plan.effect("rise")
    n_whole = whole.n_trained + whole.n_held_out
    assert fewer.n_trained + fewer.n_held_out == n_whole - 1
