"""What somebody else's files must not do: run, ask a host, pass for something, hang."""

import builtins
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from clocks import limited
from importing import import_examples
from refusals import (
    absent,
    change,
    edited,
    inspected,
    load_tokenizer,
    opened,
    problem_of,
    refused,
)
from safetensors.torch import load_file, save_file

from spark_audit.checkpoints.adapter_config import adapter_config
from spark_audit.checkpoints.untrusted import quiet
from spark_audit.errors import CheckpointError, InputError, SparkError

SECONDS = 30
LORA_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(autouse=True)
def hurry():
    """What hangs is a failure, not a wait."""

    with limited(cpu=SECONDS, wall=10 * SECONDS):
        yield


@pytest.fixture
def asked(monkeypatch):
    """Whom anybody tried to reach; the hub is not switched off from outside."""
    hosts: list[object] = []

    def connect(self: object, address: object, *_: object) -> None:
        hosts.append(address)
        raise OSError("no network in this test")

    def resolve(host: object, *_: object, **__: object) -> None:
        hosts.append(host)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "connect_ex", connect)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return hosts


# ------------------------------------------------------------------ run, fetched


def test_no_code_runs_and_nobody_is_asked_whether_it_may(
    tiny_base, make_adapter, copied, monkeypatch, tmp_path
):
    """``yes | spark-audit inspect``: an adapter whose second model brings code."""
    from transformers import AutoModel

    questions: list[str] = []

    def answer(question: str = "") -> str:
        questions.append(question)
        return "yes"

    monkeypatch.setattr(builtins, "input", answer)
    marker = tmp_path / "ran"
    second = copied(tiny_base, "second")
    (second / "theirs.py").write_text(f"open({str(marker)!r}, 'w')\n")
    change(
        second / "config.json",
        model_type="theirs",
        auto_map={"AutoConfig": "theirs.C", "AutoModel": "theirs.M"},
    )
    adapter = make_adapter(tmp_path / "a")
    change(
        adapter / "adapter_config.json",
        peft_type="SHADOW",
        shadow_model=str(second),
        target_modules=["q_proj"],
    )
    refused(adapter, "the type 'SHADOW' are not opened", base=tiny_base)
    assert problem_of(adapter, base=tiny_base)
    refused(second, "brings its own code")
    # And if any library would: it is an error, no question.
    with quiet(), pytest.raises(ValueError, match="trust_remote_code"):
        AutoModel.from_pretrained(second)
    assert not questions
    assert not marker.exists()


