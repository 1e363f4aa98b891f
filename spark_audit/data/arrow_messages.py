"""Check what the messages of an Arrow file decode to, before they are decoded.

A message is a head in FlatBuffers' format and a body of buffers. A compressed buffer
begins with its decoded length, so the sum is known before anything is decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_audit.data.data_files import check_decoded

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_MAGIC = b"ARROW1"
"""The magic bytes at both ends of an Arrow file; a stream has none."""

_STREAM_START = 8
"""Offset of the first message of an Arrow file, behind the magic bytes."""

# Numbers of fields in Arrow's tables, as its Message.fbs declares them.
_MESSAGE_HEADER = 2
_DICTIONARY_DATA = 1
_BATCH_BUFFERS = 2
_BATCH_COMPRESSION = 3

_LENGTH_BYTES = 8
"""Bytes before a compressed buffer that give its decoded length."""

_NOT_COMPRESSED = -1
"""The decoded length that marks an uncompressed buffer among compressed ones."""


def open_messages(buffer: pa.Buffer, *, is_file: bool) -> pa.RecordBatchReader:
    """Open the stream of Arrow messages in a buffer, for streams and files alike.

    A file is a stream between magic bytes, with an index behind it.

    The index at the end of a file is not used: it may point to bytes that were not
    checked.
    """
    import pyarrow as pa

    return pa.ipc.open_stream(buffer[_STREAM_START:] if is_file else buffer)


def check_messages(buffer: pa.Buffer, *, size: int, place: str, is_file: bool) -> None:
    """Refuse Arrow data whose compressed buffers decode to too much.

    Parameters
    ----------
    buffer
        The whole file or stream.
    size
        Its bytes on disk, which limit what it decodes to (:func:`check_decoded`).
    place
        The file, for errors.
    is_file
        Whether it is an Arrow file; else it is a stream.

    Raises
    ------
    InputError
        If the buffers decode to more than the limit for ``size``.
    pyarrow.ArrowException, ValueError, struct.error
        If the buffer is not Arrow data.
    """
    import pyarrow as pa

    if is_file and buffer[-len(ARROW_MAGIC) :].to_pybytes() != ARROW_MAGIC:
        raise ValueError("its end is missing")

    # Dictionaries are messages, too, and count like batches.
    stream = buffer[_STREAM_START:] if is_file else buffer
    n_bytes = 0
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(stream)):
        if message.type in ("record batch", "dictionary"):
            n_bytes += _decoded_bytes(message)
            check_decoded(n_bytes, size=size, place=place)


def _decoded_bytes(message: pa.Message) -> int:
    """Return the number of bytes that the buffers of a message decode to."""
    # A dictionary's data are a batch inside of its message.
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
    """A reader for the few FlatBuffers structures in the head of a message.

    All positions count bytes. A table begins with the distance back to its list of
    fields (the "vtable"), and this list holds the distance from the table to each
    field.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def root(self) -> int:
        """Return the position of the outermost table."""
        return self._number("<I", 0)

    def field(self, table: int, index: int) -> int | None:
        """Return the position of a field of a table; ``None`` if it is left out."""
        vtable = table - self._number("<i", table)
        n_vtable_bytes = self._number("<H", vtable)
        # Two lengths, of the vtable and of the table, precede the list of fields.
        entry = 4 + 2 * index
        if entry >= n_vtable_bytes:
            return None

        offset = self._number("<H", vtable + entry)
        return table + offset if offset else None

    def table(self, table: int, index: int) -> int:
        """Return the position of the table that a field refers to."""
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

    def _number(self, format: str, position: int) -> int:
        """Return the number at a position; ``format`` is one of :mod:`struct`."""
        return int(struct.unpack_from(format, self._raw, position)[0])
