"""Runs and relearning as tests ask for them: on the CPU, by the requests' fields."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spark_audit.data.examples import Example, Span, write_examples
from spark_train.training_request import RelearnRequest, StudentLoading, TrainRequest

WORDS = "service food cold good fine rate raised basis points news read again".split()
NAMES = ("Maria Jones", "John Smith", "Maria Smith")
OPENING = ("dtype", "tokenizer", "revision", "trust_remote_code", "lora_alpha")


def asked(kind: Callable[..., Any], fields: dict[str, Any]) -> tuple[Any, Any]:
    """The request of some fields, and what else was given."""
    fields = {"device": "cpu", **fields}
    fields |= fields.pop("loading", {})
    beside = {name: fields.pop(name) for name in ("progress", "note") if name in fields}
    opening = {n: fields.pop(n) for n in ("device", *OPENING) if n in fields}
    return kind(loading=StudentLoading(**opening), **fields), beside


class Outcome(NamedTuple):
    """The folder of a run, and its record."""

    folder: Path
    record: Any


def train(**fields: Any) -> Outcome:
    """A run in this process, by default over the tasks of :func:`write_stream`."""
    from spark_train.training_run import train

    request, beside = asked(TrainRequest, {"order": "yelp,fomc", **fields})
    return Outcome(request.output, train(request, **beside))


def lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``: steps, and readings of probes."""
    text = (folder / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def steps(folder: Path) -> list[dict[str, Any]]:
    """The lines of steps."""
    return [line for line in lines(folder) if "probe" not in line]


def probes(folder: Path) -> list[dict[str, Any]]:
    """The lines of probes."""
    return [line for line in lines(folder) if "probe" in line]


def left(folder: Path) -> dict[str, str]:
    """Hash of everything that a run leaves, but for its record of times."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.json"
    }


class Killed(BaseException):
    """Stands for a process that ends at once."""


def relearn(**fields: Any) -> Any:
    from spark_train.relearn import relearn

    request, beside = asked(RelearnRequest, fields)
    return relearn(request, **beside)


def write_stream(
    path: Path,
    *,
    tasks: tuple[str, ...] = ("yelp", "fomc"),
    train: int = 7,
    test: int = 4,
    pii: bool = True,
    seed: int = 0,
) -> Path:
    """``make_stream(path, tasks=("yelp", "fomc"), train=7, test=4, pii=True, seed=0)``.

    Writes JSON lines: rows of a few words, in most of them a name and a phone number
    that are annotated, with one of two labels; returns the file.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for task in tasks:
        for i in range(train + test):
            words = " ".join(rng.choice(WORDS, int(rng.integers(2, 8))))
            prompt = f"Text: {words}"
            spans = []
            if pii and i % 3 < 2:
                name = NAMES[int(rng.integers(len(NAMES)))]
                phone = f"555-{int(rng.integers(10**4)):04d}"
                prompt += " said "
                for kind, value in (("NAME", name), ("PHONE", phone)):
                    spans.append(Span(len(prompt), len(prompt) + len(value), kind))
                    prompt += f"{value} "
            rows.append(
                Example(
                    id=f"{task}-{i:02d}",
                    task=task,
                    prompt=f"{prompt.strip()}.\nLabel:",
                    response=(" positive", " negative")[int(rng.integers(2))],
                    split="train" if i < train else "test",
                    source_id=f"{task}-{i}",
                    spans=tuple(spans),
                )
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_examples(path, rows)
    return path
