"""Find the modules of a base that an adapter's configuration names or matches.

A regular expression from a file can take longer than the universe lasts. So it is
matched here with a time limit, and PEFT gets only names.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import regex

from spark_audit.errors import CheckpointError, shown

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel

_PATTERN_SECONDS = 2.0
"""Seconds for matching one expression with all modules of a base."""
_PATTERN_FAILURES = (
    TimeoutError,
    re.error,
    regex.error,
    RecursionError,
    OverflowError,
)
_MODULE_FIELDS = ("target_modules", "exclude_modules", "feedforward_modules")
# PEFT's own word, which is not a regular expression.
_ALL_LINEAR = "all-linear"
_LIST_NAMES = "list the modules' names"


def resolve(
    config: PeftConfig, modules: Sequence[str], model: PreTrainedModel | None = None
) -> None:
    """Replace patterns of the file by names of the base's modules.

    Names that fit no module are left out, except those of experts, which PEFT itself
    translates into names of this version of transformers.

    Parameters
    ----------
    config
        Changed in place.
    modules
        Names of the base's modules, without adapters.
    model
        The base, for the names of its experts.

    Raises
    ------
    CheckpointError
        If an expression is malformed, takes too long, or matches nothing.
    """
    module_of_expert = {} if model is None else _experts(model)
    repeats_layers = bool(getattr(config, "layer_replication", None))
    for field in _MODULE_FIELDS:
        value = getattr(config, field, None)
        if not value or value == _ALL_LINEAR:
            continue

        if not isinstance(value, str):
            # Repeated layers have names that the base does not know yet.
            if field != "feedforward_modules" and not repeats_layers:
                setattr(config, field, _known_names(value, modules, module_of_expert))
            continue

        if repeats_layers:
            problem = f"{field} is an expression, and layers are repeated"
            raise CheckpointError(f"adapter_config.json: {problem}", fix=_LIST_NAMES)
        matched = _matching(value, [*modules, *module_of_expert.values()], field)
        # PEFT knows experts only by their last name.
        experts = {
            name for name, module in module_of_expert.items() if module in matched
        }
        setattr(config, field, (matched - {*module_of_expert.values()}) | experts)


def _known_names(
    names: Sequence[str], modules: Sequence[str], module_of_expert: dict[str, str]
) -> set[str]:
    """Return those names in a list with which a module or an expert ends."""
    known_ends: set[str] = set()
    for module in modules:
        parts = module.split(".")
        for i in range(len(parts)):
            known_ends.add(".".join(parts[i:]))

    known_names = set(names) & known_ends
    for name in names:
        if name.split(".")[-1] in module_of_expert:
            known_names.add(name)
    # If all names are unknown, one stays, so that PEFT reports that it matches nothing.
    return known_names or set(list(names)[:1])


def _experts(model: PreTrainedModel) -> dict[str, str]:
    """Return the names of experts in transformers 4, each with a module of that name.

    Up to version 4 each expert was a module (``w1``); now one parameter holds those of
    all experts. Empty for models whose experts have not been joined.

    Returns
    -------
    dict
        Old name, such as ``w1`` -> the path that one such module would have now.
    """
    from peft.utils import transformers_weight_conversion as conversion

    tables: Any = conversion
    pattern = tables._MODEL_TO_CONVERSION_PATTERN.get(model.config.model_type)
    new_names = tables._MOE_TARGET_MODULE_MAPPING.get(pattern, {})
    module_of_expert: dict[str, str] = {}
    if not new_names:
        return module_of_expert

    for path, _ in model.named_parameters():
        container, _, leaf = path.rpartition(".")
        for old_name, new_name in new_names.items():
            if leaf == new_name:
                module_of_expert.setdefault(old_name, f"{container}.{old_name}")
    return module_of_expert


def _matching(pattern: str, names: Sequence[str], field: str) -> set[str]:
    """Return the names that an expression of the file matches, within a time limit.

    Raises
    ------
    CheckpointError
        If it is malformed or takes too long. Also raised if it matches nothing, unless
        it selects modules to leave out.
    """
    failure = "matches no module of the base"
    matched: set[str] = set()
    deadline = time.monotonic() + _PATTERN_SECONDS
    try:
        # It must also be valid for Python's library: the other one has recursion.
        re.compile(pattern)
        match = regex.compile(pattern).fullmatch
        for name in names:
            if match(name, timeout=max(deadline - time.monotonic(), 1e-3)):
                matched.add(name)
    except _PATTERN_FAILURES as error:
        matched = set()
        failure = f"cannot be matched ({type(error).__name__})"

    if not matched and field != "exclude_modules":
        problem = f"{field} {failure} ({shown(pattern, 80)})"
        raise CheckpointError(f"adapter_config.json: {problem}", fix=_LIST_NAMES)
    return matched
