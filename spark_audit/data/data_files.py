"""Open data files as bytes: decompress them, and recode other encodings to UTF-8.

The size of a file limits what it may decode to, so that a small file cannot fill a
disk.
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
"""First bytes of a compressed file."""
COMPRESSED = (".gz", ".zst")
"""Endings of compressed files that are read."""
FREE_BYTES = 1 << 28
"""Bytes that any file may decode to, however small it is."""
MOST_TIMES = 200
"""Multiple of its size that a file may decode to, if that is above :data:`FREE_BYTES`.
"""
CHUNK_BYTES = 1 << 20
"""Characters that are recoded to UTF-8 at once."""
_ENCODING_OF_MARK = {
    # UTF-32 comes first, because its mark begins with that of UTF-16.
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_ENCODING_OF_ZEROS: dict[tuple[bool, ...], str] = {
    # Which of the first four bytes are zero if a file begins with an ASCII letter.
    (False, True, True, True): "utf-32-le",
    (True, True, True, False): "utf-32-be",
    (False, True, False, True): "utf-16-le",
    (True, False, True, False): "utf-16-be",
}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise ``InputError`` for a missing file, and ``OutputError`` for other errors."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise no_such_path(path) from error
    except OSError as error:
        raise OutputError(
            f"cannot be read ({error.strerror or error})", where=str(path)
        ) from error


def most_decoded(size: int) -> int:
    """Return the number of bytes to which a file of this size may decode."""
    return max(FREE_BYTES, MOST_TIMES * size)


def check_decoded(n_bytes: int, *, size: int, place: str) -> None:
    """Refuse a file that decodes to more bytes than its size allows.

    Raises
    ------
    InputError
        If the number of bytes is above :func:`most_decoded`.
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
        Suggests the nearest name.
    """
    if name is None:
        return

    try:
        # An encoding that is not for text, such as base64, raises LookupError.
        b" ".decode(name)
    except UnicodeError:
        return  # the encoding exists: one byte is half a UTF-16 letter
    except (LookupError, ValueError) as error:
        raise InputError(
            "is not a known encoding",
            where="option --encoding",
            fix=_encoding_advice(name),
        ) from error


def _encoding_advice(name: str) -> str:
    """Return advice on an unknown encoding."""
    # Python also knows old code pages by digits alone.
    names = {alias for alias in (*aliases, *aliases.values()) if not alias.isdecimal()}
    nearest = get_close_matches(name.lower().replace("-", "_"), sorted(names), n=1)
    if nearest:
        return f"did you mean {nearest[0].replace('_', '-')}?"
    return "use a name such as cp1252, latin-1, utf-16, shift_jis"


@contextmanager
def open_data(path: Path, *, encoding: str | None = None) -> Iterator[IO[bytes]]:
    """Open a data file as a stream of UTF-8, decompressed where needed.

    A UTF-8 byte order mark is skipped.

    Parameters
    ----------
    encoding
        Encoding of the text; ``None``: UTF-8.

    Raises
    ------
    OutputError
        If the file cannot be read, or is damaged.
    InputError
        If the file is of another kind, decodes to too much, or has another encoding.
    """
    with reading(path), open_regular(path, follow=True) as file:
        head = file.peek(file_kinds.HEAD_BYTES)
        file_kinds.check_kind(path, head)

        # The first bytes determine the kind of the file, not its name.
        stream: IO[bytes] = file
        if head.startswith((GZIP, ZSTD)):
            stream = io.BufferedReader(_Decoded(file, path, head))
        if encoding is not None:
            stream = io.BufferedReader(_Recoded(stream, path, encoding))

        # Read as UTF-8, UTF-16 would fail at its first letter, or seem to be letters
        # with zeros between them.
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
    """Return the encoding, of two or four bytes a letter, that the first bytes show.

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
    """Return all bytes of :func:`open_data`, up to a limit on memory."""
    # One byte more than the limit shows that the file is too large.
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
    """The decompressed bytes of a file.

    They are counted while they are read, so that never more than :func:`most_decoded`
    are decoded.
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

    # ``io.BufferedReader`` reads through this method; 0 bytes are the end.
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
    """A text of another encoding, read as UTF-8."""

    def __init__(self, file: IO[bytes], path: Path, encoding: str) -> None:
        self._path = path
        self._encoding = encoding
        self._text = io.TextIOWrapper(file, encoding=encoding, newline="")
        # UTF-8 bytes that did not fit into the buffer of the last call.
        self._waiting = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._waiting:
            try:
                self._waiting = self._text.read(CHUNK_BYTES).encode()
            except UnicodeError:
                raise InputError(
                    f"is not {self._encoding}",
                    where=str(self._path),
                    fix="give the right --encoding",
                ) from None

        piece = self._waiting[: len(buffer)]
        self._waiting = self._waiting[len(piece) :]
        buffer[: len(piece)] = piece
        return len(piece)
