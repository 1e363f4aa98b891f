"""Files of others that hang, take memory or contradict themselves are refused."""

import base64
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from clocks import limited
from importing import import_examples
from refusals import (
    change,
    load_tokenizer,
    opened,
    problem_of,
    reference_of,
    refused,
    said,
)
from safetensors.torch import save_file
from tiny_models import save_model

from spark_audit.checkpoints.run_record import read_run
from spark_audit.data.examples import read_examples
from spark_audit.errors import SparkError
from spark_audit.manifest.file import read_manifest
from spark_audit.report.folder import read_report
from spark_audit.scoring.table import read_parquet
from spark_train.run_folder import Folder

SECONDS = 30
LORA_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(autouse=True)
def hurry():
    """What hangs is a failure, not a wait."""

    with limited(cpu=SECONDS, wall=10 * SECONDS):
        yield


def test_files_that_name_or_hold_themselves(tiny_base, copied, tmp_path):
    folder = copied(tiny_base)
    archive = tmp_path / "quine.bin"
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": index.name}}))
    refused(folder, f"{index.name} is refused")
    for _ in range(3):
        inner = archive.read_bytes() if archive.exists() else b""
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("quine.bin", inner)
    refused(archive, "quine.bin cannot be read as weights", base=tiny_base)


def test_a_pickle_that_is_larger_than_its_file(tiny_base, tmp_path):
    wide = tmp_path / "wide.bin"
    packed = tmp_path / "packed.bin"
    torch.save({"lm_head.weight": torch.zeros(1).expand(10**6, 10**6)}, wide)
    message = "tensor lm_head.weight is not stored number by number"
    refused(wide, message, base=tiny_base)
    torch.save({"lm_head.weight": torch.zeros(1000, 1000)}, wide)
    with zipfile.ZipFile(wide) as old:
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
            for part in old.namelist():
                new.writestr(part, old.read(part))
    refused(packed, "is a packed archive", base=tiny_base)


OF_ADAPTER = (
    *("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"),
    *("trained_on.json", "frozen_noise.safetensors"),
)
FILES = (
    *("config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json"),
    *("vocab.txt", "chat_template.jinja", "generation_config.json", *OF_ADAPTER),
)
"""Of a checkpoint, as one library or another reads them."""


@pytest.mark.parametrize("name", FILES)
def test_a_fifo_as_a_file_of_a_checkpoint_is_refused(
    name, tiny_base, make_adapter, copied, tmp_path
):
    adapter = name in OF_ADAPTER
    folder = make_adapter(tmp_path / "a") if adapter else copied(tiny_base)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    refused(folder, "neither file nor folder", base=tiny_base)
    refused(folder / name, "is neither file nor folder", base=tiny_base)


def readers(folder: Path) -> list[Callable[[], object]]:
    """Whatever reads data of a folder: ``x.jsonl`` and ``report.json``."""
    rows = folder / "x.jsonl"
    return [
        lambda: read_examples(rows),
        lambda: read_manifest(folder / "report.json"),
        lambda: read_report(folder),
        lambda: import_examples(rows, task="t", split="train"),
    ]


def test_a_fifo_as_a_file_of_data_is_refused(tmp_path):
    for name in ("x.jsonl", "report.json", "run.json", "train.csv"):
        os.mkfifo(tmp_path / name)
    for read in (
        *readers(tmp_path),
        lambda: read_parquet(tmp_path / "x.jsonl"),
        lambda: import_examples(tmp_path, task="t"),
    ):
        with pytest.raises(SparkError):
            read()
    assert read_run(tmp_path) == {}


@pytest.mark.parametrize(
    "name",
    [
        *FILES,
        *("model.safetensors.index.json", "tokenizer_config.json"),
        *("merges.txt", "special_tokens_map.json"),
    ],
)
@pytest.mark.usefixtures("measured")
def test_a_file_of_holes_in_a_checkpoint_is_refused(
    name, tiny_base, make_adapter, copied, tmp_path
):
    """``truncate -s 50G config.json``: any size, and nothing on the disk."""
    adapter = name in OF_ADAPTER
    folder = make_adapter(tmp_path / "a") if adapter else copied(tiny_base)
    for old in folder.glob("*model.*" if "model" in name else name):
        old.unlink()
    (folder / name).touch()
    os.truncate(folder / name, 50 << 30)
    refused(folder, "", base=tiny_base)
    assert problem_of(folder, base=tiny_base)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe{\x00}\x00", "generation_config.json cannot be read"),
        (b'{"eos_token_id": "</s>"}', "eos_token_id is not a token's id"),
        (b'{"eos_token_id": [1, null]}', "eos_token_id is not a token's id"),
    ],
)
def test_settings_of_generation_that_are_none(content, said, tiny_base, copied):
    folder = copied(tiny_base)
    (folder / "generation_config.json").write_bytes(content)
    refused(folder, said)


