"""Seals and checksums: no flipped bit and no cut passes."""

import json
import re

import pytest

from spark_audit.files import BLANK_DIGEST, fact, fact_of, fault, intact, sealed

RECORD = {
    "kind": "x",
    "lr": 0.1,
    "hash": "ab" * 32,
    "seal": BLANK_DIGEST,
    "text": '"seal"',
}


@pytest.mark.parametrize("indent", [None, 1])
def test_any_flipped_bit_breaks_a_seal(indent):
    data = sealed(json.dumps(RECORD, indent=indent).encode())
    assert intact(data)
    assert json.loads(data).keys() == RECORD.keys()
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            assert intact(bytes(changed)) is False
    for size in range(len(data)):
        assert not intact(data[:size])


def test_what_was_never_sealed_is_neither_whole_nor_broken():
    data = json.dumps({"kind": "x", "hash": "ab" * 32}).encode()
    assert intact(data) is None
    with pytest.raises(ValueError, match="seal"):
        sealed(data)


def figures_of(reason: str | None) -> list[str]:
    """The numbers in the reason that a file is not whole."""
    return re.findall(r"\d+", reason or "")


def test_a_file_is_held_against_its_fact(tmp_path):
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\n")
    told = fact_of(file)
    assert told == fact(b"one\ntwo\n")
    assert fault(file, told) is None
    start = fact(b"one\n")
    assert fault(file, start, grows=True) is None
    assert figures_of(fault(file, start)) == ["8", "4"]
    file.write_bytes(b"one\ntwp\n")
    assert fault(file, start, grows=True) is None
    assert fault(file, told)
    file.write_bytes(b"oneXtwo\n")
    assert fault(file, start, grows=True)
    file.write_bytes(b"on")
    assert figures_of(fault(file, start, grows=True)) == ["2", "4"]
    gone = fault(tmp_path / "none", told)
    assert gone
    assert fault(tmp_path, told) == gone
    for wrong in (None, [], {}, {"bytes": "4"}):
        assert fault(file, wrong) not in (None, gone)
