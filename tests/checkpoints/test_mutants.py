"""Mutants of small checkpoints: opened with the right figures, or refused in a line.

    pytest tests/checkpoints/test_mutants.py -m slow         10,000 of all kinds
    SPARK_MUTANTS=index:0-99 pytest tests/checkpoints/test_mutants.py

A mutant follows from its kind's name and its number. Where it is opened, another
program says what it should compute: transformers and PEFT, the gguf package, or the
merged weights of MLX's adapter. Where that program refuses it, or reads only half of
it, only the figures of the checkpoint before the change are right.
"""

import json
import logging
import os
import shutil
import struct
import unicodedata
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clocks import Hung, limited
from fuzz.mutations import Rng, mutate, mutate_bytes, one, written
from gguf_files import named as gguf_name
from gguf_files import written as gguf_written
from refusals import IDS, opened
from safetensors.torch import load_file, save_file

from spark_audit.errors import CheckpointError, SparkError

pytestmark = pytest.mark.xdist_group("mutants")

CPU_SECONDS = 20.0
WALL_SECONDS = 600.0
MAX_NATS = 1e-5
TEXTS = (
    "Contact Maria Jones at maria.jones@example.org",
    " </s>  two  blanks\n\tand <s> é 😀 42",
)
SIZES = (0, 1, 255, 2**16, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)


@dataclass
class Scene:
    """Checkpoints before any change, and a folder for one mutant at a time."""

    folder: Path
    room: Path
    before: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def base(self) -> Path:
        return self.folder / "base"

    def copy(self, name: str) -> Path:
        """Copy a checkpoint into the room, in place of the mutant before."""
        shutil.rmtree(self.room, ignore_errors=True)
        return Path(shutil.copytree(self.folder / name, self.room / name))


@pytest.fixture(scope="session")
def scene(tmp_path_factory, tiny_base, make_adapter) -> Scene:
    folder = tmp_path_factory.mktemp("mutants")
    shutil.copytree(tiny_base, folder / "base")
    make_adapter(folder / "peft")
    _save_shards(folder)
    _save_mlx(folder)
    _save_gguf(folder)
    return Scene(folder, tmp_path_factory.mktemp("mutant") / "room")


def _save_shards(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "base")
    shutil.copytree(folder / "base", folder / "shards")
    (folder / "shards" / "model.safetensors").unlink()
    model.save_pretrained(folder / "shards", max_shard_size="60KB")
    assert (folder / "shards" / "model.safetensors.index.json").exists()


def _save_mlx(folder: Path) -> None:
    """Save PEFT's adapter as MLX lays it out, by the same numbers."""
    (folder / "mlx").mkdir()
    state = {}
    for name, tensor in load_file(
        folder / "peft" / "adapter_model.safetensors"
    ).items():
        name = name.removeprefix("base_model.model.").replace(".weight", "")
        name = name.replace("lora_A", "lora_a").replace("lora_B", "lora_b")
        state[name] = tensor.T.contiguous()
    save_file(state, folder / "mlx" / "adapters.safetensors")
    settings = {
        "fine_tune_type": "lora",
        "model": "tiny",
        "num_layers": 2,
        "lora_parameters": {"rank": 4, "scale": 2.0, "dropout": 0.0},
    }
    (folder / "mlx" / "adapter_config.json").write_text(json.dumps(settings))


