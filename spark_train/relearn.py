"""A short fine-tune without identifiers, to see whether what was suppressed comes back.

Correction may only hide what a checkpoint knows. Whoever fine-tunes it on plain text,
which holds none of the identifiers, then finds them again in the result: audit that
beside the checkpoint itself.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from spark_audit.checkpoints.adapter_config import changes_base
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.detect import read_headers
from spark_audit.checkpoints.loaded import Loaded
from spark_audit.checkpoints.offline import quiet
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.sidecar import NOISE
from spark_audit.checkpoints.tokenizer import has_tokenizer, has_vocabulary
from spark_audit.data.examples import data_files, read_examples
from spark_audit.data.plain_rows import without_identifiers
from spark_audit.errors import InputError
from spark_audit.files import check_writable, write_text
from spark_audit.provenance import now, seed_for, sha256_file, versions
from spark_train.distributed import assemble
from spark_train.model.lora import (
    ADAPTER,
    TRAINED_ON,
    add_lora,
    copy_adapter,
    replaced,
    save_adapter,
)
from spark_train.model.student import Student
from spark_train.phases.task import fine_tuning, learn
from spark_train.stream import endless
from spark_train.training_request import RelearnRequest
from spark_train.training_rows import encode_rows

RECORD = "relearn.json"


@dataclass(frozen=True)
class Relearned:
    """What a short fine-tune left.

    Attributes
    ----------
    folder
        A checkpoint of the kind that was given, a PEFT adapter folder or a Hugging
        Face folder of full weights, with ``relearn.json`` in it.
    rows
        Train rows without an identifier.
    left_out
        How many others there were, by why; see
        :func:`~spark_audit.data.plain_rows.without_identifiers`.
    losses
        Of each step, nats per token.
    """

    folder: Path
    rows: int
    left_out: dict[str, int]
    losses: tuple[float, ...]


def relearn(
    request: RelearnRequest,
    *,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    note: Callable[[str], None] = lambda text: None,
) -> Relearned:
    """Go on training a checkpoint on train rows that hold no identifier.

    A LoRA adapter is trained on as it is, and an adapter of the same base is left. Full
    weights get a fresh one, which is merged into them at the end: full weights are
    left, that no other base can be put under. The loss covers all of the text, the
    learning rate falls by half a cosine from ``lr``, and the seed decides the rows'
    order: each is seen as often as any other, to within once.

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
    output, steps, what = request.output, request.steps, "relearning, steps"
    processes, device = assemble(request.loading.device)
    loading = replace(request.loading, device=device, base=request.base)
    with processes.together():
        if output.exists() and (not output.is_dir() or any(output.glob("[!.]*"))):
            there, fix = "is there already, and not empty", "give another -o"
            raise InputError(there, where=str(output), fix=fix)
        check_writable(output)
        files = data_files(request.data)
        plain, left_out = without_identifiers(read_examples(*files))
        opened = read_headers(request.ckpt, loading)
        loaded = open_checkpoint(request.ckpt, loading)
        rows = encode_rows(plain, loaded.tokenizer, max_length=loaded.max_positions)
    # Switched on with whatever belongs to it, as its frozen noise.
    with loaded.activate():
        with processes.together(), quiet():
            student = Student(_in_training(loaded, opened, request))
        if student.note:
            note(student.note)
        if not opened.adapter and loaded.dtype != "float32":
            note(f"trained weights are rounded to {loaded.dtype} with the full weights")
        size = min(request.batch_size, len(rows))
        rng = np.random.default_rng(seed_for(request.seed, "order", "relearn"))
        order = endless(len(rows), steps * size, rng).reshape(steps, size)
        phase = fine_tuning(
            student,
            lambda step: [rows[i] for i in order[step]],
            name="relearn",
            steps=steps,
            lr=request.lr,
            scope="full",
        )
        progress(what, 0, steps)
        with processes.alike():
            losses = learn(
                student,
                phase,
                seed=request.seed,
                processes=processes,
                progress=lambda done, total: progress(what, done, total),
            )
        left = Relearned(output, len(rows), left_out, tuple(losses))
        record = _record(request, loaded, opened, files, left)
        if processes.first:
            with replaced(output) as part:
                _save(student.model, part, loaded, opened, loading.tokenizer)
                write_text(part / RECORD, json.dumps(record, indent=1) + "\n")
    processes.wait()
    return left


