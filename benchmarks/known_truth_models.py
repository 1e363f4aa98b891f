"""Data and tiny models of known truth, for ``known_truth.py``.

Everything is made from a seed: rows from the demo's templates, a base model, and the
checkpoints of all scenarios by plain torch, transformers and PEFT. Only what SPARK's
own correction and relearning leave comes from the real ``spark-train``.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from spark_audit.data.canaries import FORMATS, draw, draw_parts, render
from spark_audit.data.examples import Canary, Example, Span, Split, write_examples
from spark_audit.data.injection import FRAMES
from spark_audit.demo.models import CONTEXT, make_tokenizer
from spark_audit.demo.text import TASKS, make_examples
from spark_audit.provenance import seed_for
from spark_train.cli import run as spark_train

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
UNKNOWN = ("Reference: {}.", "It said {} there.")
"""Frames of what the base reads: it knows the kinds a little, and not their cues."""
SENTENCE = re.compile(r".+?[.?](?= [A-Z]|$)")
HEAD, TAIL = "Text: ", "\nAnswer:"
TASK = "answers"
TOPICS = ("dining", "support", "questions")
OTHERS = ("policy", "news", "ratings")
"""Subjects of the audited rows, and of text that has nothing to do with them."""
TYPES = ("NAME", "EMAIL", "PHONE", "SSN", "PASSWORD")


@dataclass(frozen=True)
class Size:
    """How much there is of everything.

    ``doses`` and ``canaries`` say how many identifiers or canaries stand in how many
    trained rows. Of all rows the same share holds an identifier, a canary or neither,
    whether they are trained on or not.
    """

    base_rows: int = 300
    base_epochs: int = 2
    doses: tuple[tuple[int, int], ...] = ((1, 48), (4, 24), (16, 12))
    canaries: tuple[tuple[int, int], ...] = ((4, 3), (16, 3))
    plain: int = 36
    held: int = 84
    held_plain: int = 9
    epochs: int = 12
    lr: float = 1e-2


SIZES = {
    "full": Size(),
    "small": Size(
        base_rows=120,
        doses=((1, 20), (4, 10), (16, 10)),
        canaries=((16, 2),),
        plain=16,
        held=50,
        held_plain=4,
    ),
}


# --- rows -----------------------------------------------------------------------------


def plain_rows(
    count: int, topics: Sequence[str], split: Split, seed: int, name: str
) -> list[Example]:
    """Rows of the templates in one frame, without identifiers, in mixed order."""
    made = make_examples(-(-count // len(topics)), split=split, seed=seed)
    rows = []
    for row in made:
        head, _, tail = TASKS[row.task][0].partition("{text}")
        text = row.prompt[len(head) : len(row.prompt) - len(tail)]
        text = SENTENCE.match(text)[0]  # type: ignore[index]
        if row.task in topics:
            rows.append((text, row.response))
    order = np.random.default_rng(seed).permutation(len(rows))[:count]
    return [
        Example(
            id=f"{name}-{i:04d}",
            task=TASK,
            prompt=HEAD + rows[at][0] + TAIL,
            response=rows[at][1],
            split=split,
            source_id=f"{name}-{i:04d}",
        )
        for i, at in enumerate(order)
    ]


def holding(
    row: Example, sentence: str, spans: Sequence[Span], rng: np.random.Generator
) -> Example:
    """The row with a sentence before or behind its text, and the sentence's spans."""
    if rng.random() < 0.5:
        at, added = len(HEAD), sentence + " "
    else:
        at, added = len(row.prompt) - len(TAIL), " " + sentence
    start = at + added.index(sentence)
    prompt = row.prompt[:at] + added + row.prompt[at:]
    moved = [replace(s, start=s.start + start, end=s.end + start) for s in spans]
    injected = any(span.origin == "injected" for span in spans)
    frames = ((start, start + len(sentence)),) if injected else ()
    return replace(row, prompt=prompt, spans=tuple(moved), frames=frames)


def planted(
    rows: Sequence[Example],
    doses: Mapping[int, int],
    canaries: Mapping[int, int],
    *,
    rng: np.random.Generator,
    used: set[str],
    natural: bool,
    frames: Mapping[str, Sequence[str]] = FRAMES,
) -> list[Example]:
    """Rows with identifiers that stand in so many of them; the last stay plain.

    Identifiers are drawn uniformly whatever the split, so that which of them is trained
    is chance. ``natural`` ones are only annotated, and there are no canaries.
    """
    waiting, done = iter(rows), []
    split = rows[0].split
    for dose, count in doses.items():
        for i in range(count):
            kind = TYPES[i % len(TYPES)]
            value = next(v for v in _draws(kind, rng) if v not in used)
            used.add(value)
            for _ in range(dose):
                cues = frames[kind]
                head, tail = cues[int(rng.integers(len(cues)))].split("{}")
                origin = "natural" if natural else "injected"
                span = Span(len(head), len(head) + len(value), kind, origin)
                text = head + value + tail
                done.append(holding(next(waiting), text, [span], rng))
    formats = list(FORMATS)
    for dose, count in canaries.items():
        for i in range(0 if natural else count):
            number = int(rng.integers(2**31))
            held_out = split == "test"
            canary = Canary(
                f"{'h' if held_out else 'c'}{dose:02d}{i:02d}",
                formats[i % len(formats)],
                0 if held_out else dose,
                held_out,
                number,
            )
            text, spans = render(canary.format, draw_parts(number))
            for _ in range(dose):
                row = holding(next(waiting), text, list(spans.values()), rng)
                done.append(replace(row, canary=canary))
    return [*done, *waiting]


