"""Plan, score, audit, report: from checkpoints and a manifest to a report folder.

The union of the passes that the audits need is scored once per checkpoint into a
store that resumes. Any number of workers with the same flags may share the work: each
scores the items that fall to it by hash, and the first that finds nothing missing
writes the report.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from spark_audit.audits import AUDITS
from spark_audit.audits.contract import baselines_of, evidence_file, originals
from spark_audit.audits.seeds import with_entries
from spark_audit.audits.utility.series import listed
from spark_audit.checkpoints.run_folder import run_tables, trained_order
from spark_audit.errors import IncompleteError, InputError
from spark_audit.files import check_links, check_writable, lies_inside
from spark_audit.locks import alone
from spark_audit.manifest.file import load_manifest, original
from spark_audit.manifest.fit import check_fit
from spark_audit.manifest.items import items_for, token_places
from spark_audit.manifest.schema import Manifest
from spark_audit.pipeline.merge import accumulated, audits_of
from spark_audit.pipeline.merge import check as check_kept
from spark_audit.pipeline.plans import Lineup, Plans, known, lineup, make_plans
from spark_audit.pipeline.request import Request
from spark_audit.pipeline.workers import NOT_GIVEN, Worker
from spark_audit.provenance import sha256_file
from spark_audit.report.assemble import assemble
from spark_audit.report.attachments import (
    case_ids,
    cases,
    cases_file,
    matching,
    write_cases,
)
from spark_audit.report.folder import FOLDERS, check_formats, read_report, write_report
from spark_audit.results import AuditResult, CheckpointFacts, ManifestFacts, Report
from spark_audit.scoring.table import Pass, TokenTable, write_parquet

if TYPE_CHECKING:
    from spark_audit.checkpoints.recipe import Loaded
    from spark_audit.checkpoints.specs import Spec
    from spark_audit.scoring.store import Store

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

STATISTICS = "statistics, audits"
"""What is being done after scoring."""
DRIFT_ROWS = 8
PLACE = ("device", "trust_remote_code", "base", "include_base")
"""Options of opening that may differ from one worker to another."""
LOCK = ".report.lock"
"""Held in a report folder by whoever writes the report."""
MANIFESTS = Path("manifests")
REPORTS = Path("reports")


@dataclass(frozen=True)
class Outcome:
    """What a run came to; ``report`` is ``None`` for a worker that others outlast."""

    folder: Path
    report: Report | None
    missing: int = 0


@dataclass(frozen=True)
class _Scored:
    """A checkpoint after its passes, without its model."""

    facts: CheckpointFacts
    keys: dict[Pass, dict[str, str]]


Items: TypeAlias = dict[Pass, list[Any]]


def run(request: Request, *, progress: Progress | None = None) -> Outcome:
    """Audit checkpoints against a manifest and write the report folder.

    Raises
    ------
    SparkError
        For anything that the user gave and that cannot be used; what was scored until
        then is kept, and the same request resumes.
    """
    from spark_audit.scoring.store import Store

    clock = _Clock()
    _check_options(request)
    order, stream = _open(request)
    learned = _learned(order, request)
    names = [str(spec.name) for spec in order.specs if spec.name not in order.stages]
    names = names or sorted({order.entry(name) for name in order.stages})
    _check_baseline(request.baseline, names)
    manifest = None
    if request.manifest is not None:
        manifest = original(load_manifest(request.manifest))
        _check_folder(_folder(request, manifest, names), manifest, order, request)
    elif request.output is not None:
        check_writable(request.output)
    with clock("loading"):
        checkpoint = next(stream, None)
    assert checkpoint is not None
    if manifest is None:
        manifest = original(_manifest_for(checkpoint, request))
    folder = _folder(request, manifest, names)
    _check_folder(folder, manifest, order, request)
    request = _ordered(request, learned, manifest)
    view, plans = _plans(manifest, request)
    worker = Worker(
        folder / "scores" / "workers",
        "+".join(request.audits),
        None if request.shard[1] == 1 else "/".join(map(str, request.shard)),
        _flags(request, manifest),
    )
    with worker.at_work():
        store = Store(request.scores or folder / "scores" / "store")
        work = _Work(manifest, view, order, plans, store, request, progress, clock)
        scored: list[_Scored] = []
        while checkpoint is not None:
            if order.scores(checkpoint.name):
                scored.append(work.score(checkpoint))
            # Let go of full weights before the next checkpoint is loaded.
            checkpoint = None
            with clock("loading"):
                checkpoint = next(stream, None)
        _check_baseline(request.baseline, [*names, *(one.facts.name for one in scored)])
        with clock("gathering"):
            gathered = [
                {kind: store.gather(keys, kind=kind) for kind, keys in one.keys.items()}
                for one in scored
            ]
        missing = sum(
            len(keys) - len(gathered[i][wanted].ids)
            for i, one in enumerate(scored)
            for wanted, keys in one.keys.items()
        )
        if missing:
            if request.shard[1] == 1:
                raise IncompleteError(f"{missing} items could not be scored")
            worker.done = True
            return Outcome(folder, None, missing)
        tables = {
            one.facts.name: found for one, found in zip(scored, gathered, strict=True)
        }
        # Commands, and workers of one, wait for one another.
        with alone(folder / LOCK):
            if worker.ended:
                return Outcome(folder, None)
            report = _conclude(work, folder, scored, tables)
            worker.finish()
    return Outcome(folder, report)


def _conclude(
    work: _Work,
    folder: Path,
    scored: Sequence[_Scored],
    tables: Mapping[str, Mapping[Pass, TokenTable]],
) -> Report:
    """Conclude from complete tables, and write the folder."""
    manifest, view, order, request = work.manifest, work.view, work.order, work.request
    progress, clock = work.progress, work.clock
    written = set()
    for place, (name, passes) in enumerate(tables.items()):
        taken = {"".join(_safe(other)) for other in list(tables)[:place]}
        for wanted, table in passes.items():
            stem = _file(name, wanted, taken)
            path = folder / "scores" / "tables" / f"{stem}.parquet"
            table.write(path)
            written.add(path)
    # Another command may have finished here in the meantime.
    before = _check_folder(folder, manifest, order, request)
    results: dict[str, AuditResult] = {}
    facts = [one.facts for one in scored]
    for place, name in enumerate(request.audits):
        if progress is not None:
            progress(STATISTICS, place, len(request.audits))
        with clock(f"statistics: {name}"):
            results[name] = _audit(name, tables, view, order, facts, request)
    if progress is not None:
        progress(STATISTICS, len(request.audits), len(request.audits))
    attached = run_tables(_folders(order))
    plain = {k: found[Pass()] for k, found in tables.items() if Pass() in found}
    shown = cases(view, work.places, plain)
    report = _report(work, scored, results, attached)
    adds = False
    if before is not None:
        report = accumulated(before, report, folder=folder)
        adds = bool(set(audits_of(report)) - set(request.audits))
        if adds:
            kept = [f"scores/{evidence_file(audit)}" for audit in audits_of(report)]
            kept += (n for n in before.files.get("scores", ()) if "/tables/" in n)
            written.update(filter(Path.exists, (folder / name for name in kept)))
    if shown or not adds:
        write_cases(folder, shown)
    written.add(cases_file(folder))
    sums = dict(report.evidence)
    for name, result in results.items():
        if result.evidence is not None and len(result.evidence):
            path = folder / "scores" / evidence_file(name)
            evidence = pa.Table.from_pandas(result.evidence, preserve_index=False)
            write_parquet(evidence, path)
            written.add(path)
            sums[path.name] = sha256_file(path)
    names = sorted(path.relative_to(folder).as_posix() for path in written)
    found = {"evidence": sums, "files": {"scores": names}}
    report = report.model_copy(update=found)
    write_report(
        report,
        folder,
        # The report itself is always written: all else is rendered from it.
        formats=("json", *request.formats) if request.formats else (),
        manifest=view,
        show_text=request.show_text,
    )
    return read_report(folder)  # it knows now what stands beside it


def _flags(request: Request, manifest: Manifest) -> dict[str, str]:
    """What all workers of a report must have alike: all that shapes it, by its flag."""
    texts = "data" if request.data else "manifest"
    flags = {
        **request.audit_options,
        **{k: v for k, v in vars(request.loading).items() if k not in PLACE},
        "ckpt": request.ckpt,
        "base": request.base,
        "baseline": request.baseline,
        texts: f"{manifest.name} {manifest.digest[:12]}",
        "preset": request.preset or manifest.settings.preset,
        "seed": request.seed,
        "limit": request.limit,
        "scores": request.scores,
        "format": request.formats,
        "show-text": request.show_text,
    }
    return {
        f"--{name.replace('_', '-')}": " ".join(map(str, value))
        if isinstance(value, tuple)
        else str(NOT_GIVEN if value is None else value)
        for name, value in sorted(flags.items())
    }


def _open(request: Request) -> tuple[Lineup, Iterator[Loaded]]:
    """The checkpoints of a call, and the stream that opens them one by one."""
    from spark_audit.checkpoints.open import open_checkpoints
    from spark_audit.checkpoints.specs import parse_specs

    order = lineup(parse_specs(list(request.ckpt)), request.audits)
    loading = replace(
        request.loading, base=request.base, include_base=request.base is not None
    )
    return order, open_checkpoints(order.specs, loading)


def _learned(order: Lineup, request: Request) -> tuple[str, ...]:
    """The tasks as the runs among the series learned them; nothing without a run.

    Raises
    ------
    InputError
        If two runs went through them in different orders, a run otherwise than the
        order that was given, or a series beside a run does not say how: stages would
        be taken for those of other tasks.
    """
    counts = Counter(order.entry(name) for name in order.stages)
    learned = {
        name: tasks
        for name, folder in _folders(order).items()
        # A single stage is that of all tasks, whatever their order.
        if counts[name] > 1 and (tasks := trained_order(folder))
    }
    fix = "audit runs of one order at a time; --order may be left out"
    given = request.audit_options.get("order")
    asked = tuple(listed(str(given))) if given is not None else ()
    for name, tasks in learned.items():
        if [t for t in asked if t in tasks] != [t for t in tasks if t in asked]:
            raise InputError(
                f"{name!r} learned its tasks in another order: {', '.join(tasks)}",
                where="--order",
                fix=fix,
            )
    first = next(iter(learned), "")
    for name, tasks in learned.items():
        if not asked and tasks != learned[first]:
            raise InputError(
                f"{first!r} and {name!r} learned their tasks in different orders: "
                f"{', '.join(learned[first])}; {', '.join(tasks)}",
                where="--ckpt",
                fix="audit runs of one order at a time",
            )
    silent = [name for name, n in counts.items() if n > 1 and name not in learned]
    if learned and silent and not asked:
        raise InputError(
            f"{silent[0]!r} does not say in which order it learned its tasks; "
            f"{first!r} learned {', '.join(learned[first])}",
            where="--ckpt",
            fix="give --order t1,t2,... if it holds for both, or audit them apart",
        )
    return learned.get(first, ())


def _ordered(request: Request, learned: Sequence[str], manifest: Manifest) -> Request:
    """The request, with the runs' own order where none was given."""
    known = {example.task for example in manifest.examples}
    tasks = [task for task in learned if task in known]
    if not tasks or request.audit_options.get("order") is not None:
        return request
    options = {**request.audit_options, "order": ",".join(tasks)}
    return replace(request, audit_options=options)


