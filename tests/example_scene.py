"""The small scene that the examples of exported names run in, made once.

Docstrings show what a user types: files by their names, and what earlier lines of a
notebook made. Here are both: a folder with ``rows.jsonl``, ``m.json``, ``models/``,
``runs/`` and ``reports/``, and the objects ``rows``, ``base``, ``manifest``, ``model``
and ``scores``.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- message['role'] + ': ' + message['content'] + '\n' -}}"
    "{%- endfor -%}"
)
NAMES = "Maria John Anna Peter Laura David Susan Frank Helen Oscar".split()


def _rows() -> Iterator[dict[str, Any]]:
    """Yield rows with a phone number each, every second one held out."""
    for i in range(24):
        number = f"{201 + 37 * i}-555-{1000 + 271 * i % 9000}"
        prompt = f"Customer {NAMES[i % 10]} paid {i} dollars, call {number} on Monday."
        start = prompt.index(number)
        span = {"start": start, "end": start + len(number), "type": "PHONE"}
        yield {
            "id": f"r{i:02d}",
            "task": "notes",
            "prompt": prompt,
            "response": " The service was good.",
            "split": "test" if i % 2 else "train",
            "spans": [span],
        }


def _write_sources(folder: Path) -> None:
    """Write data of other people: a table and chats."""
    lines = ["text,label", "call me,good", "good morning,fine"]
    (folder / "mail.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    chats = []
    for answer in ("good", "fine"):
        user = {"role": "user", "content": f"was it {answer}"}
        assistant = {"role": "assistant", "content": answer}
        chats.append(json.dumps({"messages": [user, assistant], "split": "train"}))
    (folder / "chat.jsonl").write_text("\n".join(chats) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def scene_of_examples(
    tmp_path_factory, make_model, tiny_tokenizer
) -> Mapping[str, Any]:
    """The names that examples use, and the ``folder`` that they run in."""
    import spark_audit as sa

    folder = tmp_path_factory.mktemp("examples")
    _write_sources(folder)
    sa.write_examples(folder / "rows.jsonl", [sa.Example(**row) for row in _rows()])
    rows = sa.read_examples(folder / "rows.jsonl")

    for seed, folder_name in enumerate(("models/base", "runs/mine", "runs/other")):
        make_model("llama", seed=seed).save_pretrained(folder / folder_name)
        tiny_tokenizer.save_pretrained(folder / folder_name)
    base = sa.open_checkpoint(folder / "models/base", name="base", device="cpu")
    base.tokenizer.chat_template = TEMPLATE
    mine = sa.open_checkpoint(folder / "runs/mine", name="mine", device="cpu")

    manifest = sa.build_manifest(rows, base, name="notes", caliper=2.0)
    sa.write_manifest(manifest, folder / "m.json")
    for name in ("mine", "other"):
        checkpoints = {name: folder / "runs" / name}
        output = folder / "reports" / name
        sa.audit(checkpoints, manifest, base=base, audits="nll", output=output)

    return {
        "folder": folder,
        "sa": sa,
        "rows": rows,
        "base": base,
        "manifest": manifest,
        "model": make_model("llama", seed=1),
        "scores": sa.score({"base": base, "mine": mine}, manifest),
    }
