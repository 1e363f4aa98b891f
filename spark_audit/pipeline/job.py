"""A request, checked from headers: what its checkpoints score, and what is lacking.

The passes of all audits are united before anything is scored. An audit that wants the
stages of a series gets them as ``NAME@K``; the others see a series as its last stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from spark_audit.audits.base import Plan
from spark_audit.checkpoints.specs import Loading, parse_specs
from spark_audit.clock import Clock
from spark_audit.errors import InputError
from spark_audit.manifest.file import check_fit, load_manifest, original
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import items_for
from spark_audit.names import (
    BASE,
    check_known,
    entry_of,
)
from spark_audit.pipeline.folders import manifest_for, report_folder
from spark_audit.pipeline.request import Request
from spark_audit.report.folder import check_formats, folder_of
from spark_audit.results import CheckpointFacts
from spark_audit.scoring.table import Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.derived import Relearning
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.checkpoints.open import OpenCheckpoints
    from spark_audit.scoring.items import AnyItem
    from spark_audit.scoring.store import Keys, Store
from spark_audit.pipeline.lineup import Lineup, lineup, make_plans, union, with_order

Lacking: TypeAlias = dict[tuple[str, Pass], list["AnyItem"]]
"""Name of a checkpoint and pass -> items that nobody has scored."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class CheckpointJob:
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
    plans
        What each audit looks at.
    folder
        Of the report.
    """

    request: Request
    order: Lineup
    opening: OpenCheckpoints
    manifest: Manifest
    view: Manifest
    plans: list[Plan]
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
        from spark_audit.checkpoints.open import OpenCheckpoints
        from spark_audit.scoring.store import Store

        check_formats(request.formats)
        if not request.audits:
            raise InputError("no audit is asked for", where="audits")
        order = Lineup(tuple(parse_specs(request.ckpt)))
        if any(audit.of_series for audit in request.audits):
            order = lineup(order.specs, request.audits)
        # Adapters bring their base along under this name; it is known after loading.
        known = [*order.names, *map(entry_of, order.names), BASE]
        if request.baseline is not None:
            check_known(request.baseline, known, where="--baseline")
        for audit in request.audits:
            audit.check_names(order.names)
        if not order.stages and all(audit.alone for audit in request.audits):
            raise InputError(
                request.audits[0].alone,
                where="--ckpt",
                fix="give the folder of a series, or its stages as [PATH,PATH,...]",
            )
        loading, opening = loading_of(request), None
        if request.manifest is None:
            opening = OpenCheckpoints(order.specs, loading)
            manifest = original(manifest_for(opening.described[0], request))
        else:
            manifest = original(load_manifest(request.manifest))
        if order.stages:
            # Before headers are read, where that can be: this takes a second.
            request = with_order(request, order, manifest)
        folder = report_folder(manifest, order.names, order.specs, request)
        relearning = relearning_of(request, manifest) if request.relearn else None
        if opening is None or relearning:
            opening = OpenCheckpoints(order.specs, loading, relearning=relearning)
        is_base_given = request.base is not None or any(
            spec.name == BASE for spec in order.specs
        )
        if is_base_given:
            check_not_swapped(manifest, opening.described)
        for one in opening.described:
            check_fit(manifest, one, base_sha256=one.base_sha256)
        view, plans = make_plans(
            manifest, request.audits, preset=request.preset, limit=request.limit
        )
        scores = store_of(request.scores) if request.scores else None
        store = Store(scores or folder / "scores" / "store")
        show = progress or (lambda what, done, total: None)
        return cls(request, order, opening, manifest, view, plans, store, folder, show)

    def keys(self, checkpoint: Loaded) -> dict[Pass, Keys]:
        """By pass, the items that a checkpoint scores and what the store calls them."""
        audits = zip(self.request.audits, self.plans, strict=True)
        plans = [own for one, own in audits if self.order.sees(checkpoint.name, one)]
        kinds = sorted({kind for plan in plans for kind in plan})
        if checkpoint.served is not None:
            from spark_audit.scoring.served import SERVED_PASSES

            kinds = [kind for kind in kinds if kind.kind in SERVED_PASSES]
        # All checkpoints with one tokenizer share what any of them scores.
        items = self._items.setdefault(checkpoint.tokenizer_sha256, {})
        if fresh := [kind for kind in kinds if kind not in items]:
            from spark_audit.scoring.score import check_known

            every = union(self.plans)
            with self.clock("tokenising"):
                made = {kind: every[kind] for kind in fresh}
                items.update(items_for(self.view, checkpoint, made))
            for kind in fresh:
                check_known(checkpoint, items[kind])
        by_pass = {}
        for kind in kinds:
            # Whole checkpoints and stages score others.
            chosen = set[str]().union(*(plan.get(kind, ()) for plan in plans))
            own = [item for item in items[kind] if item.key in chosen]
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

    def stored(self, lacking: Lacking) -> tuple[int, int, int] | None:
        """Return how many passes the store holds, of how many, and parts of how many.

        ``None`` where a checkpoint's id is known after loading only.
        """
        described = {one.name: one for one in self.opening.described}
        if not all(one.model_id for one in described.values()):
            return None

        n_whole = 0
        n_in_part = 0
        for (name, kind), items in lacking.items():
            # A text that stands there twice is stored once.
            distinct = {*self.keys(described[name])[kind]().values()}
            if not items:
                n_whole += 1
            elif len(items) < len(distinct):
                n_in_part += 1
        return n_whole, len(lacking), n_in_part

    def scored(self, checkpoint: Loaded) -> CheckpointJob:
        """What a report says of a checkpoint, and where its scores will be."""
        fit = check_fit(self.manifest, checkpoint, base_sha256=checkpoint.base_sha256)
        notes = [*checkpoint.notes, *fit]
        return CheckpointJob(facts_of(checkpoint, notes), self.keys(checkpoint))

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

    def missing(self, scored: Sequence[CheckpointJob]) -> int:
        """How many items nobody has scored yet."""
        self.store.refresh()
        every = (keys for one in scored for keys in one.keys.values())
        return sum(len(self.store.left(keys)) for keys in every)

    def noted(self, scored: Sequence[CheckpointJob]) -> list[CheckpointJob]:
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


def checked_job(request: Request, progress: Progress | None = None) -> Job:
    """The request, refused for what headers show to be wrong, or for no cluster."""
    if request.engine == "ray":
        from spark_audit.pipeline.engines.cluster import check

        check(request.address)
    return Job.of(request, progress)


def check_not_swapped(manifest: Manifest, described: Sequence[Loaded]) -> None:
    """Refuse a checkpoint and the base, where one is given, in each other's place.

    Raises
    ------
    InputError
        If a checkpoint is the manifest's base, and the base that is given is not.
    """
    reference = manifest.reference.weights_sha256
    weights = {one.name: one.weights_sha256 for one in described}
    if weights.get(BASE) == reference:
        return
    for name, sha256 in weights.items():
        if name != BASE and sha256 == reference:
            raise InputError(
                f"checkpoint {name!r} is the base that the manifest was made with, "
                "and the base that is given is another one",
                where="--ckpt",
                fix="are --ckpt and --base swapped? give the base as --base",
            )


def missing_base(
    manifest: Manifest, described: Sequence[Loaded], request: Request
) -> str:
    """Return what is not tested where the base is not scored; empty: it is."""
    is_scored = any(one.name == BASE for one in described)
    if is_scored or all(audit.of_series for audit in request.audits):
        return ""
    return (
        "without the base model no audit compares with it: the change since the base, "
        "the attack that uses it as reference and the checks for a base that has read "
        f"the rows are not tested. Give --base MODEL: {manifest.reference.name!r}, "
        "with which the manifest was made"
    )


def facts_of(checkpoint: Loaded, notes: Sequence[str] = ()) -> CheckpointFacts:
    """What a report says of a checkpoint."""
    facts = CheckpointFacts.model_validate(checkpoint, from_attributes=True)
    return facts.model_copy(update={"notes": [*notes]})


def loading_of(request: Request) -> Loading:
    """How all checkpoints of a request are opened."""
    given = request.base is not None
    return replace(request.loading, base=request.base, include_base=given)


def relearning_of(request: Request, manifest: Manifest) -> Relearning:
    """The short training that a request asks for, once the manifest is known.

    Rows of both splits are used, and none that the manifest audits: trained on, its
    held-out rows and identifiers would be no control any more.

    Raises
    ------
    InputError
        If no row is left.
    """
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


def store_of(scores: Path) -> Path:
    """The store that ``--scores`` names: itself, or that of a report folder.

    Raises
    ------
    InputError
        If it is a file, or a folder of something else.
    """
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
