"""Candidates behind a cached prefix score as they do in whole sequences."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scored_by_hand import make_loaded
from tiny_models import KINDS, adapted, make_model

from spark_audit.errors import CheckpointError, IncompleteError, InputError
from spark_audit.scoring.items import Candidates
from spark_audit.scoring.passes import candidates as prefixes_module
from spark_audit.scoring.passes import plain as engine_module
from spark_audit.scoring.score import Scores, score
from spark_audit.scoring.table import Pass

KIND = Pass("candidates")


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def drawn(lengths: Sequence[int], seed: int, common: int = 0) -> tuple[np.ndarray, ...]:
    """Random candidates of these lengths that share their first tokens and no more."""
    rng = np.random.default_rng(seed)
    start = rng.integers(3, 299, common)
    rows = []
    for i, n in enumerate(lengths):
        row = np.append(start, rng.integers(3, 299, n - common))
        if n > common:
            row[common] = 3 + i  # they part here
        rows.append(row.astype(np.int32))
    return tuple(rows)


# Every shape that a set can have; prefixes of one token and more, with BOS and without.
SETS = (
    Candidates("equal", ids(1, 40, 50, 60, 70, 80), drawn([6] * 9, 0)),
    Candidates("ragged", ids(1, 41, 51, 61), drawn([1, 9, 4, 2, 9, 3, 1], 1)),
    Candidates("two long", ids(1, 48, 58), drawn([20, 20, *[5] * 9], 8)),
    Candidates("one token", ids(1, 42, 52), drawn([1] * 5, 2)),
    Candidates("common", ids(43, 53, 63), drawn([7, 9, 6, 12], 3, common=5)),
    Candidates("all of one", ids(44, 54), drawn([3, 8, 5], 4, common=3)),
    Candidates("alone", ids(1, 45, 55), drawn([6], 5)),
    Candidates("twins", ids(1, 46), (ids(7, 8, 9), ids(7, 8, 9))),
    Candidates("short prefix", ids(47), drawn([5, 4, 4], 6)),
    Candidates("long", ids(*range(100, 190)), drawn([20, 20, 18, 20], 7)),
    Candidates("nested", ids(49, 59), tuple(ids(7, 8, 9, 10)[:n] for n in (2, 4, 1))),
    Candidates(
        "tree",
        ids(1, 64, 65),
        tuple(
            ids(
                9,
                5 + i // 20,
                6,
                7 + i // 5 % 4,
                *[30 + i % 5, 70, 80 + i, 90][: n + 1],
            )
            for i, n in enumerate([4, 4, 3, 1, 2, 4] * 10)
        ),
    ),
)


@torch.inference_mode()
def expected(model: Any, item: Candidates) -> np.ndarray:
    """Each candidate alone in its whole sequence, in float64."""
    found = []
    for row in item.continuations:
        whole = torch.from_numpy(np.append(item.prefix, row).astype(np.int64))[None]
        logits = model(input_ids=whole, use_cache=False).logits[0, :-1].double()
        nll = -torch.log_softmax(logits, -1).gather(1, whole[0, 1:, None])[:, 0]
        found.append(float(nll[len(item.prefix) - 1 :].sum()))
    return np.array(found)


def assert_fits(
    scored: Scores, model: Any, sets: Sequence[Candidates], *, atol: float = 1e-5
) -> None:
    table = scored[KIND]
    for item in sets:
        rows = table.rows(item.key)
        count = np.array([len(row) for row in item.continuations])
        truth = expected(model, item)
        mean = table.columns["nll_mean"][rows]
        total = table.columns["nll_sum"][rows]
        np.testing.assert_allclose(mean, truth / count, atol=atol, err_msg=item.key)
        np.testing.assert_allclose(total, truth, atol=atol * count.max(), rtol=1e-6)


@pytest.mark.parametrize("kind", list(KINDS))
def test_scores_are_those_of_whole_sequences(kind):
    model = make_model(kind)
    scored = score(make_loaded(model), SETS, passes=[KIND])
    assert scored.notes == ()  # the cache was used
    assert_fits(scored, model, SETS)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_nothing_depends_on_the_batches(kind, monkeypatch):
    loaded = make_loaded(make_model(kind))
    first = score(loaded, SETS, passes=[KIND])[KIND]
    tables = [score(loaded, SETS, passes=[KIND], batch_size=n)[KIND] for n in (1, 3)]
    tables.append(score(loaded, SETS[::-1], passes=[KIND])[KIND])
    tables += [score(loaded, [item], passes=[KIND])[KIND] for item in SETS]
    for room in (1, 9000):  # for one row at a time, and for several
        monkeypatch.setattr(prefixes_module, "CPU_CACHE", room)
        scored = score(loaded, SETS, passes=[KIND])
        assert scored.notes == ()
        tables.append(scored[KIND])
    for table in tables:
        for key in table.ids:
            for name, values in table.columns.items():
                np.testing.assert_allclose(
                    values[table.rows(key)],
                    first.columns[name][first.rows(key)],
                    rtol=1e-5,
                    atol=1e-5,
                )


def fed(monkeypatch: pytest.MonkeyPatch, model: Any) -> list[tuple[int, ...]]:
    """Shapes of what the model's body reads, in order."""
    shapes: list[tuple[int, ...]] = []
    body = type(getattr(model, model.base_model_prefix))
    forward = body.forward

    def watch(self: Any, input_ids: Any = None, **options: Any) -> Any:
        shapes.append(tuple(input_ids.shape))
        return forward(self, input_ids=input_ids, **options)

    monkeypatch.setattr(body, "forward", watch)
    return shapes


