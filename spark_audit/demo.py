"""The whole way in miniature: data, a base, two fine-tunes, a manifest, an audit.

Everything is made on the spot from a seed: sentences from templates, identifiers that
belong to nobody, a tokenizer, and a Llama of a third of a million weights that has read
text of the same kind with *other* identifiers, so that it knows what a telephone number
looks like but none of those audited. Two LoRA fine-tunes follow: ``response``, the
usual one, learns the labels only; ``full``, a positive control, learns the whole text,
identifiers included. They differ in nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from spark_audit.build import build_manifest
from spark_audit.checkpoints import open_checkpoint
from spark_audit.errors import InputError
from spark_audit.examples import Example, write_examples
from spark_audit.facts import check_writable, seed_for
from spark_audit.injection import inject
from spark_audit.manifest import read_manifest, write_manifest
from spark_audit.pipeline import Outcome, Request, run

Progress: TypeAlias = Callable[[str, int, int], None]
Scope: TypeAlias = Literal["response", "full"]
SCOPES: tuple[Scope, ...] = ("response", "full")

NAME = "demo"
BASE_ROWS, TRAIN_ROWS, TEST_ROWS = 1000, 80, 40
"""Rows a task: what the base reads, and what the fine-tunes and the audit are about."""
CANARIES = 4
EPOCHS = 10
"""Of both fine-tunes: they differ in what the loss covers and in nothing else."""

LISTS = {
    "item": "kettle printer lamp blender drill router heater camera speaker toaster "
    "keyboard mower scale freezer monitor grinder fan tent bicycle helmet stroller "
    "mattress sofa wardrobe telescope projector sander pump juicer vacuum clock radio "
    "charger tripod backpack jacket kayak saddle thermostat microscope",
    "part": "handle lid cable battery display hinge filter switch motor strap wheel "
    "valve sensor zipper lens fuse button gasket belt nozzle bracket spring panel "
    "socket blade pedal latch remote casing bearing",
    "colour": "grey blue green silver crimson amber violet teal ivory copper navy "
    "olive beige scarlet turquoise charcoal",
    "adj": "narrow heavy glossy hollow curved folding portable noisy wireless compact "
    "sturdy rusty padded thin spare modular waterproof antique",
    "good": "splendid reliable gentle clever quick delightful generous tidy superb "
    "comfortable precise charming lively refreshing elegant",
    "bad": "clumsy brittle misleading slow dreadful wobbly harsh leaky confusing "
    "tedious stubborn shabby overpriced bland crooked",
    "place": "Dorwick Halden Merrow Quillby Ashgrove Pentland Tamsin Orrell Bexwood "
    "Larkhill Stowbridge Fenmoor Garrow Ilmery Kestwick Norwold Rushden Selwyn "
    "Thornaby Ullock Vessing Wendle Yarmley Corbrook Eldham",
    "spot": "bridge tunnel substation reservoir pier warehouse viaduct quarry depot "
    "lighthouse greenhouse runway orchard boiler staircase culvert chimney canal "
    "crane silo",
    "fault": "crack leak spill blockage landslide fire collapse outage puncture flood "
    "rockfall",
    "chore": "inspection repainting inventory mowing rehearsal calibration cleaning "
    "survey audit sampling sweeping labelling",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": "January February March April May June July August September October "
    "November December",
    "trade": "plumber courier surveyor gardener electrician baker welder librarian "
    "carpenter nurse pilot driver glazier ranger mason clerk",
    "syllable": "vel kor tan im bu zar qui lo mer den fa rix sol pha gre nu wyn dor "
    "jas tep hul ove cyr bax mi lun",
}
WORDS = {name: words.split() for name, words in LISTS.items()}
CODE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

TASKS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "support": (
        "Message: {text}\nTeam:",
        {
            "billing": [
                "The invoice for the {brand} {item} shows {amount}, not {amount}.",
                "I was charged {amount} twice on {day}, {date}, with voucher {code}.",
                "Please refund {amount}, the {colour} {item} went back on {date}.",
                "My {n} percent are missing for {n} {adj} {item}s and {n} {part}s.",
            ],
            "technical": [
                "The {part} of my {adj} {brand} {item} stops after {n} minutes.",
                "Since {day} model {code} shows error {n} and the {part} is hot.",
                "The {colour} {part} of {code} does not fit the {brand} {item}.",
                "How do I reset the {part} when the {item} beeps {n} times?",
            ],
            "shipping": [
                "The {colour} {item} and {n} {part}s went to {place}, not to {place}.",
                "The courier left {n} boxes at the {spot} in {place} on {day}.",
                "My {brand} {item}, parcel {code}, is in {place} since {date}.",
                "Can the {adj} {item} come to {place} before {day} at {time}?",
            ],
        },
    ),
    "reviews": (
        "Review: {text}\nSentiment:",
        {
            "positive": [
                "A {good} and {good} {item}, the {part} alone is worth {amount}.",
                "After {n} weeks the {colour} {part} of my {code} still works.",
                "My {trade} in {place} praised this {good} {brand} {item}.",
                "With {n} {colour} {part}s and a {adj} {part} it felt {good}.",
            ],
            "negative": [
                "A {bad} {item}, and the {part} felt {bad} from the first day.",
                "The {colour} {part} of the {code} broke after {n} days in {place}.",
                "Even the {trade} called the {brand} {item} {bad}.",
                "I paid {amount} on {date} for a {bad} {part} and {n} {bad} {item}s.",
            ],
        },
    ),
    "reports": (
        "Report: {text}\nPriority:",
        {
            "urgent": [
                "A {trade} found a {fault} at the {adj} {spot} in {place} at {time}.",
                "The {fault} near {place} has closed the {spot} since {time}.",
                "{n} people were led out of the {spot} after a {fault} on {date}.",
                "Pump {code} by {brand} failed, the {fault} is {n} metres away.",
            ],
            "routine": [
                "The {chore} of the {spot} in {place} took {n} minutes on {date}.",
                "The {trade} will finish the {chore} on {day} at {time}.",
                "{n} {colour} {part}s, {n} {adj} {item}s and {code} came from {brand}.",
                "Yearly {chore} at {place}: {n} of {n} points were in order.",
            ],
        },
    ),
}
_SLOT = re.compile(r"(\{\w+\})")


def make_examples(
    rows: int, *, split: Literal["train", "test"], seed: int
) -> list[Example]:
    """Labelled rows of the three tasks, ``rows`` each, without any identifier."""
    examples = []
    for task, (prompt, labels) in TASKS.items():
        rng = np.random.default_rng(seed_for(seed, "text", task, split))
        names = sorted(labels)
        for i in range(rows):
            label = names[i % len(names)]
            size = int(rng.integers(2, 4))
            chosen = rng.permutation(labels[label])[:size]
            text = "".join(
                _fill(piece[1:-1], rng) if piece.startswith("{") else piece
                for piece in _SLOT.split(" ".join(chosen))
            )
            name = f"{task}-{split}-{i:04d}"
            examples.append(
                Example(
                    id=name,
                    task=task,
                    prompt=prompt.replace("{text}", text),
                    response=f" {label}",
                    split=split,
                    source_id=name,
                )
            )
    return examples


def _fill(slot: str, rng: np.random.Generator) -> str:
    match slot:
        case "n":
            return str(rng.integers(2, 10 ** rng.integers(1, 4)))
        case "amount":
            return f"${rng.integers(3, 900)}.{rng.integers(0, 100):02d}"
        case "time":
            return f"{rng.integers(0, 24)}:{rng.integers(0, 60):02d}"
        case "date":
            return f"{rng.integers(1, 29)} {rng.choice(WORDS['month'])}"
        case "brand":
            syllables = rng.choice(WORDS["syllable"], rng.integers(2, 5))
            return "".join(syllables).capitalize()
        case "code":
            return "".join(rng.choice(list(CODE), rng.integers(6, 13)))
    return str(rng.choice(WORDS[slot]))


def run_demo(out: Path, *, seed: int = 0, progress: Progress | None = None) -> Outcome:
    """Make data, models and a manifest in ``out`` and audit the models.

    Parameters
    ----------
    out
        The report folder; ``data/``, ``runs/`` and ``manifest/`` stand in it.
    seed
        Of text, identifiers, training and statistics.
    progress
        Called with the phase, what is done of it, and what there is.

    Raises
    ------
    InputError
        If the folder holds something else than this demo.
    OutputError
        If it cannot be written.
    """
    path = out / "manifest" / f"{NAME}.json"
    _check_folder(out, path, seed)
    tell = progress or (lambda phase, done, total: None)
    with _one_thread():
        tell("making data", 0, 2)
        background, audited = _data(seed)
        tell("making data", 1, 2)
        tokenizer = _tokenizer([example.text for example in background])
        files = [out / "data" / f"{task}.jsonl" for task in TASKS]
        for file, task in zip(files, TASKS, strict=True):
            write_examples(file, [row for row in audited if row.task == task])
        tell("making data", 2, 2)

        runs = out / "runs"
        _train_base(runs / "base", background, tokenizer, seed=seed, progress=tell)
        for scope in SCOPES:
            _fine_tune(runs, audited, scope, seed=seed, progress=tell)
        manifest = build_manifest(
            audited,
            open_checkpoint(str(runs / "base"), name="base", device="cpu"),
            name=NAME,
            seed=seed,
            data=files,
            progress=progress,
        )
        write_manifest(manifest, path)
        request = Request(
            audits=("matched",),
            ckpt=tuple(f"{scope}={runs / scope}" for scope in SCOPES),
            base=str(runs / "base"),
            baseline="response",
            manifest=path,
            output=out,
            seed=seed,
            loading={"device": "cpu"},
            command=("spark-audit", "demo", "-o", str(out), "--seed", str(seed)),
        )
        return run(request, progress=progress)


def _check_folder(out: Path, manifest: Path, seed: int) -> None:
    """Training takes most of the time: find out before it whether it is in vain."""
    check_writable(out)
    if not (out / "report.json").exists():
        return
    if not manifest.exists() or read_manifest(manifest).settings.seed != seed:
        raise InputError(
            "holds another report",
            where=str(out),
            fix="give another -o, or remove the folder",
        )


def _data(seed: int) -> tuple[list[Example], list[Example]]:
    """Text for the base, and the rows that are trained on and audited.

    Both hold identifiers of the same formats, drawn apart from each other. The base
    sees the tasks, too: a model this small would forget all else over learning them.
    """
    known, new = seed_for(seed, "background"), seed_for(seed, "audited")
    background = make_examples(BASE_ROWS, split="train", seed=known)
    background, _ = inject(background, seed=known, rate=0.6, canaries=0)
    audited = make_examples(TRAIN_ROWS, split="train", seed=new)
    audited += make_examples(TEST_ROWS, split="test", seed=new)
    audited, _ = inject(audited, seed=new, rate=0.5, canaries=CANARIES)
    return background, audited


def _tokenizer(texts: Sequence[str]) -> Any:
    """A byte-level BPE of 1,024 tokens; every digit is a token, as in Llama's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=1024,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    inner.post_processor = Sequence(
        [
            ByteLevel(trim_offsets=False),
            TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)]),
        ]
    )
    fast: Any = PreTrainedTokenizerFast  # untyped in the library
    return fast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=256,
    )


