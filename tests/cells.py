"""A notebook's cell, as far as progress needs one: what is shown below it."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest


class ShownBelow:
    """Records what is displayed below a cell.

    Attributes
    ----------
    places
        What each place shows now, by MIME type.
    drawings
        All texts that were shown, in order.
    """

    def __init__(self) -> None:
        self.places: list[dict[str, str]] = []
        self.drawings: list[str] = []

    def display(self, content: dict[str, str], **options: Any) -> SimpleNamespace:
        """Show content at a new place, as ``IPython.display.display`` does."""
        number = len(self.places)
        self.places.append({})

        def update(content: dict[str, str], **options: Any) -> None:
            self.places[number] = content
            self.drawings.append(content["text/plain"])

        update(content)
        return SimpleNamespace(update=update)


@pytest.fixture
def below_the_cell(monkeypatch) -> ShownBelow:
    """What is shown below the cell that runs: the test stands for a notebook."""
    shown = ShownBelow()
    shell = SimpleNamespace(kernel=SimpleNamespace())
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    display = SimpleNamespace(display=shown.display)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown
