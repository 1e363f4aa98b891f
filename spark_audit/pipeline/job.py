"""A job: a checked request, with the passes that its checkpoints still need.

The passes of all audits are united before anything is scored. Audits of series get the
stages of a series as ``NAME@K``, while other audits see a series as its last stage.

Every command that scores begins with :func:`checked_job`. ``run.py`` scores what
:meth:`Job.unscored` returns, and ``conclude.py`` reads the scores. A further refusal of
a request belongs to :meth:`Job.of` where it needs the manifest or headers, to
:func:`_lineup_of` where it needs names of checkpoints alone, and to ``request.py``
where it needs the options alone.

A pass is one way to score texts (plain, with noise, ...); an item is what is scored in
it. Items with the same content share a key in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from spark_audit.audits.base import Plan
from spark_audit.checkpoints.specs import Loading, parse_specs
from spark_audit.clock import Clock
from spark_audit.errors import InputError
from spark_audit.manifest.file import check_fit, original, read_manifest
from spark_audit.manifest.schema import Manifest
from spark_audit.manifest.sequences import items_for
from spark_audit.names import BASE, check_known, entry_of
from spark_audit.pipeline.folders import manifest_for, report_folder, score_folder
from spark_audit.pipeline.given_base import check_fits
from spark_audit.pipeline.lineup import (
    Lineup,
    make_lineup,
    make_plans,
    union,
    with_order,
)
from spark_audit.pipeline.opened import check_options, opened_checkpoints
from spark_audit.pipeline.request import Request
from spark_audit.report.formats import check_formats
from spark_audit.results import CheckpointFacts
from spark_audit.scoring.table import Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.checkpoint import Checkpoint
    from spark_audit.checkpoints.derived import Relearning
    from spark_audit.checkpoints.open import OpenCheckpoints
    from spark_audit.scoring.items import AnyItem
    from spark_audit.scoring.store import PassItems, Store

Unscored: TypeAlias = dict[tuple[str, Pass], list["AnyItem"]]
"""(Name of a checkpoint, pass) -> items whose scores are not in the store."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the name of an activity, the amount done, and the total amount."""


class StoredPasses(NamedTuple):
    """How many of a request's passes over checkpoints the store holds already.

    Attributes
    ----------
    n_whole
        Passes with scores of all items.
    n_passes
        All passes of the request, stored or not.
    n_in_part
        Passes of which some items are stored, and others are not.
    """

    n_whole: int
    n_passes: int
    n_in_part: int


@dataclass(frozen=True)
class CheckpointJob:
    """A checkpoint's facts for the report, and the items that it scores.

    It holds no model, and exists before the checkpoint is scored.

    Attributes
    ----------
    items_by_pass
        The items of each pass, which know their keys in the store.
    """

    facts: CheckpointFacts
    items_by_pass: Mapping[Pass, PassItems]


