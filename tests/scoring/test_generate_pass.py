import inspect
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scored_by_hand import make_loaded
from tiny_models import make_model, save_model
from transformers import AutoModelForCausalLM

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.errors import CheckpointError
from spark_audit.scoring.items import Prompt
from spark_audit.scoring.passes import generate
from spark_audit.scoring.passes.generate import AT_LIMIT, EOS, NEWLINE
from spark_audit.scoring.table import Pass, PassSettings

Run = dict[str, dict[str, np.ndarray]]


class Spelled:
    """A tokenizer that writes a token as its id, so that text shows the tokens."""

    eos_token_id = 2

    def __init__(self, newline: int = -1) -> None:
        self.newline = newline

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join("\n" if i == self.newline else f" {i}" for i in ids)


@pytest.fixture
def answers(monkeypatch):
    """The tokens of every answer, which the pass itself does not hand over."""
    found: dict[str, list[int]] = {}
    columns = generate.Answer.columns

    def spy(self: Any) -> Any:
        found[self.item.key] = list(self.new_ids)
        return columns(self)

    monkeypatch.setattr(generate.Answer, "columns", spy)
    return found


def prompts(lengths: Sequence[int], *, new: int = 12, seed: int = 0) -> list[Prompt]:
    rng = np.random.default_rng(seed)
    return [
        Prompt(f"t{i:02d}", rng.integers(3, 300, n).astype(np.int32), "x", new)
        for i, n in enumerate(lengths)
    ]


def ran(
    loaded: Any, items: Sequence[Prompt], *, batch_size: int | None = None
) -> tuple[Run, list[str]]:
    found: Run = {}
    notes: list[str] = []
    settings = PassSettings(Pass("generate"), batch_size, notes.append)
    with loaded.active() as model:
        results = generate.run(loaded, model, items, settings) if items else ()
        for item, columns in results:
            assert item.key not in found
            found[item.key] = columns
    return found, notes


@torch.inference_mode()
def greedy(model: Any, item: Prompt, usable: np.ndarray, eos: set[int]) -> list[int]:
    """The plainest loop: one prompt, no cache, no padding, whole sequences."""
    ids, new = [int(i) for i in item.ids], []
    for _ in range(item.max_new_tokens):
        given = torch.tensor([ids], device=model.device)
        z = model(input_ids=given, use_cache=False).logits[0, -1]
        z = z.float().cpu().numpy().copy()
        z[~usable] = -np.inf
        token = int(np.argmax(z))
        if token in eos:
            break
        new.append(token)
        ids.append(token)
    return new


LENGTHS = (5, 2, 40, 33, 90, 64, 64, 61, 1, 7, 12)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2"])
def test_batched_equals_unbatched_token_for_token(kind, answers):
    model = make_model(kind)
    loaded = make_loaded(model, tokenizer=Spelled())
    items = prompts(LENGTHS)
    expected = {i.key: greedy(model, i, loaded.usable, {2}) for i in items}
    assert len({tuple(tokens) for tokens in expected.values()}) > 5
    for batch_size in (None, 1, 4):
        answers.clear()
        found, notes = ran(loaded, items, batch_size=batch_size)
        assert notes == []
        assert answers == expected
        assert set(found) == {item.key for item in items}


@pytest.mark.parametrize("kind", ["gemma2", "opt", "bloom", "gptj", "mamba"])
def test_other_architectures_pad_cache_or_say_that_they_do_not(kind, answers):
    model = make_model(kind, **({"state_size": 8} if kind == "mamba" else {}))
    loaded = make_loaded(model, tokenizer=Spelled())
    items = prompts((5, 9, 9, 40, 33, 30), new=6)
    expected = {i.key: greedy(model, i, loaded.usable, {2}) for i in items}
    _, notes = ran(loaded, items)
    assert answers == expected
    if kind == "mamba":  # it has another cache than keys and values
        assert any("without a cache" in note for note in notes)
    else:
        assert notes == []


def test_rows_that_are_no_token_are_never_written(answers):
    model = make_model("llama")
    usable = np.zeros(300, dtype=bool)
    usable[[2, *range(50, 120)]] = True
    loaded = make_loaded(model, tokenizer=Spelled(), usable=usable)
    items = prompts((5, 9, 30))
    ran(loaded, items)
    free = greedy(model, items[0], np.ones(300, bool), {2})
    assert not usable[free].all()
    for item in items:
        assert answers[item.key] == greedy(model, item, usable, {2})