def _manifest_for(checkpoint: Loaded, request: Request) -> Manifest:
    """The one that fits, or one of the data alone."""
    if not request.data:
        return find_manifest(checkpoint)
    from spark_audit.data.examples import data_files, read_examples
    from spark_audit.manifest.tasks import task_manifest

    name = "+".join(dict.fromkeys(path.stem for path in request.data))
    return task_manifest(
        read_examples(*data_files(request.data)), checkpoint, name=name
    )


def _plans(manifest: Manifest, request: Request) -> tuple[Manifest, Plans]:
    return make_plans(
        manifest,
        request.audits,
        preset=request.preset,
        options=request.audit_options,
        limit=request.limit,
    )


def estimate_cost(request: Request) -> dict[str, Any]:
    """What :func:`run` would score: items, tokens, memory and time, by checkpoint.

    Checkpoints are opened and a few texts are scored to take the time; nothing is
    written.
    """
    from spark_audit.scoring.score import cost

    _check_options(request)
    order, stream = _open(request)
    learned = _learned(order, request)
    manifest = load_manifest(request.manifest) if request.manifest else None
    found: dict[str, Any] = {}
    for checkpoint in stream:
        if not order.scores(checkpoint.name):
            continue
        if manifest is None:
            manifest = _manifest_for(checkpoint, request)
        request = _ordered(request, learned, manifest)
        view, plans = _plans(original(manifest), request)
        items = items_for(view, checkpoint, order.plan(checkpoint.name, plans))
        found["manifest"] = manifest.name
        for name, value in cost(checkpoint, items).items():
            found[f"{checkpoint.name}: {name}"] = value
            if name == "seconds":
                found["seconds"] = round(found.get("seconds", 0) + value, 1)
    return found


