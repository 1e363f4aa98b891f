"""Estimate the time, memory and stored scores of a run before it begins.

``--dry-run`` calls :func:`estimate`, and prints its fields as they are (``--json``) or
in lines (:func:`estimate_lines`). Times are in seconds, memory in bytes. A further
figure is a field of :func:`estimate`, and a line there.
"""

from __future__ import annotations

import resource
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spark_audit.errors import InputError, free_bytes, memory_size
from spark_audit.pipeline.engines.local import processes
from spark_audit.pipeline.job import Job, Unscored, checked_job
from spark_audit.pipeline.request import Request

if TYPE_CHECKING:
    from spark_audit.scoring.items import AnyItem

TIMED_TOKENS = 4096
"""Tokens of a kind of pass that are scored to time it, about."""

MIN_TIMED_ITEMS = 4
"""Fewest items of a kind of pass that are timed, if there are as many."""

MAX_NOTES_SHOWN = 3
"""Most notes on checkpoints in a terminal: each stage of a long run has one."""

MAX_AUDITS_SHOWN = 6
"""Most audits in a terminal of which it is said what they add."""

LINE_WIDTH = 80
"""Columns of a terminal."""

SHARED = ""
"""Stands for the name of an audit where several audits need an item."""


def estimate(request: Request) -> dict[str, Any]:
    """Return what a run takes on this machine, as busy as it is now, for ``--dry-run``.

    Nothing is written. Statistics, pictures and short trainings (``--relearn``) are not
    timed.

    Returns
    -------
    dict
        The fields of ``--json``, which :func:`estimate_lines` shows. ``passes`` has a
        record for each kind of pass, with what is still to be scored of it, and
        ``audits`` one for each audit, with what no other audit needs: a run without
        this audit saves it. What several audits need is in ``shared``. ``there`` is a
        :class:`~spark_audit.pipeline.job.StoredPasses` of ``store``; ``None`` where
        there is no store yet.

    Raises
    ------
    SparkError
        Any error that a run would raise before it scores.
    """
    from spark_audit.scoring.store import Store

    job = checked_job(request)
    described = job.opening.described
    store_folder = job.store.folder
    if any(checkpoint.served for checkpoint in described):
        raise InputError(
            "how long a server takes is not known",
            where="--dry-run",
            fix="leave it out: all else was checked, and a run that is stopped resumes",
        )

    # A store without a salt was never written to. To estimate writes none, so that one
    # in memory takes its place.
    has_store = store_folder is not None and (store_folder / "salt").exists()
    if not has_store:
        # Store keys depend on the store.
        job = replace(job, store=Store(None), _items_by_checkpoint={})

    unscored = job.unscored()
    timing = _time_passes(job, unscored)
    missing = _missing_tokens(job)
    passes = _pass_records(missing, timing.seconds_per_token)
    tokens_by_audit = missing.tokens_by_audit
    audits = []
    for audit in request.audits:
        cost = _cost(tokens_by_audit[audit.name], timing.seconds_per_token)
        audits.append({"audit": audit.name, **cost})
    shared = _cost(tokens_by_audit[SHARED], timing.seconds_per_token)
    seconds = timing.loading + sum(record["seconds"] for record in passes)

    notes: dict[str, None] = {}
    for checkpoint in job.opening.checkpoints:
        notes |= dict.fromkeys(checkpoint.notes)

    # The peak of this process, which has loaded one module and scored with it.
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux
    n_processes = processes(job, unscored)
    return {
        "manifest": job.manifest.name,
        "rows": len(job.manifest.examples),
        "folder": str(job.folder),
        "checkpoints": [checkpoint.name for checkpoint in described],
        "notes": list(notes),
        "passes": passes,
        "audits": audits,
        "shared": shared,
        "loading": round(timing.loading, 2),
        "seconds": round(seconds, 2),
        "memory_bytes": n_processes * peak_kib * 1024,
        "free_bytes": free_bytes(),
        "processes": n_processes,
        "there": job.stored(unscored) if has_store else None,
        "store": str(store_folder),
    }


class PassTiming(NamedTuple):
    """What was timed on one loaded module.

    Attributes
    ----------
    seconds_per_token
        By kind of pass; a kind whose scores are all stored is missing.
    loading
        Seconds to load the modules of all groups.
    """

    seconds_per_token: dict[str, float]
    loading: float


