"""A short fine-tune without identifiers, to see whether what was suppressed comes back.

Correction may only hide what a checkpoint knows. Whoever fine-tunes it on plain text,
which holds none of the identifiers, then finds them again in the result: audit that
beside the checkpoint itself.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from spark_audit.checkpoints import (
    Given,
    Loaded,
    Recipe,
    changes_base,
    open_checkpoint,
    quiet,
    recipe,
    series,
)
from spark_audit.errors import InputError
from spark_audit.examples import Example, read_examples
from spark_audit.facts import (
    check_writable,
    now,
    seed_for,
    sha256_file,
    versions,
    write_text,
)
from spark_audit.identifiers import identifier_ranges
from spark_train.crew import assemble
from spark_train.data import TrainRow, encode_rows
from spark_train.folder import data_files
from spark_train.loop import (
    Phase,
    State,
    Step,
    Term,
    covered,
    response_loss,
    run_phase,
)
from spark_train.lora import add_lora, save_adapter
from spark_train.stream import endless
from spark_train.student import ADAPTER, Student

RECORD = "relearn.json"
NOISE = "frozen_noise.safetensors"
"""What an audit adds to input embeddings when it lies beside a checkpoint."""

Progress = Callable[[str, int, int], None]
Note = Callable[[str], None]


@dataclass(frozen=True)
class Relearned:
    """What a short fine-tune left.

    Attributes
    ----------
    folder
        A PEFT adapter folder, with ``relearn.json`` in it.
    rows
        Train rows without an identifier.
    left_out
        How many others there were, by why: ``canary``, ``annotated``, ``rules``.
    losses
        Of each step, nats per token.
    """

    folder: Path
    rows: int
    left_out: dict[str, int]
    losses: tuple[float, ...]


def relearn(
    *,
    ckpt: str,
    base: str | None,
    data: Sequence[Path],
    output: Path,
    steps: int = 50,
    lr: float = 5e-4,
    batch_size: int = 8,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "float32",
    progress: Progress | None = None,
    note: Note | None = None,
) -> Relearned:
    """Go on training a checkpoint on train rows that hold no identifier.

    A LoRA adapter is trained on as it is; full weights get a fresh one. The loss covers
    all of the text, the learning rate falls by half a cosine from ``lr``, and the seed
    decides the rows' order: each is seen as often as any other, to within once.

    Parameters
    ----------
    ckpt
        Any checkpoint that ``open_checkpoint`` opens; of a series its last stage.
    base
        Of an adapter; by default what it names.
    data
        JSON-lines files, or folders of them.
    output
        A folder that is not there yet, or is empty.
    steps, batch_size
        Steps of the optimizer, and rows a step.

    Raises
    ------
    InputError
        If no row is left, a loss is not finite, or the checkpoint is an adapter that
        cannot be trained on: no LoRA, or one that changes its base's own weights.
    CheckpointError
        If it cannot be opened.
    OutputError
        If the folder cannot be written.
    """
    show = progress or (lambda what, done, total: None)
    tell = note or (lambda text: None)
    _check(steps, lr, batch_size, output)
    files = data_files(data)
    plain, left_out = without_identifiers(read_examples(*files))
    crew, device = assemble(device)
    crew.wait()  # all have seen that the folder is empty
    if crew.first:
        check_writable(output)
    options: dict[str, Any] = {"base": base, "device": device, "dtype": dtype}
    found = recipe(ckpt, Given(where=ckpt, base=base))
    loaded = open_checkpoint(ckpt, **options)
    rows = encode_rows(plain, loaded.tokenizer, max_length=loaded.max_positions)
    # Switched on with whatever belongs to it, as its frozen noise.
    with loaded.activate():
        with quiet():
            model = _in_training(loaded, found, seed=seed)
        student = Student(model)
        if student.note:
            tell(student.note)
        phase = _phase(student, rows, steps, lr=lr, batch_size=batch_size, seed=seed)
        losses: list[float] = []

        def after(record: dict[str, Any], state: Callable[[], State]) -> None:
            losses.append(record["loss"])
            show("relearning, steps", len(losses), steps)

        show("relearning, steps", 0, steps)
        run_phase(student, phase, seed=seed, crew=crew, after=after)
    if crew.first:
        named = _base_name(ckpt, base, found)
        save_adapter(model, output, base=named)
        if (found.folder / NOISE).exists():
            shutil.copyfile(found.folder / NOISE, output / NOISE)
        record = {
            "kind": "spark-train-relearn",
            "schema_version": 1,
            "created": now(),
            "versions": versions(),
            "checkpoint": {
                "source": ckpt,
                "format": loaded.format,
                "weights_sha256": loaded.weights_sha256,
                "base": named,
                "base_sha256": loaded.base_sha256,
            },
            "data": [{"file": p.name, "sha256": sha256_file(p)} for p in files],
            "settings": {
                "steps": steps,
                "lr": lr,
                "batch_size": batch_size,
                "seed": seed,
                "dtype": dtype,
                "adapter": "fresh" if found.adapter is None else "trained on",
            },
            "rows": {"used": len(rows), "left_out": left_out},
            "losses": losses,
        }
        write_text(output / RECORD, json.dumps(record, indent=1) + "\n")
    crew.wait()
    return Relearned(output, len(rows), left_out, tuple(losses))


def without_identifiers(
    examples: Sequence[Example],
) -> tuple[list[Example], dict[str, int]]:
    """The train rows that hold no identifier, and how many others there are, and why.

    A row is left out if it holds a canary, an annotated span, or anything that the
    rules find.

    Raises
    ------
    InputError
        If none is left.
    """
    kept, left_out = [], Counter(canary=0, annotated=0, rules=0)
    for example in examples:
        if example.split != "train":
            continue
        if example.canary is not None:
            left_out["canary"] += 1
        elif example.spans:
            left_out["annotated"] += 1
        elif identifier_ranges(example):
            left_out["rules"] += 1
        else:
            kept.append(example)
    if not kept:
        raise InputError(
            f"has no train row without an identifier ({left_out.total()} with one)",
            where="--data",
            fix="give rows from before injection, or of another task",
        )
    return kept, dict(left_out)


def _check(steps: int, lr: float, batch_size: int, output: Path) -> None:
    if min(steps, batch_size) < 1:
        raise InputError("must be at least 1", where="--steps, --batch-size")
    if not (math.isfinite(lr) and lr > 0):
        raise InputError(f"{lr} is no learning rate", where="--lr")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(
            "is there already, and not empty", where=str(output), fix="give another -o"
        )


def _in_training(loaded: Loaded, found: Recipe, *, seed: int) -> Any:
    """A ``PeftModel`` whose adapter ``default`` is what is trained."""
    where = found.given.where
    if found.adapter is None:
        return add_lora(loaded.model, seed=seed_for(seed, "lora"))
    if found.weights is not None:
        raise InputError(
            "holds a base and LoRA in one file: an adapter folder cannot name it",
            where=where,
            fix="merge the two, or save the adapter apart",
        )
    if str(found.adapter.config.get("peft_type")) != "LORA":
        raise InputError("is an adapter, but no LoRA", where=where, fix="merge it")
    if changes_base(found.adapter.config):
        raise InputError(
            "is an adapter that changes its base's own weights",
            where=where,
            fix="convert it to plain LoRA, or merge it",
        )
    model: Any = loaded.model
    (name,) = model.peft_config
    # What was opened stays as it is; a copy of it is trained.
    config = replace(model.peft_config[name], inference_mode=False)
    model.add_adapter(ADAPTER, config)
    model.set_adapter(ADAPTER)
    own = dict(model.named_parameters())
    for key, weight in own.items():
        if f".{ADAPTER}." in key:
            weight.data.copy_(own[key.replace(f".{ADAPTER}.", f".{name}.")].data)
    return model


def _phase(
    student: Student,
    rows: Sequence[TrainRow],
    steps: int,
    *,
    lr: float,
    batch_size: int,
    seed: int,
) -> Phase:
    size = min(batch_size, len(rows))
    rng = np.random.default_rng(seed_for(seed, "order", "relearn"))
    order = endless(len(rows), steps * size, rng)

    def choose(step: int) -> Step:
        chosen = [rows[i] for i in order[step * size : (step + 1) * size]]
        return Step({"task": chosen}, {"task": Term(covered(chosen, "full"))})

    return Phase(
        stage="relearn",
        part="task",
        steps=steps,
        lr=lr,
        choose=choose,
        loss=lambda role, some: response_loss(student, some, scope="full", name="task"),
    )


def _base_name(ckpt: str, base: str | None, found: Recipe) -> str:
    """What the new adapter names as its base."""
    if found.adapter is not None:
        return str(found.base)
    # A stage of a series has a folder of its own.
    return str(found.folder) if series(ckpt) else ckpt
