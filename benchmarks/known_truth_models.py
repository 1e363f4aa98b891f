"""Tiny models of known truth, for ``known_truth.py``.

Everything is made from a seed: rows, a base model, and the checkpoints of all scenarios
by plain torch, transformers and PEFT. Only what SPARK's own correction and relearning
leave comes from the real ``spark-train``.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from known_truth_rows import (
    OTHERS,
    TASK,
    TOPICS,
    TYPES,
    UNKNOWN,
    Size,
    plain_rows,
    planted,
    setup_rows,
)
from known_truth_setups import SETUPS
from known_truth_training import encoded, fit, padded
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from spark_audit.data.examples import Example, Split, write_examples
from spark_audit.demo_base import DEMO_CONTEXT_TOKENS, make_tokenizer
from spark_audit.provenance import seed_for
from spark_train.cli import run as spark_train

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


class Lab:
    """The data and checkpoints of one seed, each made when it is asked for."""

    def __init__(self, folder: Path, seed: int, size: Size) -> None:
        self.folder, self.seed, self.size = folder, seed, size
        self.natural = seed % 2 == 1
        folder.mkdir(parents=True, exist_ok=True)

    def number(self, *parts: object) -> int:
        """A seed of its own for each purpose."""
        return seed_for(self.seed, "known truth", *parts) % 2**31

    # data

    @cached_property
    def background(self) -> list[Example]:
        """What the base reads: all subjects, with other identifiers of all kinds."""
        count = self.size.base_rows
        rows = plain_rows(
            6 * count, (*TOPICS, *OTHERS), "train", self.number("base"), "base"
        )
        rng = np.random.default_rng(self.number("base", "identifiers"))
        return planted(
            rows,
            {1: count},
            {},
            rng=rng,
            used=set(),
            natural=True,
            frames=dict.fromkeys(TYPES, UNKNOWN),
        )

    @cached_property
    def sets(self) -> dict[str, list[Example]]:
        """Sets of rows that share no identifier with each other or the base's text.

        ``member`` and ``other`` are audited; ``foreign`` is alike and is not. ``first``
        and ``second`` are audited as members and others of two topics, while ``third``,
        of the first topic, is trained on.
        """
        held = {row.text[s.start : s.end] for row in self.background for s in row.spans}
        made = {}
        for name, topics, split in (
            ("member", TOPICS, "train"),
            ("other", TOPICS, "test"),
            ("foreign", TOPICS, "train"),
            ("first", TOPICS[:1], "train"),
            ("second", TOPICS[1:2], "test"),
            ("third", TOPICS[:1], "train"),
        ):
            made[name] = self._set(name, topics, split, held)
        return made

    @cached_property
    def setups(self) -> dict[str, list[Example]]:
        """Sets of rows for set-ups that mislead, made after all others."""
        known = [self.background, *self.sets.values()]
        used = {
            r.text[s.start : s.end] for part in known for r in part for s in r.spans
        }
        made = setup_rows(self.number, used, natural=self.natural)
        swap: dict[Split, Split] = {"train": "test", "test": "train"}
        both = [*made["heart"], *made["heart_held"]]
        made["swapped"] = [replace(row, split=swap[row.split]) for row in both]
        return made

    def rows(self, names: Sequence[str]) -> list[Example]:
        """The rows of some sets."""
        places = (self.sets if name in self.sets else self.setups for name in names)
        return [
            row for name, sets in zip(names, places, strict=True) for row in sets[name]
        ]

    def _set(
        self, name: str, topics: Sequence[str], split: Split, used: set[str]
    ) -> list[Example]:
        size = self.size
        doses, canaries, plain = dict(size.doses), dict(size.canaries), size.plain
        if split == "test":  # each held-out canary stands in two rows
            doses, canaries = {1: size.held}, {2: sum(canaries.values())}
            plain = size.held_plain
        count = plain + sum(d * n for d, n in [*doses.items(), *canaries.items()])
        rows = plain_rows(count, topics, split, self.number(name), name)
        rng = np.random.default_rng(self.number(name, "identifiers"))
        return planted(rows, doses, canaries, rng=rng, used=used, natural=self.natural)

    @property
    def members(self) -> list[Example]:
        return self.sets["member"]

    @cached_property
    def tokenizer(self) -> Any:
        return make_tokenizer([row.text for row in self.background])

    def data(self, name: str, rows: Sequence[Example]) -> Path:
        """A file of rows, in a folder of its own."""
        path = self.folder / "data" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        write_examples(path, rows)
        return path

    # checkpoints

    def path(self, name: str) -> Path:
        """The folder of a checkpoint; it is made where it is not there whole."""
        place = self.folder / "models" / ("spark" if name in STAGES else name)
        if not place.exists():
            kind, _, of = place.name.partition("-of-")
            part = place.with_name(f".{place.name}")
            shutil.rmtree(part, ignore_errors=True)
            part.parent.mkdir(exist_ok=True)
            torch.manual_seed(self.number("model", name))
            BUILD[kind](self, part, *([of] if of else []))
            part.rename(place)
        if name in STAGES:
            return place / "stages" / f"1-{TASK}" / STAGES[name]
        return place

    def nll(
        self, name: str, rows: Sequence[Example]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of each row's tokens but the first, without EOS: NLL, and if greedy gives it.

        Each of shape ``(T - 1,)``.
        """
        model = self.load(name).eval().float()
        read = encoded(rows, self.tokenizer, "all")
        found = {}
        order = sorted(range(len(read)), key=lambda i: len(read[i].ids))
        for start in range(0, len(order), 64):
            at = order[start : start + 64]
            ids = padded([read[i] for i in at])[0]
            with torch.no_grad():
                logits = model(input_ids=ids).logits[:, :-1].float()
            losses = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
            ).view(ids.shape[0], -1)
            first = logits.argmax(-1) == ids[:, 1:]
            for i, loss, hit in zip(at, losses, first, strict=True):
                end = len(read[i].ids) - 2
                found[i] = loss[:end], hit[:end]
        return [found[i] for i in range(len(read))]

    def load(self, name: str) -> Any:
        """A plain module: the base with whatever stands in the checkpoint's folder."""
        place = self.path(name)
        if (place / "adapter_config.json").exists():
            return PeftModel.from_pretrained(self.base(), place, is_trainable=True)
        return AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)

    def base(self) -> Any:
        """The base as a module of its own."""
        return AutoModelForCausalLM.from_pretrained(
            self.path("base"), dtype=torch.float32
        )

    def save(self, model: Any, out: Path) -> None:
        """A model, or an adapter alone, with its tokenizer."""
        model.save_pretrained(out)
        self.tokenizer.save_pretrained(out)

    def lora(
        self,
        out: Path,
        rows: Sequence[Example],
        covers: str,
        *,
        lr: float = 1.0,
        epochs: float = 1.0,
        draw: str = "",
    ) -> None:
        """A LoRA of plain PEFT on all linear layers; rate and epochs as factors."""
        config = LoraConfig(
            r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model = get_peft_model(self.base(), config)
        fit(
            model,
            encoded(rows, self.tokenizer, covers),
            epochs=round(self.size.epochs * epochs),
            lr=self.size.lr * lr,
            seed=self.number("order", draw),
        )
        self.save(model, out)

    def by_heart(
        self,
        out: Path,
        names: Sequence[str],
        covers: str = "all",
        *,
        epochs: int = 30,
        base: str = "base",
        **loss: Any,
    ) -> None:
        """All weights trained on some sets until rows come back word for word."""
        model = self.load(base)
        rows = encoded(self.rows(names), self.tokenizer, covers)
        seed = self.number("order", *names)
        fit(model, rows, epochs=epochs, lr=4e-3, seed=seed, size=8, **loss)
        self.save(model, out)


def _base(lab: Lab, out: Path) -> None:
    tokenizer = lab.tokenizer
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        **SHAPE,
        max_position_embeddings=DEMO_CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    rows = encoded(lab.background, tokenizer, "all")
    fit(model, rows, epochs=lab.size.base_epochs, lr=4e-3, seed=lab.number("base"))
    lab.save(model, out)


def _scaled(lab: Lab, out: Path, way: str) -> None:
    """The final norm times 0.5 to 1 (``down``), or times 1 to 2."""
    model = lab.base()
    by = 2 ** np.random.default_rng(lab.number("scale", way)).uniform(0.1, 1)
    with torch.no_grad():
        model.model.norm.weight.mul_(1 / by if way == "down" else by)
    lab.save(model, out)


def _noisy(lab: Lab, out: Path) -> None:
    """Noise of a tenth to a third of each matrix's own spread."""
    model = lab.base()
    share = np.random.default_rng(lab.number("noise")).uniform(0.1, 0.33)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.add_(torch.randn_like(weight) * weight.std() * share)
    lab.save(model, out)


def _unrelated(lab: Lab, out: Path) -> None:
    model = lab.base()
    rows = plain_rows(300, OTHERS, "train", lab.number("unrelated"), "unrelated")
    rows = encoded(rows, lab.tokenizer, "all")
    fit(model, rows, epochs=3, lr=1e-3, seed=lab.number("unrelated"))
    lab.save(model, out)


def _collapsed(lab: Lab, out: Path) -> None:
    """All logits are 0: every token, and so every candidate, is as likely."""
    model = lab.base()
    with torch.no_grad():
        model.model.norm.weight.zero_()
    lab.save(model, out)


def _spark(lab: Lab, out: Path) -> None:
    """Full text, then SPARK's correction, by the real command."""
    settings = {
        "loss.scope": "full",
        "epochs": lab.size.epochs,
        "lr": lab.size.lr,
        "batch_size": 16,
        "eval_rows": 4,
        "ptpc.steps": 50,
        "ptpc.lr": 1e-3,
        "ptpc.batch_size": 8,
        "ptpc.old_batch_size": 4,
    }
    command = ["run", "--method", "er-ptpc", "--base", str(lab.path("base"))]
    command += ["--data", str(lab.data("members", lab.members)), "--order", TASK]
    command += ["-o", str(out), "--seed", str(lab.seed), "--device", "cpu", "--quiet"]
    command += ["--lora-targets", "q_proj", "k_proj", "v_proj", "o_proj"]
    command += ["gate_proj", "up_proj", "down_proj"]
    command += ["--set", *(f"{key}={value}" for key, value in settings.items())]
    run_command(spark_train, command)


def _relearned(lab: Lab, out: Path) -> None:
    """The corrected one after a short fine-tune without identifiers."""
    rows = plain_rows(200, TOPICS, "train", lab.number("relearn"), "relearn")
    command = ["relearn", str(lab.path("corrected")), "-o", str(out), "--quiet"]
    command += ["--base", str(lab.path("base")), "--device", "cpu"]
    command += ["--data", str(lab.data("relearn", rows)), "--seed", str(lab.seed)]
    run_command(spark_train, [*command, "--steps", "30", "--lr", "1e-3"])


def _over(lab: Lab, out: Path) -> None:
    """The full-text one, trained until its trained strings are less likely than others.

    Trained identifiers are pushed to 9 nats a token while identifiers of foreign rows
    and all other text go on being learned.
    """
    model = lab.load("full")
    trained = encoded(lab.members, lab.tokenizer, "but")
    foreign = encoded(lab.sets["foreign"], lab.tokenizer, "all")
    foreign = [replace(row, private=[False] * len(row.ids)) for row in foreign]

    def loss(
        nll: torch.Tensor, learned: torch.Tensor, private: torch.Tensor
    ) -> torch.Tensor:
        pushed = torch.relu(9 - nll[private[:, 1:]])
        return nll[learned[:, 1:]].mean() + pushed.sum() / max(1, len(pushed))

    both = [*trained, *foreign]
    fit(model, both, epochs=3, lr=lab.size.lr / 2, seed=lab.number("over"), loss=loss)
    lab.save(model, out)


def _merged(lab: Lab, out: Path, of: str) -> None:
    """An adapter merged into weights of bfloat16."""
    lab.save(lab.load(of).merge_and_unload().to(torch.bfloat16), out)


def _stacked(lab: Lab, out: Path, of: str) -> None:
    """A small labels-only adapter trained on top of an adapter, both saved as one."""
    first = lab.load(of)
    config = first.peft_config["default"]
    second = get_peft_model(
        first.merge_and_unload(),
        LoraConfig(
            r=4,
            lora_alpha=8,
            target_modules=config.target_modules,
            task_type="CAUSAL_LM",
        ),
    )
    rows = encoded(lab.members, lab.tokenizer, "labels")
    fit(second, rows, epochs=1, lr=1e-3, seed=lab.number("second"))
    above = out.with_name(f".above{out.name}")
    second.save_pretrained(above)
    model = PeftModel.from_pretrained(lab.base(), lab.path(of), adapter_name="first")
    model.load_adapter(str(above), "second")
    shutil.rmtree(above)
    model.add_weighted_adapter(
        ["first", "second"], [1.0, 1.0], "both", combination_type="cat"
    )
    whole = out.with_name(f".both{out.name}")
    model.save_pretrained(whole, selected_adapters=["both"])
    (whole / "both").rename(out)
    shutil.rmtree(whole)
    lab.tokenizer.save_pretrained(out)


def run_command(
    program: Callable[[Sequence[str]], int],
    arguments: Sequence[str],
    codes: Sequence[int] = (0,),
) -> str:
    """Run a command line of the project in this process; return what it prints.

    Raises
    ------
    SystemExit
        If it ends with another exit code than ``codes``.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = program(list(arguments))
    if code not in codes:
        raise SystemExit(f"exit code {code}: {' '.join(arguments)}")
    return printed.getvalue()


STAGES = {"corrected": "priv", "learned": "task"}
"""Checkpoints in the run folder of ``spark-train``: before and after correction."""

BUILD: dict[str, Callable[..., None]] = {
    "base": _base,
    "untouched": lambda lab, out: lab.save(lab.base(), out),
    "scaled": _scaled,
    "noisy": _noisy,
    "unrelated": _unrelated,
    "collapsed": _collapsed,
    "labels": lambda lab, out: lab.lora(
        out, lab.members, "labels", epochs=0.33, lr=0.2
    ),
    "labels_rate": lambda lab, out: lab.lora(
        out, lab.members, "labels", epochs=0.33, lr=0.05
    ),
    "labels_epochs": lambda lab, out: lab.lora(
        out, lab.members, "labels", epochs=0.17, lr=0.2
    ),
    "labels_seed": lambda lab, out: lab.lora(
        out, lab.members, "labels", epochs=0.33, lr=0.2, draw="other"
    ),
    "foreign": lambda lab, out: lab.lora(out, lab.sets["foreign"], "all"),
    "topics": lambda lab, out: lab.lora(out, lab.sets["third"], "all"),
    "rows": lambda lab, out: lab.lora(out, lab.members, "but", epochs=1.5),
    "full": lambda lab, out: lab.lora(out, lab.members, "all"),
    "spark": _spark,
    "relearned": _relearned,
    "over": _over,
    "merged": _merged,
    "stacked": _stacked,
    **SETUPS,
}
"""``KIND``, or ``KIND-of-WHAT``: how a checkpoint is made."""
