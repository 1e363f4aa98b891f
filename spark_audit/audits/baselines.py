"""What each checkpoint is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from spark_audit.names import BASE, CheckpointName, entry_of
from spark_audit.results import CheckpointFacts

Baseline: TypeAlias = str | Mapping[str, str] | None


def baselines_of(baseline: Baseline, names: Iterable[str]) -> dict[str, str]:
    """What each checkpoint is held against; those without a baseline are left out.

    A baseline that has replicates of its own is paired with another method's by their
    number: the same seed. ``base`` is held against nothing.
    """
    known = list(names)
    if baseline is None:
        return {}
    if not isinstance(baseline, str):
        pairs = baseline.items()
        return {k: v for k, v in pairs if k in known and v in known and k != v}
    chosen = {}
    for name in known:
        entry, other = entry_of(name), baseline
        if entry != name:
            seed = CheckpointName.parse(name).seed
            same_seed = str(CheckpointName(baseline, seed))
            other = same_seed if same_seed in known else baseline
        if entry not in (baseline, BASE) and other in known:
            chosen[name] = other
    return chosen


def with_base(
    names: Sequence[str], baselines: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Each checkpoint with its baseline, and with the untrained model."""
    return [
        (name, other)
        for name in names
        for other in dict.fromkeys((baselines.get(name, BASE), BASE))
        if other in names and other != name
    ]


def originals(checkpoints: Iterable[CheckpointFacts]) -> dict[str, str]:
    """Each rounded or relearned checkpoint with what it was made of: its baseline.

    The relearned base is no suspect, but what the others are held against.
    """
    known = list(checkpoints)
    names = {one.name for one in known} - {BASE}
    pairs = ((one.name, one.quantised_from or one.relearned_from) for one in known)
    return {name: own for name, own in pairs if own is not None and own in names}