@dataclass(frozen=True)
class Job:
    """A checked request, with everything that its checkpoints share.

    Checkpoints that share one module (a base and its adapters, say) are a group: the
    module is loaded once for all of them.

    Attributes
    ----------
    lineup
        What the user gave, by spec (one spec may be several replicates), and which
        audits look at each checkpoint.
    opening
        Every checkpoint that is opened, with bases, replicates and derived ones;
        described from headers, and loaded group by group (``opening.groups``).
    manifest, view
        The whole manifest, and its part under ``--limit``.
    plans
        Sequences of each audit, by pass, in the order of ``request.audits``.
    store
        The store of scores.
    folder
        Folder of the report.
    show
        Called with progress.
    clock
        Seconds by kind of work, for the report.
    """

    request: Request
    lineup: Lineup
    opening: OpenCheckpoints
    manifest: Manifest
    view: Manifest
    plans: list[Plan]
    store: Store
    folder: Path
    show: Progress
    clock: Clock = field(default_factory=Clock)
    # Hash of a tokenizer -> pass -> the items of all plans, as this tokenizer reads
    # them. Checkpoints with one tokenizer share them.
    _items_by_tokenizer: dict[str, dict[Pass, Sequence[AnyItem]]] = field(
        default_factory=dict
    )
    # Name and id of a checkpoint -> the items that it scores. Those of a loaded
    # checkpoint are those of its description.
    _items_by_checkpoint: dict[tuple[str, str], dict[Pass, PassItems]] = field(
        default_factory=dict
    )

    @classmethod
    def of(cls, request: Request, progress: Progress | None = None) -> Job:
        """Check a request against the headers of its checkpoints, and plan its passes.

        Callers enter by :func:`checked_job`; only a helper process, whose request was
        checked before, calls this itself. Nothing is written. What takes least is
        checked first.

        Raises
        ------
        SparkError
            For any input of the user that cannot be used.
        """
        from spark_audit.checkpoints.open import OpenCheckpoints
        from spark_audit.scoring.store import Store

        check_options(request)
        lineup = _lineup_of(request)
        loading = loading_of(request)

        # Without a given manifest, the first checkpoint's headers determine it.
        opening = None
        if request.has_manifest:
            manifest = original(given_manifest(request))
            given_open = opened_checkpoints(request, manifest)
        else:
            given_open = opened_checkpoints(request, None)
            opening = OpenCheckpoints(lineup.specs, loading, opened=given_open)
            manifest = original(manifest_for(opening.described[0], request))

        # If a manifest was given, a bad order or folder is refused before headers are
        # read, which takes a second.
        if lineup.stages:
            request = with_order(request, lineup, manifest)
        folder = report_folder(manifest, lineup.names, lineup.specs, request)

        # A relearning adds checkpoints, so that they are opened again with it. Which
        # rows it may use is only known with the manifest.
        relearning = relearning_of(request, manifest) if request.relearn else None
        if opening is None or relearning:
            opening = OpenCheckpoints(
                lineup.specs, loading, relearning=relearning, opened=given_open
            )
        check_fits(manifest, opening.described, lineup, request)

        # Plan what is scored, and where the scores are stored.
        view, plans = make_plans(
            manifest, request.audits, preset=request.preset, limit=request.limit
        )
        store_folder = folder / "scores" / "store"
        if request.scores:
            store_folder = score_folder(request.scores)
        return cls(
            request=request,
            lineup=lineup,
            opening=opening,
            manifest=manifest,
            view=view,
            plans=plans,
            store=Store(store_folder),
            folder=folder,
            show=progress or (lambda activity, done, total: None),
        )

    def items_by_pass(self, checkpoint: Checkpoint) -> dict[Pass, PassItems]:
        """Return the items that a checkpoint scores in each pass of its audits."""
        # Before loading, the id of some checkpoints is not known.
        if not checkpoint.model_id:
            return self._planned_items(checkpoint)

        identity = (checkpoint.name, checkpoint.model_id)
        if identity not in self._items_by_checkpoint:
            self._items_by_checkpoint[identity] = self._planned_items(checkpoint)
        return self._items_by_checkpoint[identity]

    def _planned_items(self, checkpoint: Checkpoint) -> dict[Pass, PassItems]:
        """Return the items that the audits of a checkpoint planned, by pass."""
        plan = union(self._plans_for(checkpoint))  # pass -> keys of items
        passes = list(plan)
        if checkpoint.served is not None:
            from spark_audit.scoring.served import SERVED_PASSES

            # A server gives what its interface has, and no more.
            passes = [
                scoring_pass
                for scoring_pass in plan
                if scoring_pass.kind in SERVED_PASSES
            ]
        items_of_all_plans = self._items_of(checkpoint, passes)

        items_by_pass = {}
        for scoring_pass in passes:
            # All checkpoints with this tokenizer share the items of all plans; keep
            # what the audits of this checkpoint planned.
            planned_keys = set(plan[scoring_pass])
            items = []
            for item in items_of_all_plans[scoring_pass]:
                if item.key in planned_keys:
                    items.append(item)
            items_by_pass[scoring_pass] = self.store.pass_items(
                checkpoint, items, scoring_pass
            )
        return items_by_pass

    def audits_by_store_key(
        self, checkpoint: Checkpoint, items: PassItems
    ) -> dict[str, set[str]]:
        """Map the store key of each item to the names of the audits that need it.

        Parameters
        ----------
        items
            The items of a pass, as :meth:`items_by_pass` returns them for a checkpoint.
        """
        store_keys = items.store_keys()
        audits_by_store_key: dict[str, set[str]] = {}
        for audit, plan in zip(self.request.audits, self.plans, strict=True):
            if not self.lineup.sees(checkpoint.name, audit):
                continue
            for item_key in plan.get(items.scoring_pass, ()):
                store_key = store_keys[item_key]
                audits_by_store_key.setdefault(store_key, set()).add(audit.name)
        return audits_by_store_key

    def _plans_for(self, checkpoint: Checkpoint) -> list[Plan]:
        """Return the plans of the audits that look at a checkpoint."""
        plans = []
        for audit, plan in zip(self.request.audits, self.plans, strict=True):
            if self.lineup.sees(checkpoint.name, audit):
                plans.append(plan)
        return plans

    def _items_of(
        self, checkpoint: Checkpoint, passes: Sequence[Pass]
    ) -> Mapping[Pass, Sequence[AnyItem]]:
        """Return the items of all plans, as a checkpoint's tokenizer reads them.

        The given passes are among those returned; others may be, too, as all
        checkpoints with one tokenizer share the items.
        """
        items_by_pass = self._items_by_tokenizer.setdefault(
            checkpoint.tokenizer_sha256, {}
        )
        new_passes = [
            scoring_pass for scoring_pass in passes if scoring_pass not in items_by_pass
        ]
        if not new_passes:
            return items_by_pass

        from spark_audit.scoring.item_checks import check_reads_as_base

        united = union(self.plans)
        plan = {scoring_pass: united[scoring_pass] for scoring_pass in new_passes}
        with self.clock("tokenising"):
            new_items = items_for(self.view, checkpoint, plan)

        # Items are kept once they were checked: a second call checks them again.
        for scoring_pass in new_passes:
            check_reads_as_base(checkpoint, new_items[scoring_pass])
        items_by_pass.update(new_items)
        return items_by_pass

    def unscored(self) -> Unscored:
        """Return the items that are still to be scored, as far as headers tell.

        Before loading, the id of some checkpoints is not known: all their items are
        taken for unscored.
        """
        unscored: Unscored = {}
        for checkpoint in self.opening.described:
            if not self.lineup.scores(checkpoint.name):
                continue
            for scoring_pass, items in self.items_by_pass(checkpoint).items():
                items_left = self.store.left(items)  # store key -> item
                unscored[checkpoint.name, scoring_pass] = list(items_left.values())
        return unscored

    def stored(self, unscored: Unscored) -> StoredPasses | None:
        """Return how many passes the store holds, to be said before scoring.

        ``None`` where a checkpoint's id is only known after loading.

        Parameters
        ----------
        unscored
            As :meth:`unscored` returns it.
        """
        described = self.opening.described
        if not all(checkpoint.model_id for checkpoint in described):
            return None

        n_whole = 0
        n_in_part = 0
        for checkpoint in described:
            if not self.lineup.scores(checkpoint.name):
                continue
            for scoring_pass, items in self.items_by_pass(checkpoint).items():
                # Items of the same content share a store key, and are scored once.
                n_to_score = len(np.unique(items.key_numbers))
                n_unscored = len(unscored[checkpoint.name, scoring_pass])
                if not n_unscored:
                    n_whole += 1
                elif n_unscored < n_to_score:
                    n_in_part += 1
        return StoredPasses(n_whole, len(unscored), n_in_part)

    def checkpoint_job(self, checkpoint: Checkpoint) -> CheckpointJob:
        """Return a checkpoint's facts for the report, and the items that it scores.

        The checkpoint may be loaded, or only described. A loaded one is checked once
        more, as more is known of it than when :meth:`of` checked its headers.

        Raises
        ------
        InputError
            If the manifest was not made for it.
        """
        remarks = check_fit(
            self.manifest, checkpoint, base_sha256=checkpoint.base_sha256
        )
        facts = facts_of(checkpoint, [*checkpoint.notes, *remarks])
        return CheckpointJob(facts, self.items_by_pass(checkpoint))

    def tokens_left(self, group: int, unscored: Unscored) -> int | None:
        """Return how many tokens the checkpoints of a group still have to score.

        ``None`` where that is only known after loading.

        Parameters
        ----------
        group
            Index of the group in ``opening.groups``.
        unscored
            As :meth:`unscored` returns it.
        """
        names = self.opening.groups[group]
        model_ids = []
        for checkpoint in self.opening.described:
            if checkpoint.name in names:
                model_ids.append(checkpoint.model_id)
        # A score's key in the store holds the model's id.
        if not all(model_ids):
            return None

        n_tokens = 0
        for (name, _), items in unscored.items():
            if name in names:
                n_tokens += sum(item.n_tokens for item in items)
        return n_tokens

    def opened(self, unscored: Unscored) -> Iterator[Checkpoint]:
        """Yield every checkpoint, group by group, to be scored or to be reported.

        A group of which every score is stored is not loaded: its checkpoints come
        without weights.
        """
        for group, names in enumerate(self.opening.groups):
            # None, which is not known before loading, loads the group too.
            if self.tokens_left(group, unscored) != 0:
                yield from self.opening.open(group)
                continue

            for checkpoint in self.opening.described:
                if checkpoint.name in names:
                    yield checkpoint

    def n_missing(self, checkpoint_jobs: Sequence[CheckpointJob]) -> int:
        """Return how many items of some checkpoints are not in the store.

        Other workers may have stored scores in the meantime.
        """
        self.store.refresh()
        n_missing = 0
        for checkpoint_job in checkpoint_jobs:
            for items in checkpoint_job.items_by_pass.values():
                n_missing += len(self.store.left(items))
        return n_missing

    def with_notes(
        self, checkpoint_jobs: Sequence[CheckpointJob]
    ) -> list[CheckpointJob]:
        """Add notes on the making of their scores to the jobs, for the report."""
        self.store.refresh()
        jobs_with_notes = []
        for checkpoint_job in checkpoint_jobs:
            notes = [*checkpoint_job.facts.notes]
            for items in checkpoint_job.items_by_pass.values():
                notes += self.store.remarks(items)
            # The store's own notes are about parts that it could not read.
            if checkpoint_job.items_by_pass:
                notes += self.store.notes
            notes += self._notes_on_copies(checkpoint_job, checkpoint_jobs)

            # Several passes may give the same note.
            distinct_notes = list(dict.fromkeys(notes))
            facts = checkpoint_job.facts.model_copy(update={"notes": distinct_notes})
            jobs_with_notes.append(replace(checkpoint_job, facts=facts))
        return jobs_with_notes

    def _notes_on_copies(
        self, checkpoint_job: CheckpointJob, checkpoint_jobs: Sequence[CheckpointJob]
    ) -> list[str]:
        """Return notes that name the other checkpoints of the same model.

        A folder's copy is one; the same path twice was refused before. Two stages of a
        series that are alike are a figure of the series, and no mistake.
        """
        facts = checkpoint_job.facts
        notes = []
        for other in checkpoint_jobs:
            if other is checkpoint_job or other.facts.model_id != facts.model_id:
                continue
            if not {facts.name, other.facts.name} & self.lineup.stages:
                notes.append(f"the same model as {other.facts.name!r}")
        return notes


