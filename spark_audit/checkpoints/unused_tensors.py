"""Find tensors of a file without effect on logits: value heads, and computed tables.

Old versions of transformers saved masks and tables of positions with the weights, which
modules now compute themselves. Such a tensor is left out only if its numbers equal the
computed ones: a mask or table with other numbers belongs to another model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from spark_audit.checkpoints.tensor_checks import GIVE_OWN_CONFIG
from spark_audit.checkpoints.untrusted import keys_and_values
from spark_audit.errors import CheckpointError, shown

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# Names of tensors, by kind. A new kind gets a pattern here, a check in
# `kind_of_unused`, and a reason in `_REASONS_BY_KIND`.
_VALUE_HEAD = re.compile(r"^(?:\w+\.)?(?:v_head|value_head|ilql_heads)\.")
_VERSION = re.compile(r"(?:^|\.)(?:encoder|decoder)\.version$")
# The one number that GPT-2 and its kin put where a mask hides a position.
_FILL = re.compile(r"(?:^|\.)masked_bias$")
_MASK = re.compile(r"(?:^|\.)(?:bias|causal_mask|attn_mask|future_mask)$")
_POSITIONS = re.compile(r"(?:^|\.)position_ids$")
_FREQUENCIES = re.compile(r"(?:^|\.)inv_freq$")
# Tensors that transformers leaves out for every class.
_PASSED_OVER = (r"rotary_emb\.inv_freq$", r"(?:^|\.)position_ids$")
_ROTATIONS = re.compile(r"(?:^|\.)(?P<wave>cos|sin)_cached$")
_SINUSOIDS = re.compile(r"(?:^|\.)embed_positions(?P<xglm>\.weights)?$")

# Tables that are refused if their numbers are unexpected.
_TABLE = re.compile(r"(?:^|\.)(?:position_ids|inv_freq|cos_cached|sin_cached)$")

# Names in configurations for the base of rotary positions.
_THETA = re.compile(r"theta|rotary_emb_base|rope_base|base_freq")
_USUAL_THETA = 10_000.0
_TOLERANCE = 0.01
"""Tolerance for tables that were saved in half precision."""

_MASKED_LOGIT = -1e4
"""Largest value that masks use for the logits of unseen positions."""
_COMPARED_POSITION = 3
"""Position whose row of a table is compared; that of position 0 fits any base."""

_REASONS_BY_KIND = {
    "value head": "a value head, which no logit depends on",
    "version": "version numbers of old fairseq code",
    "mask": "causal masks of old versions of transformers, which are computed",
    "positions": "tables of positions, which are computed, and equal",
    "passed over": "what transformers does not load into this class",
}
"""Kind of a tensor -> why it is left out, for a note in reports."""


def kind_of_unused(
    name: str, tensor: torch.Tensor, config: PreTrainedConfig
) -> str | None:
    """Return why a tensor without a place in the module does not matter.

    Parameters
    ----------
    name, tensor
        Name and numbers in the file.
    config
        Configuration of the module, from which the numbers are computed.

    Returns
    -------
    str or None
        A key of ``_REASONS_BY_KIND``; ``None`` if the tensor may matter.
    """
    if _VALUE_HEAD.search(name):
        return "value head"
    if _VERSION.search(name) and tensor.numel() == 1:
        return "version"

    # Values for masked logits, and the masks themselves.
    if _FILL.search(name) and tensor.numel() == 1:
        if bool(tensor.max() <= _MASKED_LOGIT):
            return "mask"
    if _MASK.search(name) and _is_causal_mask(tensor, config):
        return "mask"

    if _POSITIONS.search(name) and tensor.numel():
        counted = torch.arange(tensor.shape[-1])  # (positions,)
        return "positions" if bool((tensor == counted).all()) else None
    return "positions" if _is_computed_table(name, tensor, config) else None


def passed_over(
    state: Mapping[str, torch.Tensor], model: PreTrainedModel
) -> dict[str, str]:
    """Return the tensors that transformers silently leaves out, with their kinds.

    Parameters
    ----------
    state
        All tensors of the files, of any shapes.
    model
        The module, whose class lists what it leaves out.

    Raises
    ------
    CheckpointError
        If one is a mask or a table of positions with unexpected numbers.
    """
    patterns = [*(model._keys_to_ignore_on_load_unexpected or ()), *_PASSED_OVER]
    ignored = [
        name for name in state if any(re.search(pattern, name) for pattern in patterns)
    ]
    if not ignored:
        return {}

    # A tensor with any name in the module is loaded, whatever the patterns say.
    known_names = model.state_dict().keys()
    prefix = f"{model.base_model_prefix}."
    kinds: dict[str, str] = {}
    for name in ignored:
        if {name, prefix + name, name.removeprefix(prefix)} & known_names:
            continue

        tensor = state[name]
        unused_kind = kind_of_unused(name, tensor, model.config)
        is_mask = _MASK.search(name) and tensor.ndim > 1
        if unused_kind is None and (is_mask or _TABLE.search(name)):
            problem = (
                f"tensor {shown(name)} holds other numbers than config.json gives, "
                "and transformers would leave it out"
            )
            raise CheckpointError(problem, fix=GIVE_OWN_CONFIG)

        # By transformers' own list, the remaining tensors do not matter.
        kinds[name] = unused_kind or "passed over"
    return kinds


def notes_on(unused: Mapping[str, str]) -> list[str]:
    """Return notes on tensors that were left out, one per kind.

    Parameters
    ----------
    unused
        Names of tensors -> kinds.
    """
    names_by_kind: dict[str, list[str]] = {}
    for name, unused_kind in unused.items():
        names_by_kind.setdefault(unused_kind, []).append(name)

    return [
        f"left out: {_REASONS_BY_KIND[unused_kind]} "
        f"({len(names)} tensors, such as {shown(names[0])})"
        for unused_kind, names in names_by_kind.items()
    ]


def _is_causal_mask(tensor: torch.Tensor, config: PreTrainedConfig) -> bool:
    """Return whether a tensor is a causal mask, perhaps of a sliding window.

    It is 1 for the positions that a position sees, and 0 elsewhere.

    Parameters
    ----------
    tensor
        Shape ``(..., positions, positions)`` for a mask.
    """
    if tensor.ndim < 2 or tensor.shape[-1] != tensor.shape[-2]:
        return False
    if tensor.numel() != tensor.shape[-1] ** 2:
        return False

    mask = tensor.reshape(tensor.shape[-2:]).float()  # (positions, positions)
    # The last position sees all earlier ones, or the configuration's window of them.
    n_seen = int(mask[-1].sum())
    windows: set[int] = set()
    for key, value in keys_and_values(config.to_dict()):
        if "window" in key and type(value) is int:
            windows.add(value)

    if n_seen != len(mask) and n_seen not in windows:
        return False

    # Ones below the diagonal, except beyond the window.
    ones = torch.ones_like(mask)
    return torch.equal(mask, ones.tril() - ones.tril(-n_seen))


def _is_computed_table(
    name: str, tensor: torch.Tensor, config: PreTrainedConfig
) -> bool:
    """Return whether a table of positions, of any shape, equals the computed one."""
    sinusoids = _SINUSOIDS.search(name)
    if sinusoids is not None:
        return _is_sinusoidal(tensor, is_of_xglm=bool(sinusoids["xglm"]))

    # Tables for text and images may have different bases, so any base may fit.
    rotations = _ROTATIONS.search(name)
    for theta in _thetas(config):
        if _FREQUENCIES.search(name) and _has_frequencies(tensor, theta):
            return True
        if rotations is not None and _has_rotations(tensor, theta, rotations["wave"]):
            return True
    return False


def _is_sinusoidal(tensor: torch.Tensor, *, is_of_xglm: bool) -> bool:
    """Return whether a table ``(positions, width)`` holds sinusoids in one row."""
    if tensor.ndim != 2 or len(tensor) <= _COMPARED_POSITION or tensor.shape[1] < 4:
        return False

    half = tensor.shape[1] // 2
    # XGLM spreads frequencies up to the last one, and leaves out padding.
    n_steps = half - 1 if is_of_xglm else half
    frequencies = _USUAL_THETA ** (-torch.arange(half) / n_steps)  # (half,)
    angles = _COMPARED_POSITION * frequencies
    row = tensor[_COMPARED_POSITION]  # (width,)
    return _is_near(row, torch.cat([angles.sin(), angles.cos()]))


def _has_frequencies(tensor: torch.Tensor, theta: float) -> bool:
    """Return whether a tensor holds the frequencies of rotary positions.

    Parameters
    ----------
    tensor
        Shape ``(width / 2,)`` for frequencies.
    theta
        Base of the frequencies.
    """
    if tensor.ndim != 1:
        return False
    half = len(tensor)
    frequencies = theta ** (-torch.arange(half) / half)  # (half,)
    return _is_near(tensor, frequencies)


def _has_rotations(tensor: torch.Tensor, theta: float, wave: str) -> bool:
    """Return whether a table holds rotary positions, judged by one of its rows.

    Parameters
    ----------
    tensor
        Shape ``(..., positions, width)`` for a table.
    wave
        ``cos`` or ``sin``.
    """
    if tensor.ndim < 2 or tensor.shape[-2] <= _COMPARED_POSITION:
        return False

    half = tensor.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half) / half)  # (half,)
    angles = _COMPARED_POSITION * frequencies
    values = angles.cos() if wave == "cos" else angles.sin()
    first_table = tensor.reshape(-1, *tensor.shape[-2:])[0]  # (positions, width)
    row = first_table[_COMPARED_POSITION]  # (width,)
    return _is_near(row, torch.cat([values, values]))


def _is_near(tensor: torch.Tensor, computed: torch.Tensor) -> bool:
    """Return whether numbers equal the computed ones, up to half precision."""
    if tensor.shape != computed.shape:
        return False
    return torch.allclose(
        tensor.float(), computed.float(), rtol=_TOLERANCE, atol=_TOLERANCE * 1e-2
    )


def _thetas(config: PreTrainedConfig) -> list[float]:
    """Return the bases of rotary positions that a configuration has, or may have."""
    thetas: set[float] = set()
    for key, value in keys_and_values(config.to_dict()):
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        # Some types have several bases, for example for sliding windows.
        if _THETA.search(key) and value > 0:
            thetas.add(float(value))
    # Encoders of images do not state theirs.
    if not thetas or config.get_text_config() is not config:
        thetas.add(_USUAL_THETA)
    return sorted(thetas)
