"""A request, checked from headers: what its checkpoints score, and what is lacking."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_audit.checkpoints.specs import Loading, parse_specs
from spark_audit.errors import InputError
from spark_audit.files import check_writable
from spark_audit.manifest.file import check_fit, load_manifest, original
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import items_for
from spark_audit.pipeline.folders import manifest_for, report_folder
from spark_audit.pipeline.lineup import (
    Lineup,
    Plans,
    check_baseline,
    learned_order,
    lineup,
    make_plans,
    union,
    with_order,
)
from spark_audit.pipeline.request import Request
from spark_audit.report.folder import check_formats, folder_of
from spark_audit.results import CheckpointFacts
from spark_audit.scoring.table import Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.derived import Relearning
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.checkpoints.open import Opening
    from spark_audit.scoring.items import AnyItem
    from spark_audit.scoring.store import Keys, Store

Lacking: TypeAlias = dict[tuple[str, Pass], list["AnyItem"]]
"""Name of a checkpoint and pass -> items that nobody has scored."""
Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


class Clock(dict[str, float]):
    """Seconds by stage."""

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Count the time of the block."""
        start = time.monotonic()
        try:
            yield
        finally:
            self[stage] = self.get(stage, 0.0) + time.monotonic() - start


@dataclass(frozen=True)
class Scored:
    """A checkpoint after its passes, without its model; how its scores are stored."""

    facts: CheckpointFacts
    keys: Mapping[Pass, Keys]


@dataclass(frozen=True)
class Job:
    """What all checkpoints of a request have in common.

    Attributes
    ----------
    manifest, view
        The whole manifest, and the part that ``--limit`` leaves.
    folder
        Of the report.
    """

    request: Request
    order: Lineup
    opening: Opening
    manifest: Manifest
    view: Manifest
    plans: Plans
    store: Store
    folder: Path
    show: Progress
    clock: Clock = field(default_factory=Clock)
    _items: dict[str, dict[Pass, Sequence[Any]]] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request, progress: Progress | None = None) -> Job:
        """Refuse what headers show to be wrong; nothing is written.

        Raises
        ------
        SparkError
            For anything that the user gave and that cannot be used.
        """
        from spark_audit.checkpoints.open import Opening
        from spark_audit.scoring.store import Store

        check_formats(request.formats)
        order = lineup(parse_specs(list(request.ckpt)), request.audits)
        learned = learned_order(order, request)
        check_baseline(request.baseline, order.names)
        for audit in request.audits:
            audit.check_names(order.names)
        if not order.stages and all(audit.alone for audit in request.audits):
            raise InputError(
                request.audits[0].alone,
                where="--ckpt",
                fix="give the folder of a series, or its stages as [PATH,PATH,...]",
            )
        if request.engine == "ray":
            from spark_audit.pipeline.engines.cluster import check

            check(request.address)
        manifest = None
        if request.manifest is not None:
            # Before headers are read: both are refused in a second.
            manifest = original(load_manifest(request.manifest))
            folder = report_folder(manifest, order, request)
        elif request.output is not None:
            check_writable(request.output)
        loading, after = loading_of(request), relearning_of(request, manifest)
        opening = Opening(order.specs, loading, relearning=after)
        if manifest is None:
            manifest = original(manifest_for(opening.described[0], request))
            folder = report_folder(manifest, order, request)
            if after := relearning_of(request, manifest):
                opening = Opening(order.specs, loading, relearning=after)
        for one in opening.described:
            check_fit(manifest, one, base_sha256=one.base_sha256)
        request = with_order(request, learned, manifest)
        view, plans = make_plans(
            manifest, request.audits, preset=request.preset, limit=request.limit
        )
        store = Store(store_of(request.scores) or folder / "scores" / "store")
        show = progress or (lambda what, done, total: None)
        return cls(request, order, opening, manifest, view, plans, store, folder, show)

    def keys(self, checkpoint: Loaded) -> dict[Pass, Keys]:
        """By pass, the items that a checkpoint scores and what the store calls them."""
        plan = self.order.plan(checkpoint.name, self.plans)
        if checkpoint.served is not None:
            from spark_audit.scoring.served import KINDS

            plan = {kind: keys for kind, keys in plan.items() if kind.kind in KINDS}
        # All checkpoints with one tokenizer share what any of them scores.
        items = self._items.setdefault(checkpoint.tokenizer_sha256, {})
        if fresh := [kind for kind in plan if kind not in items]:
            every = union((self.plans.whole, self.plans.stages))
            with self.clock("tokenising"):
                made = {kind: every[kind] for kind in fresh}
                items.update(items_for(self.view, checkpoint, made))
        by_pass = {}
        for kind, keys in plan.items():
            own = items[kind]
            if len(keys) < len(own):  # whole checkpoints and stages score others
                chosen = {*keys}
                own = [item for item in own if item.key in chosen]
            by_pass[kind] = self.store.keys(checkpoint, own, kind)
        return by_pass

    def lacking(self) -> Lacking:
        """What the store lacks, by checkpoint and pass, as far as headers tell."""
        return {
            (one.name, kind): [*self.store.left(keys).values()]
            for one in self.opening.described
            if self.order.scores(one.name)
            for kind, keys in self.keys(one).items()
        }

    def stored(self, lacking: Lacking) -> tuple[int, int] | None:
        """How many passes are in the store, and how many there are.

        ``None`` where a checkpoint's id is known after loading only.
        """
        if not all(one.model_id for one in self.opening.described):
            return None
        return sum(not items for items in lacking.values()), len(lacking)

    def scored(self, checkpoint: Loaded) -> Scored:
        """What a report says of a checkpoint, and where its scores will be."""
        fit = check_fit(self.manifest, checkpoint, base_sha256=checkpoint.base_sha256)
        notes = [*checkpoint.notes, *fit]
        return Scored(facts_of(checkpoint, notes), self.keys(checkpoint))

    def tokens_left(self, group: int, lacking: Lacking) -> int | None:
        """Tokens that a module's checkpoints lack; ``None``: known after loading."""
        names = self.opening.groups[group]
        ids = [one.model_id for one in self.opening.described if one.name in names]
        if len(ids) < len(names) or not all(ids):
            return None
        parts = (items for (name, _), items in lacking.items() if name in names)
        return sum(item.tokens for items in parts for item in items)

    def opened(self, lacking: Lacking) -> Iterator[Loaded]:
        """Every checkpoint; where nothing is to be scored, as headers describe it."""
        for group, names in enumerate(self.opening.groups):
            if self.tokens_left(group, lacking) == 0:
                described = self.opening.described
                yield from (one for one in described if one.name in names)
            else:
                yield from self.opening.open(group)

    def missing(self, scored: Sequence[Scored]) -> int:
        """How many items nobody has scored yet."""
        self.store.refresh()
        every = (keys for one in scored for keys in one.keys.values())
        return sum(len(self.store.left(keys)) for keys in every)

    def noted(self, scored: Sequence[Scored]) -> list[Scored]:
        """With what was remarked while they were scored."""
        self.store.refresh()
        noted = []
        for one in scored:
            notes = [*one.facts.notes]
            for keys in one.keys.values():
                notes += self.store.remarks(keys().values())
            notes += self.store.notes if one.keys else []
            # A folder and its copy: one path twice was refused, stages may be alike.
            notes += [
                f"the same model as {other.facts.name!r}"
                for other in scored
                if other.facts.model_id == one.facts.model_id and other is not one
                if not {one.facts.name, other.facts.name} & self.order.stages
            ]
            notes = list(dict.fromkeys(notes))
            facts = one.facts.model_copy(update={"notes": notes})
            noted.append(replace(one, facts=facts))
        return noted


