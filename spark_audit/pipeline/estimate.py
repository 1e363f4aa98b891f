"""What a request takes: tokens that nobody has scored, at the speed of a batch here.

Every checkpoint is checked from its headers. One of each shape is opened, and a batch
of every pass is timed on it; nothing is kept.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_audit.checkpoints.server import is_server
from spark_audit.checkpoints.specs import parse_specs
from spark_audit.errors import InputError
from spark_audit.memory import free_bytes
from spark_audit.pipeline.engines.jobs import processes
from spark_audit.pipeline.lineup import make_plans
from spark_audit.pipeline.request import Request
from spark_audit.pipeline.run import checked
from spark_audit.scoring.items import AnyItem
from spark_audit.scoring.table import Pass

if TYPE_CHECKING:
    from spark_audit.checkpoints.loaded import Loaded
    from spark_audit.pipeline.score import Work

CONCLUDING, DRAWING = 0.5, 15.0
"""Seconds to conclude from a checkpoint in one audit, and to draw a report with
figures, of some hundred rows."""
TIMED = 1024
"""Tokens of a batch on a CPU."""


@dataclass(frozen=True)
class Part:
    """What one audit takes beyond those before it: what several read is read once."""

    audit: str
    items: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """What a request takes: seconds over all checkpoints, bytes of memory.

    ``passes`` are how many the ``store`` holds, and how many there are; ``None`` where
    there is no store yet.
    """

    manifest: str
    rows: int
    folder: str
    checkpoints: tuple[str, ...]
    audits: Sequence[Part]
    loading: float
    report: float
    memory_bytes: int
    free_bytes: int | None
    processes: int
    passes: tuple[int, int] | None
    store: str

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.loading + self.report + sum(one.seconds for one in self.audits)

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"seconds": round(self.seconds, 1)}


def estimate(request: Request) -> Estimate:
    """What a run of the request takes on this machine, as busy as it is now.

    Raises
    ------
    SparkError
        As a run raises it before it scores.
    """
    paths = (path for spec in parse_specs(list(request.ckpt)) for path in spec.paths)
    if any(map(is_server, paths)):
        raise InputError("how long a server takes is not known", where="--dry-run")
    found = checked(request)
    work = found.work
    known = [one for one in work.engine.described if work.order.scores(one.name)]
    lacking = {one.name: work.lacking(one) for one in known}
    pace, loading, weights = _timed(work, known, lacking)
    done: set[tuple[str, Pass, str]] = set()
    parts = []
    for audit in request.audits:
        _, plans = make_plans(work.view, [audit], preset=request.preset)
        items = tokens = 0
        seconds = CONCLUDING * sum(work.order.sees(one.name, audit) for one in known)
        for one in known:
            for wanted, keys in work.order.plan(one.name, plans).items():
                sizes = lacking[one.name].get(wanted, {})
                fresh = {(one.name, wanted, key) for key in keys if key in sizes} - done
                done |= fresh
                read = sum(sizes[key].tokens for _, _, key in fresh)
                items, tokens = items + len(fresh), tokens + read
                seconds += read * pace[_shape(one), wanted.kind] if read else 0.0
        parts.append(Part(audit.name, items, tokens, round(seconds, 1)))
    draws = not request.formats or {"figures", "html"} & {*request.formats}
    free, memory = free_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    at_once = processes(
        request,
        work=sum(one.tokens for one in parts) * weights / 4,
        size=weights,
        free=free,
    )
    return Estimate(
        manifest=work.manifest.name,
        rows=len(work.manifest.examples),
        folder=str(found.folder),
        checkpoints=tuple(one.name for one in work.engine.described),
        audits=parts,
        loading=round(loading, 1),
        report=DRAWING if draws else 1.0,
        memory_bytes=at_once * memory * 1024,
        free_bytes=free,
        processes=at_once,
        passes=found.there,
        store=str(found.store) if found.there or request.scores else "",
    )


Lacking = dict[Pass, dict[str, AnyItem]]


def _timed(
    work: Work, known: Sequence[Loaded], lacking: dict[str, Lacking]
) -> tuple[dict[tuple[Any, str], float], float, float]:
    """Seconds per token by shape and pass, seconds of loading, bytes of the weights.

    Where nothing is lacking, nothing is opened.
    """
    from spark_audit.scoring.score import score

    engine, opening = work.engine, work.engine.opening
    shapes = {engine.group_of(one.name): _shape(one) for one in known}
    # Checkpoints of a shape may lack different passes.
    samples: dict[Any, dict[str, tuple[Pass, list[AnyItem]]]] = {}
    for one in known:
        for wanted, items in lacking[one.name].items():
            if items:
                own = samples.setdefault(_shape(one), {})
                own.setdefault(wanted.kind, (wanted, _some([*items.values()])))
    pace: dict[tuple[Any, str], float] = {}
    opened: dict[Any, float] = {}
    most = 0
    for shape, passes in samples.items():
        group = next(group for group, one in shapes.items() if one == shape)
        began = time.perf_counter()
        loaded = next(iter(opening.open(group)))
        opened[shape] = time.perf_counter() - began
        most = max(most, sum(each.nbytes for each in loaded.model.parameters()))
        for kind, (wanted, some) in passes.items():
            score(loaded, some[:1], passes=[wanted])
            began = time.perf_counter()
            score(loaded, some, passes=[wanted], batch_size=work.request.batch_size)
            spent = time.perf_counter() - began
            pace[shape, kind] = spent / sum(item.tokens for item in some)
        opening.release()
    loading = sum(opened.get(shape, 0.0) for shape in shapes.values())
    return pace, loading, float(most)


def _some(items: list[AnyItem]) -> list[AnyItem]:
    """Items of every length, about four times :data:`TIMED` tokens."""
    items.sort(key=lambda item: item.tokens)
    mean = sum(item.tokens for item in items) / len(items)
    count = min(len(items), max(int(4 * TIMED / max(mean, 1)), 4))
    return [items[i] for i in np.linspace(0, len(items) - 1, count).astype(int)]


def _shape(one: Loaded) -> tuple[Any, ...]:
    """What checkpoints that take the same time have in common."""
    return (one.architecture, *one.shape.values(), len(one.usable), one.dtype)


def told(estimate: Estimate) -> Iterator[str]:
    """The estimate in at most 25 lines of 80 columns."""
    named = ", ".join(estimate.checkpoints)
    listed = named if len(named) <= 40 else f"{named[:37]}..."
    yield f"Reads    {estimate.manifest[:40]}, {estimate.rows:,} rows"
    plural = "s" * (len(estimate.checkpoints) > 1)
    yield f"with     {len(estimate.checkpoints)} checkpoint{plural} ({listed})"
    yield "         tokenizer, vocabulary, shapes and base of each were checked"
    if estimate.passes is not None:
        there, every = estimate.passes
        yield f"Scores   {there} of {every} passes are there: {estimate.store}"
    elif estimate.store:
        yield f"Scores   none are there yet: {estimate.store}"
    yield ""
    width = max(map(len, (*(one.audit for one in estimate.audits), "loading")))
    for one in estimate.audits:
        reads = f"{one.items:,} items, {one.tokens:,} tokens"
        yield f"{one.audit:<{width}}  {duration(one.seconds):>12}  {reads}"
    yield f"{'loading':<{width}}  {duration(estimate.loading):>12}"
    yield f"{'report':<{width}}  {duration(estimate.report):>12}"
    yield ""
    by = f", by {estimate.processes} processes" if estimate.processes > 1 else ""
    memory = f"{estimate.memory_bytes / 1e9:.1f} GB"
    free = estimate.free_bytes
    beside = "" if free is None else f" of {free / 1e9:.1f} GB that are free"
    whole = duration(estimate.seconds)
    yield f"In all about {whole}{by}."
    yield f"Memory: {memory}{beside}."
    yield "Some items of each pass were timed on one checkpoint of each shape. Scores"
    yield "for several audits count with the first; saved scores count as done."
    longest = max(estimate.audits, key=lambda one: one.seconds)
    if len(estimate.audits) > 1 and longest.seconds > estimate.seconds / 3:
        yield (
            f"Most of it is {longest.audit}: --skip {longest.audit} goes without, and "
            "without its evidence."
        )
    yield f"The report goes to {estimate.folder}; nothing was written."


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days"
