"""Baselines: the checkpoint that each checkpoint is compared with.

``baselines_of`` for those that the user names, ``with_base`` where audits compare with
the untrained model, too, and ``originals`` for derived checkpoints.
"""

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

    Returns
    -------
    Checkpoint -> its baseline.
    """
    audited = list(names)
    if baseline is None:
        return {}

    pairs: dict[str, str] = {}
    if isinstance(baseline, Mapping):
        for name, baseline_name in baseline.items():
            are_audited = name in audited and baseline_name in audited
            if are_audited and name != baseline_name:
                pairs[name] = baseline_name
        return pairs

    for name in audited:
        # The untrained model and the seeds of the baseline itself have no baseline.
        if entry_of(name) in (baseline, BASE):
            continue
        baseline_name = _baseline_of(name, baseline, audited)
        if baseline_name in audited:
            pairs[name] = baseline_name
    return pairs


def _baseline_of(name: str, baseline: str, audited: Sequence[str]) -> str:
    """Return the baseline of a checkpoint: that of the same seed, if there is one."""
    is_seed_of_method = entry_of(name) != name
    if is_seed_of_method:
        seed = CheckpointName.parse(name).seed
        baseline_of_seed = str(CheckpointName(baseline, seed))
        if baseline_of_seed in audited:
            return baseline_of_seed
    return baseline


def with_base(
    names: Sequence[str], baselines: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return pairs of each checkpoint with its baseline, and with the untrained model.

    No checkpoint is paired with itself or with one that is not among the names.

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

    It has none if its original is not among the checkpoints, or is the base: others are
    compared with the relearned base (:mod:`spark_audit.audits.matched.returns`).
    """
    original_of_checkpoint = {}
    for facts in checkpoints:
        original_name = facts.quantised_from or facts.relearned_from
        original_of_checkpoint[facts.name] = original_name

    baselines = {}
    for name, original_name in original_of_checkpoint.items():
        if original_name in original_of_checkpoint and original_name != BASE:
            baselines[name] = original_name
    return baselines
