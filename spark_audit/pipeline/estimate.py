"""What a run would take: time, memory, and what is stored already."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from spark_audit.errors import InputError, free_bytes, memory_size
from spark_audit.pipeline.engines.local import processes
from spark_audit.pipeline.job import Job, Lacking, checked_job
from spark_audit.pipeline.request import Request

TIMED = 4096
"""Tokens of a pass that are timed."""


def estimate(request: Request) -> dict[str, Any]:
    """What a run of the request takes on this machine, as busy as it is now, for JSON.

    ``passes`` has a record for each kind of pass: what is still to be scored of it.
    ``there`` are how many passes over checkpoints the ``store`` holds, and how many
    there are; ``None`` where there is no store yet. Statistics, pictures and short
    trainings (``--relearn``) are not timed.

    Raises
    ------
    SparkError
        As a run raises it before it scores.
    """
    from spark_audit.scoring.store import Store

    job = checked_job(request)
    described, place = job.opening.described, job.store.folder
    if any(one.served for one in described):
        fix = "leave it out: all else was checked, and a run that is stopped resumes"
        raise InputError(
            "how long a server takes is not known", where="--dry-run", fix=fix
        )
    # A store that is made gets a salt; there is nothing in one that is not.
    begun = place is not None and (place / "salt").exists()
    job = job if begun else replace(job, store=Store(None))
    lacking = job.lacking()
    pace, loading = _timed(job, lacking)
    passes: list[dict[str, Any]] = []
    for name in dict.fromkeys(kind.kind for _, kind in lacking):
        items = [
            i for (_, kind), own in lacking.items() if kind.kind == name for i in own
        ]
        tokens = sum(item.tokens for item in items)
        seconds = round(tokens * pace.get(name, 0.0), 2)
        part = {"items": len(items), "tokens": tokens, "seconds": seconds}
        passes.append({"pass": name, **part})
    free, memory = free_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    at_once = processes(job, lacking)
    return {
        "manifest": job.manifest.name,
        "rows": len(job.manifest.examples),
        "folder": str(job.folder),
        "checkpoints": [one.name for one in described],
        "notes": list(dict.fromkeys(n for one in job.opening.items for n in one.notes)),
        "passes": passes,
        "loading": round(loading, 2),
        "seconds": round(loading + sum(one["seconds"] for one in passes), 2),
        "memory_bytes": at_once * memory * 1024,
        "free_bytes": free,
        "processes": at_once,
        "there": job.stored(lacking) if begun else None,
        "store": str(place),
    }


def _timed(job: Job, lacking: Lacking) -> tuple[dict[str, float], float]:
    """Seconds per token of each pass, and seconds of loading.

    Where nothing is lacking, nothing is opened.
    """
    from spark_audit.scoring.score import score

    samples = {kind: left for (_, kind), left in lacking.items() if left}
    if not samples:
        return {}, 0.0
    groups = len(job.opening.groups)
    with job.clock("loading"):
        loaded = next(iter(job.opening.open(groups - 1)))
    pace: dict[str, float] = {}
    for kind in {kind.kind: kind for kind in samples}.values():
        # Items of every length, about four batches of a CPU.
        items = sorted(samples[kind], key=lambda item: item.tokens)
        mean = sum(item.tokens for item in items) / len(items)
        count = min(len(items), max(int(TIMED / max(mean, 1)), 4))
        some = [items[i] for i in np.linspace(0, len(items) - 1, count).astype(int)]
        score(loaded, some[:1], passes=[kind])
        with job.clock(kind.kind):
            score(loaded, some, passes=[kind], batch_size=job.request.batch_size)
        pace[kind.kind] = job.clock[kind.kind] / sum(item.tokens for item in some)
    job.opening.release()
    return pace, job.clock["loading"] * groups


def told(estimated: Mapping[str, Any]) -> Iterator[str]:
    """The estimate in at most 25 lines of 80 columns."""
    names, there = ", ".join(estimated["checkpoints"]), estimated["there"]
    count, free = estimated["processes"], estimated["free_bytes"]
    yield f"Reads    {estimated['manifest'][:40]}, {estimated['rows']:,} rows"
    yield f"with     {names if len(names) <= 70 else f'{names[:67]}...'}"
    if there:
        yield f"Scores   {stored_passes(*there)}: {estimated['store']}"
    yield from (f"Note     {note}" for note in estimated["notes"])
    for one in estimated["passes"]:
        reads = f"{one['items']:,} items, {one['tokens']:,} tokens"
        yield f"{one['pass']:<10}{duration(one['seconds']):>12}  {reads}"
    yield f"{'loading':<10}{duration(estimated['loading']):>12}"
    yield ""
    by = f", by {count} processes" if count > 1 else ""
    yield f"In all about {duration(estimated['seconds'])}{by}."
    beside = "" if free is None else f" of {memory_size(free)} that are free"
    yield f"Memory: {memory_size(estimated['memory_bytes'])}{beside}."
    yield "Some batches of each pass were timed on one checkpoint; saved scores count"
    yield "as done. Statistics, pictures and short trainings (--relearn) come on top."
    yield f"The report goes to {estimated['folder']}; nothing was written."


def stored_passes(n_whole: int, n_passes: int, n_in_part: int = 0) -> str:
    """How many passes are stored, in words."""
    words = f"{n_whole} of {n_passes} passes"
    return f"{words}, and parts of {n_in_part} more," if n_in_part else words


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days"
