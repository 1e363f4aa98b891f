"""A short fine-tune without identifiers, to see whether what was suppressed comes back.

Correction may only hide what a checkpoint knows. Whoever fine-tunes it on plain text,
which holds none of the identifiers, then finds them again in the result: audit that
beside the checkpoint itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from spark_audit.checkpoints.adapter_config import changes_base
from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.detect import read_headers
from spark_audit.checkpoints.loaded import Loaded
from spark_audit.checkpoints.offline import quiet
from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.checkpoints.sidecar import NOISE
from spark_audit.checkpoints.tokenizer import has_tokenizer, has_vocabulary
from spark_audit.data.examples import Example, data_files, read_examples
from spark_audit.data.occurrences import identifier_ranges
from spark_audit.errors import InputError, OutputError
from spark_audit.files import (
    TEMPORARY,
    check_links,
    check_writable,
    parse_json,
    read_regular,
    sweep,
    temporary,
    write_text,
)
from spark_audit.provenance import now, seed_for, sha256_file, versions
from spark_train.data import TrainRow, encode_rows
from spark_train.distributed import assemble
from spark_train.known_identifiers import Annotated
from spark_train.loop import Phase, State, run_phase
from spark_train.model.lora import (
    ADAPTER,
    TRAINED_ON,
    add_lora,
    copy_adapter,
    save_adapter,
)
from spark_train.model.student import Student
from spark_train.phases.fine_tuning import fine_tuning
from spark_train.request import RelearnRequest
from spark_train.stream import endless

RECORD = "relearn.json"
PART = ".spark-relearn.part"
"""Folder of what is not moved up yet."""
MOVING = "moving.json"
"""In it: the names of what is being moved up; none of them was there before."""
_LAST = ("adapter_config.json", "config.json")

Progress = Callable[[str, int, int], None]
Note = Callable[[str], None]


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
        How many others there were, by why; see :func:`without_identifiers`.
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
    progress: Progress | None = None,
    note: Note | None = None,
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
    show = progress or (lambda what, done, total: None)
    tell = note or (lambda text: None)
    output, ckpt, steps = request.output, request.ckpt, request.steps
    processes, device = assemble(request.loading.device)
    loading = replace(request.loading, device=device, base=request.base)
    with contextlib.ExitStack() as held:
        with processes.together():
            _check_empty(output)
            files = data_files(request.data)
            plain, left_out = without_identifiers(read_examples(*files))
        with processes.together():  # all have seen that the folder is empty
            if processes.first:
                part = held.enter_context(_in_parts(output))
            opened = read_headers(ckpt, loading)
            loaded = open_checkpoint(ckpt, loading)
            rows = encode_rows(plain, loaded.tokenizer, max_length=loaded.max_positions)
            # Switched on with whatever belongs to it, as its frozen noise.
            held.enter_context(loaded.activate())
            with quiet():
                model = _in_training(loaded, opened, request)
            student = Student(model)
        if student.note:
            tell(student.note)
        if opened.adapter is None and loaded.dtype != "float32":
            tell(f"trained weights are rounded to {loaded.dtype} with the full weights")
        losses: list[float] = []

        def after(record: dict[str, Any], state: Callable[[], State]) -> None:
            losses.append(record["loss"])
            show("relearning, steps", len(losses), steps)

        show("relearning, steps", 0, steps)
        phase = _phase(student, rows, request)
        with processes.alike():
            run_phase(
                student, phase, seed=request.seed, processes=processes, after=after
            )
        left = Relearned(output, len(rows), left_out, tuple(losses))
        if processes.first:
            with _writing(output):
                _save(model, part, loaded, opened)
                own = has_tokenizer(opened.folder) or has_vocabulary(opened.folder)
                if opened.adapter is None or own or loading.tokenizer is not None:
                    loaded.tokenizer.save_pretrained(part)
                record = _record(request, files, loaded, opened, left)
                write_text(part / RECORD, json.dumps(record, indent=1) + "\n")
    processes.wait()
    return left


def _base_of(opened: Checkpoint) -> str | None:
    """What an adapter names as its base; ``None`` of full weights."""
    return None if opened.adapter is None else str(opened.base)


def _record(
    request: RelearnRequest,
    files: Sequence[Path],
    loaded: Loaded,
    opened: Checkpoint,
    left: Relearned,
) -> dict[str, Any]:
    """What ``relearn.json`` says."""
    base = _base_of(opened)
    return {
        "kind": "spark-train-relearn",
        "schema_version": 1,
        "created": now(),
        "versions": versions(),
        "checkpoint": {
            "source": request.ckpt,
            "format": loaded.format,
            "weights_sha256": loaded.weights_sha256,
            "base": base,
            "base_sha256": loaded.base_sha256,
        },
        "data": [{"file": p.name, "sha256": sha256_file(p)} for p in files],
        "settings": {
            "steps": request.steps,
            "lr": request.lr,
            "batch_size": request.batch_size,
            "seed": request.seed,
            "dtype": request.loading.dtype,
            "adapter": "fresh, merged" if base is None else "trained on",
            "lora_targets": sorted(request.lora_targets),
        },
        "rows": {"used": left.rows, "left_out": left.left_out},
        "losses": list(left.losses),
    }


def _save(model: Any, folder: Path, loaded: Loaded, opened: Checkpoint) -> None:
    """Write a checkpoint of the kind that was opened, with its frozen noise."""
    noise, base = opened.folder / NOISE, _base_of(opened)
    if base is not None:
        save_adapter(
            model,
            folder,
            base=base,
            base_sha256=loaded.base_sha256,
            noise=noise if noise.exists() else None,
        )
        return
    with quiet():
        model.merge_and_unload().save_pretrained(folder)
    if noise.exists():
        shutil.copyfile(noise, folder / NOISE)
        told = {"noise_sha256": sha256_file(noise)}
        write_text(folder / TRAINED_ON, json.dumps(told) + "\n")


def without_identifiers(
    examples: Sequence[Example],
) -> tuple[list[Example], dict[str, int]]:
    """The train rows that hold no identifier, and how many others there are, and why.

    A row is left out if it holds a canary (``canary``), an annotated span
    (``annotated``), anything that the rules find (``rules``), or a string that is
    annotated in another row of either split (``elsewhere``). A row with a blank
    response (``blank``) cannot be trained on.

    Raises
    ------
    InputError
        If none is left.
    """
    known = Annotated(examples)
    left_out = Counter(canary=0, annotated=0, rules=0, elsewhere=0, blank=0)
    kept = []
    for example in examples:
        if example.split != "train":
            continue
        if example.canary is not None:
            left_out["canary"] += 1
        elif example.spans:
            left_out["annotated"] += 1
        elif identifier_ranges(example):
            left_out["rules"] += 1
        elif known.stands_in(example.text):
            left_out["elsewhere"] += 1
        elif not example.response.strip():
            left_out["blank"] += 1
        else:
            kept.append(example)
    if not kept:
        why = ", ".join(f"{name} {n}" for name, n in left_out.items() if n)
        raise InputError(
            f"has no train row without an identifier (left out: {why or 'none'})",
            where="--data",
            fix="give rows from before injection, or of another task",
        )
    return kept, dict(left_out)


def _check_empty(output: Path) -> None:
    place = output.resolve()  # a link to an empty folder is one
    _sweep(place)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(
            "is there already, and not empty", where=str(output), fix="give another -o"
        )


@contextmanager
def _in_parts(output: Path) -> Iterator[Path]:
    """A folder in ``output`` whose files are moved up into it when all are written.

    The folder itself stays the one it is: it may be where the user stands, or a mount.
    When anything fails, what was not there before is removed.
    """
    place = output.resolve()
    made = [path for path in (place, *place.parents) if not path.exists()]
    part = place / PART / "new"
    try:
        check_writable(output)
        with contextlib.ExitStack() as held:
            with _writing(output):  # while it is there, others leave the folder alone
                place.mkdir(parents=True, exist_ok=True)
                held.enter_context(temporary(place))
            held.callback(_undo, place)
            yield part
            with _writing(output):
                # What makes the folder a checkpoint comes last.
                files = sorted(part.iterdir(), key=lambda p: (p.name in _LAST, p.name))
                write_text(place / PART / MOVING, json.dumps([p.name for p in files]))
                for file in files:
                    os.replace(file, place / file.name)
                (place / PART / MOVING).unlink()
    finally:
        with contextlib.suppress(OSError):  # whole, or someone else's file is in it
            for path in made:
                path.rmdir()


def _sweep(place: Path) -> None:
    """Remove what a relearning that was killed has left, if none is at work."""
    sweep(place)
    if (place / PART).is_dir() and not any(
        TEMPORARY.fullmatch(path.name) for path in place.iterdir()
    ):
        _undo(place)


def _undo(place: Path) -> None:
    """Remove the parts, and those of them that were moved before all were."""
    with contextlib.suppress(InputError, OSError, TypeError, ValueError):
        check_links(place, PART, f"{PART}/*")
        moving = read_regular(place / PART / MOVING)
        for name in map(str, parse_json(moving, place=MOVING)):
            # Whoever wrote the list: names of files in this folder, and no paths.
            if name == Path(name).name and not (place / PART / "new" / name).exists():
                (place / name).unlink(missing_ok=True)
    shutil.rmtree(place / PART, ignore_errors=True)


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        # Transformers' own text may name a machine's paths.
        why = getattr(error, "strerror", None) or type(error).__name__
        raise OutputError(
            f"cannot be written ({why})",
            where=str(output),
            fix="check the folder's permissions and free space, then run again",
        ) from error


def _in_training(loaded: Loaded, opened: Checkpoint, request: RelearnRequest) -> Any:
    """A ``PeftModel`` whose adapter ``default`` is what is trained."""
    where, targets = opened.where, request.lora_targets
    if opened.adapter is None:
        config: Any = loaded.model.config
        if getattr(config, "quantization_config", None):
            raise InputError(
                "is quantised: trained weights cannot be merged into it exactly",
                where=where,
                fix="give the weights that it was made from",
            )
        seed = seed_for(request.seed, "lora")
        return add_lora(loaded.model, seed=seed, targets=targets)
    if targets:
        raise InputError(
            "an adapter is trained on as it is, with the layers it has",
            where="--lora-targets",
            fix="leave it out",
        )
    if opened.weights is not None:
        raise InputError(
            "holds a base and LoRA in one file: an adapter folder cannot name it",
            where=where,
            fix="merge the two, or save the adapter apart",
        )
    if str(opened.adapter.config.get("peft_type")) != "LORA":
        raise InputError("is an adapter, but no LoRA", where=where, fix="merge it")
    if changes_base(opened.adapter.config):
        raise InputError(
            "is an adapter that changes its base's own weights",
            where=where,
            fix="convert it to plain LoRA, or merge it",
        )
    model: Any = loaded.model
    (name,) = model.peft_config
    # What was opened stays as it is; a copy of it is trained.
    copy_adapter(model, name, ADAPTER)
    model.set_adapter(ADAPTER)
    return model


def _phase(
    student: Student, rows: Sequence[TrainRow], request: RelearnRequest
) -> Phase:
    size = min(request.batch_size, len(rows))
    rng = np.random.default_rng(seed_for(request.seed, "order", "relearn"))
    order = endless(len(rows), request.steps * size, rng)
    return fine_tuning(
        student,
        lambda step: [rows[i] for i in order[step * size : (step + 1) * size]],
        name="relearn",
        steps=request.steps,
        lr=request.lr,
        scope="full",
    )