def test_no_host_is_asked_for_local_input(
    tiny_base, make_adapter, asked, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    adapter = make_adapter(tmp_path / "a")
    for named in ("someone/beacon", "hf:someone/beacon", "https://host/x"):
        change(adapter / "adapter_config.json", base_model_name_or_path=named)
        problem = problem_of("a")
        assert problem.startswith("a: ")
        assert named in problem
        assert "--base MODEL" in problem
        refused("a", "is not here")
        opened("a", base=tiny_base)
    absent("not/there", "there is no such file or folder")
    absent("a", "there is no such file or folder", base="not/there")
    with pytest.raises(InputError, match="^not/there: "):
        load_tokenizer("not/there")
    assert not asked
    # The control: the trap sees who is asked when somebody does ask.
    refused("hf:someone/model", "cannot be fetched from the hub")
    assert asked


def test_a_prompts_tokenizer_is_not_opened(tiny_base, asked, tmp_path):
    import peft

    raw = {
        "peft_type": "PROMPT_TUNING",
        "num_virtual_tokens": 3,
        "prompt_tuning_init": "TEXT",
        "prompt_tuning_init_text": "be kind",
        "tokenizer_name_or_path": "someone/beacon",
        "tokenizer_kwargs": {"trust_remote_code": True},
    }
    (tmp_path / "adapter_config.json").write_text(json.dumps(raw))
    state = {"prompt_embeddings": torch.randn(3, 32)}
    save_file(state, tmp_path / "adapter_model.safetensors")
    opened(tmp_path, base=tiny_base)
    config = adapter_config(raw)
    assert config.tokenizer_name_or_path is config.tokenizer_kwargs is None
    assert config.base_model_name_or_path is None
    assert isinstance(config, peft.PromptTuningConfig)
    assert not asked


def test_every_type_and_field_of_peft_is_listed_or_refused():
    import dataclasses

    import peft.mapping

    from spark_audit.checkpoints.adapter_config import OPENED
    from spark_audit.checkpoints.adapter_fields import WITHOUT_EFFECT

    for name, cls in peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING.items():
        type_name = str(getattr(name, "value", name))
        if type_name not in OPENED:
            with pytest.raises(CheckpointError, match="adapters"):
                adapter_config({"peft_type": type_name})
            continue
        # Whatever task is named, one is set.
        fields = {f.name for f in dataclasses.fields(cls)} - {"task_type"}
        for field in fields - WITHOUT_EFFECT:
            for value in ({"path": "/x"}, "../(x+)+", -7, 1e400):
                raw = {"peft_type": type_name, field: value}
                if field in (
                    "target_modules",
                    "exclude_modules",
                    "feedforward_modules",
                ):
                    # Expressions are matched under a clock, below.
                    if isinstance(value, str):
                        continue
                with pytest.raises(CheckpointError):
                    adapter_config(raw)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"r": -1}, "r"),
        ({"r": True}, "r"),
        ({"lora_alpha": float("nan")}, "lora_alpha"),
        ({"lora_alpha": 10**400}, "lora_alpha"),
        ({"rank_pattern": {"(a+)+": 4}}, "rank_pattern"),
        ({"modules_to_save": ["(.*)*x"]}, "modules_to_save"),
        ({"layers_to_transform": [0], "layers_pattern": "(a*)*"}, "layers_pattern"),
        ({"layer_replication": [[0, 900]] * 9}, "layer_replication"),
        ({"init_lora_weights": "pissa_niter_1000000"}, "init_lora_weights"),
        ({"corda_config": {"cache_file": "x.pt"}}, "corda_config"),
        ({"runtime_config": {"ephemeral_gpu_offload": True}}, "runtime_config"),
    ],
    ids=str,
)
def test_fields_of_lora_that_are_refused(
    changes, field, tiny_base, make_adapter, tmp_path
):
    folder = make_adapter(tmp_path / "a", r=4)
    change(folder / "adapter_config.json", **changes)
    refused(folder, f" {field}", base=tiny_base)
    assert problem_of(folder, base=tiny_base)