def test_the_prefix_is_read_once(monkeypatch):
    model = make_model("llama")
    item = Candidates("x", ids(*range(3, 103)), drawn([14] * 40, 0))
    shapes = fed(monkeypatch, model)
    score(make_loaded(model), [item], passes=[KIND])
    # The self-test, three candidates whole and cached; then the set.
    at = [i for i, shape in enumerate(shapes) if shape == (1, 100)]
    assert len(at) == 2
    assert sum(rows * width for rows, width in shapes[at[1] + 1 :]) == 40 * 13


def test_a_set_that_tells_nothing_verifies_nothing(monkeypatch):
    # A longer set, of one candidate, is read without anything behind a cache.
    model = make_model("llama")
    body = type(model.model)
    forward = body.forward

    def leaky(self: Any, past_key_values: Any = None, **options: Any) -> Any:
        behind = past_key_values is not None and past_key_values.get_seq_length()
        out = forward(self, past_key_values=past_key_values, **options)
        if behind:
            out[0].mul_(1.01)
        return out

    monkeypatch.setattr(body, "forward", leaky)
    lone = Candidates("lone", ids(*range(100, 200)), drawn([1], 0))
    assert "is off by" in whole(score(make_loaded(model), [lone, *SETS], passes=[KIND]))
    assert score(make_loaded(model), [lone], passes=[KIND]).notes == ()


def test_unusable_rows_take_no_part():
    model = make_model("llama", vocab_size=310)
    usable = np.ones(310, dtype=bool)
    usable[[100, 101]] = False
    usable[299:] = False
    spared = [[np.where(usable[row], row, 9) for row in s.continuations] for s in SETS]
    sets = [
        replace(s, continuations=tuple(row.astype(np.int32) for row in rows))
        for s, rows in zip(SETS, spared, strict=True)
    ]
    scored = score(make_loaded(model, usable=usable), sets, passes=[KIND])

    class Masked:
        def __call__(self, **options: Any) -> Any:
            out = model(**options)
            out.logits[..., torch.from_numpy(~usable)] = -torch.inf
            return out

    assert_fits(scored, Masked(), sets)


@pytest.mark.parametrize(
    ("settings", "own"),
    [({}, True), ({"target_modules": ["q_proj", "lm_head"]}, False)],
    ids=["attention", "lora on the head"],
)
def test_an_adapter_scores_candidates_as_its_model_does(settings, own):
    model = adapted(make_model("llama"), **settings)
    loaded = make_loaded(model, usable=np.ones(300, dtype=bool))
    scored = score(loaded, SETS, passes=[KIND])
    assert (scored.notes == ()) == own
    assert all("read whole" not in text for text in scored.notes)
    assert_fits(scored, model, SETS)
    with model.disable_adapter():
        base = expected(model, SETS[0])
    found = scored[KIND].columns["nll_sum"][scored[KIND].rows("equal")]
    assert np.abs(found - base).max() > 0.01


def test_frozen_noise_reaches_prefix_and_candidates():
    from spark_audit.checkpoints.adapters import input_noise

    model = make_model("llama")
    plain = score(make_loaded(model), SETS, passes=[KIND])[KIND]
    noise = torch.randn(300, 32, generator=torch.Generator().manual_seed(0))
    with input_noise(model, noise):
        scored = score(make_loaded(model), SETS, passes=[KIND])
        assert_fits(scored, model, SETS)
    apart = scored[KIND].columns["nll_sum"] - plain.columns["nll_sum"]
    assert np.abs(apart).max() > 0.1


@pytest.mark.parametrize("keep", [True, False])
def test_the_models_own_head(keep, monkeypatch):
    monkeypatch.setattr(engine_module, "PLAIN_HEADS", frozenset())
    monkeypatch.setattr("spark_audit.scoring.token_columns.CPU_ROWS", 16)
    model = make_model("llama")
    if not keep:
        forward = type(model).forward

        def old(
            self: Any,
            input_ids: Any,
            attention_mask: Any = None,
            past_key_values: Any = None,
            use_cache: bool = False,
        ) -> Any:
            return forward(
                self,
                input_ids,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                use_cache=use_cache,
            )

        monkeypatch.setattr(type(model), "forward", old)
    scored = score(make_loaded(model), SETS, passes=[KIND])
    assert len(scored.notes) == 1
    assert "no head is known" in scored.notes[0]
    assert_fits(scored, model, SETS)