def given_manifest(request: Request) -> Manifest:
    """Return the manifest that a request names by its file, or brings in memory."""
    if request.manifest is not None:
        return read_manifest(request.manifest)

    manifest: Manifest = request.open_manifest
    return manifest


def _lineup_of(request: Request) -> Lineup:
    """Return which checkpoints a request opens.

    A request with an unknown name, or with nothing that its audits can look at, is
    refused.
    """
    check_formats(request.formats)
    if not request.audits:
        raise InputError("no audit is given", where="audits")

    # A report without a checkpoint would be complete, and say nothing.
    if not request.checkpoints and not request.opened:
        raise InputError(
            "no checkpoint is given",
            where="--ckpt",
            fix="give at least one",
        )

    # Folders are searched for stages only if an audit needs series.
    lineup = Lineup(tuple(parse_specs(request.checkpoints)))
    if any(audit.of_series for audit in request.audits):
        lineup = make_lineup(lineup.specs, request.audits)
    # What is open is no series: like a series of one stage, every audit looks at it.
    open_names = [named.name for named in request.opened if named.name != BASE]
    lineup = replace(
        lineup,
        opened=tuple(open_names),
        both=lineup.both | frozenset(open_names),
    )

    if request.baseline is not None:
        methods = [entry_of(name) for name in lineup.names]
        # Adapters bring their base along under this name, once headers are read.
        known_names = [*lineup.names, *methods, BASE]
        check_known(request.baseline, known_names, where="--baseline")
    for audit in request.audits:
        audit.check_names(lineup.names)

    # Audits of series cannot be run alone where there is no series.
    if not lineup.stages and all(audit.why_not_alone for audit in request.audits):
        raise InputError(
            request.audits[0].why_not_alone,
            where="--ckpt",
            fix="give the folder of a series, or its stages as [PATH,PATH,...]",
        )
    return lineup


