"""Data files as bytes: compressed ones decoded, other encodings made UTF-8.

What a file decodes to is bounded by its size, so that a small one cannot fill a disk.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from encodings.aliases import aliases
from pathlib import Path
from typing import IO, TYPE_CHECKING

from spark_audit.data import file_kinds
from spark_audit.errors import InputError, OutputError
from spark_audit.files import data_bytes, open_regular
from spark_audit.wrong_paths import no_such_path

if TYPE_CHECKING:
    import pyarrow as pa

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
COMPRESSED = (".gz", ".zst")
"""Endings of compressed files that are read."""
FREE_BYTES = 1 << 28
"""So much may any file decode to."""
MOST_TIMES = 200
"""A file may decode to so many times its size, or to :data:`FREE_BYTES`."""
CHUNK_BYTES = 1 << 20
_ENCODING_OF_MARK = {
    # In this order: the mark of UTF-32 begins with that of UTF-16.
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_ENCODING_OF_ZEROS: dict[tuple[bool, ...], str] = {
    # Which of the first bytes are zero where a file begins with letters of ASCII.
    (False, True, True, True): "utf-32-le",
    (True, True, True, False): "utf-32-be",
    (False, True, False, True): "utf-16-le",
    (True, False, True, False): "utf-16-be",
}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise ``InputError`` for a file that is not there, else ``OutputError``."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise no_such_path(path) from error
    except OSError as error:
        raise OutputError(
            f"cannot be read ({error.strerror or error})", where=str(path)
        ) from error


def most_decoded(size: int) -> int:
    """Return how many bytes a file of a size may decode to."""
    return max(FREE_BYTES, MOST_TIMES * size)


def check_decoded(n_bytes: int, *, size: int, place: str) -> None:
    """Refuse a file of a size that decodes to so many bytes.

    Raises
    ------
    InputError
        If it is more than :func:`most_decoded`.
    """
    if n_bytes > most_decoded(size):
        raise InputError(
            f"decodes to more than {MOST_TIMES} times its size",
            where=place,
            fix="decode it yourself, if you trust it, and give the decoded file",
        )


def check_encoding(name: str | None) -> None:
    """Refuse an encoding that Python does not know.

    Raises
    ------
    InputError
        With the nearest name.
    """
    if name is None:
        return

    try:
        # An encoding that is not for text, such as base64, gives a LookupError.
        b" ".decode(name)
    except UnicodeError:
        return  # the encoding exists: a blank is half a letter of UTF-16
    except (LookupError, ValueError) as error:
        raise InputError(
            "is not a known encoding",
            where="option --encoding",
            fix=_encoding_advice(name),
        ) from error


def _encoding_advice(name: str) -> str:
    """Return what to give in place of an encoding that is not known."""
    # Python also has names of digits alone, of old code pages.
    names = {alias for alias in (*aliases, *aliases.values()) if not alias.isdecimal()}
    nearest = get_close_matches(name.lower().replace("-", "_"), sorted(names), n=1)
    if nearest:
        return f"did you mean {nearest[0].replace('_', '-')}?"
    return "use a name such as cp1252, latin-1, utf-16, shift_jis"


@contextmanager
def open_data(path: Path, *, encoding: str | None = None) -> Iterator[IO[bytes]]:
    """Open a file of text: decoded where it is compressed, UTF-8 where it is not.

    A byte order mark of UTF-8 is left out.

    Parameters
    ----------
    encoding
        What the text is written in; ``None``: UTF-8.

    Raises
    ------
    OutputError
        If the file cannot be read, or is damaged.
    InputError
        If it is of another kind, decodes to too much, or is not of the encoding.
    """
    with reading(path), open_regular(path, follow=True) as file:
        head = file.peek(file_kinds.HEAD_BYTES)
        file_kinds.check_kind(path, head)

        # What a file begins with counts, and not its name.
        stream: IO[bytes] = file
        if head.startswith((GZIP, ZSTD)):
            stream = io.BufferedReader(_Decoded(file, path, head))
        if encoding is not None:
            stream = io.BufferedReader(_Recoded(stream, path, encoding))

        # UTF-16 without --encoding would be an error of its first letter, or read as
        # letters with zeros between them.
        first_bytes = stream.peek(4)[:4]  # type: ignore[attr-defined]
        wide_encoding = _wide_encoding(first_bytes)
        if encoding is None and wide_encoding is not None:
            raise InputError(
                "is not UTF-8",
                where=str(path),
                fix=f"give --encoding {wide_encoding}, or save as UTF-8",
            )
        if first_bytes.startswith(codecs.BOM_UTF8):
            stream.read(len(codecs.BOM_UTF8))
        yield stream


def _wide_encoding(first_bytes: bytes) -> str | None:
    """Return the encoding of two or four bytes a letter that a file begins in.

    Parameters
    ----------
    first_bytes
        The file's first four bytes.
    """
    for mark, name in _ENCODING_OF_MARK.items():
        if first_bytes.startswith(mark):
            return name
    return _ENCODING_OF_ZEROS.get(tuple(byte == 0 for byte in first_bytes))


def read_data(path: Path, *, encoding: str | None = None) -> bytes:
    """Return all bytes of :func:`open_data`, up to what memory allows."""
    # One byte more shows that there are more.
    most_bytes = data_bytes()
    with open_data(path, encoding=encoding) as stream:
        raw = stream.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise InputError(
            f"is larger than {most_bytes / 1e6:,.0f} MB",
            where=str(path),
            fix="give it as JSON lines",
        )
    return raw


class _Decoded(io.RawIOBase):
    """The bytes that a compressed file decodes to.

    They are counted as they are read, so that no more than :func:`most_decoded` is
    ever decoded.
    """

    def __init__(self, file: IO[bytes], path: Path, head: bytes) -> None:
        self._path = path
        self._size = path.stat().st_size
        self._n_decoded = 0
        self._source: gzip.GzipFile | pa.CompressedInputStream
        if head.startswith(GZIP):
            self._source = gzip.GzipFile(fileobj=file)
        else:
            import pyarrow as pa

            self._source = pa.CompressedInputStream(file, "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            piece = self._source.read(len(buffer))
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(
                "is damaged: it cannot be decoded",
                where=str(self._path),
                fix="copy or download it again",
            ) from error

        self._n_decoded += len(piece)
        check_decoded(self._n_decoded, size=self._size, place=str(self._path))
        buffer[: len(piece)] = piece
        return len(piece)


class _Recoded(io.RawIOBase):
    """A text of another encoding as UTF-8."""

    def __init__(self, file: IO[bytes], path: Path, encoding: str) -> None:
        self._path = path
        self._encoding = encoding
        self._text = io.TextIOWrapper(file, encoding=encoding, newline="")
        # UTF-8 that was made and did not fit the buffer of the last reader.
        self._waiting = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._waiting:
            try:
                self._waiting = self._text.read(CHUNK_BYTES).encode()
            except UnicodeError as error:
                raise InputError(
                    f"is not {self._encoding}",
                    where=str(self._path),
                    fix="give the right --encoding",
                ) from error

        piece = self._waiting[: len(buffer)]
        self._waiting = self._waiting[len(piece) :]
        buffer[: len(piece)] = piece
        return len(piece)