# --- where the cache is not used ------------------------------------------------------


def whole(scored: Scores) -> str:
    (text,) = (text for text in scored.notes if "read whole" in text)
    return text


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("mamba", {"state_size": 4}, "takes no cache"),
        (
            "lfm2",
            {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48},
            "more than keys and values",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2, "rope_theta": 1}},
            "rotations depend",
        ),
    ],
)
def test_models_that_keep_something_else_read_all_of_it(kind, settings, reason):
    model = make_model(kind, **settings)
    scored = score(make_loaded(model), SETS, passes=[KIND])
    assert reason in whole(scored)
    assert_fits(scored, model, SETS)


def test_prompt_tuning_reads_all_of_it():
    from peft import PromptTuningConfig

    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=6)
    model = adapted(make_model("llama"), config)
    loaded = make_loaded(model, usable=np.ones(300, dtype=bool))
    scored = score(loaded, SETS, passes=[KIND])
    assert "virtual tokens" in whole(scored)

    class Aligned:
        def __call__(self, **options: Any) -> Any:
            out = model(**options)
            out.logits = out.logits[:, 6:]
            return out

    assert_fits(scored, Aligned(), SETS)


def test_a_forward_that_fails_on_a_cache_is_not_asked_again(monkeypatch):
    model = make_model("llama")
    body = type(model.model)
    forward = body.forward

    def refuse(self: Any, past_key_values: Any = None, **options: Any) -> Any:
        if past_key_values is not None:
            raise AttributeError("no such cache")
        return forward(self, **options)

    monkeypatch.setattr(body, "forward", refuse)
    scored = score(make_loaded(model), SETS, passes=[KIND])
    assert "does not take a cache (AttributeError)" in whole(scored)
    assert_fits(scored, model, SETS)


# --- what goes wrong ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Candidates("bad", ids(), (ids(4),)), "there is no text before its candidates"),
        (Candidates("equal", ids(1), (ids(4),)), "the key occurs twice"),
        (Candidates("bad", ids(1, 300), (ids(4),)), "vocabulary does not have"),
        (Candidates("bad", ids(1), (ids(4), ids(300))), "vocabulary does not have"),
        (Candidates("bad", ids(1), (ids(4), ids(299))), "marked as no token"),
        (
            Candidates("bad", ids(*[5] * 250), (ids(4), ids(*[6] * 7))),
            "257 tokens do not fit the context of 256",
        ),
    ],
)
def test_sets_that_cannot_be_scored_are_named(item, message):
    usable = np.arange(300) < 299
    loaded = make_loaded(make_model("llama"), usable=usable)
    with pytest.raises(InputError, match=message) as caught:
        score(loaded, [SETS[0], item], passes=[KIND])
    assert f"candidates {item.key!r}" in str(caught.value)


def test_nan_logits_name_the_set():
    model = make_model("llama", tie_word_embeddings=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[43] = torch.nan
    with pytest.raises(CheckpointError, match="NaN") as caught:
        score(make_loaded(model), SETS, passes=[KIND])
    assert "candidates 'common'" in str(caught.value)


def test_memory_that_ends_halves_the_batches(monkeypatch):
    model = make_model("llama")
    loaded = make_loaded(model)
    item = Candidates("x", ids(*range(3, 40)), drawn([9] * 40, 0))
    sets = [
        item,
        *(
            replace(item, key=f"{n}", continuations=item.continuations[n:])
            for n in range(1, 6)
        ),
    ]
    calm = score(loaded, sets, passes=[KIND])[KIND]
    body = type(model.model)
    forward = body.forward
    failed = 0

    def tight(self: Any, input_ids: Any = None, **options: Any) -> Any:
        nonlocal failed
        if input_ids.numel() > 120:
            failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return forward(self, input_ids=input_ids, **options)

    monkeypatch.setattr(body, "forward", tight)
    table = score(loaded, sets, passes=[KIND])[KIND]
    np.testing.assert_allclose(
        table.columns["nll_sum"], calm.columns["nll_sum"], rtol=1e-5
    )
    assert failed == 2  # 320 and 160 tokens; later sets do not try again

    def full(self: Any, input_ids: Any = None, **options: Any) -> Any:
        if input_ids.numel() > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return forward(self, input_ids=input_ids, **options)

    monkeypatch.setattr(body, "forward", full)
    with pytest.raises(IncompleteError):
        score(loaded, [item], passes=[KIND])


# --- stored and told ------------------------------------------------------------------
