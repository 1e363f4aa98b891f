"""What a checkpoint is, and whether it would load, before anything is scored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spark_audit.checkpoints.call_headers import same_path
from spark_audit.checkpoints.loaded import max_positions
from spark_audit.checkpoints.open import OpenCheckpoints
from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.checkpoints.task_series import series, stage_names
from spark_audit.checkpoints.untrusted import HUB, printable
from spark_audit.errors import memory_size, shown

SMALL_BYTES = 1 << 26
"""Of weights that looking at a checkpoint opens: in seconds, and below 1 GB."""
WOULD_LOAD = "would load"
"""The fact that a checkpoint would load, and how that is known."""

ADAPTER_FACTS = ("r", "lora_alpha", "use_dora", "use_rslora", "num_virtual_tokens")
"""Of an adapter's configuration, where it is set."""


def inspect_checkpoint(
    source: str, loading: Loading | None = None, **options: Any
) -> dict[str, str]:
    """What a checkpoint is, and that it would load, in the order it is printed.

    What is small is opened, on the CPU, as an audit opens it (``would load``: yes). Of
    what is larger headers are read, and an adapter's numbers: NaN in a base, or an
    adapter that changes nothing, show on opening only (yes, by its headers).

    Parameters
    ----------
    loading, options
        As for :func:`spark_audit.checkpoints.open.open_checkpoint`.

    Raises
    ------
    SparkError
        With what would make opening, or an audit beside the base that was given, fail.
    """
    loading = replace(loading or Loading(), **options)
    spec = Spec("opened", (source,))
    # Beside full weights the base is described, too, to be compared with.
    given = loading.base is not None
    opening = OpenCheckpoints(
        [spec], replace(loading, include_base=given), numbers=False
    )
    made, base = opening.items[-1], opening.items[-1].full_weights
    one = opening.described[-1]
    told = made.config if made.is_adapter else {}
    adapter = {"adapter": told.get("peft_type")} | {
        key: told.get(key) for key in ADAPTER_FACTS
    }
    facts = {"source": made.source, "format": made.format}
    facts |= {key: shown(value) for key, value in adapter.items() if value}
    if targets := told.get("target_modules"):
        listed = targets if isinstance(targets, list) else [targets]
        facts["target_modules"] = ", ".join(sorted(map(shown, listed))[:8])
    if not made.has_full_weights and made.base is not None:
        facts["base"] = printable(made.base)
    names = ", ".join(path.name for path in made.files[:4])
    size = sum(path.stat().st_size for path in made.files)
    facts["files"] = f"{names} ({memory_size(size)})"
    facts["context"] = str(max_positions(base.architecture) or "not stated")
    if one.parameters is None:
        facts["weights checked"] = "no (quantised)"
    else:
        facts["architecture"] = one.architecture
        facts["parameters"] = f"{one.parameters:,}"
    facts["memory"] = base.check_room(one.parameters or 0)
    facts["vocabulary"] = f"{int(one.usable.sum())} tokens in {len(one.usable)} rows"
    facts["tokenizer_sha256"] = one.tokenizer_sha256
    notes = [*one.notes]
    if (
        made.has_full_weights
        and loading.base
        and not same_path(loading.base, made.typed_path)
    ):
        notes.append("base not verifiable: full weights name no base")
        fits = "architecture, vocabulary, tokenizer and sizes are those of "
        notes.append(fits + opening.described[0].source)
    if not source.startswith(HUB) and (stages := series(source)):
        facts["stages"] = ", ".join(stage_names(stages))
    facts |= {f"note {number}": note for number, note in enumerate(notes, start=1)}
    facts[WOULD_LOAD] = "yes, by its headers"
    # What is quantised may open on a GPU only, which others may be using.
    if made.size <= SMALL_BYTES and not base.quantised:
        if base.device != "cpu" or loading.device_map is not None:
            here = replace(loading, device="cpu", device_map=None)
            opening = OpenCheckpoints([spec], here, numbers=False)
        for _ in opening.open(len(opening.groups) - 1):
            pass
        facts[WOULD_LOAD] = "yes"
    return facts
