"""A whole small audit that mutants are made of: data, models, manifest, report, run."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gguf_files import written

from spark_audit import Pass, open_checkpoint, score
from spark_audit.cli.main import run as audit
from spark_audit.data.examples import write_examples
from spark_audit.demo_rows import make_examples
from spark_train.cli import run as train


@dataclass(frozen=True)
class Scene:
    """Files of a project as its commands write them, and room for mutants."""

    folder: Path
    room: Path

    @property
    def data(self) -> Path:
        return self.folder / "injected" / "dining.jsonl"

    @property
    def manifest(self) -> Path:
        return self.folder / "m.json"

    @property
    def base(self) -> Path:
        return self.folder / "base"

    @property
    def lora(self) -> Path:
        return self.folder / "lora"

    @property
    def gguf(self) -> Path:
        return self.folder / "m.gguf"

    @cached_property
    def gguf_header(self) -> int:
        """Bytes before its tensors: it has 64 a number at least behind them."""
        return self.gguf.read_bytes().index(b"blk.0.attn_q.weight") + 200

    @property
    def report(self) -> Path:
        return self.folder / "report"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def copy(self, folder: Path) -> Path:
        """A copy of one of the folders, for a mutant."""
        shutil.rmtree(self.room, ignore_errors=True)
        self.room.mkdir()
        made = self.room / folder.name
        # A store is opened by one family only, which copies it itself.
        shutil.copytree(folder, made, ignore=shutil.ignore_patterns("store"))
        return made

    def file(self, name: str, content: bytes) -> Path:
        """A file of a mutant, alone in its room."""
        shutil.rmtree(self.room, ignore_errors=True)
        self.room.mkdir()
        path = self.room / name
        path.write_bytes(content)
        return path


AUDIT = ("--device", "cpu", "--draws", "1", "--sigmas", "0.1", "--placebo-draws", "5")


def make_scene(folder: Path, base: Path, make_adapter: Callable[..., Path]) -> Scene:
    """Everything once: two tasks, identifiers, two canaries, an adapter, a run."""

    def done(command: Callable[[Sequence[str]], int], *words: Any) -> None:
        assert command([str(word) for word in words]) == 0

    shutil.copytree(base, folder / "base")
    make_adapter(folder / "lora")
    gguf_of(base, folder / "m.gguf")
    rows = make_examples(6, split="train", seed=2)
    rows += make_examples(3, split="test", seed=2)
    write_examples(
        folder / "data.jsonl", [r for r in rows if r.task in ("dining", "news")]
    )
    rows_file = folder / "injected"
    done(
        audit,
        *("data", "inject", folder / "data.jsonl", "-o", rows_file),
        *("--canaries", 2, "--doses", "1,2", "--rate", 0.6),
    )
    model = ("--base", folder / "base", "--data", rows_file)
    done(
        audit,
        *("manifest", "build", *model, "-o", folder / "m.json"),
        *("--caliper", 2, "--preset", "paper", "--device", "cpu", "--quiet"),
    )
    # Fewer candidates: what is mutated and scored is the same, only less of it.
    content = json.loads((folder / "m.json").read_bytes())
    for canary in content["canaries"]:
        if canary["true_index"] is not None:
            true = canary["candidates"][canary["true_index"]]
            others = [c for c in canary["candidates"] if c != true][:15]
            canary["candidates"] = [true, *others]
            canary["true_index"] = 0
    content["settings"]["n_candidates"] = 16
    (folder / "m.json").write_bytes(sealed(content))
    done(
        train,
        *("run", "--method", "er", *model, "--order", "dining,news"),
        *("-o", folder / "run", "--set", "epochs=1", "--device", "cpu"),
    )
    done(
        audit,
        *("all", "--ckpt", f"ours={folder / 'lora'}", f"theirs={folder / 'run'}"),
        *("--base", folder / "base", "--manifest", folder / "m.json"),
        *("--baseline", "ours", "-o", folder / "report", *AUDIT, "--quiet"),
        *("--format", "json"),
    )
    for name, path in (("base", folder / "base"), ("ours", folder / "lora")):
        loaded = open_checkpoint(str(path), base=str(base), device="cpu")
        scores = score(loaded, folder / "m.json")
        scores[Pass()].write(folder / f"{name}.parquet")
    return Scene(folder, folder / "room")


def gguf_of(base: Path, file: Path) -> None:
    """The base as llama.cpp's converter would write it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    written(file, AutoModelForCausalLM.from_pretrained(base), list(tokens))


def sealed(content: dict[str, Any]) -> bytes:
    """A manifest's bytes with the digest that its content asks for.

    Computed here and not by the project: an attacker seals what the project would not.
    """
    import hashlib

    kept = {k: v for k, v in content.items() if k not in ("digest", "name")}
    text = json.dumps(
        kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    ).encode("utf-8", "surrogatepass")
    content = {**content, "digest": hashlib.sha256(text).hexdigest()}
    return json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    ).encode("utf-8", "surrogatepass")
