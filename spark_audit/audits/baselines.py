"""What each checkpoint is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from spark_audit.names import BASE, CheckpointName, entry_of
from spark_audit.results import CheckpointFacts

Baseline: TypeAlias = str | Mapping[str, str] | None
"""What checkpoints are compared with: one name, or one for each."""


def baselines_of(baseline: Baseline, names: Iterable[str]) -> dict[str, str]:
    """Return what each checkpoint is compared with; the others are left out.

    A baseline that has replicates of its own is paired with another method's by their
    number: the same seed. ``base`` is compared with nothing.
    """
    checkpoints = list(names)
    if baseline is None:
        return {}

    pairs: dict[str, str] = {}
    if isinstance(baseline, Mapping):
        for name, compared_with in baseline.items():
            are_audited = name in checkpoints and compared_with in checkpoints
            if are_audited and name != compared_with:
                pairs[name] = compared_with
        return pairs

    for name in checkpoints:
        method = entry_of(name)
        compared_with = baseline
        if method != name:
            same_seed = str(CheckpointName(baseline, CheckpointName.parse(name).seed))
            if same_seed in checkpoints:
                compared_with = same_seed
        if method not in (baseline, BASE) and compared_with in checkpoints:
            pairs[name] = compared_with
    return pairs


def with_base(
    names: Sequence[str], baselines: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return each checkpoint with its baseline, and with the untrained model."""
    pairs = []
    for name in names:
        # Each once, if the baseline is the untrained model.
        for compared_with in dict.fromkeys((baselines.get(name, BASE), BASE)):
            if compared_with in names and compared_with != name:
                pairs.append((name, compared_with))
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
