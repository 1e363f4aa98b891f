"""Tensors of a file that no logit depends on: value heads, and what is computed again.

Old versions of transformers saved masks and tables of positions with the weights, which
its modules compute by themselves today. Such a tensor is left out only if its numbers
are those that are computed; a mask or a table with other numbers is another model's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch

from spark_audit.checkpoints.untrusted import walk
from spark_audit.errors import CheckpointError, shown

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_VALUE_HEAD = re.compile(r"^(?:\w+\.)?(?:v_head|value_head|ilql_heads)\.")
_VERSION = re.compile(r"(?:^|\.)(?:encoder|decoder)\.version$")
_FILL = re.compile(r"(?:^|\.)masked_bias$")
_MASK = re.compile(r"(?:^|\.)(?:bias|causal_mask|attn_mask|future_mask)$")
_POSITIONS = re.compile(r"(?:^|\.)position_ids$")
_FREQUENCIES = re.compile(r"(?:^|\.)inv_freq$")
# What transformers leaves out of any class.
_PASSED_OVER = (r"rotary_emb\.inv_freq$", r"(?:^|\.)position_ids$")
_ROTATIONS = re.compile(r"(?:^|\.)(?P<wave>cos|sin)_cached$")
_SINUSOIDS = re.compile(r"(?:^|\.)embed_positions(?P<xglm>\.weights)?$")

_TABLE = re.compile(r"(?:^|\.)(?:position_ids|inv_freq|cos_cached|sin_cached)$")

# What configurations call the base of rotary positions.
_THETA = re.compile(r"theta|rotary_emb_base|rope_base|base_freq")
_USUAL_THETA = 10_000.0
_TOLERANCE = 0.01
"""Of tables that were saved in half precision."""

_REASON_UNUSED = {
    "value head": "a value head, which no logit depends on",
    "version": "version numbers of old fairseq code",
    "mask": "causal masks of old versions of transformers, which are computed",
    "positions": "tables of positions, which are computed, and equal",
    "passed over": "what transformers does not load into this class",
}


def kind_of_unused(
    name: str, tensor: torch.Tensor, config: PreTrainedConfig
) -> str | None:
    """What a tensor is that the module has no place for; ``None``: it may matter.

    Parameters
    ----------
    name, tensor
        As the file has it; its numbers are looked at.
    config
        The configuration of the module, by which the numbers are computed.
    """
    if _VALUE_HEAD.search(name):
        return "value head"
    if _VERSION.search(name) and tensor.numel() == 1:
        return "version"
    if _FILL.search(name) and tensor.numel() == 1 and bool(tensor.max() <= -1e4):
        return "mask"
    if _MASK.search(name) and _is_causal_mask(tensor, config):
        return "mask"
    if _POSITIONS.search(name) and tensor.numel():
        ordered = torch.arange(tensor.shape[-1])
        return "positions" if bool((tensor == ordered).all()) else None
    return "positions" if _is_computed_table(name, tensor, config) else None


def passed_over(
    state: Mapping[str, torch.Tensor], model: PreTrainedModel
) -> dict[str, str]:
    """Tensors that transformers itself leaves out in silence, each with its kind.

    Parameters
    ----------
    state
        All tensors of the files.
    model
        The module, whose class says what it leaves out.

    Raises
    ------
    CheckpointError
        If one is a mask or a table of positions with other numbers than are computed.
    """
    patterns = [*(model._keys_to_ignore_on_load_unexpected or ()), *_PASSED_OVER]
    ignored = [
        name for name in state if any(re.search(pattern, name) for pattern in patterns)
    ]
    if not ignored:
        return {}

    known = model.state_dict().keys()
    prefix = f"{model.base_model_prefix}."
    found = {}
    for name in ignored:
        if {name, prefix + name, name.removeprefix(prefix)} & known:
            continue
        tensor = state[name]
        kind = kind_of_unused(name, tensor, model.config)
        is_mask = _MASK.search(name) and tensor.ndim > 1
        if kind is None and (is_mask or _TABLE.search(name)):
            what = f"tensor {shown(name)} holds other numbers than config.json gives, "
            what += "and transformers would leave it out"
            fix = "give the config.json that was saved with these weights"
            raise CheckpointError(what, fix=fix)
        found[name] = kind or "passed over"
    return found


def notes_on(unused: Mapping[str, str]) -> list[str]:
    """What a reader of the report must know of tensors that were left out."""
    counts = Counter(unused.values())
    first = {kind: name for name, kind in reversed([*unused.items()])}
    return [
        f"left out: {_REASON_UNUSED[kind]} "
        f"({count} tensors, such as {shown(first[kind])})"
        for kind, count in counts.items()
    ]


def _is_causal_mask(tensor: torch.Tensor, config: PreTrainedConfig) -> bool:
    """Whether it is 1 for what a position sees (a window of it), and 0 elsewhere."""
    if tensor.ndim < 2 or tensor.shape[-1] != tensor.shape[-2]:
        return False
    if tensor.numel() != tensor.shape[-1] ** 2:
        return False
    mask = tensor.reshape(tensor.shape[-2:]).float()
    width = int(mask[-1].sum())
    windows = {
        value
        for key, value in walk(config.to_dict())
        if "window" in key and type(value) is int
    }
    if width != len(mask) and width not in windows:
        return False
    ones = torch.ones_like(mask)
    return torch.equal(mask, ones.tril() - ones.tril(-width))


def _is_computed_table(
    name: str, tensor: torch.Tensor, config: PreTrainedConfig
) -> bool:
    """Whether a table of rotary or sinusoidal positions is what is computed."""
    if match := _SINUSOIDS.search(name):
        if tensor.ndim != 2 or len(tensor) < 4 or tensor.shape[1] < 4:
            return False
        half = tensor.shape[1] // 2
        # XGLM spreads frequencies up to the last one, and leaves out padding.
        steps = half - 1 if match["xglm"] else half
        angles = 3 * _USUAL_THETA ** (-torch.arange(half) / steps)
        return _is_near(tensor[3], torch.cat([angles.sin(), angles.cos()]))
    for theta in _thetas(config):
        if _FREQUENCIES.search(name):
            half = tensor.shape[-1]
            frequencies = theta ** (-torch.arange(half) / half)
            if tensor.ndim == 1 and _is_near(tensor, frequencies):
                return True
        if (match := _ROTATIONS.search(name)) and tensor.ndim >= 2:
            half = tensor.shape[-1] // 2
            if tensor.shape[-2] < 4:
                return False
            angles = 3 * theta ** (-torch.arange(half) / half)
            wave = angles.cos() if match["wave"] == "cos" else angles.sin()
            row = tensor.reshape(-1, *tensor.shape[-2:])[0, 3]
            if _is_near(row, torch.cat([wave, wave])):
                return True
    return False


def _is_near(tensor: torch.Tensor, computed: torch.Tensor) -> bool:
    same = tensor.shape == computed.shape
    return same and torch.allclose(
        tensor.float(), computed.float(), rtol=_TOLERANCE, atol=_TOLERANCE * 1e-2
    )


def _thetas(config: PreTrainedConfig) -> Iterable[float]:
    """The bases of rotary positions that a configuration gives, else the usual one."""
    given: set[float] = set()
    for key, value in walk(config.to_dict()):
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if _THETA.search(key) and value > 0:
            given.add(float(value))
    # Encoders of images give theirs nowhere.
    if not given or config.get_text_config() is not config:
        given.add(_USUAL_THETA)
    return sorted(given)