def test_tables_other_than_text_are_never_decoded(asked, tmp_path):
    datasets = pytest.importorskip("datasets", reason="the extra `hub`")
    url = {"path": "http://host.invalid/beacon.png", "bytes": None}
    rows = {"text": ["a"], "label": ["b"], "photo": [url], "photos": [[url]]}
    features_of_image = datasets.Features(
        {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    )
    text = datasets.Value("string")
    features = {
        "text": text,
        "label": text,
        "photo": features_of_image,
        "photos": [features_of_image],
    }
    dataset = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    dataset.save_to_disk(tmp_path / "d")
    info = tmp_path / "d" / "dataset_info.json"
    image = {"_type": "Image"}
    many = {"_type": "List", "feature": image}
    features_known = json.loads(info.read_text())["features"]
    change(info, features=features_known | {"photo": image, "photos": many})
    (row,) = import_examples(tmp_path / "d", task="t", split="train")
    assert (row.prompt, row.response) == ("a", " b")
    for source in ("not/there", "http://host.invalid/x", "hf-x/y"):
        with pytest.raises(SparkError):
            import_examples(source, task="t", split="train", format="datasets")
        with pytest.raises(SparkError, match=f"{Path(source).name}: "):
            import_examples(source, task="t", split="train")
    assert not asked


# ------------------------------------------------------------- as something else


@pytest.mark.parametrize(
    "dtype",
    [torch.complex64, torch.int8, torch.bool, torch.float8_e4m3fn],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_other_numbers_are_no_weights(dtype, tiny_base, make_adapter, copied, tmp_path):
    full = copied(tiny_base)
    adapter = make_adapter(tmp_path / "a")
    name = "model.norm.weight"
    kind = str(dtype).removeprefix("torch.")
    edited(full / "model.safetensors", lambda s: s.update({name: s[name].to(dtype)}))
    refused(full, f"tensor {name} holds {kind}, not floating-point numbers")
    file = adapter / "adapter_model.safetensors"
    edited(file, lambda s: s.update({LORA_A: s[LORA_A].to(dtype)}))
    message = f"tensor {LORA_A} holds {kind}, not floating-point"
    refused(adapter, message, base=tiny_base)
    # The same tensors in a pickle.
    torch.save(load_file(file), adapter / "adapter_model.bin")
    file.unlink()
    refused(adapter, message, base=tiny_base)


def test_names_of_tensors_are_shown_without_escapes(tiny_base, copied):
    full = copied(tiny_base)
    name = "a\x1b]0;x\x07\u202e.weight"
    odd = {name: torch.zeros(2, dtype=torch.int8)}
    edited(full / "model.safetensors", lambda s: s.update(odd))
    refused(full, r"tensor a\x1b]0;x\x07\u202e.weight is unexpected")


# ----------------------------------------------------- looked at, and then opened


def test_another_rank_than_the_tensors_have(tiny_base, make_adapter, tmp_path):
    """With ``r`` 1 beside tensors of 16, what is added would be 16 times as much."""
    folder = make_adapter(tmp_path / "a", r=16, alpha=16)
    file = folder / "adapter_config.json"
    change(file, r=1)
    message = "lora_A has rank 16, adapter_config.json says r=1"
    refused(folder, message, base=tiny_base)
    problem = problem_of(folder, base=tiny_base)
    assert message in problem
    # O-LoRA's own say how wide they are: both tell what was made of it.
    change(file, r=4, r_sum=16)
    note = "O-LoRA: rank 16 = 4 x 4, loaded with alpha 64"
    loaded = opened(folder, base=tiny_base)
    seen = inspected(folder, base=tiny_base)
    assert any(text.startswith(note) for text in loaded.notes)
    notes = [seen[name] for name in seen if name.startswith("note ")]
    assert [*loaded.notes] == notes


Spoil = Callable[[Path], object]


def _numbers(value: float, *only: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (file,) = folder.glob("*model.safetensors")
        state = load_file(file)
        for name in state:
            if any(section in name for section in only):
                state[name].view(-1)[-3:] = value
                if not value:
                    state[name].zero_()
        save_file(state, file, metadata={"format": "pt"})

    return spoil


def _config(**changes: Any) -> Spoil:
    return lambda folder: change(folder / "config.json", **changes)


NAN = float("nan")
SPOILT: dict[str, Spoil] = {
    "context-huge": _config(max_position_embeddings=10**400),
    "quant-unknown": _config(quantization_config={"quant_method": "nope"}),
    "quant-text": _config(quantization_config="x"),
    "quant-missing": _config(quantization_config={"quant_method": "gptq", "bits": 4}),
    "rope-base": _config(rope_parameters={"rope_type": "default", "rope_theta": -1.0}),
    "tuples": _config(return_dict=False),
    "nan": _numbers(NAN, "norm"),
    "overflow": _numbers(3e38, "lm_head"),
    "adapter-nan": _numbers(NAN, "lora"),
    "adapter-overflow": _numbers(1e38, "lora"),
    "adapter-untrained": _numbers(0.0, "lora_B"),
    "adapter-without-effect": _numbers(0.0, "lora_A"),
    "adapter-alpha": lambda folder: change(
        folder / "adapter_config.json", lora_alpha=1e-30
    ),
    "noise": lambda folder: save_file(
        {"noise": torch.full((300, 32), NAN)}, folder / "frozen_noise.safetensors"
    ),
}


@pytest.mark.parametrize("name", SPOILT)
@pytest.mark.usefixtures("measured")
def test_what_opening_refuses_is_told_before(
    name, tiny_base, make_adapter, copied, monkeypatch, tmp_path
):
    adapter = name.startswith("adapter")
    folder = make_adapter(tmp_path / "a") if adapter else copied(tiny_base)
    SPOILT[name](folder)
    with pytest.raises(CheckpointError) as error:
        opened(folder, base=tiny_base)
    assert "\n" not in str(error.value)
    assert problem_of(folder, base=tiny_base) == str(error.value)
    # Of what is large only some of it shows, and it does not say more than it saw.
    monkeypatch.setattr("spark_audit.checkpoints.inspection.SMALL_BYTES", 0)
    headers = ("adapter-nan", "adapter-untrained", "noise")
    if name.split("-")[0] in ("context", "quant") or name in headers:
        assert problem_of(folder, base=tiny_base) == str(error.value)
    else:
        seen = inspected(folder, base=tiny_base)
        assert seen["would load"] == "yes, by its headers"
