"""The errors that a user can cause, and the recognition of failures of memory.

Every error is one line: what was wrong, where, and what to do. The command line prints
it without a traceback and exits with the class's ``exit_code``
(``terminal/console.py``). A message never contains text of an example.

A new kind of error is a subclass of :class:`SparkError` with an exit code, which
docs/reports-and-gate.md lists.
"""

from __future__ import annotations

import errno
import functools
import re
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from spark_audit.spoken_options import as_called, place_as_called

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

T = TypeVar("T")

MIN_SIMILARITY_OF_NAMES = 0.66
"""Similarity, from 0 to 1 (``difflib``), from which a name is suggested for another."""

MAX_ERROR_CHARACTERS = 160
"""Most characters of a foreign error that a line of ours repeats."""


def visible(text: str, *, keep: str = "") -> str:
    r"""Return a text with invisible characters written out: ``\x1b``, ``\u202e``.

    Names, notes and tensor names may come from others: control characters would steer a
    terminal, and some characters reverse the direction of the text behind them.

    Parameters
    ----------
    keep
        Characters that stay as they are, such as a newline of our own.
    """
    if text.isprintable():
        return text

    characters = []
    for char in text:
        if not char.isprintable() and char not in keep:
            char = char.encode("unicode_escape").decode("ascii")
        characters.append(char)
    return "".join(characters)


def masked(text: str) -> str:
    """Return a text without ``user:password`` in addresses, for messages in logs."""
    return re.sub(r"(:/+)\S*@", r"\1***@", text)


def shown(name: object, most: int = 200) -> str:
    """Return a name from a foreign file, shortened to one line."""
    return visible(str(name)[:most])


def first_line(error: BaseException) -> str:
    """Return the first line of a foreign error, shortened."""
    line = str(error).split("\n", 1)[0]
    text = " ".join(line.split())
    if len(text) > MAX_ERROR_CHARACTERS:
        text = text[: MAX_ERROR_CHARACTERS - 3] + "..."
    return shown(text)


def one_line(error: BaseException) -> str:
    """Return the class and the first line of a foreign error."""
    text = first_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def choose(given: str, known: Iterable[str]) -> str:
    """Return advice for an unknown name: a similar name if any, and all known ones."""
    names = [str(name) for name in known]
    near = get_close_matches(given, names, n=1, cutoff=MIN_SIMILARITY_OF_NAMES)
    question = f"did you mean {near[0]!r}? " if near else ""
    return f"{question}choose one of: {', '.join(names)}"


def is_rust_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of a Rust library.

    A panic is not an ``Exception``, so ``except Exception`` does not catch it, and its
    class cannot be imported.
    """
    return type(error).__name__ == "PanicException"


class SparkError(Exception):
    """Base class of the errors that a user can cause.

    Parameters
    ----------
    what
        The problem, in one sentence without a full stop.
    where
        The file, line, field, option or tensor that has the problem.
    fix
        Advice to the user.

    Examples
    --------
    >>> try:
    ...     sa.read_report("reports/absent")
    ... except sa.SparkError as error:
    ...     print(error)
    reports/absent: there is no such file or folder; give a report folder
    """

    exit_code: ClassVar[int] = 70

    def __init__(
        self, what: str, *, where: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        """Return the line, with options as the caller writes them."""
        message = as_called(self.what)
        if self.where:
            message = f"{place_as_called(self.where)}: {message}"
        if self.fix:
            message += f"; {as_called(self.fix)}"
        return visible(masked(message), keep="\n")

    def __reduce__(self) -> tuple[object, ...]:
        """Return how to unpickle the error, which has keyword arguments.

        Errors of other processes come back as pickles.
        """
        make_error = functools.partial(type(self), where=self.where, fix=self.fix)
        return make_error, (self.what,)


@contextmanager
def at(where: str) -> Iterator[None]:
    """Add a place to errors of this family that have none."""
    try:
        yield
    except SparkError as error:
        if error.where is not None:
            raise
        raise type(error)(error.what, where=where, fix=error.fix) from error


class InputError(SparkError):
    """The usage, the data or the manifest is wrong (exit 2)."""

    exit_code = 2


class CheckpointError(SparkError):
    """A checkpoint cannot be loaded as what it claims to be (exit 3)."""

    exit_code = 3


class OutputError(SparkError):
    """A file or folder cannot be read or written (exit 4)."""

    exit_code = 4


class EndpointError(SparkError):
    """An endpoint that gives text refuses, or has changed its model (exit 4)."""

    exit_code = 4


class IncompleteError(SparkError):
    """Some work is unfinished; the same command resumes it (exit 5)."""

    exit_code = 5


class NotEstimableError(SparkError, ValueError):
    """A statistic has no value on this input; an audit reports that in a row.

    The error never reaches the command line: an audit reports ``not_estimable`` with
    the reason instead.
    """

    exit_code = 2


def one_of(value: T, where: str, known: Collection[object]) -> T:
    """Return the value if it is a known one.

    Raises
    ------
    InputError
        Lists the known values except ``None``, and suggests the most similar one.
    """
    if value not in known:
        names = [str(name) for name in known if name is not None]
        raise InputError(
            f"{value!r} is unknown", where=where, fix=choose(str(value), names)
        )
    return value


_OUT_OF_MEMORY_MESSAGE = re.compile(
    r"out of memory|(cannot|can't|could not|failed to|unable to) allocate( \S+)? memory"
    r"|not enough memory|unable to mmap|bad_alloc|failed to map segment"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_NOT_SUPPORTED|PT_DEVMEM Allocation"
    r"|mha_graph\.execute",
    re.IGNORECASE,
)
"""Messages of failures of memory: by torch, CUDA, compiled libraries and the loader."""

_MEMINFO = Path("/proc/meminfo")
"""Linux's report on the machine's memory."""

MEMORY_CGROUP = Path("/sys/fs/cgroup")
"""Linux's report on this container's memory."""

_TLS_BLOCK = "static TLS block"
"""A store of the loader with a fixed size, which can be full with any memory."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, is a failure of memory."""
    visited_ids: set[int] = set()  # a chain of errors may contain a circle
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited_ids:
        if _says_out_of_memory(cause):
            return True
        visited_ids.add(id(cause))

        # The next error is the one that Python itself would print before this one.
        context = None if cause.__suppress_context__ else cause.__context__
        cause = cause.__cause__ or context
    return False


