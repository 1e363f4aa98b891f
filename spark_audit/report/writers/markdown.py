"""report.md: the report as Markdown that pastes well into an issue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from spark_audit import sentences
from spark_audit.errors import visible
from spark_audit.files import write_text
from spark_audit.manifest.schema import Manifest
from spark_audit.names import series_of
from spark_audit.report.attacks import covered
from spark_audit.report.cells import Rendering, Table
from spark_audit.report.states import (
    SHAPES,
    Standing,
    advice,
    answer,
    doubts,
    gate,
    outcome_name,
    reading,
    standings,
    state_name,
)
from spark_audit.report.tables import (
    definitions,
    entries,
    further_tables,
    glance,
    tables,
)
from spark_audit.results import OF_REPORT, Report, by_severity, number

LONGEST = 60_000
"""Characters beyond which tables are left out: GitHub takes 65,536 in an issue."""


def write(report: Report, folder: Path, how: Rendering) -> list[Path]:
    """Write ``report.md``; identifiers appear only with ``show_text``."""
    path = folder / "report.md"
    shown = how.manifest if how.show_text else None
    # With text it is as private as the manifest.
    mode = 0o644 if shown is None else 0o600
    write_text(path, render(report, manifest=shown, further=how.further), mode=mode)
    return [path]


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
    beside = [_section(one, level=2) for one in further]
    parts: list[str] = []
    for level in Shown:
        parts = [*_head(report), *_figures(report, level), *_pairs(manifest)]
        parts += [*beside, *_tail(report, level)]
        if _length(parts) <= LONGEST:
            break
    if beside and _length(parts) > LONGEST:
        titles = ", ".join(one.title for one in further)
        short = f"*{_long(titles, further=True)}*"
        parts = [short if part in beside else part for part in parts]
    return "\n\n".join(parts) + "\n"


def summary(report: Report) -> str:
    """What the model's card says of its audit: a section, the answer first."""
    stand, facts = standings(report), report.manifest
    head = answer(stand) or _words("no_verdict")
    parts = [f"## {_words('title')}", f"**{_plain(head)}**"]
    if report.status == "partial":
        parts.append(_partial())
    if stand:
        parts.append(_bullets(map(_stands, stand)))
        parts += _covered(report, stand)
        parts.append(_plain(f"{_words('figures')}: {reading(report, stand)}."))
    if (first := glance(report)) is not None:
        parts.append(_section(first))
    parts += [f"### {_words('limits')}", _limits(report)]
    made = _plain(report.versions.get("spark-audit", "")), _plain(report.created)
    parts.append(
        f"{_words('audited_by')} {', '.join(made)}, {_words('with_manifest')} "
        f"{_code(facts.name)} (`{facts.digest[:16]}`)."
    )
    return "\n\n".join(parts) + "\n"


def _words(key: str, **facts: Any) -> str:
    """Words that the first screen of every format has."""
    return sentences.render(f"page.{key}", **facts)


def _covered(report: Report, stand: Sequence[Standing]) -> list[str]:
    parts = covered(report, stand).items()
    return [_plain(f"{_words(name)}: {text}.") for name, text in parts]


def _limits(report: Report) -> str:
    return _bullets(sentences.translated("scope", line) for line in report.scope)


def _partial() -> str:
    """What stands over a report of some examples only."""
    return f"**{_words('partial')}** {_words('partial_why')}"


def _long(what: str, *, further: bool = False) -> str:
    return sentences.render("markdown.long", what=what, further=further)


def _length(parts: Sequence[str]) -> int:
    return sum(len(part) + 2 for part in parts)


class Shown(Enum):
    """How much of the tables stands in ``report.md``, the most first."""

    ALL = "all"
    POOLED = "pooled"
    NONE = "none"