@pytest.mark.usefixtures("measured")
def test_a_file_of_holes_as_data_is_refused(tmp_path):

    (tmp_path / "stages").mkdir()
    names = ("x.jsonl", "report.json", "run.json", "train.csv", "x.parquet")
    for name in (*names, "state.safetensors"):
        (tmp_path / name).write_bytes({"x.parquet": b"PAR1"}.get(name, b""))
        os.truncate(tmp_path / name, 50 << 30)
    for read in (
        *readers(tmp_path),
        lambda: read_run(tmp_path),
        lambda: import_examples(tmp_path / "train.csv", task="t", split="train"),
        lambda: import_examples(tmp_path / "x.parquet", task="t", split="train"),
    ):
        with pytest.raises(SparkError) as error:
            read()
        assert "\n" not in str(error.value)


TWICE = '{"r": 1, "r": 4}'


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors.index.json",
        "adapter_config.json",
        "trained_on.json",
    ],
)
def test_a_key_that_stands_twice_in_a_checkpoint(
    name, tiny_base, make_adapter, copied, tmp_path
):
    """One reader takes the first value, another the last."""
    adapter = name in OF_ADAPTER
    folder = make_adapter(tmp_path / "a") if adapter else copied(tiny_base)
    if "index" in name:
        (folder / "model.safetensors").unlink()
    text = (folder / name).read_text() if (folder / name).exists() else "{}"
    (folder / name).write_text('{"a": [' + TWICE + "]," + text.lstrip("{\n "))
    if text == "{}":
        (folder / name).write_text('{"a": [' + TWICE + "]}")
    message = f"{name} cannot be read: it has an object with a repeated key"
    refused(folder, message, base=tiny_base)
    problem = problem_of(folder, base=tiny_base)
    assert message in problem


def test_a_key_that_stands_twice_in_data(tmp_path):
    (tmp_path / "stages").mkdir()
    for name in ("x.jsonl", "report.json", "run.json"):
        (tmp_path / name).write_text(TWICE)
    (tmp_path / "x.json").write_text(f"[{TWICE}]")
    for read in (
        *readers(tmp_path),
        lambda: import_examples(tmp_path / "x.json", task="t", split="train"),
    ):
        with pytest.raises(SparkError, match=f"^{tmp_path}"):
            read()
    for read in (lambda: read_run(tmp_path), lambda: Folder(tmp_path).read()):
        with pytest.raises(SparkError):
            read()


@pytest.mark.parametrize(
    "pattern",
    [
        "(.*)*x",
        r"((((\w+)+)+)+)+!",
        "(" + "|".join(["[a-z._0-9]*"] * 20) + ")*!",
        "(?=(.*)*)" * 100 + "!",
        "(?R)?a",
        "(" * 900 + "a" + ")" * 900,
        "no_such_module",
        "a" * 3000,
    ],
    ids=lambda text: text[:20],
)
def test_expressions_for_modules_are_matched_under_a_clock(
    pattern, tiny_base, make_adapter, tmp_path
):
    folder = make_adapter(tmp_path / "a")
    change(folder / "adapter_config.json", target_modules=pattern)
    refused(folder, "target_modules", base=tiny_base)


@pytest.mark.parametrize(
    "pattern",
    [
        r".*\.(q_proj|v_proj)",
        r"model\.layers\.\d+\.self_attn\.(q|v)_proj",
        r"^(?!.*mlp).*(?:q_proj|v_proj)$",
    ],
)
def test_expressions_say_what_peft_says(pattern, tiny_base, make_adapter, tmp_path):
    folder = make_adapter(
        tmp_path / "a", target_modules=pattern, exclude_modules=r".*\.1\..*q_proj"
    )
    loaded = opened(folder, base=tiny_base)
    assert torch.equal(said(loaded), said(reference_of(tiny_base, folder)))


