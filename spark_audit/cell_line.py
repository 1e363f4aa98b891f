"""A line below a cell of a notebook that is written over itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

COLUMNS_OF_CELL_LINE = 88
"""Width of a bar in a notebook, which tells no width of its own."""


class CellLine:
    r"""A stream whose last line is shown below the running cell.

    A saved notebook keeps the last text alone. On stdout it would keep all of a bar's
    drawings, and the pages that are made of it show each of them.

    Only ``write``, ``flush`` and ``encoding`` of a stream are needed by a bar: it
    begins each drawing with ``\r``.
    """

    encoding = "utf-8"

    def __init__(self) -> None:
        self._written = ""
        self._shown = ""
        self._handle: DisplayHandle | None = None

    def write(self, text: str) -> int:
        """Keep the text; ``flush`` shows its last line."""
        self._written = (self._written + text).rpartition("\r")[2]
        return len(text)

    def flush(self) -> None:
        """Show the last line; an empty one leaves what is shown."""
        line = self._written.rstrip()
        if line and line != self._shown:
            self._shown = line
            self._show({"text/plain": line})

    def clear(self) -> None:
        """Take the line away."""
        if self._handle is not None:
            self._shown = ""
            # HTML goes before text, and an empty page takes less room than a line.
            self._show({"text/plain": "", "text/html": ""})

    def _show(self, content: dict[str, str]) -> None:
        """Show content, at the place of what was shown before."""
        if self._handle is not None:
            self._handle.update(content, raw=True)
            return

        from IPython.display import display

        self._handle = display(content, raw=True, display_id=True)
