"""Speed of training: our loop beside a bare one, and SPARK beside ER.

**The loop.** A plain loop over a transformers model with a PEFT adapter (whole padded
batches, ``model(...).logits``, cross-entropy of the response tokens, AdamW, gradients
clipped) takes the same steps over the same batches as one phase of ours, and so does
the same loop over the parts that ours reads a batch in. All losses must agree, or the
benchmark stops.

**SPARK beside ER.** Both go through the same stream, phase by phase in turns, with the
paper's settings: batches of 32, half of them replayed, 3 epochs, 200 steps of
correction after each task (here of 2 current and 1 replayed row: the paper does not
tell its batch). The paper's tasks have 1,895 rows (the first) and 2,700; rows and steps
of correction are scaled by one factor. Time is that of training alone: nothing is saved
or evaluated. From the third task on all tasks cost alike, so that the paper's six are
composed of the three measured ones.

Rows are random tokens, 100 to 200 of them, with responses of 1 to 3 and, in half of the
rows, an identifier of 6 tokens; half of the tokens are fixed wording, so that about
half of the replayed positions are distilled (a random model finds every other token
unlikely). All contenders run in one process, one after the other in every round; a
ratio is the median over rounds of the ratio within a round.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from command_line import (
    benchmark_parser,
    positive_float,
    positive_number,
    run_benchmark,
)
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig

from spark_train.loop import Phase, PhaseState, run_phase
from spark_train.lora import add_lora
from spark_train.stream import Stream
from spark_train.student import Student
from spark_train.task_phase import learning_phase
from spark_train.training_methods import METHODS
from spark_train.training_methods.spark import er, spark
from spark_train.training_rows import TrainRow, pieces
from spark_train.training_settings import Ptpc, TrainingSettings

DEVICE = "cpu"
CLOCK: Callable[[], float] = time.perf_counter
BOS, EOS = 0, 1
ROWS = (1895, 2700, 2700)
"""Train rows of the paper's first tasks; the next three have as many as the third."""
TASKS = 6
CORRECTION = 200
PAPER_RATIO, PAPER_SHARE = 1.203, 0.040


@dataclass(frozen=True)
class Shape:
    """A random Llama."""

    hidden: int
    layers: int
    vocabulary: int
    why: str
    head: int = 64
    dtype: torch.dtype = torch.float32

    @property
    def config(self) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=round(self.hidden * 2.6875),
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // self.head,
            max_position_embeddings=256,
            bos_token_id=BOS,
            eos_token_id=EOS,
        )


SHAPES = {
    "head": Shape(512, 8, 2000, "the head's share of the weights is like a 7B model's"),
    "vocabulary": Shape(256, 6, 4096, "a large vocabulary beside small layers"),
    "7b": Shape(4096, 32, 32_000, "Llama-2-7B's shape, bfloat16", 128, torch.bfloat16),
}


def model(shape: Shape) -> Any:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return AutoModelForCausalLM.from_config(shape.config, dtype=shape.dtype)


def rows(count: int, task: str, *, vocabulary: int, seed: int) -> list[TrainRow]:
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        size = int(rng.integers(100, 201))
        ids = rng.integers(2, vocabulary, size).astype(np.int32)
        ids[0], ids[-1] = BOS, EOS
        response = np.arange(size) >= size - 1 - int(rng.integers(1, 4))
        pii = np.zeros(size, dtype=bool)
        if i % 2:
            start = int(rng.integers(1, size - 12))
            pii[start : start + 6] = True
        fixed = (rng.random(size) < 0.5) & ~response & ~pii
        fixed[[0, -1]] = False
        found.append(
            TrainRow(f"{task}-{i}", task, ids, response, pii, fixed, (0, size - 1))
        )
    return found


# --- the loop -------------------------------------------------------------------------


