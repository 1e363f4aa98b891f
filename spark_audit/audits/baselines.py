"""Baselines: the checkpoint that each checkpoint is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from spark_audit.names import BASE, CheckpointName, entry_of
from spark_audit.results import CheckpointFacts

Baseline: TypeAlias = str | Mapping[str, str] | None
"""One baseline for all checkpoints, or a mapping with one for each."""


def baselines_of(baseline: Baseline, names: Iterable[str]) -> dict[str, str]:
    """Return the baseline of each checkpoint that has one.

    A checkpoint is compared with no other if it is its own baseline, or if its baseline
    is not audited.

    Parameters
    ----------
    baseline
        One for all, or one for each. If one for all has several seeds,
        :func:`_baseline_of` picks the same seed.
    names
        Checkpoints that are audited.
    """
    checkpoints = list(names)
    if baseline is None:
        return {}

    if isinstance(baseline, Mapping):
        return {
            name: baseline_name
            for name, baseline_name in baseline.items()
            if name in checkpoints
            and baseline_name in checkpoints
            and name != baseline_name
        }

    pairs: dict[str, str] = {}
    for name in checkpoints:
        # The untrained model and the seeds of the baseline itself have no baseline.
        if entry_of(name) in (baseline, BASE):
            continue
        baseline_name = _baseline_of(name, baseline, checkpoints)
        if baseline_name in checkpoints:
            pairs[name] = baseline_name
    return pairs


def _baseline_of(name: str, baseline: str, checkpoints: Sequence[str]) -> str:
    """Return the baseline of a checkpoint: that of the same seed, if there is one."""
    is_seed_of_method = entry_of(name) != name
    if is_seed_of_method:
        same_seed = str(CheckpointName(baseline, CheckpointName.parse(name).seed))
        if same_seed in checkpoints:
            return same_seed
    return baseline


def with_base(
    names: Sequence[str], baselines: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return pairs of each checkpoint with its baseline, and with the untrained model.

    Parameters
    ----------
    baselines
        Checkpoint -> its baseline, from :func:`baselines_of`.
    """
    pairs = []
    for name in names:
        # A pair would repeat if the baseline is the untrained model.
        compared_with = dict.fromkeys((baselines.get(name, BASE), BASE))
        for other_name in compared_with:
            if other_name in names and other_name != name:
                pairs.append((name, other_name))
    return pairs


def originals(checkpoints: Iterable[CheckpointFacts]) -> dict[str, str]:
    """Map each rounded or relearned checkpoint to its original: its baseline.

    The relearned base is the baseline of the other relearned checkpoints.
    """
    original_by_name = {}
    for facts in checkpoints:
        original_by_name[facts.name] = facts.quantised_from or facts.relearned_from

    baselines = {}
    for name, original_name in original_by_name.items():
        if original_name in original_by_name and original_name != BASE:
            baselines[name] = original_name
    return baselines
