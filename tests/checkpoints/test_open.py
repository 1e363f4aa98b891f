"""Several checkpoints of one call: one base, switched adapters, freed models."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import each, edited, opened, reference_of, said
from tiny_models import make_model, save_model

from spark_audit.checkpoints.open import OpenCheckpoints
from spark_audit.checkpoints.specs import Loading, Spec, parse_specs
from spark_audit.checkpoints.weight_files import check_stored
from spark_audit.errors import CheckpointError, InputError

NAN = float("nan")
INF = float("inf")


@pytest.fixture
def loads(monkeypatch):
    """The folders that transformers was asked to load, in order."""
    from transformers import PreTrainedModel

    loaded_names: list[str] = []
    original: Any = PreTrainedModel.from_pretrained.__func__  # type: ignore[attr-defined]

    def counted(cls: Any, folder: Any, *args: Any, **options: Any) -> Any:
        if folder is not None:
            loaded_names.append(Path(folder).name)
        return original(cls, folder, *args, **options)

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(counted))
    return loaded_names


@pytest.fixture
def adapters(make_adapter, tmp_path):
    return {
        "one": make_adapter(tmp_path / "one", seed=1),
        "two": make_adapter(tmp_path / "two", seed=2, target_modules=["k_proj"]),
        "head": make_adapter(tmp_path / "head", seed=3, modules_to_save=["lm_head"]),
        "dora": make_adapter(tmp_path / "dora", seed=4, r=2, use_dora=True),
    }


def test_one_base_is_loaded_once_and_every_adapter_stays_itself(
    adapters, tiny_base, base_model, loads
):
    truth = {n: said(reference_of(tiny_base, a)) for n, a in adapters.items()}
    truth["base"] = said(base_model)
    loads.clear()
    specs = [Spec(name, (str(path),)) for name, path in adapters.items()]
    all_loaded = []
    for loaded in each(specs, base=str(tiny_base), device="cpu"):
        all_loaded.append(loaded)
        assert torch.allclose(said(loaded), truth[loaded.name], rtol=0, atol=1e-6)
    assert loads == ["tiny-base"]
    assert [loaded.name for loaded in all_loaded] == ["base", *adapters]
    # In any order and again: each activates its own adapter and no other.
    for loaded in (*reversed(all_loaded), *all_loaded):
        assert torch.allclose(said(loaded), truth[loaded.name], rtol=0, atol=1e-6)
    assert torch.equal(said(all_loaded[0]), truth["base"])
    with all_loaded[1].active(), all_loaded[2].active():
        pass
    assert torch.allclose(said(all_loaded[1]), truth["one"], rtol=0, atol=1e-6)
    base = all_loaded[0]
    assert base.weights_sha256 == base.base_sha256
    assert {loaded.base_sha256 for loaded in all_loaded} == {base.weights_sha256}
    assert len({loaded.model_id for loaded in all_loaded}) == 5
    assert base.model_id == opened(tiny_base).model_id


def test_adapters_of_other_types_get_a_base_of_their_own(
    adapters, make_adapter, tiny_base, loads, tmp_path
):
    import peft
    from transformers import AutoModelForCausalLM

    task: Any = "CAUSAL_LM"
    prompt = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_base),
        peft.PromptTuningConfig(task_type=task, num_virtual_tokens=2),
    )
    prompt.save_pretrained(tmp_path / "prompt")
    pissa = make_adapter(tmp_path / "pissa", seed=5, init_lora_weights="pissa")
    paths = {
        "prompt": tmp_path / "prompt",
        "one": adapters["one"],
        "pissa": pissa,
        "two": adapters["two"],
    }
    truth = {n: said(reference_of(tiny_base, path)) for n, path in paths.items()}
    truth["prompt"] = truth["prompt"][2:]
    loads.clear()
    specs = [Spec(name, (str(path),)) for name, path in paths.items()]
    names = []
    for loaded in each(specs, base=str(tiny_base), device="cpu"):
        names.append(loaded.name)
        if loaded.name != "base":
            close = torch.allclose(said(loaded), truth[loaded.name], rtol=0, atol=1e-5)
            assert close, loaded.name
    assert names == ["base", "prompt", "one", "two", "pissa"]
    assert loads == ["tiny-base"] * 3


def test_full_weights_are_freed_before_the_next_are_loaded(
    tiny_base, adapters, loads, tmp_path
):
    models = {f"full{seed}": make_model("llama", seed=seed) for seed in (5, 6)}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
    texts = [str(tmp_path / "full5"), str(adapters["one"]), str(tmp_path / "full6")]
    before = None
    names = []
    for loaded in each(parse_specs(texts), base=str(tiny_base), device="cpu"):
        names.append(loaded.name)
        if before is not None and loaded.name in models:
            size = sum(p.untyped_storage().nbytes() for p in before.model.parameters())
            assert size == 0
            with pytest.raises(RuntimeError, match="released"):
                before.active().__enter__()
        if loaded.name in models:
            assert torch.equal(said(loaded), said(models[loaded.name]))
        before = loaded
    assert names == ["base", "one", "full5", "full6"]
    assert loads == ["tiny-base", "full5", "full6"]


def test_the_base_comes_with_include_base_or_as_a_checkpoint(tiny_base, tmp_path):
    make_model("llama", seed=5).save_pretrained(tmp_path / "full")
    full = str(tmp_path / "full")
    base = str(tiny_base)

    def names(*texts: str, **options: Any) -> list[str]:
        specs = parse_specs(list(texts))
        return [x.name for x in each(specs, device="cpu", **options)]

    assert names(full, base=base) == ["full"]
    assert names(full, base=base, include_base=True) == ["base", "full"]
    assert names(f"base={base}") == ["base"]
    assert names(f"base={base}", f"x={base}", base=base) == ["base", "x"]
    with pytest.raises(InputError, match="^--ckpt base=: "):
        names(f"base={base}", base=full)
    again = opened(base, name="base")
    assert again.base_sha256 == again.weights_sha256
    assert opened(base, base=base).base_sha256 is not None
    assert opened(base).base_sha256 is None
    with pytest.raises(InputError, match="^--ckpt base=: "):
        names(f"base=[{base},{full}]")


def test_an_adapter_brings_the_base_it_names(adapters, make_adapter, tmp_path):
    first_spec = Spec("one", (str(adapters["one"]),))
    names = [loaded.name for loaded in each([first_spec], device="cpu")]
    assert names == ["base", "one"]
    other_folder = tmp_path / "other"
    save_model(make_model("llama", seed=5), other_folder)
    foreign = make_adapter(tmp_path / "foreign", base=other_folder)
    specs = [first_spec, Spec("foreign", (str(foreign),))]
    with pytest.raises(CheckpointError, match="^--ckpt: .*--base"):
        next(each(specs, device="cpu"))


def test_a_checkpoint_that_diverged_is_refused_before_another_is_loaded(
    tiny_base, copied, loads
):
    sound = copied(tiny_base, "sound")
    folder = copied(tiny_base)
    name = "model.norm"
    edited(folder / "model.safetensors", lambda s: s[f"{name}.weight"][:1].fill_(NAN))
    specs = [Spec("a", (str(sound),)), Spec("b", (str(folder),))]
    message = f"copy: tensor {name}.weight holds NaN; training diverged, "
    message += "or the dtype is too narrow: leave it out"
    with pytest.raises(CheckpointError, match=message):
        OpenCheckpoints(specs, Loading(base=str(tiny_base), device="cpu"))
    assert not loads
    OpenCheckpoints(specs[:1], Loading(base=str(tiny_base), device="cpu"))
    # A buffer that no model uses may hold infinity.
    edited(sound / "model.safetensors", lambda s: s.update(mask=torch.tensor(-INF)))
    check_stored([sound / "model.safetensors"])


def test_headers_tell_what_is_opened(adapters, tiny_base, tmp_path):
    full = tmp_path / "full"
    model = make_model("gpt2", seed=5)
    model.generation_config.eos_token_id = [1, 2]
    save_model(model, full)
    paths = {**adapters, "full": full}
    loading = Loading(base=str(tiny_base), device="cpu")
    specs = [Spec(name, (str(path),)) for name, path in paths.items()]
    rounded = replace(loading, quantize=("int8",))
    with pytest.raises(CheckpointError, match="/(dora|head): "):
        OpenCheckpoints(specs, rounded)  # before anything is loaded
    plain = [spec for spec in specs if spec.name not in ("head", "dora")]
    _check_described(OpenCheckpoints(specs, loading))
    _check_described(OpenCheckpoints(plain, rounded))


def _check_described(opening: OpenCheckpoints) -> None:
    described_by_name = {described.name: described for described in opening.described}
    names = []
    for loaded in opening.each():
        names.append(loaded.name)
        own_description = described_by_name[loaded.name]
        for field in (
            *("model_id", "weights_sha256", "base_sha256", "tokenizer_sha256"),
            *("architecture", "shape", "max_positions", "source", "base"),
        ):
            assert getattr(own_description, field) == getattr(loaded, field), (
                loaded.name,
                field,
            )
        assert own_description.model_id
        assert np.array_equal(own_description.usable, loaded.usable)
        del loaded
    assert names == [*described_by_name]


def test_a_broken_checkpoint_is_found_before_the_first_is_loaded(
    adapters, tiny_base, loads
):
    file = adapters["dora"] / "adapter_model.safetensors"
    edited(file, lambda s: s.pop(sorted(s)[0]))
    specs = parse_specs([str(path) for path in adapters.values()])
    with pytest.raises(CheckpointError, match=str(adapters["dora"])):
        next(each(specs, base=str(tiny_base), device="cpu"))
    assert loads == []


def test_alike_adapters_are_described_as_each_is_opened(
    make_adapter, tiny_base, tmp_path
):
    folders = [make_adapter(tmp_path / f"a{i}", seed=i) for i in range(5)]
    # The same adapter once more, with its modules in another order.
    config = folders[4] / "adapter_config.json"
    content = json.loads(config.read_text())
    content["target_modules"] = sorted(content["target_modules"], reverse=True)
    config.write_text(json.dumps(content))

    loading = Loading(base=str(tiny_base), device="cpu")
    specs = parse_specs([str(path) for path in folders])
    opening = OpenCheckpoints(specs, loading)
    assert len({known.model_id for known in opening.described}) == 6
    _check_described(opening)
    alone = [opened(folder, base=tiny_base) for folder in folders]
    for known, own in zip(opening.described[1:], alone, strict=True):
        assert known.model_id == own.model_id
        assert known.notes == own.notes


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda state, key: state.pop(key), "is missing"),
        (lambda state, key: state.update({key: state[key][:, :-1] + 0}), "has shape"),
        (lambda state, key: state[key].fill_(NAN), "holds NaN"),
        (lambda state, key: state.update(more=state[key] + 0), "unexpected"),
        (lambda state, key: state.update({key: state[key].int()}), "holds int32"),
        (lambda state, key: [t.zero_() for t in state.values()], "every lora_B is"),
    ],
    ids=["missing", "shape", "NaN", "unexpected", "integers", "untrained"],
)
def test_a_broken_adapter_behind_alike_ones_is_found_before_the_first_is_loaded(
    change, problem, make_adapter, tiny_base, tmp_path, loads
):
    folders = [make_adapter(tmp_path / f"a{i}", seed=i) for i in range(5)]
    file = folders[4] / "adapter_model.safetensors"
    edited(file, lambda state: change(state, sorted(state)[0]))
    specs = parse_specs([str(path) for path in folders])
    with pytest.raises(CheckpointError, match=problem) as caught:
        next(each(specs, base=str(tiny_base), device="cpu"))
    assert "a4" in str(caught.value)
    assert loads == []


def test_modules_that_the_tensors_lack_are_found_behind_alike_adapters(
    make_adapter, tiny_base, tmp_path, loads
):
    folders = [make_adapter(tmp_path / f"a{i}", seed=i) for i in range(4)]
    config = folders[3] / "adapter_config.json"
    content = json.loads(config.read_text())
    content["target_modules"] = ["k_proj"]
    config.write_text(json.dumps(content))
    specs = parse_specs([str(path) for path in folders])
    with pytest.raises(CheckpointError, match="a3"):
        next(each(specs, base=str(tiny_base), device="cpu"))
    assert loads == []


def test_alike_adapters_with_rows_of_their_own_are_described_as_each_is_opened(
    make_adapter, tiny_base, tmp_path
):
    folders = [
        make_adapter(tmp_path / f"a{i}", seed=i, trainable_token_indices=[5, 7])
        for i in range(4)
    ]
    specs = parse_specs([str(path) for path in folders])
    loading = Loading(base=str(tiny_base), device="cpu")
    _check_described(OpenCheckpoints(specs, loading))


def test_the_random_state_is_left_alone(adapters, tiny_base):
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index] # noqa: NPY002
    opened(adapters["one"], base=tiny_base)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # type: ignore[index] # noqa: NPY002
