"""Describe a checkpoint, and say whether it would load, before anything is scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from spark_audit.arguments import checked_call
from spark_audit.checkpoints.call_headers import same_path
from spark_audit.checkpoints.checkpoint import max_positions
from spark_audit.checkpoints.open_call import OpenCheckpoints
from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.checkpoints.stored_checkpoint import StoredCheckpoint
from spark_audit.checkpoints.task_series import series, stage_names
from spark_audit.checkpoints.untrusted import HUB, printable
from spark_audit.errors import memory_size, shown

SMALL_BYTES = 1 << 26
"""Most bytes of weights that an inspection opens, within seconds and 1 GB of memory."""
WOULD_LOAD = "would load"
"""The fact that a checkpoint would load, with the kind of evidence."""
ADAPTER_FACTS = ("r", "lora_alpha", "use_dora", "use_rslora", "num_virtual_tokens")
"""Fields of an adapter's configuration that are shown if they are set."""
# Most names of modules and of files that are shown.
_N_TARGETS = 8
_N_FILES = 4


@checked_call
def inspect_checkpoint(
    source: str,
    loading: Loading | None = None,
    *,
    base: str | Path | None = None,
    device: str | None = None,
    dtype: str | None = None,
    device_map: str | None = None,
    tokenizer: str | Path | None = None,
    lora_alpha: float | None = None,
    revision: str | None = None,
    trust_remote_code: bool | None = None,
) -> dict[str, str]:
    """Describe a checkpoint and check that it would load; return facts in print order.

    A small checkpoint is opened on the CPU, as an audit would do (``would load``: yes).
    Of a larger one, only headers and an adapter's numbers are read (yes, by its
    headers): NaN in a base, or an adapter without effect, appear only on opening.

    Parameters
    ----------
    loading, base, device, dtype, device_map, tokenizer, lora_alpha, revision, \
    trust_remote_code
        As for :func:`spark_audit.checkpoints.open.open_checkpoint`.

    Raises
    ------
    SparkError
        If opening would fail, or an audit with the given base.
    """
    loading = (loading or Loading()).with_options(
        base=base,
        device=device,
        dtype=dtype,
        device_map=device_map,
        tokenizer=tokenizer,
        lora_alpha=lora_alpha,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    spec = Spec("opened", (source,))
    # With full weights, the given base is also described, for a comparison.
    has_given_base = loading.base is not None
    opening = OpenCheckpoints(
        [spec], replace(loading, include_base=has_given_base), numbers=False
    )

    # The base, if there is one, comes first.
    checkpoint = opening.checkpoints[-1]
    full_weights = checkpoint.full_weights
    description = opening.described[-1]

    facts = {"source": checkpoint.source, "format": checkpoint.format}
    if checkpoint.is_adapter:
        facts |= _adapter_facts(checkpoint.config)
    if not checkpoint.has_full_weights and checkpoint.base is not None:
        facts["base"] = printable(checkpoint.base)
    facts["files"] = _files_with_size(checkpoint)
    facts["context"] = str(max_positions(full_weights.architecture) or "not stated")
    if description.parameters is None:
        facts["weights checked"] = "no (quantised)"
    else:
        facts["architecture"] = description.architecture
        facts["parameters"] = f"{description.parameters:,}"
    facts["memory"] = full_weights.check_room(description.parameters or 0)
    n_tokens = int(description.usable.sum())
    facts["vocabulary"] = f"{n_tokens} tokens in {len(description.usable)} rows"
    facts["tokenizer_sha256"] = description.tokenizer_sha256

    if not source.startswith(HUB):
        stages = series(source)
        if stages:
            facts["stages"] = ", ".join(stage_names(stages))
    notes = [*description.notes, *_notes_on_base(opening, checkpoint, loading)]
    for number, note in enumerate(notes, start=1):
        facts[f"note {number}"] = note

    facts[WOULD_LOAD] = "yes, by its headers"
    # Some quantised weights open only on a GPU, which others may be using.
    if checkpoint.size <= SMALL_BYTES and not full_weights.quantised:
        if full_weights.device != "cpu" or loading.device_map is not None:
            on_cpu = replace(loading, device="cpu", device_map=None)
            # The same checkpoints, described once more for the CPU.
            opening = OpenCheckpoints([spec], on_cpu, numbers=False)
        _open_last(opening)
        facts[WOULD_LOAD] = "yes"
    return facts


def _adapter_facts(config: Mapping[str, object]) -> dict[str, str]:
    """Return the fields of an adapter's configuration that are set."""
    facts: dict[str, str] = {}
    if config.get("peft_type"):
        facts["adapter"] = shown(config["peft_type"])
    for name in ADAPTER_FACTS:
        if config.get(name):
            facts[name] = shown(config[name])

    targets = config.get("target_modules")
    if targets:
        # It may be a single expression instead of a list of names.
        listed = targets if isinstance(targets, list) else [targets]
        names = sorted(shown(target) for target in listed)
        facts["target_modules"] = ", ".join(names[:_N_TARGETS])
    return facts


def _files_with_size(checkpoint: StoredCheckpoint) -> str:
    """Return the names of some files of a checkpoint, with the size of all."""
    names = ", ".join(path.name for path in checkpoint.files[:_N_FILES])
    n_bytes = sum(path.stat().st_size for path in checkpoint.files)
    return f"{names} ({memory_size(n_bytes)})"


def _notes_on_base(
    opening: OpenCheckpoints, checkpoint: StoredCheckpoint, loading: Loading
) -> list[str]:
    """Return notes on full weights in comparison with the given base."""
    if not checkpoint.has_full_weights or not loading.base:
        return []
    if same_path(loading.base, checkpoint.typed_path):
        return []
    # Their fit was checked when they were described.
    fits = "architecture, vocabulary, tokenizer and sizes are those of "
    return [
        "base not verifiable: full weights name no base",
        fits + opening.described[0].source,
    ]


def _open_last(opening: OpenCheckpoints) -> None:
    """Open the checkpoint's own module, with everything on it."""
    for _ in opening.open(len(opening.groups) - 1):
        # Opening is itself the check.
        pass
