"""Checkpoints out of bug reports of other projects, each with its right answer."""

import pytest
import torch
from refusals import opened, problem_of, reference_of, refused, said
from shared_cases import made
from tiny_models import make_model

from spark_audit.manifest.file import read_manifest

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    """``made_once(name)``: the folder of a case's models."""
    folders = {}

    def make(name):
        if name not in folders:
            with pytest.MonkeyPatch.context() as patch:
                folders[name] = made(name, tmp_path_factory.mktemp("case"), patch)
        return folders[name]

    return make


@pytest.fixture(scope="module")
def trained():
    """Logits of the weights that the cases save."""
    return said(make_model(seed=1))


@pytest.mark.parametrize("name", ["targets-lm_head", "embeddings-saved"])
def test_copies_of_a_tied_head_in_an_adapter_compute_as_peft_does(name, made_once):
    folder = made_once("L03-tied-head-copies-in-adapter")
    base = folder / "base"
    adapter = folder / name
    expected = said(reference_of(base, adapter))
    assert torch.allclose(said(opened(adapter, base=base)), expected, rtol=0, atol=1e-6)
    assert not problem_of(adapter, base=base)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("L08-deepspeed-folder", "run/checkpoint-10"),
        ("L09-zero_to_fp32-writes-a-folder", "run"),
        ("L11-folders-of-other-trainers", "accelerate-state"),
        ("L11-folders-of-other-trainers", "value-head"),
    ],
)
def test_a_reported_folder_opens_as_the_model_that_was_saved(
    case, name, made_once, trained
):
    folder = made_once(case)
    loaded = opened(folder / name, base=folder / "base")
    assert torch.equal(said(loaded), trained)
    assert not problem_of(folder / name, base=folder / "base")
    assert not any("trust-remote-code" in note for note in loaded.notes)


def test_reported_epochs_are_a_series(made_once):
    folder = made_once("L11-folders-of-other-trainers")
    base = folder / "base"
    for source, stage in (("epochs", "epoch_1"), ("epochs@1", "epoch_0")):
        loaded = opened(folder / source, base=base)
        expected = said(reference_of(base, folder / "epochs" / stage))
        assert torch.allclose(said(loaded), expected, rtol=0, atol=1e-6)
        assert any(stage in note for note in loaded.notes)
    refused(folder / "torchtune", "write epoch_0@full", base=base)


def test_reported_shards_are_refused_with_the_command(made_once):
    folder = made_once("L11-folders-of-other-trainers")
    shards = folder / "fsdp/checkpoint-10"
    refused(shards, "accelerate merge-weights", base=folder / "base")


def test_reported_rows_with_a_bos_of_their_own_are_noted(made_once, tmp_path):
    from spark_audit.cli.main import run

    folder = made_once("T01-two-bos")
    output = tmp_path / "m.json"
    words = ["manifest", "build", "--base", folder / "base", "--device", "cpu"]
    words += ["--data", folder / "rows.jsonl", "-o", output]
    assert run([str(word) for word in words]) == 0
    notes = read_manifest(output).notes
    assert any(note.startswith("12 of 12 rows begin with <s>") for note in notes)
