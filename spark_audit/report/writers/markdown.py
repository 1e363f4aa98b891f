"""report.md: Markdown that pastes well into an issue or a model's card."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from spark_audit import sentences
from spark_audit.errors import visible
from spark_audit.manifest.schema import Manifest
from spark_audit.report.states import SIGNS, reach
from spark_audit.report.summary_tables import (
    further_tables,
    general,
    tables,
)
from spark_audit.report.table_cells import File, Rendering, Table
from spark_audit.report.writers.template import environment, facts
from spark_audit.results import OF_REPORT, Report, number

LONGEST = 65_000
"""Characters beyond which tables are left out: GitHub takes 65,536 in an issue."""


def write(report: Report, folder: Path, how: Rendering) -> Iterator[File]:
    """``report.md``; identifiers appear only with ``show_text``."""
    shown = how.manifest if how.show_text else None
    text = render(report, manifest=shown, further=how.further)
    # With text it is as private as the manifest.
    yield File("report.md", text, shown is not None)


def render(
    report: Report, *, manifest: Manifest | None = None, further: Sequence[Table] = ()
) -> str:
    """The report as Markdown, with as much of its tables as :data:`LONGEST` allows.

    Parameters
    ----------
    manifest
        If given, the text of some of its pairs is shown.
    further
        Tables that stand in sections of their own after the figures.
    """
    shared = facts(report)
    audits = dict.fromkeys(row.audit for row in report.results)
    shared |= {
        "memories": reach(shared["standings"]) is not None,
        "signs": SIGNS,
        "of_report": OF_REPORT,
        "further": further,
        "definitions": [
            *general(report),
            *chain(*(sentences.terms(f"definition.{one}") for one in audits)),
        ],
        "manifest": manifest,
        "number": number,
    }
    made = environment(
        plain=_plain,
        # Nothing in a code span ends it.
        code=lambda text: f"`{visible(text).replace('`', chr(39))}`",
        cell=_cell,
        memory=lambda one: sentences.render(
            "figure.memory.figure", row=one.memory, sides=one.sides
        ),
        table=lambda shown: table(shown.header, [line.texts for line in shown.rows]),
    ).get_template("report.md")
    rooms: dict[str, Sequence[Table]] = {
        "all": [*tables(report), *further_tables(report)],
        "pooled": tables(report, brief=True),
        "none": (),
        "short": (),
    }
    text = ""
    for room in rooms:
        opened = report.checkpoints if room == "all" else shared["checkpoints"]
        more = {"room": room, "shown_tables": rooms, "opened": opened}
        text = re.sub(r"\n{3,}", "\n\n", made.render(shared | more)).lstrip("\n")
        if len(text) <= LONGEST:
            break
    return text


def _plain(text: str) -> str:
    """Inert text, which opens no code span that what follows would close."""
    text = _inert(text)
    return text.replace("`", "\\`") if text.count("`") % 2 else text


def _inert(text: str) -> str:
    """Text that begins no tag, link, image or heading: it may be somebody else's.

    Intervals keep their brackets: only what would make a link of them is escaped.
    """
    text = _ENTITY.sub("&amp;", visible(text))
    text = _TAG.sub("&lt;", text).replace("](", "]\\(").replace("][", "]\\[")
    text = _LEAD.sub(r"\1\\\2", text.strip()).replace("]:", "]\\:").replace("$", "\\$")
    text = text.replace("://", ":&#47;/")
    return _MENTION.sub(lambda found: f"&#{ord(found[0])};", text)


_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_LEAD = re.compile(r"^(\d*)([#>+*.)-](?=\s|#|$)|~(?=~~)|`(?=``))")
_MENTION = re.compile(r"(?<![\w&])[@#](?=\w)|(?<=\bwww)\.")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; what would end a cell or a line inside one is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(cell: str) -> str:
    text = " ".join(str(cell).replace("\\", "\\\\").split())
    return _inert(text).replace("|", "\\|").replace("`", "\\`")
