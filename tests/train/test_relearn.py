"""Relearning goes on from exactly the checkpoint that audits open, without PII."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from run_training import relearn

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.data.examples import (
    Canary,
    Example,
    Span,
    read_examples,
    write_examples,
)
from spark_audit.data.occurrences import without_identifiers
from spark_audit.errors import InputError
from spark_train.cli import run


def example(key: str, text: str, **more: Any) -> Example:
    facts = {"id": key, "task": "t", "prompt": text, "response": " yes"}
    facts |= {"split": "train", "source_id": key}
    return Example(**{**facts, **more})


PLAIN = [
    example(f"plain-{i}", f"The service was {word} and the food was cold.\nLabel:")
    for i, word in enumerate(["good", "bad", "read", "fine", "called"])
]
OTHERS = [
    example("annotated", "Ask Jones.\nLabel:", spans=(Span(4, 9, "NAME"),)),
    example("rules", "Mail to maria.jones@example.org today.\nLabel:"),
    example("canary", "A fine day.\nLabel:", canary=Canary("c", "colon", 1, False, 0)),
    example("elsewhere", "Then JONES came.\nLabel:"),
    example("blank", "Nothing was said.\nLabel:", response=" "),
    example("test", "A test row.\nLabel:", split="test"),
]
LEFT_OUT = {"canary": 1, "annotated": 1, "rules": 1, "elsewhere": 1, "blank": 1}


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    write_examples(path, [*PLAIN, *OTHERS])
    return path


def test_rows_with_an_identifier_are_left_out():
    kept_rows, left_out = without_identifiers([*PLAIN, *OTHERS])
    assert kept_rows == PLAIN
    assert left_out == LEFT_OUT
    why = "canary 1, annotated 1, rules 1, elsewhere 1, blank 1"
    with pytest.raises(InputError, match=why):
        without_identifiers(OTHERS)


def test_identifiers_annotated_in_other_rows_count():
    def spanned(key: str, text: str, string: str, **more: Any) -> Example:
        start = text.index(string)
        return example(
            key, text, spans=(Span(start, start + len(string), "NAME"),), **more
        )

    annotated = [
        spanned("a", "So said Straße 12 here.\nLabel:", "Straße 12"),
        spanned("b", "So said  Qo  here.\nLabel:", " Qo ", split="test"),
        spanned("c", "Call Annabelle-Lee Longname.\nLabel:", "Annabelle-Lee Longname"),
    ]
    rows_left_out = [
        example("d", "In STRASSE 12.\nLabel:"),
        example("e", "And qo, too.\nLabel:"),
        example("f", "Qo", response=" so"),
        example("g", "Of Annabelle-Lee Longnames.\nLabel:"),
        # Over the border between prompt and response.
        example("h", "Annabelle-Lee", response=" Longname"),
    ]
    rows_kept = [
        example("i", "A qoke.\nLabel:"),
        example("j", "In Strasse 1 2.\nLabel:"),
        example("k", "Annabelle-Lee Longnam.\nLabel:"),
    ]
    rows_found, left_out = without_identifiers([*rows_left_out, *rows_kept, *annotated])
    assert rows_found == rows_kept
    assert left_out["elsewhere"] == len(rows_left_out)


def mean_nll(loaded: Any) -> float:
    """Of the plain rows' texts with EOS, by the model itself."""
    total = 0.0
    count = 0
    for row in PLAIN:
        ids = loaded.tokenizer(row.text)["input_ids"] + [loaded.tokenizer.eos_token_id]
        tensor = torch.tensor([ids])
        with loaded.active() as model:
            logp = model(input_ids=tensor).logits[0, :-1].log_softmax(-1)
        total -= float(logp.gather(1, tensor[0, 1:, None]).sum())
        count += len(ids) - 1
    return total / count


def relearned(ckpt: Path, data: Path, output: Path, **options: Any) -> dict[str, Any]:
    options = {"steps": 8, "lr": 1e-3, "batch_size": 5} | options
    return relearn(ckpt=str(ckpt), data=[data], output=output, device="cpu", **options)