@dataclass(frozen=True)
class MissingTokens:
    """What a run still has to score, each item once.

    Attributes
    ----------
    items_by_kind, tokens_by_kind
        Kind of pass -> items, and their tokens; 0 where all scores are stored.
    tokens_by_audit
        Audit -> kind of pass -> tokens that only this audit needs; :data:`SHARED` has
        those that several audits need.
    """

    items_by_kind: Counter[str] = field(default_factory=Counter)
    tokens_by_kind: Counter[str] = field(default_factory=Counter)
    tokens_by_audit: dict[str, Counter[str]] = field(default_factory=dict)


def _missing_tokens(job: Job) -> MissingTokens:
    """Count the items without stored scores, and the tokens that each audit adds."""
    names = [SHARED, *(audit.name for audit in job.request.audits)]
    missing = MissingTokens(tokens_by_audit={name: Counter() for name in names})

    counted: set[str] = set()  # store keys
    for checkpoint in job.opening.described:
        if not job.lineup.scores(checkpoint.name):
            continue
        for scoring_pass, items in job.items_by_pass(checkpoint).items():
            kind = scoring_pass.kind
            missing.items_by_kind[kind] += 0
            audits_by_store_key = job.audits_by_store_key(checkpoint, items)
            for store_key, item in job.store.left(items).items():
                # Two checkpoints of one model share scores. Without a model's id, the
                # keys of different models may be the same.
                if checkpoint.model_id and store_key in counted:
                    continue
                counted.add(store_key)

                audits = audits_by_store_key[store_key]
                name = audits.pop() if len(audits) == 1 else SHARED
                missing.items_by_kind[kind] += 1
                missing.tokens_by_kind[kind] += item.n_tokens
                missing.tokens_by_audit[name][kind] += item.n_tokens
    return missing


