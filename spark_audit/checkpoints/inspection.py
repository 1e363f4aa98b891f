"""What a checkpoint is and whether it would load, without an audit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from spark_audit.checkpoints.base_model import LoadedBase, remarks, tokenizer_of
from spark_audit.checkpoints.detect import recipe
from spark_audit.checkpoints.locate import locate, printable, read_json
from spark_audit.checkpoints.models import read_architecture
from spark_audit.checkpoints.offline import quiet
from spark_audit.checkpoints.placement import check_room
from spark_audit.checkpoints.plan import (
    base_recipe,
    bytes_of,
    check_base,
    rehearse,
    same_path,
)
from spark_audit.checkpoints.recipe import Given, Inspection, Recipe
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.tokenizer import (
    has_tokenizer,
    read_tokenizer,
    tokenizer_sha256,
    usable_rows,
)
from spark_audit.errors import CheckpointError, SparkError, shown

NOT_VERIFIABLE = "base not verifiable: full weights name no base"

SMALL_BYTES = 1 << 26
"""Of weights that looking at a checkpoint opens: in seconds, and below 1 GB."""


def inspect_checkpoint(
    source: str, loading: Loading | None = None, **options: Any
) -> Inspection:
    """What a checkpoint is and whether it would load.

    What is small is opened, on the CPU, as an audit opens it. Of what is larger
    headers are read, and an adapter's numbers: NaN in a base, or an adapter that
    changes nothing, show on opening only.

    Full weights say nowhere which base they come from. Where one is given they are
    compared with it: opening does not ask, an audit would be of two different models.

    Parameters
    ----------
    loading, options
        As for :func:`spark_audit.checkpoints.open.open_checkpoint`.
    """
    loading = replace(loading or Loading(), **options)
    facts: dict[str, str] = {}
    notes: list[str] = []
    made: Recipe | None = None
    problems: tuple[str, ...] = ()
    opened = False
    try:
        with quiet():
            made = recipe(source, loading)
            facts |= _facts(made)
            notes += made.notes
            opened = _look(made, loading, facts, notes)
    except SparkError as error:
        problems = (str(error),)
    return Inspection(
        source=printable(source) if made is None else made.source,
        format=None if made is None else made.format,
        facts=facts,
        notes=tuple(notes),
        stages=() if made is None else made.stages,
        problems=problems,
        opened=opened,
    )


def _look(
    made: Recipe, loading: Loading, facts: dict[str, str], notes: list[str]
) -> bool:
    """Add facts and notes as they are found; whether the checkpoint was opened."""
    source = made.given.where
    base = made if made.weights else base_recipe(made, loading)
    rehearsal = rehearse(made, base)
    facts |= rehearsal.facts
    if made.weights is None:
        check_base(made, base)
    facts["memory"] = check_room(base, rehearsal, where=source)
    tokenizer, digest, more = tokenizer_of(made, base, known={})
    usable = usable_rows(tokenizer, rehearsal.rows, where=source)
    more += remarks(rehearsal.architecture, rehearsal.model, tokenizer, usable)
    notes += [*rehearsal.notes, *more]
    facts["vocabulary"] = f"{int(usable.sum())} tokens in {rehearsal.rows} rows"
    facts["tokenizer_sha256"] = digest
    if made.weights and loading.base and not same_path(loading.base, source):
        notes.append(NOT_VERIFIABLE)
        notes.append(_compared(made, tokenizer))
    assert base.weights is not None
    adapter = made.adapter.files if made.adapter else ()
    small = bytes_of([*base.weights.files, *adapter]) <= SMALL_BYTES
    # What is quantised may open on a GPU only, which others may be using.
    if not small or rehearsal.architecture.quantised:
        return False
    module = LoadedBase(base, replace(loading, device="cpu", device_map=None))
    next(module.load(source, made, is_base=False))
    module.release()
    return True


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
            listed = targets if isinstance(targets, list) else [targets]
            facts["target_modules"] = ", ".join(sorted(map(shown, listed))[:8])
    if made.weights is None and made.base is not None:
        facts["base"] = printable(made.base)
    size = bytes_of(files) / 1e6
    facts["files"] = f"{', '.join(p.name for p in files[:4])} ({size:.1f} MB)"
    return facts


def _compared(item: Recipe, tokenizer: Any) -> str:
    """Refuse full weights that were not trained from the base that was given.

    Whether they were is written down nowhere: architecture, vocabulary, shapes and the
    tokenizers are compared, each as the configuration says (weights that do not fit
    their own are refused when they are put together).

    Parameters
    ----------
    tokenizer
        That of the checkpoint; compared where the base brings one.

    Returns
    -------
    str
        What is the same, in words.

    Raises
    ------
    CheckpointError
        With everything that differs.
    """
    assert item.weights is not None
    assert item.base is not None
    given, where = item.given, item.base
    folder = locate(item.base, revision=given.revision, code=given.trust_remote_code)
    folder = folder if folder.is_dir() else folder.parent
    if not (folder / "config.json").exists():
        raise CheckpointError(
            "the base has no config.json to compare with",
            where=where,
            fix="give the folder of the whole model by --base",
        )
    name = printable(item.base)
    own, shapes = _outline(item.weights.config, given)
    others, their_shapes = _outline(folder, replace(given, where=where))
    if has_tokenizer(folder):
        theirs, _ = read_tokenizer(
            folder, trust_remote_code=given.trust_remote_code, where=where
        )
        own["tokenizer"], others["tokenizer"] = (
            _tokens_of(tokenizer),
            _tokens_of(theirs),
        )
    differs = [
        f"{what} ({own[what]} here, {others[what]} in {name})"
        for what in own
        if own[what] != others[what]
    ]
    shaped = bool(shapes and their_shapes)
    # Another architecture or vocabulary has other tensors anyhow.
    if shaped and all(own[what] == others[what] for what in list(own)[:2]):
        differs += _other_shapes(shapes, their_shapes, name)
    if differs:
        raise CheckpointError(
            f"was not trained from the base: {', '.join(differs)}",
            where=given.where,
            fix="give the one that it was trained from by --base",
        )
    same = [*own, *(["shapes"] if shaped else [])]
    return f"{', '.join(same[:-1])} and {same[-1]} are those of {name}"


def _tokens_of(tokenizer: Any) -> str:
    return f"{len(tokenizer)} tokens, {tokenizer_sha256(tokenizer)[:12]}"


def _other_shapes(
    shapes: dict[str, str], theirs: dict[str, str], name: str
) -> list[str]:
    odd = sorted(
        tensor
        for tensor in shapes.keys() | theirs.keys()
        if shapes.get(tensor) != theirs.get(tensor)
    )
    if not odd:
        return []
    here, there = (each.get(odd[0], "none") for each in (shapes, theirs))
    more = f" and of {len(odd) - 1} tensors more" if len(odd) > 1 else ""
    return [f"shape of {odd[0]} ({here} here, {there} in {name}){more}"]


def _outline(folder: Path, given: Given) -> tuple[dict[str, str], dict[str, str]]:
    """What a configuration says, and each tensor's shape (none for own code)."""
    named = read_json(folder / "config.json", where=given.where)
    model = read_architecture(folder, named, given)
    listed = [shown(name) for name in named.get("architectures") or ["own code"]]
    said = {
        "architecture": listed[0] if model.cls is None else model.cls.__name__,
        "vocabulary": f"{getattr(model.text, 'vocab_size', 0)} rows",
    }
    if model.cls is None:
        return said, {}
    with torch.device("meta"):
        state = model.cls(model.config).state_dict()
    return said, {name: str(list(tensor.shape)) for name, tensor in state.items()}