def _head(report: Report) -> Iterator[str]:
    """Where each checkpoint stands, and what can void it."""
    stand = standings(report)
    yield f"# {_plain(answer(stand) if stand else ', '.join(entries(report)))}"
    if report.status == "partial":
        yield _partial()
    if not report.findings:
        yield _words("no_verdict")
    found = by_severity(report.findings)
    of_all = (f for f in found if f.audit == OF_REPORT and not f.checkpoint)
    yield _bullets(f.sentence for f in of_all)
    if stand:
        yield _bullets(map(_stands, stand))
        yield _bullets(
            f"{SHAPES[s]} {state_name(s)}: {text}" for s, text in advice(stand).items()
        )
        if failed := doubts(report, stand):
            yield _plain(failed)
        rules = _words("without_rules")
        yield f"{rules} `spark-audit gate` {_plain(gate(stand))}."
        yield from _covered(report, stand)
        yield _plain(f"{_words('figures')}: {reading(report, stand)}.")
    if (first := glance(report)) is not None:
        yield _section(first)
    if report.guards:
        words = {
            True: _words("guard_passed"),
            False: f"**{_words('guard_failed')}**",
            None: _words("guard_warning"),
        }
        rows = [
            (g.title, g.checkpoint or "-", words[g.passed], g.detail)
            for g in sorted(report.guards, key=lambda g: g.passed is True)
        ]
        yield f"## {_words('guards')}"
        columns = ("guard", "checkpoint", "state", "detail")
        yield table([_words(f"column_{name}") for name in columns], rows)
    yield f"## {_words('limits')}"
    yield _limits(report)
    yield f"## {_words('all_findings')}"
    yield _bullets(f"**{f.audit}** {f.sentence}" for f in found if f.audit != OF_REPORT)


def _stands(one: Standing) -> str:
    """A checkpoint's state, evidence, and what its attacks came to."""
    parts = [
        f"{outcome_name(outcome)}: {', '.join(tried.attack for tried in part)}"
        for outcome, part in one.tally.items()
    ]
    if one.exposed:
        parts.append(_words("exposed", exposed=one.exposed))
    tally = f" *{'; '.join(parts)}.*" if parts else ""
    state = f"{SHAPES[one.state]} **{state_name(one.state)}**"
    return f"{state} **{one.name}**: {one.lead}{tally}"


def _figures(report: Report, level: Shown) -> Iterator[str]:
    yield "## Figures"
    if level is not Shown.ALL:
        yield f"*{_long(sentences.render(f'markdown.{level.value}'))}*"
    if level is not Shown.NONE:
        yield from map(_section, tables(report, brief=level is Shown.POOLED))
    if level is Shown.ALL:
        yield from map(_section, further_tables(report))


def _tail(report: Report, level: Shown) -> Iterator[str]:
    """What the words mean, and what was audited."""
    facts = report.manifest
    yield "## Definitions"
    yield _bullets(f"**{name}**: {text}" for name, text in definitions(report))
    yield "## What was audited"
    yield table(
        ("checkpoint", "source", "format", "base", "dtype", "weights", "notes"),
        [
            (
                c.name,
                c.source,
                c.format,
                c.base or "-",
                c.dtype,
                c.weights_sha256[:12],
                "; ".join(c.notes) or "-",
            )
            for c in report.checkpoints
            if level is Shown.ALL or series_of(c.name) == c.name
        ],
    )
    yield (
        f"Manifest {_code(facts.name)}, digest `{facts.digest[:16]}`: {facts.n_spans} "
        f"matched spans, {facts.n_tokens} tokens, {facts.n_sources} sources in "
        f"{facts.n_clusters} clusters."
    )
    yield sentences.render("table.private")
    known = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield f"Versions: {_plain(known)}."
    yield f"Made {_plain(report.created)} with {_code(' '.join(report.command))}."


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


def _code(text: str) -> str:
    """Text in a code span, which nothing in it ends."""
    return f"`{visible(text).replace('`', chr(39))}`"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; what would end a cell or a line inside one is escaped."""

    def escaped(cell: str) -> str:
        text = " ".join(str(cell).replace("\\", "\\\\").split())
        return _inert(text).replace("|", "\\|").replace("`", "\\`")

    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(escaped, line))} |" for line in lines)


def _section(shown: Table, *, level: int = 3) -> str:
    parts = [f"{'#' * level} {_plain(shown.title)}"]
    if shown.lead:
        parts.append(_plain(shown.lead))
    parts.append(table(shown.header, [line.texts for line in shown.rows]))
    if shown.remarks:
        parts.append("\n".join(f"*{_plain(remark)}*" for remark in shown.remarks))
    return "\n\n".join(parts)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_plain(line)}" for line in lines)


def _pairs(manifest: Manifest | None, limit: int = 20) -> list[str]:
    """The text of some pairs, where it was asked for."""
    if manifest is None:
        return []
    rows = []
    for pair in manifest.pairs[:limit]:
        example = manifest.by_id[pair.example]
        text = example.prompt + example.response
        rows.append(
            (
                pair.example,
                pair.pii.type,
                text[pair.pii.char_start : pair.pii.char_end],
                text[pair.control.char_start : pair.control.char_end],
                f"{number(pair.pii.nll)} / {number(pair.control.nll)}",
            )
        )
    header = ("example", "type", "PII", "control", "reference NLL")
    return [f"## {sentences.render('markdown.pairs')}", table(header, rows)]
