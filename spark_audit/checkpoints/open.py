"""Checkpoints: whatever somebody saved, opened as exactly what it is or refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_audit.checkpoints.detect import recipe, series
from spark_audit.checkpoints.models import (
    quiet,
)
from spark_audit.checkpoints.quantise import check_kinds
from spark_audit.checkpoints.recipe import (
    Found,
    Given,
    Loaded,
    Recipe,
)
from spark_audit.checkpoints.specs import (
    BASE,
    Spec,
    default_name,
)
from spark_audit.checkpoints.tokenizer import (
    read_tokenizer,
    usable_rows,
)
from spark_audit.checkpoints.weight_files import (
    locate,
    printable,
    shown,
)
from spark_audit.errors import InputError, SparkError

SMALL_BYTES = 1 << 26
"""Of weights that looking at a checkpoint opens: in seconds, and below 1 GB."""


DTYPES = ("float32", "bfloat16", "float16", "auto")


def load_tokenizer(
    source: str | Path, *, trust_remote_code: bool = False, where: str | None = None
) -> Any:
    """The fast tokenizer of a model's folder or ``hf:ORG/NAME``, without the model.

    Raises
    ------
    CheckpointError
        If there is none, it brings code, or it gives no character offsets.
    """
    with quiet():
        folder = locate(str(source), code=trust_remote_code)
        return read_tokenizer(
            folder, trust_remote_code=trust_remote_code, where=where or str(source)
        )[0]


def expand(spec: Spec) -> tuple[Spec, ...]:
    """One spec a stage, named ``NAME@K``: a list of paths is itself a series.

    Returns
    -------
    tuple
        The spec alone when it is a single checkpoint or names its stage.
    """
    if len(spec.paths) > 1:
        steps = [(path, spec.stage) for path in spec.paths]
    elif spec.stage is None and (found := series(spec.paths[0])):
        steps = [(spec.paths[0], str(k)) for k in range(1, len(found) + 1)]
    else:
        return (spec,)
    return tuple(
        Spec(f"{spec.name}@{k}", (path,), stage)
        for k, (path, stage) in enumerate(steps, start=1)
    )


def open_checkpoint(
    source: str,
    *,
    base: str | None = None,
    name: str | None = None,
    device: str = "auto",
    dtype: str = "float32",
    lora_alpha: float | None = None,
    tokenizer: str | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> Loaded:
    """Open one checkpoint as exactly what it is.

    Parameters
    ----------
    source
        A Hugging Face folder or ``hf:ORG/NAME``, a PEFT folder, a weights file, a
        series of tasks (its last stage, or ``PATH@K``).
    base
        The base of an adapter or of a weights file; by default the folder that the
        adapter names, never a model on the hub.
    name
        What reports call it; by default the last part of the path. ``base`` marks the
        base itself.
    device
        ``auto`` (CUDA when there is one), ``cpu``, ``cuda``.
    dtype
        ``float32``, ``bfloat16``, ``float16``, or ``auto`` for what was saved.
    lora_alpha
        Needed for LoRA weights without adapter_config.json.
    tokenizer
        A folder that overrides the checkpoint's and the base's tokenizer.

    Raises
    ------
    CheckpointError
        With the reason, when it cannot be loaded as what it claims to be.
    """
    spec = Spec(name or default_name(source), (source,))
    *_, loaded = open_checkpoints(
        [spec],
        base=base,
        device=device,
        dtype=dtype,
        lora_alpha=lora_alpha,
        tokenizer=tokenizer,
        trust_remote_code=trust_remote_code,
        revision=revision,
    )
    return loaded


def open_checkpoints(
    specs: Sequence[Spec],
    *,
    base: str | None = None,
    include_base: bool = False,
    device: str = "auto",
    dtype: str = "float32",
    lora_alpha: float | None = None,
    tokenizer: str | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
    quantize: Sequence[str] = (),
) -> Iterator[Loaded]:
    """Open several checkpoints one after the other, each base once.

    All are checked from their headers before the first is loaded. The base comes
    first (with adapters, or with ``include_base`` when one is given), then its
    adapters, attached to one module and switched; then full weights, each released
    before the next is loaded: a checkpoint of another module than the current one
    cannot be activated any more. Adapters of another PEFT type, or that change the
    base's weights, get a base of their own. Replicates of one spec are named
    ``name[1]``, ``name[2]`` ... With ``quantize`` (``int8``, ``int4``) each but the
    base is followed by itself with rounded weights, ``name+int8``.

    Yields
    ------
    Loaded
        Not in the order of ``specs``: go by ``name``.

    Raises
    ------
    CheckpointError
        As :func:`open_checkpoint`; also when adapters name different bases.
    """
    from spark_audit.checkpoints.base_model import Stand
    from spark_audit.checkpoints.plan import Plan

    if dtype not in DTYPES:
        raise InputError(
            f"unknown dtype {dtype!r}",
            where="--dtype",
            fix=f"choose one of: {', '.join(DTYPES)}",
        )
    check_kinds(tuple(quantize))
    given = Given(
        base=base,
        lora_alpha=lora_alpha,
        tokenizer=tokenizer,
        trust_remote_code=trust_remote_code,
        revision=revision,
        device=device,
        dtype=dtype,
    )
    with quiet():
        plan = Plan(specs, given, include_base=include_base)
    taken = {name for name, _ in plan.items}
    for name in taken:
        for kind in quantize:
            if f"{name}+{kind}" in taken:
                raise InputError(
                    f"the name {f'{name}+{kind}'!r} is that of a rounded checkpoint",
                    where="--ckpt",
                    fix="name the checkpoint otherwise",
                )
    stand: Stand | None = None
    for shared, items in plan.groups():
        if stand is not None:
            stand.release()
        with quiet():
            stand = Stand(shared, given)
        for name, item in items:
            is_base = plan.is_base(item)
            kinds = () if name == BASE or is_base else tuple(quantize)
            opened = stand.load(name, item, is_base=is_base, quantize=kinds)
            while True:
                with quiet():
                    loaded = next(opened, None)
                if loaded is None:
                    break
                yield loaded


def inspect_checkpoint(
    source: str,
    *,
    base: str | None = None,
    lora_alpha: float | None = None,
    tokenizer: str | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> Found:
    """What a checkpoint is and whether it would load.

    What is small is opened, on the CPU, as an audit opens it. Of what is larger
    headers are read, and an adapter's numbers: NaN in a base, or an adapter that
    changes nothing, show on opening only.

    Full weights say nowhere which base they come from. Where one is given they are
    compared with it: opening does not ask, an audit would be of two different models.
    """
    from spark_audit.checkpoints.base_model import Stand, remarks, tokenizer_of
    from spark_audit.checkpoints.full_weights import NOT_VERIFIABLE, compare_with_base
    from spark_audit.checkpoints.plan import (
        base_recipe,
        bytes_of,
        check_base,
        rehearse,
        same_path,
    )

    given = Given(
        base=base,
        lora_alpha=lora_alpha,
        tokenizer=tokenizer,
        trust_remote_code=trust_remote_code,
        revision=revision,
    )
    facts: dict[str, str] = {}
    problems: list[str] = []
    notes: list[str] = []
    made: Recipe | None = None
    opened = False
    try:
        with quiet():
            made = recipe(source, given)
            notes += made.notes
            facts |= _facts(made)
            shared = made if made.weights else base_recipe(made, given)
            seen = rehearse(made, shared)
            facts |= seen.facts
            if made.weights is None:
                check_base(made, shared)
            words, tokenizer_id, more = tokenizer_of(made, shared, known={})
            usable = usable_rows(words, seen.rows, where=source)
            more += remarks(seen.found, seen.model, words, usable)
            notes += [*seen.notes, *more]
            facts["vocabulary"] = f"{int(usable.sum())} tokens in {seen.rows} rows"
            facts["tokenizer_sha256"] = tokenizer_id
            if made.weights and base and not same_path(base, source):
                notes.append(NOT_VERIFIABLE)
                notes.append(compare_with_base(made, words))
            assert shared.weights is not None
            adapter = made.adapter.files if made.adapter else ()
            small = bytes_of([*shared.weights.files, *adapter]) <= SMALL_BYTES
            # What is quantised may open on a GPU only, which others may be using.
            if small and not seen.found.quantised:
                stand = Stand(shared, replace(given, device="cpu"))
                next(stand.load(source, made, is_base=False))
                stand.release()
                opened = True
    except SparkError as error:
        problems.append(str(error))
    return Found(
        source=printable(source) if made is None else made.source,
        format=None if made is None else made.format,
        facts=facts,
        notes=tuple(notes),
        stages=() if made is None else made.stages,
        problems=tuple(problems),
        opened=opened,
    )


def _facts(made: Recipe) -> dict[str, str]:
    """What the headers say, in the order it is printed."""
    files = [*(made.weights.files if made.weights else ())]
    facts: dict[str, str] = {}
    if made.adapter is not None:
        files += made.adapter.files
        config = made.adapter.config
        facts["adapter"] = shown(config.get("peft_type"))
        for key in ("r", "lora_alpha", "use_dora", "use_rslora", "num_virtual_tokens"):
            if config.get(key):
                facts[key] = shown(config[key])
        targets = config.get("target_modules")
        if targets:
            listed = sorted(
                map(shown, targets if isinstance(targets, list) else [targets])
            )
            facts["target_modules"] = ", ".join(listed[:8])
    if made.weights is None and made.base is not None:
        facts["base"] = printable(made.base)
    size = sum(path.stat().st_size for path in files)
    facts["files"] = f"{', '.join(p.name for p in files[:4])} ({size / 1e6:.1f} MB)"
    return facts
