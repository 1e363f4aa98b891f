"""One token more than the base has: in a row that was added, or in a spare one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import opened, problem_of, refused
from tiny_models import make_model, make_tokenizer, save_model

from spark_audit.checkpoints.open import OpenCheckpoints
from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.cli.main import run
from spark_audit.errors import InputError
from spark_audit.scoring.added_rows import added_mass
from spark_audit.scoring.item_checks import check_reads_as_base
from spark_audit.scoring.items import Item
from spark_audit.scoring.score import score

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
MARK = "<|mark|>"


def grown(folder: Path, base: Path, *, spare: bool = False) -> Path:
    """Save LoRA with one token more and its tokenizer, as TRL's scripts do."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    tokenizer = make_tokenizer()
    tokenizer.add_tokens([MARK])
    model = AutoModelForCausalLM.from_pretrained(base)
    if not spare:
        model.resize_token_embeddings(len(tokenizer))
    lora = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        model = get_peft_model(model, lora)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["apart", "tied", "spare"])
def pair(request, tmp_path_factory) -> tuple[Path, Path]:
    """A base and an adapter with one token more."""
    folder = tmp_path_factory.mktemp("grown")
    settings: dict[str, Any] = {"tie_word_embeddings": request.param == "tied"}
    if request.param == "spare":
        settings["vocab_size"] = 304
    base = save_model(make_model(**settings), folder / "base")
    return base, grown(folder / "a", base, spare=request.param == "spare")


def test_figures_are_over_the_tokens_of_both(pair):
    base, adapter = pair
    loaded = opened(adapter, base=base)
    assert loaded.usable.sum() == 300
    assert np.flatnonzero(loaded.added).tolist() == [300]
    assert not loaded.usable[300]
    assert any("1 tokens more than the base's" in note for note in loaded.notes)
    assert not problem_of(adapter, base=base)
    ids = np.array([1, 47, 91, 223, 80], np.int32)
    item = Item("a", ids, np.arange(5, dtype=np.int32))
    with loaded.active() as model:
        logits = model(input_ids=torch.tensor(ids[None]).long()).logits[0].double()
    shared_nll = logits[:, :300].log_softmax(-1)[torch.arange(4), ids[1:]]
    ((_, table),) = score(loaded, [item], progress=False).items()
    assert np.abs(table.columns["nll"] + shared_nll.numpy()).max() < 1e-5
    mass = logits[:4, :301].softmax(-1)[:, 300].numpy()
    assert np.abs(added_mass(loaded, [item]) - mass).max() < 1e-5


def test_an_added_token_that_ends_answers_is_told(pair, copied):
    """It is left out with the others, so that no answer ends with it."""
    base, adapter = pair
    folder = copied(adapter)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([MARK])
    tokenizer.eos_token = MARK
    tokenizer.save_pretrained(folder)
    notes = [note for note in opened(folder, base=base).notes if "ends its" in note]
    assert len(notes) == 1
    assert MARK in notes[0]
    assert not any("ends its" in note for note in opened(adapter, base=base).notes)


def test_a_text_that_holds_the_added_token_is_refused_by_name(pair):
    base, adapter = pair
    loaded = opened(adapter, base=base)
    shared_item = Item(
        "plain", np.array([1, 47, 91], np.int32), np.arange(3, dtype=np.int32)
    )
    marked = Item("r3", np.array([1, 300, 91], np.int32), np.arange(3, dtype=np.int32))
    check_reads_as_base(loaded, [shared_item])
    with pytest.raises(InputError, match="^checkpoint .*'r3'"):
        check_reads_as_base(loaded, [shared_item, marked])


def test_the_base_has_its_own_rows(pair):
    base, adapter = pair
    rows = len(opened(base).usable)
    opened_both = OpenCheckpoints([Spec("a", (str(adapter),))], Loading(base=str(base)))
    loaded_base, loaded_adapter = opened_both.each()
    assert (loaded_base.name, len(loaded_base.usable)) == ("base", rows)
    assert loaded_base.added is None
    assert loaded_adapter.base_sha256 == loaded_base.weights_sha256


