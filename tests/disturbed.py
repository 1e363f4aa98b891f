"""Commands that are disturbed, how they end, and what they leave."""

import hashlib
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from spark_audit.data.examples import Example, Span

SEED = int(os.environ.get("FAULTS_SEED", "0"))
"""Another one tries other operations and times."""
KILLS = int(os.environ.get("FAULTS_KILLS", "6"))
"""How often a command is interrupted at a random time."""
NAMES = ("Maria Jones", "John Smith", "Peter Brown", "Alice Green", "Robert White")
WORDS = "the service food good cold said customer paid dollars rate news".split()


def rows(task: str, *, seed: int = 0, count: int = 16) -> list[Example]:
    """Rows with a name each; every fourth is a test row."""
    rng = np.random.default_rng(seed)
    rows_made = []
    for i in range(count):
        before, after = (" ".join(rng.choice(WORDS, 6)) for _ in range(2))
        name = NAMES[i % len(NAMES)]
        prompt = f"Text: {before}. Contact {name} today. {after}.\nLabel:"
        start = prompt.index(name)
        rows_made.append(
            Example(
                id=f"{task}-{i:02d}",
                task=task,
                prompt=prompt,
                response=" good" if i % 2 else " cold",
                split="test" if i % 4 == 3 else "train",
                source_id=f"{task}-{i // 2:02d}",
                spans=(Span(start, start + len(name), "NAME"),),
            )
        )
    return rows_made


@dataclass(frozen=True)
class Ended:
    """How a command ended; ``operations`` it made if it was not killed."""

    code: int
    out: str
    err: str
    operations: int


class Commands:
    """Runs commands in folders, each in a fork of one interpreter."""

    def __init__(self, zygote: subprocess.Popen[str], folder: Path) -> None:
        self._zygote, self._folder = zygote, folder
        self._numbers = itertools.count()

    def _ask(self, **order: Any) -> int:
        self._zygote.stdin.write(json.dumps(order) + "\n")
        self._zygote.stdin.flush()
        return int(self._zygote.stdout.readline())

    def begin(
        self,
        folder: Path,
        command: str,
        *,
        at: int | None = None,
        largest: int = 0,
    ) -> Callable[[], Ended]:
        """Begin a command; what is returned waits for its end (``.pid``: its number).

        Parameters
        ----------
        at
            The file operation at which it is killed.
        largest
            Bytes that a file may have, 0 for any number.
        """
        log = self._folder / str(next(self._numbers))
        pid = self._ask(
            folder=str(folder),
            command=command.split(),
            at=at,
            largest=largest,
            out=f"{log}.out",
            err=f"{log}.err",
        )

        def wait() -> Ended:
            code = self._ask(wait=pid)
            counted = Path(f"{log}.out.count")
            outputs = [Path(f"{log}.{n}").read_text() for n in ("out", "err")]
            count = int(counted.read_text()) if counted.exists() else 0
            return Ended(code, *outputs, count)

        wait.pid = pid  # type: ignore[attr-defined]
        return wait

    def run(self, folder: Path, command: str, **how: Any) -> Ended:
        """Run one to its end, which is no defect."""
        ended = self.begin(folder, command, **how)()
        assert "Traceback" not in ended.err, ended.err
        assert ended.code != 70, ended.err
        return ended


TRAIN = (
    "spark-train run --method spark --base base --data data --order yelp,fomc "
    "--device cpu -o run --quiet --set epochs=1 batch_size=6 lr=0.02 lora.r=4 "
    "ptpc.steps=2 save_every=2"
)
AUDIT = (
    "spark-audit {} --ckpt ours=lora --base base --manifest m.json -o report --quiet "
    "--format csv"
)
LINES = {
    "import": "spark-audit data import raw --task t --template {text} "
    "--map response=label -o t.jsonl",
    "inject": "spark-audit data inject data -o injected --canaries 2 --doses 1,2",
    "build": "spark-audit manifest build --base base --data data/yelp.jsonl "
    "-o built/m.json --caliper 2 --device cpu --quiet",
    "audit": AUDIT.format("nll"),
    "all": AUDIT.format("all") + " --placebo-draws 0 --jobs 1",
    "render": "spark-audit report report --format md,html,csv,latex",
    "compare": "spark-audit compare report other -o both",
    "train": TRAIN,
    "relearn": "spark-train relearn lora --base base --data plain.jsonl "
    "-o again --steps 2 --batch-size 2 --device cpu --quiet",
    "score": "spark-train score data/yelp.jsonl --base base --device cpu --quiet",
}
"""Command lines, in the folder of the fixture ``workshop``."""


def left(folder: Path) -> dict[str, Any]:
    """Everything in a folder; of scores the rows, however they fell into shards.

    A kill may leave the empty file of a lock, which locks nothing.
    """
    files: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".lock" and not path.stat().st_size:
            continue
        if path.is_dir():
            files[name] = "folder"
        elif path.parent.name == "store" and path.suffix == ".parquet":
            shelf = files.setdefault(str(path.parent.relative_to(folder)) + "/*", {})
            shelf |= part(path)
        elif path.name == "run.json":
            record = json.loads(path.read_text())
            # What tells of each start, and the hash of all.
            files[name] = record | {"starts": None, "seal": None}
        elif path.name == "inputs.json":
            files[name] = "sizes, times and inodes of this folder"
        elif path.name == "report.json":
            report = json.loads(path.read_text())
            files[name] = report | {"manifest": report["manifest"] | {"key": None}}
        else:
            mode = path.stat().st_mode & 0o777
            files[name] = oct(mode), hashlib.sha256(path.read_bytes()).hexdigest()
    return files


def part(path: Path) -> dict[str, Any]:
    return {row.pop("key"): row for row in pq.read_table(path).to_pylist()}


def kill(ended: Callable[[], Ended], sent: signal.Signals) -> None:
    os.kill(ended.pid, sent)  # type: ignore[attr-defined]