def memory_failure(error: BaseException) -> BaseException | None:
    """Return the error if it is a failure of memory, else ``None``.

    An error of a library may quote text, token ids or scores of a row, and a traceback
    would show it. An error of ours is therefore raised from ``None``, or, where memory
    may have run out, from ``memory_failure(error)``: :func:`out_of_memory` still sees
    that, and the message of such a failure names only sizes.
    """
    return error if out_of_memory(error) else None


def _says_out_of_memory(error: BaseException) -> bool:
    """Return whether a single error is a failure of memory.

    numpy and Arrow raise ``MemoryError``, and torch has its own class. Others are
    recognised only by their message: torch on a CPU, compiled libraries, and failed
    imports.
    """
    class_name = type(error).__name__
    if isinstance(error, MemoryError) or class_name == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True

    # Classes whose messages come from the libraries; others may quote a user's words.
    is_of_libraries = isinstance(error, RuntimeError | ImportError | OSError)
    if not is_of_libraries and class_name != "SafetensorError":
        return False
    message = str(error)
    has_words = _OUT_OF_MEMORY_MESSAGE.search(message) is not None
    return has_words and _TLS_BLOCK not in message


def memory_size(n_bytes: float) -> str:
    """Return a size in a suitable unit, at least ``1 kB``.

    >>> [memory_size(n) for n in (0, 151_168, 4e7, 9.9e8, 3.04e9)]
    ['1 kB', '151 kB', '40 MB', '990 MB', '3.0 GB']
    """
    if n_bytes >= 1e9:
        return f"{n_bytes / 1e9:,.1f} GB"
    if n_bytes >= 1e6:
        return f"{n_bytes / 1e6:.0f} MB"
    return f"{max(n_bytes / 1e3, 1):.0f} kB"


def free_bytes() -> int | None:
    """Return the bytes that are available without swapping; ``None`` if unknown.

    The container's memory counts if it has less than the machine.
    """
    free = []  # bytes, of the machine and of the container
    # Without Linux there is neither. Without a container, or without a limit (the file
    # then says "max"), the machine's memory stands alone.
    with suppress(OSError, ValueError, KeyError):
        fields = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        kilobytes = int(fields["MemAvailable"].split()[0])
        free.append(kilobytes * 1024)

        limit = int((MEMORY_CGROUP / "memory.max").read_text())
        used = int((MEMORY_CGROUP / "memory.current").read_text())
        # Cached files count as used, but are released when memory runs short.
        words = (MEMORY_CGROUP / "memory.stat").read_text().split()
        cached = int(words[words.index("inactive_file") + 1])
        free.append(max(limit - used + cached, 0))
    return min(free, default=None)
