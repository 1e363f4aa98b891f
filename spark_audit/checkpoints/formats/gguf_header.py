"""Check the header of a GGUF file before a library reads it.

The library trusts the header: an array of 2 ** 60 elements would never end, and would
fill the memory. Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import mmap
import os
import struct

MAX_KEYS = 4096
MAX_TENSORS = 1 << 15
MAX_ELEMENTS = 3 << 19
"""Limits on a header; real ones have 60 keys, 2,000 tensors, and 1.3 million array
elements (tokens, their scores and types, merges)."""
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Number of a type in the file -> bytes of a value."""
_STRING_TYPE = 8
_ARRAY_TYPE = 9
_INT32 = "I"
_INT64 = "Q"


def check_header(data: mmap.mmap) -> None:
    """Refuse a header that a library could not read to its end.

    Raises
    ------
    ValueError, OverflowError, struct.error
        If the file cannot contain a count or a length that the header states.
    """
    if data.read(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    # The version is a small number, so its bytes show the byte order.
    is_little_endian = struct.unpack_from("<I", data, 4)[0] & 0xFFFF
    header = _Header(data, "<" if is_little_endian else ">")

    if header.number(_INT32) not in (2, 3):
        raise ValueError("only versions 2 and 3 are known")

    # The tensors follow the keys, so their count must only be plausible.
    header.number(_INT64, MAX_TENSORS)
    n_keys = header.number(_INT64, MAX_KEYS)
    for _ in range(n_keys):
        # A key is a name, the type of its value, and the value.
        header.skip(header.number(_INT64))
        header.skip_values(header.number(_INT32), 1, is_in_array=False)


class _Header:
    """The header of a file, read from the beginning to the end.

    Parameters
    ----------
    data
        The file, behind its first four bytes.
    byte_order
        Byte order in the notation of ``struct``.
    """

    def __init__(self, data: mmap.mmap, byte_order: str) -> None:
        self._data = data
        self._byte_order = byte_order
        self._elements_left = MAX_ELEMENTS

    def number(self, code: str, most: int = 1 << 64) -> int:
        """Read a number, and refuse one above a limit."""
        raw = self._data.read(struct.calcsize(code))
        number = int(struct.unpack(self._byte_order + code, raw)[0])

        if number > most:
            problem = "keys, tensors or elements: more than"
            raise ValueError(f"{number} {problem} {most} are not read")
        return number

    def skip(self, n_bytes: int) -> None:
        """Skip bytes."""
        self._data.seek(n_bytes, os.SEEK_CUR)

    def skip_values(self, value_type: int, count: int, *, is_in_array: bool) -> None:
        """Skip values of a type; refuse an array of arrays."""
        if value_type == _STRING_TYPE:
            # A length, and then that many bytes.
            for _ in range(count):
                self.skip(self.number(_INT64))
        elif value_type in _SCALAR_BYTES:
            self.skip(_SCALAR_BYTES[value_type] * count)
        elif value_type == _ARRAY_TYPE and not is_in_array:
            element_type = self.number(_INT32)
            # The limit applies to all arrays of the file together.
            n_elements = self.number(_INT64, self._elements_left)
            self._elements_left -= n_elements
            self.skip_values(element_type, n_elements, is_in_array=True)
        else:
            raise ValueError(f"values of type {value_type} are unknown, or nested")
