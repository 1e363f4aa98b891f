"""Messages of Arrow: what they decode to, by what is written before each buffer."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_audit.data.data_files import check_decoded

if TYPE_CHECKING:
    import pyarrow as pa

ARROW = b"ARROW1"
"""What an Arrow file begins and ends with; a stream does not."""

_STREAM_START = 8
"""Where the messages of an Arrow file begin, behind its magic."""


def open_messages(buffer: pa.Buffer, *, is_file: bool) -> pa.RecordBatchReader:
    """Open the stream of messages in a buffer, which an Arrow file holds, too.

    The index at a file's end is not used: it may name other bytes than were checked.
    """
    import pyarrow as pa

    return pa.ipc.open_stream(buffer[_STREAM_START:] if is_file else buffer)


def check_messages(buffer: pa.Buffer, *, size: int, place: str, is_file: bool) -> None:
    """Refuse Arrow whose compressed buffers decode to too much, before it is decoded.

    Raises
    ------
    InputError
        If they do.
    pyarrow.ArrowException, ValueError, struct.error
        If it is no Arrow.
    """
    import pyarrow as pa

    if is_file and buffer[-len(ARROW) :].to_pybytes() != ARROW:
        raise ValueError("its end is missing")
    n_bytes = 0
    stream = buffer[_STREAM_START:] if is_file else buffer
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(stream)):
        if message.type in ("record batch", "dictionary"):
            n_bytes += _decoded_bytes(message)
            check_decoded(n_bytes, size=size, place=place)


def _decoded_bytes(message: pa.Message) -> int:
    """Bytes that the buffers of a message decode to, by what is written before each."""
    head = _Flat(message.metadata.to_pybytes())
    batch = head.table(head.root(), 2)
    if message.type == "dictionary":
        batch = head.table(batch, 1)
    body = message.body
    if head.field(batch, 3) is None:  # not compressed
        return int(body.size)

    n_bytes = 0
    for offset, length in head.pairs(batch, 2):
        if length >= 8:
            (decoded,) = struct.unpack("<q", body[offset : offset + 8].to_pybytes())
            n_bytes += length if decoded == -1 else decoded
            if decoded < -1:
                raise ValueError("a buffer of negative length")
    return n_bytes


class _Flat:
    """The few of FlatBuffers' structures that a message's head needs."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def root(self) -> int:
        return self._number("<I", 0)

    def field(self, table: int, index: int) -> int | None:
        """Where a field of a table stands; ``None`` if it is left out."""
        vtable = table - self._number("<i", table)
        at = 4 + 2 * index
        if at >= self._number("<H", vtable):
            return None
        offset = self._number("<H", vtable + at)
        return table + offset if offset else None

    def table(self, table: int, index: int) -> int:
        """The table that a field refers to."""
        place = self.field(table, index)
        if place is None:
            raise ValueError("a message without a head")
        return place + self._number("<I", place)

    def pairs(self, table: int, index: int) -> Iterator[tuple[int, int]]:
        """The pairs of 64-bit numbers in the vector that a field refers to."""
        vector = self.table(table, index)
        for i in range(self._number("<I", vector)):
            at = vector + 4 + 16 * i
            yield self._number("<q", at), self._number("<q", at + 8)

    def _number(self, form: str, at: int) -> int:
        return int(struct.unpack_from(form, self._raw, at)[0])