@dataclass(frozen=True)
class _Work:
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
    clock: _Clock
    places: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    _made: dict[str, Items] = field(default_factory=dict)

    def score(self, checkpoint: Loaded) -> _Scored:
        """Score what is asked of one checkpoint; keep facts and keys, no model."""
        from spark_audit.scoring.score import drift, missing, score_keys

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
        keys: dict[Pass, dict[str, str]] = {}
        for wanted, chosen in self._items(checkpoint).items():
            if wanted == Pass() and missing(checkpoint, chosen, [wanted], store):
                largest = drift(checkpoint, chosen, k=DRIFT_ROWS, seed=request.seed)
                store.remark(
                    f"{min(DRIFT_ROWS, len(chosen))} texts scored alone and in one "
                    f"batch differ by at most {largest:.1e} nats a token"
                )
            with self.clock(f"scoring: {wanted.kind}"):
                keys[wanted], remarks = score_keys(
                    checkpoint,
                    chosen,
                    kind=wanted,
                    store=store,
                    batch_size=request.batch_size,
                    shard=request.shard,
                    progress=self._show(checkpoint.name, wanted),
                )
            notes += (remark for remark in remarks if remark not in notes)
        return _Scored(
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

    def _show(self, name: str, wanted: Pass) -> Callable[[int, int], None]:
        what = f"scoring {name}, {wanted.label}, tokens"

        def show(done: int, total: int) -> None:
            if self.progress is not None:
                self.progress(what, done, total)

        return show


def _audit(
    name: str,
    tables: Mapping[str, Mapping[Pass, TokenTable]],
    manifest: Manifest,
    order: Lineup,
    facts: Sequence[CheckpointFacts],
    request: Request,
) -> AuditResult:
    seen = {k: passes for k, passes in tables.items() if order.sees(k, name)}
    # A series is held against a series, by their own names.
    names = dict.fromkeys(
        k.rpartition("@")[0] if k in order.stages else k for k in seen
    )
    entry = AUDITS.get(name)
    options = {
        "baseline": baselines_of(request.baseline, names) | originals(facts),
        "preset": request.preset,
        "seed": request.seed,
        **request.audit_options,
    }
    return with_entries(entry.run(seen, manifest, **known(entry.run, options)))


def _report(
    work: _Work,
    scored: Sequence[_Scored],
    results: Mapping[str, AuditResult],
    attached: Mapping[str, list[dict[str, Any]]],
) -> Report:
    request, manifest, view = work.request, work.manifest, work.view
    partial = len(view.examples) < len(manifest.examples)
    train = [pair for pair in view.pairs if view.by_id[pair.example].split == "train"]
    held = [view.by_id[pair.example] for pair in train]
    return assemble(
        results,
        status="partial" if partial else "complete",
        command=list(request.command),
        settings={
            "preset": request.preset or manifest.settings.preset,
            "seed": request.seed,
            "baseline": request.baseline,
            "limit": request.limit,
            "caliper": manifest.settings.caliper,
            "reference": manifest.reference.name,
            **{
                f"{name}.{key}": value
                for name, result in results.items()
                for key, value in {
                    **known(AUDITS.get(name).run, request.audit_options),
                    **result.settings,
                }.items()
            },
        },
        manifest=ManifestFacts(
            name=manifest.name,
            digest=manifest.digest,
            n_sources=len({example.source_id for example in held}),
            n_clusters=len({example.cluster for example in held}),
            n_spans=len(train),
            n_tokens=sum(p.pii.token_end - p.pii.token_start for p in train),
        ),
        checkpoints=[one.facts for one in scored],
        tables={**matching(view), **attached},
        timing={k: round(seconds, 3) for k, seconds in work.clock.seconds.items()},
    )


def find_manifest(checkpoint: Loaded, *, folder: Path = MANIFESTS) -> Manifest:
    """The one manifest of a folder that was made for this checkpoint's base.

    Raises
    ------
    InputError
        If none or several fit; it lists them.
    """
    fitting: list[tuple[Path, Manifest]] = []
    others: list[str] = []
    for path in sorted(folder.glob("*.json")):
        if not lies_inside(path):
            others.append(f"{path} (is a link out of the folder)")
            continue
        try:
            manifest = load_manifest(path)
            check_fit(
                manifest,
                name=checkpoint.name,
                tokenizer_sha256=checkpoint.tokenizer_sha256,
                architecture=checkpoint.architecture,
                vocab_size=len(checkpoint.usable),
                base_sha256=checkpoint.base_sha256,
                shape=checkpoint.shape,
            )
            original(manifest)
        except InputError as error:
            others.append(f"{path} ({error.what})")
        else:
            fitting.append((path, manifest))
    if len(fitting) == 1:
        return fitting[0][1]
    if fitting:
        raise InputError(
            "several manifests fit: " + ", ".join(str(path) for path, _ in fitting),
            where=f"checkpoint {checkpoint.name!r}",
            fix="choose one with --manifest",
        )
    found = "; ".join(others) if others else f"there is none in {folder}/"
    raise InputError(
        f"no manifest fits: {found}",
        where=f"checkpoint {checkpoint.name!r}",
        fix="build one with `spark-audit manifest build`, or give --manifest",
    )


def _folder(request: Request, manifest: Manifest, names: Sequence[str]) -> Path:
    return request.output or default_folder(manifest, names)


def default_folder(manifest: Manifest, names: Sequence[str]) -> Path:
    """``reports/<manifest>-<names>``."""
    parts = [manifest.name, *names]
    return REPORTS / "-".join("".join(_safe(part)) for part in parts)


def _safe(name: str) -> Iterator[str]:
    return (c if c.isalnum() or c in "._+-" else "_" for c in name)


def _file(name: str, wanted: Pass, taken: set[str]) -> str:
    """Stem of a table's file; names that look alike there get a number."""
    stem = "".join(_safe(name))
    if stem in taken:
        stem = f"{stem}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{stem}.{wanted.label.replace(' ', '-')}"


def _check_folder(
    folder: Path, manifest: Manifest, order: Lineup, request: Request
) -> Report | None:
    """The report that the folder holds; refuse to lose it, or not to be able to write.

    A folder of another manifest is refused, and one with a finished report that this
    call would not write again.
    """
    check_links(folder, *FOLDERS)
    before = None
    if (folder / "report.json").exists():
        before = read_report(folder)
        if before.manifest.digest != manifest.digest:
            raise InputError(
                f"holds a report over another manifest ({before.manifest.name!r})",
                where=str(folder),
                fix="give another -o, or remove the folder",
            )
        check_kept(
            before,
            request.audits,
            [name for spec in order.specs for name in _opened(spec, request)],
            settings={
                "preset": request.preset or manifest.settings.preset,
                "seed": request.seed,
                "limit": request.limit,
                "baseline": request.baseline,
            },
            folder=folder,
        )
    check_writable(folder)
    return before


def _folders(order: Lineup) -> dict[str, Path]:
    """Where each checkpoint lies, by name; a series stands there once."""
    found: dict[str, Path] = {}
    for spec in order.specs:
        several = len(spec.paths) > 1
        for number, path in enumerate(spec.paths, start=1):
            name = f"{spec.name}[{number}]" if several else str(spec.name)
            found.setdefault(order.entry(name), Path(path).expanduser())
    return found


def _opened(spec: Spec, request: Request) -> Iterator[str]:
    """Names of the checkpoints that a spec is opened as, rounded ones too."""
    several = len(spec.paths) > 1
    for number in range(1, len(spec.paths) + 1):
        name = f"{spec.name}[{number}]" if several else spec.name
        yield name
        for kind in request.loading.quantize:
            yield f"{name}+{kind}"


def _check_baseline(baseline: str | None, names: Sequence[str]) -> None:
    # Adapters bring their base along under this name; it is known after loading.
    if baseline is not None and baseline not in (*names, "base"):
        raise InputError(
            f"{baseline!r} is none of the checkpoints",
            where="--baseline",
            fix=f"choose one of: {', '.join(names)}, base",
        )


def _check_options(request: Request) -> None:
    """Refuse options that cannot be used before anything is loaded or scored."""
    check_formats(request.formats)
    for name in request.audits:
        entry = AUDITS.get(name)
        if "check" in entry.parts:
            check = entry.part("check")
            check(**known(check, request.audit_options))


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - start
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent
