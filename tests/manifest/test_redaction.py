"""What is hidden of a manifest's rows, where they cannot be read again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_audit.errors import InputError
from spark_audit.manifest.redaction import Secrets, hidden_ranges


def test_a_row_that_cannot_be_read_is_not_called_by_its_id() -> None:
    text: dict[str, Any] = {"prompt": "a", "response": " b", "spans": ()}
    row: Any = SimpleNamespace(
        id="maria.jones@example.org", task="t", split="train", source_id=" ", **text
    )
    with pytest.raises(InputError, match="a row of the manifest: is blank") as caught:
        hidden_ranges(row, Secrets((), frozenset()))
    assert "maria" not in str(caught.value)
