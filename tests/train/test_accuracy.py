"""Accuracy in training is what the utility audit says of the same stage."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_training import train
from scored_by_hand import make_loaded
from tiny_models import make_model, make_tokenizer

from spark_audit.audits import Utility
from spark_audit.checkpoints.specs import Loading
from spark_audit.data.examples import Canary, Example, write_examples
from spark_audit.pipeline.run import Request, run
from spark_train.corpus import accuracy, answer_prompts, read_matrix, write_matrix
from spark_train.model.lora import add_lora

WORDS = "service food cold good fine rate raised basis points news read again".split()
LABELS = {
    "yelp": (" good", " bad"),
    "fomc": (" good", " Good!", " cold"),
    "news": (" a",),
}


def examples() -> list[Example]:
    """Three tasks of 6 train and 12 test rows; ``news`` has no test row to ask."""
    rng = np.random.default_rng(0)
    rows = []
    for task, labels in LABELS.items():
        for i in range(18):
            text = " ".join(rng.choice(WORDS, 4))
            answer = labels[int(rng.integers(len(labels)))]
            split: Any = "train" if i < 6 else "test"
            rows.append(
                Example(
                    id=f"{task}-{i:02d}",
                    task=task,
                    prompt=f"{text} Label: " if i % 2 else f"{text}. Label:",
                    response=answer[1:] if i % 2 else answer,
                    split="train" if task == "news" else split,
                    source_id=f"{task}-{i}",
                )
            )
    # None of these is asked.
    for task in LABELS:
        rows.append(Example(f"{task}-blank", task, "No answer:", " ", "test", "b"))
        rows.append(
            Example(
                f"{task}-canary",
                task,
                "Key 1234. Label:",
                " good",
                "test",
                "c",
                canary=Canary("c0", "login", 0, True, 1),
            )
        )
    return rows


def lesson(model: Any, prompt: str, answer: str, tokenizer: Any) -> torch.Tensor:
    """The loss of one answer."""
    start = len(tokenizer(prompt)["input_ids"])
    ids = torch.tensor([tokenizer(prompt + answer)["input_ids"]])
    labels = ids.clone()
    labels[:, :start] = -100
    loss: torch.Tensor = model(input_ids=ids, labels=labels).loss
    return loss


# --- the same as afterwards -----------------------------------------------------------


def audited(checkpoint: Path, data: Path, base: Path) -> list[dict[str, Any]]:
    """The matrix that the utility audit reports of a checkpoint or a run folder."""
    request = Request(
        audits=(Utility(order=",".join(LABELS)),),
        ckpt=(f"spark={checkpoint}",),
        data=(data,),
        base=str(base),
        output=data.parent / "report",
        loading=Loading(device="cpu"),
    )
    report = run(request).report
    matrix = report.tables["accuracy_matrix"]
    return [row for row in matrix if row["checkpoint"] == "spark"]


def test_a_runs_matrix_is_what_the_audit_says_of_its_folder(tiny_base, tmp_path):
    data = tmp_path / "rows.jsonl"
    write_examples(data, examples())
    made = train(
        method="er",
        base=str(tiny_base),
        data=[data],
        order=",".join(LABELS),
        output=tmp_path / "run",
        settings=["epochs=8", "lr=0.02", "batch_size=6"],
    )
    order, matrix = read_matrix(tmp_path / "run" / "accuracy.csv")
    assert order == list(LABELS)
    assert matrix == made.matrix
    found = audited(tmp_path / "run", data, tiny_base)
    for t, row in enumerate(matrix):
        # Tasks that come later are not asked in training.
        asked = [found[t][task] for task in order[: t + 1]]
        assert row[: t + 1] == asked
    measured = [value for row in matrix for value in row if value is not None]
    assert len(measured) == 5
    assert 0 < sum(measured) < 5


def test_a_row_with_nothing_before_its_response_is_not_asked():
    rows = [
        Example("a", "t", "", "good", "test", "a"),
        Example("b", "t", "Label:", " good", "test", "b"),
    ]
    bare = answer_prompts(rows, make_tokenizer(bos=False), max_positions=None)
    assert [prompt.key for prompt in bare["t"]] == ["b"]
    with_bos = answer_prompts(rows, make_tokenizer(), max_positions=None)
    assert [prompt.key for prompt in with_bos["t"]] == ["a", "b"]


# --- training goes on -----------------------------------------------------------------


def student(kind: str) -> Any:
    """A model with a fresh adapter and dropout, the same at every call."""
    extra: dict[str, Any] = {"attention_dropout": 0.1}
    if kind == "gpt2":
        extra = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
    return add_lora(make_model(kind, **extra), r=4, seed=0)


def step(model: Any, tokenizer: Any) -> dict[str, torch.Tensor]:
    """Gradients of one training step and the weights after it."""
    trainable = {n: w for n, w in model.named_parameters() if w.requires_grad}
    optimizer = torch.optim.AdamW(trainable.values(), lr=0.01)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        for _ in range(2):  # the first has no gradient in lora_A: lora_B is 0
            optimizer.zero_grad()
            loss = lesson(model, "She said it was fine. Label:", " good", tokenizer)
            torch.autograd.backward(loss)
            optimizer.step()
    found = {f"{name}.grad": weight.grad for name, weight in trainable.items()}
    return found | {name: weight.detach() for name, weight in trainable.items()}


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_a_training_step_after_it_is_the_same_to_the_bit(kind, tiny_tokenizer):
    """Nothing that was made in inference mode stays in the model."""
    plain, asked = student(kind), student(kind)
    prompts = answer_prompts(examples(), tiny_tokenizer, max_positions=256)["yelp"]
    plain.train()
    asked.train()
    state = torch.random.get_rng_state()
    # The very first forward pass, before any cache was filled by training.
    accuracy(make_loaded(asked, tokenizer=tiny_tokenizer), prompts)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not [buffer for buffer in asked.buffers() if buffer.is_inference()]
    expected, found = step(plain, tiny_tokenizer), step(asked, tiny_tokenizer)
    assert all(float(found[name].abs().max()) > 0 for name in found)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    # And between steps.
    accuracy(make_loaded(asked, tokenizer=tiny_tokenizer), prompts)
    expected, found = step(plain, tiny_tokenizer), step(asked, tiny_tokenizer)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_training_goes_on_where_rotary_frequencies_were_made_anew(tiny_tokenizer):
    """Dynamic scaling leaves a buffer of inference mode behind long texts."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    base = make_model(rope_parameters=rope, max_position_embeddings=8)
    model = add_lora(base, r=4, seed=0).train()
    prompts = answer_prompts(examples(), tiny_tokenizer, max_positions=256)["yelp"]
    accuracy(make_loaded(model, tokenizer=tiny_tokenizer), prompts)
    assert [buffer for buffer in model.buffers() if buffer.is_inference()]
    found = step(model, tiny_tokenizer)
    assert all(bool(torch.isfinite(value).all()) for value in found.values())
    assert all(float(value.abs().max()) > 0 for value in found.values())


# --- the file -------------------------------------------------------------------------


def test_a_matrix_comes_back_to_the_bit(tmp_path):
    order = ["fomc", "yelp", "agnews"]
    matrix = [
        [0.1 + 0.2, None, None],
        [1 / 3, 1.0, None],
        [0.0, None, float(np.float32(0.7))],
    ]
    path = tmp_path / "run" / "accuracy.csv"
    write_matrix(path, order, matrix, after=order)
    assert path.read_text() == (
        "after,fomc,yelp,agnews\n"
        "fomc,0.30000000000000004,,\n"
        "yelp,0.3333333333333333,1.0,\n"
        "agnews,0.0,,0.699999988079071\n"
    )
    assert read_matrix(path) == (order, matrix)
