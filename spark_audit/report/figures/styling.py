"""Style of figures: colours, markers, and matplotlib's settings.

Colour is never the only sign: each checkpoint has its own marker and dashes, for grey
prints and colour-blind readers.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spark_audit.names import BASE, entry_of, series_of
from spark_audit.results import Report

MARKERS = "os^DvPX<>ph*d8"
"""Matplotlib's markers in the order in which checkpoints take them."""

LIGHT = tuple("#595959 #cb8201 #1b6aa6 #c26cac #00552c #079dd5 #a53e02 #bc8757".split())
"""Series on white, grey first, for the reference: seaborn's "colorblind", moved until
each has a contrast of 3 to white (WCAG 2.2, 1.4.11), neighbours differ in lightness and
any two can be told apart with deuteranopia (Machado et al. 2009)."""

DARK = tuple("#b3b3b3 #f9b136 #4ea3de #bc8bba #86f3c1 #9bd3f5 #ec7c3a #ddb890".split())
"""The same series on a dark page, for ``--c0`` to ``--c7``."""

INK, MUTED, GRID, PAPER = "#222222", "#666666", "#d9d9d9", "#ffffff"
"""Colours of text and axes, of remarks and references, of grids, and of the ground."""

ALARM, WARN = "#9c1c1c", "#7a4b00"
"""Colours of findings. Both differ from ink in lightness, and signs go with them."""

STYLE_SHEET = Path(__file__).with_name("spark.mplstyle")
"""The one style sheet of all figures."""

CHECKPOINT = "checkpoint:"
"""Prefix of the gid of a checkpoint's artists."""


def _import_matplotlib() -> None:
    """Import matplotlib with the settings that it brings.

    It reads a ``matplotlibrc`` of the working directory first, which may be somebody
    else's: LaTeX with a preamble, a backend to import. In its own folder that is its
    own file.
    """
    # If it is already imported, its settings are somebody's choice.
    if "matplotlib" not in sys.modules:
        folder = Path()
        spec = importlib.util.find_spec("matplotlib")
        if spec is not None:
            folder = Path(str(spec.origin)).parent / "mpl-data"
        with contextlib.suppress(FileNotFoundError), contextlib.chdir(folder):
            importlib.import_module("matplotlib")


@contextlib.contextmanager
def styled(**settings: Any) -> Iterator[None]:
    """Apply our settings of matplotlib while a figure is drawn; global ones stay."""
    _import_matplotlib()
    from matplotlib import style

    # Start from its own defaults, not from settings that were read before.
    with style.context(["default", STYLE_SHEET, settings]):
        yield


def palette(*reports: Report) -> dict[str, int]:
    """Return the number of each checkpoint of a report, from 0, the reference first.

    Of several reports, a name has one number in all of them.

    The number decides colour, marker and dashes; replicates share that of their entry.
    Colours repeat from the ninth number on with another marker, markers from the
    fifteenth with another colour. Stages of a series have a number only if the report
    has figures of them that are not the series'.
    """
    names = []
    for report in reports:
        names += _names_in(report)

    palette_numbers: dict[str, int] = {}
    entry_numbers: dict[str, int] = {}
    # Sorting is stable: the base goes first, all others keep their order.
    for name in sorted(dict.fromkeys(names), key=lambda name: name != BASE):
        entry = entry_of(name)
        # Replicates take the number that the first of them was given.
        if entry not in entry_numbers:
            entry_numbers[entry] = len(entry_numbers)
        palette_numbers[name] = entry_numbers[entry]
        palette_numbers[entry] = entry_numbers[entry]
    return palette_numbers


def _names_in(report: Report) -> list[str]:
    """Return the checkpoints that a report names, as often as it does.

    Some are named only in rows or only in tables.
    """
    names = []
    for checkpoint in report.checkpoints:
        if series_of(checkpoint.name) == checkpoint.name:
            names.append(checkpoint.name)

    names += [row.checkpoint for row in report.results]
    for row in report.contrasts:
        names += [row.checkpoint, row.baseline]
    for records in report.tables.values():
        for record in records:
            if record.get("checkpoint"):
                names.append(record["checkpoint"])
    return names