def _record(
    request: RelearnRequest,
    loaded: Loaded,
    opened: Checkpoint,
    files: Sequence[Path],
    left: Relearned,
) -> dict[str, Any]:
    """``relearn.json``: what was asked for, on what, and what came of it."""
    full, settings = not opened.adapter, ("steps", "lr", "batch_size", "seed")
    return {
        "kind": "spark-train-relearn",
        "schema_version": 1,
        "created": now(),
        "versions": versions(),
        "checkpoint": {
            "source": request.ckpt,
            "format": loaded.format,
            "weights_sha256": loaded.weights_sha256,
            "base": None if full else str(opened.base),
            "base_sha256": loaded.base_sha256,
        },
        "data": [{"file": p.name, "sha256": sha256_file(p)} for p in files],
        "settings": {
            **{name: getattr(request, name) for name in settings},
            "dtype": request.loading.dtype,
            "adapter": "fresh, merged" if full else "trained on",
            "lora_targets": sorted(request.lora_targets),
        },
        "rows": {"used": left.rows, "left_out": left.left_out},
        "losses": left.losses,
    }


def _in_training(loaded: Loaded, opened: Checkpoint, request: RelearnRequest) -> Any:
    """A ``PeftModel`` whose adapter ``default`` is what is trained."""
    model: Any = loaded.model
    if not opened.adapter:
        if getattr(model.config, "quantization_config", None) is not None:
            raise InputError(
                "is quantised: trained weights cannot be merged into it exactly",
                where=opened.where,
                fix="give the weights that it was made from",
            )
        seed = seed_for(request.seed, "lora")
        return add_lora(model, seed=seed, targets=request.lora_targets)
    config = opened.config
    for wrong, what, fix in (
        (
            bool(request.lora_targets),
            "is an adapter, which is trained on as it is, with the layers it has",
            "leave --lora-targets out",
        ),
        (
            opened.complete,
            "holds a base and LoRA in one file: an adapter folder cannot name it",
            "merge the two, or save the adapter apart",
        ),
        (
            config.get("peft_type") != "LORA" or changes_base(config),
            "is an adapter, but no LoRA that leaves its base's own weights alone",
            "convert it to plain LoRA, or merge it",
        ),
    ):
        if wrong:
            raise InputError(what, where=opened.where, fix=fix)
    # What was opened stays as it is; a copy of it is trained.
    (name,) = model.peft_config
    copy_adapter(model, name, ADAPTER)
    model.set_adapter(ADAPTER)
    return model


def _save(
    model: Any, folder: Path, loaded: Loaded, opened: Checkpoint, tokenizer: str | None
) -> None:
    """Write a checkpoint of the kind that was opened, with its frozen noise."""
    noise = opened.folder / NOISE
    own = has_tokenizer(opened.folder) or has_vocabulary(opened.folder)
    if opened.adapter:
        save_adapter(
            model,
            folder,
            base=str(opened.base),
            base_sha256=loaded.base_sha256,
            noise=noise if noise.exists() else None,
        )
    else:
        with quiet():
            model.merge_and_unload().save_pretrained(folder)
        if noise.exists():
            shutil.copyfile(noise, folder / NOISE)
            belongs = {"noise_sha256": sha256_file(noise)}
            write_text(folder / TRAINED_ON, json.dumps(belongs) + "\n")
    if not opened.adapter or own or tokenizer is not None:
        loaded.tokenizer.save_pretrained(folder)
