from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from scored_by_hand import make_items, make_loaded, naive
from tiny_models import adapted
from transformers import AutoModelForCausalLM, AutoTokenizer, TopPLogitsWarper

from spark_audit.errors import CheckpointError
from spark_audit.scoring.items import Item
from spark_audit.scoring.passes import plain as engine_module
from spark_audit.scoring.score import score
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import Pass, TokenTable
from spark_audit.stats.sampled_extraction import top_k_logp

LENGTHS = (5, 2, 40, 33, 90, 64, 64, 61, 1)

build = partial(tiny_models.make_model, bias=0.5)


@torch.inference_mode()
def expected(
    model: Any, items: Sequence[Item], usable: np.ndarray
) -> dict[str, dict[str, np.ndarray]]:
    """Each text alone through the model's own forward."""
    found = {}
    for item in items:
        ids = torch.from_numpy(item.ids.astype(np.int64))[None]
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        if len(logits):
            found[item.key] = naive(logits.numpy(), item.ids[1:], usable)
    return found


def assert_fits(
    table: TokenTable,
    found: dict[str, dict[str, np.ndarray]],
    *,
    atol: float = 1e-4,
    ranks: bool = True,
) -> None:
    for key, columns in found.items():
        rows = table.rows(key)
        for name, values in columns.items():
            if name in ("rank_lo", "ties"):
                if ranks:
                    np.testing.assert_array_equal(table.columns[name][rows], values)
            else:
                np.testing.assert_allclose(
                    table.columns[name][rows], values, atol=atol, err_msg=name
                )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2", "gemma2"])
def test_tied_and_untied_heads_have_the_figures_of_log_softmax(kind, tied):
    model = build(kind, tie_word_embeddings=tied)
    same = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert same == tied
    loaded = make_loaded(model)
    items = make_items((50, 31, 7))
    found = score(loaded, items)[Pass()]
    assert_fits(found, expected(model, items, loaded.usable))


def test_nuclei_are_a_pass_of_their_own(tmp_path):
    """It leaves the plain scores of a store as they are; top-p as transformers has."""
    model = build("llama")
    loaded = make_loaded(model)
    items = make_items((50, 7))
    plain = score(loaded, items, store=Store(tmp_path))[Pass()]
    parts = {*tmp_path.glob("*.parquet")}
    both = (Pass(), Pass("nucleus"))
    again = score(loaded, items, passes=both, store=Store(tmp_path))
    assert len({*tmp_path.glob("*.parquet")} - parts) == 1
    assert np.array_equal(again[Pass()].columns["nll"], plain.columns["nll"])
    table = again[Pass("nucleus")]
    for item in items:
        ids = torch.from_numpy(item.ids.astype(np.int64))
        with torch.no_grad():
            z = model(input_ids=ids[None]).logits[0, :-1].double()
        for p, of in ((0.9, "top_p90"), (0.95, "top_p95")):
            kept = TopPLogitsWarper(p)(ids[None], z).log_softmax(1)
            columns = ("nll", "rank_lo", f"{of}_logp", f"{of}_size")
            *given, size = (table.columns[k][table.rows(item.key)] for k in columns)
            expected = kept[range(len(z)), ids[1:]].numpy()
            np.testing.assert_allclose(top_k_logp(*given, k=size), expected, atol=1e-3)


@pytest.mark.parametrize("name", ["babyllama-1m", "english-5m"])
def test_real_weights_have_the_figures_of_log_softmax(name, shared_models):
    folder = shared_models / name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    texts = [
        "Once upon a time there was a little girl who lived by the sea.",
        "The committee decided to raise the target range by 25 basis points.",
        "Great food, cold coffee. I would go there again! Call 555-0142.",
    ]
    items = []
    for i, text in enumerate(texts):
        ids = np.array(tokenizer(text)["input_ids"], dtype=np.int32)
        items.append(Item(str(i), ids, np.arange(len(ids), dtype=np.int32)))
    loaded = make_loaded(model)
    found = score(loaded, items)[Pass()]
    wide = model.double()
    assert_fits(found, expected(wide, items, loaded.usable))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2", "falcon"])
def test_a_score_does_not_depend_on_its_batch(kind):
    # Regression: peers shift the padding mask the wrong way; 0.106 nats in NLL.
    loaded = make_loaded(build(kind))
    items = make_items((60, 59, 57, 51, 45, 41, 40, 3))
    tables = [
        score(loaded, items, batch_size=size)[Pass()] for size in ("auto", 1, 2, 7)
    ]
    tables.append(score(loaded, items[::-1])[Pass()])
    for table in tables[1:]:
        for name, values in tables[0].columns.items():
            np.testing.assert_allclose(
                table.columns[name], values, atol=1e-5, rtol=1e-5, err_msg=name
            )


