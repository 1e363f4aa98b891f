"""Checkpoints opened and refused, and how their files are changed for it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_audit.checkpoints.loaded import Loaded
from spark_audit.checkpoints.open import Opening, open_checkpoint
from spark_audit.checkpoints.specs import Loading, Spec
from spark_audit.errors import CheckpointError


def refused(source: Path | str, message: str, **options: Any) -> None:
    """Opening is refused (exit 3) with exactly one line that says this."""
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(str(source), device="cpu", **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 3


def each(specs: Sequence[Spec], **options: Any) -> Iterator[Loaded]:
    """Several checkpoints, opened one after the other."""
    yield from Opening(specs, Loading(**options)).each()


def change(file: Path, **changes: Any) -> None:
    """Other values in a JSON object's file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


class Malicious:
    """A pickle that would run a command when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.mark}",))
