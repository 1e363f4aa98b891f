"""Tiny models and tokenizers that several test files share.

``torch`` and ``transformers`` are imported inside the fixtures only, so that tests of
pure code start at once. Folders made here are session-wide: copy before changing one.
"""

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from spark_audit.sentences import renderer
from spark_audit.spoken_options import for_command_line

if "PYTEST_XDIST_WORKER" in os.environ:
    # As many workers as cores: with more threads than cores, each waits for the others.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Sentences of findings and guards that tests make by hand.
SAID = {"said": "{{ text }}", "said.withdrawn": "{{ otherwise }}"}
renderer.known_templates().update(SAID | {"guard.said": "{{ text }}"})

pytest_plugins = ["synthetic", "example_scene", "cells"]

LONGEST = [
    f"test_{name}.py"
    for name in (
        "notebooks demo verify ray golden additions every_audit run fuzz kills "
        "distributed callback kept_reports decoding foreign_files task_state options "
        "faults engines supervision training_run privacy_dpsgd mia canary foreign "
        "peft_adapter run_folder gate_output sequences"
    ).split()
]
"""Files that take longest, to be run first: none is left to one worker at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept", action="store_true", help="write the files of tests/golden anew"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    position = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: position.get(item.path.name, len(position)))


def pytest_collection_finish() -> None:
    """What is imported stays: to look for garbage in it takes a twentieth of all."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)


def pytest_configure(config: pytest.Config) -> None:
    """Let pass one warning that PEFT 0.21 draws from transformers 5.23 by itself.

    No example of hypothesis has a deadline: a busy machine passes it.
    """
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")
    config.addinivalue_line(
        "filterwarnings", "ignore:.is_gradient_checkpointing. is deprecated"
    )


@pytest.fixture(autouse=True)
def options_as_typed() -> Iterator[None]:
    """Errors name options as they are written in the code: as on the command line.

    tests/test_spoken_options.py has the other form, which Python shows.
    """
    with for_command_line():
        yield


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., Any]:
    """:func:`tiny_models.make_tokenizer`, for files that import no models."""
    import tiny_models

    return tiny_models.make_tokenizer


@pytest.fixture(scope="session")
def tiny_tokenizer(make_tokenizer) -> Any:
    """The usual tokenizer: 300 tokens, BOS in front."""
    return make_tokenizer()


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Any]:
    """:func:`tiny_models.make_model`, for files that import no models."""
    import tiny_models

    return tiny_models.make_model


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory, make_model, tiny_tokenizer) -> Path:
    """Folder of a tiny untied Llama with its tokenizer, as ``save_pretrained`` does."""
    folder = tmp_path_factory.mktemp("models") / "tiny-base"
    make_model("llama").save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def make_adapter(tiny_base, tmp_path_factory) -> Callable[..., Path]:
    """``make_adapter(folder, seed=1, r=4, alpha=8, base=tiny_base, **lora)``.

    Saves a PEFT LoRA adapter with random non-zero ``lora_B`` as PEFT does; returns
    the folder. One of the same settings is made once, and copied.
    """
    adapters: dict[str, Path] = {}

    def make(
        folder: Path,
        *,
        seed: int = 1,
        r: int = 4,
        alpha: int = 8,
        base: Path = tiny_base,
        **lora: Any,
    ) -> Path:
        lora.setdefault("target_modules", ["q_proj", "v_proj"])
        key = repr((seed, r, alpha, base, sorted(lora.items())))
        if key in adapters:
            return Path(shutil.copytree(adapters[key], folder, dirs_exist_ok=True))
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(base)
        config = LoraConfig(r=r, lora_alpha=alpha, task_type="CAUSAL_LM", **lora)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            peft_model = get_peft_model(model, config)
            for name, weight in peft_model.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(weight, std=0.3)
        peft_model.save_pretrained(folder)
        if base == tiny_base:
            adapters[key] = tmp_path_factory.mktemp("adapters") / "made"
            peft_model.save_pretrained(adapters[key])
        return folder

    return make


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """Folder of the small real models; the test is skipped where there is none."""
    folder = Path(__file__).parents[1] / "../shared/models"
    if not folder.is_dir():
        pytest.skip("the small real models are not here")
    return folder