class Scripted(torch.nn.Module):
    """A model that writes a fixed text after each prompt, whose first token names it.

    ``script[first token]`` are the tokens; ``logit`` the value of the likeliest one.
    """

    def __init__(self, script: dict[int, list[int]], rows: int = 300) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(rows, 4)
        self.script, self.rows = script, rows
        self.also: list[int] = []
        self.value = 1.0
        text = SimpleNamespace(eos_token_id=None)
        self.config = SimpleNamespace(get_text_config=lambda: text, eos_token_id=None)
        self.generation_config = SimpleNamespace(eos_token_id=None)
        self.lengths: list[tuple[int, ...]] = []

    def get_input_embeddings(self) -> Any:
        return self.embed

    def get_output_embeddings(self) -> Any:
        return self.embed

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> Any:
        self.lengths.append(tuple(input_ids.shape))
        logits = torch.zeros(*input_ids.shape, self.rows)
        for row, ids in enumerate(input_ids.tolist()):
            told = self.script.get(ids[0], [])
            at = len(ids) - self.prompt
            if 0 <= at < len(told):
                logits[row, -1, [told[at], *self.also]] = self.value
        return SimpleNamespace(logits=logits)

    prompt = 3


def scripted(script: dict[int, list[int]]) -> tuple[Scripted, list[Prompt]]:
    model = Scripted(script)
    items = [
        Prompt(f"t{first}", np.array([first, 9, 9], dtype=np.int32), "x", 5)
        for first in script
    ]
    return model, items


def test_an_answer_ends_at_any_eos_a_newline_or_its_length(answers):
    script = {20: [7, 8, 2], 21: [7, 3], 22: [7, 4], 23: [7, 8, 10, 9], 24: [7] * 9}
    model, items = scripted(script)
    model.config.eos_token_id = 3
    model.generation_config.eos_token_id = [3, 4]
    loaded = make_loaded(model, tokenizer=Spelled(newline=10))
    found, notes = ran(loaded, items)
    assert answers["t20"] == [7, 8]  # the tokenizer's
    assert answers["t21"] == [7]  # the configuration's
    assert answers["t22"] == [7]  # the generation settings'
    stops = {key: int(columns["stop"][0]) for key, columns in found.items()}
    assert stops == {
        "t20": EOS,
        "t21": EOS,
        "t22": EOS,
        "t23": NEWLINE,
        "t24": AT_LIMIT,
    }
    tokens = {key: int(columns["n_tokens"][0]) for key, columns in found.items()}
    assert tokens == {"t20": 2, "t21": 1, "t22": 1, "t23": 3, "t24": 5}
    for columns in found.values():
        assert {name: (v.dtype, v.shape) for name, v in columns.items()} == {
            "strict": (np.dtype(np.int8), (1,)),
            "normalised": (np.dtype(np.int8), (1,)),
            "stop": (np.dtype(np.int8), (1,)),
            "n_tokens": (np.dtype(np.int32), (1,)),
        }
    assert any("without a cache" in note for note in notes)


def test_a_model_that_cannot_pad_gets_batches_of_one_length():
    model, items = scripted({20: [7, 2], 21: [8, 2]})
    longer = replace(items[0], key="longer", ids=np.array([22, 9, 9, 9], np.int32))
    _, notes = ran(make_loaded(model, tokenizer=Spelled()), [*items, longer])
    assert any("one length" in note for note in notes)
    assert (2, 3) in model.lengths
    assert (1, 4) in model.lengths
    assert not any(shape[0] == 3 for shape in model.lengths)


def test_the_lowest_id_wins_a_tie(answers):
    model, items = scripted({20: [100, 100]})
    model.also = [60, 200]
    ran(make_loaded(model, tokenizer=Spelled()), items)
    assert answers["t20"][:2] == [60, 60]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_name_the_example(value):
    model, items = scripted({20: [7, 7, 2], 21: [8, 8, 2]})
    model.script, model.value = {21: [8]}, value
    with pytest.raises(CheckpointError, match="'t21'.*NaN"):
        ran(make_loaded(model, tokenizer=Spelled()), items)


@pytest.mark.parametrize(
    ("written", "target", "strict", "alike"),
    [
        (" Positive", "Positive", 1, 1),
        (" positive.", "Positive", 0, 1),
        ("  sci /  TECH", "Sci/Tech", 0, 0),
        (" very  good!", "very good", 0, 1),
        (" very good", " very good ", 1, 1),
        (" negative", "positive", 0, 0),
        ("\npositive", "positive", 0, 0),
        ("\npositive", "\npositive", 1, 1),
        ("a\nb\nc", "a\nb", 1, 1),
        ("?", "!", 0, 0),
        ("", "!", 0, 0),
    ],
)
def test_what_counts_as_right(written, target, strict, alike):
    assert graded(written, target) == (strict, alike)


