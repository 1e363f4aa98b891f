"""Tiny models and tokenizers that several test files share.

``torch`` and ``transformers`` are imported inside the fixtures only, so that tests of
pure code start at once. Folders made here are session-wide: copy before changing one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_audit.sentences import renderer

# Sentences of findings and guards that tests make by hand.
SAID = {"said": "{{ text }}", "said.withdrawn": "{{ otherwise }}"}
renderer._known("en").update(SAID | {"guard.said": "{{ text }}"})

pytest_plugins = ["synthetic"]

# Names, numbers and punctuation of the formats that tests write; no example text.
CORPUS = (
    "The service was good and the food was cold. Text: she said it was fine.",
    "Contact Maria Jones at maria.jones@example.org or call 555-0142 today.",
    "Customer John Smith paid 42 dollars on Monday; the label is positive.",
    "The rate was raised by 25 basis points. Label: hawkish, dovish, neutral.",
    "World, Sports, Business and Technology news of the week were read again.",
    "My social security number is 078-05-1120 and the password is xK9#qT2!.",
) * 3

LONGEST = (
    "test_golden.py",
    "test_run.py",
    "test_all.py",
    "test_ray.py",
    "test_demo.py",
    "test_distributed.py",
    "test_run_folder.py",
    "test_task_state.py",
    "test_canary.py",
    "test_privacy_dpsgd.py",
    "test_additions.py",
    "test_fuzz.py",
)
"""Files that take longest, to be run first: none is left to one worker at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accept", action="store_true", help="write the files of tests/golden anew"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


def pytest_collection_finish() -> None:
    """What is imported stays: to look for garbage in it takes a twentieth of all."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)


def pytest_configure(config: pytest.Config) -> None:
    """Let pass one warning that PEFT 0.21 draws from transformers 5.23 by itself."""
    config.addinivalue_line(
        "filterwarnings", "ignore:.is_gradient_checkpointing. is deprecated"
    )


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., Any]:
    """``make_tokenizer(bos=True, size=300)``: a fast byte-level BPE tokenizer.

    Ids 0, 1, 2 are ``<pad>``, ``<s>``, ``</s>``; with ``bos`` the tokenizer puts
    ``<s>`` in front, as Llama's does. Offsets leave nothing out (``trim_offsets`` is
    off: a word's token starts on the blank before it).
    """

    def make(*, bos: bool = True, size: int = 300) -> Any:
        from tokenizers import (
            Tokenizer,
            decoders,
            models,
            pre_tokenizers,
            processors,
            trainers,
        )
        from transformers import PreTrainedTokenizerFast

        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=["<pad>", "<s>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(CORPUS, trainer)
        byte_level = processors.ByteLevel(trim_offsets=False)
        if bos:
            template = processors.TemplateProcessing(
                single="<s> $A", special_tokens=[("<s>", 1)]
            )
            inner.post_processor = processors.Sequence([byte_level, template])
        else:
            inner.post_processor = byte_level
        return PreTrainedTokenizerFast(
            tokenizer_object=inner,
            pad_token="<pad>",
            bos_token="<s>",
            eos_token="</s>",
            model_max_length=256,
        )

    return make


@pytest.fixture(scope="session")
def tiny_tokenizer(make_tokenizer: Callable[..., Any]) -> Any:
    """The usual tokenizer: 300 tokens, BOS in front."""
    return make_tokenizer()


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Any]:
    """``make_model(kind="llama", seed=0, **config)``: a tiny random causal LM.

    ``kind`` is ``llama``, ``gpt2`` or ``qwen2``; hidden size 32, two layers, 300
    rows in the head. Weights are wide (std 0.2), so that predictions differ clearly.
    Configuration fields go by their Llama names except for ``gpt2``.
    """

    def make(kind: str = "llama", *, seed: int = 0, **config: Any) -> Any:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        sizes: dict[str, Any] = {"vocab_size": 300, "initializer_range": 0.2}
        if kind == "gpt2":
            sizes |= {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
            sizes |= {"bos_token_id": 1, "eos_token_id": 2}
        else:
            sizes |= {"hidden_size": 32, "num_hidden_layers": 2}
            sizes |= {"intermediate_size": 64, "num_attention_heads": 4}
            sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 256}
            sizes |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        settings = AutoConfig.for_model(kind, **(sizes | config))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return AutoModelForCausalLM.from_config(settings).eval()

    return make


@pytest.fixture(scope="session")
def tiny_base(
    tmp_path_factory: pytest.TempPathFactory,
    make_model: Callable[..., Any],
    tiny_tokenizer: Any,
) -> Path:
    """Folder of a tiny untied Llama with its tokenizer, as ``save_pretrained`` does."""
    folder = tmp_path_factory.mktemp("models") / "tiny-base"
    make_model("llama").save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def make_adapter(tiny_base: Path) -> Callable[..., Path]:
    """``make_adapter(folder, seed=1, r=4, alpha=8, base=tiny_base, **lora)``.

    Saves a PEFT LoRA adapter with random non-zero ``lora_B`` as PEFT does; returns
    the folder.
    """

    def make(
        folder: Path,
        *,
        seed: int = 1,
        r: int = 4,
        alpha: int = 8,
        base: Path = tiny_base,
        **lora: Any,
    ) -> Path:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(base)
        lora.setdefault("target_modules", ["q_proj", "v_proj"])
        config = LoraConfig(r=r, lora_alpha=alpha, task_type="CAUSAL_LM", **lora)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            peft_model = get_peft_model(model, config)
            for name, weight in peft_model.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(weight, std=0.3)
        peft_model.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """Folder of the small real models; the test is skipped where there is none."""
    folder = Path(__file__).parents[1] / "../shared/models"
    if not folder.is_dir():
        pytest.skip("the small real models are not here")
    return folder
