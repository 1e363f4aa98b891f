"""What a checkpoint is and whether it would load, without an audit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from spark_audit.checkpoints.checkpoint import Checkpoint
from spark_audit.checkpoints.detect import read_headers, same_path
from spark_audit.checkpoints.loaded import Loaded
from spark_audit.checkpoints.locate import printable
from spark_audit.checkpoints.models import max_positions, pick_device, quantised
from spark_audit.checkpoints.offline import quiet
from spark_audit.checkpoints.open import Opening
from spark_audit.checkpoints.sidecar import NOISE_ADDED
from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.errors import CheckpointError, SparkError, at, shown

NOT_VERIFIABLE = "base not verifiable: full weights name no base"

SMALL_BYTES = 1 << 26
"""Of weights that looking at a checkpoint opens: in seconds, and below 1 GB."""


@dataclass
class Inspection:
    """What ``spark-audit inspect`` prints.

    ``problems`` holds what would make opening, or an audit beside the base that was
    given, fail; it is empty when nothing would. ``opened`` is whether that was tried,
    or follows from headers.
    """

    source: str
    format: str | None = None
    facts: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    opened: bool = False


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
    seen = Inspection(printable(source))
    try:
        with quiet(), at(source):
            made = read_headers(source, loading)
            seen.source, seen.format = made.source, made.format
            seen.stages, seen.notes = made.stages, made.notes
            seen.facts |= _facts(made)
            _look(source, loading, seen)
    except SparkError as error:
        seen.problems = (str(error),)
    return seen


def _look(source: str, loading: Loading, seen: Inspection) -> None:
    """Add facts and notes as they come, and open what is small."""
    spec, facts = Spec("opened", (source,)), seen.facts
    # Beside full weights the base is described, too, to be compared with.
    given = loading.base is not None
    opening = Opening([spec], replace(loading, include_base=given), numbers=False)
    made, base = opening.items[-1], opening.items[-1].on
    count = next((one.parameters for one in opening.described[-1:]), None)
    facts["context"] = str(max_positions(base.architecture) or "not stated")
    if count is None:
        facts["weights checked"] = "no (own code or quantised)"
    else:
        facts["architecture"] = opening.described[-1].architecture
        facts["parameters"] = f"{count:,}"
    facts["memory"] = base.check_room(count)
    for one in opening.described[-1:]:
        seen.notes, usable = one.notes, one.usable
        if NOISE_ADDED in seen.notes:
            facts["frozen noise"] = f"on input embeddings, {len(usable)} rows"
        facts["vocabulary"] = f"{int(usable.sum())} tokens in {len(usable)} rows"
        facts["tokenizer_sha256"] = one.tokenizer_sha256
        if made.complete and loading.base and not same_path(loading.base, made.where):
            seen.notes += (NOT_VERIFIABLE,)
            seen.notes += (_compared(one, opening.described[0]),)
    # What is quantised may open on a GPU only, which others may be using.
    if made.size <= SMALL_BYTES and not quantised(base.architecture):
        if pick_device(loading.device) != "cpu" or loading.device_map is not None:
            here = replace(loading, device="cpu", device_map=None)
            opening = Opening([spec], here, numbers=False)
        for _ in opening.open(len(opening.groups) - 1):
            pass
        seen.opened = True


def _facts(made: Checkpoint) -> dict[str, str]:
    """What the headers say, in the order it is printed."""
    facts: dict[str, str] = {}
    if made.adapter:
        config = made.config
        facts["adapter"] = shown(config.get("peft_type"))
        for key in ("r", "lora_alpha", "use_dora", "use_rslora", "num_virtual_tokens"):
            if config.get(key):
                facts[key] = shown(config[key])
        if targets := config.get("target_modules"):
            listed = targets if isinstance(targets, list) else [targets]
            facts["target_modules"] = ", ".join(sorted(map(shown, listed))[:8])
    if not made.complete and made.base is not None:
        facts["base"] = printable(made.base)
    names = [path.name for path in made.files]
    facts["files"] = f"{', '.join(names[:4])} ({made.size / 1e6:.1f} MB)"
    return facts


def _compared(ours: Loaded, base: Loaded) -> str:
    """Refuse full weights that were not trained from the base that was given.

    Whether they were is written down nowhere: what headers tell of both is compared
    (weights that do not fit their own are refused when they are put together).

    Returns
    -------
    str
        What is the same, in words.

    Raises
    ------
    CheckpointError
        With what differs first, and in how much else.
    """
    here, there = (
        {
            "architecture": one.architecture,
            "vocabulary": f"{len(one.usable)} rows",
            "tokenizer": f"{len(one.tokenizer)} tokens, {one.tokenizer_sha256[:12]}",
            **one.shape,
        }
        for one in (ours, base)
    )
    differs = [name for name in here | there if here.get(name) != there.get(name)]
    if differs:
        first, *others = differs
        more = f" and {len(others)} facts more" if others else ""
        both = f"{here.get(first)} here, {there.get(first)} in {base.source}"
        raise CheckpointError(
            f"was not trained from the base: {first} ({both}){more}",
            fix="give the one that it was trained from by --base",
        )
    return f"architecture, vocabulary, tokenizer and sizes are those of {base.source}"