def graded(written: str, target: str, labels: tuple[str, ...] = ()) -> tuple[int, int]:
    class Characters:
        def decode(self, ids: Sequence[int], **_: Any) -> str:
            return "".join(map(chr, ids))

    item = Prompt("t", np.array([90, 58], np.int32), target, 40, labels)
    answer = generate.Answer(Characters(), item)
    for char in written:
        if answer.stop is None:
            answer.take(ord(char), frozenset())
    if answer.stop is None:
        answer.take(2, frozenset({2}))
    columns = answer.columns()
    return int(columns["strict"][0]), int(columns["normalised"][0])


def test_a_character_of_several_tokens_is_read_whole(tiny_tokenizer):
    """The prompt ends inside a character; the answer has the rest of it."""
    ids = tiny_tokenizer("good: é", add_special_tokens=False)["input_ids"]
    item = Prompt("t", np.array(ids[:-1], np.int32), "é", 4)
    answer = generate.Answer(tiny_tokenizer, item)
    answer.take(ids[-1], frozenset({2}))
    answer.take(2, frozenset({2}))
    assert int(answer.columns()["strict"][0]) == 1


def test_generation_settings_of_a_checkpoint_change_nothing(tmp_path, answers):
    model = make_model("llama", seed=3)
    items = prompts((5, 9, 30, 31))
    expected = {i.key: greedy(model, i, np.ones(300, bool), {2}) for i in items}
    model.generation_config.update(
        do_sample=True,
        temperature=3.0,
        top_k=5,
        repetition_penalty=5.0,
        no_repeat_ngram_size=1,
        min_new_tokens=6,
        suppress_tokens=sorted({t for new in expected.values() for t in new})[:20],
    )
    save_model(model, tmp_path)
    assert "repetition_penalty" in (tmp_path / "generation_config.json").read_text()
    ran(open_checkpoint(str(tmp_path)), items)
    assert answers == expected


def test_an_adapter_and_its_frozen_noise_are_switched_on(
    tmp_path, tiny_base, make_adapter, answers
):
    from safetensors.torch import save_file

    items = prompts((5, 9, 30, 31))
    found = []
    plain = make_adapter(tmp_path / "plain")
    noisy = make_adapter(tmp_path / "noisy")
    noise = torch.randn(300, 32, generator=torch.Generator().manual_seed(0))
    save_file({"noise": noise}, noisy / "frozen_noise.safetensors")
    for path in (tiny_base, plain, noisy):
        base = None if path == tiny_base else str(tiny_base)
        loaded = open_checkpoint(str(path), base=base)
        answers.clear()
        ran(loaded, items)
        with loaded.active() as model:
            for item in items:
                alone = greedy(model, item, loaded.usable, {2})
                assert answers[item.key] == alone
        found.append(dict(answers))
    assert found[0] != found[1]
    assert found[1] != found[2]


def test_prompt_tuning_is_read_whole(tmp_path, tiny_base, answers):
    """Its virtual tokens stand neither behind a padding nor before a cached part."""
    from peft import PromptTuningConfig, get_peft_model

    base = AutoModelForCausalLM.from_pretrained(tiny_base)
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5)
    tuned = get_peft_model(base, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, weight in tuned.named_parameters():
            if "prompt" in name:
                torch.nn.init.normal_(weight, std=0.5)
    tuned.save_pretrained(tmp_path)
    loaded = open_checkpoint(str(tmp_path), base=str(tiny_base))
    items = prompts((5, 9, 9, 20), new=6)
    _, notes = ran(loaded, items)
    assert len(notes) == 2
    with loaded.active() as model:
        for item in items:
            assert answers[item.key] == greedy(model, item, loaded.usable, {2})


def test_memory_that_ends_halves_the_batch(answers):
    model = make_model("llama")
    items = prompts((20,) * 9, new=4)
    expected = {i.key: greedy(model, i, np.ones(300, bool), {2}) for i in items}
    forward, sizes = model.forward, []

    def narrow(input_ids: torch.Tensor, **options: Any) -> Any:
        sizes.append(len(input_ids))
        if len(input_ids) > 3:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return forward(input_ids=input_ids, **options)

    narrow.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    model.forward = narrow
    ran(make_loaded(model, tokenizer=Spelled()), items)
    assert answers == expected
    assert max(sizes) > 3
