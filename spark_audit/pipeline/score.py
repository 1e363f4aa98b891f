"""The scoring of a call: what each checkpoint is to be asked, and what was noted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spark_audit.manifest.compatibility import check_fit
from spark_audit.manifest.items import items_for, token_places
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.engines.contract import Clock, Engine, Progress, Task
from spark_audit.pipeline.lineup import Lineup, Plans
from spark_audit.pipeline.request import Request
from spark_audit.report.attachments import case_ids
from spark_audit.results import CheckpointFacts
from spark_audit.scoring.items import AnyItem
from spark_audit.scoring.served import KINDS
from spark_audit.scoring.table import Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.scoring.store import Keys, Store

Items: TypeAlias = dict[Pass, Sequence[Any]]


def facts_of(checkpoint: Loaded, notes: Sequence[str] = ()) -> CheckpointFacts:
    """What a report says of a checkpoint."""
    return CheckpointFacts(
        name=checkpoint.name,
        source=checkpoint.source,
        format=checkpoint.format,
        base=checkpoint.base,
        weights_sha256=checkpoint.weights_sha256,
        model_id=checkpoint.model_id,
        dtype=checkpoint.dtype,
        quantised_from=checkpoint.quantised_from,
        notes=[*notes],
    )


@dataclass(frozen=True)
class Scored:
    """A checkpoint after its passes, without its model; how its scores are stored."""

    facts: CheckpointFacts
    keys: Mapping[Pass, Keys]


@dataclass(frozen=True)
class Work:
    """The scoring of a call: what all its checkpoints have in common.

    Attributes
    ----------
    engine
        Who does it, and where.
    places
        The characters of the tokens of the examples that reports show.
    """

    manifest: Manifest
    view: Manifest
    order: Lineup
    plans: Plans
    store: Store
    request: Request
    engine: Engine
    places: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    _made: dict[str, Items] = field(default_factory=dict)

    @property
    def clock(self) -> Clock:
        """Seconds by stage."""
        return self.engine.call.clock

    @property
    def show(self) -> Progress:
        """Tell the progress to whom it may concern."""
        return self.engine.call.show

    def score(self, checkpoint: Loaded) -> Scored:
        """Ask what is wanted of one checkpoint; keep facts and keys, no model."""
        own = checkpoint.base_sha256
        notes = [*checkpoint.notes]
        notes += check_fit(self.manifest, checkpoint, base_sha256=own)
        keys = self._keys(checkpoint)
        for wanted, named in keys.items():
            task = Task(checkpoint.name, wanted, named, self.store)
            self.engine.score(task, checkpoint)
        return Scored(
            facts_of(checkpoint, notes),
            keys,
        )

    def passes_there(self, described: Sequence[Loaded]) -> tuple[int, int] | None:
        """How many passes of the checkpoints are in the store, and how many there are.

        ``None`` where a checkpoint's id is known after loading only.
        """
        known = [one for one in described if self.order.scores(one.name)]
        if not all(one.model_id for one in known):
            return None
        lacking = [
            bool(self.store.lacking(named().values()))
            for one in known
            for named in self._keys(one).values()
        ]
        return lacking.count(False), len(lacking)

    def lacking(self, checkpoint: Loaded) -> dict[Pass, dict[str, AnyItem]]:
        """By pass, the items that a checkpoint lacks, by their keys."""
        found = {}
        for wanted, named in self._keys(checkpoint).items():
            names = named()
            left = self.store.lacking(names.values())
            found[wanted] = {
                item.key: item for item in named.items if names[item.key] in left
            }
        return found

    def _keys(self, checkpoint: Loaded) -> dict[Pass, Keys]:
        """What the store calls what is wanted of a checkpoint."""
        items = self._items(checkpoint).items()
        return {one: self.store.named(checkpoint, own, one) for one, own in items}

    def _items(self, checkpoint: Loaded) -> Items:
        """Its sequences; all checkpoints with its tokenizer share them."""
        plan = self.order.plan(checkpoint.name, self.plans)
        if checkpoint.served is not None:
            plan = {
                wanted: keys for wanted, keys in plan.items() if wanted.kind in KINDS
            }
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

    def settle(self, scored: Sequence[Scored]) -> list[Scored]:
        """Have all of it in the store; in order, with what was remarked meanwhile."""
        self.engine.finish()
        self.store.refresh()
        order = self.engine.order.index
        found = []
        for one in sorted(scored, key=lambda one: order(one.facts.name)):
            notes = dict.fromkeys(one.facts.notes)
            for keys in one.keys.values():
                notes |= dict.fromkeys(self.store.remarks(keys().values()))
            notes |= dict.fromkeys(self.store.notes if one.keys else ())
            # A folder and its copy: one path twice was refused, stages may be alike.
            notes |= dict.fromkeys(
                f"the same model as {other.facts.name!r}"
                for other in scored
                if other.facts.model_id == one.facts.model_id and other is not one
                if not {one.facts.name, other.facts.name} & self.order.stages
            )
            facts = one.facts.model_copy(update={"notes": [*notes]})
            found.append(replace(one, facts=facts))
        return found