def _pass_records(
    missing: MissingTokens, seconds_per_token: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return the missing items of each kind of pass, with an estimate in seconds."""
    records = []
    for kind, n_items in missing.items_by_kind.items():
        cost = _cost({kind: missing.tokens_by_kind[kind]}, seconds_per_token)
        records.append({"pass": kind, "items": n_items, **cost})
    return records


def _cost(
    tokens_by_kind: Mapping[str, int], seconds_per_token: Mapping[str, float]
) -> dict[str, float]:
    """Return the sum of tokens of some kinds of pass, and an estimate in seconds."""
    seconds = 0.0
    for kind, n_tokens in tokens_by_kind.items():
        # A kind whose scores are all stored was not timed.
        seconds += n_tokens * seconds_per_token.get(kind, 0.0)
    return {"tokens": sum(tokens_by_kind.values()), "seconds": round(seconds, 2)}


def _time_passes(job: Job, unscored: Unscored) -> PassTiming:
    """Load one module, and time some items of each kind of pass on it.

    If everything is stored, no module is loaded, and all times are 0.
    """
    from spark_audit.scoring.score import score

    # Of several passes of one kind, such as noise at several scales, the last is timed.
    samples = {}
    for (_, scoring_pass), items in unscored.items():
        if items:
            samples[scoring_pass.kind] = (scoring_pass, items)
    if not samples:
        return PassTiming({}, 0.0)

    # One checkpoint of the last group stands for all: each group loads one module.
    n_groups = len(job.opening.groups)
    with job.clock("loading"):
        loaded = next(iter(job.opening.open(n_groups - 1)))

    seconds_per_token: dict[str, float] = {}
    for kind, (scoring_pass, items) in samples.items():
        timed = _items_to_time(items)

        # A first call, which is not timed, does what is only done once.
        score(loaded, timed[:1], passes=[scoring_pass])
        with job.clock(kind):
            score(
                loaded, timed, passes=[scoring_pass], batch_size=job.request.batch_size
            )
        seconds_per_token[kind] = job.clock[kind] / sum(item.n_tokens for item in timed)
    job.opening.release()
    return PassTiming(seconds_per_token, job.clock["loading"] * n_groups)


def _items_to_time(items: Sequence[AnyItem]) -> list[AnyItem]:
    """Return items of every length, together about :data:`TIMED_TOKENS` tokens."""
    mean_tokens = sum(item.n_tokens for item in items) / len(items)
    n_wanted = max(int(TIMED_TOKENS / max(mean_tokens, 1)), MIN_TIMED_ITEMS)
    n_timed = min(len(items), n_wanted)

    # Evenly spaced from the shortest to the longest.
    by_length = sorted(items, key=lambda item: item.n_tokens)
    indices = np.linspace(0, len(items) - 1, n_timed).astype(int)  # (n_timed,)
    return [by_length[index] for index in indices]


def estimate_lines(estimated: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that ``--dry-run`` prints: at most 25, of 80 columns.

    Parameters
    ----------
    estimated
        As :func:`estimate` returns it.
    """
    # The verdict: time and memory.
    n_processes = estimated["processes"]
    by_processes = f", by {n_processes} processes" if n_processes > 1 else ""
    free = estimated["free_bytes"]
    of_free = "" if free is None else f" of {memory_size(free)} that are free"
    yield f"This run takes about {duration(estimated['seconds'])}{by_processes}."
    yield f"Memory: {memory_size(estimated['memory_bytes'])}{of_free}."
    yield ""

    # Then the table: inputs, and the cost of each kind of pass.
    names = ", ".join(estimated["checkpoints"])
    short_names = names if len(names) <= 70 else f"{names[:67]}..."
    yield f"Reads    {estimated['manifest'][:40]}, {estimated['rows']:,} rows"
    yield f"with     {short_names}"
    if estimated["there"]:
        yield f"Scores   {stored_passes(*estimated['there'])}: {estimated['store']}"

    for note in estimated["notes"][:MAX_NOTES_SHOWN]:
        yield f"Note     {note}"
    n_further = len(estimated["notes"]) - MAX_NOTES_SHOWN
    if n_further > 0:
        yield f"Note     further notes: {n_further} (--json has all)"

    for record in estimated["passes"]:
        reads = f"{record['items']:,} items, {record['tokens']:,} tokens"
        yield f"{record['pass']:<10}{duration(record['seconds']):>12}  {reads}"
    yield f"{'loading':<10}{duration(estimated['loading']):>12}"
    yield from _lines_of_audits(estimated["audits"], estimated["shared"])
    yield ""

    yield "Timed on some batches of one checkpoint; saved scores count as done."
    yield "Not timed: statistics, pictures, short trainings (--relearn)."
    yield "Next: the same command without --dry-run; nothing was written."
    yield f"The report goes to {estimated['folder']}."


def _lines_of_audits(
    audits: Sequence[Mapping[str, Any]], shared: Mapping[str, float]
) -> Iterator[str]:
    """Yield what each audit adds to the others, the longest first.

    Parameters
    ----------
    audits, shared
        As in the fields of :func:`estimate`.
    """
    adding = [record for record in audits if record["tokens"]]
    adding.sort(key=lambda record: -record["seconds"])
    parts = []
    for record in adding[:MAX_AUDITS_SHOWN]:
        parts.append(f"{record['audit']} {_cost_in_words(record)}")
    n_further = len(adding) - MAX_AUDITS_SHOWN
    if n_further > 0:
        parts.append(f"further audits: {n_further} (--json has all)")
    if shared["tokens"]:
        parts.append(f"what several audits need {_cost_in_words(shared)}")
    if len(audits) > 1 and parts:
        yield from textwrap.wrap(
            "; ".join(parts),
            LINE_WIDTH,
            initial_indent="Adds     ",
            subsequent_indent=" " * 9,
        )


def _cost_in_words(cost: Mapping[str, Any]) -> str:
    """Return the time and the tokens of a cost, such as ``42 s (1,000 tokens)``."""
    return f"{duration(cost['seconds'])} ({cost['tokens']:,} tokens)"


def stored_passes(n_whole: int, n_passes: int, n_in_part: int = 0) -> str:
    """Return the number of stored passes, in words."""
    words = f"{n_whole} of {n_passes} passes"
    if n_in_part:
        words += f", and parts of {n_in_part} more,"
    return words


def duration(seconds: float) -> str:
    """Return a duration in seconds as people say it: in s, min, h or days."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"

    hours = seconds / 3600
    if hours < 48:
        return f"{hours:.1f} h"
    return f"{hours / 24:.0f} days"
