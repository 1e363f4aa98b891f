"""Accuracy in training is what the utility audit says of the same stage."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from run_training import train
from scored_by_hand import make_loaded
from tiny_models import make_model, make_tokenizer

from spark_audit.audits import Utility
from spark_audit.checkpoints.specs import Loading
from spark_audit.data.examples import Canary, Example, write_examples
from spark_audit.pipeline.run import Request, run
from spark_train.lora import add_lora
from spark_train.stage_accuracy import accuracy
from spark_train.training_corpus import TrainingCorpus

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


# --- the same as afterwards -----------------------------------------------------------


def audited(checkpoint: Path, data: Path, base: Path) -> list[dict[str, Any]]:
    """The matrix that the utility audit reports of a checkpoint or a run folder."""
    request = Request(
        audits=(Utility(order=",".join(LABELS)),),
        checkpoints=(f"spark={checkpoint}",),
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
    outcome = train(
        method="er",
        base=str(tiny_base),
        data=[data],
        order=",".join(LABELS),
        output=tmp_path / "run",
        settings=["epochs=4", "lr=0.03", "batch_size=6"],
    )
    order = list(LABELS)
    matrix = outcome.record.accuracy
    accuracies = audited(tmp_path / "run", data, tiny_base)
    for t, row in enumerate(matrix):
        # Tasks that come later are not asked in training.
        accuracies_asked = [accuracies[t][task] for task in order[: t + 1]]
        assert row[: t + 1] == accuracies_asked
    measured = [value for row in matrix for value in row if value is not None]
    assert len(measured) == 5
    assert 0 < sum(measured) < 5


def test_a_row_with_nothing_before_its_response_is_not_asked():
    rows = (
        Example("a", "t", "", "good", "test", "a"),
        Example("b", "t", "Label:", " good", "test", "b"),
    )
    for bos, keys in ((False, ["b"]), (True, ["a", "b"])):
        loaded = make_loaded(make_model(), tokenizer=make_tokenizer(bos=bos))
        notes: list[str] = []
        prompts = TrainingCorpus((), rows, ("t",)).prompts(
            loaded, limit=0, note=notes.append
        )
        assert [prompt.key for prompt in prompts["t"]] == keys
        assert bool(notes) is (len(keys) == 1)
        few = TrainingCorpus((), rows, ("t",)).prompts(
            loaded, limit=1, note=notes.append
        )
        assert [prompt.key for prompt in few["t"]] == keys[:1]


# --- training goes on -----------------------------------------------------------------


def test_training_goes_on_where_rotary_frequencies_were_made_anew(tiny_tokenizer):
    """Dynamic scaling makes buffers anew at long texts, in inference mode: no backward
    pass may meet them."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    base = make_model(rope_parameters=rope, max_position_embeddings=8)
    model = add_lora(base, r=4, seed=0).train()
    loaded = make_loaded(model, tokenizer=tiny_tokenizer)
    rows = [one for one in examples() if one.task == "yelp"]
    prompts = TrainingCorpus((), tuple(rows), ("yelp",)).prompts(
        loaded, limit=0, note=print
    )
    state = torch.random.get_rng_state()
    before = [buffer.clone() for buffer in model.buffers()]
    accuracy(loaded, prompts["yelp"])
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert before
    assert not any(buffer.is_inference() for buffer in model.buffers())
    for buffer, earlier in zip(model.buffers(), before, strict=True):
        assert torch.equal(buffer, earlier)
    ids = torch.arange(3, 40)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    gradients = [w.grad for n, w in model.named_parameters() if "lora_B" in n]
    assert all(float(grad.abs().max()) > 0 for grad in gradients)
