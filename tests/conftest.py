"""Tiny models and tokenizers that several test files share.

``torch`` and ``transformers`` are imported inside the fixtures only, so that tests of
pure code start at once. Folders made here are session-wide: copy before changing one.
"""

import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from spark_audit.sentences import renderer
from spark_audit.spoken_options import for_command_line

if "PYTEST_XDIST_WORKER" in os.environ:
    # As many workers as cores: with more threads than cores, each waits for the others.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Sentences of findings and guards that tests make by hand.
SAID = {"said": "{{ text }}", "said.withdrawn": "{{ otherwise }}"}
renderer.known_templates().update(SAID | {"guard.said": "{{ text }}"})

pytest_plugins = ["synthetic", "example_scene", "cells"]

SHARED = {
    "tests/faults": "workshop",
    "tests/report/figures": "figures drawn once",
    "tests/test_additions.py": "server of forks",
    "tests/train/test_distributed.py": "server of forks",
    "tests/integrations/test_callback.py": "server of forks",
}
"""File or folder -> what it shares with others of one worker, and what takes long."""

LONGEST = (
    "figures notebooks additions demo golden ray verify fuzz faults every_audit "
    "reused_work "
    "open_checkpoints distributed quickstart callback mia supervision_of_canaries "
    "lora_variants decoding matched canary options kept_reports hostile_evidence "
    "compare candidates_pass build peft_adapter training_calls training_run "
    "growing_files task_state wheel extract privacy_dpsgd gate_output writers "
    "supervision_by_trl docs pii run_folder"
).split()
"""Files and their folders that take longest, to be run first.

None of them is left to one worker at the end.
"""

LAST = ("typed_calls",)
"""Files that come last: by then another process has checked most of the types."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept", action="store_true", help="write the files of tests/golden anew"
    )


class SharingFiles(LoadFileScheduling):
    """One worker runs all of a file, and all files that share what takes long."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        for path, shared in SHARED.items():
            if PurePosixPath(file).is_relative_to(path):
                return shared
        return file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Replace the scheduler of ``--dist loadfile`` only."""
    if config.getoption("dist") == "loadfile":
        return SharingFiles(config, log)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    names = [*LONGEST, "", *LAST]
    places = {name: number for number, name in enumerate(names)}

    def place_of(item: pytest.Item) -> int:
        file_name = item.path.stem.removeprefix("test_")
        place_of_file = places.get(file_name, places[""])
        return places.get(item.path.parent.name, place_of_file)

    items.sort(key=place_of)


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
    _hear_signals()


def _hear_signals() -> None:
    """Hear the signals that tests send, also where pytest runs under ``nohup``.

    ``nohup`` and scripts that run pytest in the background have them ignored, which all
    processes that tests start would inherit.
    """
    usual_handlers = {
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
    }
    for number, handler in usual_handlers.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


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
