"""The errors a user can cause: what was wrong, where, what to do; the end of memory.

Every error is one line. The command line prints it without a traceback and leaves
with the class's ``exit_code``; a message never holds text of an example.
"""

from __future__ import annotations

import errno
import functools
import re
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

T = TypeVar("T")

MAX_ERROR_CHARACTERS = 160
"""Characters of somebody else's error that a line of ours repeats, at most."""


def visible(text: str, *, keep: str = "") -> str:
    r"""Return a text with invisible characters written out: ``\x1b``, ``\u202e``.

    Names, notes and tensor names may be somebody else's: control characters would
    steer a terminal, others turn the direction of what follows.

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
    """Return a text without the ``user:password`` of addresses: messages go to logs."""
    return re.sub(r"(:/+)\S*@", r"\1***@", text)


def shown(name: object, most: int = 200) -> str:
    """Return a name from somebody else's file, short and in one line."""
    return visible(str(name)[:most])


def first_line(error: BaseException) -> str:
    """Return the first line of somebody else's error, shortened."""
    line = str(error).split("\n", 1)[0]
    text = " ".join(line.split())
    if len(text) > MAX_ERROR_CHARACTERS:
        text = text[: MAX_ERROR_CHARACTERS - 3] + "..."
    return shown(text)


def one_line(error: BaseException) -> str:
    """Return the class of somebody else's error with its first line."""
    text = first_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def choose(given: str, known: Iterable[str]) -> str:
    """Return advice for a name that is none of the known ones, the nearest first."""
    names = [str(name) for name in known]
    near = get_close_matches(given, names, n=1, cutoff=0.66)
    first = f"did you mean {near[0]!r}? " if near else ""
    return f"{first}choose one of: {', '.join(names)}"


def panicked(error: BaseException) -> bool:
    """Return whether an error is a panic of a library in Rust.

    It is no ``Exception``, so that ``except Exception`` does not catch it, and its
    class cannot be imported.
    """
    return type(error).__name__ == "PanicException"


class SparkError(Exception):
    """Base of the family.

    Parameters
    ----------
    what
        What was wrong, in one sentence without a full stop.
    where
        File, line, field, option or tensor it was found in.
    fix
        What the user can do.
    """

    exit_code: ClassVar[int] = 70

    def __init__(
        self, what: str, *, where: str | None = None, fix: str | None = None
    ) -> None:
        self.what = what
        self.where = where
        self.fix = fix

        message = f"{where}: {what}" if where else what
        if fix:
            message += f"; {fix}"
        super().__init__(visible(masked(message), keep="\n"))

    def __reduce__(self) -> tuple[object, ...]:
        """Say how to unpickle it: exceptions know no arguments by keyword."""
        again = functools.partial(type(self), where=self.where, fix=self.fix)
        return again, (self.what,)


@contextmanager
def at(where: str) -> Iterator[None]:
    """Name the place in errors of the family that name none."""
    try:
        yield
    except SparkError as error:
        if error.where is not None:
            raise
        raise type(error)(error.what, where=where, fix=error.fix) from error


class InputError(SparkError):
    """Usage, data or manifest is wrong (exit 2)."""

    exit_code = 2


class CheckpointError(SparkError):
    """A checkpoint cannot be loaded as what it claims to be (exit 3)."""

    exit_code = 3


class OutputError(SparkError):
    """A file or folder cannot be read or written (exit 4)."""

    exit_code = 4


class IncompleteError(SparkError):
    """Work was left unfinished and the same command resumes it (exit 5)."""

    exit_code = 5


class NotEstimableError(SparkError, ValueError):
    """A statistic has no value on this input; audits turn it into a row that says so.

    It never reaches the command line: an audit reports ``not_estimable`` with the
    reason instead.
    """

    exit_code = 2


def one_of(value: T, where: str, known: Collection[object]) -> T:
    """Return the value if it is a known one.

    Raises
    ------
    InputError
        With the known values, the nearest first; ``None`` among them is not listed.
    """
    if value not in known:
        names = [str(name) for name in known if name is not None]
        fix = choose(str(value), names)
        raise InputError(f"{value!r} is unknown", where=where, fix=fix)
    return value


_OUT_OF_MEMORY_MESSAGE = re.compile(
    r"out of memory|(cannot|can't|could not|failed to|unable to) allocate( \S+)? memory"
    r"|not enough memory|unable to mmap|bad_alloc|failed to map segment"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_NOT_SUPPORTED|PT_DEVMEM Allocation"
    r"|mha_graph\.execute",
    re.IGNORECASE,
)
"""Words for the end of memory: of torch, CUDA, compiled libraries and the loader."""

_MEMINFO = Path("/proc/meminfo")
"""Linux's account of the machine's memory."""

_GROUP = Path("/sys/fs/cgroup")
"""Linux's account of this container's memory."""

_TLS_BLOCK = "static TLS block"
"""The loader's own store of a fixed size, however much memory there is."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or one that it was raised from, is the end of memory."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if _says_out_of_memory(cause):
            return True
        # A chain of errors may be a circle.
        seen.add(id(cause))
        context = None if cause.__suppress_context__ else cause.__context__
        cause = cause.__cause__ or context
    return False


def _says_out_of_memory(error: BaseException) -> bool:
    """Return whether one error says that memory has ended.

    numpy's and Arrow's are ``MemoryError``, torch's has a class of its own, others say
    it in words only: torch on a CPU, compiled libraries, and what cannot be imported.
    """
    class_name = type(error).__name__
    if isinstance(error, MemoryError) or class_name == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True

    text = str(error)
    may_say_so = isinstance(error, RuntimeError | ImportError | OSError)
    if not may_say_so and class_name != "SafetensorError":
        return False
    has_words = _OUT_OF_MEMORY_MESSAGE.search(text) is not None
    return has_words and _TLS_BLOCK not in text


def memory_size(n_bytes: float) -> str:
    """Return a size in the unit that fits it, never as none.

    >>> [memory_size(n) for n in (0, 151_168, 4e7, 9.9e8, 3.04e9)]
    ['1 kB', '151 kB', '40 MB', '990 MB', '3.0 GB']
    """
    if n_bytes >= 1e9:
        return f"{n_bytes / 1e9:,.1f} GB"
    if n_bytes >= 1e6:
        return f"{n_bytes / 1e6:.0f} MB"
    return f"{max(n_bytes / 1e3, 1):.0f} kB"


def free_bytes() -> int | None:
    """Return the bytes that can be taken here without swapping; ``None``: not known.

    Those of the machine, or of the container where that has less.
    """
    limits = []
    # Not Linux, or no container, or one without a bound: what is known then counts.
    with suppress(OSError, ValueError, KeyError):
        fields = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        limits.append(int(fields["MemAvailable"].split()[0]) * 1024)

        bound = int((_GROUP / "memory.max").read_text())
        used = int((_GROUP / "memory.current").read_text())
        # Files in the cache count as used, and are given up when memory is short.
        words = (_GROUP / "memory.stat").read_text().split()
        cached = int(words[words.index("inactive_file") + 1])
        limits.append(max(bound - used + cached, 0))
    return min(limits, default=None)