def test_unusable_rows_take_no_part():
    model = build("llama")
    usable = np.ones(300, dtype=bool)
    usable[[100, 101, 280]] = False
    usable[290:] = False
    items = [
        Item(i.key, np.where(usable[i.ids], i.ids, 5).astype(np.int32), i.positions)
        for i in make_items(LENGTHS, vocabulary=290)
    ]
    loaded = make_loaded(model, usable=usable)
    found = score(loaded, items)[Pass()]
    assert_fits(found, expected(model, items, usable))


class Scaled(torch.nn.Module):
    """Halves what goes through it."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.inner(*args, **kwargs)
        out.logits = out.logits * 0.5
        return out

    def get_input_embeddings(self) -> Any:
        return self.inner.get_input_embeddings()

    def get_base_model(self) -> Any:
        return self.inner


def test_the_self_test_catches_a_model_that_changes_its_logits():
    inner = build("llama")
    model = Scaled(inner)
    items = make_items(LENGTHS)
    loaded = make_loaded(inner)
    loaded = type(loaded)(**(loaded.__dict__ | {"model": model}))
    scored = score(loaded, items)
    assert len(scored.notes) == 1
    assert "its logits differ from its head's" in scored.notes[0]
    assert_fits(scored[Pass()], expected(model, items, loaded.usable))


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ({}, True),
        ({"target_modules": ["q_proj", "lm_head"]}, False),
        ({"modules_to_save": ["lm_head"]}, False),
    ],
    ids=["attention", "lora on the head", "head saved whole"],
)
def test_an_adapter_scores_texts_as_its_model_does(settings, own):
    model = adapted(build("llama"), **settings)
    items = make_items(LENGTHS)
    loaded = make_loaded(model, usable=np.ones(300, dtype=bool))
    scored = score(loaded, items)
    assert (scored.notes == ()) == own
    assert own or "is adapted" in scored.notes[0]
    assert_fits(scored[Pass()], expected(model, items, loaded.usable))
    # Not the base's scores by accident.
    with model.disable_adapter():
        base = expected(model, items, loaded.usable)
    rows = scored[Pass()].rows("t02")
    assert np.abs(scored[Pass()].columns["nll"][rows] - base["t02"]["nll"]).max() > 0.01


def test_prompt_tuning_puts_its_positions_in_front():
    from peft import PromptTuningConfig

    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=6)
    model = adapted(build("llama"), config)
    items = make_items((40, 33, 9))
    loaded = make_loaded(model, usable=np.ones(300, dtype=bool))
    scored = score(loaded, items)
    assert len(scored.notes) == 1
    for item in items:
        ids = torch.from_numpy(item.ids.astype(np.int64))[None]
        with torch.inference_mode():
            logits = model(input_ids=ids, use_cache=False).logits[0]
        logp = torch.log_softmax(logits[6:-1].double(), -1)
        nll = -logp.gather(1, ids[0, 1:, None])[:, 0]
        rows = scored[Pass()].rows(item.key)
        np.testing.assert_allclose(scored[Pass()].columns["nll"][rows], nll, atol=1e-4)


def test_the_generic_path_takes_positions_in_chunks(monkeypatch):
    monkeypatch.setattr("spark_audit.scoring.token_columns.CPU_ROWS", 16)
    monkeypatch.setattr(engine_module, "PLAIN_HEADS", frozenset())
    model = build("llama")
    sizes: list[tuple[int, ...]] = []
    model.lm_head.register_forward_hook(
        lambda _module, _args, out: sizes.append(tuple(out.shape))
    )
    items = make_items(LENGTHS)
    loaded = make_loaded(model)
    scored = score(loaded, items)
    assert "no head is known for LlamaForCausalLM" in scored.notes[0]
    assert max(rows * positions for rows, positions, _ in sizes) <= 16
    assert_fits(scored[Pass()], expected(model, items, loaded.usable))


def test_a_forward_without_logits_to_keep(monkeypatch):
    monkeypatch.setattr(engine_module, "PLAIN_HEADS", frozenset())
    model = build("llama")
    forward = type(model).forward

    def old(self: Any, input_ids: Any, attention_mask: Any = None, **_: Any) -> Any:
        return forward(self, input_ids, attention_mask=attention_mask, use_cache=False)

    monkeypatch.setattr(type(model), "forward", old)
    items = make_items(LENGTHS)
    loaded = make_loaded(model)
    scored = score(loaded, items)
    assert "cannot leave out positions" in scored.notes[0]
    assert_fits(scored[Pass()], expected(model, items, loaded.usable))


def test_virtual_tokens_in_front_of_a_forward_without_logits_to_keep(monkeypatch):
    from peft import PromptTuningConfig, get_peft_model

    monkeypatch.setattr(engine_module, "PLAIN_HEADS", frozenset())
    model = build("llama")
    forward = type(model).forward

    def old(self: Any, input_ids: Any = None, **options: Any) -> Any:
        options.pop("logits_to_keep", None)
        return forward(self, input_ids, **options)

    monkeypatch.setattr(type(model), "forward", old)
    torch.manual_seed(0)
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    tuned = get_peft_model(model, config).eval()
    items = make_items((30, 12, 2))
    loaded = make_loaded(tuned)
    scored = score(loaded, items)
    assert "cannot leave out positions" in scored.notes[0]

    found = {}
    with torch.inference_mode():
        for item in items:
            ids = torch.from_numpy(item.ids.astype(np.int64))[None]
            logits = tuned(input_ids=ids, use_cache=False).logits[0, 3:-1]
            found[item.key] = naive(logits.numpy(), item.ids[1:], loaded.usable)
    assert_fits(scored[Pass()], found)


def test_no_logits_of_a_whole_batch_are_ever_made(monkeypatch):
    monkeypatch.setattr("spark_audit.scoring.token_columns.CPU_ROWS", 16)
    monkeypatch.setattr("spark_audit.scoring.token_columns.CPU_GROUP", 1024)
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.ndim and out.shape[-1] >= 300:
                largest = max(largest, out.numel())
            return out

    model = build("llama")
    with Watch():
        score(make_loaded(model), make_items((100, 99, 98, 97)))
    # 16 positions at a time, never the 394 of the batch: the largest of that width is
    # the head's own weight of 32 x 300.
    assert largest == 32 * 300


def test_a_bfloat16_body_keeps_a_float32_head():
    # Regression: bfloat16 logits tie 52% of a peer's targets with other tokens.
    model = build("llama", initializer_range=0.05).to(torch.bfloat16)
    items = make_items((120, 100, 80, 60))
    table = score(make_loaded(model, dtype="bfloat16"), items)[Pass()]
    assert table.columns["ties"].sum() == 0
    ids = torch.from_numpy(items[0].ids.astype(np.int64))[None]
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits[0, :-1]
    own = logits.gather(1, ids[0, 1:, None])
    assert ((logits == own).sum(1) - 1).sum() > 20  # what the model itself would give


def test_a_half_precision_model_without_own_head_is_noted(monkeypatch):
    monkeypatch.setattr(engine_module, "PLAIN_HEADS", frozenset())
    model = build("llama").to(torch.bfloat16)
    notes = score(make_loaded(model, dtype="bfloat16"), make_items((30, 20))).notes
    assert "rounded to bfloat16" in notes[0]


@pytest.mark.parametrize("generic", [False, True])
def test_nan_logits_name_the_item(generic, monkeypatch):
    if generic:
        monkeypatch.setattr(engine_module, "PLAIN_HEADS", frozenset())
    model = build("llama", tie_word_embeddings=False)
    items = make_items((30, 29, 28))
    items[1].ids[4] = 299
    items[0].ids[:] = np.minimum(items[0].ids, 298)
    items[2].ids[:] = np.minimum(items[2].ids, 298)
    with torch.no_grad():
        model.get_input_embeddings().weight[299] = torch.nan
    with pytest.raises(CheckpointError, match="NaN") as caught:
        score(make_loaded(model), items)
    assert "'t01'" in str(caught.value)


def test_memory_that_ends_halves_the_batches(monkeypatch):
    model = build("llama")
    loaded = make_loaded(model)
    items = make_items([50] * 12)
    calm = score(loaded, items)[Pass()]
    body = type(model.model)
    forward = body.forward

    def tight(self: Any, input_ids: Any = None, **options: Any) -> Any:
        if input_ids.numel() > 200:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return forward(self, input_ids=input_ids, **options)

    monkeypatch.setattr(body, "forward", tight)
    table = score(loaded, items)[Pass()]
    np.testing.assert_allclose(table.columns["nll"], calm.columns["nll"], atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "own forward"])
def test_columns_behind_a_prompt_are_those_of_the_string_alone(kind, monkeypatch):
    """Prompts of one to seven tokens: the first column is of the string's first token.

    Through the head that is known, and through the model's own forward.
    """
    if kind == "own forward":
        monkeypatch.setattr(engine_module, "PLAIN_HEADS", frozenset())
    model = build("llama")
    loaded = make_loaded(model)
    whole = make_items((12, 12, 9, 9, 14))
    prompted = [
        Item(
            item.key,
            item.ids,
            np.where(np.arange(len(item.ids)) < n, -1, item.positions).astype(np.int32),
        )
        for item, n in zip(whole, (1, 2, 3, 5, 7), strict=True)
    ]
    known = expected(model, whole, loaded.usable)
    found = score(loaded, prompted, passes=(Pass("prompted"),))[Pass("prompted")]
    for item in prompted:
        rows = found.rows(item.key)
        np.testing.assert_array_equal(found.position[rows], item.row_positions)
        for name in ("nll", "rank_lo", "ties", "top40_logp"):
            own = known[item.key][name][item.first_scored - 1 :]
            np.testing.assert_allclose(found.columns[name][rows], own, atol=1e-4)
