"""What lives on a node: it holds one module of a call and scores units on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from spark_audit.errors import CheckpointError
from spark_audit.pipeline.engines.contract import drift_told
from spark_audit.provenance import versions
from spark_audit.scoring.table import Pass, TokenTable

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.checkpoints.open import Opening
    from spark_audit.checkpoints.specs import Loading, Spec
    from spark_audit.scoring.score import BatchSize


@dataclass(frozen=True)
class Unit:
    """A unit on its way: what a holder must know of it.

    ``model_id`` is that of the checkpoint as it was opened first.
    """

    checkpoint: str
    model_id: str
    kind: Pass
    items: Sequence[Any]
    probes: Sequence[Any]
    batch_size: BatchSize


class Holder:
    """Opens modules one after the other, and scores what it is given on them."""

    def __init__(self, specs: Sequence[Spec], loading: Loading) -> None:
        self._specs, self._loading = specs, loading
        self._group = -1
        self._stream: Iterator[Loaded] = iter(())
        self._opened: dict[str, Loaded] = {}

    @cached_property
    def _opening(self) -> Opening:
        from spark_audit.checkpoints.open import Opening

        return Opening(self._specs, self._loading)

    def versions(self) -> dict[str, str]:
        """Of what a score may depend on: this is the first that a holder is asked."""
        return versions()

    def open(self, group: int, name: str) -> Loaded:
        """What is known of a checkpoint; its weights stay here."""
        return self._get(group, name).without_weights()

    def score(self, group: int, unit: Unit) -> tuple[TokenTable, tuple[str, ...]]:
        """Columns of a unit by item, and what a reader must know of them.

        Raises
        ------
        CheckpointError
            If the checkpoint is another one on this node.
        """
        from spark_audit.scoring.score import score

        loaded = self._get(group, unit.checkpoint)
        if loaded.model_id != unit.model_id:
            raise CheckpointError(
                "is another checkpoint on one node than on the others",
                where=unit.checkpoint,
                fix="give a path to the same files on all nodes",
            )
        told = drift_told(loaded, unit.probes)
        found = score(
            loaded, unit.items, passes=[unit.kind], batch_size=unit.batch_size
        )
        return found[unit.kind], (*told, *found.notes)

    def _get(self, group: int, name: str) -> Loaded:
        if group != self._group:
            self._begin(group)
        while name not in self._opened:
            one = next(self._stream, None)
            if one is None:  # rounded weights that were let go of
                self._begin(group)
                continue
            # Rounded weights are a copy of all: there is one at a time.
            for other in [k for k, v in self._opened.items() if v.quantised_from]:
                del self._opened[other]
            self._opened[one.name] = one
        return self._opened[name]

    def _begin(self, group: int) -> None:
        self._opened.clear()
        self._group, self._stream = group, self._opening.open(group)
