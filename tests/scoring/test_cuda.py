"""What a GPU scores is what the CPU scores: passes, adapters, resumed stores."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from scored_by_hand import make_items, make_loaded
from tiny_models import make_model

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.scoring.items import Candidates, Item, Prompt
from spark_audit.scoring.score import score
from spark_audit.scoring.store import Store
from spark_audit.scoring.table import PLAIN_COLUMNS, Pass

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
LENGTHS = (60, 2, 31, 17, 200, 44)


def same(one: Any, two: Any) -> None:
    assert one.ids == two.ids
    for name, values in two.columns.items():
        if values.dtype.kind == "i":  # logits that differ by a rounding may swap
            assert np.abs(one.columns[name] - values).max() <= 1, name
        else:
            np.testing.assert_allclose(
                one.columns[name], values, rtol=1e-4, atol=1e-4, err_msg=name
            )


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_every_pass_agrees_with_the_cpu(tiny_tokenizer, kind):
    here = make_model(kind, vocab_size=3000)
    there = copy.deepcopy(here).cuda()
    items = make_items(LENGTHS, vocabulary=3000)
    for cpu, gpu in zip(
        score(make_loaded(here), items).values(),
        score(make_loaded(there, device="cuda"), items).values(),
        strict=True,
    ):
        assert set(gpu.columns) == set(PLAIN_COLUMNS)
        same(gpu, cpu)
    rng = np.random.default_rng(0)
    rows = tuple(rng.integers(3, 3000, (40, 9)).astype(np.int32))
    sets = [Candidates("set", items[0].ids, rows)]
    prompts = [Prompt("asked", items[0].ids, "nothing", 5)]
    for wanted, given in ((Pass("candidates"), sets), (Pass("generate"), prompts)):
        cpu, gpu = (
            score(
                make_loaded(model, device=device, tokenizer=tiny_tokenizer),
                given,
                passes=[wanted],
            )[wanted]
            for model, device in ((here, "cpu"), (there, "cuda"))
        )
        same(gpu, cpu)


def test_an_adapter_scores_as_on_the_cpu(make_adapter, tiny_base, tmp_path):
    adapter = make_adapter(tmp_path / "adapter")
    items = make_items(LENGTHS)
    found = [
        score(open_checkpoint(str(adapter), base=str(tiny_base), device=device), items)[
            Pass()
        ]
        for device in ("cuda", "cpu")
    ]
    same(*found)


def test_a_store_that_the_cpu_began_is_finished_on_the_gpu(tmp_path):
    model = make_model()
    items: list[Item] = make_items(LENGTHS)
    score(make_loaded(model), items[:3], store=Store(tmp_path))
    there = make_loaded(copy.deepcopy(model).cuda(), device="cuda")
    store = Store(tmp_path)
    keys = store.pass_items(there, items, Pass()).store_keys().values()
    assert len(store.lacking(keys)) == len(items) - 3
    table = score(there, items, store=store)[Pass()]
    same(table, score(make_loaded(model), items)[Pass()])
