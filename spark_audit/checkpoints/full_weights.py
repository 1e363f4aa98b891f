"""Full weights beside the base that they are said to come from, by headers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from spark_audit.checkpoints.locate import locate, printable, read_json
from spark_audit.checkpoints.models import read_architecture
from spark_audit.checkpoints.recipe import Given, Recipe
from spark_audit.checkpoints.tokenizer import (
    has_tokenizer,
    read_tokenizer,
    tokenizer_sha256,
)
from spark_audit.errors import CheckpointError, shown

NOT_VERIFIABLE = "base not verifiable: full weights name no base"


def compare_with_base(item: Recipe, tokenizer: Any) -> str:
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
        own["tokenizer"], others["tokenizer"] = _told(tokenizer), _told(theirs)
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


def _told(tokenizer: Any) -> str:
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
