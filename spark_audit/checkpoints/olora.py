"""O-LoRA's way of LoRA, as plain LoRA.

O-LoRA concatenates the low-rank parts of all tasks and keeps the configuration's ``r``
and ``lora_alpha``; its scale is ``lora_alpha / r`` at any width. An adapter of width
m r is therefore loaded as rank m r with alpha m ``lora_alpha``.
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
"""Rank and alpha of PEFT where a configuration gives none."""


@dataclass(frozen=True)
class PreparedAdapter:
    """An adapter as it is attached.

    Attributes
    ----------
    config
        The content of adapter_config.json, with changes.
    state
        Its tensors by PEFT's names.
    notes
        What a reader of the report must know.
    """

    config: dict[str, object]
    state: State
    notes: list[str]


def fold_olora(config: dict[str, object], state: State) -> PreparedAdapter:
    """Return O-LoRA's adapter as plain LoRA; any other one as it is.

    Parts that were saved apart (``loranew_A``, ``loranew_B``) are added to the earlier
    ones. O-LoRA, and TRACE's copy of it, write the width of the joined parts down
    (``r_sum``): with another one, the configuration is not that of these weights.
    Without one, whole multiples are taken as O-LoRA's and a note says so; ``r = 1`` is
    not, for any width is a multiple of it.

    Parameters
    ----------
    config
        Its ``peft_type`` is spelled as PEFT does.
    """
    if config.get("peft_type") != "LORA":
        return PreparedAdapter(config, state, [])

    folded = dict(state)
    notes: list[str] = []
    new_keys = [key for key in state if ".loranew_" in key]
    for new_key in new_keys:
        key = new_key.replace(".loranew_", ".lora_")
        tensors = [folded.pop(name) for name in (key, new_key) if name in folded]
        # lora_A is (rank, in), lora_B (out, rank): both grow along the rank.
        rank_dim = 0 if ".loranew_A" in new_key else 1
        with foreign(f"tensor {shown(new_key)} does not fit {shown(key)}"):
            folded[key] = torch.cat(tensors, dim=rank_dim)
    if new_keys:
        notes.append(
            f"O-LoRA: {len(new_keys)} loranew tensors added to the earlier ones"
        )

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
        Of the parts after they were joined.
    earlier_widths
        Of the earlier parts, before new ones were added.

    Raises
    ------
    CheckpointError
        If the width is none that O-LoRA makes from this configuration.
    """
    rank = _rank(config)
    alpha = config.get("lora_alpha", _DEFAULT_RANK)
    written_width = config.get("r_sum")
    if written_width is None:
        reason = "only by its width, as it has no r_sum: if it is "
        reason += "not of O-LoRA, give its adapter_config.json"
        is_joined = rank > 1
    else:
        # Written was the width of the earlier parts; the newest one is of one rank.
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
    """Return the rank that a configuration gives, else PEFT's own."""
    rank = config.get("r")
    return rank if isinstance(rank, int) and rank else _DEFAULT_RANK


def _widths(state: State) -> set[int]:
    """Return the ranks of all ``lora_A``; 0 for one without numbers."""
    widths: set[int] = set()
    for key, tensor in state.items():
        if key.endswith(".lora_A.weight"):
            widths.add(tensor.shape[:1].numel())
    return widths
