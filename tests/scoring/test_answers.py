from __future__ import annotations

import pytest

from spark_audit.scoring.answers import normalised, stripped


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" The  «Good», one! ", "the good one"),
        ("Sci/Tech", "scitech"),
        ("?!", "?!"),
        (" - ", "-"),
        ("ÄRGER\n", "ärger"),
        ("", ""),
    ],
)
def test_normalised(text: str, expected: str) -> None:
    assert normalised(text) == expected


def test_stripped_keeps_everything_inside() -> None:
    assert stripped("\n The  Good. ") == "The  Good."