def checked_job(request: Request, progress: Progress | None = None) -> Job:
    """Return the job of a request that can be carried out; refuse any other.

    Every command that scores begins here. A request for Ray is refused where there is
    no cluster, and the rest is checked by :meth:`Job.of`.
    """
    if request.engine == "ray":
        from spark_audit.pipeline.engines.cluster import check

        check(request.address)
    return Job.of(request, progress)


def facts_of(checkpoint: Checkpoint, notes: Sequence[str] = ()) -> CheckpointFacts:
    """Return the facts of a checkpoint that its report states, with these notes."""
    facts = CheckpointFacts.model_validate(checkpoint, from_attributes=True)
    return facts.model_copy(update={"notes": [*notes]})


def loading_of(request: Request) -> Loading:
    """Return how all checkpoints of a request are opened (device, dtype, base)."""
    return replace(
        request.loading, base=request.base, include_base=request.base is not None
    )


def relearning_of(request: Request, manifest: Manifest) -> Relearning:
    """Return the short training of ``--relearn``, with the texts that it takes.

    They are the rows of both splits that hold no identifier or canary and share no
    text or source with an audited row: held-out rows and identifiers that a checkpoint
    was trained on could not serve as a control any more.

    Raises
    ------
    InputError
        If no such row is left.
    """
    from spark_audit.checkpoints.derived import Relearning
    from spark_audit.data.examples import data_files, read_examples
    from spark_audit.data.occurrences import without_identifiers

    examples = read_examples(*data_files(request.relearn))
    allowed_rows, _ = without_identifiers(
        examples,
        splits=("train", "test"),
        audited=manifest.examples,
        where="--relearn",
    )
    texts = tuple(row.text for row in allowed_rows)
    return Relearning(
        texts=texts,
        steps=request.relearn_steps,
        lr=request.relearn_lr,
        seed=request.seed,
    )