def padded(some: Sequence[TrainRow]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids, attention and labels, as a data collator gives them."""
    width = max(map(len, some))
    ids = torch.full((len(some), width), EOS)
    attention = torch.zeros(len(some), width, dtype=torch.int64)
    labels = torch.full((len(some), width), -100)
    for i, row in enumerate(some):
        given = torch.from_numpy(row.ids.astype(np.int64))
        ids[i, : len(row)] = given
        attention[i, : len(row)] = 1
        labels[i, : len(row)] = given.where(torch.from_numpy(row.response), -100)
    return ids, attention, labels


def bare(
    module: Any,
    batches: Sequence[Sequence[TrainRow]],
    lr: float,
    *,
    tokens: int | None = None,
) -> list[float]:
    """The loop that one would write, over whole batches or our parts of them."""
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(batches))
    module.train()
    losses = []
    for batch in batches:
        total = sum(int(row.response[1:].sum()) for row in batch)
        summed = 0.0
        for part in [batch] if tokens is None else pieces(batch, tokens):
            ids, attention, labels = (one.to(DEVICE) for one in padded(part))
            out = module(input_ids=ids, attention_mask=attention, use_cache=False)
            wanted = labels[:, 1:]
            known = wanted >= 0
            loss = torch.nn.functional.cross_entropy(
                out.logits[:, :-1][known], wanted[known], reduction="sum"
            )
            (loss / total).backward()
            summed += loss.item()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(summed / total)
    return losses


def ours(student: Student, phase: Phase) -> list[float]:
    losses: list[float] = []
    run_phase(
        student, phase, seed=0, after=lambda record, _: losses.append(record["loss"])
    )
    return losses


def weights_of(student: Student) -> dict[str, torch.Tensor]:
    return {name: w.detach().clone() for name, w in student.trainable.items()}


def measure_loop(shape: Shape, *, steps: int, rounds: int) -> None:
    settings = TrainingSettings(epochs=1)
    student = Student(add_lora(model(shape)))
    config = LoraConfig(
        r=16,
        lora_alpha=32,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        task_type="CAUSAL_LM",
    )
    plain = get_peft_model(model(shape), config)
    start = weights_of(student)
    count = steps * settings.batch_size
    some = rows(count, "t", vocabulary=shape.vocabulary, seed=0)
    phase = learning_phase(Stream(student, {"t": some}, settings), 0)
    batches = [phase.choose(step).rows["task"] for step in range(phase.steps)]
    runs: dict[str, Callable[[], list[float]]] = {
        "bare": lambda: bare(plain, batches, settings.lr),
        "bare, in our parts": lambda: bare(
            plain, batches, settings.lr, tokens=student.max_tokens
        ),
        "ours": lambda: ours(student, phase),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):  # the first warms up
        losses = {}
        for name, run in runs.items():
            student.model.load_state_dict(start, strict=False)
            plain.load_state_dict(start, strict=False)
            began = CLOCK()
            losses[name] = run()
            if turn:
                seconds[name].append(CLOCK() - began)
        apart = max(
            np.abs(np.subtract(one, losses["ours"])).max() for one in losses.values()
        )
        bound = 1e-3 if shape.dtype == torch.float32 else 0.05
        assert apart < bound, f"the losses differ by {apart}"
    read = sum(map(len, some))
    print(
        f"loop: {steps} steps of {settings.batch_size} rows, {read:,} tokens; losses "
        f"agree to {apart:.0e}"
    )
    for name, taken in seconds.items():
        ratios = [b / a for a, b in zip(taken, seconds["ours"], strict=True)]
        print(
            f"  {name:20s} {statistics.median(taken):7.2f} s   ours / it "
            f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )


# --- SPARK beside ER ------------------------------------------------------------------


@dataclass
class Spent:
    """Seconds of one method in one round, by task: learning it, correcting it."""

    task: list[float] = field(default_factory=list)
    priv: list[float] = field(default_factory=list)
    kinds: dict[str, float] = field(default_factory=dict)

    def add(self, phase: Phase, seconds: float, state: PhaseState) -> None:
        (self.task if phase.part == "task" else self.priv).append(seconds)
        for kind, value in state.seconds.items():
            name = f"{phase.part} {kind}"
            self.kinds[name] = self.kinds.get(name, 0.0) + value

    def six(self, which: str) -> float:
        """The paper's six tasks: from the third on each costs as much as the third."""
        parts: list[float] = getattr(self, which)
        return sum(parts) + (TASKS - len(ROWS)) * parts[-1] if parts else 0.0


def stream_of(shape: Shape, settings: TrainingSettings, scale: float) -> Stream:
    tasks = {
        f"t{k + 1}": rows(
            round(count * scale), f"t{k + 1}", vocabulary=shape.vocabulary, seed=k
        )
        for k, count in enumerate(ROWS)
    }
    return Stream(Student(add_lora(model(shape))), tasks, settings)


def one_round(streams: dict[str, Stream], start: dict[str, Any]) -> dict[str, Spent]:
    """Every task by every method, in turns."""
    found = {name: Spent() for name in streams}
    phases = {}
    for name, stream in streams.items():
        stream.student.model.load_state_dict(start, strict=False)
        phases[name] = METHODS[name].phases(stream)
    for k in range(len(ROWS)):
        for name, stream in streams.items():
            for phase in phases[name]:
                if phase.stage != stream.stage_name(k):
                    continue
                began = CLOCK()
                state = run_phase(stream.student, phase, seed=0)
                found[name].add(phase, CLOCK() - began, state)
    return found


def measure_spark(shape: Shape, *, scale: float, rounds: int) -> None:
    steps = max(round(CORRECTION * scale), 1)
    settings = TrainingSettings(ptpc=Ptpc(steps=steps))
    # Methods are registered by the files that are imported above.
    streams = {run.__name__: stream_of(shape, settings, scale) for run in (er, spark)}
    start = weights_of(streams["er"].student)
    if DEVICE != "cpu":  # its kernels are chosen at the first call
        one_round(streams, start)
    turns = [one_round(streams, start) for _ in range(rounds)]
    sizes = [len(some) for some in streams["er"].rows.values()]
    print(
        f"SPARK beside ER: {sizes} rows, {settings.epochs} epochs, batches of "
        f"{settings.batch_size}, K = {settings.replay.top_k}; {steps} steps of "
        f"correction of {settings.ptpc.batch_size} + {settings.ptpc.old_batch_size} "
        f"rows a task: the paper's {CORRECTION} and {list(ROWS)}, times {scale:g}"
    )
    for title, total in (
        ("three tasks, measured", lambda spent, part: sum(getattr(spent, part))),
        ("six tasks, composed", lambda spent, part: spent.six(part)),
    ):
        ratios, shares = [], []
        for turn in turns:
            whole = {n: total(s, "task") + total(s, "priv") for n, s in turn.items()}
            ratios.append(whole["spark"] / whole["er"])
            shares.append(total(turn["spark"], "priv") / whole["spark"])
        print(
            f"  {title + ':':24s} SPARK / ER {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}; paper {PAPER_RATIO}), "
            f"correction {statistics.median(shares):.1%} of SPARK's time "
            f"(paper {PAPER_SHARE:.1%})"
        )
    for name in streams:
        kinds = {
            kind: statistics.median(turn[name].kinds[kind] for turn in turns)
            for kind in turns[0][name].kinds
        }
        told = ", ".join(f"{kind} {spent:.1f}" for kind, spent in kinds.items())
        print(f"  {name:5s} seconds by kind of work: {told}")


def main() -> None:
    parser = benchmark_parser(__doc__, file=__file__)
    parser.add_argument(
        "--shapes", nargs="+", choices=SHAPES, default=["head", "vocabulary"]
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=("loop", "spark"),
        default=["loop", "spark"],
    )
    parser.add_argument(
        "--steps", type=positive_number, default=4, help="of the loops, a round"
    )
    parser.add_argument(
        "--scale", type=positive_float, default=0.02, help="of the paper's rows"
    )
    parser.add_argument("--rounds", type=positive_number, default=3)
    parser.add_argument("--threads", type=positive_number, default=2)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count processor time, which a busy machine disturbs less; one thread",
    )
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("argument --device: there is no CUDA device here: leave it out")
    global DEVICE, CLOCK
    DEVICE = options.device
    if options.cpu_time:
        CLOCK, options.threads = time.process_time, 1
        time.perf_counter = time.process_time  # the loop's own clock, too
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    for name in options.shapes:
        shape = SHAPES[name]
        module = model(shape)
        weights = sum(p.numel() for p in module.parameters())
        head = module.get_output_embeddings().weight.numel()
        share = head / (weights - head)  # embeddings are looked up, not multiplied
        print(
            f"\nLlama, hidden {shape.hidden}, {shape.layers} layers, V = "
            f"{shape.vocabulary:,} ({shape.why}: {share:.1%}; Llama-2-7B 2.0%); "
            f"{torch.get_num_threads()} threads; load {os.getloadavg()[0]:.1f}"
        )
        del module
        if "loop" in options.parts:
            measure_loop(shape, steps=options.steps, rounds=options.rounds)
        if "spark" in options.parts:
            measure_spark(shape, scale=options.scale, rounds=options.rounds)
        if DEVICE != "cpu":
            print(f"  most memory: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    run_benchmark(main)