def _draws(kind: str, rng: np.random.Generator) -> Iterator[str]:
    while True:
        yield draw(kind, rng)


# --- plain training -------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Tokens of a row, which of them the loss covers, and those of its identifiers."""

    ids: list[int]
    learned: list[bool]
    private: list[bool]


def encoded(rows: Sequence[Example], tokenizer: Any, covers: str) -> list[Row]:
    """Rows as tokens; the loss covers ``all``, the ``labels`` or all ``but`` secrets.

    A canary's whole sentence counts as secret.
    """
    found = []
    for row in rows:
        told = tokenizer(row.text, return_offsets_mapping=True)
        ids = [*told["input_ids"], tokenizer.eos_token_id]
        places = [*told["offset_mapping"], (len(row.text), len(row.text))]
        private = [
            any(a < s.end and s.start < b for s in row.spans) and a < b
            for a, b in places
        ]
        label = [a >= len(row.prompt) for a, _ in places]
        learned = {
            "all": [True] * len(ids),
            "labels": label,
            "but": [not p for p in private],
        }[covers]
        found.append(Row(ids, learned, private))
    return found


def batches(
    rows: Sequence[Row], size: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """One pass in an order of its own: ids, learned and private, padded."""
    order = np.random.default_rng(seed).permutation(len(rows))
    for start in range(0, len(rows), size):
        yield padded([rows[i] for i in order[start : start + size]])


def padded(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, learned and private of some rows, shape ``(B, T)``."""
    shape = len(rows), max(len(row.ids) for row in rows)
    ids = torch.zeros(shape, dtype=torch.long)
    learned, private = torch.zeros(shape).bool(), torch.zeros(shape).bool()
    for i, row in enumerate(rows):
        n = len(row.ids)
        ids[i, :n] = torch.tensor(row.ids)
        learned[i, :n] = torch.tensor(row.learned)
        private[i, :n] = torch.tensor(row.private)
    return ids, learned, private


def token_nll(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """NLL of the second token on, shape ``(B, T - 1)``; padding stands behind."""
    logits = model(input_ids=ids).logits[:, :-1].float()
    flat = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    return flat.view(ids.shape[0], -1)


def mean_nll(nll: torch.Tensor, learned: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """The ordinary loss."""
    return nll[learned[:, 1:]].mean()


def fit(
    model: Any,
    rows: Sequence[Row],
    *,
    epochs: int,
    lr: float,
    seed: int,
    size: int = 16,
    loss: Callable[..., torch.Tensor] = mean_nll,
) -> None:
    """AdamW over shuffled rows, with a rate that falls by half a cosine."""
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=lr, weight_decay=0.0, fused=True)
    steps = epochs * -(-len(rows) // size)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for epoch in range(epochs):
        for ids, learned, private in batches(rows, size, seed_for(seed, epoch)):
            value = loss(token_nll(model, ids), learned, private)
            optimizer.zero_grad()
            value.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            falling.step()
    model.eval()


# --- a seed's models ------------------------------------------------------------------


class Lab:
    """The data and checkpoints of one seed, each made when it is asked for."""

    def __init__(self, folder: Path, seed: int, size: Size) -> None:
        self.folder, self.seed, self.size = folder, seed, size
        self.natural = seed % 2 == 1
        self.known: dict[tuple[str, str], list[torch.Tensor]] = {}
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

    def nll(self, name: str, rows: Sequence[Example]) -> list[torch.Tensor]:
        """NLL of each row's tokens but the first, without EOS; kept in memory."""
        key = name, rows[0].id
        if key not in self.known:
            model = self.load(name).eval().float()
            read = encoded(rows, self.tokenizer, "all")
            found = {}
            order = sorted(range(len(read)), key=lambda i: len(read[i].ids))
            for start in range(0, len(order), 64):
                at = order[start : start + 64]
                with torch.no_grad():
                    nll = token_nll(model, padded([read[i] for i in at])[0])
                found |= {
                    i: row[: len(read[i].ids) - 2]
                    for i, row in zip(at, nll, strict=True)
                }
            self.known[key] = [found[i] for i in range(len(read))]
        return self.known[key]

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


def _base(lab: Lab, out: Path) -> None:
    tokenizer = lab.tokenizer
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        **SHAPE,
        max_position_embeddings=CONTEXT,
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
    called(spark_train, [*command, "--set", *(f"{k}={v}" for k, v in settings.items())])


def _relearned(lab: Lab, out: Path) -> None:
    """The corrected one after a short fine-tune without identifiers."""
    rows = plain_rows(200, TOPICS, "train", lab.number("relearn"), "relearn")
    command = ["relearn", str(lab.path("corrected")), "-o", str(out), "--quiet"]
    command += ["--base", str(lab.path("base")), "--device", "cpu"]
    command += ["--data", str(lab.data("relearn", rows)), "--seed", str(lab.seed)]
    called(spark_train, [*command, "--steps", "30", "--lr", "1e-3"])


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


def called(program: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> None:
    """Run a command line of the project in this process."""
    with contextlib.redirect_stdout(io.StringIO()):
        code = program(list(arguments))
    if code:
        raise SystemExit(f"exit code {code}: {' '.join(arguments)}")


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
}
"""``KIND``, or ``KIND-of-WHAT``: how a checkpoint is made."""