def test_an_adapter_is_trained_on(data, tiny_base, tmp_path, make_adapter):
    adapter = make_adapter(tmp_path / "adapter", seed=3)
    base = str(tiny_base)
    before = {p.name: p.read_bytes() for p in adapter.iterdir()}
    out = tmp_path / "out"
    facts = relearned(adapter, data, out, base=base)
    # Batches of all five rows: the first loss is that of the checkpoint itself.
    start = open_checkpoint(str(adapter), base=base, device="cpu")
    assert facts["losses"][0] == pytest.approx(mean_nll(start), abs=1e-4)
    assert (facts["rows"]["used"], len(facts["losses"])) == (5, 8)
    end = open_checkpoint(str(out), base=base, device="cpu")
    assert end.format == "peft-adapter"
    assert mean_nll(end) < facts["losses"][-1] < facts["losses"][0]
    # The adapter goes on: its configuration stays, and the original is untouched.
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 8)
    assert sorted(config["target_modules"]) == ["q_proj", "v_proj"]
    assert {p.name: p.read_bytes() for p in adapter.iterdir()} == before
    record = json.loads((out / "relearn.json").read_text())
    assert record == facts
    assert record["rows"] == {"used": 5, "left_out": LEFT_OUT}
    assert record["settings"]["steps"] == 8
    trained_on = json.loads((out / "trained_on.json").read_text())
    assert trained_on["base_sha256"] == start.base_sha256
    assert record["checkpoint"]["weights_sha256"] == start.weights_sha256
    assert "Jones" not in (out / "relearn.json").read_text()


def test_full_weights_stay_full_weights(data, tiny_base, tmp_path):
    # Its configuration says that the head is tied; the file holds both.
    model = tmp_path / "model"
    out = tmp_path / "out"
    shutil.copytree(tiny_base, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(
        json.dumps(config | {"tie_word_embeddings": True})
    )
    facts = relearned(model, data, out)
    start, model_alone = (open_checkpoint(str(p), device="cpu") for p in (model, out))
    assert facts["losses"][0] == pytest.approx(mean_nll(start), abs=1e-4)
    # Another base cannot be put under it: what was trained is all there.
    assert model_alone.format == "hf-folder"
    assert model_alone.tokenizer_sha256 == start.tokenizer_sha256
    assert mean_nll(model_alone) < facts["losses"][0]
    # Nothing but the attention projections has changed.
    before = start.model.state_dict()
    after = model_alone.model.state_dict()
    assert before.keys() == after.keys()
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert changed == {n for n in before if "self_attn" in n}


def test_an_adapter_that_is_no_lora_is_refused(data, tiny_base, tmp_path):
    from peft import IA3Config, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    names = {"target_modules": ["k_proj"], "feedforward_modules": []}
    ia3_model = get_peft_model(model, IA3Config(task_type="CAUSAL_LM", **names))
    for name, weight in ia3_model.named_parameters():
        if "ia3" in name:
            torch.nn.init.constant_(weight, 0.5)
    ia3_model.save_pretrained(tmp_path / "ia3")
    with pytest.raises(InputError, match=f"^{tmp_path / 'ia3'}: .*LoRA"):
        relearned(tmp_path / "ia3", data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_over(data, tiny_base, tmp_path, capsys):
    arguments = ["relearn", str(tiny_base), "--data", str(data), "--device", "cpu"]
    arguments += ["--steps", "2", "--quiet", "-o"]
    assert run([*arguments, str(tmp_path)]) == 2
    assert f"error: {tmp_path}: " in capsys.readouterr().err
    assert run([*arguments, str(data)]) == 2
    assert read_examples(data)
    assert run([*arguments, str(tmp_path / "new"), "--lr", "0"]) == 2
    assert "--lr: 0.0 " in capsys.readouterr().err
    assert run([*arguments, str(tmp_path / "new"), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["checkpoint"] == str(tmp_path / "new")
    assert all(math.isfinite(loss) for loss in output["losses"])