@pytest.mark.parametrize("many", [10**8, 10**6])
@pytest.mark.parametrize("kind", ["PROMPT_TUNING", "PREFIX_TUNING"])
def test_more_virtual_tokens_than_the_file_holds(many, kind, tiny_base, tmp_path):
    raw = {"peft_type": kind, "num_virtual_tokens": many}
    (tmp_path / "adapter_config.json").write_text(json.dumps(raw))
    state = {"prompt_embeddings": torch.zeros(3, 32)}
    save_file(state, tmp_path / "adapter_model.safetensors")
    message = "num_virtual_tokens" if many > 10**6 else "has shape [3, 32]"
    refused(tmp_path, message, base=tiny_base)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**5}, "config.json says num_hidden_layers 100000"),
        ({"num_hidden_layers": 900}, "config.json says num_hidden_layers 900"),
        ({"vocab_size": 6 * 10**7}, "has shape [300, 32], the model needs [60000000"),
        ({"hidden_size": 10**9}, "has shape"),
    ],
    ids=str,
)
def test_a_mismatch_is_told_before_memory_is_taken(
    changes, message, tiny_base, copied, monkeypatch
):
    from spark_audit.checkpoints import stored_checkpoint as _stand

    def loads(*_: object, **__: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(_stand.StoredCheckpoint, "load", loads)
    folder = copied(tiny_base)
    change(folder / "config.json", **changes)
    refused(folder, message)
    assert message in problem_of(folder)


def test_buffers_that_no_weights_back_are_refused(tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "rotary_dim": 8}
    config = AutoConfig.for_model("gptj", vocab_size=300, n_positions=64, **sizes)
    save_model(AutoModelForCausalLM.from_config(config), tmp_path)
    assert not problem_of(tmp_path)
    change(tmp_path / "config.json", n_positions=10**8)
    refused(tmp_path, "config.json needs 3.2e+09 bytes beside the weights")


@pytest.mark.parametrize(
    ("part", "step", "message"),
    [
        (
            "normalizer",
            {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"},
            "the tokenizer makes a text 1.07e+09 times as long",
        ),
        (
            "normalizer",
            {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""},
            "the tokenizer repeats what repeats",
        ),
        (
            "post_processor",
            {
                "type": "TemplateProcessing",
                "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 99,
                "pair": [],
                "special_tokens": {},
            },
            "the tokenizer repeats the text",
        ),
    ],
    ids=["longer", "nested", "template"],
)
def test_a_tokenizer_that_makes_texts_longer(part, step, message, tiny_base, copied):
    folder = copied(tiny_base)
    many = {"type": "Sequence", f"{part}s": [step] * 30}
    change(folder / "tokenizer.json", **{part: many if part == "normalizer" else step})
    refused(folder, message)
    assert message in problem_of(folder)


def _charsmap(units: bytes) -> dict[str, Any]:
    """A Precompiled normaliser: the size of a trie, its units, its strings."""
    content = base64.b64encode(units + b"abc\0").decode()
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": content}}


def _bpe(prefix: str, *tokens: str) -> dict[str, Any]:
    vocab = {token: i for i, token in enumerate(tokens)}
    model = {"type": "BPE", "vocab": vocab, "merges": [list(tokens[:2])]}
    return {"model": model | {"continuing_subword_prefix": prefix}, "added_tokens": []}


def _single(*pieces: dict[str, Any]) -> dict[str, Any]:
    step = {"type": "TemplateProcessing", "single": [*pieces], "pair": []}
    return {"post_processor": step | {"special_tokens": {}}}


PANICS: dict[str, dict[str, Any]] = {
    "trie": _charsmap(struct.pack("<I", 1024) + b"\xff" * 1024),
    "trie-size": _charsmap(b"\xff" * 4),
    "prefix": _bpe("###############", "a", "b", "ab"),
    # A panic that cannot be caught: the process ends.
    "prefix-abort": _bpe("x", "a", "\u00e9", "a\u00e9"),
    "template": _single({"SpecialToken": {"id": "Z", "type_id": 0}}),
    "sequence": _single({"Sequence": {"id": "B", "type_id": 0}}),
    "replace": {
        "normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "z"}
    },
    "length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
}


@pytest.mark.parametrize("name", PANICS)
def test_a_tokenizer_that_makes_its_library_panic(name, tiny_base, copied, capfd):
    """Rust's panics are no ``Exception``, print by themselves, or end the process."""
    folder = copied(tiny_base)
    change(folder / "tokenizer.json", **PANICS[name])
    capfd.readouterr()
    message = "the tokenizer cannot be loaded ("
    refused(folder, message)
    assert message in problem_of(folder)
    assert "panic" not in capfd.readouterr().err


def test_a_tokenizer_that_fails_on_some_text(tiny_base, copied):
    from spark_audit.data.encoding import encode, token_ids

    folder = copied(tiny_base)
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "U"}
    change(folder / "tokenizer.json", model=model, added_tokens=[], post_processor=None)
    tokenizer = load_tokenizer(folder)
    for read in (encode, token_ids):
        with pytest.raises(
            SparkError, match=f"^{type(tokenizer).__name__}: .*--tokenizer"
        ) as error:
            read(tokenizer, ["Jane Roe"])
        assert "Jane" not in str(error.value)


@pytest.mark.parametrize("token", ["Zuleika", "Zul`ei'ka", 'Zul"\neika'])
@pytest.mark.parametrize(
    "model",
    [
        {"type": "BPE", "vocab": {"a": 0}, "merges": [["@", "a"]]},
        {"type": "Unigram", "vocab": [["a", "@"]], "unk_id": 0},
        {"type": "@", "vocab": {}},
    ],
    ids=["merge", "score", "kind"],
)
def test_an_error_of_a_tokenizer_quotes_no_token(token, model, tiny_base, copied):
    folder = copied(tiny_base)
    model = json.loads(json.dumps(model).replace('"@"', json.dumps(token)))
    change(folder / "tokenizer.json", model=model, added_tokens=[])
    message = problem_of(folder)
    assert "--tokenizer" in message
    assert "Zul" not in message
    assert "eika" not in message