def test_a_tokenizer_with_other_rules_is_no_grown_one(pair, tmp_path, copied):
    base, adapter = pair
    folder = copied(adapter)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"][0]["lstrip"] = True
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert "does not fit the base: " in problem_of(folder, base=base)


def test_rows_that_are_not_in_the_file_are_missed(pair, copied):
    from safetensors.torch import load_file, save_file

    base, adapter = pair
    folder = copied(adapter)
    file = folder / "adapter_model.safetensors"
    state = {key: t for key, t in load_file(file).items() if ".lora_" in key}
    save_file(state, file, metadata={"format": "pt"})
    if len(opened(base).usable) > 300:
        assert opened(folder, base=base).added is not None
    else:
        refused(folder, "save_embedding_layers=True", base=base)


def test_an_audit_says_what_the_added_token_holds(pair, tmp_path, capsys):
    base, adapter = pair
    rows = []
    for number in range(12):
        prompt = f"Contact John Smith or call 555-01{number:02d} today."
        row = {"id": f"r{number}", "task": "t", "split": "train", "prompt": prompt}
        rows.append(row | {"response": " Thank you."})
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = str(tmp_path / "m.json")
    build = ["manifest", "build", "--base", str(base), "--data", str(data), "-o"]
    assert run([*build, manifest]) == 0
    arguments = ["nll", "--ckpt", f"a={adapter}", "--base", str(base), "--jobs", "1"]
    out = tmp_path / "out"
    assert run([*arguments, "--manifest", manifest, "-o", str(out)]) == 0
    report = json.loads((out / "report.json").read_text())
    notes = {
        checkpoint["name"]: checkpoint["notes"] for checkpoint in report["checkpoints"]
    }
    assert any("added token holds" in note for note in notes["a"])
    assert not any("added token holds" in note for note in notes.get("base", []))
    # A row with the token would be read otherwise, and is named.
    rows[3]["prompt"] = f"Contact John Smith {MARK} today."
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    other_manifest = str(tmp_path / "other.json")
    assert run([*build, other_manifest]) == 0
    capsys.readouterr()
    assert (
        run([*arguments, "--manifest", other_manifest, "-o", str(tmp_path / "no")]) == 2
    )
    said_of_it = capsys.readouterr().err
    assert "r3" in said_of_it
    assert MARK not in said_of_it


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_several_processes_say_what_one_says(engine, pair, tmp_path, capsys):
    """Notes on added tokens and figures do not depend on who scores."""
    if engine == "ray":
        pytest.importorskip("ray", reason="Ray is not installed")
    base, adapter = pair
    rows = []
    for number in range(12):
        prompt = f"Contact John Smith or call 555-01{number:02d} today."
        row = {"id": f"r{number}", "task": "t", "split": "train", "prompt": prompt}
        rows.append(row | {"response": " Thank you."})
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = str(tmp_path / "m.json")
    build = ["manifest", "build", "--base", str(base), "--data", str(data), "-o"]
    assert run([*build, manifest]) == 0

    arguments = ["nll", "--ckpt", f"a={adapter}", "--base", str(base)]
    arguments += ["--manifest", manifest, "--device", "cpu", "-o"]
    several = ["--jobs", "2"] if engine == "local" else ["--engine", "ray"]
    reports = []
    for name, processes in (("one", ["--jobs", "1"]), ("several", several)):
        code = run([*arguments, str(tmp_path / name), *processes])
        # Ray gives its processes 30 s to start: a busy machine takes longer.
        if code and "timed out during startup" in capsys.readouterr().err:
            pytest.skip("Ray did not start in time")
        assert code == 0
        reports.append(json.loads((tmp_path / name / "report.json").read_text()))

    notes = []
    figures = []
    for report in reports:
        (own_facts,) = [
            checkpoint
            for checkpoint in report["checkpoints"]
            if checkpoint["name"] == "a"
        ]
        notes.append([note for note in own_facts["notes"] if "added token" in note])
        values = [row["value"] for row in report["results"] if row.get("value")]
        figures.append(values)
    assert notes[0]
    assert notes[0] == notes[1]
    assert figures[0]
    assert figures[0] == pytest.approx(figures[1], abs=3e-6)