def facts_of(checkpoint: Loaded, notes: Sequence[str] = ()) -> CheckpointFacts:
    """What a report says of a checkpoint."""
    facts = CheckpointFacts.model_validate(checkpoint, from_attributes=True)
    return facts.model_copy(update={"notes": [*notes]})


def loading_of(request: Request) -> Loading:
    """How all checkpoints of a request are opened."""
    given = request.base is not None
    return replace(request.loading, base=request.base, include_base=given)


def relearning_of(request: Request, manifest: Manifest | None) -> Relearning | None:
    """The short training that a request asks for, once the manifest is known.

    Rows of both splits are used, and none that the manifest audits: trained on, its
    held-out rows and identifiers would be no control any more.

    Raises
    ------
    InputError
        If no row is left.
    """
    if not request.relearn or manifest is None:
        return None
    from spark_audit.checkpoints.derived import Relearning
    from spark_audit.data.examples import data_files, read_examples
    from spark_audit.data.occurrences import without_identifiers

    rows, _ = without_identifiers(
        read_examples(*data_files(request.relearn)),
        splits=("train", "test"),
        audited=manifest.examples,
        where="--relearn",
    )
    texts = tuple(row.text for row in rows)
    steps, lr = request.relearn_steps, request.relearn_lr
    return Relearning(texts, steps, lr, request.seed)


def store_of(scores: Path | None) -> Path | None:
    """The store that ``--scores`` names: itself, or that of a report folder.

    Raises
    ------
    InputError
        If it is a file, or a folder of something else.
    """
    if scores is None:
        return None
    place = folder_of(scores)
    for store in (place / "scores" / "store", place / "store", place):
        if (store / "salt").exists():
            return store
    if place.exists() and (place.is_file() or any(place.iterdir())):
        raise InputError(
            "holds no scores",
            where=f"--scores {scores}",
            fix="give a report folder with scores/store, or a folder for scores",
        )
    return place
