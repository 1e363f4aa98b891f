"""Messages of Arrow: what they decode to, by what is written before each buffer.

A message is a head, in FlatBuffers' format, and a body of buffers. A compressed buffer
begins with its length when decoded, so the sum is known before anything is decoded.
"""

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

# Numbers of fields in Arrow's tables, as its Message.fbs declares them.
_MESSAGE_HEADER = 2
_DICTIONARY_DATA = 1
_BATCH_BUFFERS = 2
_BATCH_COMPRESSION = 3

_LENGTH_BYTES = 8
"""Bytes before a compressed buffer that give its decoded length."""

_NOT_COMPRESSED = -1
"""The length of a buffer that stands as it is, among compressed ones."""


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

    # Dictionaries are messages, too, and decode as batches do.
    stream = buffer[_STREAM_START:] if is_file else buffer
    n_bytes = 0
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(stream)):
        if message.type in ("record batch", "dictionary"):
            n_bytes += _decoded_bytes(message)
            check_decoded(n_bytes, size=size, place=place)


def _decoded_bytes(message: pa.Message) -> int:
    """Return the bytes that the buffers of a message decode to."""
    head = _FlatBuffer(message.metadata.to_pybytes())
    batch = head.table(head.root(), _MESSAGE_HEADER)
    if message.type == "dictionary":
        batch = head.table(batch, _DICTIONARY_DATA)

    # Without the field "compression" no buffer is compressed.
    body = message.body
    is_compressed = head.field(batch, _BATCH_COMPRESSION) is not None
    if not is_compressed:
        return int(body.size)

    n_bytes = 0
    for offset, length in head.pairs(batch, _BATCH_BUFFERS):
        if length < _LENGTH_BYTES:
            continue  # an empty buffer
        length_bytes = body[offset : offset + _LENGTH_BYTES].to_pybytes()
        (decoded_length,) = struct.unpack("<q", length_bytes)
        if decoded_length == _NOT_COMPRESSED:
            n_bytes += length
        elif decoded_length >= 0:
            n_bytes += decoded_length
        else:
            raise ValueError("a buffer of negative length")
    return n_bytes


class _FlatBuffer:
    """The few of FlatBuffers' structures that a message's head needs.

    Places are numbers of bytes. A table begins with how far before it its list of
    fields stands (the "vtable"), which says how far behind it each field stands.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def root(self) -> int:
        """Return where the outermost table stands."""
        return self._number("<I", 0)

    def field(self, table: int, index: int) -> int | None:
        """Return where a field of a table stands; ``None`` if it is left out."""
        vtable = table - self._number("<i", table)
        n_vtable_bytes = self._number("<H", vtable)
        # The vtable's own length and the table's length stand before the fields.
        entry = 4 + 2 * index
        if entry >= n_vtable_bytes:
            return None

        offset = self._number("<H", vtable + entry)
        return table + offset if offset else None

    def table(self, table: int, index: int) -> int:
        """Return where the table stands that a field refers to."""
        field = self.field(table, index)
        if field is None:
            raise ValueError("a message without a head")
        return field + self._number("<I", field)

    def pairs(self, table: int, index: int) -> Iterator[tuple[int, int]]:
        """Yield the pairs of 64-bit numbers in the vector that a field refers to."""
        vector = self.table(table, index)
        n_pairs = self._number("<I", vector)
        for i in range(n_pairs):
            pair = vector + 4 + 16 * i
            yield self._number("<q", pair), self._number("<q", pair + 8)

    def _number(self, format: str, place: int) -> int:
        return int(struct.unpack_from(format, self._raw, place)[0])
