"""The errors a user can cause: what was wrong, where, what to do; the end of memory.

Every error is one line. The command line prints it without a traceback and leaves
with the class's ``exit_code``; a message never holds text of an example.
"""

from __future__ import annotations

import errno
import functools
import re
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

T = TypeVar("T")


def visible(text: str, *, keep: str = "") -> str:
    r"""Text whose invisible characters are written out, as ``\x1b`` or ``\u202e``.

    Names, notes and tensor names may be somebody else's: control characters would
    steer a terminal, others turn the direction of what follows.

    Parameters
    ----------
    keep
        Characters that stay as they are, such as a newline of our own.
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in keep
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def masked(text: str) -> str:
    """Text without the ``user:password`` of addresses: what is said stands in logs."""
    return re.sub(r"(:/+)\S*@", r"\1***@", text)


def shown(name: object, most: int = 200) -> str:
    """A name that stands in somebody else's file, short and in one line."""
    return visible(str(name)[:most])


def first_line(error: BaseException) -> str:
    """The first line of somebody else's error, short, in one line."""
    text = " ".join(str(error).split("\n", 1)[0].split())
    return shown(text if len(text) <= 160 else text[:157] + "...")


def one_line(error: BaseException) -> str:
    """The class of somebody else's error with its first line."""
    text = first_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def choose(given: str, known: Iterable[str]) -> str:
    """What to do where a name is none of the known ones; the nearest comes first."""
    names = [str(name) for name in known]
    near = get_close_matches(given, names, n=1, cutoff=0.66)
    first = f"did you mean {near[0]!r}? " if near else ""
    return f"{first}choose one of: {', '.join(names)}"


def panicked(error: BaseException) -> bool:
    """Whether a library in Rust has failed: no ``Exception``, so that none catches it.

    Its class cannot be imported.
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
        self.what, self.where, self.fix = what, where, fix
        head = f"{where}: {what}" if where else what
        message = masked(f"{head}; {fix}" if fix else head)
        super().__init__(visible(message, keep="\n"))

    def __reduce__(self) -> tuple[object, ...]:
        return (
            functools.partial(type(self), where=self.where, fix=self.fix),
            (self.what,),
        )


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
_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
# The loader's own store of a fixed size, however much memory there is.
_TLS_BLOCK = "static TLS block"


def out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that it was raised from, says that memory has ended.

    numpy's and Arrow's are ``MemoryError``, torch's has a class of its own, others say
    it in words only: torch on a CPU, compiled libraries, and what cannot be imported.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        kind, text = type(cause).__name__, str(cause)
        in_words = isinstance(cause, RuntimeError | ImportError | OSError)
        if (
            isinstance(cause, MemoryError)
            or kind == "OutOfMemoryError"
            or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM)
            or (
                (in_words or kind == "SafetensorError")
                and _OUT_OF_MEMORY_MESSAGE.search(text)
            )
            and _TLS_BLOCK not in text
        ):
            return True
        cause = cause.__cause__ or (
            None if cause.__suppress_context__ else cause.__context__
        )
    return False


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
    """Memory that can be taken here without swapping; ``None`` where it is not told.

    That of the machine, or of the container where that has less.
    """
    limits = []
    try:
        fields = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        limits.append(int(fields["MemAvailable"].split()[0]) * 1024)
        most = int((_GROUP / "memory.max").read_text())
        kept = (_GROUP / "memory.stat").read_text().split()
        cached = int(kept[kept.index("inactive_file") + 1])
        used = int((_GROUP / "memory.current").read_text())
        limits.append(max(most - used + cached, 0))
    except (OSError, ValueError, KeyError):
        pass  # not Linux, or no container, or one without a bound
    return min(limits, default=None)