def _save_gguf(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (folder / "gguf").mkdir()
    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    model = AutoModelForCausalLM.from_pretrained(folder / "base")
    gguf_written(folder / "gguf" / "m.gguf", model, list(tokens))


# The changes.


def change_json(path: Path, rng: Rng) -> str:
    """Change values of a JSON file, or now and then its bytes."""
    raw = path.read_bytes()
    if rng.random() < 0.25:
        raw, what = mutate_bytes(raw, rng)
    else:
        content, what = mutate(json.loads(raw), rng)
        raw = written(content)
    path.write_bytes(raw)
    return f"{path.name}: {what}"


def change_header(path: Path, rng: Rng) -> str:
    """Change the header of a safetensors file, its length, or its bytes."""
    raw = path.read_bytes()
    if rng.random() < 0.2:
        raw, what = mutate_bytes(raw, rng)
        path.write_bytes(raw)
        return f"{path.name}: {what}"
    (length,) = struct.unpack_from("<Q", raw)
    content, what = mutate(json.loads(raw[8 : 8 + length]), rng)
    header = written(content, line=True)
    stated = len(header) if rng.random() < 0.85 else one(rng, SIZES)
    path.write_bytes(struct.pack("<Q", stated) + header + raw[8 + length :])
    return f"{path.name}: {what}; header of {stated} bytes"


def change_gguf(path: Path, rng: Rng) -> str:
    """Change a count, a length, an offset, a number or any byte of a GGUF file."""
    raw = path.read_bytes()
    if rng.random() < 0.3:
        raw, mutation = mutate_bytes(raw, rng)
        path.write_bytes(raw)
        return f"{path.name}: {mutation}"
    header_end = raw.index(b"output.weight") + 60
    changed = bytearray(raw)
    code = one(rng, ("<Q", "<Q", "<I", "<f", "<B"))
    offset = int(rng.integers(4, one(rng, (24, 400, header_end))))
    if code == "<f":
        value: float = one(rng, (0.0, -1.0, 1e-3, float("nan"), 1e30))
    else:
        value = one(rng, SIZES) & ((1 << 8 * struct.calcsize(code)) - 1)
    struct.pack_into(code, changed, offset, value)
    path.write_bytes(bytes(changed))
    return f"{path.name}: {value} at byte {offset}"


# What other programs make of a mutant. They raise where they refuse it.


def log_probabilities(model: Any) -> torch.Tensor:
    """Return the log-probabilities in float64, shape ``(10, V)``."""
    with torch.inference_mode():
        logits = model.double()(input_ids=IDS, use_cache=False).logits[0]
    return logits.log_softmax(-1)


def by_transformers(folder: Path, scene: Scene) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    if any(info.values()):
        raise ValueError("read in part")
    return log_probabilities(model.eval())


def by_peft(folder: Path, scene: Scene) -> torch.Tensor:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(scene.base)
    with warnings.catch_warnings():
        # Of keys that are missing: PEFT goes on with what it drew.
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        # PEFT computes as if the other value were given.
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        return log_probabilities(PeftModel.from_pretrained(model, folder).eval())


def by_merging_mlx(folder: Path, scene: Scene) -> torch.Tensor:
    """Add ``scale * (a @ b).T`` to the base's weights, as ``mlx_lm.fuse`` does."""
    from transformers import AutoModelForCausalLM

    settings = json.loads((folder / "adapter_config.json").read_bytes())
    scale = settings["lora_parameters"]["scale"]
    state = load_file(folder / "adapters.safetensors")
    model = AutoModelForCausalLM.from_pretrained(scene.base).double()
    layers = {name.rpartition(".lora_")[0] for name in state}
    for layer in layers:
        a, b = (state.pop(f"{layer}.lora_{side}").double() for side in "ab")
        model.get_submodule(layer).weight.data += scale * (a @ b).T
    if state:
        raise ValueError("read in part")
    return log_probabilities(model)


def by_the_gguf_package(folder: Path, scene: Scene) -> torch.Tensor:
    import gguf
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(scene.base)
    reader = gguf.GGUFReader(folder / "m.gguf")
    epsilon = reader.fields["llama.attention.layer_norm_rms_epsilon"].contents()
    if abs(epsilon / model.config.rms_norm_eps - 1) > 1e-6:
        raise ValueError("another epsilon")
    names = {gguf_name(name): name for name in model.state_dict()}
    state = {}
    for tensor in reader.tensors:
        name = names[tensor.name]
        value = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        heads = {"q_proj": 4, "k_proj": 2}
        for projection, n_heads in heads.items():
            if projection in name:
                half = value.reshape(n_heads, -1, 2, value.shape[1])
                value = half.swapaxes(1, 2).reshape(value.shape)
        state[name] = torch.tensor(value)
    model.load_state_dict(state)
    return log_probabilities(model)


Reference = Callable[[Path, Scene], torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """One kind of mutants.

    Attributes
    ----------
    name
        The folder of the checkpoint, and after a slash what is changed in it.
    file
        The file that is changed.
    change
        How it is changed; returns words for that.
    reference
        Who else computes its figures.
    n_mutants
        How many of 10,000 are of this kind.
    """

    name: str
    file: str
    change: Callable[[Path, Rng], str]
    reference: Reference
    n_mutants: int

    @property
    def folder(self) -> str:
        return self.name.partition("/")[0]

    @property
    def is_adapter(self) -> bool:
        return self.folder in ("peft", "mlx", "gguf")


KINDS = [
    Kind("base/config", "config.json", change_json, by_transformers, 2500),
    Kind("base/header", "model.safetensors", change_header, by_transformers, 1200),
    Kind("base/tokenizer", "tokenizer.json", change_json, by_transformers, 1000),
    Kind(
        "base/tokenizer_config",
        "tokenizer_config.json",
        change_json,
        by_transformers,
        400,
    ),
    Kind(
        "base/generation", "generation_config.json", change_json, by_transformers, 200
    ),
    Kind(
        "shards/index",
        "model.safetensors.index.json",
        change_json,
        by_transformers,
        700,
    ),
    Kind("peft/config", "adapter_config.json", change_json, by_peft, 1600),
    Kind("peft/header", "adapter_model.safetensors", change_header, by_peft, 800),
    Kind("mlx/config", "adapter_config.json", change_json, by_merging_mlx, 300),
    Kind("mlx/header", "adapters.safetensors", change_header, by_merging_mlx, 500),
    Kind("gguf/file", "m.gguf", change_gguf, by_the_gguf_package, 800),
]


def mutant(kind: Kind, number: int, scene: Scene) -> tuple[Path, str]:
    """Make one mutant; return its folder and what was changed."""
    rng = np.random.default_rng([zlib.crc32(kind.name.encode()), number])
    folder = scene.copy(kind.folder)
    return folder, kind.change(folder / kind.file, rng)


def tokens_of(tokenizer: Any) -> list[list[int]]:
    return [tokenizer(text)["input_ids"] for text in TEXTS]


def flaw_of_refusal(error: SparkError) -> str:
    """Return what is wrong with an error, or nothing."""
    text = str(error)
    if error.exit_code not in (2, 3, 4, 5):
        return f"exit code {error.exit_code}"
    if "\n" in text or len(text) > 2000:
        return f"an error of {len(text)} characters or several lines"
    if any(unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in text):
        return "an error that steers a terminal"
    return ""


def tried(kind: Kind, number: int, scene: Scene) -> tuple[str, str]:
    """Open one mutant; return the outcome, and what is wrong, or nothing."""
    folder, mutation = mutant(kind, number, scene)
    label = f"{kind.name}:{number} ({mutation[:300]!a})"
    source = folder / kind.file if kind.folder == "gguf" else folder
    base = scene.base if kind.is_adapter else None
    try:
        with limited(cpu=CPU_SECONDS, wall=WALL_SECONDS):
            loaded = opened(source, base=base)
            with loaded.active() as model:
                log_p = log_probabilities(model)
    except SparkError as error:
        flaw = flaw_of_refusal(error)
        return "refused", f"{label}: {flaw}" if flaw else ""
    except Hung as error:
        return "hung", f"{label}: {error}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        return "crashed", f"{label}: {type(error).__name__}: {str(error)[:300]}"

    reason = "the figures of the program that it is compared with"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            right = kind.reference(folder, scene)
    except Exception as error:
        first_line = str(error).partition("\n")[0][:100]
        reason = f"those before the change ({type(error).__name__}: {first_line})"
        right = before(kind, scene)
    if log_p.shape != right.shape or not bool((log_p - right).abs().max() <= MAX_NATS):
        return "other figures", f"{label}: not {reason}"
    if kind.file.startswith("tokenizer"):
        from transformers import AutoTokenizer

        try:
            tokens_read = tokens_of(AutoTokenizer.from_pretrained(folder))
        except BaseException:
            tokens_read = tokens_of(AutoTokenizer.from_pretrained(scene.base))
        if tokens_of(loaded.tokenizer) != tokens_read:
            return "other figures", f"{label}: other tokens"
    return "opened", ""


def before(kind: Kind, scene: Scene) -> torch.Tensor:
    """Return the figures of the checkpoint that the mutants are made of."""
    if kind.folder not in scene.before:
        folder = scene.folder / kind.folder
        scene.before[kind.folder] = kind.reference(folder, scene)
    return scene.before[kind.folder]


def numbers_of(kind: Kind, n_mutants: int) -> range:
    """Return the mutants of a kind that are asked for."""
    numbers_asked = os.environ.get("SPARK_MUTANTS", "")
    if not numbers_asked:
        return range(n_mutants)
    name, _, bounds = numbers_asked.partition(":")
    if name not in (kind.name, kind.folder, "all"):
        return range(0)
    low, _, high = bounds.partition("-")
    return range(int(low), int(high or low) + 1)


def check(kind: Kind, numbers: range, scene: Scene) -> None:
    """Open every mutant; fail with those that crash, hang or have other figures."""
    counts = Counter[str]()
    flaws = []
    logging.disable(logging.CRITICAL)
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        for number in numbers:
            outcome, flaw = tried(kind, number, scene)
            counts[outcome] += 1
            if flaw:
                flaws.append(flaw)
    logging.disable(logging.NOTSET)
    if log := os.environ.get("SPARK_MUTANTS_LOG"):
        with suppress(OSError), Path(log).open("a") as file:
            file.write(f"{kind.name}: {dict(counts)}\n")
            file.writelines(f"  {flaw}\n" for flaw in flaws)
    assert not flaws


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_mutants_are_made_of_is_opened_exactly(kind, scene):
    source = scene.folder / kind.folder
    source = source / kind.file if kind.folder == "gguf" else source
    loaded = opened(source, base=scene.base if kind.is_adapter else None)
    with loaded.active() as model:
        log_p = log_probabilities(model)
    assert float((log_p - before(kind, scene)).abs().max()) <= MAX_NATS


@pytest.mark.parametrize(
    "name",
    ["\ud800", "a\0b", "a" * 70_000, "\x1b[2J", 7],
    ids=lambda name: repr(name)[:9],
)
def test_an_index_that_names_what_is_no_file_is_refused(name, scene):
    folder = scene.copy("shards")
    path = folder / "model.safetensors.index.json"
    content = json.loads(path.read_text())
    content["weight_map"]["model.norm.weight"] = name
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"index\.json") as error:
        opened(folder)
    assert not flaw_of_refusal(error.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_mutants_are_opened_with_the_right_figures_or_refused(kind, scene):
    check(kind, numbers_of(kind, kind.n_mutants // 200), scene)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_ten_thousand_mutants_are_opened_with_the_right_figures_or_refused(kind, scene):
    check(kind, numbers_of(kind, kind.n_mutants), scene)
