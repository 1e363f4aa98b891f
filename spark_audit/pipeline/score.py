"""The scoring of a call, checkpoint by checkpoint, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spark_audit.manifest.fit import check_fit
from spark_audit.manifest.items import items_for, token_places
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.lineup import Lineup, Plans
from spark_audit.pipeline.request import Request
from spark_audit.report.attachments import case_ids
from spark_audit.results import CheckpointFacts
from spark_audit.scoring.table import Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.recipe import Loaded
    from spark_audit.scoring.store import Keys, Store

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""
Items: TypeAlias = dict[Pass, list[Any]]

DRIFT_ROWS = 8


class Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Count the time of the block."""
        start = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - start
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent


@dataclass(frozen=True)
class Scored:
    """A checkpoint after its passes, without its model; how its scores are stored."""

    facts: CheckpointFacts
    keys: Mapping[Pass, Keys]


@dataclass(frozen=True)
class Work:
    """The scoring of a call: what all its checkpoints have in common.

    ``places`` has the characters of the tokens of the examples that reports show.
    """

    manifest: Manifest
    view: Manifest
    order: Lineup
    plans: Plans
    store: Store
    request: Request
    progress: Progress | None
    clock: Clock
    places: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    _made: dict[str, Items] = field(default_factory=dict)

    def score(self, checkpoint: Loaded) -> Scored:
        """Score what is asked of one checkpoint; keep facts and keys, no model."""
        from spark_audit.scoring.score import drift, dtype_drift, missing, score_keys

        store, request = self.store, self.request
        notes = list(checkpoint.notes)
        notes += check_fit(
            self.manifest,
            name=checkpoint.name,
            tokenizer_sha256=checkpoint.tokenizer_sha256,
            architecture=checkpoint.architecture,
            vocab_size=len(checkpoint.usable),
            base_sha256=checkpoint.base_sha256,
            shape=checkpoint.shape,
        )
        keys: dict[Pass, Keys] = {}
        for wanted, chosen in self._items(checkpoint).items():
            if wanted == Pass() and missing(checkpoint, chosen, [wanted], store):
                few = {"k": DRIFT_ROWS, "seed": request.seed}
                largest = drift(checkpoint, chosen, **few)
                count = min(DRIFT_ROWS, len(chosen))
                store.remark(
                    f"{count} texts scored alone and in one batch differ by at most "
                    f"{largest:.1e} nats a token"
                )
                if apart := dtype_drift(checkpoint, chosen, **few):
                    store.remark(
                        f"{count} texts scored in {checkpoint.dtype} and in float32 "
                        f"differ by {apart[0]:.1e} nats a token in the mean, "
                        f"{apart[1]:.1e} at most"
                    )
            with self.clock(f"scoring: {wanted.kind}"):
                _, remarks = score_keys(
                    checkpoint,
                    chosen,
                    kind=wanted,
                    store=store,
                    batch_size=request.batch_size,
                    shard=request.shard,
                    progress=partial(
                        self.show, f"scoring {checkpoint.name}, {wanted.label}, tokens"
                    ),
                )
            keys[wanted] = store.named(checkpoint, chosen, wanted)
            notes += (remark for remark in remarks if remark not in notes)
        return Scored(
            CheckpointFacts(
                name=checkpoint.name,
                source=checkpoint.source,
                format=checkpoint.format,
                base=checkpoint.base,
                weights_sha256=checkpoint.weights_sha256,
                model_id=checkpoint.model_id,
                dtype=checkpoint.dtype,
                quantised_from=checkpoint.quantised_from,
                notes=notes,
            ),
            keys,
        )

    def _items(self, checkpoint: Loaded) -> Items:
        """Its sequences; all checkpoints with its tokenizer share them."""
        plan = self.order.plan(checkpoint.name, self.plans)
        known = self._made.setdefault(checkpoint.tokenizer_sha256, {})
        lacking = {wanted: keys for wanted, keys in plan.items() if wanted not in known}
        if lacking:
            with self.clock("tokenising"):
                known.update(items_for(self.view, checkpoint, lacking))
        # All checkpoints of a manifest cut its texts alike.
        shown = case_ids(self.view) if Pass() in plan and not self.places else []
        if shown:
            self.places.update(token_places(self.view, checkpoint, shown))
        return {wanted: known[wanted] for wanted in plan}

    def show(self, what: str, done: int, total: int) -> None:
        """Tell the progress to whom it may concern."""
        if self.progress is not None:
            self.progress(what, done, total)
