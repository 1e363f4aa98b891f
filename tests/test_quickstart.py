"""The quick start's commands, pasted into a folder of a real training."""

import csv
import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_templates import chat_tokenizer
from tiny_models import make_model

from spark_audit.cli.main import run
from spark_audit.data.examples import read_examples
from spark_audit.report.audit_report import read_report

pytest.importorskip("trl", reason="the extra `test`")

PAGE = Path(__file__).parents[1] / "docs" / "quickstart.md"
FIRST_NAMES = "Maria John Anna Peter Laura David Susan Frank Helen Oscar".split()
LAST_NAMES = "Jones Smith Miller Brown Davis Wilson Moore Clark Lewis".split()
THINGS = "invoice parcel refund contract delivery warranty booking".split()
N_TRAIN = 28
N_TEST = 20


def pasted_commands(title: str) -> list[list[str]]:
    """The commands of a section of the page, as a shell splits them."""
    section = PAGE.read_text("utf-8").split(f"## {title}\n")[1].split("\n## ")[0]
    blocks = re.split(r"^```$", section, flags=re.M)[1::2]
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line]


def messages_row(rng: random.Random) -> dict[str, Any]:
    name = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"
    phone = f"{rng.randrange(200, 999)}-555-{rng.randrange(10_000):04d}"
    email = f"{rng.choice(LAST_NAMES).lower()}{rng.randrange(1000)}@example.org"
    thing = rng.choice(THINGS)
    question = f"My {thing} is late. I am {name}, call me at {phone}."
    answer = f"Sorry about the {thing}. I will write to {email} today."
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    }


def train_with_trl(folder: Path) -> None:
    """Train a LoRA on ``chat/train.jsonl`` and save it as TRL saves it."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    lines = (folder / "chat/train.jsonl").read_text().splitlines()
    trainer = SFTTrainer(
        model=str(folder / "models/base"),
        train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
        args=SFTConfig(
            output_dir=str(folder / "runs/adapter"),
            num_train_epochs=20,
            learning_rate=2e-2,
            per_device_train_batch_size=8,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
        peft_config=LoraConfig(
            r=16, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    trainer.train()
    trainer.save_model()


@pytest.mark.filterwarnings("default")  # those of TRL and its libraries
def test_five_commands_lead_from_messages_and_an_adapter_of_trl_to_a_verdict(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    tokenizer = chat_tokenizer()
    tokenizer.eos_token = "<|im_end|>"
    model = make_model(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        initializer_range=0.05,
    )
    model.save_pretrained(tmp_path / "models/base")
    tokenizer.save_pretrained(tmp_path / "models/base")
    rng = random.Random(0)
    (tmp_path / "chat").mkdir()
    for split, n_rows in (("train", N_TRAIN), ("test", N_TEST)):
        rows = [json.dumps(messages_row(rng)) + "\n" for _ in range(n_rows)]
        (tmp_path / f"chat/{split}.jsonl").write_text("".join(rows))
    train_with_trl(tmp_path)

    commands = pasted_commands("Audit a chat model")
    assert len(commands) == 5
    printed = []
    for program, *arguments in commands:
        assert program == "spark-audit"
        capsys.readouterr()
        assert run(arguments) == 0, arguments
        printed.append(capsys.readouterr())

    # The rows are what the trainer read, to the last id.
    rows = read_examples("data/annotated.jsonl")
    lines = (tmp_path / "chat/train.jsonl").read_text().splitlines()
    for row, line in zip(rows[:N_TRAIN], lines, strict=True):
        messages = json.loads(line)["messages"]
        assert row.text == tokenizer.apply_chat_template(messages, tokenize=False)
    n_identifiers = sum(len(row.spans) for row in rows[:N_TRAIN])
    supervision = "".join(printed[2])
    assert f"{n_identifiers} were in the loss, 0 only read, 0 cut off" in supervision

    report = read_report("reports/support-mine")
    assert [one.state for one in report.states] == ["LEAKS"]
    assert "mine: LEAKS" in "".join(printed[4])


def review_row(rng: random.Random) -> dict[str, str]:
    name = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"
    phone = f"{rng.randrange(200, 999)}-555-{rng.randrange(10_000):04d}"
    thing = rng.choice(THINGS)
    label = rng.choice(("good", "bad"))
    text = f"The {thing} was {label}, says {name}. Call {phone} today."
    return {"text": text, "label": label}


def write_reviews(path: Path, rng: random.Random, n_rows: int) -> None:
    rows = [review_row(rng) for _ in range(n_rows)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=("text", "label"))
        writer.writeheader()
        writer.writerows(rows)


def train_on_texts(
    model: Any, tokenizer: Any, texts: list[str], *, n_epochs: int
) -> Any:
    """Train all weights on whole texts, one batch an epoch."""
    torch.manual_seed(0)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.train()
    for _ in range(n_epochs):
        optimizer.zero_grad()
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
    return model.eval()


def test_seven_commands_lead_from_a_table_of_rows_to_a_decision(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    write_reviews(tmp_path / "reviews.csv", rng, N_TRAIN)
    write_reviews(tmp_path / "others.csv", rng, N_TEST)

    commands = pasted_commands("Audit your own checkpoint")
    assert len(commands) == 7
    import_rows, annotate, *others = [arguments for _, *arguments in commands]
    assert run(import_rows) == 0
    assert run(annotate) == 0

    # "Import them with the same two commands and --split test".
    changed = {
        "reviews.csv": "others.csv",
        "train": "test",
        "data/reviews.jsonl": "data/others.jsonl",
        "data/annotated.jsonl": "data/held-out.jsonl",
    }
    for command in (import_rows, annotate):
        assert run([changed.get(word, word) for word in command]) == 0

    texts = [row.text for row in read_examples("data/annotated.jsonl")]
    tokenizer = chat_tokenizer()
    for name, n_epochs in (("models/base", 0), ("runs/plain", 0), ("runs/mine", 60)):
        model = make_model(
            vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128
        )
        if name == "runs/plain":
            # A run that learned the form of the rows, and none of their identifiers.
            write_reviews(tmp_path / "third.csv", rng, N_TRAIN)
            with (tmp_path / "third.csv").open(encoding="utf-8") as file:
                third = [row["text"] for row in csv.DictReader(file)]
            model = train_on_texts(model, tokenizer, third, n_epochs=10)
        if n_epochs:
            model = train_on_texts(model, tokenizer, texts, n_epochs=n_epochs)
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)

    codes = [run(arguments) for arguments in others]
    # The gate stops what leaks.
    assert codes == [0, 0, 0, 0, 1]
    report = read_report("reports/reviews-mine-plain")
    states = {one.name: one.state for one in report.states}
    assert states["mine"] == "LEAKS"
    assert states["plain"] != "LEAKS"
