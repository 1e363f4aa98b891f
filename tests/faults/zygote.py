"""One interpreter that has imported everything; each command is a fork of it.

A program, not a test: it reads orders as JSON lines. Clocks stand still and the salt is
the same, so that what an interrupted command and its second start leave is, byte by
byte, what an undisturbed one leaves.

A fork can be killed at its ``n``-th file operation below a folder: the making, renaming
or removing of a file or folder, or an ``fsync``, where only half of the bytes of a file
in the making are left.
"""

import importlib
import json
import os
import resource
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link")
STILL = ("spark_audit.clock", "spark_audit.messages", "spark_audit.scoring.store")


LINES = {"spark-audit": "spark_audit.cli.main", "spark-train": "spark_train.cli"}


# What commands import as they go, and takes long: once for all forks.
LATER = (
    "faker",
    "pyarrow.parquet",
    "tqdm.auto",
    "rich.traceback",
    "scipy.stats",
    "sklearn.linear_model",
    "spark_audit.checkpoints.detect",
    "transformers.models.llama.modeling_llama",
)


def stand_still() -> None:
    from spark_audit import provenance

    for name in LATER:
        importlib.import_module(name)

    provenance.now = lambda: "2026-01-01T00:00:00+00:00"
    clocks = ("monotonic", "perf_counter", "process_time")
    clock = SimpleNamespace(**dict.fromkeys(clocks, lambda: 0.0))
    for name in (
        *STILL,
        "spark_audit.checkpoints.open",
        "spark_audit.manifest.build",
        "spark_audit.pipeline.run",
        "spark_audit.pipeline.compare",
        "spark_audit.pipeline.verification.verify",
        "spark_audit.cli.main",
        "spark_audit.cli.show",
        "spark_audit.report.writers.pages",
        "spark_train.cli",
        "spark_train.training_run",
        "spark_train.relearn",
        "spark_train.scored_examples",
        "spark_train.training_methods.spark",
    ):
        module: Any = importlib.import_module(name)
        if name in STILL:
            assert module.time, name
            module.time = clock
    store: Any = importlib.import_module("spark_audit.scoring.store")
    store.secrets = SimpleNamespace(token_bytes=bytes)  # the salt


class Killer:
    """Counts file operations below ``folder``; at the ``at``-th the process dies."""

    def __init__(self, folder: Path, at: int | None) -> None:
        self.folder, self.at, self.count = str(folder), at, 0
        self.pid = os.getpid()
        real = os.fsync

        def fsync(handle: Any) -> None:
            number = handle if isinstance(handle, int) else handle.fileno()
            path = os.readlink(f"/proc/self/fd/{number}")
            if self.concerns(path) and self.next():
                if path.endswith(".part"):
                    os.ftruncate(number, os.fstat(number).st_size // 2)
                os.kill(self.pid, signal.SIGKILL)
            real(handle)

        os.fsync = fsync
        sys.addaudithook(self)

    def concerns(self, path: Any) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        return os.path.abspath(os.fsdecode(path)).startswith(self.folder)

    def next(self) -> bool:
        self.count += 1
        return self.count == self.at

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS or not self.concerns(arguments[0]):
            return
        writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
        if event == "open" and not arguments[2] & writing:
            return
        if self.next():
            os.kill(self.pid, signal.SIGKILL)


def begin(order: dict[str, Any]) -> None:
    """In the fork: be the command, and leave."""
    from spark_audit.terminal.interrupts import SIGNALS, start

    os.setsid()
    os.chdir(order["folder"])
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if order["largest"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["largest"],) * 2)
    killer = Killer(Path(order["folder"]), order["at"])
    program, *sys.argv[1:] = order["command"]
    module = importlib.import_module(LINES[program])

    def load() -> Any:
        # Interrupts that came before are heard now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return module.run

    code: Any = 70
    try:
        start(program, load)
    except SystemExit as error:
        code = error.code
    sys.stdout.flush()
    with open(order["out"] + ".count", "w", encoding="utf-8") as file:
        file.write(str(killer.count))
    os._exit(code)


def main() -> None:
    from spark_audit.terminal.interrupts import SIGNALS

    stand_still()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            answer = os.fork()
            if not answer:
                begin(order)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
