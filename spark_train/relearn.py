"""Fine-tune without identifiers, to see whether suppressed knowledge returns.

A correction may only hide what a checkpoint knows. Then a fine-tune on plain text,
without any identifier, brings it back: audit the result beside the checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import numpy as np
from peft import PeftModel

from spark_audit.checkpoints.adapter_config import changes_base
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.detect import read_headers
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.checkpoints.untrusted import quiet
from spark_audit.checkpoints.weight_files import NOISE_FILE
from spark_audit.data.examples import data_files, read_examples
from spark_audit.data.occurrences import without_identifiers
from spark_audit.errors import InputError
from spark_audit.files import check_writable, sha256_file, write_text
from spark_audit.provenance import now, seed_for, versions
from spark_train.adapter_folder import (
    TRAINED_ON,
    is_empty_folder,
    replaced,
    save_adapter,
)
from spark_train.fine_tuning import fit
from spark_train.lora import ADAPTER_NAME, add_lora, copy_adapter
from spark_train.stream import cycled_indices
from spark_train.student import Student
from spark_train.training_request import RelearnRequest
from spark_train.training_rows import encode_rows


class UsedRows(TypedDict):
    """Numbers of rows: ``used``, and ``left_out`` by reason."""

    used: int
    left_out: dict[str, int]


class RelearnRecord(TypedDict):
    """The content of ``relearn.json`` beside the weights.

    ``losses`` are in nats per token.
    """

    kind: str
    created: str
    versions: dict[str, str]
    checkpoint: dict[str, str | None]
    data: list[dict[str, str]]
    settings: dict[str, float | str]
    rows: UsedRows
    losses: list[float]


def relearn(
    request: RelearnRequest,
    *,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> RelearnRecord:
    """Train a checkpoint further, on train rows without identifiers.

    A LoRA adapter is trained further, and the result is an adapter of the same base.
    Full weights get a fresh adapter, which is merged at the end: the result is full
    weights, which cannot be put on another base. The loss covers the whole text. The
    learning rate falls by half a cosine from ``lr``. The seed determines the order of
    rows, whose numbers of uses differ by at most one, the weights of a fresh adapter,
    and the dropout.

    Returns
    -------
    dict
        The content of ``relearn.json`` beside the weights: the settings, ``rows`` (how
        many were ``used``, and by reason ``left_out``; see
        :func:`~spark_audit.data.occurrences.without_identifiers`), and the ``losses``
        of each step, nats per token.

    Raises
    ------
    InputError
        If the output exists and is not an empty folder, no row is left, or a loss is
        not finite. If the checkpoint cannot be trained: quantised weights, or an
        adapter that is not LoRA or changes its base's own weights.
    CheckpointError
        If the checkpoint cannot be opened.
    OutputError
        If the folder cannot be written.
    """
    # These checks come before the checkpoint is loaded.
    output = request.output
    _check_empty(output)
    check_writable(output)
    files = data_files(request.data)
    examples, left_out = without_identifiers(read_examples(*files))

    # The checkpoint as it lies on the disk, and with its weights.
    loading = replace(request.loading, base=request.base)
    stored = read_headers(request.ckpt, loading)
    loaded = open_checkpoint(request.ckpt, loading)
    rows = encode_rows(examples, loaded.tokenizer, max_length=loaded.max_positions)

    # A batch holds at most all rows.
    batch_size = min(request.batch_size, len(rows))
    rng = np.random.default_rng(seed_for(request.seed, "order", "relearn"))
    n_draws = request.steps * batch_size
    order = cycled_indices(len(rows), n_draws, rng)  # (n_draws,), indices of rows

    # The checkpoint acts with everything that belongs to it, such as its frozen noise.
    with loaded.activate():
        with quiet():
            student = Student(_trainable_model(loaded, stored, seed=request.seed))
        losses = fit(
            student,
            rows,
            order,
            name="relearn",
            batch_size=batch_size,
            lr=request.lr,
            seed=request.seed,
            progress=lambda done, total: progress("relearning, steps", done, total),
        )

        record = _relearn_record(
            request,
            loaded,
            files=files,
            rows={"used": len(rows), "left_out": left_out},
            losses=losses,
        )
        with replaced(output) as folder:
            _save(student.model, folder, loaded, stored)
            write_text(folder / "relearn.json", json.dumps(record, indent=1) + "\n")
    return record


def _relearn_record(
    request: RelearnRequest,
    loaded: Checkpoint,
    *,
    files: Sequence[Path],
    rows: UsedRows,
    losses: list[float],
) -> RelearnRecord:
    """Return the content of ``relearn.json``."""
    data = []
    for path in files:
        data.append({"file": path.name, "sha256": sha256_file(path)})
    return {
        "kind": "spark-train-relearn",
        "created": now(),
        "versions": versions(),
        "checkpoint": {
            "source": request.ckpt,
            "weights_sha256": loaded.weights_sha256,
            "base_sha256": loaded.base_sha256,
        },
        "data": data,
        "settings": {
            "steps": request.steps,
            "lr": request.lr,
            # As requested; with fewer rows, a batch holds only as many.
            "batch_size": request.batch_size,
            "seed": request.seed,
            "dtype": request.loading.dtype,
        },
        "rows": rows,
        "losses": losses,
    }


def _check_empty(output: Path) -> None:
    """Refuse a file, or a folder that is not empty."""
    if output.exists() and not is_empty_folder(output):
        raise InputError(
            "exists already and is not empty", where=str(output), fix="give another -o"
        )


def _trainable_model(
    loaded: Checkpoint, stored: StoredCheckpoint, *, seed: int
) -> PeftModel:
    """Return a model whose adapter ``default`` is to be trained.

    Parameters
    ----------
    seed
        Seed of the fresh adapter that full weights get.
    """
    model = loaded.model
    if not stored.is_adapter:
        if getattr(model.config, "quantization_config", None) is not None:
            raise InputError(
                "is quantised: trained weights cannot be merged into it exactly",
                where=stored.typed_path,
                fix="give the weights it was made from",
            )
        return add_lora(model, seed=seed_for(seed, "lora"))

    config = stored.config
    is_lora = config.get("peft_type") == "LORA"
    if not is_lora or changes_base(config) or stored.has_full_weights:
        raise InputError(
            "is an adapter that is not LoRA, or that changes weights of its base",
            where=stored.typed_path,
            fix="merge it, and give the merged folder",
        )

    # The loaded adapter stays unchanged, and a copy of it is trained. PEFT loaded
    # exactly one adapter, so there is one name.
    assert isinstance(model, PeftModel)
    (loaded_name,) = model.peft_config
    copy_adapter(model, loaded_name, ADAPTER_NAME)
    model.set_adapter(ADAPTER_NAME)
    return model


def _save(
    model: PeftModel, folder: Path, loaded: Checkpoint, stored: StoredCheckpoint
) -> None:
    """Write a checkpoint of the same kind as the stored one, with its frozen noise."""
    noise = stored.folder / NOISE_FILE  # only some checkpoints have it
    if stored.is_adapter:
        save_adapter(
            model,
            folder,
            base=str(stored.base),
            base_sha256=loaded.base_sha256,
            noise=noise if noise.exists() else None,
        )
    else:
        with quiet():
            model.merge_and_unload().save_pretrained(folder)
        # Full weights record the hash of their noise, as adapters do.
        if noise.exists():
            shutil.copyfile(noise, folder / NOISE_FILE)
            trained_on = {"noise_sha256": sha256_file(noise)}
            write_text(folder / TRAINED_ON, json.dumps(trained_on) + "\n")
    loaded.tokenizer.save_pretrained(folder)
