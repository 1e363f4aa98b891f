"""Convert O-LoRA's adapters to plain LoRA.

O-LoRA concatenates the low-rank parts of all tasks, but keeps the configuration's ``r``
and ``lora_alpha``: its scale is ``lora_alpha / r`` at any width. So an adapter of width
m r is loaded with rank m r and alpha m ``lora_alpha``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from spark_audit.checkpoints.adapter_fields import SAVED_CONFIG
from spark_audit.checkpoints.tensor_checks import State
from spark_audit.checkpoints.untrusted import foreign
from spark_audit.errors import CheckpointError, shown

_DEFAULT_RANK = 8
"""PEFT's default rank and alpha."""


@dataclass(frozen=True)
class PreparedAdapter:
    """An adapter that is ready to attach.

    Attributes
    ----------
    config
        The changed content of adapter_config.json.
    state
        Its tensors, with PEFT's names.
    notes
        Notes for readers of the report.
    """

    config: dict[str, object]
    state: State
    notes: list[str]


def fold_olora(config: dict[str, object], state: State) -> PreparedAdapter:
    """Return O-LoRA's adapter as plain LoRA; any other adapter unchanged.

    Separate new parts (``loranew_A``, ``loranew_B``) are joined to the earlier ones.
    O-LoRA, and its copy in TRACE, record the width of the earlier parts (``r_sum``). If
    the width differs, the configuration belongs to other weights. Without a record, a
    whole multiple counts as O-LoRA's, with a note, except for ``r = 1``: any width is a
    multiple of 1.

    Parameters
    ----------
    config
        A configuration whose ``peft_type`` has PEFT's spelling.
    """
    if config.get("peft_type") != "LORA":
        return PreparedAdapter(config, state, [])

    folded = dict(state)
    notes: list[str] = []
    new_keys = [key for key in state if ".loranew_" in key]
    for new_key in new_keys:
        key = new_key.replace(".loranew_", ".lora_")
        tensors = [folded.pop(name) for name in (key, new_key) if name in folded]
        # lora_A is (rank, in) and lora_B (out, rank): both grow along the rank.
        rank_dim = 0 if ".loranew_A" in new_key else 1
        with foreign(f"tensor {shown(new_key)} does not fit {shown(key)}"):
            folded[key] = torch.cat(tensors, dim=rank_dim)
    if new_keys:
        notes.append(
            f"O-LoRA: {len(new_keys)} loranew tensors added to the earlier ones"
        )

    # O-LoRA has one width in all layers, above the configuration's rank.
    widths = _widths(folded)
    is_wider = len(widths) == 1 and not widths & {0, _rank(config)}
    if is_wider and not config.get("rank_pattern"):
        (width,) = widths
        config, note = _widened(config, width, _widths(state))
        notes.append(note)
    return PreparedAdapter(config, folded, notes)


def _widened(
    config: dict[str, object], width: int, earlier_widths: set[int]
) -> tuple[dict[str, object], str]:
    """Return the configuration at the width of all parts, and a note.

    Parameters
    ----------
    width
        Width of the joined parts.
    earlier_widths
        Widths of the earlier parts, without the new ones.

    Raises
    ------
    CheckpointError
        If O-LoRA cannot make this width from this configuration.
    """
    rank = _rank(config)
    alpha = config.get("lora_alpha", _DEFAULT_RANK)
    written_width = config.get("r_sum")
    if written_width is None:
        reason = (
            "only by its width, as it has no r_sum: if it is not of O-LoRA, give its "
            "adapter_config.json"
        )
        is_joined = rank > 1
    else:
        # The record is the width of the earlier parts; the newest part has rank r.
        reason = "from its r_sum"
        as_written = [*earlier_widths] == [written_width]
        is_joined = as_written and width - min(earlier_widths) in (0, rank)

    fits = is_joined and width % rank == 0 and not config.get("use_dora")
    if not fits or not isinstance(alpha, int | float):
        problem = (
            f"lora_A has rank {width}, adapter_config.json says r={config.get('r')}"
        )
        remedy = f"{SAVED_CONFIG} (that of O-LoRA says r_sum, too)"
        raise CheckpointError(problem, fix=remedy)

    times = width // rank
    # rsLoRA scales by the square root of the rank.
    alpha *= math.sqrt(times) if config.get("use_rslora") else times
    note = (
        f"O-LoRA: rank {width} = {times} x {rank}, loaded with alpha {alpha:g} (the "
        f"scale stays alpha/r of the configuration, {reason})"
    )
    return {**config, "r": width, "lora_alpha": alpha}, note


def _rank(config: Mapping[str, object]) -> int:
    """Return the configuration's rank, or else PEFT's default."""
    rank = config.get("r")
    return rank if isinstance(rank, int) and rank else _DEFAULT_RANK


def _widths(state: State) -> set[int]:
    """Return the ranks of all ``lora_A``; 0 for an empty one."""
    widths: set[int] = set()
    for key, tensor in state.items():
        if key.endswith(".lora_A.weight"):
            widths.add(tensor.shape[:1].numel())
    return widths