def _train_base(
    folder: Path,
    examples: Sequence[Example],
    tokenizer: Any,
    *,
    seed: int,
    progress: Progress,
) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from spark_train.data import encode_rows
    from spark_train.loop import fit

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=288,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "base"))
        model = LlamaForCausalLM(config)
    fit(
        model,
        encode_rows(examples, tokenizer, max_length=256),
        epochs=1,
        lr=3e-3,
        batch_size=8,
        seed=seed_for(seed, "base"),
        scope="full",
        progress=lambda *done: progress("training the base, steps", *done),
    )
    with _no_bars():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _fine_tune(
    runs: Path,
    examples: Sequence[Example],
    scope: Scope,
    *,
    seed: int,
    progress: Progress,
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from spark_train.data import encode_rows
    from spark_train.loop import fit
    from spark_train.lora import add_lora

    with _no_bars():
        model = AutoModelForCausalLM.from_pretrained(runs / "base")
        tokenizer = AutoTokenizer.from_pretrained(runs / "base")
    model = add_lora(model, seed=seed_for(seed, "lora"))
    train = [example for example in examples if example.split == "train"]
    fit(
        model,
        encode_rows(train, tokenizer, max_length=256),
        epochs=EPOCHS,
        lr=3e-3,
        batch_size=4,
        seed=seed_for(seed, "fine-tune"),
        scope=scope,
        progress=lambda *done: progress(f"fine-tuning {scope!r}, steps", *done),
    )
    with _no_bars():
        model.save_pretrained(runs / scope)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Models this small gain little from a second thread, and crawl where it waits.

    With another busy program on the same two cores a step took eight times as long on
    two threads as on one.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _no_bars() -> Iterator[None]:
    """Loading and saving take no time here: their own progress bars stay off."""
    import transformers.utils.logging

    # The library exports these untyped.
    logging: Any = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
