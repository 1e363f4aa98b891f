"""What is refused in one line, and how a checkpoint's files are changed for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from spark_audit.checkpoints.open import open_checkpoint
from spark_audit.errors import CheckpointError


def refused(source: Path | str, message: str, **options: Any) -> None:
    """Opening is refused (exit 3) with exactly one line that says this."""
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(str(source), device="cpu", **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 3


def change(file: Path, **changes: Any) -> None:
    """Other values in a JSON object's file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


class Malicious:
    """A pickle that would run a command when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.mark}",))
