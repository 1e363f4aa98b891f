"""What a checkpoint is and whether it would load, without an audit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spark_audit.checkpoints.base_model import LoadedBase, remarks, tokenizer_of
from spark_audit.checkpoints.detect import recipe
from spark_audit.checkpoints.full_weights import NOT_VERIFIABLE, compare_with_base
from spark_audit.checkpoints.locate import printable
from spark_audit.checkpoints.offline import quiet
from spark_audit.checkpoints.placement import check_room
from spark_audit.checkpoints.plan import (
    base_recipe,
    bytes_of,
    check_base,
    rehearse,
    same_path,
)
from spark_audit.checkpoints.recipe import Inspection, Recipe
from spark_audit.checkpoints.specs import Loading
from spark_audit.checkpoints.tokenizer import usable_rows
from spark_audit.errors import SparkError, shown

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
        notes.append(compare_with_base(made, tokenizer))
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
            listed = sorted(
                map(shown, targets if isinstance(targets, list) else [targets])
            )
            facts["target_modules"] = ", ".join(listed[:8])
    if made.weights is None and made.base is not None:
        facts["base"] = printable(made.base)
    size = sum(path.stat().st_size for path in files)
    facts["files"] = f"{', '.join(p.name for p in files[:4])} ({size / 1e6:.1f} MB)"
    return facts
