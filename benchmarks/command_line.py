"""The command lines of the benchmarks: every mistake is one line, not a traceback.

A benchmark reads its options with :class:`OneLineParser` and the types below, and ends
its file with ``run_benchmark(main)``. Exit codes are those of ``spark-audit``.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from spark_audit.errors import InputError, OutputError, SparkError
from spark_audit.spoken_options import for_command_line

INTERRUPTED_EXIT_CODE = 130
"""Exit code of an interrupt: 128 plus the number of SIGINT, as in shells."""


class OneLineParser(argparse.ArgumentParser):
    """A parser that prints a mistake as one line, and exits with 2."""

    def error(self, message: str) -> NoReturn:
        """Print a mistake without the usage, and exit."""
        message = message.removeprefix("argument ")
        message = message.replace("the following arguments are required:", "give")
        program = (
            self.prog if self.prog.startswith("python ") else f"python {self.prog}"
        )
        self.exit(InputError.exit_code, f"error: {message}; see {program} --help\n")


def benchmark_parser(description: str | None, *, file: str) -> OneLineParser:
    """Return the parser of a benchmark, whose ``--help`` keeps the lines of its text.

    Parameters
    ----------
    file
        The benchmark's ``__file__``.
    """
    return OneLineParser(
        prog=f"python benchmarks/{Path(file).name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def whole_number(text: str) -> int:
    """Return the whole number that a text writes, 0 or more."""
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number: write one, such as 3"
        )
    return int(text)


def positive_number(text: str) -> int:
    """Return the whole number that a text writes, 1 or more."""
    number = whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


def positive_float(text: str) -> float:
    """Return the number above 0 that a text writes."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def seed_list(text: str) -> list[int]:
    """Return the seeds of ``FIRST:END``, without END, or of ``N,N,...``.

    Examples
    --------
    >>> seed_list("2:5"), seed_list("7,"), seed_list("1,4")
    ([2, 3, 4], [7], [1, 4])
    """
    if match := re.fullmatch(r"(\d+):(\d+)", text, re.ASCII):
        seeds = list(range(int(match[1]), int(match[2])))
    elif re.fullmatch(r"\d+(,\d+)*,?", text, re.ASCII):
        seeds = [int(seed) for seed in text.split(",") if seed]
    else:
        seeds = []
    if not seeds:
        raise argparse.ArgumentTypeError(
            f"{text!r} names no seeds: write FIRST:END, such as 0:20, or N,N"
        )
    return seeds


def regular_expression(text: str) -> re.Pattern[str]:
    """Return a compiled regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a regular expression: {error}"
        ) from None


def check_files(option: str, *paths: Path | None) -> None:
    """Refuse a file that an option names and that is not there; None: none is named.

    Raises
    ------
    InputError
        If there is no such file.
    """
    for path in paths:
        if path is not None and not path.is_file():
            raise InputError(
                "there is no such file", where=f"{option} {path}", fix="check the path"
            )


def check_folder(option: str, path: Path | None) -> None:
    """Refuse a folder that an option names and that is not there; None: none is named.

    Raises
    ------
    InputError
        If there is no such folder.
    """
    if path is not None and not path.is_dir():
        raise InputError(
            "there is no such folder", where=f"{option} {path}", fix="check the path"
        )


def check_model(option: str, path: Path) -> None:
    """Refuse what is not the folder of a model.

    Raises
    ------
    InputError
        If it has no ``config.json``.
    """
    if not (path / "config.json").is_file():
        raise InputError(
            "is not the folder of a model",
            where=f"{option} {path}",
            fix="give a folder with config.json",
        )


def check_finished_lines(path: Path) -> None:
    """Refuse to print the table of a file that is not there.

    Raises
    ------
    InputError
        If there is no such file.
    """
    if not path.is_file():
        raise InputError(
            "there is no such file",
            where=f"--out {path}",
            fix="leave out --table to make it, or give the file of a finished run",
        )


def run_spark_audit(*words: object) -> str:
    """Run ``spark-audit`` in a process of its own, and return what it prints.

    Its messages go to stderr.

    Raises
    ------
    SparkError
        If it fails.
    """
    command = [sys.executable, "-m", "spark_audit", *map(str, words)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if process.returncode != 0:
        raise SparkError(
            f"ended with exit code {process.returncode}, as it says above",
            where=f"spark-audit {words[0]}",
        )
    return process.stdout


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent: the initializer of a pool's processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def process_pool(n_processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of fresh processes, which an interrupt ends at once."""
    pool = ProcessPoolExecutor(
        n_processes,
        multiprocessing.get_context("spawn"),
        initializer=ignore_interrupts,
    )
    try:
        yield pool
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def run_benchmark(main: Callable[[], int | None], *, resumes: bool = False) -> NoReturn:
    """Run a benchmark and exit, with one line for each error that a user can cause.

    Parameters
    ----------
    resumes
        Whether the same command goes on where it was interrupted.
    """
    sys.exit(exit_code_of(main, resumes=resumes))


def exit_code_of(main: Callable[[], int | None], *, resumes: bool = False) -> int:
    """Run a benchmark, print errors that a user can cause, and return the exit code."""
    try:
        with for_command_line():
            try:
                exit_code = main() or 0
                sys.stdout.flush()
                return exit_code
            except SparkError as error:
                return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        advice = "resumes" if resumes else "starts again"
        print(f"interrupted; the same command {advice}", file=sys.stderr)
        return INTERRUPTED_EXIT_CODE
    except BrokenPipeError:
        # The reader of our output has ended, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        return _fail(
            f"the package {package} is missing: see benchmarks/README.md for what to "
            "install",
            InputError.exit_code,
        )
    except OSError as error:
        exit_code = OutputError.exit_code
        if isinstance(error, FileNotFoundError):
            exit_code = InputError.exit_code
        return _fail(f"{error.filename or 'I/O'}: {error.strerror or error}", exit_code)


def _fail(message: str, exit_code: int) -> int:
    """Print an error on stderr, and return its exit code."""
    print(f"error: {message}", file=sys.stderr)
    return exit_code
